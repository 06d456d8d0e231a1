"""Measurements that stay where they were made: one line of JSON each, appended whole, found again by what decides them.

Several processes may append to one file. A line is written under a lock, after what others wrote meanwhile was read; of two that
measured the same, the first stays. What a crash left of a line is cut off before the next is written.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train import cli
from train.durable import sync

Entry = dict[str, Any]


class Kept:
    """The entries of a file, by their key; what is told of one is JSON. `path` None: nothing is kept beyond this process."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.read = path, 0
        self.entries: dict[str, Entry] = {}
        self._look()

    def get(self, key: str) -> Entry | None:
        """What is known of this, from any process."""
        if key not in self.entries:
            self._look()
        return self.entries.get(key)

    def add(self, key: str, entry: Entry) -> Entry:
        """Keep an entry, on the disk; returns that which stays, another's if there is one already."""
        if self.path is None:
            return self.entries.setdefault(key, entry)
        with self._locked() as number:
            self._look()
            if key not in self.entries:
                os.ftruncate(number, self.read)  # what a crash left of a line
                line = json.dumps({"key": key, **entry}).encode() + b"\n"
                if os.pwrite(number, line, self.read) < len(line):
                    raise OSError(f"{self.path}: could not be written whole: free some space; the same command goes on")
                os.fsync(number)
                self._look()
        return self.entries[key]

    def _look(self) -> None:
        """Take in the whole lines that came since the last look."""
        if self.path is None or not self.path.exists():
            return
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self.read:  # it was removed, and begun anew
                self.read = 0
            file.seek(self.read)
            lines = file.read()
        for line in lines[: lines.rfind(b"\n") + 1].splitlines(keepends=True):
            entry = self._parsed(line)
            self.entries.setdefault(entry.pop("key"), entry)
            self.read += len(line)

    def _parsed(self, line: bytes) -> Entry:
        try:
            entry: Entry = json.loads(line)
            if isinstance(entry["key"], str):
                return entry
        except (ValueError, KeyError, TypeError):
            pass
        raise ValueError(f"{self.path}: byte {self.read} begins no line of a measurement: mend or remove the file")

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, open and locked."""
        fresh = not self.path.exists()
        number = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            if fresh:
                sync(self.path.parent)
            yield number
        finally:
            os.close(number)


def beside(folder: Path, name: str, tell: Callable[[str], None]) -> Kept:
    """The file of this name in a folder; where nothing may be written nothing is kept, and that is told."""
    if os.access(folder, os.W_OK):
        return Kept(folder / name)
    tell(f"{folder} may not be written to: measurements are not kept there, and an interrupted evaluation begins anew")
    return Kept(None)


def key_of(*what: Any) -> str:
    """A digest of what decides a measurement."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:32]


def code() -> str:
    """Which code measures: the commit, and what differs from it."""
    changes = cli._git("diff", "HEAD", "--", "rope_nd", "models", "train")
    return f"{cli.commit().removesuffix('+dirty')} {hashlib.sha256(changes.encode()).hexdigest()[:16] if changes else ''}".strip()
