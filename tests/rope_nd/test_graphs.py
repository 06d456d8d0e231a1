"""Compiled and exported graphs: one frame, dynamic extents, no complex number, the same numbers."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code

from rope_nd import RoPE

setups = {
    "axial": {},
    "mixed": {"freqs": "mixed", "heads": 2},
    "yarn, log temperature": {"scaling": "yarn", "trained_extent": (4, 4), "temperature": "log"},
    "ntk, half layout": {"scaling": "ntk", "trained_extent": (4, 4), "layout": "half", "temperature": "yarn"},
    "centred, interpolated": {"coordinates": {"normalize": "centred", "by": "shortest"}, "scaling": "pi", "trained_extent": (4, 4)},
    "truncated": {"scaling": {"truncate": {"keep": 0.75}}},
}
extents = [(4, 4), (5, 7), (8, 6), (3, 9), (12, 12)]


class Scores(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.rope = RoPE(16, 2, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, 32, H, W]
        q = x.flatten(2).mT.unflatten(-1, (2, 16)).transpose(1, 2)  # [B, 2, N, 16]
        q, k = self.rope.at(*x.shape[-2:]).qk(q, q)
        return q @ k.mT


def complex_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    values = [(node, node.meta.get("val", node.meta.get("example_value"))) for node in graph.nodes]
    return [node for node, value in values if isinstance(value, torch.Tensor) and value.is_complex()]


@pytest.mark.parametrize("setup", setups)
def test_compiles_in_one_frame_over_five_extents_with_at_most_two_compilations(setup):
    torch._dynamo.reset()
    model, graphs = Scores(**setups[setup]), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    counter = CompileCounterWithBackend("aot_eager")
    watched = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    counted = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for extent in extents:
        x = torch.randn(2, 32, *extent)
        torch.testing.assert_close(counted(x), model(x), atol=1e-5, rtol=1e-5)
        watched(x)
    assert counter.frame_count <= 2
    assert graphs and not any(complex_nodes(graph.graph) for graph in graphs)


def test_compiled_code_gives_the_same_outputs_and_gradients():
    torch._dynamo.reset()
    model = Scores(freqs="mixed", heads=2)
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for extent in extents:
        x = torch.randn(1, 32, *extent)
        grads = []
        for run in (model, compiled):
            model.zero_grad()
            run(x).square().sum().backward()
            grads.append(model.rope.freqs.grad.clone())
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-2)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("setup", setups)
@pytest.mark.parametrize("strict", [False, True])
def test_exports_with_dynamic_extents(setup, strict):
    model = Scores(**setups[setup])
    sides = {2: torch.export.Dim("h", min=2, max=64), 3: torch.export.Dim("w", min=2, max=64)}
    program = torch.export.export(model, (torch.randn(2, 32, 4, 5),), dynamic_shapes={"x": sides}, strict=strict)
    assert not complex_nodes(program.graph)
    for extent in extents:
        x = torch.randn(2, 32, *extent)
        torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("setup", setups)
def test_onnx_runtime_gives_the_same_numbers_at_any_extent(setup, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = Scores(**setups[setup]).eval()
    sides = {2: torch.export.Dim("h", min=2, max=64), 3: torch.export.Dim("w", min=2, max=64)}
    program = torch.onnx.export(model, (torch.randn(2, 32, 4, 5),), dynamo=True, dynamic_shapes={"x": sides}, verbose=False)
    program.save(tmp_path / "scores.onnx")
    session = runtime.InferenceSession(tmp_path / "scores.onnx")
    for extent in extents:
        x = torch.randn(2, 32, *extent) / 32**0.5
        got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        torch.testing.assert_close(got, model(x).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_compiled_layers_share_one_table():
    """Inductor would make cosines anew in each kernel that reads them."""
    torch._dynamo.reset()
    rope = RoPE(16, 2)

    def layers(x: torch.Tensor) -> torch.Tensor:
        rotation = rope.at(4, 4)
        for _ in range(3):
            x = (rotation(x) @ x.mT).softmax(-1) @ x
        return x

    _, code = run_and_get_code(torch.compile(layers), torch.randn(1, 2, 16, 16))
    assert sum("cos(" in kernel for kernel in code[0].split("async_compile.cpp")) == 1
