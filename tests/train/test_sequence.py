"""The sequence task: what it asks, that only positions answer it, and what its rows hold."""

import math

import pytest
import torch

from rope_nd import list_encodings
from rope_nd.registry import scalings
from train.rows import COLUMNS
from train.sequence import Reader, SequenceTask, draw, measure, pairs, run, show

TINY = SequenceTask(
    tokens=24, test_tokens=(24, 48), test_sequences=16, vocabulary=4, shift=2, dim=16, depth=1, batch=4, steps=3, theta=100.0
)
LEARNS = SequenceTask(
    tokens=32, test_tokens=(32,), test_sequences=32, vocabulary=8, shift=2, dim=32, depth=2, batch=16, steps=80, theta=100.0
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def by(rows, **names):
    return [row for row in rows if all(row[name] == value for name, value in names.items())]


def test_the_target_is_the_token_shift_places_back():
    rows = draw(TINY, 0, 0, 24, 5)
    logits, targets = pairs(torch.arange(24.0).expand(5, 24)[..., None], rows, 2)
    assert logits.shape[:2] == targets.shape == (5, 22)
    for place in range(2, 24):
        assert (logits[:, place - 2, 0] == place).all()
        assert torch.equal(targets[:, place - 2], rows[:, place - 2])


def test_rows_of_tokens_are_a_function_of_seed_step_and_length_and_use_the_whole_vocabulary():
    rows = draw(TINY, 3, 7, 24, 50)
    assert torch.equal(rows, draw(TINY, 3, 7, 24, 50))
    assert rows.shape == (50, 24) and rows.unique().tolist() == [0, 1, 2, 3]
    for seed, step in ((4, 7), (3, 8), (3, -1)):
        assert not torch.equal(rows, draw(TINY, seed, step, 24, 50))


def test_a_model_that_copies_the_token_shift_places_back_is_always_right_and_another_shift_is_chance():
    def copier(back):
        return lambda rows: torch.nn.functional.one_hot(rows.roll(back, 1), 4).float()

    assert measure(copier(2), TINY, 0, 48) == {"accuracy": 1.0, "low": 1.0, "high": 1.0}
    wrong = measure(copier(3), TINY, 0, 48)
    assert abs(wrong["accuracy"] - 0.25) < 0.08 and wrong["low"] < wrong["accuracy"] < wrong["high"]


@pytest.mark.parametrize("encoding", ["axial", "learned"])
def test_the_same_seed_gives_the_same_rows_and_leaves_the_global_generator_alone(encoding):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = run(encoding, TINY, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert first == run(encoding, TINY, seed=2)
    assert first != run(encoding, TINY, seed=3)


def test_rotary_learns_the_task_and_without_positions_it_stays_at_chance():
    (rotary,), (none,) = run("axial", LEARNS), run("none", LEARNS)
    assert rotary["low"] > 0.9
    assert none["accuracy"] < 0.25  # 1 in 8, and what counting tokens adds in so short a row


@pytest.mark.parametrize("encoding", list_encodings())
def test_every_encoding_has_rows_of_all_that_applies_to_it(encoding):
    rules, factors = ("none", "pi", "ntk", "yarn"), ("none", "log", "yarn")
    rows = run(encoding, TINY, scalings=rules, temperatures=factors)
    applies = ("pi",) if encoding == "learned" else [rule for rule in rules if rule in scalings(encoding)]
    expected = [(width, rule, factor) for width in (24, 48) for rule in applies for factor in factors]
    assert [(row["width"], row["scaling"], row["temperature"]) for row in rows] == expected
    for row in rows:
        assert {"encoding", "seed", "test", "height", "width", "scaling", "temperature"} <= set(row)
        assert {"accuracy", "low", "high", "images", "ratio"} <= set(row) <= set(COLUMNS)
        assert (row["encoding"], row["seed"], row["test"], row["height"], row["images"]) == (encoding, 0, "sequence", 1, 16)
        assert row["ratio"] == row["width"] / 24
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
    assert len({row["accuracy"] for row in by(rows, width=24)}) == 1
    assert show(rows).row_count == len(applies) * len(factors)


SCALED = [(name, rule) for name in list_encodings() for rule in ("pi", "ntk", "yarn") if rule in scalings(name)]


@pytest.mark.parametrize("encoding, scaling", [p for p in SCALED if p[0] not in ("learned", "fourier")])  # always laid over
def test_a_scaling_changes_nothing_at_the_trained_length_and_something_beyond(encoding, scaling):
    torch.manual_seed(0)
    plain, scaled = Reader(encoding, TINY), Reader(encoding, TINY, scaling=scaling)
    scaled.load_state_dict(plain.state_dict())
    short, long = draw(TINY, 0, 0, 24, 2), draw(TINY, 0, 0, 48, 2)
    torch.testing.assert_close(plain(short), scaled(short))
    assert not torch.allclose(plain(long), scaled(long), atol=1e-5)


@pytest.mark.parametrize("encoding", [name for name in list_encodings() if name not in ("pope", "pape")])  # not linear in q
def test_a_temperature_is_one_factor_on_the_queries_beyond_the_trained_length(encoding):
    torch.manual_seed(0)
    plain, sharp = Reader(encoding, TINY), Reader(encoding, TINY, temperature="log")
    sharp.load_state_dict(plain.state_dict())
    short, long = draw(TINY, 0, 0, 24, 2), draw(TINY, 0, 0, 48, 2)
    torch.testing.assert_close(plain(short), sharp(short))
    with torch.no_grad():
        for block in plain.blocks:
            block.attn.qkv.weight[:16] *= math.log(48) / math.log(24)
            block.attn.qkv.bias[:16] *= math.log(48) / math.log(24)
    torch.testing.assert_close(plain(long), sharp(long))


@pytest.mark.parametrize("encoding", list_encodings())
def test_only_an_encoding_makes_the_order_of_the_tokens_matter(encoding):
    torch.manual_seed(0)
    model, rows = Reader(encoding, TINY), draw(TINY, 0, 0, 24, 2)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))  # no mirror image: ALiBi does not see that one
    same = torch.allclose(model(rows)[:, order], model(rows[:, order]), atol=1e-5)
    assert same == (encoding == "none")


@pytest.mark.parametrize(
    "encoding, applies",
    [
        ("axial", [("none", "none"), ("pi", "none"), ("none", "log")]),
        ("learned", [("pi", "none"), ("pi", "log")]),
        ("none", [("none", "none"), ("none", "log")]),
    ],
)
def test_chosen_pairs_of_scaling_and_temperature_are_measured_once_each_as_far_as_they_apply(encoding, applies):
    rows = run(encoding, TINY, rules=(("none", "none"), ("pi", "none"), ("none", "log")))
    assert [(row["scaling"], row["temperature"]) for row in by(rows, width=48)] == applies


def test_names_that_are_not_known_are_refused_before_training():
    heard = []
    with pytest.raises(ValueError, match=r"unknown encoding 'axail'.*did you mean 'axial'"):
        run("axail", TINY, report=heard.append)
    with pytest.raises(ValueError, match="unknown scaling 'yran'"):
        run("axial", TINY, scalings=("none", "yran"), report=heard.append)
    with pytest.raises(ValueError, match="unknown temperature 'hot'"):
        run("none", TINY, temperatures=("hot",), report=heard.append)
    assert not heard


@pytest.mark.parametrize("wrong", [{"shift": 24}, {"shift": 0}, {"steps": 0}, {"heads": 3, "dim": 16}])
def test_a_task_that_cannot_be_is_refused_with_the_value(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SequenceTask(**{"tokens": 24, "test_tokens": (24,), **wrong})


def test_progress_is_reported_to_the_end():
    heard = []
    run("axial", TINY, report=heard.append)
    assert [event["step"] for event in heard] == [1, 2, 3]
    assert all(event["event"] == "step" and math.isfinite(event["loss"]) for event in heard)
