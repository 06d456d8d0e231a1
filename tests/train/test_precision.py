"""Rounded keys in trained models: exactly what attention sees, nothing else, and rows for each way."""

import csv

import pytest
import timm
import torch

from rope_nd import wrap
from rope_nd.precision import quantise
from rope_nd.wrapping import Where
from train import precision
from train.config import Config
from train.engine import Trainer

TINY = ("patch_size=8", "embed_dim=32", "depth=2", "num_heads=2", "mlp_ratio=2", "class_token=False", "global_pool=avg")


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=4)
    return wrap(made, name).eval()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("per", ["token", "channel"])
def test_keys_are_rounded_where_it_says_and_queries_and_values_are_not(when, per, monkeypatch):
    net, seen = model("axial"), []
    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, k, v, *a, **b: seen.append((q, k, v)) or plain(q, k, v, *a, **b),
    )
    x = torch.randn(2, 3, 40, 32)
    with torch.no_grad():
        net(x)
        exact = seen.pop(0)
        seen.clear()
        with precision.rounded(net, "int4", per, when):
            net(x)
        rotation = net.encoding.at(5, 4)
        unturned = type(rotation)(rotation.cos, -rotation.sin, rotation.layout, rotation.prefix_tokens)(exact[1])
    q, k, v = seen[0]
    expected = quantise(exact[1], "int4", per=per) if when == "after" else rotation(quantise(unturned, "int4", per=per))
    assert torch.equal(q, exact[0]) and torch.equal(v, exact[2]) and not torch.allclose(k, exact[1])
    assert (k - expected).abs().mean() < 1e-3  # a value on the edge between two levels may fall on the other side


def test_afterwards_the_model_is_as_it_was():
    net, x = model("mixed"), torch.randn(1, 3, 32, 32)
    before = net(x)
    with precision.rounded(net, "int4", "token", "after"):
        assert not torch.allclose(net(x), before)
    assert torch.equal(net(x), before) and "_where" not in vars(net)
    assert type(net.start(x)[1]) is Where


def test_a_model_that_is_not_wrapped_is_refused():
    with (
        pytest.raises(ValueError, match="VisionTransformer is not wrapped"),
        precision.rounded(timm.create_model("vit_tiny_patch16_224"), "int8", "token", "after"),
    ):
        pass


@pytest.mark.parametrize("encoding", ["axial", "learned"])
def test_a_study_is_measured_with_every_way_of_rounding(tmp_path, encoding):
    small = {"train_samples": 64, "val_samples": 20, "steps": 2, "batch_size": 8, "workers": 0, "threads": 1}
    config = Config(model_kwargs=TINY, img_size=(16,), classes="01", encoding=encoding, **small)
    Trainer(config, tmp_path / f"{encoding}-0").fit()
    precision.main(tmp_path, ratios=(1, 2), formats=("fp16", "int4"), samples=20)
    rows = list(csv.DictReader((tmp_path / "precision.csv").open()))
    ways = {(row["format"], row["per"], row["when"]) for row in rows}
    whens = ("before", "after") if encoding == "axial" else ("before",)
    expected = {("fp16", "token", when) for when in whens} | {("int4", per, when) for per in ("token", "channel") for when in whens}
    assert ways == {("float32", "token", "before")} | expected
    assert {(row["height"], row["scaling"]) for row in rows} == {("16", "none"), ("32", "none"), ("32", "pi")}
    assert "| int4 a channel, before |" in (tmp_path / "precision.md").read_text()


def test_a_folder_without_models_is_named(tmp_path):
    with pytest.raises(ValueError, match="no trained models there"):
        precision.main(tmp_path)
