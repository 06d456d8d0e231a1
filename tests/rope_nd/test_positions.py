"""Coordinates: grids of any rank, their normalisations, subsets, padded batches, augmentation."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_nd import RoPE, augment, batch_grids, grid, keep
from rope_nd.positions import as_positions, steps

extents = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple)


@given(extents)
@settings(max_examples=50, deadline=None)
def test_a_grid_lists_every_token_once_in_array_order(extent):
    made = grid(*extent)
    assert made.shape == (math.prod(extent), len(extent)) and made.dtype == torch.float32
    assert made.tolist() == [list(index) for index in itertools.product(*map(range, extent))]


def test_tokens_come_as_flatten_orders_them():
    extent = (2, 3, 5)
    image = torch.arange(math.prod(extent)).view(1, 1, *extent)
    flat = image.flatten(2)[0, 0]
    for row, token in zip(grid(*extent).long().tolist(), flat.tolist()):
        assert image[0, 0, row[0], row[1], row[2]] == token


def test_spacing_and_offset_are_per_axis_and_in_units():
    made = grid(2, 3, spacing=(0.5, 2), offset=(10, -1))
    assert torch.equal(made[:, 0].unique(), torch.tensor([10.0, 10.5]))
    assert torch.equal(made[:3, 1], torch.tensor([-1.0, 1.0, 3.0]))


def test_centred_runs_over_minus_one_to_one_and_unit_over_zero_to_one():
    assert torch.allclose(grid(4, normalize="centred")[:, 0], torch.tensor([-0.75, -0.25, 0.25, 0.75]))
    assert torch.allclose(grid(4, normalize="unit")[:, 0], torch.tensor([0.125, 0.375, 0.625, 0.875]))


@pytest.mark.parametrize("by, pitch", [("axis", (2 / 4, 2 / 8)), ("shortest", (2 / 4, 2 / 4)), ("longest", (2 / 8, 2 / 8))])
def test_normalisation_by_axis_shortest_and_longest(by, pitch):
    assert torch.allclose(steps((4, 8), normalize="centred", by=by), torch.tensor(pitch, dtype=torch.float64))
    assert torch.allclose(grid(4, 8, normalize="centred", by=by).mean(0), torch.zeros(2), atol=1e-6)


def test_normalisation_measures_lengths_with_the_spacing():
    # 4 slices of 5 mm are as long as 20 of 1 mm: the longest axis is 30 mm
    made = steps((4, 20, 30), spacing=(5, 1, 1), normalize="unit", by="longest")
    assert torch.allclose(made, torch.tensor([5 / 30, 1 / 30, 1 / 30], dtype=torch.float64))


def test_relative_to_a_reference_extent():
    assert torch.allclose(grid(28, normalize="reference", reference=(14,))[:, 0], torch.arange(28) / 2)
    assert torch.allclose(grid(8, normalize="centred", by="reference", reference=(4,))[:, 0].amax(), torch.tensor(1.75))


def test_float64_on_request():
    made = grid(3, spacing=0.1, dtype=torch.float64)
    assert made.dtype == torch.float64 and made[2, 0] == 0.2


def test_kept_subsets_follow_their_tokens_per_sample():
    points, indices = grid(4, 5), torch.stack([torch.randperm(20)[:7] for _ in range(3)])
    kept = keep(points, indices)
    assert kept.shape == (3, 7, 2)
    assert all(torch.equal(kept[b], points[indices[b]]) for b in range(3))
    assert torch.equal(keep(points, indices[0]), points[indices[0]])


def test_grids_of_different_extents_share_one_padded_batch():
    points, valid = batch_grids([(2, 3), (4, 1), (1, 1)], spacing=[(1, 1), (2, 1), (1, 1)])
    assert points.shape == (3, 6, 2) and valid.sum(1).tolist() == [6, 4, 1]
    assert torch.equal(points[1][valid[1]], grid(4, 1, spacing=(2, 1)))
    assert not points[~valid].any()


def test_augmentation_draws_once_a_sample_and_repeats_from_a_generator():
    points = grid(3, 4)
    draw = [augment(points, batch=5, shift=2, jitter=1.5, rescale=2, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*draw) and draw[0].shape == (5, 12, 2)
    steps_ = draw[0][:, 1, 1] - draw[0][:, 0, 1]  # the pitch along w of each sample
    assert len(set(steps_.tolist())) == 5 and 1 / 3 <= steps_.min() and steps_.max() <= 3
    assert torch.allclose(draw[0].diff(dim=1)[:, 0], draw[0].diff(dim=1)[:, 1], atol=1e-5)  # the same pitch within a sample


def test_augmentation_off_is_the_identity_and_shift_moves_all_tokens_alike():
    points = grid(3, 4)
    assert torch.equal(augment(points, batch=2), points.expand(2, -1, -1))
    moved = augment(points, batch=2, shift=(0, 3), generator=torch.Generator().manual_seed(0)) - points
    assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-6) and not moved[..., 0].any() and moved[..., 1].any()


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: grid(4, -1), "whole number of at least 1, got -1"),
        (lambda: grid(0), "got 0"),
        (lambda: grid(2.5), "got 2.5"),
        (lambda: grid(), "empty"),
        (lambda: grid(2, 2, spacing=(1, 2, 3)), "3 entries"),
        (lambda: grid(2, offset=float("nan")), "finite"),
        (lambda: grid(2, normalize="centerd"), "did you mean 'centred'"),
        (lambda: grid(2, normalize="centred", by="axes"), "did you mean 'axis'"),
        (lambda: grid(2, 2, normalize=("index",)), "1 entries for 2 axes"),
        (lambda: grid(2, 2, normalize=("index", "centerd")), "did you mean 'centred'"),
        (lambda: grid(2, normalize="reference"), "reference=None"),
        (lambda: grid(2, 2, normalize="reference", reference=(1,)), "1 entries for 2 axes"),
        (lambda: as_positions(torch.zeros(3), 2), "expected [N, 2] or [B, N, 2]"),
        (lambda: as_positions(torch.zeros(3, 3), 2), "expected [N, 2]"),
        (lambda: as_positions(torch.tensor([[1.0, float("nan")]]), 2), "1 of the positions hold NaN"),
        (lambda: as_positions(torch.zeros(3, 2).bfloat16(), 2), "256 from 257"),
        (lambda: as_positions([[1.0, 2.0]], 2), "got list"),
        (lambda: batch_grids([(1, 2), (3,)]), "same number of axes"),
        (lambda: batch_grids([(1, 2)], spacing=[(1, 1), (2, 2)]), "2 entries for 1 samples"),
        (lambda: augment(grid(2)), "batch=None"),
        (lambda: augment(grid(2), batch=1, jitter=0.5), "at least 1"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)


def test_signed_coordinates_are_whole_numbers_around_zero():
    assert grid(4, normalize="signed")[:, 0].tolist() == [-2, -1, 0, 1] and grid(5, normalize="signed")[:, 0].tolist() == [
        -3,
        -2,
        -1,
        0,
        1,
    ]
    assert grid(4, normalize="signed", spacing=0.5, offset=3)[:, 0].tolist() == [2, 2.5, 3, 3.5]


def test_each_axis_may_be_measured_in_its_own_way():
    ways = ("index", "signed", "centred", "unit", "reference")
    extent, options = (2, 3, 4, 5, 6), {"spacing": (1, 2, 3, 1, 1), "offset": 0.5, "reference": (7, 7, 7, 7, 7)}
    made = grid(*extent, normalize=ways, **options)
    for axis, way in enumerate(ways):
        assert torch.equal(made[:, axis], grid(*extent, normalize=way, **options)[:, axis])
    assert RoPE(20, 5, coordinates={"normalize": ways, "reference": (7,) * 5}).sized and not RoPE(20, 5).sized
