"""Clips and volumes in the harness: what each test shows a model and tells it, names of columns, errors, and whole small runs."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch

from train import __main__ as train_main
from train import cli, evaluate, extrapolate, plots, precision, report, samples
from train.answers import answers
from train.cases import Case, case, places, seen, spacing, trained
from train.config import Config
from train.data import Drawn, order, training_set
from train.engine import Trainer
from train.modelling import build, load, token_size
from train.rows import REQUIRED, Size, read_rows
from train.rules import scaling_of, usable
from train.study import Study, of
from train.study import load as load_recipe

TINY = ("patch_size=8", "embed_dim=32", "depth=2", "num_heads=2", "mlp_ratio=2", "class_token=False", "global_pool=avg")
FACTS = {"command": "", "commit": ""}


def clips(**changes) -> Config:
    given = {"dataset": "moving", "model_kwargs": TINY, "img_size": (16,), "frames": 4, "train_samples": 32, "val_samples": 20}
    return Config(**{**given, "steps": 2, "batch_size": 8, "workers": 0, "threads": 1, "warmup_steps": 1, **changes})


def volumes(**changes) -> Config:
    return clips(**{"dataset": "solids", "model_kwargs": (*TINY, "patch_size=4"), "img_size": (8,), **changes})


# ---- cases


@pytest.mark.parametrize(
    "test, ratio, size, distances",
    [
        ("longer", 1, (8, 32, 32), (1 / 8, 1, 1)),
        ("longer", 4, (32, 32, 32), (1 / 8, 1, 1)),
        ("rate", 2, (16, 32, 32), (1 / 16, 1, 1)),
        ("rate", 4, (32, 32, 32), (1 / 32, 1, 1)),
        ("zoom", 4, (8, 128, 128), (1 / 8, 1 / 4, 1 / 4)),
        ("canvas", 2, (8, 64, 64), (1 / 8, 1, 1)),
    ],
)
def test_a_case_of_clips_has_the_frames_the_pixels_and_the_seconds_that_its_test_says(test, ratio, size, distances):
    found = case(Config(dataset="moving", img_size=(32,)), test, ratio)
    assert (found.size, found.ratio, found.fps) == (size, ratio, 1 / distances[0])
    assert found.spacing == pytest.approx(distances, rel=1e-12)


@pytest.mark.parametrize(
    "test, ratio, size, distances",
    [
        ("zoom", 1.5, (24, 24, 24), (2 / 3,) * 3),
        ("zoom", 3, (48, 48, 48), (1 / 3,) * 3),
        ("canvas", 2, (32, 32, 32), (1, 1, 1)),
        ("slices", 1, (8, 16, 16), (2, 1, 1)),
        ("slices", 2, (8, 32, 32), (2, 0.5, 0.5)),
    ],
)
def test_a_case_of_volumes_has_the_voxels_and_the_millimetres_that_its_test_says(test, ratio, size, distances):
    found = case(Config(dataset="solids", img_size=(16,)), test, ratio)
    assert (found.size, found.ratio) == (size, ratio) and found.spacing == pytest.approx(distances, rel=1e-12)


def test_images_are_the_special_case_without_a_spacing():
    config = Config(img_size=(32, 48))
    assert case(config, "zoom", 1.5) == Case("zoom", 1.5, (48, 72)) and spacing(config) is None
    assert seen(config, "canvas", (64,)) == Case("canvas", 2.0, (64, 64)) and places(config, case(config, "zoom", 2), "units") == {}
    assert case(config, "zoom", 2).column("images") == Size(2.0, 64, 96)


@pytest.mark.parametrize("make", [clips, volumes])
def test_every_case_shows_as_many_samples_as_it_says_and_at_the_training_size_what_was_trained_on(make):
    config = make()
    for test in config.measured_tests:
        at = case(config, test, 2)
        data, groups = evaluate.test_set(config, at, 6)
        channels = 3 if config.kind == "clips" else 1
        assert data.images.shape == (6, channels, *at.size) and len(groups) == 6 and data.images.dtype == torch.uint8
    home = evaluate.test_set(config, trained(config), 6)[0]
    for test in set(config.measured_tests) - {"slices"}:
        assert torch.equal(evaluate.test_set(config, case(config, test, 1), 6)[0].images, home.images)


def test_at_twice_the_rate_every_other_frame_is_the_one_before_and_a_longer_clip_begins_like_it():
    config = clips(img_size=(32,))
    short, dense, long = (
        evaluate.test_set(config, case(config, *at), 6)[0].images for at in (("rate", 1), ("rate", 2), ("longer", 2))
    )
    assert torch.equal(dense[:, :, ::2], short) and torch.equal(long[:, :, :4], short)
    assert not torch.equal(dense[:, :, 1::2], short)


def test_sizes_may_be_given_with_and_without_frames():
    config = clips()
    assert seen(config, "zoom", (32,)).size == seen(config, "zoom", (32, 32)).size == (4, 32, 32)
    assert seen(config, "rate", (8, 16, 16)) == case(config, "rate", 2)
    assert seen(volumes(), "canvas", (16,)) == case(volumes(), "canvas", 2)


# ---- what a model is told


def test_with_positions_in_units_the_same_seconds_have_the_same_tables_at_both_rates():
    config = clips(img_size=(32,))
    model = build(config).eval()
    sparse, dense = case(config, "rate", 1), case(config, "rate", 2)

    def turned(at: Case, positions: str) -> torch.Tensor:
        told = places(config, at, positions)
        where = model.start(torch.zeros(1, 3, *at.size), **told)[1]
        return where.rotations[0][0].cos.expand(1, -1, -1).unflatten(1, (at.size[0], -1))  # [1, T, S, P]

    torch.testing.assert_close(turned(dense, "units")[:, ::2], turned(sparse, "units"), rtol=0, atol=1e-6)
    assert (turned(dense, "index")[:, ::2] - turned(sparse, "index")).abs().max() > 0.1
    torch.testing.assert_close(turned(dense, "index")[:, :4], turned(sparse, "index"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", ["axial", "learned", "sinusoidal", "alibi"])
def test_the_true_spacing_changes_what_a_model_does_where_a_test_changes_it_and_only_there(encoding):
    config = clips(encoding=encoding)
    model = build(config)
    for test, changed in (("longer", False), ("rate", True), ("zoom", True), ("canvas", False)):
        at = case(config, test, 2)
        prints = {evaluate.fingerprint(model, at.size, **places(config, at, positions)) for positions in ("index", "units")}
        assert len(prints) == (2 if changed else 1), test
    assert places(config, trained(config), "units") == {}


@pytest.mark.parametrize("name", ["pi", "ntk", "yarn"])
def test_a_rule_for_time_slows_pairs_of_time_and_no_others(name):
    config = clips(img_size=(32,), model_kwargs=(*TINY, "embed_dim=96"))  # 24 pairs, 8 an axis
    at = case(config, "longer", 4)
    tables = [
        build(config, scaling=s).eval().start(torch.zeros(1, 3, *at.size))[1].rotations[0][0].cos for s in ("none", f"time {name}")
    ]
    axis = build(config).encoding.vectors()[0].abs().argmax(-1)  # [P]
    differ = (tables[0] - tables[1]).abs().flatten(0, -2).amax(0) > 1e-4  # [P]
    assert scaling_of(f"time {name}") == [name, "none", "none"] and differ[axis == 0].any() and not differ[axis != 0].any()


def test_rules_are_kept_where_they_mean_something():
    asked = [("none",), ("time yarn",), ("time pi",), ("none", "log"), ("none", "none", "units")]
    kept = {name: [rule[0] if rule[2] == "index" else "units" for rule in usable(name, asked)] for name in
            ("none", "alibi", "learned", "axial", "swin", "timm")}  # fmt: skip
    assert kept == {
        "none": ["none", "none"],
        "alibi": ["none", "none", "units"],
        "learned": ["none", "time pi", "none", "units"],
        "axial": ["none", "time yarn", "time pi", "none", "units"],
        "swin": ["none", "none", "units"],
        "timm": ["none"],
    }


def test_batches_hold_as_many_tokens_of_clips_as_of_pictures():
    model = build(clips(tubelet=2))
    assert token_size(model) == (2, 8, 8) and token_size(build(volumes())) == (4, 4, 4)
    seen_sizes = []
    model.register_forward_pre_hook(lambda module, given: seen_sizes.append(len(given[0])))
    images = torch.zeros(40, 3, 32, 64, 64, dtype=torch.uint8)  # 16 x 8 x 8 tokens a clip
    evaluate.score(model, Drawn(images, torch.zeros(40, dtype=torch.long)), clips())
    assert seen_sizes == [evaluate.TOKENS // 1024] * 5


# ---- names of columns


@pytest.mark.parametrize(
    "size, test, label, tick",
    [
        (Size(2, 64, 64), "zoom", "64 px ×2", "64"),
        (Size(2, 64, 96), "canvas", "64×96 px ×2", "64"),
        (Size(2, 32, 32, 16, 8.0), "longer", "16 frames ×2", "16"),
        (Size(2, 32, 32, 16, 16.0), "rate", "16 fps ×2", "16"),
        (Size(2, 64, 64, 8, 8.0), "zoom", "64 px ×2", "64"),
        (Size(2, 32, 32, 32), "zoom", "32³ ×2", "32³"),
        (Size(1, 16, 16, 8), "slices", "8×16×16 ×1", "8×16×16"),
        (Size(1, 1, 512), "sequence", "512 tokens", "512"),
    ],
)
def test_a_column_says_what_its_inputs_are(size, test, label, tick):
    assert (size.label(test), size.tick(test)) == (label, tick)


def test_rows_of_images_from_before_are_read_and_have_no_frames(tmp_path):
    line = ["axial", 0, "zoom", 32, 32, "none", "none", 0.5, "", "", "", 10, 1, "", "", "", ""]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([REQUIRED, line])
    (row,) = read_rows(tmp_path / "rows.csv")
    assert (row.depth, row.fps, row.positions, row.size.label("zoom")) == (None, None, "index", "32 px ×1")


def test_positions_at_the_true_spacing_are_a_curve_of_their_own(tmp_path):
    line = ["axial", 0, "rate", 32, 32, "none", "none", 0.5, "", "", "", 10, 2, "", "", "", "", 16, 16.0]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [[*REQUIRED, "depth", "fps", "positions"], [*line, "index"], [*line[:7], 0.75, *line[8:], "units"]]
        )
    report.report([tmp_path])
    text = (tmp_path / "table.md").read_text()
    assert "| axial | none | none | 50.0 |" in text and "| axial | true spacing (best at ×2) | none | **75.0** |" in text
    assert "| encoding | scaling | temperature | 16 fps ×2 |" in text
    found = plots.curves(read_rows(tmp_path / "rows.csv"))
    assert [(curve.plain, curve.how) for curve in found] == [(True, "no scaling"), (False, "true spacing")]


# ---- training


@pytest.mark.parametrize(
    "config",
    [
        clips(encoding="mixed", frames=8, tubelet=2, attention="factorised", question="order"),
        clips(cache=True, encoding="native", question="glyph", classes="01", fps=4.0, mixup=0.2),
        volumes(cache=True, classes="01", encoding="learned"),
        volumes(img_size=(8, 16, 12), tubelet=2, jitter_coords=1.2, grad_checkpointing=True),
    ],
    ids=["order, factorised", "glyph, native", "learned volumes", "oblong volumes"],
)
def test_a_model_of_clips_or_volumes_trains_and_loads_and_is_measured_at_home(config, tmp_path):
    events = []
    trained_event = Trainer(config, tmp_path, events.append).fit()
    model, again = load(tmp_path)
    assert again == config and model.num_classes == len(answers(config)) and 0 <= trained_event["wait_share"] < 1
    (row,) = evaluate.measure(tmp_path, [(trained(config), 20, [("none",)])], FACTS)
    assert trained_event["accuracies"] == {"zoom": row.accuracy} and row.size[1:] == trained(config).column(config.kind)[1:]


def test_clips_drawn_once_are_those_drawn_anew_and_one_byte_a_number():
    config = clips(train_samples=20)
    once, anew = (training_set(dataclasses.replace(config, cache=cache)) for cache in (True, False))
    assert isinstance(once, Drawn) and once.images.dtype == torch.uint8 and once.images.shape == (20, 3, 4, 16, 16)
    picked = next(order(20, 7, 0, 1))
    images, labels = zip(*anew.__getitems__(picked))
    assert torch.equal(once.__getitems__(picked)[0], torch.stack(images)) and once.labels[picked].tolist() == list(labels)


def test_a_cache_that_would_not_fit_is_refused_before_anything_is_drawn():
    with pytest.raises(ValueError, match=r"cache of 24.6 GB, at most 4: lower train_samples"):
        training_set(Config(dataset="moving", img_size=(32,), train_samples=1_000_000, cache=True))


def test_folders_of_clips_train_and_are_tested_at_other_rates(tmp_path):
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(4):
                np.savez(
                    tmp_path / split / name / f"{i}.npz", frames=random.integers(0, 255, (16, 16, 20, 3), dtype=np.uint8), fps=8.0
                )
    config = clips(dataset="clips", data_dir=str(tmp_path), batch_size=4, encoding="axial", fps=4.0)
    Trainer(config, tmp_path / "run").fit()
    plan = [(case(config, test, 2), 20, [("none",)]) for test in config.measured_tests]
    rows = list(evaluate.measure(tmp_path / "run", plan, FACTS))
    assert [row.size.label(row.test) for row in rows] == ["8 frames ×2", "8 fps ×2", "32 px ×2"] and {
        row.images for row in rows
    } == {8}


def test_folders_of_volumes_train_and_are_tested_on_a_larger_field(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(2):
                nibabel.save(
                    nibabel.Nifti1Image(random.random((20, 20, 20), dtype=np.float32), np.eye(4)),
                    tmp_path / split / name / f"{i}.nii",
                )
    config = volumes(dataset="volumes", data_dir=str(tmp_path), batch_size=4)
    Trainer(config, tmp_path / "run").fit()
    (row,) = evaluate.measure(tmp_path / "run", [(case(config, "canvas", 2), 20, [("none",)])], FACTS)
    assert row.size.label(row.test) == "16³ ×2" and row.images == 4


def call(main, *arguments: object) -> None:
    """Run a command line in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["program", *map(str, arguments)])
        cli.run(main, "program")


def test_the_command_lines_train_and_evaluate_clips(tmp_path, capsys):
    call(train_main.main, "--dataset", "moving", "--img-size", "16", "--frames", "4", "--fps", "4", "--tests", "rate", "longer",
         "--attention", "factorised", "--train-samples", "16", "--val-samples", "10", "--batch-size", "8", "--steps", "2",
         "--workers", "0", "--output", tmp_path, "--experiment", "run", "--model-kwargs", *TINY)  # fmt: skip
    assert "zoom accuracy at 4x16x16" in capsys.readouterr().out
    arguments = ["--checkpoint", tmp_path / "run", "--test", "rate", "--sizes", "8x16x16"]
    call(evaluate.main, *arguments, "--scaling", "none", "time yarn", "--positions", "index", "units",
         "--output", tmp_path / "rows.csv")  # fmt: skip
    rows = read_rows(tmp_path / "rows.csv")
    assert [(row.depth, row.fps, row.scaling, row.positions) for row in rows] == [
        (8, 8.0, scaling, positions) for scaling in ("none", "time yarn") for positions in ("index", "units")
    ]
    for wrong, says in (
        (["--sizes", "8x20x20"], "size 8x20x20 is no multiple of the tube 1x8x8"),
        (["--test", "slices"], "'slices'"),
    ):
        with pytest.raises(SystemExit) as caught:
            call(evaluate.main, *arguments[:2], *wrong)
        assert caught.value.code == 2 and says in capsys.readouterr().err
    with pytest.raises(ValueError, match="is a model of clips: keys are rounded in models of images alone"):
        next(precision.measure(tmp_path / "run", (1,), ("int8",), 10))


# ---- errors


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: clips(frames=5, tubelet=2), "frames=5 is no multiple of tubelet=2"),
        (lambda: clips(frames=0), "frames=0: at least 1"),
        (lambda: clips(fps=0.0), "fps=0.0: frames a second, above 0"),
        (lambda: clips(img_size=(8, 8, 8)), "give one size in pixels, or height and width"),
        (lambda: volumes(img_size=(8, 8)), "give one size in voxels, or depth, height and width"),
        (lambda: clips(question="speed"), "question 'speed': choose one of direction, order, glyph"),
        (lambda: clips(attention="divided"), "attention 'divided': choose one of joint, factorised"),
        (lambda: clips(tests=("slices",)), "tests slices: for moving choose from longer, rate, zoom, canvas"),
        (lambda: Config(tests=()), "tests is empty: for glyphs choose from zoom, canvas"),
        (lambda: Config(attention="factorised"), "is for clips and volumes, and glyphs are images: leave it out"),
        (lambda: Config(tubelet=2), "tubelet=2 is for clips and volumes"),
        (lambda: clips(cutmix=1.0), "cutmix=1.0 is for images, and moving are clips"),
        (lambda: clips(encoding="timm"), "encoding 'timm' is for images"),
        (lambda: Config(dataset="clips"), "'clips' needs --data-dir"),
        (lambda: case(clips(), "slices", 2), "test 'slices': moving are clips, choose from longer, rate, zoom, canvas"),
        (lambda: seen(volumes(), "zoom", (8, 8)), "size 8x8: solids are volumes, give 32, or 8x32x32"),
        (lambda: seen(Config(), "zoom", (8, 8, 8)), "size 8x8x8: glyphs are images, give 224, or 320x448"),
        (lambda: build(volumes(tubelet=3)), "frames=8 is no multiple of tubelet=3"),
        (lambda: build(clips(), scaling="time yarm"), "did you mean 'yarn'"),
        (lambda: of({"zoom": (1,)}, "rate"), "test 'rate' is missing: the study says something for zoom"),
    ],
)
def test_bad_input_is_named_with_its_mend(make, says):
    with pytest.raises(ValueError, match=says):
        make()


# ---- whole runs


@pytest.mark.parametrize("name, kind", [("moving", "clips"), ("solids", "volumes")])
def test_a_small_study_trains_tests_and_reports(name, kind, tmp_path, monkeypatch):
    study, _ = load_recipe(name)
    small = clips() if kind == "clips" else volumes()
    same = {field: getattr(study.base, field) for field in ("dataset", "tests", "question", "classes", "cache")}
    base = dataclasses.replace(small, **same)
    ratios = dict.fromkeys(base.measured_tests, (1, 2))
    labels = [name for name in study.encodings if name in ("axial", "alibi", *study.variants)]
    study = dataclasses.replace(study, base=base, encodings=tuple(labels), seeds=(0,), ratios=ratios, samples=12)
    (tmp_path / "parts").mkdir()
    extrapolate._write_config(tmp_path, study, "A claim.", {"recipe": name}, FACTS)
    samples.sheet(study, tmp_path / "samples.png")
    rows = []
    for config in study.models():
        rows += extrapolate._model(tmp_path / f"{config.title}-0", FACTS, lambda event: None, study, config)
    evaluate.write_rows(tmp_path / "rows.csv", rows)
    assert read_rows(tmp_path / "rows.csv") == [dataclasses.replace(row, command="", commit="") for row in rows]
    page = report.report([tmp_path]).read_text()
    table, settings = (tmp_path / "table.md").read_text(), json.loads((tmp_path / "config.json").read_text())
    assert settings["chance"] == 1 / len(answers(base)) and settings["train_kind"] == kind and (tmp_path / "samples.png").exists()
    columns = {"clips": ["8 frames ×2", "16 fps ×2", "32 px ×2"], "volumes": ["16³ ×2", "4×16×16 ×2"]}[kind]
    assert all(f"| {column} |" in table for column in columns) and "true spacing" in table and "more" in page
    home = {(row.encoding, row.accuracy) for row in rows if row.ratio == 1 and row.test != "slices"}
    assert len(home) == len(labels)  # at the training size all tests and rules are one measurement
    assert isinstance(study, Study) and {row.positions for row in rows} == {"index", "units"}
