"""Promises 1, 12, 13, 15 for streams: tar shards, and what `datasets` streams, go on where they were, each sample once."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import logging
import os
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.promises.runs import apart, exit_code, free_port, killed, same, state, tiny
from tests.promises.test_data import Remember, claiming, nothing_decoded
from train import evaluate, streams, tars
from train.bad import BadFile
from train.cases import trained
from train.config import Config
from train.data import stored, training_set
from train.draws import batches
from train.engine import Trainer
from train.streams import Picked, Stream

SIZES = 5, 7, 1, 9, 6, 4  # samples of each shard, 32 in all
TOTAL = sum(SIZES)
PATTERN = "train-{00..05}.tar"


def coded(number: int, kind: str = "PNG") -> bytes:
    """A picture of one value, which tells the sample."""
    held = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 7 * number, np.uint8)).save(held, kind)
    return held.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def shard(path: Path, samples: list[dict[str, bytes]]) -> Path:
    """A shard: of each sample its files, by the end of their names."""
    with tarfile.open(path, "w") as tar:
        for i, sample in enumerate(samples):
            for ending, data in sample.items():
                add(tar, f"deep/{i:04d}.{ending}", data)
    return path


def written(root: Path, split: str = "train", spoiled: dict[int, dict[str, bytes]] | None = None) -> Path:
    """Six shards; sample number n of all is a picture of value 7 n and of class n % 2."""
    root.mkdir(exist_ok=True)
    numbers = itertools.count()
    for place, size in enumerate(SIZES):
        whole = [{"png": coded(n), "cls": str(n % 2).encode()} for n in itertools.islice(numbers, size)]
        first = sum(SIZES[:place])
        shard(root / f"{split}-{place:02d}.tar", [(spoiled or {}).get(first + i, sample) for i, sample in enumerate(whole)])
    return root


def config(root: Path, **changes) -> Config:
    model = {"model_kwargs": ("patch_size=4", *tiny().model_kwargs[1:]), "num_classes": 2, "img_size": (8,)}
    shown = {"dataset": "wds", "data_dir": str(root), "train_split": PATTERN, "val_split": PATTERN, "classes": None, "tests": None}
    return tiny(**{**model, **shown, "color_jitter": 0.0, "batch_size": 4, **changes})


def seen(asked: Config, start: int, end: int, rank: int = 0, world: int = 1) -> list[list[int]]:
    """The samples of some batches, as their pictures tell them, which must be those they are said to be."""
    found = []
    for names, (pictures, labels) in batches(training_set(asked), asked, start=start, end=end, rank=rank, world=world):
        values = [round(float(v) / 7) for v in ((pictures[:, 0].mean((1, 2)) * 0.229 + 0.485) * 255)]
        assert [v % 2 for v in values] == labels.tolist() and len(set(names)) == len(names) == len(values)
        found.append(values)
    return found


@pytest.fixture(autouse=True)
def groups_of_few(monkeypatch):
    """Several groups in six shards."""
    monkeypatch.setattr(streams, "SHUFFLED", 10)


# ---- the order


@pytest.mark.parametrize("batch", [4, 5])
def test_an_epoch_has_each_sample_once_and_the_next_has_another_order(batch, tmp_path):
    asked, each = config(written(tmp_path), batch_size=batch), TOTAL // batch
    first, second = (list(itertools.chain(*seen(asked, n * each, (n + 1) * each))) for n in (0, 1))
    for epoch in (first, second):
        assert len(set(epoch)) == len(epoch) == each * batch and set(epoch) <= set(range(TOTAL))
    assert first != second and first != sorted(first)
    assert first != list(itertools.chain(*seen(dataclasses.replace(asked, seed=1), 0, each)))


def test_going_on_at_any_batch_is_going_on_with_the_samples_that_would_have_come(tmp_path):
    asked = config(written(tmp_path), batch_size=5)
    whole = seen(asked, 0, 20)
    for start in (1, 6, 11):
        assert seen(asked, start, 20) == whole[start:]
    keys = list(streams.order(training_set(asked).source, 5, 0, start=0, end=20))
    for start in range(20):
        assert list(streams.order(training_set(asked).source, 5, 0, start=start, end=20)) == keys[start:], start


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_gives_the_same_batches(workers, tmp_path):
    asked = config(written(tmp_path))
    assert seen(dataclasses.replace(asked, workers=workers), 3, 19) == seen(asked, 3, 19)


def test_processes_share_each_batch(tmp_path):
    asked = config(written(tmp_path), batch_size=2)
    alone = seen(dataclasses.replace(asked, batch_size=4), 0, 18)
    ranks = [seen(asked, 0, 18, rank, 2) for rank in range(2)]
    assert [one + two for one, two in zip(*ranks)] == alone


def test_told_lengths_change_nothing_but_that_nothing_is_read_to_go_on(tmp_path, monkeypatch):
    asked = config(written(tmp_path))
    whole = seen(asked, 0, 20)
    told = {"filenames": tars.expand(PATTERN), "shard_lengths": SIZES, "num_samples": TOTAL, "name": "train"}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": told}}))
    named = dataclasses.replace(asked, train_split="train", steps=None, epochs=2)
    assert len(training_set(named)) == TOTAL and seen(named, 0, 20) == whole
    scanned, real = [], tars.scan
    monkeypatch.setattr(tars, "scan", lambda path, place: scanned.append(place) or real(path, place))
    stream = training_set(named).source
    next(streams.order(stream, 4, 0, start=7, end=8))
    assert len(scanned) <= 2  # the last group of the epoch


def test_lengths_that_are_wrong_are_an_error_that_names_the_shard(tmp_path):
    written(tmp_path)
    told = {"filenames": tars.expand(PATTERN), "shard_lengths": [*SIZES[:3], 8, *SIZES[4:]]}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": told}}))
    with pytest.raises(ValueError, match=r"train-03\.tar: holds 9 samples, and _info\.json tells 8"):
        seen(config(tmp_path, train_split="train"), 0, 8)


def test_samples_are_shuffled_with_those_of_other_shards_and_no_more_than_a_group_is_held(tmp_path):
    stream = stored(config(written(tmp_path)), trained(config(tmp_path)), split=PATTERN)
    keys = list(stream.walk(0, 3, 1))
    assert sorted((k.place, k.number) for k in keys) == [(p, n) for p, size in enumerate(SIZES) for n in range(size)]
    places = [k.place for k in keys]
    assert places != sorted(places) and len(set(places[:10])) > 1
    assert [k.place for k in stream.walk()] == sorted(places)
    for first in (0, 1, 9, 31, 32, 40):
        assert list(stream.walk(first, 3, 1)) == keys[first:]


# ---- runs


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_01_killed_within_and_after_an_epoch_a_run_goes_on_to_the_same_bits(workers, tmp_path, monkeypatch):
    monkeypatch.undo()  # which would not reach processes of their own
    asked = config(written(tmp_path / "data"), steps=12, workers=workers, aa="rand-m9-mstd0.5-inc1", mixup=0.2, save_every=2)
    asked = dataclasses.replace(asked, val_samples=7)
    Trainer(dataclasses.replace(asked, workers=0), tmp_path / "whole").fit()
    killed(asked, tmp_path / "parts", 3)
    killed(asked, tmp_path / "parts", 9)
    Trainer(asked, tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.slow
def test_promise_01_two_processes_read_each_sample_once(tmp_path):
    asked = config(written(tmp_path / "data"), batch_size=2, steps=8)

    def rank(number: int, port: int) -> None:
        os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        trainer = Trainer(asked, tmp_path / "run")
        names, step = [], trainer._next

        def told():
            found = step()
            names.extend(found[0])
            return found

        trainer._next = told
        trainer.fit()
        (tmp_path / f"{number}.json").write_text(json.dumps(names))

    port = free_port()
    assert [exit_code(p) for p in [apart(rank, n, port) for n in range(2)]] == [0, 0]
    names = [name for n in range(2) for name in json.loads((tmp_path / f"{n}.json").read_text())]
    assert len(names) == len(set(names)) == TOTAL


# ---- evaluation


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("samples", [11, 1000])
def test_promise_12_evaluation_has_each_sample_once_in_order_and_takes_none_for_another(workers, samples, tmp_path):
    asked = config(written(tmp_path), workers=workers)
    data, groups = evaluate.test_set(asked, trained(asked), samples)
    model = Remember()
    found = evaluate.score(model, data, asked)
    count = min(samples, TOTAL)
    expected = [i * TOTAL // count for i in range(count)]
    values = (torch.cat(model.seen)[:, 0].mean((1, 2)) * 0.229 + 0.485) * 255 / 7
    assert isinstance(data, Picked) and values.round().tolist() == expected and len(groups) == count
    assert found.right.tolist() == [n % 2 == 0 for n in expected]


def test_promise_12_evaluation_leaves_nothing_out(tmp_path):
    asked = config(written(tmp_path, spoiled={13: {"png": coded(13)[:40], "cls": b"1"}}), max_bad=5)
    data, _ = evaluate.test_set(asked, trained(asked), TOTAL)
    with pytest.raises(BadFile, match=r"train-03\.tar\[0\] deep/0000"):
        evaluate.score(Remember(), data, asked)


# ---- bad samples


BAD = {
    "cut": {"png": coded(3)[:40], "cls": b"1"},
    "no label": {"png": coded(3)},
    "no picture": {"cls": b"1", "txt": b"x"},
    "label of words": {"png": coded(3), "cls": b"one"},
    "label too large": {"png": coded(3), "cls": b"2"},
    "label below 0": {"png": coded(3), "cls": b"-1"},
    "json": {"png": coded(3), "json": b'{"label": "1"}'},
    "pickled": {"pyd": b"cos\nsystem\n(S'touch hit'\ntR.", "cls": b"1"},
    "other format": {"png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "cls": b"1"},
    "huge": {"png": claiming(10_000, 12_000), "cls": b"1"},
}


@pytest.mark.parametrize("kind", BAD)
def test_promise_12_a_bad_sample_is_named_and_left_out_where_that_is_allowed(kind, tmp_path, caplog):
    whole = seen(config(written(tmp_path)), 0, 16)
    written(tmp_path, spoiled={3: BAD[kind]})
    with pytest.raises(BadFile, match=r"train-00\.tar\[3\] deep/0003.*--max-bad leaves out 0"):
        seen(config(tmp_path), 0, 8)
    with caplog.at_level(logging.WARNING, "train"):
        found = seen_but(config(tmp_path, max_bad=1), 16)
    assert found == [[n for n in batch if n != 3] for batch in whole]
    assert Counter("deep/0003" in line for line in caplog.messages) == {True: 1}  # in two epochs


def seen_but(asked: Config, end: int) -> list[list[int]]:
    """The same, of batches with gaps."""
    found = []
    for _, (pictures, _) in batches(training_set(asked), asked, start=0, end=end):
        found.append([round(float(v) / 7) for v in ((pictures[:, 0].mean((1, 2)) * 0.229 + 0.485) * 255)])
    return found


def test_promise_12_a_bad_sample_stays_known_when_a_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.undo()
    written(written(tmp_path / "data", spoiled={3: BAD["cut"]}), "val")
    asked = config(tmp_path / "data", val_split=PATTERN.replace("train", "val"), max_bad=1, steps=16)
    killed(asked, tmp_path / "run", 9)
    events = []
    trainer = Trainer(asked, tmp_path / "run", events.append)
    trainer.fit()
    assert len(trainer.data.ledger.known) == 1 and not [e for e in events if e["event"] == "bad"]


def test_promise_13_pixels_are_counted_before_anything_is_decoded(tmp_path):
    asked = config(written(tmp_path, spoiled={0: BAD["huge"]}))
    with nothing_decoded(), pytest.raises(BadFile, match=r"12000 x 10000 pixels, 120,000,000 in all, above 67,108,864"):
        evaluate.test_set(asked, trained(asked), TOTAL)[0][0]


def test_promise_15_what_lies_beside_a_picture_is_not_looked_at(tmp_path, monkeypatch):
    sample = {"pyd": b"cos\nsystem\n(S'touch hit'\ntR.", "pkl": b"x", "json": b"not json", "png": coded(3), "cls": b"1"}
    asked = config(written(tmp_path, spoiled={3: sample}))
    monkeypatch.chdir(tmp_path)
    assert sorted(itertools.chain(*seen(asked, 0, 8))) == list(range(TOTAL)) and not Path("hit").exists()


@pytest.mark.parametrize("name", ["pipe:touch hit; cat train-00.tar", "pipe:cat a.tar", "https://a.b/train-00.tar", "s3://a/b.tar"])
def test_promise_15_no_name_of_a_shard_is_run_or_fetched(name, tmp_path, monkeypatch):
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="only files are read, no addresses or commands"):
        training_set(config(tmp_path, train_split=name))
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": {"filenames": [name], "shard_lengths": [5]}}}))
    with pytest.raises(ValueError, match="only files are read, no addresses or commands"):
        training_set(config(tmp_path, train_split="train"))
    with pytest.raises(ValueError, match="only files are read, no addresses or commands"):
        training_set(config(Path(), data_dir="pipe:touch hit", train_split="a.tar"))
    assert not Path("hit").exists()


@pytest.mark.parametrize("left", [700, 5 * 1024, 5 * 1024 + 512, 11_000])
def test_a_shard_that_is_cut_or_damaged_is_an_error_that_names_it(left, tmp_path):
    asked = config(written(tmp_path))
    path = tmp_path / "train-03.tar"
    data = path.read_bytes()
    path.write_bytes(data[:left])
    with pytest.raises(BadFile, match=r"train-03\.tar: cannot be read as a tar shard"):
        seen(asked, 0, 8)
    path.write_bytes(data[:2048] + b"\xff" * 512 + data[2560:])  # amid headers
    with pytest.raises(BadFile, match=r"train-03\.tar: cannot be read as a tar shard"):
        seen(asked, 0, 8)


def test_labels_in_json_and_pictures_of_other_kinds_are_read(tmp_path):
    samples = [{"json": b'{"label": 1, "more": []}', kind.lower(): coded(9, kind)} for kind in ("JPEG", "WEBP")]
    keys = tars.scan(shard(tmp_path / "a.tar", samples))
    for key in keys:
        picture, label = tars.read(key, 64)
        assert label == 1 and abs(np.asarray(picture).mean() - 63) < 3


def test_names_are_parted_at_the_first_dot_and_what_is_no_plain_file_is_passed_over(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        folder, link = tarfile.TarInfo("a.dir/b"), tarfile.TarInfo("a.dir/l.png")
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(folder)
        tar.addfile(link)
        for name in ("._x.png", "README", "a.dir/" + "long" * 60 + ".seg.png", "a.dir/x.png", "a.dir/x.cls", "a.dir/x.png"):
            add(tar, name, b"1")
    keys = tars.scan(tmp_path / "a.tar")
    assert [(key.key[-5:], sorted(key.parts)) for key in keys] == [
        ("glong", ["seg.png"]),
        ("dir/x", ["cls", "png"]),
        ("dir/x", ["png"]),
    ]
    assert len({key.name for key in keys}) == len({int(key) for key in keys}) == 3


# ---- what is asked


def test_braces_name_shards():
    assert tars.expand("a-{08..11}.tar") == [f"a-{n:02d}.tar" for n in range(8, 12)]
    assert tars.expand("{x,y}/{9..10}.tar::z.tar") == ["x/9.tar", "x/10.tar", "y/9.tar", "y/10.tar", "z.tar"]
    for wrong, says in (
        ("{0..9999999}.tar", "1,000,000"),
        ("{5..1}.tar", "lesser number"),
        ("{a,{b}}.tar", "not one another"),
        ("{1..1000}{1..1001}.tar", "at most"),
        ("{a,a}.tar", "twice"),
        ("{1..2.tar", "braces"),
    ):
        with pytest.raises(ValueError, match=says):
            tars.expand(wrong)


def test_an_unknown_length_needs_steps_and_a_told_one_gives_epochs(tmp_path):
    asked = config(written(tmp_path), steps=None, epochs=2)
    with pytest.raises(ValueError, match=r"does not tell how many samples.*--steps.*\|100000"):
        training_set(asked)
    told = Trainer(dataclasses.replace(asked, train_split=f"{PATTERN}|{TOTAL}"), tmp_path / "run")
    assert told.steps == 2 * TOTAL // 4
    assert Trainer(config(tmp_path, steps=3), tmp_path / "other").steps == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train_split": "train"}, "no _info.json that names it; give shards"),
        ({"train_split": "train-{00..06}.tar"}, r"train-06\.tar: there is no such shard"),
        ({"train_split": "train-00.tar.gz"}, "a shard is a plain .tar"),
        ({"train_split": "train-00.tar|many"}, "the number of samples"),
    ],
)
def test_what_cannot_be_read_is_said_at_the_start(changes, says, tmp_path):
    written(tmp_path)
    with pytest.raises(ValueError, match=says):
        training_set(config(tmp_path, **changes))


def test_shards_may_be_named_behind_wds(tmp_path):
    asked = config(written(tmp_path), dataset=f"wds/{PATTERN}", train_split="train")
    assert seen(asked, 0, 8) == seen(config(tmp_path), 0, 8)


def test_fewer_samples_than_a_batch_are_an_error(tmp_path):
    asked = config(written(tmp_path), batch_size=33)
    for start in (0, 2):
        with pytest.raises(ValueError, match="32 training pictures are fewer than one batch of 33"):
            seen(asked, start, 3)


# ---- hfids


@pytest.fixture
def tables(tmp_path) -> Path:
    """Parquet files, three of 32 rows together."""
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["even", "odd"])
    features = datasets.Features({"image": datasets.Image(), "label": label, "id": datasets.Value("int32")})
    numbers = itertools.count()
    for part, size in enumerate((12, 3, 17)):
        rows = [{"image": {"bytes": coded(n), "path": None}, "label": n % 2, "id": n} for n in itertools.islice(numbers, size)]
        datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "data" / "set" / f"train-{part}.parquet")
    return tmp_path / "data"


def hub(root: Path, **changes) -> Config:
    return config(root, **{"dataset": "hfids/set", "train_split": "train", "val_split": "train", **changes})


def test_hfids_has_each_sample_once_and_goes_on_anywhere_with_any_number_of_workers(tables, monkeypatch):
    monkeypatch.setattr("train.hfids.BLOCK", 10)
    whole = seen(hub(tables), 0, 16)
    for epoch in (whole[:8], whole[8:]):
        assert sorted(itertools.chain(*epoch)) == list(range(TOTAL))
    assert whole[:8] != whole[8:]
    for start in (1, 7, 8, 13):
        assert seen(hub(tables), start, 16) == whole[start:]
    assert seen(hub(tables, workers=2), 5, 16) == whole[5:]


def test_hfids_runs_go_on_to_the_same_bits_and_are_evaluated_in_order(tables, tmp_path, monkeypatch):
    monkeypatch.undo()
    asked = hub(tables, steps=10, val_samples=9)
    Trainer(asked, tmp_path / "whole").fit()
    killed(asked, tmp_path / "parts", 5)
    Trainer(asked, tmp_path / "parts").fit()
    assert same(state(tmp_path / "parts"), state(tmp_path / "whole"))
    data, _ = evaluate.test_set(asked, trained(asked), 9)
    model = Remember()
    found = evaluate.score(model, data, asked)
    assert found.right.tolist() == [i * TOTAL // 9 % 2 == 0 for i in range(9)]


def test_hfids_reads_folders_of_pictures_and_refuses_what_unpickles(tmp_path):
    pytest.importorskip("datasets")
    for label in ("even", "odd"):
        (tmp_path / "set" / "train" / label).mkdir(parents=True)
    for n in range(8):
        (tmp_path / "set" / "train" / ("even", "odd")[n % 2] / f"{n}.png").write_bytes(coded(n))
    assert sorted(itertools.chain(*seen(hub(tmp_path), 0, 2))) == list(range(8))
    assert isinstance(training_set(hub(tmp_path)).source, Stream)
    (tmp_path / "shards").mkdir()
    shard(tmp_path / "shards" / "train-0.tar", [{"png": coded(1), "cls": b"1"}])
    with pytest.raises(ValueError, match="is not read, but parquet, arrow, imagefolder"):
        training_set(hub(tmp_path, dataset="hfids/shards"))
    with pytest.raises(ValueError, match=r"hfids/set.*split 'other'"):
        training_set(hub(tmp_path, train_split="other"))
