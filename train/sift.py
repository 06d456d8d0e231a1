"""Bad files in training: counted, named once each and left out, up to a number; and loader workers that die.

A worker does not raise over a bad file: it passes on what is missing, and the main process, which takes batches in their order,
counts. So what is left out, and where it ends, is the same for any number of workers, and no other sample moves.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.bad import BadFile

Batch = tuple[Tensor, ...]  # inputs, labels, and where samples have their own spacing, it
LOST = "exited unexpectedly", "killed by signal"


class WorkerLost(RuntimeError, ValueError):
    """A loader's worker died."""


@dataclass(frozen=True)
class Missing:
    """In place of a sample whose file is bad."""

    index: Any
    why: str


@dataclass(frozen=True)
class Gaps:
    """A batch of what is left, None if nothing is, and what is missing from it."""

    batch: Batch | None
    missing: list[Missing]


def warn(one: Missing) -> None:
    logging.getLogger("train").warning("left out: %s", one.why)


class Ledger:
    """The bad files of a run, by the index of their sample: up to `most`. None: of an evaluation, which leaves nothing out."""

    def __init__(self, most: int | None = None, tell: Callable[[Missing], None] = warn) -> None:
        self.most, self.tell = most, tell
        self.known: dict[Any, str] = {}

    def __reduce__(self) -> Any:
        """What a worker gets, where workers are not forks: an empty one, since bad files are noted where batches arrive."""
        return Ledger, (self.most,)

    def note(self, missing: list[Missing]) -> None:
        for one in missing:
            if one.index in self.known:
                continue
            if self.most is None:
                raise BadFile(one.why)
            if len(self.known) >= self.most:
                raise BadFile(f"{one.why} (bad files so far: {len(self.known) + 1}; --max-bad leaves out {self.most})")
            self.known[one.index] = one.why
            self.tell(one)


class Sifted(Dataset[Any]):
    """A data set that gives a `Missing` where a file is bad."""

    def __init__(self, source: Any, ledger: Ledger | None = None) -> None:
        self.source, self.ledger = source, ledger or Ledger()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.source[index]
        except BadFile as error:
            return Missing(getattr(index, "name", index), str(error))


class Loader(DataLoader[Any]):
    """A DataLoader whose batches lack what is missing, and whose dead workers are a `WorkerLost`."""

    def __init__(self, data: Dataset[Any], ledger: Ledger, **options: Any) -> None:
        super().__init__(data, **options)
        self.ledger = ledger

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        before = signal.getsignal(signal.SIGCHLD)
        found = super().__iter__()
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, before)  # torch would raise over a dead worker anywhere, not where its batch is asked for
        return self._whole(found)

    def _whole(self, found: Any) -> Iterator[Batch]:
        try:
            for batch in self._given(found):
                if isinstance(batch, Gaps):
                    self.ledger.note(batch.missing)
                    batch = batch.batch
                    if batch is None:
                        raise BadFile("no file of a batch can be read: raise --batch-size, or mend them")
                yield batch
        except BaseException:
            if self.num_workers:  # now: when garbage is collected may be late, and torch then waits in vain for some seconds
                found._shutdown_workers()
                self._iterator = None
            raise

    def _given(self, found: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from found
        except (RuntimeError, OSError, EOFError) as error:
            raise (lost(error) if self.num_workers else None) or error from error.__cause__


def lost(error: Exception) -> WorkerLost | None:
    """What to say where an error means that a worker died; None where it is another. A worker's own error begins with Caught."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
    if said.startswith("Caught ") or (isinstance(error, RuntimeError) and not any(words in said for words in LOST)):
        return None
    if not isinstance(error, RuntimeError):  # what it had sent cannot be fetched from it any more
        said = f"DataLoader worker exited unexpectedly, {said}"
    return WorkerLost(
        f"a worker of the loader died: {said} (too little memory? lower --workers or --batch-size; --workers 0 needs none)"
    )
