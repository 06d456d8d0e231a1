"""What is said of a model's inside at larger sizes: entropy, distance and spread of its attention."""

import csv
import math

import pytest
import torch

from tests.promises.runs import tiny
from train import breaks
from train.engine import Trainer
from train.modelling import build


def grid(height: int, width: int) -> list[tuple[int, int]]:
    return [(y, x) for y in range(height) for x in range(width)]


def test_a_model_that_looks_everywhere_alike_has_entropy_one_no_spread_and_the_mean_distance():
    model = build(tiny(encoding="axial")).eval()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)
        torch.nn.init.zeros_(block.attn.qkv.bias)
    _, layers = breaks.look(model, torch.randn(5, 3, 24, 40), (3, 5))
    far = [math.dist(one, other) for one in grid(3, 5) for other in grid(3, 5)]
    assert len(layers) == 2
    for layer in layers:
        assert layer == pytest.approx({"entropy": 1, "distance": sum(far) / len(far), "spread": 0}, abs=1e-5)


def test_the_measures_are_those_of_their_formulas_and_hidden_keys_are_left_out():
    shares = torch.rand(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shares[..., 4] = 0  # hidden from all
    shares /= shares.sum(-1, keepdim=True)
    entropies, distances, spreads = [], [], []
    for row in shares[:, :, 1:].flatten(0, 1).flatten(0, 1).view(2, 3, 5, 6).permute(2, 0, 1, 3).reshape(5, -1, 6):
        entropies += [-sum(p * math.log(p) for p in one if p) / math.log(6) for one in row.tolist()]
        for one in row.tolist():
            logs = [math.log(p) for p in one if p]
            spreads.append(math.sqrt(sum((v - sum(logs) / 5) ** 2 for v in logs) / 5))
    for query in range(5):  # patches of a row of five, after a class token
        for one in shares[:, :, 1 + query].flatten(0, 1).tolist():
            distances.append(sum(p * abs(key - query) for key, p in enumerate(one[1:])) / sum(one[1:]))
    expected = [sum(each) / len(each) for each in (entropies, distances, spreads)]
    torch.testing.assert_close(breaks.measures(shares, (1, 5), 1), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_study_is_looked_into_by_size_and_rule(tmp_path):
    for encoding in ("none", "axial"):
        Trainer(tiny(encoding=encoding, steps=2), tmp_path / f"{encoding}-0").fit()
    breaks.main(tmp_path, ratios=(1, 2), samples=6, tests=("canvas",))
    rows = list(csv.DictReader((tmp_path / "breaks.csv").open()))
    found = [(row["encoding"], float(row["ratio"]), row["scaling"], row["layer"]) for row in rows]
    rules = {"axial": ("none", "pi"), "none": ("none",)}
    assert found == [
        (name, r, rule, str(i)) for name in ("axial", "none") for r in (1, 2) for rule in rules[name] for i in range(2)
    ]
    assert all(0 < float(row["entropy"]) <= 1 and float(row["distance"]) > 0 and row["commit"] for row in rows)
    assert (tmp_path / "breaks-canvas.png").read_bytes().startswith(b"\x89PNG") and not (tmp_path / "breaks-zoom.png").exists()
    with pytest.raises(ValueError, match="no trained model"):
        breaks.main(tmp_path / "axial-0")
