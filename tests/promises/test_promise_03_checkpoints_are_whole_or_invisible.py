"""Promises 3 to 8 and 11: what is on the disk is a whole checkpoint or none, whatever happens while it is written or afterwards."""

import contextlib
import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.promises.runs import apart, die, exit_code, killed, same, state, tiny
from train import checkpoint, resume
from train.checkpoint import CheckpointError
from train.engine import Trainer

CALLS = "open", "write", "fsync", "replace", "rename", "mkdir", "close"
FILES = "model.safetensors", "ema.safetensors", "state.pt", "config.json", "progress.json", "manifest.json"


def content(step: int) -> dict:
    random = torch.Generator().manual_seed(step)
    weights = {name: torch.randn(5, 3, generator=random) for name in ("a", "b")}
    state = {"optimizer": {"state": {0: torch.randn(4, generator=random)}, "lr": 0.1 * step}}
    told = {"config": {"lr": 1.0}, "progress": {"step": step}}
    return {"tensors": {"model": weights, "ema": {"a": weights["a"] + 1}}, "state": state, "told": told}


def write(root: Path, step: int, **more) -> Path:
    return checkpoint.write(root, step, **content(step), **more)


def is_step(found: checkpoint.Saved | None, step: int) -> bool:
    wanted = content(step)
    return found is not None and found.step == step and same([found.tensors, found.state, found.told], list(wanted.values()))


class Injected:
    """Patches the calls that reach the disk; `then(name, arguments)` is run before call number `at`."""

    def __init__(self, monkeypatch, at: int, then) -> None:
        self.count, self.at, self.then = 0, at, then
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name, real):
        def call(*given, **options):
            number, self.count = self.count, self.count + 1
            if number == self.at:
                self.then()
            return real(*given, **options)

        return call


def fail(number: int = errno.EIO) -> None:
    raise OSError(number, os.strerror(number))


def interrupt() -> None:
    raise KeyboardInterrupt


def calls_of_a_write(tmp_path, monkeypatch) -> int:
    write(tmp_path / "counted", 1)
    with monkeypatch.context() as patch:
        counted = Injected(patch, -1, fail)
        write(tmp_path / "counted", 2, keep=1)
    assert not any(path.name.startswith(".") for path in (tmp_path / "counted").iterdir())
    return counted.count


def test_promise_03_a_fault_at_any_write_sync_or_rename_leaves_the_old_or_the_new_one_whole(tmp_path, monkeypatch):
    count = calls_of_a_write(tmp_path, monkeypatch)
    assert count > 40
    write(tmp_path / "first", 1)
    faults, first = 0, 0
    for at in range(count):
        root = Path(shutil.copytree(tmp_path / "first", tmp_path / str(at)))
        with monkeypatch.context() as patch:
            Injected(patch, at, fail)
            try:
                write(root, 2, keep=1)
            except CheckpointError as error:
                faults, first = faults + 1, first + ("step-000000002" in str(error))
        found, broken = checkpoint.newest(root)
        assert not broken and (is_step(found, 1) or is_step(found, 2)), at
        assert checkpoint.read(checkpoint.chosen(root)).step in (1, found.step), at
        if at % 5 == 0:
            write(root, 3, keep=1)
            assert is_step(checkpoint.newest(root)[0], 3) and [path.name for path in checkpoint.steps(root)] == ["step-000000003"]
    assert faults >= count - 10 and first == faults  # a close that fails after its sync harms nothing


def test_promise_03_killed_at_any_write_sync_or_rename_leaves_the_old_or_the_new_one_whole(tmp_path, monkeypatch):
    count = calls_of_a_write(tmp_path, monkeypatch)
    seen = set()
    for at in range(0, count, 5):
        root = tmp_path / str(at)
        write(root, 1, keep=1)

        def work(root=root, at=at):
            Injected(monkeypatch, at, die)
            write(root, 2, keep=1)

        assert exit_code(apart(work)) == -signal.SIGKILL
        found, broken = checkpoint.newest(root)
        assert not broken and (is_step(found, 1) or is_step(found, 2)), at
        seen.add(found.step)
        checkpoint.tidy(root)
        assert all(path.name.startswith(("step-", "latest")) for path in root.iterdir())
    assert seen == {1, 2}


def test_promise_03_replacing_a_checkpoint_of_the_same_step_never_leaves_none(tmp_path, monkeypatch):
    write(tmp_path / "first", 1)
    for at in range(200):
        root = Path(shutil.copytree(tmp_path / "first", tmp_path / str(at)))
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt, RuntimeError):
            injected = Injected(patch, at, interrupt)  # which cleans nothing up
            write(root, 1, keep=1)
        checkpoint.tidy(root)
        assert is_step(checkpoint.newest(root)[0], 1), at
        if injected.count <= at:
            return
    raise AssertionError("a write has fewer calls than that")


def test_promise_03_latest_moves_after_the_checkpoint_is_there(tmp_path, monkeypatch):
    write(tmp_path, 1)
    real, order = checkpoint.prove, []
    monkeypatch.setattr(checkpoint, "prove", lambda path: (order.append((tmp_path / "latest").read_text()), real(path))[1])
    write(tmp_path, 2)
    assert order == ["step-000000001"] and (tmp_path / "latest").read_text() == "step-000000002"


def spoilt(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "missing":
        return file.unlink()
    if how.startswith("flipped"):
        data[len(data) * int(how[-1]) // 10] ^= 1 << int(how[-1]) % 8
    file.write_bytes({"empty": b"", "cut": bytes(data[:-7]), "longer": bytes(data) + b"x"}.get(how, bytes(data)))


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "longer", "flipped 0", "flipped 3", "flipped 5", "flipped 9"])
@pytest.mark.parametrize("name", FILES)
def test_promise_04_a_file_that_is_not_as_it_was_written_is_refused_by_name(name, how, tmp_path):
    path = write(tmp_path, 7)
    spoilt(path / name, how)
    with pytest.raises(CheckpointError, match=f"{path / name}: .*auto"):
        checkpoint.read(path)


def test_promise_04_every_single_flipped_bit_of_the_manifest_is_seen(tmp_path):
    path = write(tmp_path, 7)
    raw = (path / "manifest.json").read_bytes()
    for at in range(len(raw)):
        (path / "manifest.json").write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        with pytest.raises(CheckpointError):
            checkpoint.read(path)
    (path / "manifest.json").write_bytes(raw)
    assert is_step(checkpoint.read(path), 7)


def test_promise_04_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    path = write(tmp_path, 7)
    path.rename(tmp_path / "step-000000008")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.read(tmp_path / "step-000000008")


def test_promise_05_auto_passes_over_broken_ones_says_so_and_ends_with_the_same_bits(tmp_path):
    config = tiny()
    Trainer(config, tmp_path / "whole").fit()
    killed(config, tmp_path / "parts", 7)
    spoilt(tmp_path / "parts/checkpoints/step-000000006/model.safetensors", "flipped 5")
    told: list[str] = []
    trainer = Trainer(config, tmp_path / "parts", lambda event: told.append(event.get("note", "")))
    assert trainer.progress.step == 4
    assert "passed over" in told[0] and "step-000000006/model.safetensors" in told[0] and "step-000000004" in told[1]
    trainer.fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


def test_promise_05_where_no_checkpoint_is_whole_nothing_begins_anew(tmp_path):
    config = tiny(keep=1)
    killed(config, tmp_path, 3)
    spoilt(tmp_path / "checkpoints/step-000000002/state.pt", "cut")
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        Trainer(config, tmp_path)


def test_promise_05_an_explicit_path_that_is_missing_or_broken_is_an_error_never_a_fresh_start(tmp_path):
    config = tiny()
    killed(config, tmp_path, 5)
    root = tmp_path / "checkpoints"
    for path in (root / "step-000000003", tmp_path / "nowhere", tmp_path):
        (root / "latest").unlink(missing_ok=True)
        with pytest.raises(CheckpointError, match=path.name):
            Trainer(config, tmp_path / "new", resume=str(path))
    spoilt(root / "step-000000004" / "state.pt", "cut")
    with pytest.raises(CheckpointError, match=r"state\.pt: cut off"):
        Trainer(config, tmp_path / "new", resume=str(root / "step-000000004"))
    assert not (tmp_path / "new").exists()
    assert Trainer(config, tmp_path / "new", resume=str(root / "step-000000002")).progress.step == 2
    with pytest.raises(ValueError, match="newer checkpoints"):
        Trainer(config, tmp_path, resume=str(root / "step-000000002"))
    with pytest.raises(ValueError, match="holds checkpoints"):
        Trainer(config, tmp_path, resume="none")


def test_promise_06_checkpoints_are_ordered_by_their_step_never_by_name_or_time(tmp_path):
    steps = (9, 10, 999_999_999, 1_000_000_000)
    for at, step in enumerate(steps):
        path = write(tmp_path, step, keep=9)
        os.utime(path, (10**9 - at, 10**9 - at))
    (tmp_path / "step-x").mkdir()
    assert [int(path.name[5:]) for path in checkpoint.steps(tmp_path)] == list(steps)
    assert max(path.name for path in checkpoint.steps(tmp_path)) == "step-999999999"
    assert checkpoint.newest(tmp_path)[0].step == 1_000_000_000


@pytest.mark.parametrize("room", [0, 100, 1000, 2000])
def test_promise_07_a_full_disk_is_said_clearly_and_the_checkpoint_before_still_loads(room, tmp_path, monkeypatch):
    write(tmp_path, 1)
    left, real = [room], os.write

    def full(number, data):
        if not left[0]:
            fail(errno.ENOSPC)
        done = real(number, data[: left[0]])
        left[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(CheckpointError, match=r"step-000000002: could not be written \(No space left on device\): free some"):
            write(tmp_path, 2)
    assert is_step(checkpoint.newest(tmp_path)[0], 1) and is_step(checkpoint.read(checkpoint.chosen(tmp_path)), 1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000001", "latest"}


def test_promise_08_old_ones_go_after_the_new_one_was_read_back(tmp_path, monkeypatch):
    for step in (1, 2):
        write(tmp_path, step)
    real = os.rename

    def flipping(old, new):
        spoilt(Path(old) / "state.pt", "flipped 5")
        real(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", flipping)
        with pytest.raises(CheckpointError, match=r"step-000000003/state\.pt"):
            write(tmp_path, 3, keep=1)
    assert (tmp_path / "latest").read_text() == "step-000000002"
    found, broken = checkpoint.newest(tmp_path)
    assert is_step(found, 2) and len(broken) == 1 and is_step(checkpoint.read(tmp_path / "step-000000001"), 1)


def test_promise_08_the_newest_the_last_and_the_best_stay(tmp_path):
    for step in range(1, 8):
        write(tmp_path, step, keep=3, best=2 if step >= 2 else 1)
    assert [path.name[-1] for path in checkpoint.steps(tmp_path)] == list("2567")
    assert (tmp_path / "best").read_text() == "step-000000002" and (tmp_path / "latest").read_text() == "step-000000007"


def test_promise_08_the_best_of_a_run_is_the_one_it_measured_best(tmp_path):
    events: list[dict] = []
    Trainer(tiny(measure_every=2, save_every=1, keep=1, lr=0.01), tmp_path, events.append).fit()
    measured = {event["step"]: event["accuracy"] for event in events if event["event"] == "measured"}
    best = max(measured, key=lambda step: (measured[step], -step))
    assert sorted(measured) == [2, 4, 6, 8]
    assert {path.name for path in checkpoint.steps(tmp_path / "checkpoints")} == {f"step-{best:09d}", "step-000000008"}
    assert (tmp_path / "checkpoints" / "best").read_text() == f"step-{best:09d}"


def test_promise_11_weights_that_are_not_finite_are_never_saved(tmp_path):
    config = tiny()
    trainer = Trainer(config, tmp_path)
    look = trainer._look

    def poisoned(**told: bool) -> None:
        if trainer.progress.step == 4:
            next(trainer.model.parameters()).data.view(-1)[0] = float("nan")
        look(**told)

    trainer._look = poisoned
    with pytest.raises(CheckpointError, match=r"step 4: .* is not finite"):
        trainer.fit()
    assert [path.name for path in checkpoint.steps(tmp_path / "checkpoints")] == ["step-000000002"]
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-000000002"
    assert not (tmp_path / "checkpoints" / "best").exists() and not (tmp_path / "model.safetensors").exists()


def test_saving_takes_at_most_a_twentieth_of_the_time():
    now = [0.0]
    clock = resume.Clock(None, lambda: now[0])
    assert not clock.due(5)
    now[0] = 61
    assert clock.due(6)
    now[0] = 71  # it took ten seconds
    clock.saved(61)
    now[0] = 270
    assert not clock.due(7)
    now[0] = 271
    assert clock.due(8)
