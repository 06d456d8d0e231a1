"""Every transformer of the installed timm has a row; what is wrapped was run; at least 330 are."""

import json
from collections import Counter

import pytest
import timm
import torch
from timm.models import list_modules

from rope_nd import coverage, unwrap, wrap
from rope_nd.wrapping.families import CLASSIFIERS, MODELS, trunk
from rope_nd.wrapping.refused import REASONS, WHY


@pytest.fixture(scope="module")
def rows():
    return list(coverage.rows())


def test_at_least_330_names_are_wrapped_or_native_each_run_and_none_fails(rows, capsys):
    counts = Counter(row.status for row in rows)
    with capsys.disabled():
        print(f"\ntimm {timm.__version__}: {dict(counts)} of {len(rows)} transformers")
    failed = [row for row in rows if row.cls in coverage.SUPPORTED and row.status == "refused"]
    assert not failed and counts["wrapped"] + counts["native"] >= 330


def test_no_name_is_skipped(rows):
    listed, left = {row.name for row in rows}, {name for name in timm.list_models() if coverage.timms(name)}
    assert listed <= left
    for name in left - listed:
        assert coverage.module_of(name) in coverage.CONVOLUTIONAL | {"mobilenetv3"}
    assert coverage.CONVOLUTIONAL <= set(list_modules()) | {"fasternet", "focalnet", "lcnetv2", "cspnext", "starnet", "hgnet"}
    with torch.device("meta"):  # what is left out has no attention over tokens by another name
        for name in ("resnet10t", "convnext_atto", "efficientnet_b0", "mambaout_femto"):
            found = {type(m).__name__ for m in timm.create_model(name).modules()}
            assert not any(word in cls for cls in found for word in ("Attention", "Attn"))


def test_what_is_refused_says_its_class_and_a_known_reason(rows):
    refused = [row for row in rows if row.status == "refused"]
    assert {row.reason for row in refused} <= set(REASONS.values()) and all(row.cls in WHY for row in refused)
    for cls in sorted({row.cls for row in refused}):  # one name a class is made and refused by wrap in these words
        name = next(row.name for row in refused if row.cls == cls)
        with torch.device("meta"), pytest.raises(ValueError, match=f"does not know {cls}: it {WHY[cls][:20]}"):
            wrap(timm.create_model(name), "axial")


def test_a_class_that_nobody_has_looked_at_is_reported(monkeypatch):
    monkeypatch.setattr(coverage, "SUPPORTED", {k: v for k, v in coverage.SUPPORTED.items() if k != "Cait"})
    (row,) = coverage.rows(["cait_xxs24_224"])
    assert (row.status, row.cls, row.reason) == ("refused", "Cait", "is not known")


def test_a_model_that_fails_is_a_row_with_the_error(monkeypatch):
    def broken(name):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(coverage, "small", broken)
    (row,) = coverage.rows(["vit_tiny_patch16_224"])
    assert (row.status, row.reason) == ("refused", "RuntimeError: no such luck")


def test_every_class_that_wrap_knows_has_a_name(rows):
    assert {row.cls for row in rows if row.status != "refused"} == {cls.__name__ for cls in (*MODELS, *CLASSIFIERS)}


def test_the_command_writes_rows_and_a_table(tmp_path, capsys):
    coverage.main(["vit_tiny_patch16_224", "xcit_nano_12_p16_224", "vit_small_patch16_dinov3", "--json", str(tmp_path / "r.json"),
                   "--markdown", str(tmp_path / "r.md")])  # fmt: skip
    rows = {row["name"]: row for row in json.loads((tmp_path / "r.json").read_text())}
    assert {name: row["status"] for name, row in rows.items()} == {
        "vit_tiny_patch16_224": "wrapped", "xcit_nano_12_p16_224": "refused", "vit_small_patch16_dinov3": "native",
    }  # fmt: skip
    assert rows["xcit_nano_12_p16_224"]["reason"].startswith("attends over channels")
    assert "1 native, 1 wrapped, 1 refused of 3" in capsys.readouterr().out
    assert "| Xcit | refused | 1: xcit_nano_12_p16_224 | attends over channels" in (tmp_path / "r.md").read_text()


FULL = {  # one name a family, as it is
    "vit_tiny_patch16_224": 224,
    "deit_tiny_distilled_patch16_224": 224,
    "vit_tiny_r_s16_p8_224": 224,
    "vitamin_small_224": 224,
    "eva02_tiny_patch14_224": 224,
    "vit_small_patch16_rope_mixed_224": 224,
    "vit_small_patch16_dinov3": 256,
    "vit_pe_core_tiny_patch16_384": 384,
    "naflexvit_base_patch16_gap": 384,
    "qwen3_vit_88m": 256,
    "deepseek_vit_412m": 84,
    "gemma4_vit_167m": 192,
    "beit_base_patch16_224": 224,
    "vit_relpos_small_patch16_224": 224,
    "cait_xxs24_224": 224,
    "convit_tiny": 224,
    "tnt_s_patch16_224": 224,
    "samvit_base_patch16_224": 224,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_a_full_size_model_of_each_family_is_itself_with_its_own_positions_and_takes_a_larger_image(name):
    torch.manual_seed(0)
    model, size = timm.create_model(name, num_classes=7).eval(), FULL[name]
    unit, classes = coverage.pixels(model), {type(m) for m in model.modules()}
    x = torch.rand(1, 3, size, size)
    with torch.no_grad():
        expected = model(x)
        noise = (model.double()(x.double()) - expected).abs().max().item() if "gemma" in name else 0.0  # unscaled scores: large
        model.float()
        native = wrap(model, "native")(x)
        still = wrap(unwrap(model), "axial", keep_pos_embed=True, strength=0.0)(x)
        for output in (native, still):
            torch.testing.assert_close(output, expected, atol=max(1e-5, noise), rtol=1e-5)
        assert wrap(unwrap(model), "axial")(torch.rand(1, 3, size // unit * unit + unit, 2 * unit)).isfinite().all()
    assert {type(m) for m in unwrap(model).modules()} == classes and trunk(model) is not None


def test_the_full_size_names_are_of_every_class():
    assert {coverage.class_of(name) for name in FULL} >= {cls.__name__ for cls in (*MODELS, *CLASSIFIERS)} - {
        "DeepseekVitEncoder", "Qwen3VitEncoder", "Gemma4VitEncoder",
    }  # fmt: skip
