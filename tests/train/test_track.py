"""A run is followed by the tracker that is asked for, and goes on as the same run."""

import json
import sqlite3
import sys

import pytest

from tests.promises.runs import apart, exit_code, killed, tiny
from train import __main__ as command
from train import track
from train.config import Config
from train.engine import Trainer


def config_of(path, **changes):
    return tiny(output=str(path), experiment="one", steps=6, measure_every=2, **changes)


def curves(folder):
    """TensorBoard's scalars by name, what was taken back left out."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulators.EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True)
    found.Reload()
    return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_each_kind_of_event_becomes_the_numbers_it_holds():
    step = {"event": "step", "step": 21, "steps": 40, "loss": 0.5, "lr": 1e-3}
    trained = {"event": "trained", "steps": 40, "accuracy": 0.5, "accuracies": {"zoom": 0.25, "canvas": 0.75}, "loss": 0.1}
    assert (track.numbers(step), track.at(step)) == ({"loss": 0.5, "lr": 1e-3}, 21)
    assert track.numbers(trained) == {"accuracy": 0.5, "accuracy zoom": 0.25, "accuracy canvas": 0.75} and track.at(trained) == 40
    assert track.numbers({"event": "note", "note": "going on"}) == {}
    assert track.numbers({"event": "skipped", "step": 3, "samples": [1], "in_a_row": 2}) == {"skipped in a row": 2.0}


def test_the_learning_rate_that_is_told_is_the_one_that_was_used(tmp_path):
    events = []
    Trainer(tiny(steps=2, lr=1e-3, warmup_steps=0, sched="none"), tmp_path / "run", events.append).fit()
    assert [one["lr"] for one in events if one["event"] == "step"] == [1e-3, 1e-3]


def test_tensorboard_has_losses_rates_and_accuracies_of_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    config = config_of(tmp_path)
    command.main(config, track="tensorboard")
    log = [json.loads(line) for line in (tmp_path / "one" / "log.jsonl").read_text().splitlines()]
    found = curves(tmp_path / "one")
    assert [step for step, _ in found["accuracy"]] == [2, 4, 6, 6]
    losses = [(one["step"], one["loss"]) for one in log if one["event"] == "step"]
    assert found["loss"] == [(step, pytest.approx(loss)) for step, loss in losses] and len(losses) == 2
    assert found["lr"][-1][0] == 6


def test_a_killed_run_goes_on_under_its_name_and_no_step_is_there_twice(tmp_path):
    pytest.importorskip("tensorboard")
    config, folder = config_of(tmp_path), tmp_path / "one"
    with track.following("tensorboard", folder, {}, lambda event: None) as tell:
        for step in (2, 4, 6):  # a part that was killed after a checkpoint at 2
            tell({"event": "measured", "step": step, "accuracy": 0.0, "accuracies": {}})
    name = track.name_of(folder)
    killed(config, folder, after=3)
    command.main(config, track="tensorboard")
    assert track.name_of(folder) == name
    assert [step for step, _ in curves(folder)["accuracy"]] == [2, 4, 6, 6]


def test_two_runs_have_two_names(tmp_path):
    assert track.name_of(tmp_path / "a" / "run") != track.name_of(tmp_path / "b" / "run")


def test_a_run_without_a_key_stays_on_this_machine_for_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    told = [{"event": "step", "step": 1, "steps": 2, "loss": 1.0, "lr": 0.1}, {"event": "step", "step": 2, "steps": 2, "loss": 0.5}]

    def run():
        with track.following("wandb", tmp_path, {"seed": 3}, lambda event: None) as tell:
            for event in told:
                tell(event)

    assert exit_code(apart(run)) == 0
    assert exit_code(apart(run)) == 0
    name = track.name_of(tmp_path)
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))) == 2  # for one run


def test_trackio_has_the_run_once_with_its_numbers(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "all"))
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)

    def run(step):
        with track.following("trackio", tmp_path / "run", {"seed": 3}, lambda event: None) as tell:
            tell({"event": "step", "step": step, "steps": 2, "loss": 1.0 / step, "lr": 0.1})

    assert [exit_code(apart(run, step)) for step in (1, 2)] == [0, 0]
    (file,) = (tmp_path / "all").glob("*.db")
    rows = sqlite3.connect(file).execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [(name, step) for name, step, _ in rows] == [(track.name_of(tmp_path / "run"), step) for step in (1, 2)]
    assert [json.loads(text)["loss"] for _, _, text in rows] == [1.0, 0.5]


@pytest.mark.parametrize("name", sorted(track.BEGIN))
def test_a_missing_package_is_named_before_anything_is_trained(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=f"pip install {name}"):
        command.main(Config(output=str(tmp_path), experiment="one"), track=name)
    assert not (tmp_path / "one").exists()


def test_an_unknown_tracker_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        track.needed("tensorbord")
