"""Presets for any number of axes: against the code they come from where there is some, else against the paper's equations."""

import math

import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch import Tensor
from vit_pytorch.vit_nd_rotary import GoldenGateRoPENd

from rope_nd import RoPE, grid
from rope_nd.registry import Host, make

HEADS = 3
shapes = pytest.mark.parametrize("extent", [(5,), (3, 5), (2, 3, 4), (2, 3, 1, 2)], ids=str)


def queries(tokens: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(2, HEADS, tokens, width, generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Neighbouring channels of `x` `[.., N, D]` turned by `angles` `[.., N, P]`, in float64."""
    z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(z).flatten(-2).float()


# ---- golden gate


@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("extent", [(2, 3, 4), (2, 3, 1, 2), (2, 1, 2, 1, 3)], ids=str)
def test_golden_gate_turns_as_vit_pytorchs(extent, zeros):
    """At moderate frequencies: its root of x^(A + 1) = x + 1 is off by 2e-9, its directions by 7e-7 at the worst."""
    theirs = GoldenGateRoPENd(len(extent), HEADS, 32, rope_min_freq=0.1, rope_max_freq=2.0, rope_p_zero_freqs=zeros)
    known = {"min_freq": 0.1, "max_freq": 2.0, "p_zero_freqs": zeros, "coordinates": {}}
    rope = RoPE.preset("golden_gate", 32, axes=len(extent), heads=HEADS, **known)
    q = queries(math.prod(extent), 32)
    close(rope.at(*extent)(q), theirs(q, grid(*extent)[None]))
    assert (rope.vectors() == 0).all(-1).sum() == HEADS * round(zeros * 16)


def test_golden_gate_in_the_plane_goes_by_the_golden_angle_and_vit_pytorchs_buffer_can_be_given():
    q, theirs = queries(15, 32), GoldenGateRoPENd(2, HEADS, 32, rope_min_freq=0.2, rope_max_freq=20.0)
    rope = RoPE.preset("golden_gate", 32, heads=HEADS)
    k = torch.arange(1, HEADS * 16 + 1, dtype=torch.float64) * math.pi * 2 / (1 + math.sqrt(5))
    size = 0.2 * 100 ** (torch.arange(16, dtype=torch.float64) / 15)
    expected = torch.stack((k.cos(), k.sin()), -1).view(HEADS, 16, 2) * size[:, None]
    close(rope.vectors(), expected, atol=1e-9)
    assert (theirs.freqs - rope.vectors()).abs().max() > 0.1
    same = RoPE(32, 2, theirs.freqs, layout="half")
    points = grid(3, 5, spacing=0.2)
    close(same(points)(q), theirs(q, points[None]))


def test_golden_gate_sees_coordinates_in_one_range_at_any_size():
    rope = RoPE.preset("golden_gate", 32, axes=3)
    assert rope.positions(2, 4, 8).amax(0).tolist() == [0.5, 0.75, 0.875]


@pytest.mark.parametrize("wrong", [{"min_freq": 0}, {"min_freq": 3, "max_freq": 2}, {"p_zero_freqs": 1.5}], ids=str)
def test_golden_gate_refuses_frequencies_that_are_none(wrong):
    with pytest.raises(ValueError, match="0 < low <= high"):
        RoPE.preset("golden_gate", 32, **wrong)


# ---- simplex, spiral, RoSE: from the equations


@shapes
def test_simplex_looks_alike_in_all_directions(extent):
    """For each scale the A + 1 vectors sum to zero, have angles of cosine -1 / A, and sum w w' = c I."""
    axes = len(extent)
    rope = RoPE.preset("simplex", 64, axes=axes, heads=HEADS)
    scales = 32 // (axes + 1)
    w = rope.vectors()[:, : scales * (axes + 1)].unflatten(1, (scales, axes + 1))  # [H, S, A + 1, A]
    size = 100.0 ** -(torch.arange(scales, dtype=torch.float64) / scales)
    gram = (w / size[:, None, None]) @ (w / size[:, None, None]).mT
    expected = torch.full((axes + 1, axes + 1), -1 / axes, dtype=torch.float64).fill_diagonal_(1)
    close(gram, expected.expand_as(gram), atol=1e-9)
    close(w.sum(2), torch.zeros_like(w[:, :, 0]), atol=1e-9)
    assert (rope.vectors()[:, scales * (axes + 1) :] == 0).all()
    q = queries(math.prod(extent), 64)
    angles = torch.einsum("na,hpa->hnp", grid(*extent).double(), rope.vectors())
    close(rope.at(*extent)(q), turned(q, angles))


def test_spiral_with_two_ways_is_axial_and_with_more_turns_evenly():
    close(RoPE.preset("spiral", 32, ways=2).vectors(), RoPE(32, 2).vectors(), atol=1e-12)
    q, rope = queries(15, 48), RoPE.preset("spiral", 48, ways=3)
    size = 100.0 ** -(torch.arange(8, dtype=torch.float64) / 8)
    points = grid(3, 5).double()
    along = [points[:, 0] * math.cos(math.pi * k / 3) + points[:, 1] * math.sin(math.pi * k / 3) for k in range(3)]
    close(rope.at(3, 5)(q), turned(q, torch.cat([x[:, None] * size for x in along], -1)))
    assert RoPE.preset("spiral", 48, axes=3).at(2, 3, 4)(queries(24, 48)).shape == (2, HEADS, 24, 48)


@shapes
def test_rose_measures_in_physical_units_and_has_one_spectrum_over_heads(extent):
    axes = len(extent)
    spacing = tuple(0.5 + 0.25 * a for a in range(axes))
    rope = RoPE.preset("rose", 16, axes=axes, heads=HEADS, spacing=spacing, jitter=0.0)
    base = 10000.0 ** (1 / math.sqrt(axes))
    size = base ** -(torch.arange(HEADS * 8, dtype=torch.float64) / (HEADS * 8))
    sums = (grid(*extent).double() * torch.tensor(spacing, dtype=torch.float64)).sum(-1)  # every vector is along (1, .., 1)
    q = queries(math.prod(extent), 16)
    close(rope.at(*extent)(q), turned(q, size.view(HEADS, 1, 8) * sums[:, None]))


def test_rose_tells_tokens_across_the_diagonal_apart_by_its_jitter_alone():
    across = torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    plain, jittered = (RoPE.preset("rose", 32, heads=HEADS, jitter=j)(across).cos for j in (0.0, 0.02))
    close(plain[:, 0], plain[:, 1], atol=1e-6)
    assert 1e-3 < (jittered[:, 0] - jittered[:, 1]).abs().max() < 0.5


def test_rose_is_learned_and_each_layer_has_its_own():
    host = Host(dim=48, heads=HEADS, head_dim=16, layers=2, trained_extent=(4, 4), prefix_tokens=1)
    layers = make("rose", 2, host)
    assert len(layers) == 2 and (layers[0].freqs - layers[1].freqs).abs().max() > 1e-3
    size = 10000 ** (-torch.arange(HEADS * 8, dtype=torch.float64) / (HEADS * 8 * math.sqrt(2)))
    spread = (layers[0].freqs.detach().double() / size.view(HEADS, 8, 1)).log()
    assert spread.std().item() == pytest.approx(0.02, rel=0.4)


# ---- lucidrains' pixel frequencies


@shapes
def test_axial_pixel_turns_as_rotary_embedding_torch(extent):
    axes = len(extent)
    width = 48 // axes // 2 * 2
    table = RotaryEmbedding(width, freqs_for="pixel", max_freq=16).get_axial_freqs(*extent).flatten(0, -2)  # [N, A · width]
    q = queries(math.prod(extent), 50)
    shift = torch.tensor([float(n == 1) for n in extent])  # an axis of one token: -1 there, 0 here
    rope = RoPE.preset("axial_pixel", 50, axes=axes, max_freq=16, leftover="unrotated", split=(width // 2,) * axes)
    theirs = apply_rotary_emb(table, q)
    close(rope(rope.positions(*extent) - shift)(q), theirs)
    assert torch.equal(theirs[..., width * axes :], q[..., width * axes :])
    k = queries(math.prod(extent), 50, seed=1)
    close(rope.at(*extent)(q) @ rope.at(*extent)(k).mT, theirs @ apply_rotary_emb(table, k).mT, atol=1e-4)


def test_axial_pixel_meets_both_ends_and_can_be_scaled():
    rope = RoPE.preset("axial_pixel", 32)
    assert rope.positions(3, 5)[:: 3 * 5 - 1].tolist() == [[-1, -1], [1, 1]] and rope.positions(1, 2).tolist() == [[0, -1], [0, 1]]
    close(rope.place(torch.tensor([[0, 4], [2, 1]]), (3, 5)), torch.tensor([[-1, 1], [1, -0.5]], dtype=torch.float64))
    plain, pi = (RoPE.preset("axial_pixel", 32, max_freq=16, trained_extent=(5, 5), scaling=s) for s in (None, "pi"))
    close(pi.at(5, 5).cos, plain.at(5, 5).cos)
    step = pi.positions(9, 9)[1] - pi.positions(9, 9)[0]
    close(step, torch.tensor([0.0, 0.5], dtype=torch.float64))  # as at 5 tokens; the rule does the rest
    given = RoPE.preset("axial_pixel", 32, coordinates={})
    assert given.positions(3, 5).amax(0).tolist() == [2, 4]


# ---- what is wrong there


def test_an_offset_moves_its_own_axis_which_rotary_embedding_torch_gets_wrong():
    """There a cache of the first axis answers for the second, so that (3, 0) does not give rows 3, 4, .. and columns 0, 1, .."""
    width = 16
    points = torch.tensor([[3.0 + i, j] for i in range(4) for j in range(4)])
    size = 10000.0 ** -(torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    right = (points.double()[:, :, None] * size).flatten(1)  # [N, P]
    q = queries(16, 32)
    table = RotaryEmbedding(width).get_axial_freqs(4, 4, offsets=(3, 0)).flatten(0, 1)
    assert (apply_rotary_emb(table, q) - turned(q, right)).abs().max() > 0.1
    close(RoPE(32, 2, theta=10000.0, coordinates={"offset": (3, 0)}).at(4, 4)(q), turned(q, right))


def test_a_call_in_half_precision_leaves_later_ones_as_they_are_which_rotary_embedding_torch_does_not():
    theirs, ours = RotaryEmbedding(32), RoPE(32, 1, theta=10000.0)
    q = queries(300, 32)
    size = 10000.0 ** -(torch.arange(16, dtype=torch.float64) / 16)
    right = turned(q, torch.arange(300, dtype=torch.float64)[:, None] * size)
    close(theirs.rotate_queries_or_keys(q), right, atol=2e-4)
    poisoned = RotaryEmbedding(32)
    poisoned.rotate_queries_or_keys(q.bfloat16())
    assert (poisoned.rotate_queries_or_keys(q) - right).abs().max() > 0.1
    ours.at(300)(q.bfloat16())
    close(ours.at(300)(q), right)
