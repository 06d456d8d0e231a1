"""Times of several things measured in turn, and what can be said of them: medians, intervals, lines."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

AHEAD = 20_000_000  # cycles for which a GPU is kept waiting, so that launching is done before the first event


def nothing() -> None:
    """What most subjects need prepared."""


@dataclass(frozen=True)
class Subject:
    """Something to time: `run(prepare())`, of which the preparation does not count."""

    name: str
    run: Callable[[Any], object]
    prepare: Callable[[], Any] = nothing


class Line(NamedTuple):
    """y = slope · x + intercept, and the share of the variance of y that it explains."""

    slope: float
    intercept: float
    r2: float


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def interleaved(
    subjects: Sequence[Subject], *, rounds: int, warmup: int = 3, device: torch.device, seed: int = 0
) -> list[list[float]]:
    """Milliseconds `[subjects][rounds]`: a round runs each subject once, in an order drawn anew; `warmup` rounds are not kept."""
    clock = _events if device.type == "cuda" else _wall
    draw, order = random.Random(seed), list(range(len(subjects)))
    times: list[list[float]] = [[] for _ in subjects]
    with quiet():
        for number in range(warmup + rounds):
            draw.shuffle(order)
            found = clock([subjects[i] for i in order])
            for i, ms in zip(order, found if number >= warmup else ()):
                times[i].append(ms)
    return times


def _wall(subjects: Sequence[Subject]) -> list[float]:
    """By the wall clock; what a run returns is freed outside of its time."""
    times = []
    for subject in subjects:
        given = subject.prepare()
        start = perf_counter_ns()
        kept = subject.run(given)
        times.append((perf_counter_ns() - start) / 1e6)
        del kept
    return times


def _events(subjects: Sequence[Subject]) -> list[float]:
    """By events on the GPU, all launched without waiting."""
    given = [subject.prepare() for subject in subjects]
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in subjects]
    torch.cuda.synchronize()
    torch.cuda._sleep(AHEAD)  # type: ignore[no-untyped-call]
    for subject, prepared, (start, end) in zip(subjects, given, marks):
        start.record()
        subject.run(prepared)
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]


def least_pairs(level: float = 0.95) -> int:
    """The smallest sample that has an interval for its median."""
    return next(n for n in range(1, 1000) if 1 - 2 * 0.5**n >= level)


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval for the median that holds whatever the distribution: the k-th smallest and the k-th largest value.

    k is the largest with 1 - 2 · P(X < k) >= level, X binomial of n trials at 1/2. Raises ValueError for fewer than six values
    (at 95 %).
    """
    n = len(values)
    if n < least_pairs(level):
        raise ValueError(f"{n} values have no interval of {level:.0%}: take at least {least_pairs(level)}")
    below, k = 0.0, 0  # P(X < k + 1) as k grows
    while 1 - 2 * (below + math.comb(n, k) / 2**n) >= level:
        below, k = below + math.comb(n, k) / 2**n, k + 1
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]


def paired(times: Sequence[float], against: Sequence[float]) -> tuple[float, float, float]:
    """Median of the ratios round by round, and its 95 % interval."""
    ratios = [a / b for a, b in zip(times, against)]
    return median(ratios), *interval(ratios)


def fit(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line of least squares through at least two different x."""
    across, up = sum(x) / len(x), sum(y) / len(y)
    square = sum((a - across) ** 2 for a in x)
    if not square:
        raise ValueError(f"a line needs two different sizes, got {sorted(set(x))}")
    slope = sum((a - across) * (b - up) for a, b in zip(x, y)) / square
    intercept = up - slope * across
    total = sum((b - up) ** 2 for b in y)
    missed = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y))
    return Line(slope, intercept, 1 - missed / total if total else 1.0)
