"""What formats can hold, and what rounding does to scores, against references written here."""

import math

import pytest
import torch

from rope_nd import RoPE, grid
from rope_nd.absolute import Sinusoidal
from rope_nd.bias import ALiBi
from rope_nd.fields import LookHere
from rope_nd.parabola import PaPE
from rope_nd.polar import PoPE
from rope_nd.precision import FORMATS, phase_error, quantise, score_error

SIZE = {"extent": (16, 16)}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def float8(exponent_bits, mantissa_bits, special):
    """Every finite value of an 8-bit float, decoded from its bits; `special` exponents and mantissas are no numbers."""
    bias, found = 2 ** (exponent_bits - 1) - 1, set()
    for e in range(2**exponent_bits):
        for m in range(2**mantissa_bits):
            if not special(e, m):
                size = m / 2**mantissa_bits * 2.0 ** (1 - bias) if e == 0 else (1 + m / 2**mantissa_bits) * 2.0 ** (e - bias)
                found |= {size, -size}
    return torch.tensor(sorted(found), dtype=torch.float64)


LEVELS = {
    "int4": torch.arange(-7, 8).double(),
    "int8": torch.arange(-127, 128).double(),
    "e4m3": float8(4, 3, lambda e, m: e == 15 and m == 7),
    "e5m2": float8(5, 2, lambda e, m: e == 31),
}


def value_error(format):
    """Mean square of the error of rounded normal vectors of 64 channels, their own mean square being one."""
    x = normal(4000, 64, seed=7)
    return ((quantise(x, format) - x).square().mean() / x.square().mean()).item()


@pytest.mark.parametrize("format", LEVELS)
def test_each_value_goes_to_the_nearest_level_of_its_tokens_scale(format):
    x, levels = normal(3, 50, 16) * 10 ** normal(3, 50, 1), LEVELS[format]
    scale = x.abs().amax(-1, keepdim=True) / levels.max()  # [3, 50, 1]
    off = (x[..., None] / scale[..., None] - levels).abs()  # [3, 50, 16, levels]
    held = quantise(x, format) / scale
    assert (held[..., None] - levels).abs().amin(-1).max() < 1e-9 * levels.max()  # what it is rounded to is a level
    torch.testing.assert_close((held - x / scale).abs(), off.amin(-1), rtol=0, atol=1e-6 * levels.max().item())


@pytest.mark.parametrize("format, bits", [("fp16", 11), ("bf16", 8)])
def test_half_formats_keep_so_many_bits_of_each_value(format, bits):
    x = normal(20, 8).float()
    parts = [math.frexp(value) for value in x.flatten().tolist()]
    expected = torch.tensor([round(m * 2**bits) / 2**bits * 2.0**e for m, e in parts]).view_as(x)
    assert torch.equal(quantise(x, format), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_a_scale_a_channel_is_a_scale_a_token_of_the_transpose(format):
    x = normal(2, 12, 6)
    assert torch.equal(quantise(x, format, per="channel"), quantise(x.mT, format).mT)
    if format in LEVELS:
        assert not torch.equal(quantise(x, format, per="channel"), quantise(x, format))


@pytest.mark.parametrize("format", FORMATS)
def test_the_dtype_stays_zeros_stay_and_what_is_rounded_is_not_rounded_again(format):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = normal(5, 8).to(dtype)
        x[2] = 0
        once = quantise(x, format)
        assert once.dtype == dtype and torch.equal(once[2], x[2])
        if dtype != torch.bfloat16:
            torch.testing.assert_close(quantise(once, format), once, rtol=1e-6, atol=0)


def test_unknown_formats_places_and_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"unknown format 'int3'.*did you mean 'int"):
        quantise(normal(2, 2), "int3")
    with pytest.raises(ValueError, match="unknown per 'head'"):
        quantise(normal(2, 2), "int8", per="head")
    with pytest.raises(ValueError, match=r"x is torch.int64: give a floating-point tensor"):
        quantise(torch.ones(2, 2, dtype=torch.long), "int8")
    with pytest.raises(ValueError, match="unknown when 'between'"):
        score_error(RoPE(64, 2), "int8", when="between", **SIZE)
    with pytest.raises(ValueError, match="prefix_tokens=1"):
        score_error(RoPE(64, 2, prefix_tokens=1), "int8", **SIZE)


def test_errors_grow_as_bits_go_in_the_ratios_of_the_steps():
    error = {format: score_error(RoPE(64, 2, heads=4), format, **SIZE).relative for format in FORMATS}
    assert sorted(error, key=error.get) == ["fp16", "bf16", "int8", "e4m3", "e5m2", "int4"]
    ratios = {("bf16", "fp16"): 2**3, ("e4m3", "bf16"): 2**4, ("e5m2", "e4m3"): 2, ("int4", "int8"): 127 / 7}
    for (coarse, fine), steps in ratios.items():
        assert error[coarse] / error[fine] == pytest.approx(steps, rel=0.08), (coarse, fine)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("freqs", ["axial", "mixed"])
def test_scores_are_off_by_the_errors_of_two_vectors_whichever_way_pairs_turn(freqs, format, when):
    square = value_error(format)
    expected = math.sqrt(2 * square + square**2)
    assert score_error(RoPE(64, 2, freqs, heads=4), format, when=when, **SIZE).relative == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("format", FORMATS)
def test_at_angle_zero_before_and_after_are_one(format, layout):
    still = RoPE(64, 2, strength=0, layout=layout)
    for options in ({}, {"per": "channel", "outliers": 4}):
        before, after = (score_error(still, format, when=when, **options, **SIZE) for when in ("before", "after"))
        assert before == after and before.tokens == math.inf


@pytest.mark.parametrize("freqs", ["axial", "mixed", "golden", "spiral"])
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_with_large_key_channels_integers_a_channel_are_better_before_and_a_token_after(freqs, format):
    found = {}
    for per in ("channel", "token"):
        for when in ("before", "after"):
            options = {"per": per, "when": when, "outliers": 4, **SIZE}
            found[per, when] = score_error(RoPE(64, 2, freqs, heads=4), format, **options).relative
    assert found["channel", "after"] > 1.03 * found["channel", "before"]
    assert found["token", "after"] < 0.97 * found["token", "before"]
    assert found["channel", "before"] < 0.7 * found["token", "before"]


def test_an_error_is_worth_more_tokens_the_slower_pairs_turn():
    for w in (0.05, 0.3, 1.0):
        error = score_error(RoPE(64, 1, torch.full((32, 1), w)), "int4", extent=(64,), tokens=256)
        assert error.tokens == pytest.approx(error.relative / (2 * math.sin(w / 2)), rel=0.05)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_bands_are_those_of_sorted_frequencies_and_add_up(layout):
    w = torch.tensor([0.0, 1.0, 0.2, 0.05]).repeat(8)[:, None]  # four speeds, out of order
    error = score_error(RoPE(64, 1, w, layout=layout), "int4", extent=(64,), tokens=256)
    assert sum(error.shares) == pytest.approx(1, abs=1e-9) and all(share == pytest.approx(0.25, abs=0.04) for share in error.shares)
    for found, speed in zip(error.bands, (1.0, 0.2, 0.05)):
        assert found == pytest.approx(error.relative / (2 * math.sin(speed / 2)), rel=0.1)
    assert error.bands[3] == math.inf


def test_the_cosine_and_sine_of_a_polar_channel_are_in_one_band():
    still = torch.tensor([0.5, 0.0]).repeat(16)[:, None]  # every other of 32 channels
    fast, slow = score_error(PoPE(32, 1, still), "int4", extent=(64,), bands=2).bands
    assert fast < math.inf and slow == math.inf


def test_the_band_of_a_large_channel_has_the_greatest_part_in_the_error():
    error = score_error(RoPE(64, 2), "int8", per="channel", outliers=1, **SIZE)  # channel 0, of the fastest pair
    assert error.shares[0] > 0.5 and sum(error.shares) == pytest.approx(1, abs=1e-9)


def test_only_what_turns_whole_heads_of_pairs_has_bands():
    with_bands = (RoPE(64, 2), PoPE(64, 2))
    without = (RoPE(64, 2, rotary_dim=32), PaPE(64, 2), ALiBi(4, 2), Sinusoidal(64, 2))
    assert all(len(score_error(enc, "int8", bands=3, **SIZE).bands) == 3 for enc in with_bands)
    assert all(score_error(enc, "int8", **SIZE).bands is None for enc in without)


def test_squeezed_positions_make_an_error_worth_more_and_rules_that_spare_fast_pairs_do_not():
    def error(rule):
        return score_error(RoPE(64, 2, heads=4, scaling=rule, trained_extent=(16, 16)), "int4", extent=(64, 64))

    plain, pi, ntk, yarn = map(error, ("none", "pi", "ntk", "yarn"))
    assert pi.relative == pytest.approx(plain.relative, rel=0.02)
    assert 3.5 < pi.tokens / plain.tokens < 4.2
    assert max(ntk.tokens, yarn.tokens) < 1.2 * plain.tokens
    assert yarn.bands[-1] == pytest.approx(pi.bands[-1]) and yarn.bands[-1] > 3.5 * plain.bands[-1]


def test_a_bias_counts_as_a_part_of_the_scores_and_hidden_pairs_do_not():
    square = value_error("int8")
    points = grid(16, 16, dtype=torch.float64)
    for bias in (ALiBi(4, 2), LookHere(4, 2)):
        seen = torch.cat([b[b.isfinite()] for b in bias(points, points)]).double()  # all heads, the pairs that are not hidden
        expected = math.sqrt(2 * square / (1 + seen.square().mean()))
        error = score_error(bias, "int8", **SIZE)
        assert error.relative == pytest.approx(expected, rel=0.1) and 0 < error.tokens < math.inf


def test_what_is_not_turned_has_one_place_to_be_rounded():
    for enc in (Sinusoidal(64, 2), ALiBi(4, 2)):
        before, after = (score_error(enc, "int4", when=when, outliers=4, **SIZE) for when in ("before", "after"))
        assert before == after and 0 < before.tokens < math.inf


def test_parabolas_survive_half_formats_but_not_integers_after_the_turning():
    def ratio(format):
        before, after = (score_error(PaPE(64, 2, heads=4), format, when=when, **SIZE).relative for when in ("before", "after"))
        return after / before

    assert ratio("fp16") < 1.3 and ratio("bf16") < 1.3 and ratio("int8") > 5


def test_the_same_arguments_give_the_same_numbers_whatever_the_global_seed():
    torch.manual_seed(0)
    first = score_error(RoPE(64, 2), "e4m3", outliers=2, **SIZE)
    torch.manual_seed(1)
    assert score_error(RoPE(64, 2), "e4m3", outliers=2, **SIZE) == first
    assert score_error(RoPE(64, 2), "e4m3", outliers=2, seed=1, **SIZE) != first


def test_angles_held_in_bfloat16_are_lost_and_ours_are_not():
    assert phase_error(torch.bfloat16, 257, pairs=1) == 1  # 257 becomes 256
    assert phase_error(torch.bfloat16, 256, pairs=1) == 0
    assert phase_error(torch.bfloat16, 1024) > 1 > phase_error(torch.float16, 1024) > 0.1
    assert phase_error(None, 1024) < 2e-7 < 1e-5 < phase_error(torch.float32, 1024) < 1e-4
