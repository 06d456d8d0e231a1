"""The sheet of samples: every case under its label, frames and slices apart, each pixel as it is."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from train import report, samples
from train.cases import case, trained
from train.config import Config
from train.rows import Row, write_rows
from train.study import Study


def coloured(count: int, channels: int) -> torch.Tensor:
    """A clip or volume `[C, count, 4, 6]` whose frame k is k everywhere."""
    return torch.arange(count, dtype=torch.uint8)[None, :, None, None].expand(channels, count, 4, 6)


def numbers(picture: Image.Image, scale: int) -> list[int]:
    """The frames under the label of a block, by their grey."""
    step = 6 * scale + samples.BETWEEN
    return [picture.getpixel((k * step + 1, samples.LINE + 1))[0] for k in range(samples.SHOWN)]


@pytest.mark.parametrize("channels, shown", [(3, [0, 5, 10, 15]), (1, [2, 6, 10, 14])])
def test_of_clips_the_first_and_last_frames_are_shown_and_of_volumes_slices_about_the_middle(channels, shown):
    block = samples.block(coloured(16, channels), "x", 5)
    assert numbers(block, 5) == shown and block.height == 4 * 5 + samples.LINE
    gap = block.getpixel((6 * 5, samples.LINE + 1))
    assert gap == (255, 255, 255)


def test_a_label_is_never_cut_off_and_shows_all_its_characters():
    label = "slices 8×32×32 ×2 and more"
    narrow, wide = (
        np.asarray(samples.block(torch.zeros(3, 8, side, dtype=torch.uint8), label, 1))[: samples.LINE] for side in (8, 500)
    )
    assert narrow.shape[1] < 250 and (narrow < 255).sum() == (wide < 255).sum() > 100  # all of its ink
    glyphs = {
        c: np.asarray(samples.block(torch.zeros(3, 8, 8, dtype=torch.uint8), c, 1))[: samples.LINE].tobytes() for c in "×³\ufffe"
    }
    assert len(set(glyphs.values())) == 3  # the last is in no font: what is drawn for a missing character


def test_a_sample_is_the_test_input_of_its_case_at_whole_pixels(tmp_path):
    base = Config(dataset="solids", img_size=(8,), tests=("zoom", "slices"), val_samples=10)
    study = Study(base=base, encodings=("axial",), ratios=(1, 2), rules=(("none",),), sequence=None)
    samples.sheet(study, tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    given = samples.sample(base, trained(base))
    top, left = samples.GAP + samples.LINE, samples.GAP
    first = sheet[top : top + 32, left : left + 32, 0]
    assert np.array_equal(first, given[0, samples.places(given)[0]].numpy().repeat(4, 0).repeat(4, 1))
    wide = (
        samples.SHOWN * (8 + 16) * 4 + 2 * 3 * samples.BETWEEN + 3 * samples.GAP
    )  # the row of zoom: 8³ and 16³ at four pixels each
    assert sheet.shape[1] == wide and case(base, "zoom", 2).size == (16, 16, 16)


def test_a_data_set_by_name_has_no_sheet(tmp_path):
    base = Config(dataset="torch/cifar10", data_dir=str(tmp_path))
    samples.sheet(dataclasses.replace(Study(base=base, encodings=()), sequence=None), tmp_path / "sheet.png")
    assert not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("upper", [None, 0.9])
def test_the_upper_bound_is_explained_where_there_is_one(upper, tmp_path):
    row = Row("axial", 0, "canvas", 32, 32, "none", "none", 0.5, 0.4, 0.6, upper, 10, 1.0, 1.0, 1.0, "", "")
    write_rows(tmp_path / "rows.csv", [row])
    page = report.report([tmp_path]).read_text()
    assert ("Upper bound:" in (tmp_path / "table.md").read_text()) == ("Upper bound:" in page) == (upper is not None)
