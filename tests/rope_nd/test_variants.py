"""Rotary encodings beyond the plain one: each is what its formula says, keeps what it says it keeps, and trains in a model."""

import copy
import io
import itertools
import math

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from rope_nd import RoPE, grid, wrap
from rope_nd.freqs import axial, magnitudes
from rope_nd.parabola import PaPE, parts
from rope_nd.polar import PoPE
from rope_nd.scaling import RULES
from rope_nd.variants import FoPE, HierarchicalRoPE, WaveletRoPE, mix, octaves
from rope_nd.wrapping.model import each

EXTENTS = {1: (7,), 2: (3, 5), 3: (2, 3, 4)}
TRAINED = {1: (6,), 2: (4, 6), 3: (4, 5, 6)}
D, H = 12, 3


def make(name: str, axes: int, **options) -> RoPE:
    """One of each, three heads of 12 channels, whose learned values are not their first ones."""
    rope = {
        "hierarchical": lambda **o: HierarchicalRoPE(D, axes, block=2.0, **o),
        "hierarchical, mixed": lambda **o: HierarchicalRoPE(D, axes, "mixed", heads=H, block=2.0, within="position", **o),
        "wavelet": lambda **o: WaveletRoPE(D, axes, **o),
        "fope": lambda **o: FoPE(D, axes, **{"trained_extent": TRAINED[axes], "min_turns": 0.3, "sigma": 0.2, **o}),
        "fope, learned": lambda **o: FoPE(
            D, axes, heads=H, **{"trained_extent": TRAINED[axes], "min_turns": 0.3, "sigma": 0.2, "learned_mixture": True, **o}
        ),
        "pope": lambda **o: PoPE(D, axes, heads=H, **o),
        "pape": lambda **o: PaPE(D, axes, heads=H, **o),
        "pape, shared": lambda **o: PaPE(D, axes, **o),
    }[name](**options)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in rope.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        if isinstance(rope, PoPE):
            rope.delta.sub_(2.0)
    return rope


NAMES = ["hierarchical", "hierarchical, mixed", "wavelet", "fope", "fope, learned", "pope", "pape", "pape, shared"]
RELATIVE = ["wavelet", "pope", "pape", "pape, shared"]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def qk(tokens: int, batch: int = 2, heads: int = H, width: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(batch, heads, tokens, width, seed=1), normal(batch, heads, tokens, width, seed=2)


def scores(rotation, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Products of queries and keys `[B, H, N, N]`, before attention scales them."""
    q, k = rotation.qk(q, k)
    return q.double() @ k.double().mT


def close(a: torch.Tensor, b: torch.Tensor, tol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=tol, rtol=tol)


# ---- what the formulas say, in float64, pair by pair


def spectrum(channels: int, axes: int, theta: float = 100.0) -> list[tuple[int, float]]:
    """(axis, frequency) of each axial channel: theta^(-i / F_a) for the i-th of the F_a of an axis, leftovers to the first axes."""
    counts = [channels // axes + (a < channels % axes) for a in range(axes)]
    return [(a, theta ** (-i / n)) for a, n in enumerate(counts) for i in range(n)]


def turned(q: torch.Tensor, k: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Re sum_f q_f t_f(i) conj(k_f t_f(j)) for interleaved pairs and complex tables `[.., N, P]`."""
    q, k = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * tables for x in (q, k))
    return (q @ k.conj().mT).real


def waves(angle: torch.Tensor) -> torch.Tensor:
    return torch.polar(torch.ones_like(angle), angle)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("within", ["offset", "position"])
def test_hierarchical_turns_slow_pairs_by_the_block_and_fast_ones_by_the_place_in_it(within, axes):
    block = (3.0, 2.0, 2.5)[:axes]
    rope = HierarchicalRoPE(D, axes, block=block, within=within)
    x = grid(*EXTENTS[axes], dtype=torch.float64)
    columns, slow = [], 0
    for axis, w in spectrum(D // 2, axes):
        at, b = x[:, axis], block[axis]
        if w * b / (2 * math.pi) < 0.25:
            columns.append(w * b * torch.tensor([float(v // b) for v in at]))
            slow += 1
        else:
            columns.append(w * (torch.tensor([math.fmod(v, b) for v in at]) if within == "offset" else at))
    assert 0 < slow < D // 2
    q, k = qk(len(x))
    close(scores(rope(x), q, k), turned(q, k, waves(torch.stack(columns, -1).double())))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_wavelet_pairs_have_periods_of_2_4_8_tokens_on_each_axis(axes):
    x = grid(*EXTENTS[axes], dtype=torch.float64)
    counts = [D // 2 // axes] * axes
    columns = [2 * math.pi * x[:, a] / 2 ** (i + 1) for a in range(axes) for i in range(counts[a])]
    q, k = qk(len(x))
    close(scores(WaveletRoPE(D, axes)(x), q, k), turned(q, k, waves(torch.stack(columns, -1))))


@pytest.mark.parametrize("name", ["fope", "fope, learned"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_fope_turns_each_pair_by_its_mixture_of_waves_the_slow_ones_standing_still(axes, name):
    rope, x = make(name, axes), grid(*EXTENTS[axes], dtype=torch.float64)
    a = rope.mixture.detach().double()  # [H|1, P, P]
    phase = [x[:, axis] * w * (w * TRAINED[axes][axis] / (2 * math.pi) >= 0.3) for axis, w in spectrum(D // 2, axes)]
    still = sum(bool((p == 0).all()) for p in phase)
    assert 0 < still < D // 2 and a.shape == (H if "learned" in name else 1, D // 2, D // 2)
    tables = torch.stack([torch.stack([sum(row[j] * waves(phase[j]) for j in range(len(phase))) for row in one], -1) for one in a])
    q, k = qk(len(x))
    close(scores(rope(x), q, k), turned(q, k, tables))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_pope_scores_are_magnitudes_of_the_content_and_cosines_of_the_offset_plus_a_bias(axes):
    rope, x = make("pope", axes), grid(*EXTENTS[axes], dtype=torch.float64)
    with torch.no_grad():
        rope.delta[0, 0], rope.delta[1, 1] = 0.5, -7.0  # beyond the range: 0 and -2 pi
    delta = rope.delta.detach().double().clone()
    delta[0, 0], delta[1, 1] = 0.0, -2 * math.pi
    q, k = qk(len(x))
    expected = torch.zeros(2, H, len(x), len(x), dtype=torch.float64)
    for c, (axis, w) in enumerate(spectrum(D, axes)):
        apart = x[None, :, axis] - x[:, None, axis]  # key minus query
        sizes = torch.log1p(q[..., c].exp())[..., :, None] * torch.log1p(k[..., c].exp())[..., None, :]
        expected += sizes * torch.cos(apart * w + delta[:, c, None, None])
    query, key = rope(x).qk(q, k)
    assert query.shape == key.shape == (2, H, len(x), 2 * D)
    close(query @ key.mT, expected)


def parabolas(rope: PaPE, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """sum_p -a_p (u_i - u_j)^2 + b_p (u_i - u_j) `[B, H, N, N]`, as it stands."""
    rows, weight, bias = (p.detach().double() for p in (rope.freqs, rope.weight, rope.bias))
    u = torch.einsum("na,hma->hnm", x.double(), rows)
    apart = u[:, :, None] - u[:, None, :]  # [H|1, N, N, M]
    m = u.shape[-1]
    found = torch.einsum("bhnd,hde->bhne", q.double(), weight.expand(q.shape[1], -1, -1)) + bias[:, None]
    a, b = torch.log1p(found[..., :m].exp()), found[..., m:]
    return (-a[..., None, :] * apart**2 + b[..., None, :] * apart).sum(-1)


@pytest.mark.parametrize("name", ["pape", "pape, shared"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_pape_adds_parabolas_of_the_distance_to_the_scaled_scores(axes, name):
    rope, x = make(name, axes, reach=3.0), grid(*EXTENTS[axes], dtype=torch.float64)
    q, k = qk(len(x))
    expected = q @ k.mT * D**-0.5 + parabolas(rope, x, q)
    assert (expected - q @ k.mT * D**-0.5).abs().max() > 1
    query, key = rope(x).qk(q, k)
    assert query.shape[-1] % 8 == 0 and query.shape == key.shape
    close(query @ key.mT * D**-0.5, expected)
    v = normal(2, H, len(x), D, seed=3)
    fused = nn.functional.scaled_dot_product_attention(query, key, v, scale=D**-0.5)
    close(fused, expected.softmax(-1) @ v)
    other = make(name, axes, reach=3.0, score_scale=0.7)(x).qk(q, k)
    close(other[0] @ other[1].mT * 0.7, q @ k.mT * 0.7 + parabolas(rope, x, q))


def test_pape_starts_with_a_decay_that_is_alike_in_all_directions():
    rope = PaPE(D, 3, heads=H, reach=5.0)
    x = torch.tensor([[0.0, 0, 0], [5, 0, 0], [0, 5, 0], [0, 0, 5], [3, 0, 4]])
    nothing = torch.zeros(1, H, 5, D, dtype=torch.float64)
    got = scores(rope(x), nothing, nothing)[0, :, 0] * D**-0.5
    close(got, torch.tensor([0.0] + [-2 * math.log(2)] * 4, dtype=torch.float64).expand(H, -1))


# ---- what they keep


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_scores_depend_on_differences_of_coordinates_only(axes, name):
    rope, x = make(name, axes), grid(*EXTENTS[axes], dtype=torch.float64)
    q, k = qk(len(x))
    shift = torch.tensor([11.3, -4.7, 6.1])[:axes].double()
    close(scores(rope(x), q, k), scores(rope(x + shift), q, k), 2e-5)
    assert (scores(rope(x), q, k) - scores(rope(1.5 * x), q, k)).abs().max() > 1e-2


@pytest.mark.parametrize("within", ["offset", "position"])
@pytest.mark.parametrize("freqs", ["axial", "mixed"])
def test_hierarchical_scores_keep_under_shifts_by_whole_blocks_and_not_by_others(freqs, within):
    rope = HierarchicalRoPE(D, 2, freqs, block=(2.0, 3.0), within=within, heads=H)
    x = grid(4, 5, dtype=torch.float64)
    q, k = qk(len(x))
    plain = scores(rope(x), q, k)
    close(plain, scores(rope(x + torch.tensor([6.0, -9.0])), q, k))
    assert (plain - scores(rope(x + torch.tensor([1.0, 1.0])), q, k)).abs().max() > 1e-2


def test_fast_pairs_of_a_hierarchy_of_positions_keep_under_every_shift_slow_ones_do_not():
    rope = HierarchicalRoPE(D, 1, block=4.0, within="position")
    q, k = qk(9)
    fast = torch.tensor([w * 4 / (2 * math.pi) >= 0.25 for _, w in spectrum(D // 2, 1)]).repeat_interleave(2)
    assert 0 < fast.sum() < D
    one, other = (rope(grid(9, dtype=torch.float64) + s) for s in (0.0, 1.0))
    close(scores(one, q * fast, k), scores(other, q * fast, k))
    assert (scores(one, q * ~fast, k) - scores(other, q * ~fast, k)).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["hierarchical", "hierarchical, mixed", "wavelet"])
def test_norms_are_kept_by_those_that_turn(name):
    q, k = qk(15)
    query, key = make(name, 2).at(3, 5).qk(q, k)
    close(query.norm(dim=-1), q.norm(dim=-1))
    close(key.norm(dim=-1), k.norm(dim=-1))


def test_fope_keeps_neither_norms_nor_differences():
    rope, x = make("fope", 1), grid(7, dtype=torch.float64)
    q, k = qk(7)
    assert (rope(x).qk(q, k)[0].norm(dim=-1) - q.norm(dim=-1)).abs().max() > 0.1
    assert (scores(rope(x), q, k) - scores(rope(x + 1), q, k)).abs().max() > 0.1


# ---- limits


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_large_blocks_are_plain_rope_from_the_stated_size_on(axes):
    plain, x = RoPE(D, axes), grid(*EXTENTS[axes], dtype=torch.float64)
    slowest = [min(w for a, w in spectrum(D // 2, axes) if a == axis) for axis in range(axes)]
    just = tuple(2 * math.pi * 0.25 / w * (1 + 1e-9) for w in slowest)
    assert min(just) >= max(EXTENTS[axes])
    for within, points in (("offset", x), ("position", x - 20)):
        rope = HierarchicalRoPE(D, axes, block=just, within=within)
        assert torch.equal(rope(points).cos, plain(points).cos) and torch.equal(rope(points).sin, plain(points).sin)
    below = HierarchicalRoPE(D, axes, block=tuple(b * 0.99 for b in just), within="position")
    assert not torch.equal(below(x).cos, plain(x).cos)
    beyond = HierarchicalRoPE(D, axes, block=just)(x - 20)
    assert not torch.allclose(beyond.cos, plain(x - 20).cos)


def test_blocks_of_one_token_with_positions_are_plain_rope_on_a_grid():
    rope, plain = HierarchicalRoPE(D, 2, block=1.0, within="position"), RoPE(D, 2)
    assert torch.equal(rope.at(5, 9).cos, plain.at(5, 9).cos)


def test_a_block_border_does_not_move_with_rounding():
    exact, rough = HierarchicalRoPE(D, 1, block=3.0), HierarchicalRoPE(D, 1, 10 * axial(D // 2, 1), block=3 * 0.1)
    steps = torch.arange(200).double()
    assert ((steps * 0.1 / (3 * 0.1)).floor() != steps // 3).any()
    close(exact(steps[:, None]).cos, rough((steps * 0.1)[:, None]).cos)
    close(exact(steps[:, None]).cos, rough((steps.float() * 0.1)[:, None]).cos, 1e-4)


def test_octaves_are_the_geometric_schedule_whose_base_is_two_to_the_number_of_pairs():
    for n, voices, shortest in ((6, 1, 2.0), (16, 4, 3.0)):
        close(octaves(n, voices=voices, shortest=shortest), magnitudes(n, theta=2 ** (n / voices)) * 2 * math.pi / shortest, 1e-12)
    assert torch.equal(WaveletRoPE(D, 2, voices=3).freqs[0, :3, 0], octaves(3, voices=3))
    assert WaveletRoPE(32, 2, "golden").freqs.norm(dim=-1)[0, 1].item() == pytest.approx(math.pi / 2)


def test_the_fastest_octave_tells_even_offsets_from_odd_ones_and_not_left_from_right():
    table = WaveletRoPE(D, 1).at(9)
    close(table.cos[:, 0], torch.tensor([1.0, -1] * 4 + [1]), 1e-6)
    close(table.sin[:, 0], torch.zeros(9), 1e-6)
    close(table.cos[0], WaveletRoPE(D, 1)(torch.tensor([[2.0 ** (D // 2)]])).cos[0], 1e-6)  # whole periods all


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_fope_without_noise_is_rope_without_its_slow_waves(axes):
    trained = (14, 9, 12)[:axes]
    fope = FoPE(D, axes, sigma=0.0, trained_extent=trained, theta=5.0)
    plain = RoPE(D, axes, theta=5.0, scaling={"truncate": {"min_turns": 1.0}}, trained_extent=trained)
    close(fope.at(*EXTENTS[axes]).cos, plain.at(*EXTENTS[axes]).cos, 1e-6)
    close(fope.at(*EXTENTS[axes]).sin, plain.at(*EXTENTS[axes]).sin, 1e-6)
    assert not torch.equal(fope.vectors(), fope.freqs) and fope.vectors().count_nonzero() > 0


def test_thirteen_of_sixteen_waves_stand_still_on_a_grid_of_fourteen():
    assert FoPE(64, 2, trained_extent=(14, 14)).vectors().count_nonzero() == 6


def test_fope_turns_are_counted_in_units_of_position():
    fine = FoPE(D, 1, trained_extent=(12,), coordinates={"spacing": 0.5})
    assert torch.equal(fine.vectors(), FoPE(D, 1, trained_extent=(6,)).vectors())
    assert not torch.equal(fine.vectors(), FoPE(D, 1, trained_extent=(12,)).vectors())


def test_fope_noise_is_fixed_by_its_seed_and_has_the_strength_asked_for():
    one, same, other = (FoPE(64, 2, trained_extent=(14, 14), seed=s, sigma=0.1).mixture for s in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert (one[0] - torch.eye(32)).std().item() == pytest.approx(0.1, rel=0.1)


# ---- tokens


@pytest.mark.parametrize("name", NAMES)
def test_permuting_tokens_with_their_positions_permutes_the_scores(name):
    rope, x = make(name, 2), grid(3, 5, dtype=torch.float64)
    q, k = qk(15)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    expected = scores(rope(x), q, k)[:, :, order][:, :, :, order]
    close(scores(rope(x[order]), q[:, :, order], k[:, :, order]), expected)
    close(scores(rope(x).keep(order), q[:, :, order], k[:, :, order]), expected)
    assert (scores(rope(x), q[:, :, order], k[:, :, order]) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axes", [1, 3])
def test_each_sample_may_have_positions_of_its_own(axes, name):
    rope = make(name, axes)
    x = torch.stack([grid(*EXTENTS[axes], dtype=torch.float64) * s for s in (1.0, 0.5)])  # [B, N, A]
    q, k = qk(x.shape[1])
    expected = torch.cat([scores(rope(x[i]), q[i : i + 1], k[i : i + 1]) for i in range(2)])
    close(scores(rope(x), q, k), expected)
    assert (expected[1] - scores(rope(x[0]), q, k)[1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_prefix_tokens_are_not_placed(name):
    rope, bare = make(name, 2, prefix_tokens=2), make(name, 2)
    q, k = qk(17)
    got = scores(rope.at(3, 5), q, k)
    close(got[:, :, 2:, 2:], scores(bare.at(3, 5), q[:, :, 2:], k[:, :, 2:]))
    if name == "pope":
        mu_q, mu_k = nn.functional.softplus(q), nn.functional.softplus(k)
        close(got[:, :, :2, :2], (mu_q @ mu_k.mT)[:, :, :2, :2])  # phase 0, and no bias
        where = rope.at(3, 5)
        c = torch.cat((torch.ones(2, D), where.cos)).double()
        close(got[:, :, :, :2], (mu_q * c @ mu_k.mT)[..., :2])
    else:
        close(got[:, :, :2, :2], (q @ k.mT)[:, :, :2, :2])
    if name.startswith("pape"):
        close(got[:, :, :, :2], (q @ k.mT)[..., :2])
        close(got[:, :, :2], (q @ k.mT)[:, :, :2])


@pytest.mark.parametrize("name", ["fope, learned", "pope", "pape", "hierarchical, mixed"])
def test_grouped_queries_share_what_their_key_head_has(name):
    rope = make(name, 2)
    q, k = normal(2, 2 * H, 15, D, seed=1), normal(2, H, 15, D, seed=2)
    query, key = rope.at(3, 5).qk(q, k)
    got = query @ key.repeat_interleave(2, 1).mT
    for g in range(2):
        close(got[:, g::2], scores(rope.at(3, 5), q[:, g::2], k))


def test_samples_of_several_sizes_are_placed_one_by_one():
    extents = torch.tensor([[3, 5], [6, 2]])
    x = torch.zeros(2, 15, 2, dtype=torch.float64)
    x[0], x[1, :12] = grid(3, 5), grid(6, 2)
    q, k = qk(15)
    for name in NAMES:
        rope = make(name, 2, scaling="pi", temperature="log", trained_extent=(2, 3))
        expected = torch.cat([scores(rope(x[i], extents[i]), q[i : i + 1], k[i : i + 1]) for i in range(2)])
        close(scores(each(rope, x, extents), q, k), expected)


# ---- size, strength and temperature


@pytest.mark.parametrize("name", NAMES)
def test_temperature_is_a_factor_on_all_scores_prefix_tokens_included(name):
    cool, hot, sized = (make(name, 2, prefix_tokens=1, trained_extent=(2, 3), temperature=t) for t in (None, 1.7, "log"))
    q, k = qk(16)
    plain = scores(cool.at(3, 5), q, k)
    close(scores(hot.at(3, 5), q, k), 1.7 * plain)
    close(scores(sized.at(3, 5), q, k), math.log(15) / math.log(6) * plain)


RULE_OPTIONS = {"longrope": {"long": [2.0]}, "truncate": {"keep": 0.5}}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["hierarchical", "wavelet", "fope", "pope"])
def test_every_rule_acts_on_the_wave_vectors(name, rule):
    options = dict(RULE_OPTIONS.get(rule, {}))
    if rule == "longrope":
        options["long"] = [2.0] * (D if name == "pope" else D // 2)
    plain = make(name, 1, trained_extent=(4,))
    scaled = make(name, 1, trained_extent=(4,), scaling={rule: options})
    vectors = RULES[rule](plain.vectors(), torch.tensor([2.25]).double(), torch.tensor([4.0]).double(), **options)
    q, k = qk(9)
    got = scores(scaled.at(9), q, k)
    if name == "pope":
        close(got, scores(make(name, 1, freqs=vectors).at(9), q, k))
    elif name == "wavelet":
        close(got, turned(q, k, waves(torch.arange(9)[:, None] * vectors[0, :, 0])))
    elif name == "fope":
        tables = waves(torch.arange(9)[:, None] * vectors[0, :, 0]) @ plain.mixture[0].double().mT.to(torch.complex128)
        close(got, turned(q, k, tables))
    else:  # the choice of slow pairs is that of the wave vectors before scaling
        slow = plain.vectors()[0, :, 0] * 2 / (2 * math.pi) < 0.25
        at = torch.arange(9)[:, None].double()
        close(got, turned(q, k, waves(torch.where(slow, at // 2 * 2, at % 2) * vectors[0, :, 0])))
    if rule not in ("resonance", "truncate"):
        close(scores(scaled.at(4), q[:, :, :4], k[:, :, :4]), scores(plain.at(4), q[:, :, :4], k[:, :, :4]))


@pytest.mark.parametrize("scaling", ["pi", {"pi": {}}, ["pi", None]])
def test_interpolation_widens_parabolas_with_the_grid(scaling):
    rope, plain = make("pape", 2, scaling=scaling, trained_extent=(2, 3)), make("pape", 2)
    factor = torch.tensor([3 / 2, 1.0 if isinstance(scaling, list) else 5 / 3]).double()
    q, k = qk(15)
    close(scores(rope.at(3, 5), q, k), scores(plain(grid(3, 5, dtype=torch.float64) / factor), q, k))


@pytest.mark.parametrize("scaling", [r for r in RULES if r != "pi"] + [["pi", "yarn"], {"pi": {}, "truncate": {"keep": 0.5}}])
def test_rules_that_go_by_turns_are_refused_for_parabolas(scaling):
    with pytest.raises(ValueError, match="a parabola has none: choose 'pi'"):
        PaPE(D, 2, scaling=scaling, trained_extent=(4, 4))


@pytest.mark.parametrize("name", NAMES)
def test_strength_is_the_share_of_each_angle(name):
    half, plain = make(name, 2, strength=(0.5, 0.0)), make(name, 2)
    x = grid(3, 5, dtype=torch.float64)
    q, k = qk(15)
    if name.startswith("hierarchical"):  # blocks and slow pairs stay, the angles are less
        less = RoPE(D, 2, plain.freqs * torch.tensor([0.5, 0.0]))
        coarse, fine = less(x // 2 * 2), less(x % 2 if plain.within == "offset" else x)
        slow = plain.freqs.norm(dim=-1)[..., None, :] * 2 / (2 * math.pi) < 0.25  # [H|1, 1, P]
        close(half(x).cos, torch.where(slow, coarse.cos, fine.cos).view_as(half(x).cos))
    else:
        close(scores(half(x), q, k), scores(plain(x * torch.tensor([0.5, 0.0])), q, k))
    still = make(name, 2, strength=0.0)(x)
    if name.startswith(("hierarchical", "wavelet", "pape")):
        close(scores(still, q, k), q @ k.mT)


# ---- precision and what is kept of a module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_the_output_has_the_dtype_of_the_input_and_is_close_to_the_scores_of_float64(name, dtype):
    rope = make(name, 2, prefix_tokens=1)
    q, k = (x.to(dtype) for x in qk(36))
    query, key = rope.at(5, 7).qk(q, k)
    assert query.dtype == key.dtype == dtype
    got, expected = query.double() @ key.double().mT, scores(rope.at(5, 7), q.double(), k.double())
    error = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 2e-6)
    assert (got - expected).abs().max() < error * expected.abs().max()


def test_pope_rounds_once_and_works_in_the_precision_asked_for():
    q, k = (x.bfloat16() for x in qk(15))
    for low, high in zip(PoPE(D, 2).at(3, 5).qk(q, k), PoPE(D, 2).at(3, 5).qk(q.float(), k.float())):
        assert torch.equal(low, high.bfloat16())
    assert not torch.equal(PoPE(D, 2, rotate_dtype=None).at(3, 5).qk(q, k)[0], PoPE(D, 2).at(3, 5).qk(q, k)[0])


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.bfloat16().float(), copy.deepcopy])
@pytest.mark.parametrize("name", NAMES)
def test_tables_and_learned_values_survive_casts_and_copies(name, cast):
    model = nn.Sequential(make(name, 2))
    q, k = qk(600)
    before = scores(model[0].at(2, 300), q, k)
    rope = cast(model)[0]
    after = rope.at(2, 300)
    assert torch.equal(before, scores(after, q, k)) and after.cos.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in rope.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_touch_tables(name, dtype):
    rope, points = make(name, 2), torch.tensor([[65536.0, 3.0], [65537.0, 4.0], [1.0, 2.0]])
    plain = rope(points)
    with torch.autocast("cpu", dtype=dtype):
        inside = rope(points)
    assert torch.equal(plain.cos, inside.cos) and torch.equal(plain.sin, inside.sin)


def test_mixing_is_the_same_where_there_is_no_float64(monkeypatch):
    table, weights = normal(2, 1, 7, 6, dtype=torch.float32), normal(H, 6, 6, seed=1, dtype=torch.float32)
    expected = mix(table, weights), mix(table[0, 0], weights[:1])
    monkeypatch.setattr("rope_nd.variants.wide", lambda device: torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = mix(table, weights), mix(table[0, 0], weights[:1])
    for a, b in zip(got, expected):
        close(a, b, 1e-6)


def test_parabolas_stay_sharp_in_bfloat16_far_from_the_origin():
    """A curvature of ln 2 a token, 256 tokens out: products near 1e5 that cancel to a few units."""
    rope = PaPE(D, 1, heads=H, reach=1.0)
    x = (240 + grid(16)).double()
    q, k = (t.bfloat16() for t in qk(16))
    query, key = rope(x).qk(q, k)
    content = q.double() @ k.double().mT * D**-0.5
    expected = content + parabolas(rope, x, q)
    near = (x - x.T).abs() <= 2
    worst = ((query.double() @ key.double().mT * D**-0.5 - expected).abs() * near).max()
    wide_query, wide_key = rope(x).qk(q.float(), k.float())
    naive = ((wide_query.bfloat16().double() @ wide_key.bfloat16().double().mT * D**-0.5 - expected).abs() * near).max()
    assert worst < 4 < 100 < naive
    reached = PaPE(D, 1, heads=H)  # as it starts
    query, key = reached(x).qk(q, k)
    assert (query.double() @ key.double().mT * D**-0.5 - content - parabolas(reached, x, q)).abs().max() < 0.05


def test_parabolas_survive_autocast_that_lowers_full_precision_queries():
    rope, x = PaPE(D, 1, heads=H), (240 + grid(16)).double()
    q, k = (t.float() for t in qk(16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        query, key = rope(x).qk(q, k)
    assert query.dtype == key.dtype == torch.float32
    lowered = (query.bfloat16()[..., D:].double() @ key.bfloat16()[..., D:].double().mT) * D**-0.5
    assert (lowered - parabolas(rope, x, q)).abs().max() < 0.05


def test_parts_leave_out_low_times_low_alone():
    a, b = normal(1, 5, dtype=torch.float32) * 1000, normal(1, 5, seed=1, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        q, k = parts(a, b, dtype)
        assert q.dtype == k.dtype == dtype
        close((q.double() @ k.double().mT), (a.double() @ b.double().mT), 4 * torch.finfo(dtype).eps ** 2 * 1000)
    assert parts(a, b, torch.float32)[0] is a


LEARNED = {
    "hierarchical": set(),
    "hierarchical, mixed": {"freqs"},
    "wavelet": set(),
    "fope": set(),
    "fope, learned": {"mixture"},
    "pope": {"delta"},
    "pape": {"freqs", "weight", "bias"},
}


@pytest.mark.parametrize("name", LEARNED)
def test_only_learned_values_are_in_the_state_dict_and_none_of_them_decays(name):
    rope, other = make(name, 2), make(name, 2, seed=1)
    assert set(rope.state_dict()) == LEARNED[name] == rope.no_weight_decay()
    buffer = io.BytesIO()
    torch.save(rope.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    q, k = qk(36)
    if name != "fope":  # whose noise is its seed's
        assert torch.equal(scores(rope.at(4, 9), q, k), scores(other.at(4, 9), q, k))


@pytest.mark.parametrize("name", NAMES)
def test_meta_construction_then_to_empty_and_reset_gives_the_same_module(name):
    cls, options = {
        "hierarchical": (HierarchicalRoPE, {}),
        "hierarchical, mixed": (HierarchicalRoPE, {"freqs": "mixed"}),
        "wavelet": (WaveletRoPE, {}),
        "fope": (FoPE, {"trained_extent": (9, 9)}),
        "fope, learned": (FoPE, {"trained_extent": (9, 9), "learned_mixture": True}),
        "pope": (PoPE, {"delta": "uniform"}),
        "pape": (PaPE, {}),
        "pape, shared": (PaPE, {"learned": False}),
    }[name]
    with torch.device("meta"):
        rope = cls(D, 2, heads=H, **options)
    assert rope.freqs.is_meta and all(t.is_meta for t in (*rope.parameters(), *rope.buffers()))
    rope.to_empty(device="cpu")
    if list(rope.parameters()):  # what is fixed needs no reset
        rope.reset_parameters()
    expected, (q, k) = cls(D, 2, heads=H, **options), qk(15)
    assert torch.equal(scores(rope.at(3, 5), q, k), scores(expected.at(3, 5), q, k))


def test_first_values_of_the_bias_are_zeros_or_spread_over_their_range():
    assert not PoPE(D, 2, heads=H).delta.any()
    delta = PoPE(64, 2, heads=H, delta="uniform").delta
    assert delta.min() < -6 and -0.3 < delta.max() <= 0 and delta.min() >= -2 * math.pi


# ---- gradients and graphs


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_function(name):
    rope = make(name, 2, prefix_tokens=1).double()
    names = [n for n, _ in rope.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in rope.parameters()]
    q, k = (x.requires_grad_() for x in qk(5, batch=1))

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rope = rope

        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            query, key = self.rope.at(2, 2).qk(q, k)
            return query @ key.mT

    def run(q: torch.Tensor, k: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, {f"rope.{n}": v for n, v in zip(names, given)}, (q, k))

    module = Scores()
    assert torch.autograd.gradcheck(run, (q, k, *values), fast_mode=True)
    run(q, k, *values).square().sum().backward()
    assert all(v.grad.abs().max() > 0 for v in values)


def test_a_bias_at_or_beyond_the_ends_of_its_range_still_learns():
    rope = PoPE(D, 2)
    with torch.no_grad():
        rope.delta[0, :4], rope.delta[0, 4:8] = 1.0, -7.0  # the others are at zero
    scores(rope.at(3, 5), *qk(15)).square().sum().backward()
    assert rope.delta.grad.all()


class Attending(nn.Module):
    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, H · D, h, w]
        q = x.flatten(2).mT.unflatten(-1, (H, D)).transpose(1, 2)
        query, key = self.rope.at(*x.shape[-2:]).qk(q, q)
        return nn.functional.scaled_dot_product_attention(query, key, q, scale=D**-0.5)


@pytest.mark.parametrize("name", ["hierarchical", "fope, learned", "pope", "pape"])
def test_compiles_in_one_frame_whatever_the_extent(name):
    torch._dynamo.reset()
    model = Attending(make(name, 2))
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for extent in [(4, 5), (7, 3), (5, 9)]:
        x = normal(2, H * D, *extent, dtype=torch.float32)
        close(compiled(x), model(x))
    assert counter.frame_count == 1


# ---- in a model

IN_A_MODEL = {
    "hierarchical": lambda i: HierarchicalRoPE(16, 2, prefix_tokens=1),
    "wavelet": lambda i: WaveletRoPE(16, 2, prefix_tokens=1),
    "fope": lambda i: FoPE(16, 2, prefix_tokens=1, trained_extent=(4, 4), min_turns=0.3),
    "fope, learned": lambda i: FoPE(
        16, 2, prefix_tokens=1, trained_extent=(4, 4), min_turns=0.3, learned_mixture=True, heads=3, seed=i
    ),
    "pope": lambda i: PoPE(16, 2, prefix_tokens=1, heads=3, seed=i),
    "pape": lambda i: PaPE(16, 2, prefix_tokens=1, heads=3, seed=i, scaling="pi", trained_extent=(4, 4)),
}


def vit() -> VisionTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=5, global_pool="avg")


@pytest.mark.parametrize("name", IN_A_MODEL)
def test_a_wrapped_model_trains_at_two_sizes_and_attends_by_its_encoding(name):
    learned = name in ("fope, learned", "pope", "pape")
    given = nn.ModuleList([IN_A_MODEL[name](i) for i in range(2)]) if learned else IN_A_MODEL[name](0)
    model = wrap(vit(), given).train()
    named = {f"encoding.{i}.{n}" for i in range(2) for n, _ in given[i].named_parameters()} if learned else set()
    assert named <= model.no_weight_decay() and bool(named) == learned
    before = {n: p.detach().clone() for n, p in model.named_parameters() if n in named}
    sets = [normal(10, 3, *size, dtype=torch.float32, seed=i) for i, size in enumerate([(32, 32), (48, 24)])]
    labels = torch.arange(10) % 5
    step, losses = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3), []
    for _ in range(10):
        loss = sum(nn.functional.cross_entropy(model(x), labels) for x in sets)
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters() if n in before)
    model.eval()
    bare = wrap(vit(), "none").eval()
    bare.load_state_dict({n: v for n, v in model.state_dict().items() if not n.startswith("encoding.")})
    for x in sets:
        fused = model(x[:2])
        assert (bare(x[:2]) - fused).abs().max() > 1e-3
        for block in model.blocks:
            block.attn.fused_attn = False
        close(model(x[:2]), fused, 1e-4)
        for block in model.blocks:
            block.attn.fused_attn = True
    low = copy.deepcopy(model).bfloat16()(sets[1].bfloat16())
    assert (low.float() - model(sets[1])).norm() / model(sets[1]).norm() < 0.05


# ---- what is refused


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: HierarchicalRoPE(D, 2, block=0.0), "block=0.0 must be positive"),
        (lambda: HierarchicalRoPE(D, 2, block=(2.0, 2.0, 2.0)), "block=(2.0, 2.0, 2.0) has 3 entries"),
        (lambda: HierarchicalRoPE(D, 2, slow=-1.0), "slow=-1.0 at least 0"),
        (lambda: HierarchicalRoPE(D, 2, within="ofset"), "did you mean 'offset'"),
        (lambda: HierarchicalRoPE(D, 2, thta=3), "no option 'thta'"),
        (lambda: WaveletRoPE(D, 2, theta=10.0), "theta=10.0: octaves set the whole schedule"),
        (lambda: WaveletRoPE(D, 2, shortest=0.0), "shortest=0.0 must be a positive period"),
        (lambda: WaveletRoPE(D, 2, voices=0.5), "voices=0.5 a whole number"),
        (lambda: FoPE(D, 2), "trained_extent=None"),
        (lambda: FoPE(D, 2, trained_extent=(14,)), "has 1 entries for axes=2"),
        (lambda: FoPE(D, 2, trained_extent=(14, 14), sigma=-0.1), "sigma=-0.1"),
        (lambda: PoPE(D, 2, rotary_dim=8), "every channel of PoPE has a phase"),
        (lambda: PoPE(1, 2), "head_dim=1: give a whole number of at least 2"),
        (lambda: PoPE(D, 2, delta="zero"), "did you mean 'zeros'"),
        (lambda: PoPE(D, 2, heads=2).at(2, 2).qk(*qk(4)), "x has 3 heads, the encoding 2"),
        (lambda: PoPE(D, 2).at(2, 2).qk(*qk(5)), "has 5 tokens of 12 channels, the rotation is for 4 and 0 prefix tokens of 12"),
        (lambda: PoPE(8, 2).at(2, 2).qk(*qk(4)), "4 tokens of 12 channels, the rotation is for 4 and 0 prefix tokens of 8"),
        (lambda: PoPE(D, 2).at(2, 2)(qk(4)[0]), "PoPE treats queries and keys differently"),
        (lambda: PaPE(D, 2).at(2, 2)(qk(4)[0]), "PaPE treats queries and keys differently"),
        (lambda: PaPE(D, 2).at(2, 2).qk(*qk(5)), "check extent, prefix_tokens, head_dim"),
        (lambda: PaPE(D, 2, heads=2).at(2, 2).qk(*qk(4)), "x has 3 heads"),
        (lambda: PaPE(D, 2, theta=3.0), "theta=3.0: a parabola has no frequency"),
        (lambda: PaPE(D, 2, reach=0.0), "reach=0.0"),
        (lambda: PaPE(D, 2, parabolas=0), "parabolas=0: give a whole number of at least 1"),
        (lambda: PaPE(D, 2, freqs="axial", parabolas=1), "1 pairs for axes=2"),
        (lambda: wrap(vit(), PoPE(32, 2, prefix_tokens=1)), "made for head_dim=32, the model has 16"),
        (lambda: wrap(vit(), PaPE(16, 2)), "prefix_tokens=0 unturned, the model has 1"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)


def test_every_variant_is_a_rope_of_any_family_of_directions():
    for name, family in itertools.product(["hierarchical", "wavelet", "fope", "pope", "pape"], ["golden", "mixed", "interleaved"]):
        if name == "hierarchical" or name == "wavelet":
            rope = {"hierarchical": HierarchicalRoPE, "wavelet": WaveletRoPE}[name](D, 2, family, heads=H)
        else:
            rope = make(name, 2, freqs=family)
        assert isinstance(rope, RoPE) and scores(rope.at(3, 5), *qk(15)).isfinite().all()
