"""How much a piece of work allocates at its peak, beyond what was there before."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def peak(run: Callable[[], object], device: torch.device) -> int:
    """Bytes at the highest point while `run()` goes on, less those before it, allocated through torch on `device`."""
    return _cuda(run) if device.type == "cuda" else _cpu(run)


def _cuda(run: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = run()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


def _cpu(run: Callable[[], object]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would tell of each start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        kept = run()
        del kept
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    return max(0, *accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())), 0)
