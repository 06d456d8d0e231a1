"""Messages for bad input: each names the value and the mend."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def choose(what: str, value: object, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`, else raise a ValueError with the nearest name."""
    names = list(options)
    if isinstance(value, str) and value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what} {value!r}: choose one of {', '.join(map(repr, names))}{hint}")


def per_axis(what: str, value: object, axes: int) -> tuple[float, ...]:
    """One number for all axes, or one number an axis -> a tuple of `axes` floats."""
    values: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    if len(values) != axes:
        raise ValueError(f"{what}={value!r} has {len(values)} entries: give one number, or {axes}, one an axis")
    if not all(isinstance(v, (int, float)) and v == v and abs(v) != float("inf") for v in values):
        raise ValueError(f"{what}={value!r} holds something that is not a finite number")
    return tuple(float(v) for v in values)


def check_extent(extent: tuple[int, ...], what: str = "extent") -> tuple[int, ...]:
    """Token counts per axis: whole numbers of at least one (symbolic sizes pass)."""
    if not extent:
        raise ValueError(f"{what} is empty: give the number of tokens along each axis, for example 14, 14")
    for n in extent:
        if isinstance(n, bool) or not isinstance(n, (int, torch.SymInt)) or n < 1:
            raise ValueError(f"{what}={extent!r}: each entry must be a whole number of at least 1, got {n!r}")
    return extent


def check_options(what: str, given: Iterable[str], *takers: Callable[..., object], also: Iterable[str] = ()) -> None:
    """Raise ValueError for a name that is no keyword-only argument of any of `takers`."""
    found = (p for taker in takers for p in inspect.signature(taker).parameters.values())
    known = sorted({p.name for p in found if p.kind is p.KEYWORD_ONLY} | set(also))
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"{what} has no option {name!r}{hint}: it takes {', '.join(known)}")


def readable(x: Tensor) -> bool:
    """Can the values be looked at now (not while compiling, exporting, under vmap, on meta or in a CUDA capture)?"""
    if torch.compiler.is_compiling() or x.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def check_widths(head_dim: int, rotary_dim: int, axes: int, heads: int | None, prefix_tokens: int) -> None:
    counts = (("head_dim", head_dim, 2), ("axes", axes, 1), ("heads", heads or 1, 1), ("prefix_tokens", prefix_tokens, 0))
    for name, value, least in counts:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
    if head_dim % 2 or rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(
            f"head_dim={head_dim}, rotary_dim={rotary_dim}: channels are turned in pairs, so rotary_dim must be even, from 2 to "
            f"head_dim; the nearest that works is {max(2, min(rotary_dim, head_dim) // 2 * 2)}"
        )


def check_trained(extent: tuple[int, ...] | None, axes: int) -> tuple[int, ...] | None:
    """A trained extent: one token count an axis, or None."""
    if extent is None:
        return None
    if not isinstance(extent, (tuple, list)):
        raise ValueError(f"trained_extent={extent!r}: give the token count of each axis, for example {(14,) * axes}")
    trained = check_extent(tuple(extent), "trained_extent")
    if len(trained) != axes:
        raise ValueError(f"trained_extent={trained!r} has {len(trained)} entries for axes={axes}")
    return trained
