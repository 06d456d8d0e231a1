"""Wave vectors: families, schedules, splits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_nd import RoPE
from rope_nd.freqs import (
    FAMILIES,
    axial,
    directions,
    fastest,
    golden,
    interleaved,
    magnitudes,
    mixed,
    rotations,
    simplex,
    spiral,
    split_pairs,
)

policies = st.one_of(st.sampled_from(["spread", "unrotated"]), st.integers(0, 0))


@given(st.integers(1, 8), st.integers(1, 128), policies)
@settings(max_examples=200, deadline=None)
def test_axial_pairs_look_along_one_axis_and_every_axis_has_some(axes, pairs, leftover):
    if pairs < axes:
        with pytest.raises(ValueError, match=f"head_dim={2 * pairs} .* axes={axes}.*head_dim={2 * axes}"):
            axial(pairs, axes, leftover=leftover)
        return
    looks = axial(pairs, axes, leftover=leftover)[0] != 0  # [P, A]
    assert looks.sum(1).max() <= 1 and looks.any(0).all()
    unrotated = int((~looks.any(1)).sum())
    assert unrotated == (pairs % axes if leftover == "unrotated" else 0)
    counts = looks.sum(0)
    if leftover == "spread":
        assert counts.max() - counts.min() <= 1
    elif leftover == 0:
        assert counts[0] == pairs // axes + pairs % axes


def test_every_leftover_policy_on_the_width_of_video():
    # head width 64 on three axes: 32 pairs, two left over
    assert split_pairs(32, 3) == (11, 11, 10)
    assert split_pairs(32, 3, "unrotated") == (10, 10, 10)
    assert split_pairs(32, 3, 2) == (10, 10, 12) and split_pairs(32, 3, 0) == (12, 10, 10)
    assert split_pairs(32, 3, split=(16, 8, 7)) == (16, 8, 7)
    assert not axial(32, 3, split=(16, 8, 7))[0, -1].any()


def test_geometric_is_theta_to_the_minus_i_over_n_per_axis():
    table = axial(32, 2, theta=100)[0]
    i = torch.arange(16, dtype=torch.float64)
    assert torch.allclose(table[:16, 0], 100 ** (-i / 16), rtol=1e-14) and torch.equal(table[16:, 1], table[:16, 0])
    other = axial(32, 2, theta=(10000, 100))[0]
    assert torch.allclose(other[:16, 0], 10000 ** (-i / 16), rtol=1e-14) and torch.equal(other[16:, 1], table[16:, 1])


def test_schedules_meet_their_ends():
    wave = 2 * math.pi / magnitudes(8, schedule="wavelength", wavelength=(4, 64))
    assert math.isclose(wave[0], 4) and math.isclose(wave[-1], 64) and torch.allclose(wave[1:] / wave[:-1], wave[1] / wave[0])
    pixel = magnitudes(8, schedule="pixel", max_freq=224) / math.pi
    assert torch.allclose(pixel, torch.linspace(1, 112, 8, dtype=torch.float64))
    log = magnitudes(8, schedule="log-pixel", max_freq=224) / math.pi
    assert torch.allclose(log, 2 ** torch.linspace(0, math.log2(224) - 1, 8, dtype=torch.float64))
    assert torch.equal(magnitudes(3, schedule=lambda n: torch.arange(n)), torch.arange(3.0, dtype=torch.float64))


def test_interleaved_deals_one_spectrum_to_the_axes_in_turn():
    table = interleaved(8, 3, theta=100)[0]
    assert (table != 0).long().argmax(1).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert torch.allclose(table.sum(1), 100 ** (-torch.arange(8, dtype=torch.float64) / 8))


def test_mixed_starts_as_the_paper_in_two_dimensions():
    table = mixed(32, 2, heads=4, theta=10, seed=3)  # [4, 32, 2]
    size = 10 ** (-torch.arange(16, dtype=torch.float64) / 16)
    angle = torch.atan2(table[:, 0, 1], table[:, 0, 0])[:, None]
    first = torch.stack((size * angle.cos(), size * angle.sin()), -1)
    second = torch.stack((size * (angle + math.pi / 2).cos(), size * (angle + math.pi / 2).sin()), -1)
    assert torch.allclose(table, torch.cat((first, second), 1), atol=1e-12)
    assert len(set(angle.flatten().tolist())) == 4


@pytest.mark.parametrize("noise", [0.0, 1e-15, -1e-15, 1e-8])
def test_of_pairs_equally_fast_the_first_stay_whatever_the_rounding(noise):
    """Simplex directions have one speed a scale; equal components name no axis, so it is the first."""
    table = simplex(6, 2, theta=100.0)
    table = table * (1 + noise * torch.tensor([1, -1, 1, -1, 1, -1]).double()[:, None])
    assert torch.equal(fastest(table, 0.5) != 0, fastest(simplex(6, 2, theta=100.0), 0.5) != 0)
    even = torch.ones(1, 4, 2, dtype=torch.float64) / math.sqrt(2)
    even[0, ::2, 1] += noise
    assert (fastest(even, 0.5) != 0).all(-1).tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(("family", "learned"), [("axial", False), ("axial", True), ("mixed", True), ("golden", False)])
def test_dropped_pairs_stay_unturned_and_are_never_learned(family, learned):
    rope = RoPE(64, 2, family, heads=2, keep=0.5, learned=learned)
    whole = RoPE(64, 2, family, heads=2).vectors()
    assert torch.equal(rope.vectors().double(), fastest(whole.double(), 0.5).to(rope.vectors().dtype).double())
    still = (rope.vectors() == 0).all(-1)
    assert still.double().mean() == 0.5
    if learned:
        before = rope.vectors().detach().clone()
        turned = rope(torch.rand(5, 2)).qk(torch.ones(1, 2, 5, 64), torch.ones(1, 2, 5, 64))
        (turned[0] * torch.arange(64)).sum().backward()
        torch.optim.SGD(rope.parameters(), lr=1.0).step()
        assert (rope.vectors() == 0).all(-1).equal(still) and not torch.equal(rope.vectors(), before)


def test_dropped_pairs_come_back_from_the_meta_device():
    with torch.device("meta"):
        rope = RoPE(32, 2, "mixed", heads=2, keep=0.25)
    rope.to_empty(device="cpu")
    rope.reset_parameters()
    assert torch.equal(rope.vectors(), RoPE(32, 2, "mixed", heads=2, keep=0.25).vectors())


@pytest.mark.parametrize("axes", [1, 2, 3, 5, 8])
def test_random_frames_are_rotations_and_repeat_from_their_seed(axes):
    q = rotations(6, axes, 11)
    assert torch.allclose(q @ q.mT, torch.eye(axes, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(torch.linalg.det(q), torch.ones(6, dtype=torch.float64))
    assert torch.equal(q, rotations(6, axes, 11)) and (axes == 1 or not torch.equal(q, rotations(6, axes, 12)))


@pytest.mark.parametrize("axes", [2, 3, 4])
@pytest.mark.parametrize("family", [simplex, mixed])
def test_simplex_and_mixed_are_isotropic_in_second_order(family, axes):
    pairs = 60  # a multiple of axes and of axes + 1 for each
    table = family(pairs, axes, heads=3)
    moment = table.mT @ table  # sum of w w'
    scale = moment[:, 0, 0]
    assert torch.allclose(moment, scale[:, None, None] * torch.eye(axes, dtype=torch.float64), atol=1e-9)


def test_simplex_corners_lean_away_from_each_other():
    table = simplex(4, 3)[0]
    unit = table / table.norm(dim=1, keepdim=True)
    gram = unit @ unit.T
    assert torch.allclose(gram, torch.eye(4, dtype=torch.float64) * (4 / 3) - 1 / 3, atol=1e-12)
    assert simplex(32, 2)[0, -2:].eq(0).all()  # 32 = 10 * 3 + 2 pairs


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_golden_directions_cover_the_sphere_evenly(axes):
    unit = directions(512, axes)
    assert torch.allclose(unit.norm(dim=1), torch.ones(512, dtype=torch.float64))
    assert torch.allclose(unit.T @ unit / 512, torch.eye(axes, dtype=torch.float64) / axes, atol=0.03)


def test_golden_runs_across_heads_at_multiples_of_pi_over_phi():
    table = golden(8, 2, heads=2, theta=100)
    angle = torch.atan2(table[..., 1], table[..., 0]).flatten()
    expected = torch.arange(1, 17).double() * math.pi / ((1 + math.sqrt(5)) / 2)
    assert torch.allclose(torch.cos(angle), torch.cos(expected), atol=1e-6)


def test_spiral_groups_have_the_whole_spectrum_each():
    table = spiral(16, 2, ways=4)[0].view(4, 4, 2)
    angle = torch.atan2(table[:, 0, 1], table[:, 0, 0])
    assert torch.allclose(angle, torch.arange(4, dtype=torch.float64) * math.pi / 4)
    assert torch.allclose(table.norm(dim=-1), magnitudes(4).expand(4, 4))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("axes", [1, 2, 3, 6])
def test_every_family_builds_finite_float64_tables(name, axes):
    table = FAMILIES[name](32, axes)
    assert table.dtype == torch.float64 and table.shape[1:] == (32, axes) and table.isfinite().all() and table.any()


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: axial(2, 3), "head_dim=4 has 2 pairs for axes=3"),
        (lambda: axial(8, 2, leftover="spred"), "did you mean 'spread'"),
        (lambda: axial(9, 2, leftover=5), "no such axis"),
        (lambda: axial(8, 2, split=(8, 1)), "sum is at most 8"),
        (lambda: axial(8, 2, split=(8, 0)), "at least 1"),
        (lambda: axial(8, 2, theta=(1, 2, 3)), "3 entries"),
        (lambda: axial(8, 2, theta=-1), "must be one positive number"),
        (lambda: golden(8, 2, theta=(1, 2)), "must be one positive number"),
        (lambda: magnitudes(4, schedule="geometrik"), "did you mean 'geometric'"),
        (lambda: magnitudes(4, schedule="wavelength"), "shortest, longest"),
        (lambda: magnitudes(4, schedule="pixel"), "max_freq"),
        (lambda: magnitudes(4, schedule=lambda n: torch.zeros(n + 1)), "must return [4]"),
        (lambda: simplex(2, 2), "head_dim=6 works"),
        (lambda: spiral(4, 2, ways=9), "from 1 to 4"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)
