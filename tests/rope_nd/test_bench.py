"""The benchmark counts right: fields, ratios, intervals, lines, memory; what is not installed is named. No time is asserted."""

import gc
import itertools
import json
import statistics

import pytest
import torch

from rope_nd import RoPE
from rope_nd.bench import __main__ as bench
from rope_nd.bench import memory, rivals, rotation, row, tables, timing
from rope_nd.bench.timing import Subject, fit, interleaved, interval, paired

CPU = torch.device("cpu")
NAMED = {"name", "device", "dtype", "layout", "form", "direction", "shape", "per_head", "ms", "ratio"}
SMALL = ["--shape", "2", "17", "2", "8", "--rounds", "2"]


def run(tmp_path, *arguments):
    bench.main([*arguments, "--json", str(tmp_path / "rows.json")])
    return json.loads((tmp_path / "rows.json").read_text())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "RIVALS", {name: rivals.RIVALS[name] for name in ("timm", "textbook")})
        return run(tmp_path_factory.mktemp("bench"), "--what", "rotation", "tables", *SMALL)


def test_the_interval_of_ten_values_is_from_the_second_to_the_ninth():
    values = [5.0, 1, 9, 3, 7, 10, 2, 8, 4, 6]  # P(X < 2) = 11 / 1024: 97.9 %; P(X < 3) = 56 / 1024: 89.1 %
    assert interval(values) == (2, 9) and interval(values, level=0.89) == (3, 8)


@pytest.mark.parametrize(("n", "low"), [(6, 1), (9, 2), (20, 6), (30, 10), (100, 40)])  # of the tables of the sign test
def test_the_interval_has_the_ranks_of_the_sign_test(n, low):
    assert interval([float(i) for i in range(n, 0, -1)]) == (low, n + 1 - low)


def test_five_values_have_no_interval():
    with pytest.raises(ValueError, match="5 values have no interval of 95%: take at least 6"):
        interval([1.0] * 5)


def test_ratios_are_taken_round_by_round():
    slow_machine = [1.0, 2, 4, 8, 16, 32]
    assert paired([2 * t for t in slow_machine], slow_machine) == (2, 2, 2)
    ratio, low, high = paired([1.0, 1, 1, 9, 9, 9], [1.0, 2, 1, 9, 3, 9])
    assert (ratio, low, high) == (1, 0.5, 3) and ratio != statistics.median([1.0, 1, 1, 9, 9, 9]) / statistics.median(
        [1, 2, 1, 9, 3, 9]
    )


def test_the_line_is_that_of_least_squares():
    assert fit([0.0, 1, 2], [0.0, 1, 1]) == pytest.approx((1 / 2, 1 / 6, 3 / 4))
    assert fit([1.0, 2, 4], [3.0, 5, 9]) == pytest.approx((2, 1, 1))
    with pytest.raises(ValueError, match="two different sizes"):
        fit([3.0, 3], [1.0, 2])


def test_every_round_runs_each_once_in_changing_order_without_collection_and_preparation_does_not_count(monkeypatch):
    now, calls = [0], []
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: now[0])

    def subject(name, cost):
        def prepare():
            now[0] += 50_000_000
            return name

        def work(given):
            calls.append(given)
            assert not gc.isenabled()
            now[0] += cost

        return Subject(name, work, prepare)

    found = interleaved([subject("a", 1_000_000), subject("b", 2_500_000)], rounds=20, warmup=2, device=CPU)
    assert found == [[1.0] * 20, [2.5] * 20] and gc.isenabled()
    rounds = (
        [tuple(pair) for pair in itertools.batched(calls, 2)]
        if hasattr(itertools, "batched")
        else list(zip(calls[::2], calls[1::2]))
    )
    assert len(rounds) == 22 and set(rounds) == {("a", "b"), ("b", "a")}


def test_the_peak_is_the_highest_point_of_what_is_allocated_and_freed():
    x = torch.zeros(1000, 250)  # 1 MB

    def work():
        y = torch.cat([x, x])  # 2
        z = torch.cat([y, y])  # 6
        del y  # 4
        return torch.cat([z, x])  # 9

    assert memory.peak(work, CPU) == 9_000_000
    assert memory.peak(lambda: x.mul_(1), CPU) < 100


@pytest.mark.parametrize("layout", rotation.LAYOUTS)
def test_all_others_do_the_same_work_as_this_library(layout):
    rope = RoPE(16, 2, "mixed", heads=3, layout=layout, prefix_tokens=2)
    q, k = torch.randn(2, 2, 3, 22, 16)
    whole = RoPE(16, 2, layout=layout, prefix_tokens=2).at(4, 5)
    found, missing = rivals.installed()
    assert set(found) | set(missing) == set(rivals.RIVALS)
    for name, rival in found.items():
        for turn in (whole, rope.at(4, 5))[: 1 + rival.per_head] if layout in rival.layouts else ():
            theirs = rival.make(turn.cos, turn.sin, layout, 2, q.dtype)(q, k)
            for ours, other in zip(turn.qk(q, k), theirs):
                torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_rows_have_the_fields_and_ratios_are_to_the_copy_of_the_same_table(measured):
    assert all(set(r) >= NAMED for r in measured)
    groups = {}
    for r in measured:
        key = (r["part"], r["dtype"], r["layout"], r["form"], r["direction"])
        groups.setdefault(key, []).append(r)
    assert len(groups) == 2 * 2 * 2 * 2 + 1
    for (part, *_), members in groups.items():
        (copy,) = [r for r in members if r["name"] == "copy_"]
        for r in members:
            assert r["ratio"] == pytest.approx(r["ms"] / copy["ms"]) and r["ms"] >= r["least_ms"] > 0
            assert r["threads"] == torch.get_num_threads() and r["device"] == "cpu" and r["against"] == "copy_"
        if part == "rotation":
            assert {(r["name"], r["per_head"]) for r in members} >= {
                ("timm", True),
                ("timm", False),
                ("clone", False),
                ("textbook", False),
            }
            assert all(r["shape"] == [2, 17, 2, 8] for r in members)
            width = {"float32": 4, "bfloat16": 2}[copy["dtype"]]
            assert copy["bytes"] == 4 * 2 * 17 * 2 * 8 * width and copy["peak_mb"] == 0


def test_this_library_has_a_row_in_each_form_and_direction_with_the_path_that_was_taken(measured):
    ours = {(r["dtype"], r["layout"], r["form"], r["direction"], r["per_head"]): r for r in measured if r["name"] == "rope_nd"}
    expected = itertools.product(("float32", "bfloat16"), rotation.LAYOUTS, rotation.FORMS, rotation.DIRECTIONS, (False, True))
    assert set(ours) == set(expected)
    assert all(r["kernel"] for r in ours.values())
    assert ours["float32", "interleaved", "packed", "forward", False]["mark"] == 1.25
    assert ours["float32", "interleaved", "packed", "backward", False]["mark"] == 1.6  # that of what is out of place
    assert ours["bfloat16", "half", "separate", "forward", True]["mark"] == 6


@pytest.mark.parametrize("form", rotation.FORMS)
@pytest.mark.parametrize("layout", rotation.LAYOUTS)
def test_backward_gives_every_gradient_and_that_of_a_rotation_is_the_opposite_one(form, layout):
    case = rotation.Case((2, 13, 2, 8), torch.float32, layout, form, "backward", CPU)
    inputs = case.inputs()
    for entrant in rotation.entrants(case):
        gradients = rotation.subject(case, entrant, inputs).run(None)
        wanted = [*inputs, *entrant.learned]
        assert [g.shape for g in gradients] == [x.shape for x in wanted], entrant.name
        assert all(g.abs().sum() > 0 for g in gradients)
        torch.manual_seed(0)
        gradients = rotation.subject(case, entrant, inputs).run(None)
        torch.manual_seed(0)
        slopes = [torch.randn_like(y) for y in entrant.turn(tuple(x.clone() for x in inputs))]
        size, turned = (sum(x.square().sum() for x in some) for some in (slopes, gradients[: len(inputs)]))
        torch.testing.assert_close(size, turned, rtol=1e-4, atol=0)  # lengths are kept


def test_what_is_not_installed_has_a_word_and_no_row(tmp_path, monkeypatch, capsys):
    real = rivals.import_module

    def refuse(name):
        if name.startswith("timm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name)

    monkeypatch.setattr(rivals, "import_module", refuse)
    monkeypatch.setattr(rivals, "RIVALS", {name: rivals.RIVALS[name] for name in ("timm", "textbook")})
    rows = run(tmp_path, "--what", "rotation", *SMALL, "--dtypes", "float32", "--layouts", "half")
    assert {"timm", "textbook"} & {r["name"] for r in rows} == {"textbook"}
    shown = [line for line in capsys.readouterr().out.splitlines() if "not installed" in line]
    assert len(shown) == 4 and all("timm" in line for line in shown)


def test_a_line_is_fitted_for_each_series(tmp_path, capsys):
    rows = run(tmp_path, "--what", "scaling", *SMALL, "--layouts", "half", "--lengths", "2", "4", "8")
    turned = [r for r in rows if (r["name"], r["form"], r["direction"]) == ("rope_nd", "separate", "backward")]
    assert [r["shape"] for r in turned] == [[2, n + 1, 2, 8] for n in (4, 16, 64)]
    line = fit([r["shape"][1] / 1000 for r in turned], [r["ms"] for r in turned])
    assert all((r["slope"], r["intercept"], r["r2"]) == line and r["layout"] == "half" for r in turned)
    built = [r for r in rows if r["name"] == "rope_nd axial"]
    assert [r["shape"][1] for r in built] == [4, 16, 64] and all(r["r2"] <= 1 for r in built)
    assert "ms per 1000 tokens" in capsys.readouterr().out


def test_tables_are_made_by_a_module_that_has_made_none():
    entries = {subject.name: subject for subject, *_ in tables.subjects((4, 4), 2, 8, CPU)}
    made = entries["rope_nd axial"]
    assert made.prepare() is not made.prepare()
    first = made.run(made.prepare())
    torch.testing.assert_close(first.cos, entries["rope_nd axial, again"].run(None).cos)


def test_models_are_set_against_the_same_without_positions_and_against_timms(tmp_path):
    rows = run(
        tmp_path, "--what", "model", "--depth", "1", "--sizes", "32", "--pairs", "6", "--batch", "1",
        "--encodings", "axial", "axial+jitter", "alibi", "pape", "timm",
    )  # fmt: skip
    assert all(set(r) >= NAMED for r in rows)
    pairs = {step: [(r["name"], r["against"]) for r in rows if r["direction"] == step] for step in ("inference", "training")}
    alone = [("none", "none"), ("axial", "none"), ("alibi", "none"), ("pape", "none"), ("timm", "none"), ("axial", "timm")]
    assert sorted(pairs["inference"]) == sorted(alone)
    assert sorted(pairs["training"]) == sorted([*alone, ("axial+jitter", "none"), ("axial+jitter", "axial")])
    for r in rows:
        assert r["low"] <= r["ratio"] <= r["high"] and r["shape"] == [1, 5, 6, 64] and r["rounds"] == 6
        assert (r["ratio"] == 1) == (r["name"] == "none") and r["form"] == "eager"
    sizes = {r["name"]: r["tables_mb"] for r in rows if r["direction"] == "training"}
    assert sizes["axial"] == 2 * 4 * 32 * 4 / 1e6 and sizes["alibi"] == 6 * 4 * 4 * 4 / 1e6 and sizes["none"] is None
    least = min(r["peak_mb"] for r in rows if r["direction"] == "training")
    assert least > sum(p.nbytes for p in bench_model("none").parameters() if p.requires_grad) / 1e6  # gradients are counted


def bench_model(encoding):
    from rope_nd.bench import model

    return model.build(encoding, model.Setting(32, 1, "eager", "training", torch.float32, CPU, depth=1))


def test_jitter_is_drawn_in_training():
    x = torch.rand(2, 3, 32, 32)
    steady, jittered = bench_model("axial"), bench_model("axial+jitter")
    assert torch.equal(steady(x), steady(x)) and not torch.equal(jittered(x), jittered(x))


def test_too_few_pairs_are_refused_before_anything_runs(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--what", "model", "--pairs", "5"])
    assert stopped.value.code == 2 and "--pairs 5: an interval needs at least 6" in capsys.readouterr().err


def test_the_grid_of_a_number_of_tokens_is_the_one_nearest_to_a_square():
    assert [rotation.extent_of(n) for n in (784, 12, 7, 1)] == [(28, 28), (3, 4), (1, 7), (1, 1)]


def test_empty_columns_are_not_shown():
    one = row.Row(
        "tables", "x", "cpu", "float32", None, "tables", "forward", (1, 4, 2, 8), False, 1.0, 1.0, "copy_", 1, 2, 1.0, 1.0
    )
    headers = [column.header for column in row.table("t", [one]).columns]
    assert "ms" in headers and "mark" not in headers and "kernel" not in headers
