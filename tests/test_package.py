"""The wheel holds the library and all it reads, works in a new environment, and its types hold for who uses it strictly."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
USER = """
import torch
from torch import Tensor, nn

from rope_nd import RoPE, Rotation, fade, grid, hub, list_encodings, list_presets, unwrap, watch, wrap


def use(model: nn.Module, x: Tensor) -> Tensor:
    wrapped = wrap(model, "axial", scaling="yarn", trained_extent=(14, 14), theta=100)
    reveal_type(wrapped)
    rope = RoPE(64, 2, scaling="ntk", trained_extent=(14, 14))
    reveal_type(rope)
    reveal_type(RoPE.preset("dinov3", 64))
    rotation = rope.at(28, 20)
    reveal_type(rotation)
    placed: Rotation = rope(grid(14, 14), extent=(14, 14))
    reveal_type(rotation.qk(x, x))
    reveal_type(grid(14, 14))
    reveal_type(list_encodings())
    reveal_type(list_presets())
    hub.save(wrapped, "folder")
    reveal_type(hub.load("folder", scaling="yarn"))
    reveal_type(watch.attention(wrapped, x))
    reveal_type(unwrap(wrapped))
    fade(wrapped, strength=0.5)
    reveal_type(rotation(x))
    return placed(x)
"""
REVEALED = [
    "torch.nn.modules.module.Module",
    "rope_nd.rope.RoPE",
    "rope_nd.rope.RoPE",
    "rope_nd.rotation.Rotation",
    "tuple[torch._tensor.Tensor, torch._tensor.Tensor]",
    "torch._tensor.Tensor",
    "list[str]",
    "list[rope_nd.presets._preset.Preset]",
    "torch.nn.modules.module.Module",
    "list[torch._tensor.Tensor]",
    "torch.nn.modules.module.Module",
    "torch._tensor.Tensor",
]


def run(*command, **options):
    """What a command prints; its end must be a good one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind, source, folder):
    """The one file that the build backend makes of a source tree."""
    pytest.importorskip("hatchling")
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source)
    (made,) = Path(folder).iterdir()
    return made


def contents(wheel):
    """What each file of a wheel holds, but for the record of their digests."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of a new environment with the wheel in it, and beside it what the tests run with: but not the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    others = [path for path in sys.path if path.endswith("-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")  # a path that is named so: its own .pth files are not read
    return folder / "bin" / "python"


def test_the_wheel_holds_the_library_alone_and_all_that_it_reads(wheel):
    names = set(contents(wheel))
    assert {name.split("/")[0] for name in names} == {"rope_nd", next(iter(n for n in names if "dist-info" in n)).split("/")[0]}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "rope_nd").rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} == {name for name in names if name.startswith("rope_nd/")}
    kinds = {Path(name).suffix for name in names}
    assert "rope_nd/py.typed" in names and {".cpp", ".js", ".css", ".html"} <= kinds


def test_the_sdist_makes_the_same_wheel(wheel, tmp_path):
    sdist = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert not {"models", "train", "tests"} & {path.name for path in source.iterdir()}
    assert contents(built("wheel", source, tmp_path / "again")) == contents(wheel)


def test_an_installed_library_wraps_a_model_in_another_folder(python, tmp_path):
    code = (
        "import rope_nd, timm, torch; print(rope_nd.__file__); "
        "model = rope_nd.wrap(timm.create_model('vit_tiny_patch16_224', depth=1), 'axial').eval(); "
        "print(tuple(model(torch.zeros(1, 3, 32, 48)).shape))"
    )
    where, shape = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(Path(python).parents[1]) and shape == "(1, 1000)"


@pytest.mark.parametrize("name", ["models", "train", "tests"])
def test_what_is_for_checkouts_does_not_come_with_it(python, name, tmp_path):
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "None"


@pytest.mark.parametrize("name", ["bench", "coverage", "explore", "look", "presets", "properties"])
def test_its_commands_say_what_they_do(python, name, tmp_path):
    assert f"python -m rope_nd.{name}" in run(python, "-m", f"rope_nd.{name}", "--help", cwd=tmp_path)


def test_the_installed_page_is_whole(python, tmp_path):
    run(python, "-m", "rope_nd.explore", "page.html", cwd=tmp_path)
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_strict_type_checking_of_a_user_finds_no_error_and_knows_every_type(python, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        tmp_path / "cache",
        "user.py",
    ]
    told = run(*command, cwd=tmp_path)
    revealed = re.findall(r'Revealed type is "(.*)"', told)
    assert [one.replace("builtins.", "") for one in revealed] == REVEALED
    assert "Success" in told, told
