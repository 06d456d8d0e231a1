"""Every backend against float64, in place and not, whatever the strides; what happens when one cannot be built or is wrong."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from rope_nd import RoPE, kernels
from rope_nd.kernels import complex, eager, native, proof, real, staged

dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
backends = {"native": native, "complex": complex, "real": real, "staged": staged}
rounding = {torch.float64: 1e-14, torch.float32: 3e-7, torch.float16: 2**-11 * 1.01, torch.bfloat16: 2**-8 * 1.01}
built = pytest.mark.skipif(native.why_not() is not None, reason=f"no native kernel: {native.why_not()}")


def reference(x: torch.Tensor, angle: torch.Tensor, layout: str, prefix: int) -> torch.Tensor:
    """Pair by pair in float64: x [B, H, N, D], angle [B|1, H|1, N - prefix, P]."""
    out, pairs = x.double().clone(), angle.shape[-1]
    c, s = angle.double().cos(), angle.double().sin()
    for p in range(pairs):
        i, j = (2 * p, 2 * p + 1) if layout == "interleaved" else (p, p + pairs)
        a, b = x[..., prefix:, i].double(), x[..., prefix:, j].double()
        out[..., prefix:, i], out[..., prefix:, j] = a * c[..., p] - b * s[..., p], a * s[..., p] + b * c[..., p]
    return out


def tables(angle: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    return angle.double().cos().to(kind), angle.double().sin().to(kind)


def shaped(kind: str, b: int, h: int, n: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, H, N, D] laid out in memory in several ways."""
    if kind == "packed":
        return torch.randn(b, n, 3, h, d).to(dtype).permute(2, 0, 3, 1, 4)[1]
    if kind == "tokens first":
        return torch.randn(n, b, h, d).to(dtype).permute(1, 2, 0, 3)
    if kind == "odd offset":
        return torch.randn(b * h * n * d + 1).to(dtype)[1:].view(b, h, n, d)
    return torch.randn(b, h, n, d).to(dtype)


def assert_right(backend, x, angle, layout, prefix, inverse, in_place):
    cos, sin = tables(angle, x.dtype)
    out = x if in_place else torch.full_like(x, float("nan"))
    if not backend.supports(x, out, cos, sin, layout):
        return False
    exact = reference(x, -angle if inverse else angle, layout, prefix)
    around, before = x.clone(), exact.abs().amax() if exact.numel() else 1
    backend.turn(x, out, cos, sin, layout, prefix, inverse)
    assert in_place or torch.equal(x, around)
    torch.testing.assert_close(
        out.double(), exact, rtol=rounding[x.dtype], atol=float(3e-7 * before) if x.dtype != torch.float64 else 1e-14
    )
    return True


@built
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("name", ["native", "real"])
def test_real_arithmetic_has_the_bits_of_the_formula(name, layout, in_place):
    x, (cos, sin) = shaped("packed", 2, 3, 7, 44, torch.float32), tables(torch.rand(7, 22) * 9, torch.float32)
    out, cos, sin = x if in_place else torch.empty_like(x), cos[None, None], sin[None, None]
    formula = eager.rotate(x, cos, sin, layout)
    backends[name].turn(x, out, cos, sin, layout, 0, False)
    assert torch.equal(out, formula)


@pytest.mark.parametrize("name", backends)
@pytest.mark.parametrize("dtype", dtypes)
def test_every_backend_equals_float64_whatever_the_strides(name, dtype):
    torch.manual_seed(0)
    taken = 0
    kinds = ("plain", "packed", "tokens first", "odd offset")
    for kind, layout, inverse, in_place in product(kinds, ("interleaved", "half"), (False, True), (False, True)):
        for (b, h, n, d, pairs, prefix), lead in product(
            ((2, 3, 7, 64, 32, 1), (2, 3, 4, 30, 13, 2), (1, 1, 5, 6, 3, 0)), ((1, 1), (1, 0), (0, 1), (0, 0))
        ):
            x = shaped(kind, b, h, n, d, dtype)
            angle = 9 * torch.randn(lead[0] or b, lead[1] or h, n - prefix, pairs)
            taken += assert_right(backends[name], x, angle, layout, prefix, inverse, in_place)
    expected = {
        "native": True,
        "complex": dtype in (torch.float32, torch.float64),
        "real": dtype in (torch.float32, torch.float64),
        "staged": dtype in (torch.float16, torch.bfloat16),
    }
    assert (taken > 0) == expected[name] or (name == "native" and native.why_not())


@pytest.mark.parametrize("name", backends)
@pytest.mark.parametrize("size", [(2, 3, 0, 8), (0, 3, 4, 8), (2, 0, 4, 8), (2, 3, 1, 8), (1, 1, 1, 2)])
def test_empty_tensors_and_single_tokens_are_turned(name, size):
    for dtype, layout, in_place in product(dtypes, ("interleaved", "half"), (False, True)):
        assert_right(
            backends[name], torch.randn(size).to(dtype), torch.randn(1, 1, size[2], size[3] // 2), layout, 0, False, in_place
        )
        if size[2]:
            assert_right(
                backends[name], torch.randn(size).to(dtype), torch.randn(1, 1, 0, size[3] // 2), layout, size[2], False, in_place
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_strides_and_strides_beyond_two_to_the_31_are_turned(dtype):
    odd = torch.randn(2, 3, 4, 11).to(dtype)[..., :9]
    far = (
        torch.empty(2**31 + 64, dtype=torch.bfloat16).as_strided((2, 1, 3, 8), (2**31, 8, 8, 1))
        if dtype == torch.bfloat16
        else None
    )
    for backend, layout, in_place in product(backends.values(), ("interleaved", "half"), (False, True)):
        assert_right(backend, odd, torch.randn(1, 3, 3, 4), layout, 1, False, in_place)
        if far is not None and backend in (native, staged):
            far.copy_(torch.randn(2, 1, 3, 8))
            assert_right(backend, far, torch.randn(1, 1, 3, 4), layout, 0, False, in_place)


@built
@pytest.mark.parametrize(
    "lie", [("packed", "packed", "packed"), ("plain", "packed", "packed"), ("packed", "tokens first", "plain")]
)
@pytest.mark.parametrize("dtype", dtypes)
def test_the_native_gradient_of_angles_is_the_sum_over_what_shares_them(dtype, lie):
    torch.manual_seed(1)
    for layout, inverse, lead in product(("interleaved", "half"), (False, True), ((1, 1), (1, 3), (5, 1), (5, 3))):
        gs, ys, outs = (tuple(shaped(kind, 5, 3, 40, 26, dtype) for _ in range(2)) for kind in lie)
        angle = torch.randn(*lead, 39, 11)
        cos, sin = tables(angle, dtype)
        for out in outs:
            out.fill_(float("nan"))
        along_cos, along_sin = native.turn_back(gs, ys, outs, cos, sin, layout, 1, inverse)
        theta = torch.zeros_like(angle).double()
        for g, y, out in zip(gs, ys, outs):
            opposite = reference(g, angle if inverse else -angle, layout, 1)
            torch.testing.assert_close(out.double(), opposite, rtol=rounding[dtype], atol=2e-6)
            quarter = reference(y, torch.full_like(angle, torch.pi / (-2 if inverse else 2)), layout, 1)  # d y / d angle
            slope = (quarter * g.double())[..., 1:, :22]
            slope = slope.unflatten(-1, (11, 2)).sum(-1) if layout == "interleaved" else slope.unflatten(-1, (2, 11)).sum(-2)
            theta += slope.sum_to_size(angle.shape)
        torch.testing.assert_close(along_cos.double(), -sin.double() * theta, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(along_sin.double(), cos.double() * theta, rtol=1e-5, atol=1e-5)


@built
def test_gradients_of_tensors_that_lie_differently_are_summed_all_the_same():
    g, y = (torch.randn(2, 3, 2, 10, 16).unbind(0) for _ in range(2))
    cos, sin = tables(torch.randn(1, 1, 10, 8), torch.float32)
    other = g[0], g[1].transpose(1, 2).contiguous().transpose(1, 2)
    found = [native.turn_back(gs, y, tuple(map(torch.empty_like, gs)), cos, sin, "half", 0, False) for gs in (g, other)]
    for one, two in zip(*found):
        torch.testing.assert_close(one, two)


@built
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_written_past_the_caches_has_the_same_bits(layout, dtype):
    x, (cos, sin) = torch.randn(8, 6, 900, 64).to(dtype), tables(torch.randn(1, 1, 899, 32), dtype)
    out, odd = torch.full_like(x, float("nan")), torch.full((x.numel() + 1,), float("nan"), dtype=dtype)[1:].view_as(x)
    in_place = x.clone()
    for target in (out, odd):
        native.turn(x, target, cos, sin, layout, 1, False)
    native.turn(in_place, in_place, cos, sin, layout, 1, False)
    assert torch.equal(out, in_place) and torch.equal(odd, in_place)


@built
def test_nan_and_infinity_stay_what_they_are_and_halves_are_rounded_to_even():
    for dtype, layout in product((torch.bfloat16, torch.float16), ("interleaved", "half")):
        x = torch.randn(1, 1, 1, 48).to(dtype)
        x[..., :4] = torch.tensor([float("nan"), float("inf"), -float("nan"), 1.0])
        cos, sin = torch.full((1, 1, 1, 24), 1 + 2**-9 if dtype == torch.bfloat16 else 1 + 2**-12), torch.zeros(1, 1, 1, 24)
        out = torch.empty_like(x)
        native.turn(x, out, cos, sin, layout, 0, False)
        partner = x.float().view(24, 2).flip(-1).flatten() if layout == "interleaved" else x.float().view(2, 24).flip(0).flatten()
        exact = (x.float().flatten() * cos[0, 0, 0, 0] + partner * 0).to(dtype)  # torch rounds to nearest, ties to even
        assert torch.equal(out.flatten().nan_to_num(7, 8, 9), exact.nan_to_num(7, 8, 9))


@built
def test_one_and_two_threads_give_the_same_bits():
    x, angle = torch.randn(3, 4, 100, 64), torch.randn(1, 4, 100, 32)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y, back = torch.empty_like(x), torch.empty_like(x)
        along = native.turn_back((x,), (x.flip(0),), (back,), *tables(angle, x.dtype), "half", 0, False)
        native.turn(x, y, *tables(angle, x.dtype), "half", 0, False)
        found.append((y, back, *along))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@built
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
def test_the_native_kernel_shares_the_thread_pool_of_pytorch():
    native._load()
    runtimes = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len(runtimes) == 1 and "torch" in runtimes.pop()


def test_the_fastest_backend_is_chosen_first():
    x, table = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 4)
    if native.why_not() is None:
        assert kernels.choose(x, x, table, table, "half") is native
    assert kernels.choose(x.to("meta"), x.to("meta"), table, table, "half") is None


class Wrong:
    """A backend that forgets the sign of the second product."""

    supports = staticmethod(lambda *tensors: True)

    @staticmethod
    def turn(x, out, cos, sin, layout, prefix, inverse):
        out.copy_(proof.exactly(x, cos, -sin, layout, prefix, inverse))


class Failing(Wrong):
    @staticmethod
    def turn(*told):
        raise RuntimeError("illegal instruction")


class Late(Wrong):
    """Right out of place, wrong in place."""

    @staticmethod
    def turn(x, out, cos, sin, layout, prefix, inverse):
        out.copy_(proof.exactly(x, cos, sin, layout, prefix, inverse))
        if out is x:
            out[..., -1] += 1


class Backwards(Wrong):
    """The right turn with a wrong gradient."""

    turn = staticmethod(lambda x, out, *told: out.copy_(proof.exactly(x, *told)))

    @staticmethod
    def turn_back(gs, ys, outs, cos, sin, *how):
        for g, out in zip(gs, outs):
            out.copy_(g)
        return torch.zeros_like(cos), torch.zeros_like(sin)


@pytest.mark.parametrize("fault", [Wrong, Failing, Late, Backwards])
def test_a_wrong_or_failing_kernel_is_left_out(fault, monkeypatch):
    monkeypatch.setattr(kernels, "load", lambda name: fault if name == "native" else backends[name])
    monkeypatch.setattr(kernels, "_proofs", {})
    rotation, x = RoPE(16, 2).at(3, 4), torch.randn(1, 2, 12, 16)
    angle = torch.atan2(rotation.sin, rotation.cos)[None, None]
    torch.testing.assert_close(rotation(x).double(), reference(x, angle, "interleaved", 0), rtol=1e-5, atol=1e-5)
    assert kernels._proofs["native", torch.device("cpu"), torch.float32] is False


def test_a_right_kernel_passes_the_proof():
    for backend, dtype in product(backends.values(), dtypes):
        assert proof.is_right(backend, torch.device("cpu"), dtype)


def fake_compiler(folder: Path, body: str) -> str:
    folder.mkdir()
    for name in ("g++", "clang++"):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_a_missing_or_broken_compiler_and_a_cache_that_cannot_be_used_are_told_and_not_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = {}
    with monkeypatch.context() as m:
        m.setenv("PATH", "")
        told["no g++ or clang++"] = native._find()
    for body, says in (
        ("exit 1", "exit status 1"),
        ('[ "$1" = --version ] || exit 3', "failed"),
        ("[ ] || true", "file too short"),
    ):
        with monkeypatch.context() as m:
            m.setenv("PATH", fake_compiler(tmp_path / f"bin{len(told)}", body))
            told[says] = native._find()
    with monkeypatch.context() as m:
        m.setenv("XDG_CACHE_HOME", "/dev/null/cache")
        told["Not a directory"] = native._find()
    shared = tmp_path / "shared" / "rope_nd"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared.parent))
    told["others may write"] = native._find()
    monkeypatch.setenv("ROPE_ND_NATIVE", "0")
    told["turned off"] = native._find()
    for says, (library, reason) in told.items():
        assert library is None and says in reason, (says, reason)
    assert not list(tmp_path.rglob("tmp*.so"))


numbers = """
import torch
from rope_nd import RoPE
from rope_nd.kernels import native
x = torch.arange(2 * 12 * 16.).view(1, 2, 12, 16).sin()
print(float((RoPE(16, 2).at(3, 4)(x) * torch.arange(16)).sum()), native.why_not())
"""


def run(**env: str) -> subprocess.Popen:
    told = [sys.executable, "-c", numbers]
    return subprocess.Popen(told, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@built
def test_processes_that_build_at_once_and_one_without_a_compiler_get_the_same_numbers(tmp_path):
    runs = [run(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)] + [run(XDG_CACHE_HOME=str(tmp_path), PATH="")]
    found = [process.communicate(timeout=120) for process in runs]
    assert all(process.returncode == 0 and not err for process, (_, err) in zip(runs, found)), found
    values, reasons = zip(*(out.split(maxsplit=1) for out, _ in found))
    assert reasons[:2] == ("None\n", "None\n") and "no g++" in reasons[2]
    assert values[0] == values[1] and abs(float(values[0]) - float(values[2])) < 1e-4
    folder = tmp_path / "rope_nd"
    assert len(list(folder.iterdir())) == 1 and folder.stat().st_mode & 0o777 == 0o700
