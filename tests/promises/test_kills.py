"""The script that kills a training again and again: it ends with the bits of one that was left alone, and sees when it does not."""

import json

import pytest
import torch

from train import kills


@pytest.mark.slow
def test_promise_01_killed_at_random_moments(tmp_path):
    kills.main(tmp_path / "kills", kills=3, steps=80, longest=1.0)
    summary = json.loads((tmp_path / "kills" / "summary.json").read_text())
    assert (summary["kills"], summary["mismatches"]) == (3, 0) and summary["resumes"] >= 3
    lives = [json.loads(line) for line in (tmp_path / "kills" / "kills.jsonl").read_text().splitlines()]
    assert [life["code"] for life in lives] == [-9] * 3 and all(life["to_step"] >= life["from_step"] for life in lives)


def test_one_flipped_bit_is_not_the_same():
    one = {"a": [torch.tensor([1.0, 2.0])], "b": (1, "x")}
    assert kills.same(one, {"a": [torch.tensor([1.0, 2.0])], "b": (1, "x")})
    assert not kills.same(one, {"a": [torch.tensor([1.0, 2.0]).nextafter(torch.tensor(9.0))], "b": (1, "x")})
    assert not kills.same(one, {"a": [torch.tensor([1.0, 2.0], dtype=torch.float64)], "b": (1, "x")})
    assert not kills.same(one, {"a": one["a"]}) and not kills.same(torch.ones(2), [1.0, 1.0])


def test_times_are_not_compared():
    assert kills.timeless({"seconds": 1.0, "log": [{"loss": 2.0, "waited": 3.0}]}) == {"log": [{"loss": 2.0}]}
