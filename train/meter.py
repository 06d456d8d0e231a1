"""What a model costs while it is measured: seconds, and memory at the peak."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from rope_nd.bench.memory import peak


class Meter:
    """Runs one batch after another, and keeps what each took.

    The first is no example of the others' speed (memory is fetched, kernels are chosen), and shows what is allocated.
    """

    def __init__(self, device: torch.device):
        self.device, self.batches, self.taken = device, [], 0  # (seconds, inputs) of each batch; bytes
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    batches: list[tuple[float, int]]

    def run(self, work: Callable[[], Any], inputs: int) -> Any:
        """`work()`, whose result must be on the CPU for its seconds to count on a GPU."""
        start, result = time.perf_counter(), []
        if self.batches:
            result.append(work())
        else:
            self.taken = peak(lambda: result.append(work()), self.device)
        self.batches.append((time.perf_counter() - start, inputs))
        return result[0]

    @property
    def columns(self) -> dict[str, float]:
        """Of rows.csv, see `train.costs`."""
        each = [1000 * seconds / inputs for seconds, inputs in self.batches]
        cuda = self.device.type == "cuda"
        most = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "images_per_s": round(sum(n for _, n in self.batches) / sum(s for s, _ in self.batches), 1),
            "ms_per_input": round(statistics.median(each[1:] or each), 4),
            "memory_mb": round(most / 2**20, 1),
            "peak_mb": round(self.taken / 2**20, 2),
        }
