"""Archives of others, unpacked: nothing lands outside of the folder, and neither the bytes nor the files can be more than told.

.zip and .whl; .tar, plain or with gzip, bzip2 or xz (.tgz, ..); .deb, whose files `dpkg-deb` gives as a tar.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from train.bad import naming

MOST_BYTES, MOST_FILES = 2 * 2**30, 100_000
PADDING = 2**20  # no tar is padded with as much
PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}  # by the first two bytes
ELSEWHERE = tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError


class Counted:
    """A stream that may give `most` bytes; or files, of which `count` may come, with as many bytes in all."""

    def __init__(self, most: int, count: int, stream: Any = None) -> None:
        self.most, self.count, self.stream = most, count, stream
        self.bytes = self.files = 0

    def add(self, size: int, files: int = 0) -> None:
        self.bytes, self.files = self.bytes + size, self.files + files
        if self.bytes > self.most or self.files > self.count:
            raise ValueError(f"holds more than {self.most:,} bytes or {self.count:,} files, which is all that is unpacked")

    def read(self, size: int) -> bytes:
        data: bytes = self.stream.read(size)
        self.add(len(data))
        return data


def unpack(archive: Path, to: Path, *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
    """All files of an archive into a folder. Links that lead out of it are left out, any other way out is an error."""
    to.mkdir(parents=True, exist_ok=True)
    with naming(f"{archive}: cannot be unpacked"):
        if head(archive) == b"PK":
            with zipfile.ZipFile(archive) as packed:
                for info in zipped(packed, most_bytes, most_files):
                    write(packed, info, to)
            return
        with tar(archive, most_bytes, most_files) as (packed, members):
            for member in members:
                with suppress(*ELSEWHERE):
                    packed.extract(member, to, filter="data")


def read(archive: Path, *names: str, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> list[bytes]:
    """The bytes of these files of an archive."""
    with naming(f"{archive}: cannot be read"):
        found: dict[str, bytes] = {}
        if head(archive) == b"PK":
            with zipfile.ZipFile(archive) as packed:
                infos = zipped(packed, most_bytes, most_files)
                found = {info.filename: packed.read(info) for info in infos if info.filename in names}
        else:
            with tar(archive, most_bytes, most_files) as (packed, members):
                wanted = (member for member in members if member.isreg() and member.name in names)
                found = {member.name: packed.extractfile(member).read() for member in wanted}
        if missing := [name for name in names if name not in found]:
            raise ValueError(f"it holds no {', '.join(missing)}")
        return [found[name] for name in names]


def zipped(packed: zipfile.ZipFile, most_bytes: int, most_files: int) -> list[zipfile.ZipInfo]:
    """The files of a zip archive, counted before any is unpacked: zipfile reads no more of a file than its header says."""
    counted, infos = Counted(most_bytes, most_files), [info for info in packed.infolist() if not info.is_dir()]
    for info in infos:
        counted.add(info.file_size, files=1)
    return infos


def write(packed: zipfile.ZipFile, info: zipfile.ZipInfo, to: Path) -> None:
    inside = PurePosixPath(info.filename)
    if inside.is_absolute() or ".." in inside.parts or "\\" in info.filename or ":" in info.filename:
        raise ValueError(f"{info.filename!r} would lie outside of the folder")
    (to / inside).parent.mkdir(parents=True, exist_ok=True)
    with packed.open(info) as source, (to / inside).open("wb") as target:
        shutil.copyfileobj(source, target)


@contextmanager
def tar(archive: Path, most_bytes: int, most_files: int) -> Iterator[tuple[Any, Iterator[tarfile.TarInfo]]]:
    """A tar archive as a stream, and its members, each to be used before the next is asked for."""
    counted = Counted(most_bytes, most_files)

    def members() -> Iterator[tarfile.TarInfo]:
        for member in packed:
            counted.add(member.size, files=1)
            yield member

    with stream(archive) as source, tarfile.open(fileobj=Counted(most_bytes, most_files, source), mode="r|") as packed:  # type: ignore[call-overload]
        yield packed, members()


@contextmanager
def stream(archive: Path) -> Iterator[Any]:
    """The bytes of a tar archive, not packed any more."""
    if archive.suffix != ".deb":
        with PACKED.get(head(archive), open)(archive, "rb") as source:
            yield source
        return
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as unpacking:
        source, said = unpacking.stdout, unpacking.stderr
        try:
            yield source
            if len(source.read(PADDING)) == PADDING:  # type: ignore[union-attr]
                raise ValueError("does not end where it should")
        except BaseException:
            unpacking.kill()
            raise
        if unpacking.wait():
            raise ValueError(said.read().decode(errors="replace").strip())  # type: ignore[union-attr]


def head(archive: Path) -> bytes:
    """The first two bytes, by which archives are told apart."""
    with archive.open("rb") as file:
        return file.read(2)
