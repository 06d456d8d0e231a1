"""What is in a checkpoint's folder: `manifest.json`, with size and sha256 of every file, and a digest of itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from train.durable import digest

FORMAT = 1
MANIFEST = "manifest.json"
MEND = "delete that checkpoint; --resume auto takes the newest whole one"


class CheckpointError(ValueError):
    """A checkpoint that is not there, not whole or not to be written; names the file and the mend."""


def folder_name(step: int) -> str:
    """Of the checkpoint of a step."""
    return f"step-{step:09d}"


def sealed(step: int, files: dict[str, Any]) -> bytes:
    """The manifest as a file."""
    return _canonical({"format": FORMAT, "step": step, "files": files})


def _canonical(manifest: dict[str, Any]) -> bytes:
    told = {**manifest, "digest": hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()}
    return (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()


def unsealed(path: Path) -> dict[str, Any]:
    """The manifest in a checkpoint's folder, as it was written."""
    file = path / MANIFEST
    if not file.is_file():
        raise CheckpointError(f"{file}: missing: {MEND}")
    raw = file.read_bytes()
    try:
        manifest: dict[str, Any] = json.loads(raw)
        manifest.pop("digest")
        whole = _canonical(manifest) == raw and manifest["format"] == FORMAT and path.name == folder_name(manifest["step"])
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise CheckpointError(f"{file}: {'not as it was written' if raw else 'empty'}: {MEND}")
    return manifest


def compare(file: Path, size: int, sha256: str) -> None:
    """Refuse a file that is not what was written."""
    if not file.is_file():
        raise CheckpointError(f"{file}: missing: {MEND}")
    found = file.stat().st_size
    if found != size:
        raise CheckpointError(f"{file}: {f'cut off or grown, {found} bytes of {size}' if found else 'empty'}: {MEND}")
    if digest(file) != sha256:
        raise CheckpointError(f"{file}: not what was written, its sha256 differs: {MEND}")
