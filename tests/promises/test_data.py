"""Promises 12, 13, 14, 16: bad files are errors or left out by name, sizes are read before pixels, archives stay in place."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import multiprocessing
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from timm.data import create_dataset
from torch import nn

from tests.promises.runs import apart, exit_code, same, tiny
from train import archives, cli
from train.bad import MAX_PIXELS, BadFile
from train.cases import trained
from train.data import Drawn, collate, loader, stored, training_set
from train.draws import batches
from train.engine import Trainer
from train.evaluate import score
from train.evaluate import test_set as inputs
from train.readers import MedMNIST, VolumeFolder, read_clip, read_volume
from train.retrofit.images import opened
from train.sift import WorkerLost, lost

COUNT = 10  # samples of a class


def png(path: Path, index: int) -> None:
    Image.fromarray(np.full((8, 8, 3), 8 * index, np.uint8)).save(path.with_suffix(".png"))


def frames(path: Path, index: int) -> None:
    np.savez(path.with_suffix(".npz"), frames=np.full((4, 8, 8, 3), 8 * index, np.uint8), fps=8.0)


def nifti(path: Path, index: int) -> None:
    nib = pytest.importorskip("nibabel")
    values = np.random.default_rng(index).normal(size=(8, 8, 8)).astype(np.float32)
    nib.save(nib.Nifti1Image(values, np.eye(4)), path.with_suffix(".nii.gz"))


WRITERS = {"folder": png, "clips": frames, "volumes": nifti}


def written(root: Path, dataset: str, splits: tuple[str, ...] = ("train", "val")) -> Path:
    """Two classes of COUNT files each, every one of its own value."""
    for split in splits:
        for label in (0, 1):
            (root / split / f"c{label}").mkdir(parents=True)
            for i in range(COUNT):
                WRITERS[dataset](root / split / f"c{label}" / f"{i}", label * COUNT + i)
    return root


def config(root: Path, dataset: str, **changes):
    shown = {"img_size": (8,), "frames": 4, "fps": 8.0, "color_jitter": 0.0, "batch_size": 4, "steps": 10, "tests": None}
    return tiny(dataset=dataset, data_dir=str(root), classes=None, **{**shown, **changes})


def spoil(root: Path, *indices: int, split: str = "train") -> list[str]:
    """Cut files, by their place in the data set, to half; returns their names."""
    names = []
    for index in indices:
        (path,) = (root / split / f"c{index // COUNT}").glob(f"{index % COUNT}.*")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        names.append(str(path))
    return names


def epochs(asked, count: int = 2) -> list:
    """Batches of some epochs with the indices that they were asked for."""
    return list(batches(training_set(asked), asked, start=0, end=count * 2 * COUNT // asked.batch_size))


# ---- promise 12


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", WRITERS)
def test_promise_12_a_bad_file_is_an_error_that_names_it(dataset, workers, tmp_path):
    root = written(tmp_path, dataset)
    asked = config(root, dataset, workers=workers)
    (bad,) = spoil(root, 13)
    with pytest.raises(BadFile) as caught:
        epochs(asked)
    assert bad in str(caught.value) and "--max-bad" in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", WRITERS)
def test_promise_12_as_many_as_allowed_are_left_out_and_named_once_and_no_other_moves(dataset, workers, tmp_path, caplog):
    root = written(tmp_path, dataset)
    whole = epochs(config(root, dataset, workers=0))
    bad = spoil(root, 3, 13)
    with caplog.at_level(logging.WARNING, "train"):
        found = epochs(config(root, dataset, workers=workers, max_bad=2))
    assert [indices for indices, _ in found] == [indices for indices, _ in whole]
    for (indices, left), (_, full) in zip(found, whole):
        keep = [place for place, index in enumerate(indices) if index not in (3, 13)]
        assert all(torch.equal(part, all_of[keep]) for part, all_of in zip(left, full))
    assert Counter(name for name in bad for line in caplog.messages if name in line) == {name: 1 for name in bad}
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_12_one_more_than_allowed_is_an_error_at_the_same_batch_for_any_number_of_workers(workers, tmp_path):
    root = written(tmp_path, "folder")
    asked = config(root, "folder", workers=workers, max_bad=2)
    order = [index for indices, _ in epochs(asked, 1) for index in indices]
    first, second, third = order[1], order[9], order[14]  # in batches 0, 2 and 3
    spoil(root, first, second, third)
    seen = 0
    with pytest.raises(BadFile, match=rf"c{third // COUNT}/{third % COUNT}\.png.*bad files so far: 3; --max-bad leaves out 2"):
        for _ in batches(training_set(asked), asked, start=0, end=5):
            seen += 1
    assert seen == 3


def test_promise_12_volumes_in_memory_have_the_same_gaps_as_those_from_files(tmp_path):
    root = written(tmp_path, "volumes")
    spoil(root, 0, 13)  # the first, too
    read, held = (epochs(config(root, "volumes", max_bad=2, cache=cache)) for cache in (False, True))
    assert isinstance(training_set(config(root, "volumes", max_bad=2, cache=True)), Drawn)
    for (indices, one), (also, two) in zip(read, held):
        assert indices == also and all(torch.equal(a, b) for a, b in zip(one, two))
    for most in (0, 1):
        with pytest.raises(BadFile, match="nii"):
            epochs(config(root, "volumes", max_bad=most, cache=True))


class Remember(nn.Module):
    """Takes every input for class 0, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images)
        return torch.tensor([[1.0, 0.0]]).expand(len(images), 2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", WRITERS)
def test_promise_12_evaluation_takes_no_sample_for_another_and_counts_all_or_none(dataset, workers, tmp_path):
    root = written(tmp_path, dataset)
    asked = config(root, dataset, workers=workers, max_bad=5, val_split="val")
    data, groups = inputs(asked, trained(asked), 15)
    model = Remember()
    found = score(model, data, asked)
    assert len(found.right) == len(groups) == sum(map(len, model.seen)) == 15
    (bad,) = spoil(root, data.indices[7], split="val")
    with pytest.raises(BadFile) as caught:
        score(Remember(), data, asked)
    assert bad in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_promise_12_timms_own_data_set_would_give_the_next_picture_with_its_label(tmp_path):
    """What `Strict` is there for: when timm mends this, it can go."""
    root = written(tmp_path, "folder")
    spoil(root, COUNT - 1)
    assert create_dataset("", root=str(root), split="train")[COUNT - 1][1] == 1
    with pytest.raises(BadFile):
        stored(config(root, "folder"), trained(config(root, "folder")), split="train")[COUNT - 1]


def test_promise_12_a_run_ends_with_the_weights_of_one_that_never_had_the_bad_files(tmp_path):
    """But for the places they leave: a data set that drops the same indices from whole files is the reference."""
    root = written(tmp_path / "data", "folder")
    changes = {"max_bad": 2, "steps": 6, "model_kwargs": ("patch_size=4", *tiny().model_kwargs[1:])}
    other = Trainer(config(root, "folder", **changes), tmp_path / "other")
    source = other.data.source

    class Dropping:
        def __len__(self) -> int:
            return len(source)

        def __getitem__(self, index: int):
            if index in (3, 13):
                raise BadFile(f"{index}")
            return source[index]

    other.data.source = Dropping()
    other.fit()
    spoil(root, 3, 13)
    one = Trainer(config(root, "folder", **changes), tmp_path / "one")
    one.fit()
    assert set(one.data.ledger.known) == {3, 13}
    assert all(torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values()))


def test_promise_12_mixing_takes_no_gaps():
    with pytest.raises(ValueError, match=r"max_bad=1: .* mixup or cutmix"):
        tiny(max_bad=1, mixup=0.2)
    with pytest.raises(ValueError, match="max_bad=-1"):
        tiny(max_bad=-1)


def test_promise_12_a_batch_of_bad_files_alone_is_an_error(tmp_path):
    root = written(tmp_path, "folder", ("train",))
    spoil(root, *range(2 * COUNT))
    with pytest.raises(BadFile, match="no file of a batch"):
        epochs(config(root, "folder", max_bad=100))


# ---- promise 13


def claiming(width: int, height: int) -> bytes:
    """A PNG of a header and next to nothing else."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@contextlib.contextmanager
def nothing_decoded():
    def decoding(self, *given):
        raise SystemError("decoded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", decoding)
        yield


@pytest.mark.parametrize("name", ["folder", "torch/folder", "clip", "retrofit"])
def test_promise_13_a_small_png_that_claims_many_pixels_is_refused_before_it_is_decoded(name, tmp_path):
    root = written(tmp_path, "folder")
    path = root / "train" / "c0" / "0.png"
    path.write_bytes(claiming(10_000, 12_000))
    assert path.stat().st_size < 300
    says = r"c0.*12000 x 10000 pixels, 120,000,000 in all, above 67,108,864"
    with nothing_decoded(), pytest.raises(BadFile, match=says) as caught:
        if name == "clip":
            read_clip(path.parent, source_fps=8.0, frames=[0])
        elif name == "retrofit":
            opened(path)
        else:
            asked = config(root, name, num_classes=2)
            stored(asked, trained(asked), split="train")[0]
    assert "--max-pixels" in str(caught.value)


def test_promise_13_the_limit_can_be_moved_both_ways(tmp_path, monkeypatch):
    root = written(tmp_path, "folder")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own, which refuses twice as many
    for most, fine in ((64, True), (63, False)):
        asked = config(root, "folder", max_pixels=most)
        data = stored(asked, trained(asked), split="train")
        with contextlib.nullcontext() if fine else pytest.raises(BadFile, match="8 x 8 pixels, 64 in all, above 63"):
            data[0]
    with pytest.raises(ValueError, match="max_pixels=0: at least 1"):
        tiny(max_pixels=0)


def test_promise_13_what_is_no_picture_is_not_given_to_other_programs(tmp_path):
    """Pillow would call Ghostscript for PostScript, whatever the file's name."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(BadFile, match=r"a\.png"):
        opened(tmp_path / "a.png")


def test_promise_13_volumes_and_arrays_are_refused_by_their_headers(tmp_path):
    nib = pytest.importorskip("nibabel")
    header = nib.Nifti1Header()
    header.set_data_shape((4000, 4000, 4000))
    header.set_data_dtype(np.uint8)
    with gzip.open(tmp_path / "v.nii.gz", "wb") as file:
        file.write(header.binaryblock + bytes(1000))
    np.savez_compressed(tmp_path / "bomb.npz", np.zeros((400, 500, 500), np.uint8))
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (40, 500, 500)})
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("frames.npy", member.getvalue())
        archive.writestr("train_images.npy", member.getvalue())
    (tmp_path / "wide.npy").write_bytes(member.getvalue().replace(b"(40, 500, 500), }", b"(2, 50000, 5000)}"))
    for read, says in (
        (lambda: read_volume(tmp_path / "v.nii.gz"), r"v\.nii\.gz.*4000 x 4000 x 4000 voxels, 64,000,000,000 in all"),
        (lambda: read_clip(tmp_path / "bomb.npz", source_fps=8.0), r"bomb\.npz.*400 x 500 x 500 pixels, 100,000,000 in all"),
        (lambda: read_clip(tmp_path / "lie.npz", source_fps=8.0), r"lie\.npz.*more than the archive holds"),
        (lambda: MedMNIST(tmp_path / "lie.npz", "train"), r"lie\.npz.*more than the archive holds"),
        (lambda: MedMNIST(tmp_path / "lie.npz", "train", most=100), r"lie\.npz.*10,000,000 in all, above 100"),
        (lambda: read_clip(tmp_path / "wide.npy", source_fps=8.0), r"wide\.npy.*50000 x 5000 pixels"),
    ):
        begun = time.monotonic()
        with pytest.raises(BadFile, match=says):
            read()
        assert time.monotonic() - begun < 2


def test_promise_13_max_pixels_reaches_clips_and_volumes(tmp_path):
    for dataset, most, says in (("clips", 4 * 64, "4 x 8 x 8 pixels"), ("volumes", 512, "8 x 8 x 8 voxels")):
        root = written(tmp_path / dataset, dataset, ("train",))
        for limit in (most, most - 1):
            asked = config(root, dataset, max_pixels=limit)
            with contextlib.nullcontext() if limit == most else pytest.raises(BadFile, match=says):
                stored(asked, trained(asked), split="train")[0]
    assert VolumeFolder(root / "train").max_voxels == MAX_PIXELS


def test_promise_13_slices_count_together(tmp_path):
    from tests.train.test_readers import write_series

    folder = write_series(tmp_path / "s")
    count = read_volume(folder).voxels.numel()
    with pytest.raises(BadFile, match=f"{count:,} in all, above {count - 1:,}"):
        read_volume(folder, max_voxels=count - 1)


# ---- promise 14


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_promise_14_a_tar_of_any_kind_is_unpacked(mode, tmp_path):
    path = tarred(tmp_path / "a.tar", (entry("a/b.txt"), b"b"), (entry("a/c", tarfile.SYMTYPE, "b.txt"), b""), mode=mode)
    archives.unpack(path, tmp_path / "to")
    assert (tmp_path / "to/a/b.txt").read_bytes() == (tmp_path / "to/a/c").read_bytes() == b"b"
    assert archives.read(path, "a/b.txt") == [b"b"]
    with pytest.raises(ValueError, match=r"a\.tar.*holds no z"):
        archives.read(path, "z")


@pytest.mark.parametrize(
    "members",
    [
        [(entry("../out.txt"), b"x")],
        [(entry("a/../../out.txt"), b"x")],
        [(entry("a", tarfile.SYMTYPE, ".."), b""), (entry("a/out.txt"), b"x")],
        [(entry("pipe", tarfile.FIFOTYPE), b"")],
        [(entry("null", tarfile.CHRTYPE), b"")],
        [(entry("out.txt", tarfile.LNKTYPE, "../secret"), b"")],
    ],
    ids=["above", "around", "link", "pipe", "device", "hard"],
)
def test_promise_14_nothing_lands_or_reads_outside_of_the_folder(members, tmp_path):
    (tmp_path / "secret").write_text("s")
    path = tarred(tmp_path / "evil.tgz", *members)
    with contextlib.suppress(ValueError):
        archives.unpack(path, tmp_path / "to")
    assert {p.name for p in tmp_path.iterdir()} == {"secret", "evil.tgz", "to"}
    inside = list((tmp_path / "to").rglob("*"))
    assert all(p.resolve().is_relative_to(tmp_path / "to") and (p.is_file() or p.is_dir()) for p in inside)
    assert not any(p.is_file() and p.read_text() == "s" for p in inside)


@pytest.mark.parametrize("name", ["../out.txt", "/out.txt", "a/../../out.txt", "..\\out.txt", "C:out.txt"])
def test_promise_14_a_zip_with_a_way_out_is_refused(name, tmp_path):
    with zipfile.ZipFile(tmp_path / "evil.whl", "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(ValueError, match=r"evil\.whl.*outside"):
        archives.unpack(tmp_path / "evil.whl", tmp_path / "to")
    assert not list(tmp_path.rglob("*out.txt"))


@pytest.mark.parametrize("kind", ["tgz", "zip"])
@pytest.mark.parametrize(("sizes", "limits"), [([2000], (1000, 10)), ([600, 600], (1000, 10)), ([1] * 4, (10**6, 3))])
def test_promise_14_size_and_number_are_capped(kind, sizes, limits, tmp_path):
    path = tmp_path / f"a.{kind}"
    if kind == "tgz":
        tarred(path, *((entry(f"{i}"), bytes(size)) for i, size in enumerate(sizes)))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i, size in enumerate(sizes):
                archive.writestr(f"{i}", bytes(size))
    most = {"most_bytes": limits[0], "most_files": limits[1]}
    for use in (lambda: archives.unpack(path, tmp_path / "to", **most), lambda: archives.read(path, "0", **most)):
        with pytest.raises(ValueError, match=rf"a\.{kind}.*more than {limits[0]:,} bytes or {limits[1]} files"):
            use()
    assert sum(p.stat().st_size for p in (tmp_path / "to").rglob("*")) <= limits[0]


def test_promise_14_a_header_that_unpacks_to_very_much_is_capped(tmp_path):
    """The name of a file in a tar may itself be gigabytes of zeros, packed a thousand times."""
    info = entry("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    tarred(tmp_path / "a.tgz", (info, bytes(10**7)))
    assert (tmp_path / "a.tgz").stat().st_size < 20_000
    with pytest.raises(ValueError, match=r"a\.tgz.*more than 1,000,000 bytes"):
        archives.unpack(tmp_path / "a.tgz", tmp_path / "to", most_bytes=10**6)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="Debian's packages need dpkg-deb")
def test_promise_14_a_debian_package_is_unpacked_and_capped(tmp_path):
    (tmp_path / "in/DEBIAN").mkdir(parents=True)
    about = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: n <n@n.n>\nDescription: a\n"
    (tmp_path / "in/DEBIAN/control").write_text(about)
    (tmp_path / "in/usr/share").mkdir(parents=True)
    (tmp_path / "in/usr/share/a.txt").write_bytes(bytes(50_000))
    (tmp_path / "in/usr/share/away").symlink_to("/etc/passwd")
    subprocess.run(["dpkg-deb", "-b", tmp_path / "in", tmp_path / "a.deb"], check=True, capture_output=True)
    archives.unpack(tmp_path / "a.deb", tmp_path / "to")
    assert (tmp_path / "to/usr/share/a.txt").stat().st_size == 50_000 and not (tmp_path / "to/usr/share/away").is_symlink()
    with pytest.raises(ValueError, match=r"a\.deb.*more than 10,000 bytes"):
        archives.unpack(tmp_path / "a.deb", tmp_path / "less", most_bytes=10_000)
    data = (tmp_path / "a.deb").read_bytes()
    (tmp_path / "cut.deb").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"cut\.deb"):
        archives.unpack(tmp_path / "cut.deb", tmp_path / "cut")


# ---- promise 16


class Dying(torch.utils.data.Dataset):
    """A worker that comes to sample `at` is killed."""

    def __init__(self, at: int) -> None:
        self.at, self.main = at, os.getpid()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int):
        if index == self.at and os.getpid() != self.main:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(3, 8, 8), 0


def test_promise_16_a_killed_worker_ends_an_evaluation_with_one_line(tmp_path, capsys):
    asked = config(tmp_path, "folder", workers=2)
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["evaluate"])
        cli.run(lambda: print(score(Remember(), Dying(20), asked)) and None, "evaluate")
    shown = capsys.readouterr()
    assert ended.value.code == 1 and time.monotonic() - begun < 30 and not shown.out
    assert shown.err.startswith("error: a worker of the loader died: DataLoader worker") and len(shown.err.splitlines()) == 1


def test_promise_16_a_killed_worker_is_heard_of_where_its_batch_is_asked_for():
    """Not by a signal that raises anywhere in the main process, amid an update of the weights."""
    before = signal.getsignal(signal.SIGCHLD)
    found = iter(loader(Dying(20), [[i] for i in range(40)], workers=2))
    assert signal.getsignal(signal.SIGCHLD) == before
    with pytest.raises(WorkerLost) as caught:
        for _ in range(40):
            next(found)
    assert isinstance(caught.value, ValueError) and "--workers 0" in str(caught.value)


def test_promise_16_an_error_of_the_data_is_not_taken_for_a_death():
    class Wrong(Dying):
        def __getitem__(self, index: int):
            raise OSError("killed by signal in the text of another error")

    for workers in (0, 1):
        with pytest.raises(OSError, match="text of another"):
            list(loader(Wrong(0), [[0]], workers=workers))


def test_promise_16_a_batch_that_cannot_be_fetched_from_a_dead_worker_is_a_death():
    for gone in (ConnectionResetError(104, "Connection reset by peer"), EOFError()):
        assert "exited unexpectedly" in str(lost(gone))
    for other in (RuntimeError("shapes differ"), OSError("Caught OSError in DataLoader worker process 0.\nmore")):
        assert lost(other) is None


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.01, 0.03, 0.1, 0.3, 1.0])
def test_promise_16_whenever_a_worker_is_killed_the_run_ends_within_half_a_minute(after, tmp_path):
    root = written(tmp_path, "folder")
    asked = config(root, "folder", workers=3, steps=100_000)

    def run() -> None:
        found = batches(training_set(asked), asked, start=0, end=100_000)
        next(found)
        victim = multiprocessing.active_children()[1]
        threading.Timer(after, victim.kill).start()
        try:
            for _ in found:
                pass
        except WorkerLost:
            sys.exit(7)

    assert exit_code(apart(run), within=30) == 7


@pytest.mark.slow
@pytest.mark.parametrize("dataset", WRITERS)
def test_workers_that_are_not_forks_give_the_same_batches(dataset, tmp_path):
    """As on macOS, and with Python 3.14."""
    asked = config(written(tmp_path, dataset), dataset, workers=2)
    trainer = Trainer(asked, tmp_path / "run")

    def taken() -> list:
        return [batch for _, batch in batches(trainer.data, asked, start=0, end=4)]

    expected, usual = taken(), multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        assert same(taken(), expected)
    finally:
        multiprocessing.set_start_method(usual, force=True)


def test_a_batch_of_whole_samples_is_a_plain_tuple():
    images, labels = collate([(torch.zeros(1, 2, 2), 3), (torch.ones(1, 2, 2), 4)])
    assert images.shape == (2, 1, 2, 2) and labels.tolist() == [3, 4]
