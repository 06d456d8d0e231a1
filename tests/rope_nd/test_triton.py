"""The Triton kernel: under Triton's interpreter in a process of its own, as compiled code, and on a GPU where there is one."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rope_nd.kernels import triton as backend

interpreting = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(not backend.installed(), reason="no triton")
interpreted = pytest.mark.skipif(not interpreting, reason="runs in the interpreter's process")
compiled = pytest.mark.skipif(interpreting or not backend.installed(), reason="no triton, or the interpreter's process")
gpu = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
one_step = {torch.float32: 2**-22, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # the interpreter truncates to bfloat16


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def reference(x, cos, sin, layout, prefix, inverse):
    """The definition, in the precision of its input: y1 = x1 c - x2 s, y2 = x1 s + x2 c."""
    pairs, sign = cos.shape[-1], -1 if inverse else 1
    first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    if layout == "half":
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    y, rest = x.clone(), x[..., prefix:, :]
    y[..., prefix:, first] = rest[..., first] * cos - rest[..., second] * sin * sign
    y[..., prefix:, second] = rest[..., first] * sin * sign + rest[..., second] * cos
    return y


def close(y, expected):
    return torch.allclose(y.double(), expected.double(), rtol=one_step[y.dtype], atol=2e-6)


def tables(batch, heads, rows, pairs, device="cpu"):
    angles = 3 * torch.randn(batch, heads, rows, pairs, device=device)
    return angles.cos(), angles.sin()


def packed_view(batch, heads, tokens, channels, dtype):
    """q of a packed projection `[B, N, 3, H, D]`, and the projection."""
    qkv = torch.randn(batch, tokens, 3, heads, channels).to(dtype)
    return qkv, qkv[:, :, 0].transpose(1, 2)


@pytest.mark.slow
@pytest.mark.skipif(interpreting, reason="is that process")
@needs_triton
def test_all_promises_hold_under_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "interpreted", str(Path(__file__))]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "7 passed" in run.stdout, run.stdout[-4000:]


@interpreted
def test_interpreted_turning_equals_float64_in_every_combination():
    """Half of all 768 combinations, so chosen that any eight of the nine choices occur together in every way."""
    shape, pairs = (2, 2, 4), 3
    choices = [("interleaved", "half"), tuple(one_step), *[(0, 1)] * 7]
    for at, chosen in zip(itertools.product(*(range(len(c)) for c in choices)), itertools.product(*choices)):
        layout, dtype, prefix, per_head, per_sample, wider, strided, in_place, inverse = chosen
        if sum(at) % 2:
            continue
        channels = 2 * pairs + 3 * wider
        x = packed_view(*shape, channels, dtype)[1] if strided else torch.randn(*shape, channels).to(dtype)
        cos, sin = tables(2 if per_sample else 1, 2 if per_head else 1, shape[-1] - prefix, pairs)
        expected = reference(x.double(), cos.double(), sin.double(), layout, prefix, inverse)
        out = x if in_place else torch.full_like(x, float("nan"))
        backend.turn(x, out, cos, sin, layout, prefix, bool(inverse))
        assert close(out, expected), chosen


@interpreted
@pytest.mark.parametrize("per_head", [False, True])
def test_interpreted_one_launch_turns_q_and_k_of_a_packed_projection_and_leaves_v(per_head, monkeypatch):
    monkeypatch.setattr(backend, "TILE", 256)  # blocks of four tokens
    qkv = torch.randn(3, 7, 3, 6, 8)
    before, cos, sin = qkv.clone(), *tables(1, 6 if per_head else 1, 6, 4)
    backend.register()
    torch.ops.rope_nd.turn_packed_(qkv, cos, sin, "interleaved", 1, False)
    for part in (0, 1):
        expected = reference(before[:, :, part].transpose(1, 2).double(), cos.double(), sin.double(), "interleaved", 1, False)
        assert close(qkv[:, :, part].transpose(1, 2), expected)
    assert torch.equal(qkv[:, :, 2], before[:, :, 2])


@interpreted
def test_interpreted_gradients_equal_those_of_autograd_in_float64(monkeypatch):
    """Of x and of the angles, summed over samples (in chunks of two) and, where they share a table, over heads."""
    monkeypatch.setattr(backend, "SHARE", 2)
    monkeypatch.setattr(backend, "TILE", 512)
    shape, pairs = (3, 2, 4), 3
    choices = [("interleaved", "half"), (torch.float32, torch.bfloat16), *[(0, 1)] * 4]
    for layout, dtype, prefix, per_head, per_sample, inverse in itertools.product(*choices):
        x, g = (torch.randn(*shape, 7).to(dtype).double() for _ in range(2))
        x.requires_grad_()
        angles = torch.randn(3 if per_sample else 1, 2 if per_head else 1, shape[-1] - prefix, pairs).double().requires_grad_()
        y = reference(x, angles.cos(), angles.sin(), layout, prefix, inverse)
        y.backward(g)
        cos, sin = angles.detach().cos().float(), angles.detach().sin().float()
        back = torch.full(x.shape, float("nan"), dtype=dtype)
        given = (g.to(dtype),), (y.detach().to(dtype),), (back,)
        along = backend.turn_back(*given, cos, sin, layout, prefix, bool(inverse))
        sums = cos * along[1] - sin * along[0]  # along the circle
        assert close(back, x.grad), (layout, dtype, prefix, per_head, per_sample, inverse)
        bound = 1e-5 if dtype == torch.float32 else 0.1
        torch.testing.assert_close(sums.double(), angles.grad, rtol=bound, atol=bound)


@interpreted
def test_interpreted_operator_gives_the_gradients_of_learned_angles():
    x, g, angles = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 4, 8), torch.randn(2, 3, 4)
    ours, theirs = [], []
    for found, kind in ((ours, torch.float32), (theirs, torch.float64)):
        a, t = (v.to(kind, copy=True).requires_grad_() for v in (x, angles))
        turn = backend.turned if kind == torch.float32 else reference
        y = turn(a, t.cos(), t.sin(), "half", 1, False)
        (y * g.to(kind)).sum().backward()
        found += [y.detach(), a.grad, t.grad]
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@interpreted
def test_interpreted_operators_keep_the_rules_of_pytorch():
    backend.register()
    cos, sin = (t.requires_grad_() for t in tables(1, 2, 3, 4))
    x = torch.randn(2, 2, 4, 8, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.rope_nd.turn, (x, cos, sin, "half", 1, False), test_utils=checks)
    plain = [t.detach() for t in (x, x, cos, sin)]
    torch.library.opcheck(torch.ops.rope_nd.turn_back, (*plain, "half", 1, False), test_utils=checks)
    qkv = torch.randn(2, 4, 3, 2, 8)
    torch.library.opcheck(torch.ops.rope_nd.turn_packed_, (qkv, *plain[2:], "half", 1, False), test_utils=checks)


@interpreted
def test_interpreted_operator_names_what_it_cannot_take():
    with pytest.raises(ValueError, match=r"float64.*give x \[B, H, N, D\]"):
        backend.turned(torch.randn(1, 1, 2, 4).double(), *tables(1, 1, 2, 2), "half", 0, False)
    with pytest.raises(ValueError, match="did you mean 'half'"):
        backend.turned(torch.randn(1, 1, 2, 4), *tables(1, 1, 2, 2), "halves", 0, False)
    with pytest.raises(ValueError, match="give prefix=1"):
        backend.turned(torch.randn(1, 1, 3, 4), *tables(1, 1, 2, 2), "half", 0, False)


first_use = """
import sys, torch
import rope_nd.kernels.triton as backend
assert "triton" not in sys.modules and not hasattr(torch.ops.rope_nd, "turn")

def look(graph, inputs):
    print(*(node.target for node in graph.graph.nodes))
    return lambda *args: (args[0],)

def run(x, angles):
    return backend.turned(x, angles.cos(), angles.sin(), "interleaved", 0, False)

torch.compile(run, backend=look, fullgraph=True)(torch.randn(1, 2, 3, 4), torch.randn(3, 2))
"""


@pytest.mark.slow
@compiled
def test_import_loads_no_triton_and_the_first_use_may_be_in_a_compiled_graph_that_stays_whole():
    out = subprocess.run([sys.executable, "-c", first_use], capture_output=True, text=True)
    assert "rope_nd.turn" in out.stdout, out.stderr[-2000:]


def test_it_declines_cpu_tensors_and_does_not_fail_where_triton_is_missing(monkeypatch):
    x, (cos, sin) = torch.randn(1, 1, 2, 4), tables(1, 1, 2, 2)
    assert backend.fits(x, cos, sin)
    assert not backend.supports(x, x, cos, sin, "half")
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert not backend.installed.__wrapped__()


@pytest.mark.parametrize(
    "case",
    ["float64", "strided channels", "wide head", "more pairs than channels", "heads that do not fit", "tables of unlike strides"],
)
def test_it_declines_what_the_kernel_cannot_take(case):
    x, (cos, sin) = torch.randn(2, 4, 3, 8), tables(1, 4, 3, 4)
    if case == "float64":
        x = x.double()
    elif case == "strided channels":
        x = torch.randn(2, 4, 3, 16)[..., ::2]
    elif case == "wide head":
        x = torch.randn(2, 4, 3, 258)
    elif case == "more pairs than channels":
        x = x[..., :6]
    elif case == "heads that do not fit":
        x = x[:, :2]
    else:
        sin = sin.transpose(1, 2).contiguous().transpose(1, 2)
    assert not backend.fits(x, cos, sin)


@compiled
def test_export_keeps_the_operator_for_any_batch_and_number_of_tokens():
    class Turn(torch.nn.Module):
        def forward(self, x, angles):
            return backend.turned(x, angles.cos(), angles.sin(), "half", 1, False)

    free = torch.export.Dim.DYNAMIC
    sizes = ({0: free, 2: free}, {1: free})
    program = torch.export.export(Turn(), (torch.randn(2, 4, 7, 18), torch.randn(1, 6, 9)), dynamic_shapes=sizes)
    assert torch.ops.rope_nd.turn.default in [node.target for node in program.graph.nodes]


class Recorder:
    """Stands in for the kernel, keeps what it was started with."""

    def __getitem__(self, grid):
        return lambda *args, **options: self.__dict__.update(grid=grid, args=args, options=options)


def machine_code(x, out, cos, sin, layout, y=None):
    """PTX for an H100 or H200, for which no GPU is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rope_nd.kernels.triton_code import turn

    call = Recorder()
    backend._launch(call, x, out, cos, sin, layout, 1, False, y)
    kinds = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
    given = dict(zip(turn.arg_names, call.args))
    signature = {n: kinds[a.dtype] if isinstance(a, torch.Tensor) else "i32" for n, a in given.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(call.args) if isinstance(a, torch.Tensor)}
    source = ASTSource(turn, {**signature, **dict.fromkeys(call.options, "constexpr")}, call.options, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.mark.slow
@compiled
@pytest.mark.skipif(importlib.util.find_spec("triton.backends.nvidia") is None, reason="no compiler for NVIDIA")
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_compiler_makes_sixteen_byte_accesses_and_rounds_to_nearest(layout, gradient):
    _, x = packed_view(2, 12, 7, 64, torch.bfloat16)
    ptx = machine_code(x, torch.empty_like(x), *tables(1, 12, 6, 32), layout, x if gradient else None)
    lines = [line.split() for line in ptx.splitlines()]
    accesses = {word for line in lines for word in line if word.startswith(("ld.global", "st.global"))}
    assert accesses == {"ld.global.v4.b32", "st.global.v4.b32"}
    down = {word for line in lines for word in line if word.startswith("cvt") and ".bf16" in word and word.endswith(".f32")}
    assert down and all(word.startswith("cvt.rn.") for word in down)


class TestOnAGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("layout", ["interleaved", "half"])
    @pytest.mark.parametrize("dtype", list(one_step))
    @pytest.mark.parametrize("channels, pairs", [(64, 32), (72, 36), (96, 20), (256, 128), (10, 4)])
    def test_every_form_equals_float64(self, layout, dtype, channels, pairs):
        half_step = {torch.float32: 2**-22, torch.float16: 2**-11, torch.bfloat16: 2**-8}[dtype]
        for per_head, per_sample, prefix, inverse, in_place in itertools.product(*[(0, 1)] * 5):
            qkv = torch.randn(3, 131, 3, 6, channels, device="cuda").to(dtype)
            x = qkv.permute(2, 0, 3, 1, 4)[:2]
            cos, sin = tables(3 if per_sample else 1, 6 if per_head else 1, 131 - prefix, pairs, "cuda")
            expected = reference(x.double(), cos.double(), sin.double(), layout, prefix, inverse)
            out = x if in_place else torch.full_like(x, float("nan"))
            assert backend.supports(x, out, cos, sin, layout)
            v = qkv[:, :, 2].clone()
            backend.turn(x, out, cos, sin, layout, prefix, bool(inverse))
            torch.testing.assert_close(out.double(), expected, rtol=1.01 * half_step, atol=2e-6)
            assert torch.equal(qkv[:, :, 2], v)

    @pytest.mark.parametrize("layout", ["interleaved", "half"])
    @pytest.mark.parametrize("per_head, per_sample", itertools.product([False, True], repeat=2))
    def test_gradients_equal_float64_and_come_out_the_same_twice(self, layout, per_head, per_sample):
        x, g = (torch.randn(20, 6, 131, 64, device="cuda") for _ in range(2))
        angles = torch.randn(20 if per_sample else 1, 6 if per_head else 1, 130, 32, device="cuda")
        found = []
        for kind, turn in ((torch.float64, reference), (torch.float32, backend.turned), (torch.float32, backend.turned)):
            a, t = (v.to(kind, copy=True).requires_grad_() for v in (x, angles))
            turn(a, t.cos(), t.sin(), layout, 1, False).backward(g.to(kind))
            found.append((a.grad, t.grad))
        for exact, once, again in zip(*found):
            torch.testing.assert_close(once.double(), exact, rtol=1e-4, atol=1e-4)
            assert torch.equal(once, again)

    def test_compile_and_export_equal_eager_with_gradients(self):
        def run(x, angles):
            return backend.turned(x * 2, angles.cos(), angles.sin(), "interleaved", 1, False) + 1

        for tokens in (50, 77):  # the second size is dynamic
            found = []
            for turn in (run, torch.compile(run, fullgraph=True)):
                torch.manual_seed(0)
                x = torch.randn(4, 6, tokens, 64, device="cuda", requires_grad=True)
                angles = torch.randn(6, tokens - 1, 32, device="cuda", requires_grad=True)
                y = turn(x, angles)
                y.square().sum().backward()
                found.append((y, x.grad, angles.grad))
            for one, other in zip(*found):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)

        class Turn(torch.nn.Module):
            def forward(self, x, angles):
                return run(x, angles)

        x, angles = x.detach(), angles.detach()
        program = torch.export.export(Turn(), (x, angles))
        torch.testing.assert_close(program.module()(x, angles), run(x, angles))

    def test_compiled_in_place_turning_of_a_packed_projection_equals_eager(self):
        def run(qkv, cos, sin):
            backend.register()
            qkv = qkv * 1
            torch.ops.rope_nd.turn_packed_(qkv, cos, sin, "half", 1, False)
            return qkv

        qkv, (cos, sin) = torch.randn(4, 50, 3, 6, 64, device="cuda"), tables(1, 6, 49, 32, "cuda")
        torch.testing.assert_close(torch.compile(run, fullgraph=True)(qkv, cos, sin), run(qkv, cos, sin), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("layout", ["interleaved", "half"])
    def test_a_large_batch_is_turned_to_its_last_element(self, layout):
        qkv = torch.randn(128, 785, 3, 12, 64, device="cuda", dtype=torch.bfloat16)
        x, (cos, sin) = qkv.permute(2, 0, 3, 1, 4)[:2], tables(1, 12, 784, 32, "cuda")
        expected = reference(x.float(), cos, sin, layout, 1, False)
        out = torch.full_like(x, float("nan"))
        backend.turn(x, out, cos, sin, layout, 1, False)
        torch.testing.assert_close(out.float(), expected, rtol=2**-8 * 1.01, atol=1e-5)

    def test_offsets_beyond_two_to_the_thirty_one_are_right(self):
        x = torch.zeros(3, 1, 2**24, 64, device="cuda", dtype=torch.bfloat16)  # 6 GiB, 3 · 2^30 elements
        x[-1, 0, -5:] = 1
        cos, sin = (t.expand(1, 1, 2**24, 32) for t in tables(1, 1, 1, 32, "cuda"))  # all tokens alike
        expected = reference(x[-1:, :, -9:].float(), cos[:, :, -9:], sin[:, :, -9:], "half", 0, False)
        backend.turn(x, x, cos, sin, "half", 0, False)
        torch.testing.assert_close(x[-1:, :, -9:].float(), expected, rtol=2**-8 * 1.01, atol=1e-5)
        assert not bool(x[:2].any())
