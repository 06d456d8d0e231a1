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
    shape = _shape(x, cos, layout, prefix, inverse, (x, out), (cos, sin))
    failed = _built().turn(KINDS[x.dtype], x.data_ptr(), out.data_ptr(), cos.data_ptr(), sin.data_ptr(), shape)
    if failed:
        raise NotImplementedError(f"the compiler knows no {x.dtype}")


def turn_back(gs: Some, ys: Some, outs: Some, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Pair:
    """The gradients of cos and sin, summed over all, those of xs in `outs`: `ys` are xs turned (`inverse` as then)."""
    if any(t.shape != some[0].shape or t.stride() != some[0].stride() for some in (gs, ys, outs) for t in some[1:]):
        found = [turn_back((g,), (y,), (out,), cos, sin, layout, prefix, inverse) for g, y, out in zip(gs, ys, outs)]
        return torch.stack([f[0] for f in found]).sum(0), torch.stack([f[1] for f in found]).sum(0)
    tables = torch.empty(cos.shape, dtype=cos.dtype), torch.empty(cos.shape, dtype=cos.dtype)
    shape = _shape(gs[0], cos, layout, prefix, inverse, (gs[0], outs[0], ys[0]), (cos, sin, tables[0]), groups=len(gs))
    places = [(ctypes.c_void_p * len(gs))(*(t.data_ptr() for t in some)) for some in (gs, outs, ys)]
    if _built().back(KINDS[gs[0].dtype], *places, *(t.data_ptr() for t in (cos, sin, *tables)), shape):
        raise NotImplementedError(f"the compiler knows no {gs[0].dtype}")
    return tables


def why_not() -> str | None:
    """Why there is no kernel, or None if there is one."""
    return _load()[1]


def _shape(
    x: Tensor, cos: Tensor, layout: str, prefix: int, inverse: bool, rows: Some, tables: Some, groups: int = 1
) -> ctypes.Array[ctypes.c_int64]:
    """The numbers that `native.cpp` calls m."""
    lies = tuple((t.shape, t.stride()) for t in (*rows, *tables))
    return _numbers(lies, len(rows), layout, prefix, inverse, groups, torch.get_num_threads() if x.numel() > ALONE else 1)


@lru_cache(maxsize=256)
def _numbers(
    lies: tuple[Lie, ...], rows: int, layout: str, prefix: int, inverse: bool, groups: int, threads: int
) -> ctypes.Array[ctypes.c_int64]:
    """Those of tensors by their shapes and strides, the first `rows` of which are turned and the others tables."""
    shape, pairs = lies[0][0], lies[rows][0][-1]
    numbers = [*((groups,) if len(shape) == 4 else ()), *shape, pairs, prefix, layout == "half", inverse, threads]
    for _, stride in lies[:rows]:
        numbers += stride[:-1] if len(stride) == 5 else (0, *stride[:-1])
    for (samples, heads, *_), (sample, head, token, _) in lies[rows:]:
        numbers += (0, sample if samples > 1 else 0, head if heads > 1 else 0, token)
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
    library.turn.argtypes = [ctypes.c_int, *[pointer] * 4, numbers]
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
