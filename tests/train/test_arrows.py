"""Arrows: labels that a walk over the picture confirms, pictures that repeat, and a study over them."""

import dataclasses

import pytest
import torch

from train import extrapolate
from train.arrows import CELL, Arrows, stamps
from train.cases import seen
from train.config import Config
from train.evaluate import measure
from train.study import load


def read(picture: torch.Tensor) -> list[list[int]]:
    """The kind of each cell, by comparing it with every stamp."""
    cells = picture.unfold(1, CELL, CELL).unfold(2, CELL, CELL).permute(1, 2, 0, 3, 4)  # [h, w, 3, CELL, CELL]
    alike = (cells[:, :, None] == stamps()).flatten(3).all(-1)  # [h, w, 9]
    assert (alike.sum(-1) == 1).all()
    return alike.int().argmax(-1).tolist()


def follow(cells: list[list[int]]) -> int:
    """Where the first arrow points that the green one leads to."""
    ((row, column),) = [(r, c) for r, line in enumerate(cells) for c, kind in enumerate(line) if kind >= 5]
    down, right = [(-1, 0), (0, 1), (1, 0), (0, -1)][cells[row][column] - 5]
    while True:
        row, column = row + down, column + right
        assert 0 <= row < len(cells) and 0 <= column < len(cells[0]), "the green arrow leads out of the picture"
        if cells[row][column]:
            return cells[row][column] - 1


@pytest.mark.parametrize("size", [(108, 108), (168, 168), (276, 276), (48, 120), (96, 60)])
def test_the_label_is_where_the_arrow_points_that_the_green_one_leads_to(size):
    data = Arrows("test", size=size, length=60)
    for i in range(len(data)):
        picture, label = data[i]
        cells = read(picture)
        assert picture.shape == (3, *size) and label == follow(cells)
        assert sum(kind > 0 for line in cells for kind in line) == 8


def test_every_answer_way_and_distance_comes_up():
    data = Arrows("train", length=20000)
    assert (torch.bincount(data.labels, minlength=4) - 5000).abs().max() < 300
    assert (torch.bincount(data.cells[data.cells >= 5].long())[5:] - 5000).abs().max() < 300


def test_a_picture_depends_on_split_seed_size_and_number_alone():
    long, short = Arrows("train", length=9000, seed=3), Arrows("train", length=5000, seed=3)
    assert torch.equal(long.cells[:5000], short.cells) and torch.equal(long.labels[:5000], short.labels)
    for other in (Arrows("test", length=50, seed=3), Arrows("train", length=50, seed=4)):
        assert not torch.equal(other.cells, long.cells[:50])
    pictures, labels = long.__getitems__([7, 4100])
    assert torch.equal(pictures[1], long[4100][0]) and labels[0] == long[7][1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "dev"}, "choose one of train, val, test"),
        ({"size": 100}, "multiples of 12"),
        ({"size": 36}, "at least 48"),
        ({"length": 0}, "at least 1"),
    ],
)
def test_bad_input_is_named_with_its_mend(options, says):
    with pytest.raises(ValueError, match=says):
        Arrows(**{"split": "train", **options})


def test_a_study_of_arrows_reports_a_larger_field_without_an_upper_bound(tmp_path):
    study, _ = load("arrows")
    small = ("patch_size=12", "embed_dim=32", "depth=1", "num_heads=1", "class_token=False", "global_pool=avg")
    base = dataclasses.replace(
        study.base, img_size=(48,), model_kwargs=small, train_samples=64, val_samples=20, batch_size=16, steps=2
    )
    study = dataclasses.replace(study, base=base, encodings=("axial",), seeds=(0,), ratios=(1, 2), samples=20, samples_beyond=20)
    rows = extrapolate._model(tmp_path / "axial-0", {"command": "", "commit": ""}, lambda event: None, study, study.models()[0])
    assert {(row.test, row.height, row.scaling, row.upper) for row in rows} == {
        ("canvas", size, rule, None) for size in (48, 96) for rule in ("none", "pi")
    }
    wide = seen(base, "canvas", (48, 96))
    again = list(measure(tmp_path / "axial-0", [(wide, 20, [("none",)])], {"command": "", "commit": ""}))
    assert again[0].width == 96 and Config(dataset="arrows").measured_split == "test"
