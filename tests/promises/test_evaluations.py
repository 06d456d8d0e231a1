"""Evaluations go on: rows that were measured before a kill are on the disk and not measured again, and processes share a folder."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.promises.runs import apart, die, exit_code, tiny
from train import cli, evaluate
from train.engine import Trainer
from train.kept import Kept, code
from train.rows import COSTS, Row, read_rows

SIZES, RULES = ("16", "32"), ("none", "pi", "ntk")


def call(*given: object, by: str = "one") -> None:
    """The command line, in this process, of code that is said to be the same meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["python -m train.evaluate", *map(str, given)])
        patch.setattr(evaluate, "code", lambda: by)
        cli.run(evaluate.main, "train.evaluate")


def command(folder: Path, output: str = "rows.csv", sizes: tuple[str, ...] = SIZES) -> list[object]:
    return ["--checkpoint", folder, "--sizes", *sizes, "--scaling", *RULES, "--output", folder.parent / output]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    Trainer(tiny(steps=2), folder).fit()
    return folder


@pytest.fixture
def run(model, tmp_path) -> Path:
    """A trained model that nobody evaluated yet."""
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes((model / name).read_bytes())
    return tmp_path / "model"


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / evaluate.KEPT).read_text().splitlines()]


def counted(folder: Path, after: int | None = None) -> None:
    """An evaluation that tells of each measurement, and is killed as it begins one more than `after`."""
    real, begun = evaluate.score, []

    def score(*given, **named):
        if len(begun) == after:
            die()
        begun.append(1)
        found = real(*given, **named)
        with (folder.parent / "scored").open("a") as file:
            file.write("x")
        return found

    evaluate.score = score
    try:
        call(*command(folder))
    finally:
        evaluate.score = real


def timeless(rows: list[Row]) -> list[Row]:
    return [dataclasses.replace(row, command="", **dict.fromkeys(COSTS)) for row in rows]


def test_killed_in_the_middle_the_same_command_measures_what_is_left(run, model, tmp_path):
    assert exit_code(apart(counted, run, 2)) == -signal.SIGKILL
    before = lines(run)
    assert not (tmp_path / "rows.csv").exists() and len(before) == 4  # at the training size three rules are one measurement
    counted(run)
    assert (tmp_path / "scored").read_text() == "x" * 4  # 16 once, 32 under three rules
    after = lines(run)
    assert after[:4] == before and len(after) == 6
    rows = read_rows(tmp_path / "rows.csv")
    assert [dataclasses.asdict(row) for row in rows] == [line["row"] for line in after]
    reference = list(evaluate.measure(model, planned(model), {"command": "", "commit": cli.commit()}))
    assert timeless(rows) == timeless(reference)


def planned(model: Path) -> list:
    from train.modelling import load, token_size
    from train.sizes import cases_of

    built, config = load(model)
    return [(at, config.val_samples, [(rule,) for rule in RULES]) for at in cases_of(config, ("zoom",), SIZES, token_size(built))]


def test_what_is_finished_is_not_measured_again_and_says_so(run, tmp_path, monkeypatch, capsys):
    call(*command(run))
    first = (tmp_path / "rows.csv").read_bytes()
    monkeypatch.setattr(evaluate, "score", None)
    call(*command(run))
    assert (tmp_path / "rows.csv").read_bytes() == first
    assert "evaluated.jsonl holds is not measured again, 6 rows" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("what", ["weights", "samples", "code"])
def test_other_weights_samples_or_code_are_measured_anew(what, run, tmp_path):
    call(*command(run))
    more, by = list[object](), "one"
    if what == "weights":
        Trainer(tiny(steps=3), tmp_path / "other").fit()
        (run / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    elif what == "samples":
        more = ["--samples", 10]
    else:
        by = "another"
    call(*command(run), *more, by=by)
    assert len(lines(run)) == 12


def test_code_tells_what_differs_from_the_commit(monkeypatch):
    said = {"diff": "", "rev-parse": "abc", "status": ""}
    monkeypatch.setattr(cli, "_git", lambda first, *more: said[first])
    clean = code()
    said |= {"diff": "- 1\n+ 2", "status": " M train/x.py"}
    changed = code()
    said["diff"] = "- 1\n+ 3"
    assert clean == "abc" and len({clean, changed, code()}) == 3


def test_two_processes_at_once_lose_no_row_and_double_none(run, tmp_path):
    several = [apart(call, *command(run, f"{i}.csv", sizes)) for i, sizes in enumerate((SIZES, (*SIZES, "24"), SIZES[::-1]))]
    assert [exit_code(one) for one in several] == [0, 0, 0]
    found = lines(run)
    assert len({line["key"] for line in found}) == len(found) == 9
    kept = [line["row"] for line in found]
    for i, count in enumerate((6, 9, 6)):
        rows = [dataclasses.asdict(row) for row in read_rows(tmp_path / f"{i}.csv")]
        assert len(rows) == count and all(row in kept for row in rows)


def test_a_folder_that_may_not_be_written_to_is_evaluated_without_keeping(run, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *given: False)
    call("--checkpoint", run)
    assert not (run / evaluate.KEPT).exists() and "may not be written to" in " ".join(capsys.readouterr().out.split())


# ---- the file


def test_a_line_that_a_crash_left_half_written_is_cut_off(tmp_path):
    path = tmp_path / "k.jsonl"
    Kept(path).add("a", {"n": 1})
    path.write_bytes(path.read_bytes() + b'{"key": "b", "n')
    assert Kept(path).get("b") is None
    Kept(path).add("c", {"n": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"key": "a", "n": 1}, {"key": "c", "n": 3}]


def test_the_first_of_two_stays_and_both_are_given_it(tmp_path):
    one, two = Kept(tmp_path / "k.jsonl"), Kept(tmp_path / "k.jsonl")
    assert one.add("a", {"n": 1}) == {"n": 1} and two.add("a", {"n": 2}) == {"n": 1} and one.get("a") == {"n": 1}
    assert two.add("b", {"n": 0.1 + 0.2}) == Kept(tmp_path / "k.jsonl").get("b") == one.get("b") == {"n": 0.1 + 0.2}


def test_a_file_that_is_deleted_meanwhile_is_begun_anew(tmp_path):
    kept = Kept(tmp_path / "k.jsonl")
    kept.add("a", {"n": 1})
    kept.add("b", {"n": 2})
    (tmp_path / "k.jsonl").unlink()
    kept.add("c", {"n": 3})
    assert [json.loads(line)["key"] for line in (tmp_path / "k.jsonl").read_text().splitlines()] == ["c"]


def test_what_is_no_measurement_is_an_error_that_names_the_file(tmp_path):
    for text in ("[]\n", "{}\n", "x\n", '{"key": 1}\n', "\n"):
        (tmp_path / "k.jsonl").write_text(text)
        with pytest.raises(ValueError, match=r"k\.jsonl: byte 0 begins no line"):
            Kept(tmp_path / "k.jsonl")


@pytest.mark.slow
def test_many_processes_that_are_killed_at_any_time_leave_whole_lines(tmp_path):
    path = tmp_path / "k.jsonl"

    def write(who: int) -> None:
        kept = Kept(path)
        for n in range(400):
            kept.add(f"{n}", {"who": who, "long": "x" * 3000})

    writers = [apart(write, who) for who in range(4)]
    while not path.exists() or path.stat().st_size < 100_000:
        time.sleep(0.01)
    writers[0].kill()
    time.sleep(0.05)
    writers[1].kill()
    assert [exit_code(one) for one in writers[2:]] == [0, 0]
    assert sorted(int(json.loads(line)["key"]) for line in path.read_text().splitlines()) == list(range(400))


def test_two_processes_may_write_one_csv_at_once(tmp_path, monkeypatch):
    from train import rows

    real = os.replace

    def between(source, target):  # the other one writes and is done
        monkeypatch.setattr(os, "replace", real)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        rows.write_csv(tmp_path / "a.csv", ["n"], [{"n": 2}])
        real(source, target)

    monkeypatch.setattr(os, "replace", between)
    rows.write_csv(tmp_path / "a.csv", ["n"], [{"n": 1}])
    assert list(csv.DictReader((tmp_path / "a.csv").open())) == [{"n": "1"}]
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


# ---- features without a head


def test_a_probe_that_was_killed_measures_the_models_and_sizes_that_are_left(tmp_path, monkeypatch):
    import timm
    import torch
    from safetensors.torch import save_file

    from tests.promises.runs import pictures
    from train import probe
    from train.retrofit.config import Config
    from train.retrofit.engine import Retrofit

    monkeypatch.setattr(probe, "code", lambda: "one")
    images = pictures(tmp_path / "data", count=4)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    torch.manual_seed(0)
    save_file(timm.create_model("vit_small_patch14_dinov2", **options).state_dict(), tmp_path / "weights.safetensors")
    told = tuple(f"{key}={value}" for key, value in options.items())
    given = {"weights": tmp_path / "weights.safetensors", "model_kwargs": told, "output": tmp_path / "run", "sizes": (32,)}
    small = {"steps": 1, "batch_size": 2, "measure_images": 2, "threads": 1, "home": (16, 32)}
    Retrofit(Config("vit_small_patch14_dinov2", images / "train", **given, **small)).fit()

    def rows(report=lambda text: None) -> list:
        return probe.probe(tmp_path / "run", images, ratios=(0.5, 1), cache=tmp_path / "f", threads=1, report=report)

    class Stopping(Exception):
        pass

    begun: list[str] = []

    def stop_at_third(text: str) -> None:
        begun.append(text)
        if len(begun) == 3:
            raise Stopping

    with pytest.raises(Stopping):
        rows(stop_at_third)
    assert len((tmp_path / "run" / probe.KEPT).read_text().splitlines()) == 2
    seen: list[str] = []
    found = rows(seen.append)
    assert seen == [begun[2], *(f"{name} at 32 px" for name in ("original", "retrofitted", "control"))]
    assert next(csv.DictReader((tmp_path / "run" / "probe.csv").open()))["patches"] == str(found[0].patches)
    with monkeypatch.context() as patch:
        patch.setattr(probe, "fidelity", None)
        assert rows(seen.append) == found and len(seen) == 4
    (tmp_path / "run" / probe.KEPT).unlink()
    assert [dataclasses.replace(row, command="", commit="") for row in rows()] == [
        dataclasses.replace(row, command="", commit="") for row in found
    ]


# ---- how runs begin and end


def test_promise_16_a_dead_loader_worker_ends_training_with_exit_code_1_and_one_line(tmp_path):
    from tests.promises.runs import TINY, pictures
    from train import __main__ as train_main
    from train.pictures import Strict

    images = pictures(tmp_path / "data", count=8)
    given = ["--dataset", "folder", "--data-dir", images, "--img-size", 16, "--model-kwargs", *TINY, "--workers", 1]
    given += ["--batch-size", 4, "--steps", 4, "--threads", 1, "--output", tmp_path, "--experiment", "run"]

    def train() -> None:
        main, real = os.getpid(), Strict.__getitem__
        Strict.__getitem__ = lambda data, index: real(data, index) if os.getpid() == main else die()
        sys.argv = ["train", *map(str, given)]
        sys.stderr = (tmp_path / "said").open("w", buffering=1)
        cli.run(train_main.main, "python -m train")

    assert exit_code(apart(train)) == 1
    said = [line for line in (tmp_path / "said").read_text().splitlines() if "error" in line]
    assert len(said) == 1 and said[0].startswith("error: a worker of the loader died")


def test_an_optimiser_of_second_order_is_refused_at_the_start_with_the_names_of_others(tmp_path):
    from timm.optim import list_optimizers

    with pytest.raises(ValueError, match=r"opt 'adahessian' takes gradients of gradients.*: choose from .*adamw.*, muon") as caught:
        Trainer(tiny(opt="adahessian"), tmp_path)
    named = str(caught.value).split("choose from ")[1].split(", ")
    assert set(list_optimizers()) - set(named) == {"adahessian"}
