"""Features without a head: neighbours, intervals, the cache, and the models that are compared."""

import csv
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from train.probe import COOLER, Cache, bounds, candidates, compare, digest, labelled, probe, right
from train.retrofit.config import Config
from train.retrofit.distil import features, normalise
from train.retrofit.engine import Retrofit
from train.retrofit.images import files, whole

OPTIONS = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "init_values": 0.5}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Three colours as classes, five images each."""
    root, random = tmp_path_factory.mktemp("pictures"), torch.Generator().manual_seed(0)
    for channel, name in enumerate(("red", "green", "blue")):
        (root / name).mkdir()
        for i in range(5):
            noise = torch.randint(80, (6, 6, 3), generator=random, dtype=torch.uint8)
            noise[..., channel] += 170
            Image.fromarray(noise.numpy()).resize((40, 40), Image.Resampling.BICUBIC).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory, pictures) -> Path:
    """A small retrofit."""
    root = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", **OPTIONS)
    model.pos_embed.data.normal_(std=0.5)
    save_file(model.state_dict(), root / "weights.safetensors")
    kwargs = tuple(f"{key}={value}" for key, value in OPTIONS.items())
    given = {"weights": root / "weights.safetensors", "model_kwargs": kwargs, "output": root / "out", "sizes": (32,)}
    small = {"steps": 2, "batch_size": 2, "measure_images": 2, "threads": 1, "home": (16, 32)}
    Retrofit(Config("vit_small_patch14_dinov2", pictures, **given, **small)).fit()
    return root / "out"


def test_neighbours_vote_by_cosine_and_never_for_themselves():
    pooled = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 2.0], [1.0, 0.3]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    assert right(pooled, labels, k=1).tolist() == [True, True, True, True, False]
    assert right(torch.eye(2), torch.tensor([0, 1]), k=1).tolist() == [False, False]


def test_neighbours_are_those_of_a_plain_loop():
    random = torch.Generator().manual_seed(0)
    pooled, labels = torch.randn(40, 6, generator=random, dtype=torch.float64), torch.arange(40) % 4
    expected = []
    for i in range(40):
        cosines = [(float(pooled[i] @ pooled[j] / pooled[i].norm() / pooled[j].norm()), j) for j in range(40) if j != i]
        votes = [0.0] * 4
        for cosine, j in sorted(cosines, reverse=True)[:5]:
            votes[int(labels[j])] += (cosine + 1) / 2
        expected.append(votes.index(max(votes)) == int(labels[i]))
    assert right(pooled, labels, k=5).tolist() == expected


def test_length_of_features_does_not_matter_to_neighbours():
    pooled, labels = torch.randn(30, 8), torch.arange(30) % 3
    scale = torch.rand(30, 1) + 0.1
    assert torch.equal(right(pooled, labels), right(pooled * scale, labels))


def test_an_interval_holds_the_mean_and_shrinks_with_images():
    values = (torch.arange(400) % 2).double()
    few, many = bounds(values[:40]), bounds(values)
    assert few[0] == many[0] == 0.5
    assert few[1] < many[1] < 0.5 < many[2] < few[2]
    assert many[2] - many[1] == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.15)
    assert bounds(torch.ones(5)) == (1.0, 1.0, 1.0)


def test_labels_are_folders_and_samples_always_the_same(pictures, tmp_path):
    paths, labels = labelled(pictures, None)
    assert len(paths) == 15 and [path.parent.name for path in paths[::5]] == ["blue", "green", "red"]
    assert labels.bincount().tolist() == [5, 5, 5]
    some, of = labelled(pictures, 8)
    assert some == labelled(pictures, 8)[0] and len(some) == 8 and of.bincount().tolist() in ([5, 3], [3, 5])
    assert labelled(pictures, 6, each=2)[1].bincount().tolist() == [2, 2, 2]
    (tmp_path / "alone").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "alone" / "a.png")
    with pytest.raises(ValueError, match="no class has two images"):
        labelled(tmp_path, None)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="a folder a class"):
        labelled(tmp_path, None)


def test_held_out_images_are_taken_where_there_are_some(tmp_path):
    for side, count in (("train", 3), ("val", 2)):
        (tmp_path / side / "a").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (4, 4)).save(tmp_path / side / "a" / f"{i}.png")
    assert [path.parent.parent.name for path in labelled(tmp_path, None)[0]] == ["val", "val"]


def test_kept_features_are_those_of_the_model_and_are_made_once(run, pictures, tmp_path, monkeypatch):
    found, _ = candidates(run, None)
    model, code = found["retrofitted"]
    paths, cache = files(pictures)[:2], Cache(tmp_path)
    first = list(cache.of(model, code, paths, 24))
    with torch.no_grad():
        direct = features(model, normalise(whole(paths[1], 24)[None], model, "cpu"))
    torch.testing.assert_close(first[1].pooled, direct.pooled)
    torch.testing.assert_close(first[1].patches, direct.patches, atol=2e-3, rtol=2e-3)
    assert first[1].extent == (3, 3)
    monkeypatch.setattr("train.probe.features", None)
    again = list(cache.of(model, code, paths, 24))
    assert all(torch.equal(a.patches, b.patches) for a, b in zip(first, again))
    with pytest.raises(TypeError):
        list(cache.of(model, code, paths, 32))


def test_a_digest_knows_weights_and_what_is_named():
    one, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    other.load_state_dict(one.state_dict())
    assert digest(one, "a") == digest(other, "a") != digest(one, "b")
    other.bias.data[0] += 1e-6
    assert digest(one, "a") != digest(other, "a")


def test_models_that_are_compared_are_what_they_are_called(run):
    found, _ = candidates(run, "log")
    first, retrofitted, control = (found[name][0] for name in ("original", "retrofitted", "control"))
    assert (control.wrapped.absolute, control.encoding.strength) == (0.0, (1.0, 1.0))
    assert not torch.equal(retrofitted.blocks[0].attn.qkv.weight, first.blocks[0].attn.qkv.weight)
    assert torch.equal(control.blocks[0].attn.qkv.weight, first.blocks[0].attn.qkv.weight)
    x = torch.randn(1, 3, 64, 64)
    assert not torch.equal(found[COOLER][0](x), first(x))
    assert torch.equal(found[COOLER][0](x[..., :32, :32]), first(x[..., :32, :32]))
    assert len({code for _, code in found.values()}) == 4


def test_the_original_is_its_own_truth_and_the_control_is_not(run, pictures, tmp_path):
    found, _ = candidates(run, None)
    paths, labels = labelled(pictures, None)
    rows = {row.model: row for row in compare(found, paths, labels, 32, 32, Cache(tmp_path), k=3)}
    assert rows["original"].patches == pytest.approx(1) and rows["original"].pooled == pytest.approx(1)
    assert (rows["original"].apart, rows["original"].apart_low, rows["original"].apart_high) == (0, 0, 0)
    assert rows["control"].patches < 0.99
    assert rows["control"].apart == pytest.approx(rows["control"].knn - rows["original"].knn)
    assert all(row.patches_low <= row.patches <= row.patches_high for row in rows.values())


def test_a_probe_writes_rows_of_every_model_and_size(run, pictures, tmp_path):
    told: list[str] = []
    rows = probe(run, pictures, ratios=(0.5, 1, 2), cache=tmp_path / "f", output=tmp_path / "p.csv", threads=1, report=told.append)
    assert [(row.size, row.target) for row in rows if row.model == "original"] == [(16, 16), (32, 32), (64, 32)]
    assert [row.size for row in rows if row.model == COOLER] == [64]
    with (tmp_path / "p.csv").open() as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows) == 10 and float(read[0]["patches"]) == rows[0].patches
    assert told[0] == "original at 16 px"


def test_a_size_of_no_whole_patches_and_an_unfinished_run_are_refused(run, pictures, tmp_path):
    with pytest.raises(ValueError, match="size 20 is no multiple of the patch 8: the nearest is 16"):
        probe(run, pictures, sizes=(20,), cache=tmp_path)
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(ValueError, match="not finished"):
        probe(tmp_path, pictures, cache=tmp_path)
