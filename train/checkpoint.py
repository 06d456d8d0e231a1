"""Checkpoints that are whole or invisible: folders `step-000000123` with a manifest of what is in them.

A checkpoint is written under a hidden name, each file and folder flushed to the disk, and then renamed; only then does the file
`latest` name it. What a crash leaves behind is a hidden folder, which the next run removes. `manifest.json` holds size and sha256
of every file, since neither torch.load nor safetensors notices a flipped bit. Files:

    NAME.safetensors    tensors by name        `tensors={"model": {..}, "ema": {..}}`
    state.pt            a dict that `torch.load(weights_only=True)` takes: optimiser, schedule
    NAME.json           anything JSON          `told={"config": {..}, "metrics": {..}}`
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from train.durable import digest, publish, put, sync

FORMAT = 1
MANIFEST = "manifest.json"
NAMED = re.compile(r"step-(\d+)")
MEND = "delete that checkpoint; --resume auto takes the newest whole one"


class CheckpointError(ValueError):
    """A checkpoint that is not there, not whole or not to be written; names the file and the mend."""


@dataclass(frozen=True)
class Saved:
    """What a whole checkpoint holds."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    told: dict[str, Any]


def write(
    root: Path,
    step: int,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    told: Mapping[str, Any],
    keep: int = 2,
    best: int | None = None,
) -> Path:
    """Write the checkpoint of a step under `root`, move `latest` to it, and take away old ones: all but the newest `keep` and the
    best. They go after the new one was read back. Tensors that are not finite are refused."""
    check_finite(tensors, step)
    target = root / f"step-{step:09d}"
    with explained(target):
        tidy(root)
        _write_folder(target, step, tensors, state, told)
        prove(target)
        publish(root / "latest", target.name)
        if best is not None:
            publish(root / "best", f"step-{best:09d}")
        _prune(root, keep)
    return target


def read(path: Path) -> Saved:
    """A checkpoint, after its files were compared with the manifest."""
    manifest = prove(path)
    tensors, told, state = {}, {}, {}
    for name in manifest["files"]:
        stem, suffix = name.rsplit(".", 1)
        try:
            if suffix == "safetensors":
                tensors[stem] = safetensors.torch.load_file(path / name)
            elif suffix == "json":
                told[stem] = json.loads((path / name).read_text())
            else:
                state = torch.load(path / name, map_location="cpu", weights_only=True)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{path / name}: cannot be read ({str(error).splitlines()[0]}): {MEND}") from error
    return Saved(path, manifest["step"], tensors, state, told)


def prove(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all there, as they were written."""
    if not path.is_dir():
        near = ", ".join(other.name for other in steps(path.parent)) or "none"
        raise CheckpointError(f"{path}: there is no such checkpoint; there: {near}")
    try:
        manifest = _manifest(path)
        for name, wanted in manifest["files"].items():
            _compare(path / name, wanted["size"], wanted["sha256"])
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read ({error.strerror}): {MEND}") from error
    return manifest


def steps(root: Path) -> list[Path]:
    """The checkpoints under `root`, whole or not, by their step as a number."""
    found = [(int(named[1]), path) for path in root.glob("step-*") if (named := NAMED.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def newest(root: Path) -> tuple[Saved | None, list[CheckpointError]]:
    """The newest whole checkpoint, if there is one, and what is wrong with those passed over."""
    broken = []
    for path in reversed(steps(root)):
        try:
            return read(path), broken
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
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise CheckpointError(
                    f"step {step}: {name} ({file}) is not finite, so nothing was saved: go on from before, lower lr"
                )


def _write_folder(
    target: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], told: Mapping[str, Any]
) -> None:
    """All files under a hidden name, then the rename."""
    hidden = target.with_name(f".{target.name}.tmp")
    hidden.mkdir(parents=True)
    files = {}
    for name, held in tensors.items():
        packed = {key: value.detach().cpu().contiguous() for key, value in held.items()}
        files[f"{name}.safetensors"] = put(hidden / f"{name}.safetensors", lambda f, p=packed: f.write(safetensors.torch.save(p)))
    files["state.pt"] = put(hidden / "state.pt", lambda file: torch.save(dict(state), file))
    for name, value in told.items():
        files[f"{name}.json"] = put(hidden / f"{name}.json", lambda f, v=value: f.write(json.dumps(v, indent=2).encode()))
    manifest = _canonical({"format": FORMAT, "step": step, "files": files})
    put(hidden / MANIFEST, lambda file: file.write(manifest))
    sync(hidden)
    if target.exists():
        os.rename(target, target.with_name(f".{target.name}.before"))
    os.rename(hidden, target)
    sync(target.parent)
    sync(target.parent.parent)


def _prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep`, the latest and the best; a folder that is being removed is hidden first."""
    stay = {path.name for path in steps(root)[-keep:]}
    stay |= {(root / name).read_text().strip() for name in ("latest", "best") if (root / name).is_file()}
    for path in steps(root):
        if path.name not in stay:
            os.rename(path, path.with_name(f".{path.name}.old"))
    tidy(root)


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """Within it, what keeps a checkpoint from being written is a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            tidy(target.parent)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free some space or lower --keep" if full else "see to that folder"
        raise CheckpointError(
            f"{target}: could not be written ({error.strerror}): {mend}; the checkpoint before it is untouched, and the same "
            "command goes on from there"
        ) from error


def _canonical(manifest: dict[str, Any]) -> bytes:
    """The manifest as a file, with a digest of itself."""
    sealed = {**manifest, "digest": hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()}
    return (json.dumps(sealed, indent=1, sort_keys=True) + "\n").encode()


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise CheckpointError(f"{file}: missing: {MEND}")
    raw = file.read_bytes()
    try:
        manifest = json.loads(raw)
        manifest.pop("digest")
        whole = _canonical(manifest) == raw and manifest["format"] == FORMAT and path.name == f"step-{manifest['step']:09d}"
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise CheckpointError(f"{file}: {'not as it was written' if raw else 'empty'}: {MEND}")
    return manifest


def _compare(file: Path, size: int, sha256: str) -> None:
    if not file.is_file():
        raise CheckpointError(f"{file}: missing: {MEND}")
    found = file.stat().st_size
    if found != size:
        raise CheckpointError(f"{file}: {f'cut off or grown, {found} bytes of {size}' if found else 'empty'}: {MEND}")
    if digest(file) != sha256:
        raise CheckpointError(f"{file}: not what was written, its sha256 differs: {MEND}")
