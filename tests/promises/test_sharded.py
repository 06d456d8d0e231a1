"""Several processes that share a model out by rows (FSDP2) compute what one does, and what they save any number can go on from."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rope_nd import wrap
from tests.promises.runs import TINY, apart, die, exit_code, free_port, same, state, tiny
from train import checkpoint, pieces, processes
from train.checks import SHARED
from train.config import Config
from train.engine import Trainer
from train.modelling import load
from train.optimisation import optimizer
from train.sharding import share_out, whole

SMOOTH = tiny(fsdp=True, batch_size=4, encoding="mixed", opt="sgd", lr=0.05, model_ema=True, model_ema_decay=0.9)  # nothing drawn
RANDOM = tiny(fsdp=True, batch_size=4, encoding="mixed", drop_path=0.2, mixup=0.4, model_ema=True, model_ema_decay=0.9)


def ranks(work: Any, world: int, *given: Any) -> list[int]:
    """Exit codes of `work(rank, *given)` on processes that found each other."""
    port = free_port()

    def one(rank: int) -> None:
        told = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in told.items()})
        torch.set_num_threads(1)
        work(rank, *given)

    return [exit_code(process, 300) for process in [apart(one, rank) for rank in range(world)]]


def train(rank: int, config: Config, folder: Path, after: int = 0, dying: tuple[int, ...] = ()) -> None:
    """A run, of which some processes kill themselves when they have done `after` steps; what is said and told is written."""
    folder.mkdir(parents=True, exist_ok=True)
    events: list[dict[str, Any]] = []
    sys.stderr = (folder / f"said-{rank}").open("w")
    trainer = Trainer(config, folder, events.append)
    look = trainer._look

    def looking(**told: bool) -> None:
        if trainer.progress.step == after and rank in dying:
            die()
        look(**told)

    trainer._look = looking
    trainer.fit()
    (folder / f"told-{rank}.json").write_text(json.dumps(events))


def run(world: int, config: Config, folder: Path, after: int = 0, dying: tuple[int, ...] = ()) -> list[int]:
    """Exit codes of a run whose batches are four samples by `world` processes' shares, the same whatever `world` is."""
    return ranks(train, world, dataclasses.replace(config, batch_size=8 // world), folder, after, dying)


def apart_by(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max((one[name].double() - two[name].double()).abs().max().item() for name in one)


def vit(encoding: str = "mixed") -> Any:
    torch.manual_seed(0)
    options = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 3, "img_size": 32}
    return wrap(timm.create_model("vit_tiny_patch16_224", class_token=False, global_pool="avg", **options), encoding)


def gradients(rank: int, folder: Path, world: int, encoding: str, rowed: str) -> None:
    """One step of a share of eight samples, in float64; the parameter whose name ends in `rowed` is shared out by rows."""
    if world > 1:
        dist.init_process_group("gloo")
    model = vit(encoding).double()
    if world > 1:
        share_out(model, torch.device("cpu"), world)
        shared = next(value for name, value in model.named_parameters() if name.endswith(rowed))
        assert isinstance(shared, DTensor) and sum(processes.from_all(shared.to_local().numel(), world)) == shared.numel()
    images = torch.randn(8, 3, 32, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    torch.nn.functional.cross_entropy(model(images[mine]), (torch.arange(8) % 3)[mine]).backward()
    grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    found = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}
    if rank == 0:
        safetensors.torch.save_file(found, folder / f"{world}.safetensors")
    if world > 1:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "world, encoding, rowed, rtol",
    [
        (2, "mixed", "freqs", 1e-6),
        (2, "fire", "log_c", 1e-4),  # of one row, which one process has; biases are float32
        pytest.param(4, "mixed", "freqs", 1e-6, marks=pytest.mark.slow),
    ],
)
def test_the_gradients_of_shared_weights_are_those_of_one_process(world, encoding, rowed, rtol, tmp_path):
    for number in (1, world):
        assert ranks(gradients, number, tmp_path, number, encoding, rowed) == [0] * number
    one, more = (safetensors.torch.load_file(tmp_path / f"{number}.safetensors") for number in (1, world))
    assert one.keys() == more.keys() and any(name.endswith(rowed) and value.any() for name, value in one.items())
    for name, value in one.items():
        torch.testing.assert_close(more[name], value, rtol=rtol, atol=1e-9, msg=name)


class Told(Trainer):
    """Keeps the loss of every step."""

    def _update(self, loss: float, *rest: Any) -> int:
        self.losses = [*getattr(self, "losses", []), loss]
        return super()._update(loss, *rest)


def losses(rank: int, config: Config, folder: Path) -> None:
    trainer = Told(config, folder / "run")
    event = trainer.fit()
    (folder / f"{rank}.json").write_text(json.dumps([trainer.losses, event["accuracy"]]))


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_twenty_steps_of_shared_weights_have_the_losses_of_one_process_and_each_test_sample_counts_once(world, tmp_path):
    usual = {"steps": 20, "opt": "sgd", "lr": 0.05, "train_samples": 48, "val_samples": 21, "encoding": "mixed", "fsdp": True}
    for number in (1, world):
        (tmp_path / str(number)).mkdir()
        assert ranks(losses, number, tiny(**usual, batch_size=16 // number), tmp_path / str(number)) == [0] * number
    ((one, accuracy),) = (json.loads(file.read_text()) for file in (tmp_path / "1").glob("*.json"))
    told = [json.loads((tmp_path / f"{world}/{rank}.json").read_text()) for rank in range(world)]
    shared = [sum(parts) / world for parts in zip(*(found for found, _ in told))]
    assert len(one) == len(shared) == 20 and one[0] > one[-1]
    torch.testing.assert_close(torch.tensor(shared), torch.tensor(one), rtol=0, atol=1e-5)
    assert told[0][1] == accuracy and round(accuracy * 21, 6) % 1 == 0  # of 21 samples, an odd number, each once


@pytest.fixture(scope="module")
def wounded(tmp_path_factory) -> Path:
    """`whole`: two processes to the end; `parts`: the second of two was killed in step 7, when step 6 was saved."""
    root = tmp_path_factory.mktemp("shared")
    assert run(2, RANDOM, root / "whole") == [0, 0]
    begun = time.monotonic()
    assert run(2, RANDOM, root / "parts", 7, (1,)) == [1, -signal.SIGKILL]
    assert time.monotonic() - begun < 250
    return root


def test_where_one_process_is_killed_the_other_says_so_and_ends_and_what_was_saved_stays(wounded):
    said = (wounded / "parts/said-0").read_text().strip()
    assert said.startswith("error: process 0 of 2 cannot go on, another one was lost") and len(said.splitlines()) == 1
    found, broken = checkpoint.newest(wounded / "parts/checkpoints")
    assert found is not None and found.step == 6 and not broken
    assert not (wounded / "parts/model.safetensors").exists()


def test_two_processes_go_on_with_what_two_have_saved_to_the_same_bits(wounded, tmp_path):
    shutil.copytree(wounded / "parts", tmp_path / "run")
    assert run(2, RANDOM, tmp_path / "run") == [0, 0]
    assert same(state(tmp_path / "run"), state(wounded / "whole"))


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_a_broken_shard_is_named_and_the_checkpoint_before_it_taken(how, wounded, tmp_path):
    root = Path(shutil.copytree(wounded / "parts/checkpoints", tmp_path / "checkpoints"))
    file = root / "step-000000006/model.2-of-2.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes({"flipped": data, "cut": data[:-7]}.get(how, b""))
    if how == "missing":
        file.unlink()
    found, (error,) = checkpoint.newest(root)
    assert found is not None and found.step == 4 and str(file) in str(error)
    if how == "flipped":
        assert run(2, RANDOM, tmp_path) == [0, 0]
        assert same(state(tmp_path), state(wounded / "whole"))
        notes = [event["note"] for event in json.loads((tmp_path / "told-0.json").read_text()) if event["event"] == "note"]
        assert "passed over" in notes[0] and file.name in notes[0] and "step-000000004" in notes[1]


def test_one_process_without_sharing_goes_on_with_what_two_have_shared(tmp_path):
    one = dataclasses.replace(SMOOTH, batch_size=8, fsdp=False)
    Trainer(one, tmp_path / "whole").fit()
    assert run(2, SMOOTH, tmp_path / "parts", 5, (0, 1)) == [-signal.SIGKILL] * 2
    told: list[dict[str, Any]] = []
    trainer = Trainer(one, tmp_path / "parts", told.append)
    assert trainer.progress.step == 4 and "processes was 2, is 1" in told[1]["note"]
    trainer.fit()
    assert apart_by(load(tmp_path / "parts")[0].state_dict(), load(tmp_path / "whole")[0].state_dict()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("opt", ["sgd", "momentum"])
def test_two_then_four_then_two_then_one_process_give_the_weights_of_the_uninterrupted_run(opt, tmp_path):
    config = dataclasses.replace(SMOOTH, opt=opt)
    assert run(2, config, tmp_path / "whole") == [0, 0]
    for world, after in ((2, 3), (4, 5), (2, 7)):
        assert run(world, config, tmp_path / "parts", after, tuple(range(world))) == [-signal.SIGKILL] * world
    found, _ = checkpoint.newest(tmp_path / "parts/checkpoints")
    assert found is not None and [part["processes"] for part in found.told["facts"]["parts"]] == [2, 4, 2]
    assert run(1, config, tmp_path / "parts") == [0]
    one, two = state(tmp_path / "parts"), state(tmp_path / "whole")
    assert one[0] == two[0] == 8 and all(apart_by(one[1][name], two[1][name]) < 1e-6 for name in ("model", "ema"))
    assert apart_by(one[4], two[4]) < 1e-6


@pytest.mark.slow
def test_processes_with_whole_weights_go_on_as_another_number_and_shared(tmp_path):
    config = dataclasses.replace(SMOOTH, fsdp=False)
    assert run(2, config, tmp_path / "whole") == [0, 0]
    for world, shared, after in ((2, False, 3), (4, True, 5), (4, False, 7)):
        changed = dataclasses.replace(config, fsdp=shared)
        assert run(world, changed, tmp_path / "parts", after, tuple(range(world))) == [-signal.SIGKILL] * world
    assert run(2, config, tmp_path / "parts") == [0, 0]
    assert apart_by(state(tmp_path / "parts")[4], state(tmp_path / "whole")[4]) < 1e-6


def test_another_batch_on_all_processes_is_another_run(wounded, tmp_path):
    root = shutil.copytree(wounded / "parts/checkpoints", tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="batch_size='8 on all processes', not '4 on all processes'"):
        Trainer(RANDOM, root.parent)
    assert Trainer(dataclasses.replace(RANDOM, batch_size=8), root.parent).progress.step == 6


def failing(rank: int, config: Config, folder: Path) -> None:
    """The disk of the second process is full when step 4 is saved."""
    real = os.write

    def full(number: int, data: Any) -> int:
        if rank == 1 and (folder / "run/checkpoints/.step-000000004.tmp").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(number, data)

    os.write = full
    with pytest.raises(checkpoint.CheckpointError, match=r"could not be written \(No space left on device\)"):
        Trainer(config, folder / "run").fit()
    (folder / str(rank)).touch()


def test_where_one_process_cannot_write_all_end_with_its_error_and_the_checkpoint_before_is_whole(tmp_path):
    assert ranks(failing, 2, SMOOTH, tmp_path) == [0, 0]
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists()
    found, broken = checkpoint.newest(tmp_path / "run/checkpoints")
    assert found is not None and found.step == 2 and not broken
    assert not [path for path in (tmp_path / "run/checkpoints").glob(".*")]


@pytest.mark.slow
def test_one_process_with_a_gradient_that_is_not_finite_stops_the_update_of_all(tmp_path):
    def work(rank: int, folder: Path) -> None:
        events: list[dict[str, Any]] = []
        trainer = Trainer(dataclasses.replace(SMOOTH, steps=4, save_every=1, keep=9), folder, events.append)
        objective = trainer.objective

        def spoilt(*given: Any) -> torch.Tensor:
            return objective(*given) * (float("nan") if rank == 1 and trainer.progress.step == 2 else 1)

        spoilt.told = objective.told
        trainer.objective = spoilt
        trainer.fit()
        if rank == 0:
            assert [event["step"] for event in events if event["event"] == "skipped"] == [3]
        assert trainer.progress.skipped == 1

    assert ranks(work, 2, tmp_path) == [0, 0]
    two, three = (checkpoint.read(tmp_path / f"checkpoints/step-{step:09d}") for step in (2, 3))
    assert same(two.tensors, three.tensors)
    assert apart_by(three.tensors["model"], checkpoint.read(tmp_path / "checkpoints/step-000000004").tensors["model"]) > 0


def steps(rank: int, opts: tuple[str, ...], folder: Path) -> None:
    """Three steps of some optimisers, on shared weights and on those of one process, in float64 (muon's matrices in float32)."""
    dist.init_process_group("gloo")
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mine, found = slice(rank * 4, rank * 4 + 4), {}
    for opt in opts:
        alone, shared = vit().double(), vit().double()
        share_out(shared, torch.device("cpu"), 2)
        told = [(model, optimizer(model, opt, 0.01, 0.05), at) for model, at in ((alone, slice(0, 8)), (shared, mine))]
        for _ in range(3):
            for model, stepping, at in told:
                torch.nn.functional.cross_entropy(model(images[at]), (torch.arange(8) % 3)[at]).backward()
                stepping.step()
                stepping.zero_grad()
        state = [value for held in told[1][1].state.values() for value in held.values() if isinstance(value, DTensor)]
        rows = all(value.placements == (dist.tensor.Shard(0),) for value in state)
        full = {name: value.full_tensor() for name, value in shared.state_dict().items()}
        found[opt] = [rows, apart_by(full, alone.state_dict())]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_optimiser_that_is_allowed_gives_the_weights_of_one_process(part, tmp_path):
    assert ranks(steps, 2, SHARED[part::4], tmp_path) == [0, 0]
    found = json.loads((tmp_path / "0.json").read_text())
    assert tuple(found) == SHARED[part::4]
    for opt, (rows, error) in found.items():
        assert rows and error < (1e-5 if "muon" in opt else 1e-9), (opt, error)


WAYS = {
    "accumulated": {"grad_accum_steps": 2, "train_samples": 80},
    "bfloat16": {"amp": True},
    "recomputed": {"grad_checkpointing": True, "opt": "muon", "measure_every": 4},
    "bias": {"encoding": "swin"},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_train_gives_the_weights_of_one_process(way, tmp_path):
    config = dataclasses.replace(SMOOTH, **WAYS[way])
    assert run(1, config, tmp_path / "one") == [0] and run(2, config, tmp_path / "two") == [0, 0]
    one, two = (load(tmp_path / name)[0].state_dict() for name in ("one", "two"))
    assert apart_by(one, two) < (1e-3 if way == "bfloat16" else 1e-5)


def test_the_whole_model_is_on_the_first_process_and_equals_the_shared_one(tmp_path):
    def work(rank: int, folder: Path) -> None:
        dist.init_process_group("gloo")
        from train.modelling import build

        torch.manual_seed(rank)  # the first process's values are everyone's
        model = build(SMOOTH)
        wanted = {name: value.clone() for name, value in model.state_dict().items()}
        share_out(model, torch.device("cpu"), 2)
        found = whole(model, SMOOTH, rank)
        assert (found is None) == (rank > 0)
        assert found is None or same(dict(found.state_dict()), wanted)
        dist.destroy_process_group()

    assert ranks(work, 2, tmp_path) == [0, 0]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"torchcompile": True}, "--fsdp does not go with --torchcompile"),
        ({"channels_last": True}, "--fsdp does not go with --channels-last"),
        ({"opt": "adafactor"}, "--fsdp with opt 'adafactor'.*adamw"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_the_flags_name(changes, says):
    with pytest.raises(ValueError, match=says):
        tiny(fsdp=True, **changes)


class Strength(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strength = torch.nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    "make, says", [(lambda: timm.create_model("resnet10t"), "batch norms"), (Strength, "strength is one number")]
)
def test_models_that_cannot_be_shared_out_are_refused(make, says):
    made = make()
    with pytest.raises(ValueError, match=f"--fsdp: .*{says}.*leave --fsdp out"):
        share_out(made, torch.device("cpu"), 2)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_rows_in_several_files_are_read_as_those_of_the_whole(count, world, tmp_path):
    given = torch.arange(count * 6.0).view(count, 2, 3)
    for rank, rows in enumerate(given.chunk(world)):
        start, stop = pieces.span(count, rank, world)
        assert torch.equal(rows, given[start:stop])
        header = {"rows": json.dumps({"a": [start, count]})}
        safetensors.torch.save_file({"a": rows.contiguous()}, tmp_path / f"{rank}.safetensors", header)
    found = pieces.load(tmp_path.iterdir())["a"]
    assert found.shape == given.shape and torch.equal(found[:], given)
    for start in range(count + 1):
        for stop in range(start, count + 1):
            assert torch.equal(found[start:stop], given[start:stop])
    if world > 1 and count > 1:
        (tmp_path / "1.safetensors").unlink()
        with pytest.raises(ValueError, match="a has "):
            pieces.load(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["whole", "shared"])
def test_where_one_of_three_commands_is_killed_the_others_end_and_the_same_commands_go_on(shared, tmp_path):
    """Three processes, for with gloo torch's own end was seen to wait for the lost one."""
    fixed = ["--model-kwargs", *TINY, "--img-size", "16", "--classes", "0123", "--train-samples", "90", "--val-samples", "20"]
    fixed += ["--batch-size", "3", "--threads", "1", "--workers", "0", "--save-every", "5", "--steps", "400", "--tests", "zoom"]
    command = [sys.executable, "-m", "train", *fixed, "--output", str(tmp_path), "--experiment", "run", *["--fsdp"] * shared]
    root = tmp_path / "run/checkpoints"

    def begin() -> list[subprocess.Popen[str]]:
        told = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        each = [{**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(3)]
        options = {"cwd": Path(__file__).parents[2], "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return [subprocess.Popen(command, env=env, **options) for env in each]

    one = begin()
    until = time.monotonic() + 200
    while not checkpoint.steps(root) and time.monotonic() < until:
        time.sleep(0.05)
    one[1].kill()
    said = [process.communicate(timeout=100)[1] for process in one]
    assert [process.returncode for process in one] == [1, -signal.SIGKILL, 1]
    assert all("another one was lost" in said[rank] for rank in (0, 2))
    reached = checkpoint.steps(root)[-1]
    two = begin()
    until = time.monotonic() + 200
    while checkpoint.steps(root)[-1] <= reached and time.monotonic() < until:
        time.sleep(0.05)
    for process in two:
        process.kill()
        process.communicate()
    found, broken = checkpoint.newest(root)
    assert found is not None and not broken and found.path > reached
