"""Ending a run from outside: SIGTERM and SIGINT ask for an end, the step is finished and saved, the exit code is 143 or 130."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = signal.SIGTERM, signal.SIGINT


class Stopped(SystemExit):
    """The run was asked to end, and has saved what it had; the exit code is 128 + the number of the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


class Stop:
    """Within it a first SIGTERM or SIGINT sets `signum`, and a second one ends the process at once.

    Where a launcher hands on the signal that all processes got (several processes, a study), it must come a second later to be
    a second one. A process whose parent has died is asked to end, too.
    """

    def __init__(self, several: bool = False) -> None:
        self.signum, self.at = 0, 0.0
        self.grace = 1.0 if several or multiprocessing.parent_process() is not None else 0.0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for signum in ENDING:
            self._set(signum, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, handler)

    def leave_children_alone(self) -> None:
        """Hear of a loader's dead worker where its batch is asked for, not amid an update: torch would raise anywhere."""
        self._set(signal.SIGCHLD, signal.SIG_DFL)

    @property
    def asked(self) -> bool:
        parent = multiprocessing.parent_process()
        if not self.signum and parent is not None and not parent.is_alive():
            self.signum = signal.SIGTERM
        return self.signum != 0

    def _set(self, signum: int, handler: Any) -> None:
        """Set a handler, but for signals that are ignored on purpose (nohup) or belong to what is not Python."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signum) not in (signal.SIG_IGN, None):
            self.before[signum] = signal.signal(signum, handler)

    def _ask(self, signum: int, _: FrameType | None) -> None:
        if self.signum and time.monotonic() - self.at >= self.grace:
            os._exit(128 + signum)
        if not self.signum:
            self.signum, self.at = signum, time.monotonic()


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within it SIGTERM raises `Stopped`, as SIGINT raises KeyboardInterrupt."""

    def end(signum: int, _: FrameType | None) -> None:
        raise Stopped(signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
