"""Volumes from files at their true spacing: averaged and told as their headers say, in training, tests and studies."""

import math

import numpy as np
import pytest
import torch

from train import evaluate, extrapolate
from train.cases import case, own, places, spacing, trained
from train.config import Config
from train.data import collate, loader, stored, training_set
from train.engine import Trainer
from train.modelling import build
from train.readers import VolumeFolder
from train.rows import read_rows
from train.samples import sheet
from train.study import Study

nib = pytest.importorskip("nibabel")
TINY = ("patch_size=4", "embed_dim=32", "depth=2", "num_heads=2", "mlp_ratio=2", "class_token=False", "global_pool=avg")
THIN, THICK = (1.0, 1.0, 1.0), (4.0, 1.5, 1.0)  # millimetres along z, y, x
FACTS = {"command": "", "commit": ""}


def write(path, shape, mm, seed=0):
    """A file of voxels `mm` apart along (z, y, x); returns the voxels in that order."""
    voxels = np.random.default_rng(seed).random(shape, dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels.transpose(2, 1, 0), np.diag([*mm[::-1], 1.0])), path)
    return voxels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes; in each split volumes of 1 mm and volumes of thick slices."""
    root = tmp_path_factory.mktemp("volumes")
    for k, (split, name) in enumerate((s, n) for s in ("train", "val") for n in ("a", "b")):
        for i in range(2):
            write(root / split / name / f"thin{i}.nii.gz", (20, 20, 20), THIN, 10 * k + i)
            write(root / split / name / f"thick{i}.nii.gz", (12, 20, 20), THICK, 100 + 10 * k + i)
    return root


def config(folder, **changes) -> Config:
    given = {"dataset": "volumes", "data_dir": str(folder), "model_kwargs": TINY, "img_size": (8,), "batch_size": 4, "steps": 2}
    return Config(**{**given, "workers": 0, "threads": 1, "warmup_steps": 1, **changes})


# ---- reading


def test_voxels_are_averaged_by_whole_numbers_and_their_new_spacing_is_given(tmp_path):
    voxels = write(tmp_path / "a" / "v.nii", (8, 12, 12), (2.0, 1.0, 0.5)).astype(np.float64)
    levelled = (voxels - voxels.mean()) / voxels.std(ddof=1)
    want = levelled.reshape(4, 2, 4, 3, 2, 6).mean((1, 3, 5))  # 2, 3 and 6 of them: 4, 3 and 3 mm
    found, label, mm = VolumeFolder(tmp_path, spacing=(4.0, 3.0, 3.2), spaced=True)[0]
    assert label == 0 and mm.tolist() == [4.0, 3.0, 3.0] and mm.dtype == torch.float64
    np.testing.assert_allclose(found[0].numpy(), want, atol=1e-5)
    whole = VolumeFolder(tmp_path, spaced=True)[0]
    assert whole[0].shape == (1, 8, 12, 12) and whole[2].tolist() == [2.0, 1.0, 0.5]


def test_the_middle_of_a_volume_stays_in_the_middle_whatever_the_voxels(tmp_path):
    voxels = write(tmp_path / "a" / "v.nii", (12, 12, 12), THIN).astype(np.float64)
    levelled = (voxels - voxels.mean()) / voxels.std(ddof=1)
    found = VolumeFolder(tmp_path, spacing=(2.0, 2.0, 2.0), size=(4, 4, 4))[0][0]
    np.testing.assert_allclose(found[0].numpy(), levelled[2:10, 2:10, 2:10].reshape(4, 2, 4, 2, 4, 2).mean((1, 3, 5)), atol=1e-5)


def test_coarser_files_stay_as_they_are_or_are_named(tmp_path):
    write(tmp_path / "a" / "v.nii", (4, 4, 4), (5.0, 1.0, 1.0))
    assert VolumeFolder(tmp_path, spacing=THIN, spaced=True)[0][2].tolist() == [5.0, 1.0, 1.0]
    with pytest.raises(ValueError, match=r"v.nii: its voxels are 5 x 1 x 1 mm and cannot be averaged to 1 x 1 x 1 mm"):
        VolumeFolder(tmp_path, spacing=THIN, exact=True)[0]
    with pytest.raises(ValueError, match="millimetres along"):
        VolumeFolder(tmp_path, spacing=(1.0, 1.0))


# ---- what a model is told


def test_two_volumes_of_different_spacing_in_one_batch_get_the_rotations_of_their_millimetres(folder):
    asked = config(
        folder, positions="units", encoding="axial", encoding_kwargs=("theta=10.0",), model_kwargs=(*TINY, "embed_dim=72")
    )
    data = stored(asked, trained(asked), split="train")
    thin, thick = (next(i for i, f in enumerate(data.files) if f.name.startswith(n)) for n in ("thin", "thick"))
    images, _, mm = collate([data[thin], data[thick]])
    assert mm.tolist() == [list(THIN), list(THICK)]
    model = build(asked).eval()
    told = own(places(asked, trained(asked), "units"), [mm])
    rotation = model.start(images, **told)[1].rotations[0][0]
    vectors = model.encoding.vectors().double()  # [1, P, A], radians a token of 1 mm voxels
    tokens = torch.cartesian_prod(*(torch.arange(2.0, dtype=torch.float64),) * 3)  # [N, A]
    for row, spaced in enumerate((THIN, THICK)):
        angles = (tokens * torch.tensor(spaced, dtype=torch.float64)) @ vectors[0].T  # [N, P]
        torch.testing.assert_close(rotation.cos[row].squeeze(0).double(), angles.cos(), rtol=0, atol=1e-6)
        torch.testing.assert_close(rotation.sin[row].squeeze(0).double(), angles.sin(), rtol=0, atol=1e-6)


def test_with_positions_by_index_nothing_is_told_and_in_units_each_batch_its_own():
    counted, measured = Config(dataset="volumes", data_dir="x"), Config(dataset="solids")
    mm = torch.tensor([THIN, THICK])
    assert own(places(counted, trained(counted), "index"), [mm]) == {}
    assert own(places(counted, trained(counted), "units"), [mm])["spacing"] is mm
    assert own(places(measured, case(measured, "zoom", 2), "units"), []) == {"spacing": case(measured, "zoom", 2).spacing}


def test_training_tells_each_volume_its_spacing(folder, tmp_path, monkeypatch):
    seen = {}
    for positions in ("index", "units"):
        run = Trainer(config(folder, positions=positions, encoding="mixed", steps=3, cache=True), tmp_path / positions)
        calls = seen.setdefault(positions, [])
        run.model.register_forward_pre_hook(lambda module, given, named, calls=calls: calls.append(named), with_kwargs=True)
        run.fit()
    assert all(named == {} for named in seen["index"])
    pairs = {tuple(mm) for named in seen["units"] for mm in named["spacing"].tolist()}
    assert pairs == {THIN, THICK} and all(named["spacing"].shape[1] == 3 for named in seen["units"])
    plan = [(trained(config(folder)), 20, [("none",), ("none", "none", "units")])]
    counted, measured = evaluate.measure(tmp_path / "units", plan, FACTS)
    assert (counted.positions, measured.positions) == ("index", "units")


def test_at_home_the_two_kinds_of_positions_are_not_taken_for_one_measurement(folder, tmp_path, monkeypatch):
    Trainer(config(folder, encoding="axial"), tmp_path / "run").fit()
    told = []
    whole = evaluate.score
    monkeypatch.setattr(evaluate, "score", lambda *given, **named: told.append(named) or whole(*given, **named))
    plan = [(trained(config(folder)), 20, [("none",), ("none", "none", "units")])]
    list(evaluate.measure(tmp_path / "run", plan, FACTS))
    assert told == [{}, {"spacing": THIN}]


# ---- cases


def test_the_spacing_of_volumes_from_files_is_given_or_a_millimetre():
    given = [spacing(Config(dataset="volumes", data_dir="x", spacing=mm)) for mm in ((), (2.0,), (4.0, 1.0, 1.0))]
    assert given == [THIN, (2.0, 2.0, 2.0), (4.0, 1.0, 1.0)]
    asked = Config(dataset="volumes", data_dir="x", img_size=(16,), spacing=(2.0,))
    assert asked.measured_tests == ("canvas", "zoom", "slices") and Config(dataset="volumes", data_dir="x").measured_tests == (
        "canvas",
    )
    assert case(asked, "slices", 2).spacing == (4.0, 1.0, 1.0) and case(asked, "zoom", 2).spacing == (1.0, 1.0, 1.0)


def test_of_files_that_come_class_by_class_test_inputs_are_spread_over_all(folder):
    asked = config(folder)
    data, groups = evaluate.test_set(asked, trained(asked), 4)
    labels = torch.cat([batch[1] for batch in loader(data, [[0, 1, 2, 3]])])
    assert labels.tolist() == [0, 0, 1, 1] and len(groups) == 4


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"spacing": (1.0, 2.0)}, r"spacing=\(1.0, 2.0\): millimetres above 0, one number or depth, height and width"),
        ({"spacing": (0.0,)}, "millimetres above 0"),
        ({"spacing": (math.inf,)}, "millimetres above 0"),
        ({"dataset": "solids", "spacing": (1.0,)}, "is for volumes from files, and solids say their own"),
        ({"dataset": "glyphs", "positions": "units"}, "positions 'units': choose index, or units"),
        ({"positions": "mm"}, "positions 'mm': choose index, or units"),
        ({"positions": "units", "mixup": 0.2}, "mixup=0.2 mixes volumes of several spacings"),
        ({"tests": ("zoom",)}, "tests zoom: for volumes choose from canvas; zoom and slices need spacing"),
    ],
)
def test_a_wrong_choice_is_named_with_its_mend(changes, says):
    with pytest.raises(ValueError, match=says):
        config("x", **changes)


def test_a_test_of_finer_voxels_than_the_files_have_names_the_file(folder):
    asked = config(folder, spacing=(1.0,))
    data, _ = evaluate.test_set(asked, case(asked, "zoom", 2), 4)
    with pytest.raises(
        ValueError, match=r"thick0.nii.gz: its voxels are 4 x 1.5 x 1 mm and cannot be averaged to 0.5 x 0.5 x 0.5 mm"
    ):
        data[0]


# ---- a study


def test_a_study_of_anisotropic_volumes_trains_tests_and_reports(tmp_path):
    for k, (split, name) in enumerate((s, n) for s in ("train", "val") for n in ("a", "b")):
        for i in range(4):
            write(tmp_path / "data" / split / name / f"{i}.nii.gz", (16, 32, 32), (1.0, 0.5, 0.5), 10 * k + i)
    (tmp_path / "small.py").write_text(
        f'''"""A claim."""
from train.config import Config
from train.study import Study

STUDY = Study(
    base=Config(dataset="volumes", data_dir={str(tmp_path / "data")!r}, tests=("zoom", "slices"), img_size=(8,),
                spacing=(2.0, 1, 1), positions="units", model_kwargs={TINY!r}, cache=True, batch_size=4, steps=2,
                workers=0, threads=1),
    encodings=("learned", "axial", "alibi"), ratios=(1, 2), rules=(("none",), ("none", "none", "units")), samples=6, sequence=None)
'''
    )
    study, claim = extrapolate.load(str(tmp_path / "small.py"))
    run = tmp_path / "run"
    (run / "parts").mkdir(parents=True)
    extrapolate._write_config(run, study, claim, {"recipe": "small.py"}, FACTS)
    sheet(study, run / "samples.png")
    rows = [row for one in study.models() for row in extrapolate._model(run / one.title, FACTS, lambda event: None, study, one)]
    evaluate.write_rows(run / "rows.csv", rows)
    page = extrapolate.report([run]).read_text()
    assert isinstance(study, Study) and (run / "samples.png").exists() and "true spacing" in page
    names = {row.size.label(row.test) for row in read_rows(run / "rows.csv")}
    assert names == {"8³ ×1", "16³ ×2", "4×8×8 ×1", "4×16×16 ×2"} and {row.positions for row in rows} == {"index", "units"}
    assert training_set(study.base).where[0].unique(dim=0).tolist() == [[2.0, 1.0, 1.0]]
