"""Scaling rules against their published formulas, for axial and for free vectors; temperatures."""

import math

import pytest
import torch

from rope_nd import RoPE, grid
from rope_nd.freqs import FAMILIES, axial, mixed
from rope_nd.scaling import build, dynamic_ntk, llama3, longrope, ntk, pi, resonance, temperature, truncate, turns, yarn

one, two = torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0, 3.0]).double()
length = torch.tensor([14.0, 14.0]).double()


def test_position_interpolation_is_squeezed_positions():
    table, points = mixed(16, 2), grid(4, 5, dtype=torch.float64)
    assert torch.allclose(points @ pi(table, two, length)[0].T, (points / two) @ table[0].T)


def test_ntk_is_the_changed_base_per_axis_for_axial():
    # b_a s_a^(D_a / (D_a - 2)), D_a = 2 F_a; uneven split and one base an axis
    table = axial(32, 2, theta=(100, 10000), split=(20, 12))
    scaled = ntk(table, torch.tensor([2.0, 5.0]).double(), length)[0]
    for a, (start, n, base, s) in enumerate([(0, 20, 100, 2), (20, 12, 10000, 5)]):
        changed = base * s ** (2 * n / (2 * n - 2))
        assert torch.allclose(scaled[start : start + n, a], changed ** (-torch.arange(n).double() / n), rtol=1e-12)


def test_ntk_takes_what_rounding_leaves_off_the_axis_for_nothing():
    table = axial(31, 2)
    dusty = table + 1e-9 * torch.randn(table.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(ntk(dusty, two, length), ntk(table, two, length), atol=1e-7)


def test_ntk_keeps_the_fastest_and_interpolates_the_slowest_of_free_vectors():
    table = mixed(32, 2, heads=3)
    scaled = ntk(table, two, length)
    size = table.norm(dim=-1)
    fast, slow = size.argmax(-1), size.argmin(-1)
    heads = torch.arange(3)
    assert torch.allclose(scaled[heads, fast], table[heads, fast])
    assert torch.allclose(scaled[heads, slow], table[heads, slow] / two)


def test_ntk_leaves_one_pair_and_one_magnitude_alone():
    assert torch.equal(ntk(axial(2, 2), 3 * one, length), axial(2, 2))
    assert torch.allclose(ntk(mixed(2, 2, heads=4), 3 * one, length), mixed(2, 2, heads=4), rtol=1e-12)
    assert torch.equal(ntk(axial(8, 2, split=(3, 3)), one * 4, length)[0, -2:], torch.zeros(2, 2).double())


def test_dynamic_ntk_follows_the_published_stretch():
    table = axial(16, 2)
    assert torch.allclose(dynamic_ntk(table, 3 * one, length, alpha=2), ntk(table, 5 * one, length))
    assert torch.equal(dynamic_ntk(table, one, length, alpha=2), table)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    table, s = axial(32, 2), torch.tensor([2.0, 4.0]).double()
    r = turns(table, length)[0]
    scaled = yarn(table, s, length)[0]
    assert math.isclose(r[0], 14 / (2 * math.pi))
    assert torch.equal(scaled[r >= 1.25], table[0][r >= 1.25])
    assert torch.allclose(scaled[r <= 0.75], table[0][r <= 0.75] / s)
    between = (r > 0.75) & (r < 1.25)
    g = ((r - 0.75) / 0.5)[between, None]
    assert between.any() and torch.allclose(scaled[between], table[0][between] * (g + (1 - g) / s))


def test_text_defaults_of_yarn_only_interpolate_on_a_vision_grid():
    table = axial(32, 2)
    text = yarn(table, 4 * one, length, slow=1, fast=32)
    assert (text / table).nan_to_num(1).amin() < 0.26 and (turns(table, length) < 1).sum() == 26  # 13 of 16 bands an axis
    assert not torch.allclose(text, yarn(table, 4 * one, length))


def test_llama3_is_its_published_piecewise_rule():
    base, factor, low, high, old = 500000.0, 8.0, 1.0, 4.0, 8192
    w = base ** (-torch.arange(64).double() / 64)
    wave = 2 * math.pi / w
    smooth = (old / wave - low) / (high - low)
    expected = torch.where(wave < old / high, w, torch.where(wave > old / low, w / factor, (1 - smooth) * w / factor + smooth * w))
    rope = RoPE(128, 1, theta=base, scaling={"llama3": {"factor": 8}}, trained_extent=(old,))
    got = rope._rule(rope.freqs, torch.ones(1).double(), torch.tensor([old]).double())[0, :, 0]
    assert torch.allclose(got, expected, rtol=1e-12)
    assert torch.allclose(llama3(w[None, :, None], one[:1] * 8, one[:1] * 8192)[0, :, 0], expected)


def test_longrope_has_a_factor_a_pair_above_the_trained_extent_only():
    table, factors = axial(4, 2), [1.0, 2.0, 3.0, 4.0]
    assert torch.allclose(longrope(table, two, length, long=factors), table / torch.tensor(factors).double()[:, None])
    assert torch.equal(longrope(table, one, length, long=factors), table)


def test_resonance_rounds_wavelengths_to_whole_units():
    table = resonance(axial(16, 2, theta=10000), one, length)
    wave = 2 * math.pi / table.norm(dim=-1)
    assert torch.allclose(wave, wave.round(), atol=1e-9)
    free = mixed(16, 2)
    ratio = resonance(free, one, length) / free
    assert torch.allclose(ratio[..., 0], ratio[..., 1])  # the direction stays


def test_truncation_keeps_the_fastest_share_per_axis_with_exponents_over_the_full_width():
    table = axial(32, 3)  # 11, 11, 10 pairs
    cut = truncate(table, torch.ones(3).double(), torch.ones(3).double(), keep=0.75)
    assert (cut != 0).sum(1)[0].tolist() == [8, 8, 7]
    kept = cut != 0
    assert torch.equal(cut[kept], table[kept])
    assert table[(table != 0) & ~kept].amax() < 0.1
    assert torch.equal(truncate(table, one, length, keep=1.0), table) and not truncate(table, one, length, keep=0.0).any()


@pytest.mark.parametrize("family", ["spiral", "golden", "mixed", "simplex", "interleaved"])
def test_truncation_drops_whole_pairs_the_slowest_first(family):
    table = FAMILIES[family](32, 2)
    cut = truncate(table, one, length, keep=0.5)
    dropped = (cut == 0).all(-1)
    assert torch.equal(cut[~dropped], table[~dropped])
    size, axis = table.norm(dim=-1), table.abs().argmax(-1)
    for a in (0, 1):
        here = (axis == a) & (size > 0)
        assert int((here & ~dropped).sum()) == int(here.sum()) // 2
        assert size[here & ~dropped].min() >= size[here & dropped].max() - 1e-12


def test_truncation_by_turns_drops_pairs_that_never_come_round():
    table = mixed(32, 2)
    cut = truncate(table, one, length, min_turns=1.0)
    assert torch.equal((cut != 0).any(-1), turns(table, length) >= 1)


def test_rules_compose_in_order_and_go_per_axis():
    table, s = axial(16, 2), torch.tensor([2.0, 4.0]).double()
    both = build({"pi": {}, "truncate": {"keep": 0.5}}, 2)(table, s, length)
    assert torch.equal(both, truncate(pi(table, s, length), s, length, keep=0.5))
    each = build(["ntk", "pi"], 2)(table, s, length)
    assert torch.equal(each[0, :8], ntk(table, s, length)[0, :8]) and torch.equal(each[0, 8:], pi(table, s, length)[0, 8:])
    first = build(["pi", None], 2)(table, s, length)
    assert torch.equal(first[0, 8:], table[0, 8:])


@pytest.mark.parametrize("name", ["pi", "ntk", "dynamic_ntk", "yarn", "llama3"])
def test_within_the_trained_extent_nothing_changes(name):
    plain, scaled = RoPE(64, 2), RoPE(64, 2, scaling=name, trained_extent=(14, 14))
    for extent in [(14, 14), (7, 14), (3, 5)]:
        assert torch.equal(plain.at(*extent).cos, scaled.at(*extent).cos)
    assert not torch.equal(plain.at(14, 28).cos, scaled.at(14, 28).cos)


def test_scale_factors_are_per_axis():
    rope = RoPE(64, 2, scaling="pi", trained_extent=(14, 14))
    turned = rope.at(14, 28)
    plain = RoPE(64, 2)(grid(14, 28, spacing=(1, 0.5)))
    assert torch.allclose(turned.cos, plain.cos, atol=1e-6) and torch.allclose(turned.sin, plain.sin, atol=1e-6)


@pytest.mark.parametrize("by", ["axis", "longest"])
def test_normalised_coordinates_leave_the_stretching_to_the_rule(by):
    """Centred coordinates are interpolated by themselves: with a rule they keep the trained pitch, and the rule is what acts."""
    options = {"coordinates": {"normalize": "centred", "by": by}, "trained_extent": (8, 8)}
    fixed, squeezed = RoPE(32, 2, scaling="ntk", **options), RoPE(32, 2, scaling="pi", **options)
    assert torch.equal(fixed.at(8, 8).cos, RoPE(32, 2, **options).at(8, 8).cos)
    pitch = fixed.positions(16, 16).view(16, 16, 2).diff(dim=1)[0, 0, 1]
    assert math.isclose(pitch, 2 / 8)
    assert torch.allclose(squeezed.at(16, 16).sin, RoPE(32, 2, **options).at(16, 16).sin, atol=1e-6)


def test_temperatures_follow_their_formulas_and_scale_every_score():
    count, trained = torch.tensor([28.0, 56.0]).double(), torch.tensor([14.0, 14.0]).double()
    assert math.isclose(temperature("log", count, trained), math.log(28 * 56) / math.log(196))
    assert math.isclose(temperature("yarn", count, trained), (0.1 * math.log(math.sqrt(2 * 4)) + 1) ** 2)
    assert temperature("log", trained / 2, trained) == 1 and temperature(1.5, count, trained) == 1.5
    rope = RoPE(32, 2, freqs="simplex", temperature="log", trained_extent=(4, 4), prefix_tokens=2)
    rotation = rope.at(8, 8)
    q, k = torch.randn(1, 2, 66, 32), torch.randn(1, 2, 66, 32)
    hot, plain = rotation.qk(q, k), (rotation(q), rotation(k))
    factor = math.log(64) / math.log(16)
    assert torch.allclose(hot[0] @ hot[1].mT, factor * plain[0] @ plain[1].mT, atol=1e-4)  # prefix tokens, zero rows too


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: RoPE(64, 2, scaling="yarm", trained_extent=(4, 4)), "did you mean 'yarn'"),
        (lambda: RoPE(64, 2, scaling="yarn"), "trained_extent"),
        (lambda: RoPE(64, 2, scaling={"truncate": {"min_turns": 1}}), "trained_extent"),
        (lambda: RoPE(64, 2, temperature="log"), "trained_extent"),
        (lambda: RoPE(64, 2, temperature="lag"), "did you mean 'log'"),
        (lambda: RoPE(64, 2, temperature=-1), "positive"),
        (lambda: RoPE(64, 2, scaling={"yarn": {"sloww": 1}}, trained_extent=(4, 4)), "no option 'sloww'"),
        (lambda: RoPE(64, 2, scaling={"pi": {"factor": (1, 2, 3)}}), "3 entries"),
        (lambda: RoPE(64, 2, scaling=["pi"], trained_extent=(4, 4)), "one an axis"),
        (lambda: RoPE(64, 2, scaling="pi", trained_extent=(4,)), "1 entries for axes=2"),
        (lambda: RoPE(64, 2, scaling="pi", trained_extent=(4, 4))(grid(8, 8)), "extent=None"),
        (lambda: RoPE(64, 2, scaling="pi", trained_extent=(4, 4))(grid(8, 8), extent=(8,)), "axes=2"),
        (lambda: yarn(axial(4, 2), two, length, slow=2, fast=1), "slow < fast"),
        (lambda: truncate(axial(4, 2), two, length), "truncate needs"),
        (lambda: truncate(axial(4, 2), two, length, keep=2), "between 0 and 1"),
        (lambda: longrope(axial(4, 2), two, length, long=[1.0]), "1 factors for 4 pairs"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)
