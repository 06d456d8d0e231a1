"""Checkpoints that are whole or invisible: folders `step-000000123` with a manifest of what is in them.

A checkpoint is written under a hidden name, each file and folder flushed to the disk, and then renamed; only then does the file
`latest` name it. What a crash leaves behind is a hidden folder, which the next run removes. `manifest.json` holds size and sha256
of every file, since neither torch.load nor safetensors notices a flipped bit. Files:

    NAME.safetensors    tensors by name        `tensors={"model": {..}, "ema": {..}}`
    NAME.k-of-n.safetensors    the same, by rows, each written by one of n processes (see `train.pieces`)
    state.pt            a dict that `torch.load(weights_only=True)` takes: optimiser, schedule
    NAME.json           anything JSON          `told={"config": {..}, "metrics": {..}}`
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from train import pieces
from train.durable import publish, put, sync
from train.manifest import MANIFEST, MEND, CheckpointError, compare, folder_name, sealed, unsealed
from train.pieces import Piecewise
from train.processes import each, first

NAMED = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Saved:
    """What a whole checkpoint holds; `pieces` in place of `tensors`, where it is read by rows."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    told: dict[str, Any]
    pieces: dict[str, dict[str, Piecewise]] = field(default_factory=dict)


def write(
    root: Path,
    step: int,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    told: Mapping[str, Any],
    keep: int = 2,
    best: int | None = None,
    rank: int = 0,
    world: int = 1,
) -> Path:
    """Write the checkpoint of a step under `root`, move `latest` to it, and take away old ones: all but the newest `keep` and the
    best. They go after the new one was read back. Tensors that are not finite are refused.

    With a `world` above 1 all its processes call this together: each writes its rows, the first everything else. What fails on one
    of them fails on all.
    """
    each(lambda: check_finite(tensors, step), world)
    target = root / folder_name(step)
    hidden = target.with_name(f".{target.name}.tmp")
    with explained(target, rank):
        first(lambda: _begin(hidden), rank, world)
        parts = each(lambda: _write_tensors(hidden, tensors, rank, world), world)
        files = {name: told for part in parts for name, told in part.items()}
        first(lambda: _complete(target, hidden, step, files, state, told, keep, best), rank, world)
    return target


def read(path: Path, *, by_rows: bool = False, proven: bool = False) -> Saved:
    """A checkpoint, after its files were compared with the manifest; `proven`: another process did that."""
    manifest = unsealed(path) if proven else prove(path)
    state, told = {}, {}
    files: dict[str, list[str]] = {}
    for name in manifest["files"]:
        stem, suffix = name.rsplit(".", 1)
        if suffix == "safetensors":
            files.setdefault(stem.split(".")[0], []).append(name)
            continue
        with _reading(path / name):
            if suffix == "json":
                told[stem] = json.loads((path / name).read_text())
            else:
                state = torch.load(path / name, map_location="cpu", weights_only=True)
    found, whole = {}, {}
    for stem, names in files.items():
        with _reading(path / names[0]):
            found[stem] = pieces.load(path / name for name in names)
            if not by_rows:
                whole[stem] = {name: held[:] for name, held in found[stem].items()}
    return Saved(path, manifest["step"], whole, state, told, found if by_rows else {})


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except pieces.UNREADABLE as error:
        raise CheckpointError(f"{file}: cannot be read ({str(error).partition(chr(10))[0]}): {MEND}") from error


def prove(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all there, as they were written."""
    if not path.is_dir():
        near = ", ".join(other.name for other in steps(path.parent)) or "none"
        raise CheckpointError(f"{path}: there is no such checkpoint; there: {near}")
    try:
        manifest = unsealed(path)
        for name, wanted in manifest["files"].items():
            compare(path / name, wanted["size"], wanted["sha256"])
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read ({error.strerror}): {MEND}") from error
    return manifest


def steps(root: Path) -> list[Path]:
    """The checkpoints under `root`, whole or not, by their step as a number."""
    found = [(int(named[1]), path) for path in root.glob("step-*") if (named := NAMED.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def newest(root: Path, *, by_rows: bool = False) -> tuple[Saved | None, list[CheckpointError]]:
    """The newest whole checkpoint, if there is one, and what is wrong with those passed over."""
    broken = []
    for path in reversed(steps(root)):
        try:
            return read(path, by_rows=by_rows), broken
        except CheckpointError as error:
            broken.append(error)
    return None, broken


def chosen(where: Path) -> Path:
    """The checkpoint at a path: a folder `step-..`, or a folder (of a run, or of its checkpoints) whose `latest` names one."""
    for root in (where, where / "checkpoints"):
        if (root / "latest").is_file():
            return root / (root / "latest").read_text().strip()
    if not where.is_dir() or not NAMED.fullmatch(where.name):
        raise CheckpointError(f"{where}: no checkpoint there; give a folder step-.., a run's folder, or --resume auto")
    return where


def tidy(root: Path) -> None:
    """Remove what a crash left half written or half removed, and bring back what was to be replaced and was not."""
    for path in root.glob(".*"):
        target = path.with_name(path.stem[1:])
        if path.suffix == ".before" and not target.exists():
            os.rename(path, target)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_finite(tensors: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
    """Refuse tensors that hold infinities or what is no number."""
    for file, held in tensors.items():
        for name, tensor in held.items():
            if tensor.is_floating_point() and not pieces.local(tensor).isfinite().all():
                raise CheckpointError(
                    f"step {step}: {name} ({file}) is not finite, so nothing was saved: go on from before, lower lr"
                )


def _begin(hidden: Path) -> None:
    """An empty folder of a hidden name."""
    tidy(hidden.parent)
    hidden.mkdir(parents=True)


def _write_tensors(hidden: Path, tensors: Mapping[str, Mapping[str, Tensor]], rank: int, world: int) -> dict[str, Any]:
    """What this process has of the tensors; sizes and digests of its files."""
    files = {}
    for stem, held in tensors.items():
        name, kept, header = f"{stem}.safetensors", dict(held), None
        if world > 1:
            name, (kept, header) = pieces.file_name(stem, rank, world), pieces.mine(held, rank, world)
        packed = {key: value.detach().cpu().contiguous() for key, value in kept.items()}
        files[name] = put(hidden / name, lambda file, p=packed, h=header: file.write(safetensors.torch.save(p, h)))
    return files


def _complete(
    target: Path,
    hidden: Path,
    step: int,
    files: dict[str, Any],
    state: Mapping[str, Any],
    told: Mapping[str, Any],
    keep: int,
    best: int | None,
) -> None:
    """Everything else under the hidden name, then the rename; `latest`, `best`, and what is too old, once it was read back."""
    files["state.pt"] = put(hidden / "state.pt", lambda file: torch.save(dict(state), file))
    for name, value in told.items():
        files[f"{name}.json"] = put(hidden / f"{name}.json", lambda f, v=value: f.write(json.dumps(v, indent=2).encode()))
    put(hidden / MANIFEST, lambda file: file.write(sealed(step, files)))
    sync(hidden)
    if target.exists():
        os.rename(target, target.with_name(f".{target.name}.before"))
    os.rename(hidden, target)
    sync(target.parent)
    sync(target.parent.parent)
    prove(target)
    publish(target.parent / "latest", target.name)
    if best is not None:
        publish(target.parent / "best", folder_name(best))
    _prune(target.parent, keep)


def _prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep`, the latest and the best; a folder that is being removed is hidden first."""
    stay = {path.name for path in steps(root)[-keep:]}
    stay |= {(root / name).read_text().strip() for name in ("latest", "best") if (root / name).is_file()}
    for path in steps(root):
        if path.name not in stay:
            os.rename(path, path.with_name(f".{path.name}.old"))
    tidy(root)


@contextmanager
def explained(target: Path, rank: int = 0) -> Iterator[None]:
    """Within it, what keeps a checkpoint from being written is a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            if rank == 0:
                tidy(target.parent)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free some space or lower --keep" if full else "see to that folder"
        raise CheckpointError(
            f"{target}: could not be written ({error.strerror}): {mend}; the checkpoint before it is untouched, and the same "
            "command goes on from there"
        ) from error
