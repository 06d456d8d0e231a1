"""What the README says runs: its Python, block after block, and its commands, with the same options and small values."""

import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

import models
from tests.promises.runs import TINY, apart, exit_code, pictures

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
COMMANDS = sorted(
    {line.split("#")[0].strip() for line in re.findall(r"(?:^ {4}|`)((?:python|torchrun|pip) [^`\n]*)", README, re.M)}
)
FOLDER = "--model vit_tiny_patch16_224 --encoding axial --dataset folder --data-dir data --img-size 16 --rest 0"
SMALL = f"--threads 1 --steps 2 --batch-size 4 --workers 0 --output runs --experiment one --model-kwargs {' '.join(TINY)}"
DEIT = "--model deit_small_patch16_224 --weights deit.safetensors --data data --model-kwargs img_size=32 patch_size=8"
# what is run of each command, in this order
RUN = (
    ("rope_nd.presets", ""),
    ("rope_nd.explore", "encodings.html"),
    ("rope_nd.look", "photo.png --model vit_tiny_patch16_224 --sizes 32 64 --encoding axial"),
    ("train", f"{FOLDER} {SMALL}"),
    (
        "train.evaluate",
        "--checkpoint runs/one --sizes 16 24x32 --scaling none pi pyramid --temperature none log --output rows.csv",
    ),
    ("train.extrapolate", "--recipe smoke --name small --steps 3 --encodings axial"),
    ("train.report", "runs/small"),
    ("train.retrofit", f"{DEIT} --steps 2 --batch-size 2 --measure-images 2 --output runs/retrofit"),
    ("train.evaluate", "--probe runs/retrofit --data data --sizes 32 48"),
)
HELP = (
    "rope_nd.bench",
    "rope_nd.coverage",
    "rope_nd.properties",
    "train.brains",
)  # long, or they fetch: asked for their help
VALUES = "--pretrained"  # of what nothing here may fetch
OUTSIDE = "pip", "mkdocs", "torchrun", "pytest"  # .ci/run does these, tests/promises/test_sharded.py what torchrun does


def blocks(folder: str) -> None:
    """All blocks, in one namespace; pretrained weights, which nothing here may fetch, are random ones."""
    os.chdir(folder)
    create = timm.create_model
    timm.create_model = lambda *given, pretrained=False, **named: create(*given, **named)
    for kind in (models.video, models.volume):
        kind.from_image = lambda *given, make=kind.from_image, pretrained=False, **named: make(*given, **named)
    save_file(create("rope_vit_tiny_patch16_224", img_size=32, num_classes=47).state_dict(), "model.safetensors")  # a run's
    known: dict = {}
    for block in BLOCKS:
        lines = [line for line in block.splitlines() if line.strip()]
        if all(line.startswith("wrap(") for line in lines):  # a list of ways: each with a model of its own
            for line in lines:
                exec(line, {**known, "model": create("vit_tiny_patch16_224")})
        else:
            exec(block, known)


def command(folder: str, module: str, arguments: str) -> None:
    os.chdir(folder)
    sys.argv = [module, *shlex.split(arguments)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def modules() -> dict[str, list[str]]:
    """The module of each command of the README, and the options that it is shown with."""
    found: dict[str, list[str]] = {}
    for one in COMMANDS:
        for part in one.split("&&"):
            words = shlex.split(part)
            if words[0] == "python":
                found.setdefault(words[2], []).extend(word for word in words if word.startswith("--"))
            else:
                assert words[0] in OUTSIDE, one
    return found


def test_every_command_of_the_readme_is_run_with_its_options():
    assert len(COMMANDS) > 8
    for module, options in modules().items():
        run = " ".join(arguments for name, arguments in RUN if name == module)
        assert module in (*dict(RUN), *HELP), module
        if module not in HELP:
            assert {*options} <= {*run.split(), *VALUES.split()}, (module, options)


@pytest.mark.slow
def test_every_block_of_python_runs(tmp_path):
    assert len(BLOCKS) > 5
    (tmp_path / "inputs").mkdir()
    assert exit_code(apart(blocks, str(tmp_path)), within=600) == 0


@pytest.mark.slow
def test_every_command_runs(tmp_path):
    pictures(tmp_path / "data")
    Image.new("RGB", (64, 48), (200, 100, 50)).save(tmp_path / "photo.png")
    save_file(timm.create_model("deit_small_patch16_224", img_size=32, patch_size=8).state_dict(), tmp_path / "deit.safetensors")
    for module, arguments in [*RUN, *((module, "--help") for module in HELP)]:
        assert exit_code(apart(command, str(tmp_path), module, arguments), within=300) == 0, module
