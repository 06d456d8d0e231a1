"""Promises 9, 10 and 16: signals, numbers that are not finite, and loader workers that die."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.promises.runs import TINY, apart, exit_code, free_port, pictures, same, state, tiny
from train import checkpoint
from train.data import Drawn, training_set
from train.draws import batches
from train.engine import Trainer
from train.sift import WorkerLost
from train.stop import Stop

SLIM = "channels=(8,8,8,8)", "stem_width=8"
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


def signalled(config, folder: Path, signum: int, at: int, group: bool = False) -> int:
    """The exit code of a run that gets a signal in the middle of step `at`; with `group`, as do its loader's workers."""

    def run() -> None:
        os.setpgid(0, 0)
        trainer = Trainer(config, folder)
        objective = trainer.objective

        def hit(*given):
            if trainer.progress.step + 1 == at:
                os.killpg(0, signum) if group else os.kill(os.getpid(), signum)
            return objective(*given)

        trainer.objective = hit
        trainer.fit()

    return exit_code(apart(run))


@pytest.mark.parametrize("signum", CODES)
def test_promise_09_a_signal_ends_the_step_saves_and_exits_with_its_code(signum, tmp_path):
    config = tiny(save_every=100, model_ema=True, drop_path=0.2)
    Trainer(config, tmp_path / "whole").fit()
    assert signalled(config, tmp_path / "parts", signum, 5) == CODES[signum]
    assert [path.name for path in checkpoint.steps(tmp_path / "parts" / "checkpoints")] == ["step-000000005"]
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    Trainer(config, tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("signum", CODES)
def test_promise_09_a_signal_that_reaches_the_loaders_workers_too_loses_nothing(signum, tmp_path):
    images = {"dataset": "folder", "data_dir": str(pictures(tmp_path / "data")), "classes": None}
    config = tiny(save_every=100, workers=2, steps=40, **images)
    Trainer(config, tmp_path / "whole").fit()
    assert signalled(config, tmp_path / "parts", signum, 7, group=True) == CODES[signum]
    Trainer(config, tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.parametrize("signum", CODES)
def test_promise_09_a_second_signal_ends_the_run_at_once(signum, tmp_path, monkeypatch):
    hit = tmp_path / "hit"

    def run() -> None:
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)  # as in a process that was started by hand
        trainer = Trainer(tiny(), tmp_path)

        def endless(*_):
            hit.touch()
            os.kill(os.getpid(), signum)
            os.kill(os.getpid(), signum)
            time.sleep(60)

        trainer.objective = endless
        trainer.fit()

    assert exit_code(apart(run)) == CODES[signum] and time.time() - hit.stat().st_mtime < 30
    assert not (tmp_path / "checkpoints").exists()


def test_promise_09_a_signal_handed_on_by_a_launcher_is_not_a_second_one():
    with Stop(several=True) as stop:
        for signum in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), signum)
        assert stop.asked and stop.signum == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.slow
def test_promise_09_a_study_that_is_ended_saves_its_half_trained_models_and_leaves_no_process(tmp_path):
    recipe = tmp_path / "long.py"
    recipe.write_text(f"""
'''A small claim.'''
from train.config import Config
from train.study import Study
base = Config(model_kwargs={TINY!r}, img_size=(16,), classes="01", train_samples=64, val_samples=40, cache=True, batch_size=8,
              steps=100_000, workers=0, threads=1, save_every=50)
STUDY = Study(base=base, encodings=("none", "axial"), ratios=(1,), samples=40, sequence=None)
""")
    command = [sys.executable, "-m", "train.extrapolate", "--recipe", str(recipe), "--output", str(tmp_path), "--jobs", "2"]
    study = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True, stdout=subprocess.DEVNULL)
    run = tmp_path / "long-001"
    until = time.monotonic() + 200
    while len(list(run.glob("*/checkpoints/latest"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    study.terminate()
    assert study.wait(200) == 143
    for name in ("none-0", "axial-0"):
        found, broken = checkpoint.newest(run / name / "checkpoints")
        assert found is not None and not broken and found.told["progress"]["step"] >= 50
    with pytest.raises(ProcessLookupError):
        for _ in range(600):
            os.killpg(study.pid, 0)
            time.sleep(0.1)


def poisoned(config, bad: tuple[int, ...]) -> Drawn:
    """The run's inputs as floats, those of some samples not finite."""
    data = training_set(config)
    parts = [data[i] for i in range(len(data))]
    images = torch.stack([image for image, _ in parts]).float() / 64 - 2
    images[list(bad)] = float("nan")
    return Drawn(images, torch.tensor([label for _, label in parts]))


def skipping(config, folder: Path, bad: tuple[int, ...], events: list[dict]) -> Trainer:
    trainer = Trainer(config, folder, events.append)
    trainer.data = poisoned(config, bad)
    return trainer


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "resnet10t"])
def test_promise_10_a_loss_that_is_not_finite_changes_nothing_and_its_samples_are_told(model, tmp_path):
    other = {} if model.startswith("vit") else {"model": model, "model_kwargs": SLIM, "encoding": "timm", "img_size": (32,)}
    config, events = tiny(steps=10, model_ema=True, save_every=1, keep=20, **other), []
    trainer = skipping(config, tmp_path, (3,), events)
    trainer.fit()
    skipped = [event for event in events if event["event"] == "skipped"]
    order = [indices for indices, _ in batches(trainer.data, config, start=0, end=10)]
    hit = [step for step, indices in enumerate(order, start=1) if 3 in indices]
    assert [event["step"] for event in skipped] == hit and len(hit) == 2
    assert [event["samples"] for event in skipped] == [sorted(order[step - 1]) for step in hit]
    for step in (step for step in hit if step > 1):
        before, after = (checkpoint.read(tmp_path / "checkpoints" / f"step-{n:09d}") for n in (step - 1, step))
        assert same(before.tensors, after.tensors) and same(before.state["optimizer"]["state"], after.state["optimizer"]["state"])
    assert all(value.isfinite().all() for value in trainer.model.state_dict().values())


def test_promise_10_a_gradient_that_is_not_finite_changes_nothing(tmp_path):
    config, events = tiny(steps=5, clip_grad=None), []
    trainer = Trainer(config, tmp_path, events.append)
    weight = next(p for p in trainer.model.parameters() if p.requires_grad)
    weight.register_hook(lambda grad: grad * (float("inf") if trainer.progress.step == 2 else 1))
    trainer.fit()
    assert [event["step"] for event in events if event["event"] == "skipped"] == [3]
    assert trainer.progress.skipped == 1 and all(value.isfinite().all() for value in trainer.model.state_dict().values())


def test_promise_10_many_in_a_row_end_the_run_and_a_good_one_begins_the_count_anew(tmp_path):
    config, events = tiny(steps=20, max_skipped=3, save_every=2), []
    trainer = skipping(config, tmp_path / "all", tuple(range(40)), events)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(ValueError, match=r"3 updates in a row \(--max-skipped\), at step 3 with samples \d"):
        trainer.fit()
    assert same(dict(trainer.model.state_dict()), before) and not (tmp_path / "all" / "model.safetensors").exists()
    skipping(config, tmp_path / "some", (0, 1), events).fit()
    assert sum(event["event"] == "skipped" for event in events) > 6


def test_promise_10_a_scale_of_float16_that_is_too_high_falls_and_is_no_skipped_update(tmp_path):
    trainer = Trainer(tiny(steps=4, save_every=1, keep=9), tmp_path)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    weight = next(p for p in trainer.model.parameters() if p.requires_grad)
    weight.register_hook(lambda grad: grad * (float("inf") if trainer.progress.step == 2 else 1))
    trainer.fit()
    two, three = (checkpoint.read(tmp_path / "checkpoints" / f"step-{step:09d}") for step in (2, 3))
    assert same(two.tensors, three.tensors) and trainer.progress.skipped == 0
    assert (two.state["scaler"]["scale"], three.state["scaler"]["scale"]) == (2.0**10, 2.0**9)


@pytest.mark.slow
def test_promise_10_one_process_with_a_bad_sample_stops_the_update_of_all(tmp_path):
    port = str(free_port())
    config = tiny(batch_size=4, steps=5, save_every=100)

    def rank(number: int) -> None:
        os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        events: list[dict] = []
        trainer = skipping(config, tmp_path / "run", (3,), events)
        trainer.fit()
        torch.save([trainer.model.state_dict(), events, trainer.progress.skipped], tmp_path / f"{number}.pt")

    ranks = [apart(rank, number) for number in range(2)]
    assert [exit_code(process) for process in ranks] == [0, 0]
    (one, events, skipped), (two, _, _) = (torch.load(tmp_path / f"{number}.pt") for number in range(2))
    assert same(dict(one), dict(two)) and skipped == 1
    (told,) = [event for event in events if event["event"] == "skipped"]
    assert 3 in told["samples"] and len(told["samples"]) == 4  # those of the process that had it


@pytest.mark.slow
def test_promise_16_a_killed_loader_worker_is_an_error_and_the_run_goes_on_from_its_checkpoint(tmp_path):
    images = {"dataset": "folder", "data_dir": str(pictures(tmp_path / "data")), "classes": None}
    config = tiny(workers=2, steps=40, save_every=2, **images)
    Trainer(config, tmp_path / "whole").fit()

    def kill(event: dict) -> None:
        if event["event"] == "saved" and event["step"] == 4:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    begun = time.monotonic()
    with pytest.raises(WorkerLost, match="too little memory"):
        Trainer(config, tmp_path / "parts", kill).fit()
    assert time.monotonic() - begun < 100
    Trainer(config, tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))
