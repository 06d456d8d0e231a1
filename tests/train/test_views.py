"""Pictures with and without a whole glyph, and a study that reads with windows."""

import numpy as np
import pytest
import torch

from tests.promises.runs import tiny
from train.answers import answer_count, class_count
from train.cases import case
from train.data import training_set
from train.engine import Trainer
from train.evaluate import measure
from train.glyphs import draw, views
from train.glyphs.draw import CLASSES
from train.glyphs.views import Views
from train.rules import READINGS, usable


def shown(count: int = 600, rest: float = 0.5) -> list:
    data = Views("train", length=count, rest=rest, seed=3)
    samples = draw.samples(3, "train", range(count))
    return [(s, data._shown(s)) for s in samples]


def test_whole_glyphs_are_inside_and_legible_and_parts_are_cut():
    for sample, view in shown():
        if not view.side:
            continue
        h, w = draw.span(sample.font, sample.char, view.side)
        seen = views.inside(view.top, h) * views.inside(view.left, w)
        if view.whole:
            assert seen == pytest.approx(1) and views.LEGIBLE <= view.side <= views.LARGE
        else:
            assert seen < views.WHOLE or view.side <= views.LEGIBLE / 2


def test_labels_say_what_is_shown_and_the_share_without_a_glyph_is_that_asked_for():
    data = Views("train", length=600, rest=0.5, seed=3)
    pictures, labels = data.batch(range(600))
    assert pictures.shape == (600, 3, 32, 32) and pictures.dtype == torch.uint8
    expected = [s.label if view.whole else len(CLASSES) for s, view in shown()]
    assert labels.tolist() == expected and 0.43 < (labels == len(CLASSES)).double().mean() < 0.57
    assert (Views("train", length=300, rest=0.0).batch(range(300))[1] < len(CLASSES)).all()


def test_a_picture_depends_on_its_number_alone():
    data = Views("train", length=50, seed=3)
    together, labels = data.batch([7, 31, 2])
    for i, picture, label in zip((7, 31, 2), together, labels):
        assert torch.equal(data[i][0], picture) and data[i][1] == label
    assert not torch.equal(Views("train", length=50, seed=4)[7][0], together[0])


def test_without_strokes_a_whole_glyph_is_all_that_is_drawn():
    data = Views("train", length=200, rest=0.0, seed=5)
    samples = draw.samples(5, "train", range(200))
    for i, sample in enumerate(samples):
        view = data._shown(sample)
        if not view.field:
            mask = draw.glyph(sample.font, sample.char, view.side * 32, view.top * 32, view.left * 32, (32, 32))
            assert np.array_equal(draw.paint(mask[None], [sample])[0], data[i][0].numpy())


def test_the_rest_is_one_more_class_and_never_an_answer(tmp_path):
    config = tiny(rest=0.5, tests=("zoom", "canvas"), steps=4)
    assert (class_count(config), answer_count(config), len(training_set(config))) == (5, 4, 80)
    trainer = Trainer(config, tmp_path)
    with torch.no_grad():
        trainer.model.head.bias[-1] = 100.0  # sure of the rest, everywhere
    assert trainer.fit()["accuracy"] > 0


def test_readings_are_rules_like_others_and_at_the_training_size_the_model_itself(tmp_path):
    Trainer(tiny(rest=0.4), tmp_path).fit()
    config = tiny(rest=0.4)
    rules = [("none",), *((name,) for name in READINGS)]
    rows = list(measure(tmp_path, [(case(config, "zoom", ratio), 20, rules) for ratio in (1, 2)], {"command": "", "commit": ""}))
    assert [row.scaling for row in rows[:4]] == ["none", "whole", "windows", "pyramid"]
    assert len({row.accuracy for row in rows[:4]}) == 1


def test_readings_mean_something_for_every_encoding_where_positions_are_counted():
    for encoding in ("none", "timm", "axial", "learned"):
        assert [rule.scaling for rule in usable(encoding, [("pyramid",), ("windows",)])] == ["pyramid", "windows"]
    assert not usable("axial", [("pyramid", "none", "units")])


@pytest.mark.parametrize(
    "wrong", [{"rest": 1.0}, {"rest": -0.1}, {"rest": 0.5, "dataset": "arrows", "classes": None, "tests": None}]
)
def test_a_wrong_share_is_named(wrong):
    with pytest.raises(ValueError, match=f"rest={wrong['rest']}"):
        tiny(**wrong)
