"""Solid glyphs: whole, anti-aliased, the same at every voxel size, and never a 6 for a 9."""

import numpy as np
import pytest
import torch

from train import solids
from train.glyphs import draw
from train.solids import Solids, rotation, voxels

FONT = draw.load_fonts("val")[0]


def dense(char, box, turn, middle, extent, fine):
    """Point samples of the solid, float64, from the definition: a point is inside if its own coordinates are."""
    axes = [(np.arange(round(e / fine)) + 0.5) * fine for e in extent]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1) - middle  # [D, H, W, 3]
    own = points @ turn  # the rows of the transpose: the glyph's z, y, x
    unit = 40.0
    outline = draw.glyph(FONT, char, max(box[1:]) * unit, 2, 2, tuple(int(n * unit) + 5 for n in box[1:]))
    pixel = [np.clip(np.floor((own[..., a] + box[a] / 2) * unit + 2), 0, outline.shape[a - 1] - 1).astype(int) for a in (1, 2)]
    return (outline[tuple(pixel)] / 255.0) * (np.abs(own[..., 0]) <= box[0] / 2)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 0.5, 2.0)])
def test_a_voxel_is_the_share_of_it_that_is_solid(spacing):
    box = np.array([2.5, *draw.span(FONT, "R", 7.0)])
    turn, middle, size = rotation(np.array([0.7, 0.3, 1.0]), 35.0), np.array([6.3, 5.9, 6.1]), tuple(round(12 / s) for s in spacing)
    got = voxels(FONT, "R", box, turn, middle, size, spacing) / 255.0
    fine = dense("R", box, turn, middle, (12, 12, 12), 0.1)
    cuts = [round(s / 0.1) for s in spacing]
    want = fine.reshape(size[0], cuts[0], size[1], cuts[1], size[2], cuts[2]).mean((1, 3, 5))
    assert np.abs(got - want).mean() < 0.004 and np.abs(got - want).max() < 0.25
    assert got.sum() == pytest.approx(want.sum(), rel=0.02)


def test_finer_voxels_show_the_same_solid():
    small = Solids("test").batch(range(30))
    for size in (32, 48, (16, 32, 48)):
        large, labels = Solids("test", size=size).batch(range(30))
        cut = tuple(n // 16 for n in large.shape[2:])
        assert torch.equal(labels, small[1])
        off = (torch.nn.functional.avg_pool3d(large.float(), cut) - small[0]).abs()
        assert off.mean() < 0.4 and off[small[0] > 0].mean() < 6


def test_thick_slices_are_means_of_thin_ones():
    thin, thick = (Solids("test", size=size).batch(range(40))[0].float() for size in (16, (4, 16, 16)))
    assert (torch.nn.functional.avg_pool3d(thin, (4, 1, 1)) - thick).abs().mean() < 0.4
    assert Solids("test", size=(4, 16, 16)).spacing == (4.0, 1.0, 1.0)


def test_a_larger_field_holds_the_same_solids_at_other_places():
    near, far = Solids("test"), Solids("test", size=(24, 32, 40), spacing=1.0)
    (a, labels), (b, again) = near.batch(range(50)), far.batch(range(50))
    assert torch.equal(labels, again)
    sums = a.double().sum((1, 2, 3, 4)), b.double().sum((1, 2, 3, 4))
    assert (sums[0] / sums[1] - 1).abs().max() < 0.03
    weight = b.double().sum((1, 4))  # [B, D, H]
    centre = (weight.sum(2) * torch.arange(24)).sum(1) / weight.sum((1, 2))
    assert centre.min() < 6 and centre.max() > 17


def test_every_solid_is_inside_as_a_whole():
    for options in ({}, {"size": 32, "spacing": (0.5, 0.5, 0.75)}):
        data = Solids("train", **options)
        volumes, _ = data.batch(range(20))
        wide, _ = Solids("train", size=tuple(2 * n for n in data.size), spacing=data.spacing).batch(range(20))
        share = volumes.double().sum((1, 2, 3, 4)) / wide.double().sum((1, 2, 3, 4))
        assert share.min() > 0.9 and share.mean() == pytest.approx(1, abs=0.015)  # hairlines are noisy


def test_turns_are_rotations_of_at_most_the_asked_angle_about_any_axis():
    u = np.random.default_rng(0).random((2000, 3))
    turns = np.stack([rotation(v, 45.0) for v in u])
    assert np.abs(turns @ turns.transpose(0, 2, 1) - np.eye(3)).max() < 1e-12 and np.linalg.det(turns) == pytest.approx(1)
    angles = np.degrees(np.arccos((np.trace(turns, axis1=1, axis2=2) - 1) / 2))
    assert angles.max() <= 45 + 1e-9 and (angles > 22.5).mean() == pytest.approx(7 / 8, abs=0.03)
    axes = np.stack([turns[:, 2, 1] - turns[:, 1, 2], turns[:, 0, 2] - turns[:, 2, 0], turns[:, 1, 0] - turns[:, 0, 1]], 1)
    assert np.abs((axes / np.linalg.norm(axes, axis=1, keepdims=True)).mean(0)).max() < 0.05


def test_no_two_allowed_turns_are_half_a_turn_apart_so_a_6_is_never_a_9():
    data, u = Solids("train", classes="69"), np.random.default_rng(1).random((4000, 2))
    turns = np.stack([rotation(np.array([*v, 1.0]), data.turn) for v in u])  # the largest allowed
    between = turns[:2000].transpose(0, 2, 1) @ turns[2000:]
    angles = np.degrees(np.arccos(np.clip((np.trace(between, axis1=1, axis2=2) - 1) / 2, -1, 1)))
    assert angles.max() <= 2 * data.turn + 1e-6 < 180
    with pytest.raises(ValueError, match="could be a 9"):
        Solids("train", turn=90)


def test_turned_by_nothing_a_glyph_stands_upright_in_y_and_x():
    data = Solids("test", turn=0.0, size=32)
    for i in range(20):
        (s,), volume = data.glyphs.samples([i]), data[i][0][0].double()
        seen = volume.sum(0)  # along z
        rows, columns = (torch.nonzero(seen.sum(axis)).flatten() for axis in (1, 0))
        h, w = draw.span(s.font, s.char, 1.0)
        assert (rows[-1] - rows[0] + 1) / (columns[-1] - columns[0] + 1) == pytest.approx(h / w, rel=0.35)
        flat = torch.from_numpy(draw.glyph(s.font, s.char, float(max(len(rows), len(columns))), 0, 0, seen.shape).copy()).double()
        cut = seen[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert np.corrcoef(cut.ravel(), flat[: cut.shape[0], : cut.shape[1]].ravel())[0, 1] > 0.8


def test_a_solid_depends_on_seed_split_and_index_alone():
    data = Solids("train", length=64)
    volumes, labels = data.batch(range(12))
    again, marks = Solids("train", length=1000).batch([5, 3, 11])
    assert torch.equal(again, volumes[[5, 3, 11]]) and torch.equal(marks, labels[[5, 3, 11]])
    single, label = data[5]
    assert (
        torch.equal(single, volumes[5]) and label == labels[5] and single.shape == (1, 16, 16, 16) and single.dtype == torch.uint8
    )
    for other in (Solids("train", seed=1), Solids("val"), Solids("train", turn=20.0)):
        assert not torch.equal(other.batch(range(12))[0], volumes)


def test_labels_are_the_glyphs_and_a_loader_takes_them():
    data = Solids("val", classes="7aZ", length=60)
    assert {s.char: s.label for s in data.glyphs.samples(range(60))} == {"7": 0, "a": 1, "Z": 2}
    volumes, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=8)))
    assert volumes.shape == (8, 1, 16, 16, 16) and labels.dtype == torch.int64 and len(data.clusters) == 60


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 3}, "at least 4"),
        ({"size": (16, 16)}, "depth, height, width"),
        ({"spacing": 0.5}, "16 mm along each axis"),
        ({"size": (8, 16, 16), "spacing": 1.0}, "8 x 16 x 16 mm"),
        ({"spacing": (1.0, 1.0)}, "spacing"),
        ({"spacing": -1.0}, "above 0"),
        ({"turn": -1}, "turn -1"),
        ({"split": "dev"}, "train, val, test"),
        ({"classes": "abc"}, "'c'"),
    ],
)
def test_a_wrong_choice_is_named(options, says):
    with pytest.raises(ValueError, match=says):
        Solids(**{"split": "train", **options})


def test_the_field_is_sixteen_millimetres():
    assert solids.FIELD == 16.0 and Solids("train", size=24).spacing == pytest.approx((2 / 3,) * 3)
