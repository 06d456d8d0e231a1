"""Promises 4, 12 and 13 on bytes that may be anything: of every kind of file that a run reads, only our own errors come out.

A mutation of a small whole file is a function of its number: flipped bits, a cut, zeros, a part twice, or bytes of other kinds of
files in between. What is read may be fine still; or else it is a ValueError that names the file, in bounded time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from train import checkpoint
from train.config import Config
from train.readers import MedMNIST, read_clip, read_volume
from train.retrofit.images import opened
from train.rows import COLUMNS, read_rows, read_run

FAST, SLOW = 50, 1000  # mutations of each kind
SECONDS = 10.0  # for one file
LESS = 2**20  # pixels and voxels, so that no mutated header makes a test slow


class TooLongError(BaseException):
    """Not an Exception, so that no reader takes it for its own."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    def end(*_: object) -> None:
        raise TooLongError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mutated(data: bytes, number: int, foreign: bytes) -> bytes:
    """Mutation `number`: five ways in turn, at places drawn from it."""
    random, out = np.random.default_rng(number), bytearray(data)
    first, second = sorted(int(at) for at in random.integers(0, len(data), 2))
    if number % 2:  # near the head, where the structure is
        first, second = first % 200, first % 200 + 1 + second % 16
    way = number % 5
    if way == 0:
        for at in random.integers(0, min(len(data), 300 if number % 2 else len(data)), 1 + number % 7):
            out[at] ^= 1 << int(random.integers(8))
    elif way == 1:
        del out[first:]
    elif way == 2:
        out[first:second] = bytes(len(out[first:second]))
    elif way == 3:
        out[second:second] = out[first:second]
    else:
        start = int(random.integers(len(foreign)))
        out[first:second] = foreign[start : start + 1 + int(random.integers(64))]
    return bytes(out)


def image(kind: str, **options) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, options.pop("channels", 3)), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise.squeeze()).save(file, kind, **options)
    return file.getvalue()


def arrays(**held) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **held)
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((3, 8, 8), np.uint8))
    return file.getvalue()


def nifti() -> bytes:
    nib = pytest.importorskip("nibabel")
    return nib.Nifti1Image(np.random.default_rng(0).integers(0, 99, (6, 5, 4)).astype(np.int16), np.diag([2, 1, 1, 1])).to_bytes()


def packed_nifti() -> bytes:
    return gzip.compress(nifti(), mtime=0)


def rows() -> bytes:
    fields = {"encoding": "axial", "seed": 0, "test": "zoom", "height": 32, "width": 32, "scaling": "none", "temperature": "none",
              "accuracy": 0.5, "low": 0.4, "high": 0.6, "images": 100, "ratio": 1.0, "positions": "index"}  # fmt: skip
    line = ",".join(f"{fields.get(name, '')}" for name in COLUMNS)
    return "\n".join([",".join(COLUMNS), line, line.replace("32,32", "64,64")]).encode() + b"\n"


def numbers() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        f"{split}_{what}": random.integers(0, 9, shape).astype(np.uint8)
        for split in ("train", "val")
        for what, shape in (("images", (4, 6, 6)), ("labels", (4, 1)))
    }


def run_of(path: Path) -> object:
    """A run's folder, of which this file is config.json or log.jsonl."""
    (path.parent / "rows.csv").write_bytes(rows())
    return read_run(path.parent)


# a kind: the name of its file, its bytes, and what reads it
KINDS: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], object]]] = {
    "config": ("config.json", lambda: Config(model_kwargs=("depth=4",), img_size=(32, 48)).to_json().encode(), Config.load),
    "study": ("config.json", lambda: json.dumps({"classes": 47, "chance": 0.02, "claim": "A claim."}, indent=1).encode(), run_of),
    "log": ("log.jsonl", lambda: b"".join(json.dumps({"event": "trained", "step": i}).encode() + b"\n" for i in range(9)), run_of),
    "csv": ("rows.csv", rows, read_rows),
    "png": ("a.png", lambda: image("PNG"), opened),
    "transparent png": ("a.png", lambda: image("PNG", channels=4), opened),
    "jpeg": ("a.jpg", lambda: image("JPEG", quality=80), opened),
    "webp": ("a.webp", lambda: image("WEBP", lossless=True), opened),
    "gif": ("a.gif", lambda: image("GIF", channels=1), opened),
    "tiff": ("a.tif", lambda: image("TIFF", compression="tiff_lzw"), opened),
    "bmp": ("a.bmp", lambda: image("BMP"), opened),
    "nifti": ("a.nii", nifti, lambda path: read_volume(path, max_voxels=LESS)),
    "packed nifti": ("a.nii.gz", packed_nifti, lambda path: read_volume(path, max_voxels=LESS)),
    "npz": (
        "a.npz",
        lambda: arrays(frames=np.zeros((3, 8, 8, 3), np.uint8), fps=8.0),
        lambda path: read_clip(path, max_pixels=LESS),
    ),
    "npy": ("a.npy", array, lambda path: read_clip(path, source_fps=8.0, max_pixels=LESS)),
    "medmnist": ("a.npz", lambda: arrays(**numbers()), lambda path: MedMNIST(path, "train", most=LESS)),
}
FOREIGN = b'\x00\xff{"a": [1e999, NaN, null]}\r\n\xd7\x89PNG\r\n\x1a\n,,"\x1f\x8b\x08PK\x03\x04' + bytes(range(256))


def tried(read: Callable[[Path], object], path: Path) -> Exception | None:
    """The error of a read, which must be ours; None if it went well."""
    try:
        with within(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except ValueError as error:
        assert path.name in str(error), f"does not name the file: {error}"
        return error
    return None


def fuzz(kind: str, folder: Path, which: range) -> None:
    name, made, read = KINDS[kind]
    path, data, refused = folder / name, made(), 0
    path.write_bytes(data)
    assert tried(read, path) is None
    for number in which:
        path.write_bytes(mutated(data, number, FOREIGN))
        begun = time.monotonic()
        try:
            refused += tried(read, path) is not None
        except BaseException as error:
            raise AssertionError(f"{kind}, mutation {number}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - begun < SECONDS
    assert refused > len(which) / 20  # the mutations do break files


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_bytes_a_file_holds_only_our_errors_come_out(kind, tmp_path):
    fuzz(kind, tmp_path, range(FAST))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_bytes_a_file_holds_only_our_errors_come_out_a_thousand_times(kind, tmp_path):
    fuzz(kind, tmp_path, range(FAST, FAST + SLOW))


def saved(root: Path) -> Path:
    weights = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.zeros(3)}
    told = {"config": {"lr": 0.1}, "progress": {"step": 3}}
    return checkpoint.write(root, 3, tensors={"model": weights}, state={"optimizer": {"lr": 0.1, "m": [weights["w"]]}}, told=told)


def fuzz_checkpoint(folder: Path, name: str, which: range) -> None:
    """Stronger than for other files: any change at all is refused."""
    path = saved(folder) / name
    data = path.read_bytes()
    for number in which:
        changed = mutated(data, number, FOREIGN)
        path.write_bytes(changed)
        with within(SECONDS):
            if changed == data:
                checkpoint.read(path.parent)
                continue
            with pytest.raises(checkpoint.CheckpointError) as caught:
                checkpoint.read(path.parent)
        assert name in str(caught.value)


FILES = "manifest.json", "model.safetensors", "state.pt", "config.json", "progress.json"


@pytest.mark.parametrize("name", FILES)
def test_any_change_of_a_checkpoint_is_refused_by_name(name, tmp_path):
    fuzz_checkpoint(tmp_path, name, range(FAST))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_any_change_of_a_checkpoint_is_refused_by_name_a_thousand_times(name, tmp_path):
    fuzz_checkpoint(tmp_path, name, range(FAST, FAST + SLOW))


def test_the_bound_of_time_is_heard():
    with pytest.raises(TooLongError), within(0.05):
        while True:
            pass


def test_mutations_are_a_function_of_their_number_and_of_every_kind():
    data = bytes(range(256)) * 4
    found = [mutated(data, number, FOREIGN) for number in range(200)]
    assert found == [mutated(data, number, FOREIGN) for number in range(200)]
    assert len(set(found)) > 150 and {len(one) > len(data) for one in found} == {True, False}
