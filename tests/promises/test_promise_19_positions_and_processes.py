"""Promises 19 to 21: any size loads, phases keep their precision, several processes compute what one does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rope_nd import RoPE, list_encodings, wrap
from rope_nd.registry import ROTARY
from tests.promises.runs import apart, exit_code, free_port, tiny
from train.engine import Trainer

VIT = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
FIXED = [name for name in list_encodings() if name in ROTARY]


def vit(encoding: str = "axial", size: int = 32, **options: Any) -> Any:
    torch.manual_seed(0)
    return wrap(
        timm.create_model("vit_tiny_patch16_224", img_size=size, class_token=False, global_pool="avg", **VIT), encoding, **options
    )


@pytest.mark.parametrize("encoding", FIXED)
def test_promise_19_a_rotary_model_loads_strictly_at_any_height_and_width(encoding):
    trained, other = vit(encoding).eval(), vit(encoding, size=72).eval()
    weights = {name: value for name, value in trained.state_dict().items() if name != "pos_embed"}
    assert "pos_embed" in other.state_dict()  # timm's own table, of no use and of the size of its grid
    missing, unexpected = other.load_state_dict(weights, strict=False)
    assert missing == ["pos_embed"] and not unexpected
    x = torch.randn(1, 3, 24, 56)
    with torch.no_grad():
        other.encoding = trained.encoding  # what was trained at 32 px is stretched from there
        assert torch.equal(other(x), trained(x))
        trained.load_state_dict(trained.state_dict(), strict=True)


def test_promise_19_and_at_any_length():
    clips = vit("axial", axes=3, tubelet=2, frames=4).eval()
    again = vit("axial", axes=3, tubelet=2, frames=8).eval()
    again.load_state_dict(clips.state_dict(), strict=True)
    x = torch.randn(1, 3, 6, 40, 24)
    with torch.no_grad():
        assert torch.equal(again(x), clips(x))


@pytest.mark.parametrize("encoding", ["axial", "mixed", "golden", "simplex", "interleaved", "spiral"])
def test_promise_20_phases_stay_float32_under_casts_autocast_and_meta(encoding):
    told = {} if encoding in ("axial", "interleaved", "spiral") else {"heads": 2}
    exact = RoPE(16, 1, encoding, theta=100.0, **told).at(2000)
    cast = RoPE(16, 1, encoding, theta=100.0, **told).bfloat16()
    assert cast.at(2000).cos.dtype == torch.float32
    if encoding != "mixed":  # learned frequencies are parameters, and a cast is a cast
        assert torch.equal(cast.at(2000).cos, exact.cos) and torch.equal(cast.at(2000).sin, exact.sin)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(RoPE(16, 1, encoding, theta=100.0, **told).at(2000).cos, exact.cos)
    with torch.device("meta"):
        made = RoPE(16, 1, encoding, theta=100.0, **told)
    made.to_empty(device="cpu")
    made.reset_parameters()
    assert torch.equal(made.at(2000).cos, exact.cos)


def test_promise_20_positions_above_256_stay_distinct():
    rotation = RoPE(64, 1, theta=10000.0).bfloat16().at(4096)
    assert len(rotation.cos.unique(dim=0)) == 4096
    q = torch.ones(1, 1, 4096, 64, dtype=torch.bfloat16)
    turned = rotation(q)[0, 0]
    assert (turned[1:] != turned[:-1]).any(-1).all()


def gradients(folder: Path, rank: int, world: int) -> None:
    """One step of a share of eight samples, in float64; what is left of the gradients is written."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    model: Any = vit("mixed").double()
    images = torch.randn(8, 3, 32, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(8) % 3
    if world > 1:
        dist.init_process_group("gloo")
    runner = DistributedDataParallel(model) if world > 1 else model
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    torch.nn.functional.cross_entropy(runner(images[mine]), labels[mine]).backward()
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    if rank == 0:
        torch.save(found, folder / f"{world}.pt")
    if world > 1:
        dist.destroy_process_group()


class Told(Trainer):
    """Keeps the loss of every step."""

    def _update(self, loss: float, *rest: Any) -> int:
        self.losses = [*getattr(self, "losses", []), loss]
        return super()._update(loss, *rest)


def losses(folder: Path, rank: int, world: int) -> None:
    """Twenty steps of SGD of the real trainer, the batch shared out; each rank's losses and the accuracy are written."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK=str(rank), WORLD_SIZE=str(world))
    config = tiny(steps=20, opt="sgd", lr=0.05, batch_size=16 // world, train_samples=48, val_samples=21, encoding="mixed")
    run = Told(config, folder / f"run-{world}")
    accuracy = run.fit()["accuracy"]
    torch.save((run.losses, accuracy), folder / f"losses-{world}-{rank}.pt")


def several(work: Any, folder: Path, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", str(free_port()))
    assert [exit_code(process) for process in [apart(work, folder, rank, world) for rank in range(world)]] == [0] * world


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_promise_21_the_gradients_of_several_processes_are_those_of_one(world, tmp_path, monkeypatch):
    for number in (1, world):
        several(gradients, tmp_path, number, monkeypatch)
    one, more = (torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in (1, world))
    assert one.keys() == more.keys() and any("encoding" in name for name in one)
    for name, value in one.items():
        torch.testing.assert_close(more[name], value, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_promise_21_twenty_steps_have_the_losses_of_one_process_and_each_sample_counts_once(world, tmp_path, monkeypatch):
    for number in (1, world):
        several(losses, tmp_path, number, monkeypatch)
    told = [torch.load(tmp_path / f"losses-{world}-{rank}.pt", weights_only=True) for rank in range(world)]
    one, accuracy = torch.load(tmp_path / "losses-1-0.pt", weights_only=True)
    shared = [sum(parts) / world for parts in zip(*(found for found, _ in told))]
    assert len(one) == len(shared) == 20 and one[0] > one[-1]
    torch.testing.assert_close(torch.tensor(shared), torch.tensor(one), rtol=0, atol=1e-5)
    assert told[0][1] == accuracy and round(accuracy * 21, 6) % 1 == 0  # of 21 samples, an odd number, each once
