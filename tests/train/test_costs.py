"""Speed and memory by size of an input: what is averaged, how it is named, and columns that rows may lack."""

from statistics import mean, stdev

import pytest

from train import costs
from train.report.tables import markdown
from train.rows import Row, Run


def row(encoding="axial", seed=0, size=(None, 32, 32), **changed):
    depth, height, width = size
    told = {"scaling": "none", "temperature": "none", "accuracy": 0.5, "low": None, "high": None, "upper": None, "images": 10}
    told |= {"ratio": 1.0, "images_per_s": 100.0, "memory_mb": None, "command": "", "commit": "", "depth": depth}
    return Row(encoding, seed, changed.pop("test", "zoom"), height, width, **told | changed)


def test_a_cell_is_over_seeds_and_tests_and_counts_a_copied_number_once():
    rows = [row(images_per_s=10.0), row(images_per_s=10.0, test="canvas"), row(seed=1, images_per_s=16.0)]
    rows += [row(scaling="pi", images_per_s=1.0), row(temperature="log", images_per_s=1.0), row(images_per_s=None, seed=2)]
    (found,) = costs.amounts(rows, "images_per_s")["axial"].values()
    assert (found.mean, found.std, found.low, found.high, found.count) == (mean([10, 16]), stdev([10, 16]), 10, 16, 2)


@pytest.mark.parametrize(
    ("values", "text"),
    [([7259.6, 7261.4], "7,260 ± 1"), ([31.94], "31.9"), ([5.0], "5.00"), ([0.0512, 0.0514], "0.0513 ± 0.0001"), ([0.0], "0")],
)
def test_three_digits_or_all_before_the_point(values, text):
    assert costs.amount(values).text == text


@pytest.mark.parametrize(
    ("size", "fps", "label", "ticks"),
    [
        ((None, 32, 32), None, "32 px", ("32 px",)),
        ((None, 32, 48), None, "32×48 px", ("32×48 px",)),
        ((16, 16, 16), None, "16³", ("16³",)),
        ((8, 32, 32), None, "8×32×32", ("8×32×32",)),
        ((8, 32, 32), 8.0, "8 frames of 32 px", ("32 px", "8 frames")),
    ],
)
def test_an_input_is_named_by_its_extent(size, fps, label, ticks):
    found = costs.shape(row(size=size, fps=fps))
    assert (found.label, found.ticks) == (label, ticks)


def test_sizes_go_from_few_pixels_to_many_and_lack_what_was_not_measured():
    rows = [row(size=(32, 32, 32), fps=8.0), row(size=(8, 32, 32), fps=8.0), row("mixed", size=(8, 48, 48), fps=8.0)]
    header, *lines = costs.cells(costs.amounts(rows, "images_per_s"))
    assert header == ["encoding", "8 frames of 32 px", "8 frames of 48 px", "32 frames of 32 px"]
    assert lines == [["axial", "100", "", "100"], ["mixed", "", "100", ""]]


def test_costs_appear_where_rows_hold_them_and_nowhere_else(tmp_path):
    assert [cost.column for cost, _ in costs.measured([row()])] == ["images_per_s"]
    assert costs.picture([row(images_per_s=None)], ["axial"]) is None and costs.for_page([row(images_per_s=None)]) == []
    rows = [row(images_per_s=None, ms_per_input=0.25, peak_mb=12.5)]
    text = markdown([Run(tmp_path, rows, {"name": "x"}, [])], rows, None)
    assert (
        "## time: ms an input\n" in text and "| axial | 0.250 |" in text and "| axial | 12.5 |" in text and "## speed" not in text
    )
    assert [cost["unit"] for cost in costs.for_page(rows)] == ["ms an input", "MiB"]
    assert costs.picture(rows, ["axial"]).startswith(b"\x89PNG")
