import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from train.glyphs import CLASSES, Glyphs, draw

SPLITS = "train", "val", "test"


@pytest.fixture(scope="module")
def index():
    with zipfile.ZipFile(Path(draw.__file__).with_name("fonts.zip")) as archive:
        return json.loads(archive.read("index.json"))


def correlation(a, b):
    return np.corrcoef(np.ravel(a), np.ravel(b))[0, 1]


def shrink(masks, k):
    """Exact area means of k by k pixels: [B, k h, k w] -> [B, h, w]."""
    b, h, w = masks.shape
    return masks.reshape(b, h // k, k, w // k, k).mean((2, 4))


def test_no_cluster_and_no_family_crosses_splits(index):
    for key in ("cluster", "family"):
        homes = {}
        for entry in index:
            homes.setdefault(entry[key], set()).add(entry["split"])
        assert all(len(splits) == 1 for splits in homes.values()), key


def test_every_split_has_clusters_enough_for_a_bootstrap():
    counts = {split: len(draw.clusters(split)) for split in SPLITS}
    assert counts["test"] >= 60 and counts["train"] >= 60 and counts["val"] >= 15, counts


def test_every_font_names_its_package_version_and_a_permissive_licence(index):
    permissive = {
        "OFL-1.0",
        "OFL-1.1",
        "Apache-2.0",
        "BSD-3-Clause",
        "MIT",
        "CC0-1.0",
        "Bitstream-Vera",
        "Unlicense",
        "public-domain",
    }
    with zipfile.ZipFile(Path(draw.__file__).with_name("fonts.zip")) as archive:
        names = set(archive.namelist())
    for entry in index:
        assert set(entry["licence"].split(" and ")) <= permissive, entry["family"]
        assert entry["version"] and f"licences/{entry['package']}" in names


def test_all_classes_are_there_in_order_and_look_different():
    assert CLASSES == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    for font in draw.load_fonts("val"):
        pictures = np.stack([draw.glyph(font, c, 24, 0, 0, (24, 24)) for c in CLASSES])
        assert pictures.any((1, 2)).all()
        assert len(np.unique(pictures, axis=0)) == len(CLASSES), font.family


def test_every_class_and_every_cluster_is_drawn():
    data = Glyphs("test", length=4000)
    _, labels = data.batch(range(1500))
    assert torch.bincount(labels, minlength=47).min() > 0
    assert set(data.clusters.tolist()) == {font.cluster for font in draw.load_fonts("test")}


@pytest.mark.parametrize("augment", [False, True])
def test_zoom_shows_the_same_picture_with_more_pixels(augment):
    samples = draw.samples(3, "test", range(150))
    small, large = draw.zoom(samples, (32, 32), augment), draw.zoom(samples, (128, 128), augment)
    drawn = [i for i, mask in enumerate(small) if mask.std() > 8]
    scores = [correlation(small[i], shrink(large, 4)[i]) for i in drawn]
    assert len(drawn) > 120 and min(scores) > 0.95 and np.mean(scores) > 0.995
    assert np.abs(small - shrink(large, 4)).mean() < 1.5


def test_two_sizes_share_label_font_and_colours():
    small, large = Glyphs("val", size=16), Glyphs("val", size=(48, 80))
    (_, a), (_, b) = small.batch(range(50)), large.batch(range(50))
    assert torch.equal(a, b) and torch.equal(small.clusters, large.clusters)
    for x, y in zip(small.samples(range(50)), large.samples(range(50))):
        assert x.font is y.font and (x.ink == y.ink).all() and (x.paper == y.paper).all()


def test_hinting_does_not_bend_the_outlines():
    for font in draw.load_fonts("val"):
        small, large = (draw.glyph(font, "R", side, side / 8, side / 8, (side * 5 // 4,) * 2) for side in (24, 24 * 16))
        assert correlation(small, shrink(large[None], 16)[0]) > 0.99, font.family


def test_a_glyph_lands_where_it_is_asked_to_the_part_of_a_pixel():
    font = draw.load_fonts("val")[0]
    rows, columns = np.mgrid[:32, :32]
    for shift in (0.0, 0.25, 0.5, 0.9):
        mask = draw.glyph(font, "H", 20, 5 + shift, 6 - shift, (32, 32)) / 255.0
        plain = draw.glyph(font, "H", 20, 5, 6, (32, 32)) / 255.0
        for grid, moved in ((rows, shift), (columns, -shift)):
            assert (mask * grid).sum() / mask.sum() - (plain * grid).sum() / plain.sum() == pytest.approx(moved, abs=0.05)


@pytest.mark.parametrize(
    "options", [{}, {"augment": True}, {"test": "canvas", "size": (40, 72)}, {"test": "canvas", "size": 64, "crop": True}]
)
def test_a_picture_depends_on_seed_split_and_index_alone(options):
    data = Glyphs("train", length=64, **options)
    pictures, labels = data.batch(range(24))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
    again, _ = Glyphs("train", length=1000, **options).batch(order)
    assert torch.equal(again, pictures[order])
    single, label = data[5]
    assert torch.equal(single, pictures[5]) and label == labels[5]
    assert not torch.equal(Glyphs("train", length=64, seed=1, **options).batch(range(24))[0], pictures)


def test_workers_do_not_matter():
    data = Glyphs("val", length=24)
    plain, forked = (torch.cat([x for x, _ in torch.utils.data.DataLoader(data, batch_size=8, num_workers=n)]) for n in (0, 2))
    assert torch.equal(plain, forked) and plain.shape == (24, 3, 32, 32) and plain.dtype == torch.uint8


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (32, 128), (100, 40)])
def test_the_canvas_glyph_is_three_quarters_of_the_field_and_fully_inside(size):
    for s in draw.samples(0, "test", range(100)):
        top, left, h, w = draw.glyph_box(s, size, 32)
        assert max(h, w) == pytest.approx(24)
        assert top >= 0 and left >= 0 and top + h <= size[0] and left + w <= size[1]
        mask = draw.glyph(s.font, s.char, 24, top, left, size)
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        assert rows[0] >= top - 1.05 and rows[-1] <= top + h + 0.05 and columns[0] >= left - 1.05 and columns[-1] <= left + w + 0.05


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (32, 160), (128, 128)])
def test_strokes_have_one_density_per_area_and_are_short(size):
    lines, _ = draw.strokes(draw.samples(0, "train", range(1500)), size, 32)
    middle = (lines[:, :2] + lines[:, 2:4]) / 2
    inside = ((middle >= 0) & (middle < size)).all(1)
    area = size[0] * size[1] / 32**2
    assert inside.sum() / 1500 / area == pytest.approx(draw.DENSITY, rel=0.06)
    extent = np.hypot(*(lines[:, :2] - lines[:, 2:4]).T) + 2 * lines[:, 4]
    assert extent.max() <= 0.22 * 32 + 1e-6 and extent.max() < draw.CANVAS_SIDE * 32 / 3


@pytest.mark.parametrize("size", [(32, 32), (96, 96), (40, 128)])
def test_the_true_crop_is_a_window_of_the_same_canvas_that_contains_the_glyph(size):
    whole, crops = (Glyphs("test", test="canvas", size=size, crop=crop).batch(range(60))[0] for crop in (False, True))
    assert crops.shape == (60, 3, 32, 32)
    for picture, crop, s in zip(whole, crops, draw.samples(0, "test", range(60))):
        (y, x), (top, left, h, w) = draw.crop_corner(s, size, 32), draw.glyph_box(s, size, 32)
        assert 0 <= y <= top and top + h <= y + 32 <= size[0] and 0 <= x <= left and left + w <= x + 32 <= size[1]
        assert (picture[:, y : y + 32, x : x + 32].int() - crop.int()).abs().max() <= 1


def test_ink_and_paper_differ_in_luminance():
    for s in draw.samples(0, "train", range(2000)):
        assert abs((s.ink - s.paper) @ draw.LUMA) >= draw.CONTRAST


def test_a_subset_of_the_classes_has_labels_of_its_own():
    data = Glyphs("train", classes="7aZ")
    assert {s.char: s.label for s in data.samples(range(100))} == {"7": 0, "a": 1, "Z": 2}


@pytest.mark.parametrize(
    "split, options, named",
    [
        ("dev", {}, "dev"),
        ("test", {"test": "pan"}, "pan"),
        ("test", {"size": 7}, "7"),
        ("test", {"size": (32, 4)}, "4"),
        ("test", {"size": 31.5}, "31.5"),
        ("test", {"test": "canvas", "size": 24}, "smaller than field 32"),
        ("test", {"test": "canvas", "field": 4}, "field 4"),
        ("test", {"test": "canvas", "augment": True}, "zoom"),
        ("test", {"crop": True}, "canvas"),
        ("test", {"classes": "abc"}, "'c'"),
        ("test", {"classes": "aa"}, "once"),
        ("test", {"length": 0}, "length 0"),
        ("test", {"seed": -1}, "seed -1"),
    ],
)
def test_a_wrong_choice_is_named(split, options, named):
    with pytest.raises(ValueError, match=named):
        Glyphs(split, **options)


def test_the_end_of_the_data_is_an_index_error():
    with pytest.raises(IndexError, match="picture 10 of 10"):
        Glyphs("test", length=10)[10]
