import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from train import costs, plots, report
from train.figures import looks
from train.rows import REQUIRED

COMMAND = "python -m train digits --note 'a, \"b\" </script><script>alert(1)</script>'"
PLAIN = {"axial": (0.9, 0.5), "learned": (0.8, 0.1)}  # accuracy at 32 and 256 pixels


def lines(encoding, seed, scaling="none", gain=0.0):
    shift = 0.02 * (seed - 1)
    for test in ("zoom", "canvas"):
        for height, accuracy in zip((32, 256), PLAIN[encoding]):
            value = accuracy + shift + (gain if height > 32 else 0)
            upper = 0.9 + shift if test == "canvas" else ""
            measured = [value, value - 0.01, value + 0.01, upper, 500, height / 32, 100.0, ""]
            yield [encoding, seed, test, height, height, scaling, "none", *measured, COMMAND, "abc123"]


def write_rows(path, rows, header=REQUIRED):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def make_run(folder, encodings=("learned", "axial"), seeds=(0, 1, 2), **config):
    folder.mkdir(parents=True)
    rows = [line for encoding in encodings for seed in seeds for line in lines(encoding, seed)]
    if "axial" in encodings:
        rows += [
            line for seed in seeds for scaling, gain in (("pi", 0.1), ("yarn", 0.3)) for line in lines("axial", seed, scaling, gain)
        ]
    write_rows(folder / "rows.csv", rows)
    machine = {"cpu": "a CPU", "cores": 2, "torch": "2.8"}
    settings = {
        "claim": "axial | wins </script>",
        "command": COMMAND,
        "commit": "abc123",
        "dirty": True,
        "machine": machine,
        "chance": 0.1,
    }
    (folder / "config.json").write_text(
        json.dumps({"name": folder.name, "train_size": [32, 32], "other": [1], **settings, **config})
    )
    trained = {"event": "trained", "steps": 100, "seconds": 5.0, "wait_share": 0.02, "parameters": 1000, "loss": float("nan")}
    events = [{"event": "step"}] + [{**trained, "encoding": encoding, "seed": seed} for encoding in encodings for seed in seeds]
    (folder / "log.jsonl").write_text("\n".join(json.dumps(event) for event in events))
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose picture is not drawn, which is the slow part."""
    for part in (plots, costs):
        monkeypatch.setattr(part, "picture", lambda *_: b"a picture")
    return make_run(tmp_path / "runs" / "digits")


def data(page: Path):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL).group(1))


def rows_of(page: Path):
    """The rows as the page's script unpacks them."""
    packed = data(page)["rows"]
    columns = [[c["values"][k] for k in c["at"]] if c["at"] else c["values"] for c in packed["columns"]]
    return [report.Row(*values) for values in zip(*columns, strict=True)]


def table_line(text, test, *names):
    section = text.split(f"## {test}\n")[1].split("\n## ")[0]
    return next(line for line in section.splitlines() if line.startswith("| " + " | ".join(names)))


def fails(capsys, *folders, out=None):
    """The one line on stderr of a command that must exit with 2."""
    with pytest.raises(SystemExit) as stop:
        report.main(folders, out)
    captured = capsys.readouterr()
    assert stop.value.code == 2 and captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_the_same_rows_give_the_same_files(tmp_path):
    run = make_run(tmp_path / "digits")
    one, two = (report.report([run], tmp_path / name).parent for name in ("one", "two"))
    assert {path.name for path in one.iterdir()} == {"table.md", "plot.png", "speed.png", "report.html"}
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_one_test_alone_without_chance_is_drawn(run, monkeypatch):
    monkeypatch.undo()
    rows = [row for row in report.read_rows(run / "rows.csv") if row.test == "canvas" and row.encoding == "axial"]
    assert plots.picture(rows, ["learned", "axial"], None).startswith(b"\x89PNG")


def test_a_cell_is_the_mean_and_the_sample_deviation_over_seeds(run):
    report.report([run])
    text = (run / "table.md").read_text()
    # three seeds 2 points apart: the deviation with n - 1 is 2 points
    assert table_line(text, "zoom", "learned", "none", "none") == "| learned | none | none | 80.0 ± 2.0 | 10.0 ± 2.0 |"
    assert table_line(text, "zoom", "axial", "yarn") == "| axial | yarn (best at ×8) | none | **90.0 ± 2.0** | **80.0 ± 2.0** |"
    assert table_line(text, "zoom", "chance") == "| chance |  |  | 10.0 | 10.0 |"
    assert table_line(text, "canvas", "upper bound") == "| upper bound |  |  | 90.0 | 90.0 |"
    assert table_line(text, "training", "axial") == "| axial | 3 | 1,000 | 100 | 5.0 | 2.0 |"
    assert "abc123 with uncommitted changes" in text and COMMAND in text


def test_the_plain_row_comes_first_and_encodings_keep_their_order(run):
    found = plots.curves(reversed([row for row in report.read_rows(run / "rows.csv") if row.test == "zoom"]))
    assert [(curve.encoding, curve.scaling) for curve in found] == [
        ("axial", "none"),
        ("axial", "yarn"),
        ("axial", "pi"),
        ("learned", "none"),
    ]


def test_one_seed_has_no_deviation_and_its_band_is_the_bootstrap_interval(tmp_path):
    folder = make_run(tmp_path / "one", seeds=(1,))
    report.report([folder])
    assert table_line((folder / "table.md").read_text(), "zoom", "learned", "none", "none").endswith("| 80.0 | 10.0 |")
    learned = plots.curves(row for row in report.read_rows(folder / "rows.csv") if row.test == "zoom")[0]
    point = learned.points[plots.Size(1, 32, 32)]
    assert (point.std, point.low, point.high) == (None, pytest.approx(0.79), pytest.approx(0.81))


def test_a_cell_with_fewer_seeds_says_so(run):
    rows = [row for row in csv.reader((run / "rows.csv").open())][1:]
    write_rows(run / "rows.csv", [row for row in rows if not (row[0] == "learned" and row[1] == "2" and row[3] == "256")])
    report.report([run])
    assert table_line((run / "table.md").read_text(), "zoom", "learned").endswith("| 80.0 ± 2.0 | 9.0 ± 1.4 (n=2) |")


def test_the_best_scaling_is_chosen_at_the_largest_size_all_scalings_have(run):
    rows = [row for row in csv.reader((run / "rows.csv").open())][1:]
    extra = [
        [*row[:3], "512", "512", *row[5:7], "0.99", "", "", "", "500", "16", *row[13:]]
        for row in rows
        if row[5] == "pi" and row[3] == "256"
    ]
    write_rows(run / "rows.csv", rows + extra)
    found = plots.curves(row for row in report.read_rows(run / "rows.csv") if row.test == "zoom")
    curve, size = plots.best_scaling(found, "axial")
    assert (curve.scaling, size.ratio) == ("yarn", 8)
    assert plots.best_scaling(found, "learned") is None


def test_the_upper_bound_counts_each_model_once(run):
    rows = [row for row in report.read_rows(run / "rows.csv") if row.test == "canvas"]
    one = {(row.encoding, row.seed): row.upper for row in rows}
    assert plots.upper_bound(rows)[plots.Size(1, 32, 32)] == pytest.approx(mean(one.values()))


def test_the_page_embeds_every_row_and_loads_nothing(run, tmp_path):
    (run / "samples.png").write_bytes(b"\x89PNG not really")
    page = report.report([run], tmp_path / "out")
    text, embedded = page.read_text(), data(page)
    assert not re.search(r"https?:|\bsrc\s*=\s*[\"'](?!data:)|<link|@import|url\(", text)
    assert "innerHTML" not in text and not re.search(r"/\* (title|style|data|scripts) \*/", text)
    assert rows_of(page) == report.read_rows(run / "rows.csv")
    assert embedded["samples"][0].startswith("data:image/png;base64,")
    assert embedded["trained"][0]["loss"] == "NaN" and embedded["runs"][0]["other"] == [1]


def test_commas_quotes_and_script_ends_in_a_command_survive(run):
    page = report.report([run])
    assert {row.command for row in rows_of(page)} == {COMMAND}
    assert page.read_text().count("</script>") == 2


def test_the_page_and_the_table_agree(run):
    zoom = next(test for test in data(report.report([run]))["tests"] if test["test"] == "zoom")
    yarn = next(curve for curve in zoom["curves"] if curve["scaling"] == "yarn")
    assert yarn["best"] == {"any": 8, "none": 8} and yarn["points"][1]["mean"] == pytest.approx(0.8)
    assert zoom["chance"] == 0.1 and [size["label"] for size in zoom["columns"]] == ["32 px ×1", "256 px ×8"]


def test_several_folders_are_put_together(run, tmp_path):
    other = make_run(tmp_path / "runs" / "more", encodings=("learned",), seeds=(3,))
    page = report.report([run, other], tmp_path / "both")
    learned = data(page)["tests"][0]["curves"][0]
    assert learned["points"][0]["seeds"] == 4 and learned["points"][0]["mean"] == pytest.approx(0.81)
    assert "# digits + more" in (tmp_path / "both" / "table.md").read_text()
    assert not (run / "table.md").exists() and not (other / "table.md").exists()


def test_a_row_twice_counts_once_and_two_results_of_one_measurement_are_refused(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "copy")
    assert data(report.report([run, copy]))["tests"][0]["curves"][0]["points"][0]["seeds"] == 3
    text = (copy / "rows.csv").read_text().replace(",0.9,", ",0.95,", 1)
    (copy / "rows.csv").write_text(text)
    assert "is measured twice" in fails(capsys, run, copy, out=tmp_path / "out")


def test_runs_of_different_tasks_are_refused(run, tmp_path, capsys):
    other = make_run(tmp_path / "letters", encodings=("learned",), seeds=(4,), chance=1 / 47)
    assert "chance is 0.1 in" in fails(capsys, run, other, out=tmp_path / "out")


def test_the_sequence_table_comes_last_without_the_chance_of_the_pictures(run):
    row = ["axial", 0, "sequence", 1, 512, "none", "none", 0.7, "", "", "", 500, 1, "", "", COMMAND, "abc123"]
    write_rows(run / "sequence.csv", [row])
    report.report([run])
    text = (run / "table.md").read_text()
    assert text.index("## canvas") < text.index("## sequence")
    assert "chance" not in text.split("## sequence")[1].split("##")[0]
    assert table_line(text, "sequence", "axial") == "| axial | none | none | **70.0** |"


def test_wide_pictures_are_in_the_table_but_not_on_the_curve(run):
    rows = [row for row in csv.reader((run / "rows.csv").open())][1:]
    write_rows(run / "rows.csv", rows + [[*row[:4], "64", *row[5:]] for row in rows if row[3] == "32"])
    zoom = data(report.report([run]))["tests"][0]
    assert [(size["label"], size["drawn"]) for size in zoom["columns"]] == [
        ("32 px ×1", True),
        ("32×64 px ×1", False),
        ("256 px ×8", True),
    ]


def test_config_and_log_may_be_missing(run):
    (run / "config.json").unlink()
    (run / "log.jsonl").unlink()
    embedded = data(report.report([run]))
    assert embedded["trained"] == [] and embedded["runs"] == [{"name": "digits"}]


def test_the_terminal_shows_the_plain_row_and_the_best_scaling(run, capsys):
    report.print_table(run)
    text = capsys.readouterr().out
    assert "yarn (best at ×8)" in text and " pi " not in text and "table.md" in text


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("accuracy", "high", "accuracy 'high': give a number from 0 to 1"),
        ("accuracy", "97.5", "accuracy '97.5'"),
        ("accuracy", "nan", "accuracy 'nan'"),
        ("accuracy", "", "accuracy is empty"),
        ("seed", "1.5", "seed '1.5': give a whole number"),
        ("height", "0", "height '0'"),
        ("ratio", "inf", "ratio 'inf'"),
        ("test", "Zoom", "test 'Zoom': choose one of zoom, canvas, longer, rate, slices, sequence"),
    ],
)
def test_a_bad_value_is_named_with_its_line(run, capsys, column, value, says):
    rows = [row for row in csv.reader((run / "rows.csv").open())][1:]
    rows[2][report.COLUMNS.index(column)] = value
    write_rows(run / "rows.csv", rows)
    message = fails(capsys, run)
    assert says in message and "rows.csv line 4" in message
    assert not (run / "table.md").exists()


def test_broken_folders_and_files_are_named_and_nothing_is_written(run, tmp_path, capsys):
    out, rows = tmp_path / "out", run / "rows.csv"
    assert "nowhere is not a folder" in fails(capsys, tmp_path / "nowhere", out=out)
    assert "no run folder given" in fails(capsys, out=out)
    kept = rows.read_text()
    for text, says in [
        ("", "rows.csv lacks encoding, seed"),
        (kept.splitlines()[0] + "\n", "rows.csv has no rows"),
        (kept.replace(",accuracy,", ",", 1), "rows.csv lacks accuracy"),
        (kept + "axial,0\n", "has not as many fields"),
        (kept.replace("zoom", "sequence").replace("canvas", "sequence"), "measured twice"),
    ]:
        rows.write_text(text)
        assert says in fails(capsys, run, out=out)
    rows.unlink()
    assert "rows.csv is missing" in fails(capsys, run, out=out)
    rows.write_text(kept)
    (run / "config.json").write_text("{")
    assert "config.json is not JSON" in fails(capsys, run, out=out)
    assert not out.exists()


def test_a_failed_write_leaves_the_old_files(run, monkeypatch, capsys):
    report.report([run])
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    monkeypatch.setattr(plots, "picture", lambda *_: (_ for _ in ()).throw(ValueError("no picture")))
    assert "no picture" in fails(capsys, run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_encodings_look_different_up_to_fifty_six():
    found = looks([str(i) for i in range(56)])
    assert len(set(found.values())) == 56
    assert len({colour for (colour, _), _ in list(found.values())[:7]}) == 7


@pytest.mark.slow
def test_the_command_line_writes_the_files_and_exits_with_2_on_an_error(run, tmp_path):
    def call(*words):
        return subprocess.run([sys.executable, "-m", "train.report", *map(str, words)], capture_output=True, text=True, check=False)

    done = call(run, "--out", tmp_path / "out")
    assert done.returncode == 0 and "canvas" in done.stdout and (tmp_path / "out" / "report.html").exists()
    failed = call(tmp_path / "nowhere")
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1
