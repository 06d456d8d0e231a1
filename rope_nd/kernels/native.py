"""A kernel in C++ for CPUs: one read and one write, both layouts. Compiled at first use where a compiler is at hand.

`native.cpp` with `native.h` becomes a shared library in `$XDG_CACHE_HOME/rope_nd` (`~/.cache/rope_nd`), made for this processor;
its name carries a hash of the source, flags, compiler and processor. What goes wrong on the way (no compiler, no room, another's
folder) is told by `why_not()` and otherwise silent: PyTorch does the turning then. `ROPE_ND_NATIVE=0` in the environment turns the
kernel off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

Some = tuple[Tensor, ...]
Lie = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
Places = ctypes.Array[ctypes.c_void_p]
Numbers = ctypes.Array[ctypes.c_int64]
Pair = tuple[Tensor, Tensor]
SOURCE, HEADER = (Path(__file__).with_name(name) for name in ("native.cpp", "native.h"))
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")  # rounded as PyTorch does
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 2, torch.float16: 3}
ALONE = 1 << 16  # elements up to which one thread is enough
_lock, _loaded = Lock(), list[tuple[ctypes.CDLL | None, str | None]]()


def supports(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str) -> bool:
    """Tensors on the CPU with a last stride of 1, and a kernel that could be built."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    fits = (
        x.ndim in (4, 5) and x.dtype in KINDS and out.dtype == x.dtype and cos.dtype == sin.dtype == wide and x.device.type == "cpu"
    )
    return fits and all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (x, out, cos, sin)) and _load()[0] is not None


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
    """Turn `x` `[.., B, H, N, D]` into `out` (may be `x`) by tables `[B|1, H|1, N - prefix, P]`; no autograd."""
    groups = x.shape[0] if x.ndim == 5 else 1
    shape = _shape((x, out), (cos, sin), groups, groups, layout, prefix, inverse)
    _turn(_places(x), _places(out), x.dtype, cos, sin, shape)


def turn_some(xs: Some, outs: Some, turned: int, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
    """Turn the first `turned` of xs `[B, H, N, D]` into `outs`, and copy the others."""
    if not _alike(xs, outs):
        for i, (x, out) in enumerate(zip(xs, outs)):
            turn(x, out, cos, sin, layout, prefix, inverse) if i < turned else out.copy_(x)
        return
    shape = _shape((xs[0], outs[0]), (cos, sin), len(xs), turned, layout, prefix, inverse)
    _turn(_list(xs), _list(outs), xs[0].dtype, cos, sin, shape)


def turn_back(gs: Some, ys: Some, outs: Some, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Pair:
    """The gradients of cos and sin, summed over all, those of xs in `outs`: `ys` are xs turned (`inverse` as then).

    Where there are more gradients than `ys`, the last ones are copied.
    """
    how = layout, prefix, inverse
    if not _alike(gs, ys, outs):
        for g, out in list(zip(gs, outs))[len(ys) :]:
            out.copy_(g)
        found = [turn_back((g,), (y,), (out,), cos, sin, *how) for g, y, out in zip(gs, ys, outs)]
        return torch.stack([f[0] for f in found]).sum(0), torch.stack([f[1] for f in found]).sum(0)
    tables = torch.empty(cos.shape, dtype=cos.dtype), torch.empty(cos.shape, dtype=cos.dtype)
    shape = _shape((gs[0], outs[0], ys[0]), (cos, sin, tables[0]), len(gs), len(ys), *how)
    places = [_list(some) for some in (gs, outs, ys)]
    if _built().back(KINDS[gs[0].dtype], *places, *(t.data_ptr() for t in (cos, sin, *tables)), shape):
        raise NotImplementedError(f"the compiler knows no {gs[0].dtype}")
    return tables


def _turn(xs: Places, outs: Places, dtype: torch.dtype, cos: Tensor, sin: Tensor, shape: Numbers) -> None:
    if _built().turn(KINDS[dtype], xs, outs, cos.data_ptr(), sin.data_ptr(), shape):
        raise NotImplementedError(f"the compiler knows no {dtype}")


def _list(some: Some) -> Places:
    return (ctypes.c_void_p * len(some))(*(t.data_ptr() for t in some))


def _places(x: Tensor) -> Places:
    """Where each group of `[G, B, H, N, D]` begins, or `[B, H, N, D]` as the only one."""
    if x.ndim == 4:
        return (ctypes.c_void_p * 1)(x.data_ptr())
    first, step = x.data_ptr(), x.stride(0) * x.element_size()
    return (ctypes.c_void_p * len(x))(*(first + g * step for g in range(len(x))))


def _alike(*several: Some) -> bool:
    return all(t.shape == some[0].shape and t.stride() == some[0].stride() for some in several for t in some[1:])


def why_not() -> str | None:
    """Why there is no kernel, or None if there is one."""
    return _load()[1]


def _shape(rows: Some, tables: Some, groups: int, turned: int, layout: str, prefix: int, inverse: bool) -> Numbers:
    """The numbers that `native.cpp` calls m."""
    lies = tuple((t.shape[-4:], t.stride()[-4:]) for t in (*rows, *tables))
    threads = torch.get_num_threads() if rows[0].numel() > ALONE else 1
    return _numbers(lies, len(rows), groups, turned, layout, prefix, inverse, threads)


@lru_cache(maxsize=256)
def _numbers(
    lies: tuple[Lie, ...], rows: int, groups: int, turned: int, layout: str, prefix: int, inverse: bool, threads: int
) -> Numbers:
    """Those of tensors by their shapes and strides, the first `rows` of which are turned and the others tables."""
    numbers = [groups, *lies[0][0], lies[rows][0][-1], prefix, layout == "half", inverse, threads, turned]
    for _, stride in lies[:rows]:
        numbers += stride[:-1]
    for (samples, heads, *_), (sample, head, token, _) in lies[rows:]:
        numbers += (sample if samples > 1 else 0, head if heads > 1 else 0, token)
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _built() -> ctypes.CDLL:
    library, reason = _load()
    if library is None:
        raise NotImplementedError(f"no native kernel: {reason}")
    return library


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none; built by the first thread that asks, and never again."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(_find())
    return _loaded[0]


def _find() -> tuple[ctypes.CDLL | None, str | None]:
    if os.environ.get("ROPE_ND_NATIVE") == "0":
        return None, "turned off by ROPE_ND_NATIVE=0"
    if os.name != "posix":
        return None, f"not made for {os.name}"
    compiler = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
    if compiler is None:
        return None, "no g++ or clang++ on the path"
    try:
        library = ctypes.CDLL(str(_compiled(compiler, _folder())))
    except (OSError, subprocess.SubprocessError, RuntimeError) as problem:
        return None, str(problem)
    pointer, numbers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)
    library.turn.argtypes = [ctypes.c_int, *[ctypes.POINTER(pointer)] * 2, *[pointer] * 2, numbers]
    library.back.argtypes = [ctypes.c_int, *[ctypes.POINTER(pointer)] * 3, *[pointer] * 4, numbers]
    return library, None


def _folder() -> Path:
    """The user's own cache folder, which nobody else may write to."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "rope_nd"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise RuntimeError(f"{folder} belongs to another user, or others may write to it")
    return folder


def _compiled(compiler: str, folder: Path) -> Path:
    """The library for this source, these flags, this compiler and this processor; made aside and moved to its place at once."""
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=60, check=True).stdout
    parts = (SOURCE.read_bytes(), HEADER.read_bytes(), " ".join(FLAGS).encode(), compiler.encode(), version, _processor().encode())
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]
    library = folder / f"native-{name}.so"
    if library.exists():
        return library
    handle, aside = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        made = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", aside], capture_output=True, text=True, timeout=120)
        if made.returncode:
            raise RuntimeError(f"{compiler} failed: {made.stderr[-500:]}")
        os.replace(aside, library)
    finally:
        Path(aside).unlink(missing_ok=True)
    return library


def _processor() -> str:
    """What the processor can do, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = {line for line in lines if line.startswith(("flags", "Features", "model", "cpu family", "CPU "))}
    return "\n".join([platform.machine(), platform.processor(), *sorted(told)])
