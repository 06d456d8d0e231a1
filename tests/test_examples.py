"""Every example runs from a checkout, and shows what its docstring says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parent.parent / "examples"


def shown(name, folder, *arguments):
    """What an example prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)}
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text, pattern):
    return [tuple(map(float, one)) if isinstance(one, tuple) else float(one) for one in re.findall(pattern, text)]


def test_a_model_that_was_fine_tuned_low_is_right_high_when_positions_are_stretched(tmp_path):
    out = shown("timm_finetune", tmp_path, "--sizes", "32", "64")
    (low, _), (plain, stretched) = numbers(out, r"accuracy ([\d.]+), with position interpolation ([\d.]+)")
    assert "outputs differ by 0.0e+00" in out and low > 0.9 and stretched > 0.9 and stretched > plain


def test_features_of_dinov2_become_a_picture_at_three_sizes(tmp_path):
    out = shown("dinov2_features", tmp_path, "--size", "56", "--output", "found.png")
    assert numbers(out, r"(\d+) x (\d+) tokens") == [(4, 4), (8, 8), (16, 16)]
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_weights_of_dinov2_go_in_and_give_what_timm_gives(tmp_path):
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    torch.save(timm.create_model("vit_small_patch14_dinov2", num_classes=0).state_dict(), tmp_path / "weights.pth")
    out = shown("dinov2_features", tmp_path, "--size", "28", "--weights", "weights.pth")
    assert numbers(out, r"differs from timm's by (\S+)")[0] < 1e-4


def test_a_lightning_module_learns_and_takes_other_sizes(tmp_path):
    pytest.importorskip("lightning")
    accuracies = numbers(shown("lightning_module", tmp_path, "--sizes", "32", "40"), r"accuracy ([\d.]+)")
    assert len(accuracies) == 2 and accuracies[0] > 0.6


def test_a_diffusers_transformer_keeps_its_outputs_and_a_rule_changes_them_above_its_size(tmp_path):
    pytest.importorskip("diffusers")
    out = shown("diffusers_flux", tmp_path, "--tokens", "4", "8")
    (same, home), (larger, stretched) = numbers(out, r"ours differs by (\S+), yarn by (\S+)")
    assert max(same, home, larger) < 1e-5 < 1e-4 < stretched


def test_a_model_of_volumes_takes_millimetres_from_monai(tmp_path):
    pytest.importorskip("monai")
    out = shown("monai_volumes", tmp_path)
    ((thick, thin),) = numbers(out, r"change by (\S+) with slices of 3 mm, (\S+) with 1 mm")
    assert numbers(out, r"accuracy ([\d.]+)")[0] > 0.8 and thin < 1e-6 < 1e-5 < thick


def test_every_example_says_how_it_is_run():
    for path in FOLDER.glob("*.py"):
        text = path.read_text()
        assert text.startswith('"""') and len(text.splitlines()) <= 120
        assert path.name == "discs.py" or f"python examples/{path.name}" in text
