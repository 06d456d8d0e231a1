"""Wrapped models shared out over two processes: one training step is that of one process with the whole batch.

The test starts this file twice as a program; each process trains every model in every way and the first writes what came out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rope_nd import wrap
from tests.rope_nd.wrapping.zoo import build, images

PROCESSES = 2
cases = {
    "vit, mixed": ("vit", "mixed", {"temperature": "log"}),
    "rope-vit, native": ("rope-vit, mixed", "native", {}),
    "eva-02, axial": ("eva-02", "axial", {"scaling": "yarn"}),
    "vit, learned": ("vit", "learned", {}),
    "beit, alibi": ("beit", "alibi", {"keep_pos_embed": "bias"}),
}
learned = {
    "vit, mixed": ["encoding.0.freqs", "encoding.1.freqs"],
    "rope-vit, native": ["rope.freqs"],
    "eva-02, axial": [],
    "vit, learned": ["encoding.table"],
    "beit, alibi": ["blocks.0.attn.relative_position_bias_table", "blocks.1.attn.relative_position_bias_table"],
}
ways = ["replicated", "sharded", "sharded, checkpointed"]
Outcome = dict[str, dict[str, torch.Tensor] | torch.Tensor]


def model_of(case: str) -> nn.Module:
    kind, name, options = cases[case]
    torch.manual_seed(0)  # a learned table begins at random
    return wrap(build(kind), name, **options).train()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def step(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Outcome:
    """One training step, then a forward pass at another resolution: gradients, weights, outputs."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    nn.functional.cross_entropy(model(x), labels).backward()
    inner = getattr(model, "module", model)
    gradients = {name: whole(p.grad) for name, p in inner.named_parameters() if p.grad is not None}
    optimizer.step()
    weights = {name: whole(p) for name, p in inner.named_parameters()}
    with torch.no_grad():
        outputs = model.eval()(images(2, 3, 64, 24, seed=5))
    return {"gradients": gradients, "weights": weights, "outputs": whole(outputs)}


def shared_out(case: str, way: str, rank: int) -> Outcome:
    """That step in this process, with its part of the batch."""
    model = model_of(case)
    if way == "replicated":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (PROCESSES,))
        model.set_grad_checkpointing(way.endswith("checkpointed"))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    mine = slice(2 * rank, 2 * rank + 2)
    return step(model, batch()[mine], labels()[mine])


def batch() -> torch.Tensor:
    return images(2 * PROCESSES, 3, 32, 48)


def labels() -> torch.Tensor:
    return torch.arange(2 * PROCESSES)


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=PROCESSES)
    found = {(case, way): shared_out(case, way, rank) for case in cases for way in ways}
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[tuple[str, str], Outcome]:
    folder, root = tmp_path_factory.mktemp("processes"), Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(said)[-5000:]
    return torch.load(folder / "found.pt")


@pytest.fixture(scope="module")
def expected() -> dict[str, Outcome]:
    return {case: step(model_of(case), batch(), labels()) for case in cases}


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5 * max(1.0, b.abs().max().item()), rtol=1e-5)


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize("case", cases)
def test_a_step_of_two_processes_is_that_of_one_with_the_whole_batch(case, way, found, expected):
    got, known = found[case, way], expected[case]
    assert set(got["gradients"]) == set(known["gradients"]) and set(got["weights"]) == set(known["weights"])
    assert all(known["gradients"][name].abs().max() > 1e-6 for name in learned[case])
    start = dict(model_of(case).named_parameters())
    assert set(start) == set(known["weights"])
    for name, gradient in known["gradients"].items():
        close(got["gradients"][name], gradient)
        close(got["weights"][name], known["weights"][name])
        assert not torch.equal(got["weights"][name], start[name]) or not gradient.any()
    for name in set(known["weights"]) - set(known["gradients"]):  # what was dropped is left alone
        assert torch.equal(got["weights"][name], start[name]) and not start[name].requires_grad


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize("case", cases)
def test_then_they_take_another_resolution(case, way, found, expected):
    assert found[case, way]["outputs"].shape == (2, 5)
    close(found[case, way]["outputs"], expected[case]["outputs"])


def test_half_of_the_batch_would_not_have_given_that(expected):
    for case, known in expected.items():
        other = step(model_of(case), batch()[:2], labels()[:2])
        assert any((other["gradients"][n] - g).abs().max() > 1e-3 for n, g in known["gradients"].items())


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]))
