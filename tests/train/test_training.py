"""The training loop, evaluation and the study, in small: same numbers again, same numbers everywhere, bad input named."""

import csv
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from rope_nd import hub
from train import __main__ as train_main
from train import cli, evaluate, extrapolate
from train.cases import case
from train.config import Config, pairs
from train.data import Drawn, order
from train.engine import Trainer
from train.modelling import load
from train.rows import COSTS
from train.study import Study, adapt, names
from train.study import load as load_recipe

TINY = ("patch_size=8", "embed_dim=32", "depth=2", "num_heads=2", "mlp_ratio=2", "class_token=False", "global_pool=avg")
RECIPE = """
'''A small claim.'''
from train.config import Config
from train.sequence import SequenceTask
from train.study import Study
base = Config(model_kwargs={kwargs!r}, img_size=(16,), classes="01", train_samples=64, val_samples=40, cache=True, batch_size=8,
              steps=3, workers=0, threads=1)
STUDY = Study(base=base, encodings=("none", "axial"), seeds=(0, 1), ratios=(1, 1.5, 2), samples=40,
              rules=(("none", "none"), ("pi", "log")),
              sequence=SequenceTask(tokens=16, test_tokens=(16, 32), steps=2, test_sequences=4))
"""


def tiny(**changes) -> Config:
    options = {"model_kwargs": TINY, "img_size": (16,), "classes": "0123", "train_samples": 200, "val_samples": 60, "steps": 6}
    return Config(**{**options, "batch_size": 16, "workers": 0, "threads": 1, "warmup_steps": 2, **changes})


def call(main, *arguments: object) -> None:
    """Run a command line in this process."""
    old, sys.argv = sys.argv, ["program", *map(str, arguments)]
    try:
        cli.run(main, "program")
    finally:
        sys.argv = old


def folder_of_images(root: Path, count: int = 6, size: int = 20) -> Path:
    for split in ("train", "val"):
        for k, name in enumerate(("dark", "light")):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (size, size), (200 * k + i,) * 3).save(root / split / name / f"{i}.png")
    return root


def test_the_order_is_a_function_of_seed_and_step_and_an_epoch_holds_each_picture_once():
    whole = list(order(20, 4, seed=3, steps=10))
    assert whole == list(order(20, 4, seed=3, steps=10)) and whole != list(order(20, 4, seed=4, steps=10))
    first, second = ([i for batch in whole[a : a + 5] for i in batch] for a in (0, 5))
    assert sorted(first) == sorted(second) == list(range(20)) and first != second
    ranks = [list(order(20, 2, seed=3, steps=5, rank=r, world=2)) for r in range(2)]
    assert [a + b for a, b in zip(*ranks)] == whole[:5]


def test_evaluating_at_the_training_size_gives_exactly_what_training_printed(tmp_path):
    trained = Trainer(tiny(encoding="mixed"), tmp_path).fit()
    for test in ("zoom", "canvas"):
        rules = [("none", "none"), ("pi", "log"), ("ntk", "none")]
        rows = list(evaluate.measure(tmp_path, [(case(tiny(), test, 1), 60, rules)], {"command": "", "commit": ""}))
        assert {row.accuracy for row in rows} == {trained["accuracies"][test]}
        assert all(row.low <= row.accuracy <= row.high for row in rows) and (rows[0].upper is None) == (test == "zoom")


def test_a_run_loads_by_the_library_alone(tmp_path):
    trainer = Trainer(tiny(encoding="mixed"), tmp_path)
    trainer.fit()
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        torch.testing.assert_close(hub.load(tmp_path)(images), trainer.model.eval()(images), rtol=0, atol=0)


def test_a_row_tells_the_time_of_an_input_and_what_a_batch_allocates(monkeypatch):
    monkeypatch.setattr(evaluate, "TOKENS", 5 * 16)
    for pixels, batch in ((16, 20), (32, 5)):
        data = Drawn(torch.zeros(40, 3, pixels, pixels, dtype=torch.uint8), torch.zeros(40, dtype=torch.long))
        model = Slow()
        costs = evaluate.score(model, data, tiny()).costs
        assert model.batches == [batch] * (40 // batch)
        made = model.copies * 3 * 4 * pixels**2 * batch / 2**20
        assert made <= costs["peak_mb"] < 1.3 * made
        assert 20 <= costs["ms_per_input"] * batch < 200  # the first batch took longer
        assert costs["images_per_s"] < 40 / 0.2


class Slow(torch.nn.Module):
    """Copies its input, and takes longer when it is called first."""

    copies = 20

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.patch_embed = SimpleNamespace(patch_size=(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 if self.batches else 0.2)
        self.batches.append(len(x))
        return x.repeat(1, self.copies, 1, 1).sum((2, 3))


def test_the_upper_bound_is_that_of_the_weights_now_in_the_folder(tmp_path):
    found = []
    for steps in (1, 40):
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        Trainer(tiny(steps=steps, opt="muon", lr=1e-2, train_samples=400), tmp_path).fit()
        row = next(evaluate.measure(tmp_path, [(case(tiny(), "canvas", 1.5), 60, [("none",)])], {"command": "", "commit": ""}))
        model, config = load(tmp_path)
        crops = evaluate.test_set(config, case(config, "canvas", 1.5), 60, crop=True)[0]
        assert row.upper == evaluate.score(model, crops, config).accuracy
        found.append(row.upper)
    assert found[0] != found[1]


def test_two_fresh_runs_give_the_same_weights_and_a_seed_changes_them(tmp_path):
    weights = []
    for i, seed in enumerate((0, 0, 1)):
        Trainer(tiny(seed=seed, opt="muon", lr=1e-2, cache=i == 1), tmp_path / str(i)).fit()  # drawn once or anew: the same
        weights.append(load(tmp_path / str(i))[0].state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"model_ema": True, "grad_accum_steps": 2, "clip_grad": None},
        {"mixup": 0.2, "cutmix": 0.5, "smoothing": 0.1},
        {"bce_loss": True, "smoothing": 0.1},
        {"amp": True, "channels_last": True, "grad_checkpointing": True},
        {"train_sizes": (8, 16), "shift_coords": 1.0, "jitter_coords": 1.2, "rescale_coords": 1.5},
        {"encoding": "timm", "drop_path": 0.1},
        {"encoding": "learned", "opt": "muon", "sched": "constant"},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_every_way_to_train_runs_and_saves_a_model_that_loads(changes, tmp_path):
    events = []
    Trainer(tiny(**changes), tmp_path, events.append).fit()
    assert events[-1]["event"] == "trained" and 0 <= events[-1]["wait_share"] < 1
    assert load(tmp_path)[1] == tiny(**changes)


def test_any_timm_model_trains_with_its_own_positions_or_none(tmp_path):
    config = tiny(model="resnet10t", model_kwargs=(), encoding="timm", steps=2, img_size=(32,), val_samples=8)
    assert 0 <= Trainer(config, tmp_path).fit()["accuracy"] <= 1 and load(tmp_path)[1] == config


def test_two_processes_train_as_one(tmp_path):
    """torchrun with gloo: the batch is shared out, gradients averaged, the first process saves."""
    data = ["--img-size", "16", "--classes", "01", "--train-samples", "64", "--val-samples", "20", "--workers", "0"]
    rest = ["--steps", "3", "--opt", "sgd", "--warmup-steps", "0", "--threads", "1", "--output", str(tmp_path)]
    several = ["torch.distributed.run", "--nproc-per-node", "2", "-m", "train"]
    for name, launch, batch in (("one", ["train"], "16"), ("two", several, "8")):
        run = ["--experiment", name, "--batch-size", batch, "--model-kwargs", *TINY]
        command = [sys.executable, "-m", *launch, *data, *rest, *run]
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2], timeout=300)
    one, two = (load(tmp_path / name)[0].state_dict() for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_accumulated_gradients_equal_those_of_the_large_batch(tmp_path):
    losses = []
    for batch, parts in ((16, 1), (8, 2)):
        trainer = Trainer(tiny(steps=1, batch_size=batch, grad_accum_steps=parts, opt="sgd", warmup_steps=0), tmp_path / str(parts))
        trainer.fit()
        losses.append(load(tmp_path / str(parts))[0].state_dict()["head.weight"])
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)


def test_an_image_folder_trains_and_evaluates_at_other_sizes(tmp_path):
    root = folder_of_images(tmp_path / "data")
    call(train_main.main, "--dataset", "folder", "--data-dir", root, "--img-size", "16", "--steps", "4", "--batch-size", "4",
         "--workers", "0", "--output", tmp_path, "--experiment", "run", "--model-kwargs", *TINY)  # fmt: skip
    call(evaluate.main, "--checkpoint", tmp_path / "run", "--sizes", "16", "24x32", "--scaling", "none", "yarn",
         "--output", tmp_path / "rows.csv")  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [(row["height"], row["width"], row["scaling"]) for row in rows] == [
        ("16", "16", "none"), ("16", "16", "yarn"), ("24", "32", "none"), ("24", "32", "yarn")
    ]  # fmt: skip
    assert {row["images"] for row in rows} == {"12"}


def test_a_torchvision_data_set_trains_and_a_broken_picture_in_it_is_named(tmp_path, capsys):
    root = folder_of_images(tmp_path / "data", size=16)
    flags = ["--dataset", "torch/folder", "--data-dir", root, "--num-classes", "2", "--img-size", "16", "--steps", "2"]
    flags += ["--batch-size", "4", "--workers", "1", "--output", tmp_path, "--model-kwargs", *TINY]
    call(train_main.main, *flags, "--experiment", "run")
    assert load(tmp_path / "run")[0].head.out_features == 2
    for file in (root / "train").rglob("*.png"):
        file.write_bytes(b"no picture")
    with pytest.raises(SystemExit) as caught:
        call(train_main.main, *flags, "--experiment", "other")
    shown = capsys.readouterr().err.strip()
    assert caught.value.code == 2 and shown.startswith("error: cannot read picture") and len(shown.splitlines()) == 1


def test_a_study_writes_its_rows_and_page_and_resumes_without_doing_anything_twice(tmp_path):
    recipe = tmp_path / "small.py"
    recipe.write_text(RECIPE.format(kwargs=TINY))
    call(extrapolate.main, "--recipe", recipe, "--output", tmp_path / "runs", "--jobs", "2")
    run = tmp_path / "runs" / "small-001"
    rows = list(csv.DictReader((run / "rows.csv").open()))
    assert {(r["encoding"], r["seed"], r["test"], r["height"], r["scaling"], r["temperature"]) for r in rows} == {
        (encoding, seed, test, size, *rule)
        for encoding, rules in (("none", [("none", "none")]), ("axial", [("none", "none"), ("pi", "log")]))
        for seed in "01"
        for test in ("zoom", "canvas")
        for size in ("16", "24", "32")
        for rule in rules
    }
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert {(r["encoding"], r["width"]) for r in csv.DictReader((run / "sequence.csv").open())} >= {("axial", "16"), ("none", "32")}
    for file in ("plot.png", "report.html", "table.md", "samples.png", "log.jsonl"):
        assert (run / file).stat().st_size > 100, file
    config = json.loads((run / "config.json").read_text())
    assert config["claim"] == "A small claim." and config["chance"] == 0.5 and config["commit"] and config["seconds"] > 0
    log = (run / "log.jsonl").read_text()
    (run / "parts" / "axial-1.csv").unlink()  # as if it had been stopped there
    call(extrapolate.main, "--resume", "small-001", "--output", tmp_path / "runs", "--jobs", "1")
    again = list(csv.DictReader((run / "rows.csv").open()))
    changing = dict.fromkeys((*COSTS, "command"))
    assert [row | changing for row in again] == [row | changing for row in rows]
    assert (run / "log.jsonl").read_text().removeprefix(log).count("done") == 1


def test_every_recipe_loads_and_states_its_claim():
    for name in names():
        study, claim = load_recipe(name)
        assert isinstance(study, Study) and len(claim) > 40
    assert adapt(study, ("all",), (4,), 7).base.steps == 7 and "spiral" in adapt(study, ("all",), (), None).encodings


def test_the_interval_resamples_groups():
    right, alone = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0]).bool(), torch.arange(8)
    assert evaluate.interval(right, torch.zeros(8)) == (0.5, 0.5)  # one cluster: nothing to resample
    low, high = evaluate.interval(right, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    assert (low, high) == (0.0, 1.0)
    assert 0 < evaluate.interval(right, alone)[0] < 0.5 < evaluate.interval(right, alone)[1] < 1


def test_equal_tables_have_equal_fingerprints(tmp_path):
    Trainer(tiny(steps=1), tmp_path).fit()
    prints = {rule: evaluate.fingerprint(load(tmp_path, scaling=rule)[0], (32, 32)) for rule in ("none", "pi", "ntk", "yarn")}
    assert len(set(prints.values())) >= 3
    at_home = {evaluate.fingerprint(load(tmp_path, scaling=rule, temperature="log")[0], (16, 16)) for rule in ("none", "pi")}
    assert len(at_home) == 1


def spoil(kind: str, tmp_path: Path) -> tuple[object, list[object]]:
    """A command line with one thing wrong."""
    root = tmp_path / "data"
    train = [
        "--output",
        tmp_path / "runs",
        "--workers",
        "0",
        "--steps",
        "2",
        "--batch-size",
        "4",
        "--img-size",
        "16",
        "--model-kwargs",
        *TINY,
    ]
    images = ["--dataset", "folder", "--data-dir", root]
    if kind in ("no class", "broken image"):
        folder_of_images(root, size=16)
    if kind == "no class":
        for file in (root / "train" / "dark").iterdir():
            file.unlink()
    if kind == "broken image":
        for file in (root / "train" / "dark").iterdir():
            file.write_bytes(file.read_bytes()[:40])
    if kind in ("other size", "other model", "other scaling"):
        Trainer(tiny(), tmp_path / "run").fit()
    if kind == "other model":
        config = dataclasses.replace(tiny(), model_kwargs=(*TINY, "embed_dim=48", "num_heads=3"))
        (tmp_path / "run" / "config.json").write_text(config.to_json())
    commands = {
        "no folder": (train_main.main, [*train, *images]),
        "no class": (train_main.main, [*train, *images]),
        "broken image": (train_main.main, [*train, *images]),
        "no patch": (train_main.main, [*train[:8], "--img-size", "20", "--model-kwargs", *TINY]),
        "unknown encoding": (train_main.main, [*train, "--encoding", "axail"]),
        "unknown optimiser": (train_main.main, [*train, "--opt", "adamwww"]),
        "unknown model": (train_main.main, [*train, "--model", "vit_tinny"]),
        "unknown character": (train_main.main, [*train, "--classes", "01c"]),
        "too few": (train_main.main, [*train, "--train-samples", "1"]),
        "bad pair": (train_main.main, [*train, "--encoding-kwargs", "theta"]),
        "other size": (evaluate.main, ["--checkpoint", tmp_path / "run", "--sizes", "20"]),
        "other model": (evaluate.main, ["--checkpoint", tmp_path / "run"]),
        "other scaling": (evaluate.main, ["--checkpoint", tmp_path / "run", "--scaling", "yarm"]),
        "no checkpoint": (evaluate.main, ["--checkpoint", tmp_path / "nowhere"]),
        "unknown recipe": (extrapolate.main, ["--recipe", "ten_minuts", "--output", tmp_path / "runs"]),
        "no run": (extrapolate.main, ["--resume", "nothing", "--output", tmp_path / "runs"]),
        "unknown encoding in a study": (extrapolate.main, ["--encodings", "axail", "--output", tmp_path / "runs"]),
    }
    return commands[kind]


@pytest.mark.parametrize(
    "kind, says",
    [
        ("no folder", "no such folder"),
        ("no class", "this class has no pictures"),
        ("broken image", "cannot read"),
        ("no patch", "resize to"),
        ("unknown encoding", "did you mean 'axial'"),
        ("unknown optimiser", "adamwww"),
        ("unknown model", "vit_tinny"),
        ("unknown character", "'c'"),
        ("too few", "fewer than one batch"),
        ("bad pair", "key=value"),
        ("other size", "20x20 is no multiple of the patch 8x8"),
        ("other model", "weights of another model"),
        ("other scaling", "yarm"),
        ("no checkpoint", "no checkpoint there"),
        ("unknown recipe", "did you mean 'ten_minutes'"),
        ("no run", "no run of train.extrapolate to resume"),
        ("unknown encoding in a study", "did you mean 'axial'"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_nothing_half_written(kind, says, tmp_path, capsys):
    main, arguments = spoil(kind, tmp_path)
    with pytest.raises(SystemExit) as caught:
        call(main, *arguments)
    shown = capsys.readouterr().err.strip()
    assert caught.value.code == 2 and says in shown and len(shown.splitlines()) == 1, shown
    assert not list(tmp_path.glob("runs/*"))


def test_key_value_arguments_are_literals_or_text():
    assert pairs(("depth=4", "mode=cubic", "theta=(100.0, 10.0)"), "kwargs") == {
        "depth": 4,
        "mode": "cubic",
        "theta": (100.0, 10.0),
    }
