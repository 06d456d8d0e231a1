"""Promises 1, 2, 17, 18, 22: a run that was killed anywhere ends with the bits of one that was not."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.promises.runs import TINY, apart, die, exit_code, free_port, killed, pictures, same, state, tiny
from train import __main__ as train_main
from train import checkpoint, cli, durable, evaluate, extrapolate
from train.cases import case
from train.draws import Seeded
from train.engine import Trainer
from train.modelling import load
from train.rows import COSTS
from train.study import Study

RANDOM = {"model_ema": True, "model_ema_decay": 0.9, "drop_path": 0.3, "mixup": 0.4, "cutmix": 0.5, "smoothing": 0.1}
WAYS = {
    "plain": {},
    "random": {**RANDOM, "train_sizes": (8, 16), "shift_coords": 1.0, "jitter_coords": 1.2, "rescale_coords": 1.5},
    "accumulated": {"grad_accum_steps": 2, "opt": "muon", "encoding": "mixed", "measure_every": 3, "train_samples": 80},
    "bfloat16": {"amp": True, "opt": "sgd", "sched": "step", "encoding": "sinusoidal"},
}


@pytest.mark.parametrize("way", WAYS)
def test_promise_01_killed_within_and_after_an_epoch_then_resumed_is_the_uninterrupted_run(way, tmp_path):
    config = tiny(**WAYS[way])
    Trainer(config, tmp_path / "whole").fit()
    whole = state(tmp_path / "whole")
    for after in (3, 7):
        killed(config, tmp_path / str(after), after)
        Trainer(config, tmp_path / str(after)).fit()
        assert same(state(tmp_path / str(after)), whole), after


@pytest.mark.slow
def test_promise_01_killed_at_each_step_then_resumed_is_the_uninterrupted_run(tmp_path):
    config = tiny(**WAYS["random"])
    Trainer(config, tmp_path / "whole").fit()
    for after in range(1, 9):
        killed(config, tmp_path / str(after), after)
        Trainer(config, tmp_path / str(after)).fit()
        assert same(state(tmp_path / str(after)), state(tmp_path / "whole")), after


def test_promise_01_killed_again_and_again(tmp_path):
    config = tiny(**RANDOM)
    Trainer(config, tmp_path / "whole").fit()
    for after in (3, 3, 5, 7, 8):
        killed(config, tmp_path / "parts", after)
    Trainer(config, tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.parametrize("resumed_with", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_promise_02_any_number_of_loader_workers_before_and_after_gives_the_same_bits(resumed_with, tmp_path):
    images = {"dataset": "folder", "data_dir": str(pictures(tmp_path / "data")), "aa": "rand-m9-mstd0.5-inc1", "classes": None}
    config = tiny(**images, **RANDOM)
    Trainer(config, tmp_path / "whole").fit()
    killed(dataclasses.replace(config, workers=2 - resumed_with), tmp_path / "parts", 3)
    Trainer(dataclasses.replace(config, workers=resumed_with), tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


def test_promise_02_what_is_drawn_of_a_sample_is_a_function_of_seed_epoch_and_index():
    class Noise:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return torch.rand(3).tolist()

    one, two = Seeded(Noise(), seed=1), Seeded(Noise(), seed=2)
    assert one[0, 3] == one[0, 3] and len({str(one[0, 3]), str(one[1, 3]), str(one[0, 4]), str(two[0, 3])}) == 4


def test_promise_17_the_same_seed_and_threads_give_the_same_bits_and_another_seed_does_not(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        Trainer(tiny(**RANDOM, seed=seed), tmp_path / name).fit()
    a, b, c = (state(tmp_path / name) for name in "abc")
    assert same(a, b) and not same(a[1], c[1])


def test_promise_17_a_run_records_where_it_ran_in_each_of_its_parts(tmp_path):
    config = tiny()
    killed(config, tmp_path, 5)
    Trainer(dataclasses.replace(config, workers=1), tmp_path).fit()
    told = json.loads((tmp_path / "run.json").read_text())
    assert [part["from_step"] for part in told["parts"]] == [0, 4]
    for part in told["parts"]:
        assert {"command", "commit", "dirty", "torch", "timm", "python", "threads", "processes", "cpu"} <= set(part)
        assert part["torch"] == torch.__version__ and part["threads"] == 1 and part["processes"] == 1
        assert isinstance(part["dirty"], bool)
    assert told["config"] == json.loads(dataclasses.replace(config, workers=1).to_json())
    assert told["fixed"]["training samples"] == 40


def test_promise_18_a_changed_config_is_refused_with_all_differences_shown(tmp_path):
    config = tiny()
    killed(config, tmp_path, 5)
    with pytest.raises(ValueError, match=r"lr=0\.001, not 0\.01; .*|.*; lr=0\.001, not 0\.01") as caught:
        Trainer(dataclasses.replace(config, lr=0.01, encoding="mixed"), tmp_path)
    assert "encoding='axial', not 'mixed'" in str(caught.value)
    with pytest.raises(ValueError, match="training samples=40, not 48"):
        Trainer(dataclasses.replace(config, train_samples=48), tmp_path)
    free = {"workers": 1, "output": "elsewhere", "save_every": 3, "keep": 1, "max_skipped": 3, "cache": True, "experiment": "x"}
    assert Trainer(dataclasses.replace(config, **free), tmp_path).progress.step == 4


def test_promise_22_a_resumed_run_is_measured_as_it_printed_and_rows_carry_where_they_come_from(tmp_path):
    config = tiny(**RANDOM)
    killed(config, tmp_path, 5)
    printed = Trainer(config, tmp_path).fit()["accuracies"]["zoom"]
    facts = {"command": "python -m x", "commit": "abc"}
    (row,) = evaluate.measure(tmp_path, [(case(config, "zoom", 1), config.val_samples, [("none",)])], facts)
    assert (row.accuracy, row.command, row.commit, row.seed) == (printed, "python -m x", "abc", 0)


def test_a_checkpoint_is_a_model_that_can_be_evaluated(tmp_path):
    config = tiny()
    Trainer(config, tmp_path).fit()
    model, read = load(tmp_path / "checkpoints" / "step-000000006")
    assert read == config and not same(model.state_dict(), load(tmp_path)[0].state_dict())


def test_a_study_goes_on_inside_a_model_that_was_half_trained(tmp_path):
    study = Study(base=tiny(), encodings=("axial",), ratios=(1, 2), samples=20, sequence=None)
    (config,) = study.models()
    told: list[dict] = []

    def rows(folder: Path) -> list:
        found = extrapolate._model(folder, {"command": "", "commit": ""}, told.append, study, config)
        return [dataclasses.replace(row, **dict.fromkeys(COSTS)) for row in found]

    whole = rows(tmp_path / "whole")
    killed(config, tmp_path / "parts", 5)
    told.clear()
    assert rows(tmp_path / "parts") == whole
    assert any("step-000000004" in event.get("note", "") for event in told)
    assert not (tmp_path / "parts" / "checkpoints").exists()


def command(folder: Path, *more: object, steps: int = 400) -> list[str]:
    fixed = ["--model-kwargs", *TINY, "--img-size", "16", "--classes", "0123", "--train-samples", "80", "--val-samples", "20"]
    fixed += ["--batch-size", "8", "--threads", "1", "--model-ema", "--mixup", "0.2", "--save-every", "5", "--steps", str(steps)]
    given = ["--output", folder, "--experiment", "run", *more]
    return [sys.executable, "-m", "train", *map(str, fixed + given)]


def test_promise_01_the_same_command_without_a_name_goes_on_with_the_run_that_was_not_finished(tmp_path, monkeypatch, capsys):
    arguments = command(tmp_path, "--workers", 0, steps=12)[3:]
    at = arguments.index("--experiment")
    arguments = arguments[:at] + arguments[at + 2 :]

    def run(dies: bool) -> None:
        real = checkpoint.write

        def write(root, step, **given):
            if dies and step == 10:
                die()
            return real(root, step, **given)

        monkeypatch.setattr(checkpoint, "write", write)
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        cli.run(train_main.main, "train")

    assert exit_code(apart(run, True)) == -signal.SIGKILL
    run(False)
    (folder,) = tmp_path.iterdir()
    assert "step-000000005" in capsys.readouterr().out and state(folder)[0] == 12
    time.sleep(1)  # names have seconds
    run(False)
    assert len(list(tmp_path.iterdir())) == 2  # a finished run is not gone on with


def test_promise_01_two_runs_do_not_write_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(durable.hold, "__defaults__", (0.2,))
    (tmp_path / "checkpoints").mkdir()
    begun = tmp_path / "begun"

    def other() -> None:
        durable.hold(tmp_path / "checkpoints" / "lock")
        begun.touch()
        time.sleep(60)

    process = apart(other)
    while process.is_alive() and not begun.exists():
        time.sleep(0.01)
    with pytest.raises(ValueError, match="another process is training there"):
        Trainer(tiny(), tmp_path)
    process.kill()
    process.join()
    assert Trainer(tiny(), tmp_path).progress.step == 0


@pytest.mark.slow
def test_promise_01_two_processes_that_were_killed_go_on_to_the_same_bits(tmp_path):
    config = tiny(batch_size=4, drop_path=0.3, mixup=0.4, model_ema=True)

    def rank(number: int, port: int, folder: Path, after: int) -> None:
        os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        trainer = Trainer(config, folder)
        look = trainer._look

        def dying(**told: bool) -> None:
            if trainer.progress.step == after:
                die()
            look(**told)

        trainer._look = dying
        trainer.fit()

    for folder, after, code in (("whole", 0, 0), ("parts", 5, -signal.SIGKILL), ("parts", 0, 0)):
        port = free_port()
        assert [exit_code(p) for p in [apart(rank, n, port, tmp_path / folder, after) for n in range(2)]] == [code, code]
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_promise_01_the_same_command_after_kill_9_at_any_time(workers, tmp_path):
    here = {"cwd": Path(__file__).parents[2], "stdout": subprocess.DEVNULL, "timeout": 300}
    subprocess.run(command(tmp_path / "whole", "--workers", 0), check=True, **here)
    again = command(tmp_path / "parts", "--workers", workers)
    kills = 0
    for wait in (0.05, 0.3, 0.7):
        process = subprocess.Popen(again, cwd=here["cwd"], stdout=subprocess.DEVNULL)
        before = checkpoint.steps(tmp_path / "parts" / "run" / "checkpoints")
        while process.poll() is None and checkpoint.steps(tmp_path / "parts" / "run" / "checkpoints") == before:
            time.sleep(0.01)
        time.sleep(wait)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills == 3
    subprocess.run(again, check=True, **here)
    assert same(state(tmp_path / "parts" / "run"), state(tmp_path / "whole" / "run"))
    one, two = ((tmp_path / name / "run" / "log.jsonl").read_text().splitlines() for name in ("whole", "parts"))
    assert [json.loads(line).get("loss") for line in one] == [json.loads(line).get("loss") for line in two]


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "replace"])
def test_promise_01_killed_during_a_save_goes_on_to_the_same_bits(call, tmp_path, monkeypatch):
    config, real = tiny(), getattr(os, call)
    Trainer(config, tmp_path / "whole").fit()
    for at in {"write": (20, 45), "fsync": (9, 20)}.get(call, (2, 3)):
        calls = itertools.count(1)

        def dying(*given, at=at, calls=calls):
            if next(calls) == at:
                die()
            return real(*given)

        def run(at=at, dying=dying):
            monkeypatch.setattr(os, call, dying)
            Trainer(config, tmp_path / str(at)).fit()

        assert exit_code(apart(run)) == -signal.SIGKILL
        Trainer(config, tmp_path / str(at)).fit()
        assert same(state(tmp_path / str(at)), state(tmp_path / "whole"))
