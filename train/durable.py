"""Files that are whole or not there, and on the disk: written under a hidden name, flushed, renamed, and the folder flushed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class File:
    """An open new file that counts and digests what is written to it.

    A write that fails is kept in `failed` and raised by `put`: torch's archive writer would make another error of it.
    """

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.size, self.digest = 0, hashlib.sha256()
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        left = whole = memoryview(data).cast("B")
        while left and self.failed is None:
            try:
                left = left[os.write(self.number, left) :]
            except OSError as error:
                self.failed = error
        self.digest.update(whole)
        self.size += len(whole)
        return len(whole)

    def flush(self) -> None:
        """Nothing is held back."""


def put(path: Path, fill: Callable[[File], Any]) -> dict[str, Any]:
    """Write a new file, down to the disk; returns its size and sha256."""
    file = File(path)
    try:
        fill(file)
        if file.failed is not None:
            raise file.failed
        os.fsync(file.number)
    finally:
        os.close(file.number)
    return {"size": file.size, "sha256": file.digest.hexdigest()}


def publish(path: Path, fill: Callable[[File], Any] | str | bytes) -> None:
    """Write a file that is whole, or as it was before, whatever happens meanwhile."""
    write = fill if callable(fill) else lambda file: file.write(fill.encode() if isinstance(fill, str) else fill)
    hidden = path.with_name(f".{path.name}.tmp")
    hidden.unlink(missing_ok=True)
    put(hidden, write)
    os.replace(hidden, path)
    sync(path.parent)


def hold(path: Path, patience: float = 30.0) -> int:
    """Lock a file until this process ends, however it ends; one that another process holds is waited for, then an error."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by a loader's workers
            return number
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(number)
                raise ValueError(
                    f"{path.parent}: another process is training there: wait for it, or give another --experiment"
                ) from None
            time.sleep(0.1)


def sync(folder: Path) -> None:
    """Flush the names in a folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def digest(path: Path) -> str:
    """The sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()
