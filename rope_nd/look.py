"""Look at a model: one image at several sizes, its features as colours and what is attended to, side by side.

    python -m rope_nd.look PHOTO.png --model vit_small_patch16_dinov3 --pretrained --sizes 224 448 896
    python -m rope_nd.look PHOTO.png --saved FOLDER --query 0.4 0.6 --output look.png

Colours are the three principal directions of the patch features at the largest size, used at all sizes, so that a part that keeps
its colour has kept its features (as in DINOv2, Oquab 2023, figure 1). Attention is the mean over heads of one layer: of the class
token, if there is one, and of the patch at `--query`, marked by a cross.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError
from timm.models import load_checkpoint
from torch import Tensor, nn

from . import _command, hub, watch
from ._check import choose
from .pictures import save
from .registry import list_encodings
from .wrapping import wrap
from .wrapping.families import wrapped_trunk

EVENLY = 64  # queries whose entropy and distance are measured


@dataclass(frozen=True)
class View:
    """What a model makes of an image at one size: patch features `[h, w, C]`, attention `[h, w]`, and two numbers."""

    image: Tensor
    features: Tensor
    by_class: Tensor | None
    by_query: Tensor
    query: tuple[int, int]
    entropy: float
    distance: float


def directions(patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean `[C]`, the three principal directions `[C, 3]` of tokens `[N, C]`, and the spread along each `[3]`.

    Where there are fewer than three tokens, the directions that they do not have are zero.
    """
    mean = patches.mean(0)
    _, _, rows = torch.linalg.svd(patches - mean, full_matrices=False)
    ways = torch.nn.functional.pad(rows[:3].T, (0, 3 - min(3, len(rows))))
    spread = ((patches - mean) @ ways).std(0).nan_to_num()
    return mean, ways, spread.clamp(min=torch.finfo(spread.dtype).tiny)


def colours(patches: Tensor, basis: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Tokens `[.., C]` as colours `[.., 3]` along given directions; two standard deviations reach black and white."""
    mean, ways, spread = basis
    return ((patches.float() - mean) @ ways / (4 * spread) + 0.5).clamp(0, 1)


def opaque(image: Image.Image, background: tuple[int, int, int] = (255, 255, 255)) -> Image.Image:
    """An image as RGB; where it is transparent, on `background`, and not in the colours that lie unseen below."""
    if image.mode in ("RGB", "L") and "transparency" not in image.info:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, (*background, 255)), picture).convert("RGB")


def fitted(image: Image.Image, size: int, patch: tuple[int, int]) -> Tensor:
    """The image with its longer side `size`, both sides rounded to whole patches: float `[3, H, W]`, 0 to 1."""
    sides = (image.height, image.width)
    height, width = (max(1, round(side * size / max(sides) / step)) * step for side, step in zip(sides, patch))
    resized = opaque(image).resize((width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(resized)).movedim(-1, 0) / 255


@torch.no_grad()
def view(model: nn.Module, image: Image.Image, size: int, query: tuple[float, float] = (0.5, 0.5), layer: int = -1) -> View:
    """One size. `query`: a place, shares of height and width from the top left; `layer`: whose attention."""
    inner: Any = wrapped_trunk(model)
    patch = tuple(inner.patch_embed.feat_ratio(as_scalar=False))
    shown = fitted(image, size, patch)
    x = normalised(shown, model)[None].to(next(model.parameters()).device)
    h, w = (side // step for side, step in zip(shown.shape[-2:], patch))
    prefix = inner.prefix_tokens()
    at = (min(int(query[0] * h), h - 1), min(int(query[1] * w), w - 1))
    own = prefix + at[0] * w + at[1]
    evenly = (torch.linspace(0, h * w - 1, min(EVENLY, h * w)).round().long() + prefix).tolist()
    wanted = sorted({0, own, *evenly})
    with watch.Watch(wanted) as seen:
        tokens = inner.forward_features(x)
    shares = _chosen(seen.layers, layer, model)[0].mean(0).cpu()  # [Q, N]
    rows = shares[[wanted.index(i) for i in evenly]]
    return View(
        image=shown.movedim(0, -1),
        features=tokens[0, tokens.shape[1] - h * w :].float().cpu().unflatten(0, (h, w)),
        by_class=shares[0, prefix:].unflatten(0, (h, w)) if prefix else None,
        by_query=shares[wanted.index(own), prefix:].unflatten(0, (h, w)),
        query=at,
        entropy=watch.entropy(rows).mean().item(),
        distance=watch.distance(rows, evenly, (h, w), prefix).mean().item(),
    )


def _chosen(layers: list[Tensor], layer: int, model: nn.Module) -> Tensor:
    if not layers:
        raise ValueError(f"{type(model).__name__} showed no attention: it may be compiled")
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer {layer}: the model has {len(layers)}, counted from 0, or from -1 backwards")
    return layers[layer]


def normalised(image: Tensor, model: nn.Module) -> Tensor:
    """An image of 0 to 1 as the model expects it."""
    told: Any = getattr(model, "pretrained_cfg", None) or {}
    mean, std = (torch.tensor(told.get(name) or (0.5,) * 3, device=image.device).view(3, 1, 1) for name in ("mean", "std"))
    return (image - mean) / std


def picture(views: Sequence[View]) -> Figure:
    """A column a size: the image, features, and attention on it."""
    names = ["image", "features", *(["class token"] if views[0].by_class is not None else []), "patch at +"]
    height, width = views[0].image.shape[:2]
    figure = Figure(figsize=(3 * len(views), 3 * len(names) * height / width + 0.6), layout="constrained")
    grid = figure.subplots(len(names), len(views), squeeze=False)
    basis = directions(max((one.features.flatten(0, 1) for one in views), key=len))
    for column, one in enumerate(views):
        maps = [one.image, colours(one.features, basis), *([] if one.by_class is None else [one.by_class]), one.by_query]
        for row, (name, values) in enumerate(zip(names, maps)):
            axes = grid[row][column]
            axes.imshow(values.numpy(), cmap="viridis", interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(name)
        grid[-1][column].plot(one.query[1], one.query[0], "r+", markersize=10)
        h, w = one.features.shape[:2]
        told = f"entropy {one.entropy:.2f}, distance {one.distance:.1f} tokens"
        grid[0][column].set_title(f"{one.image.shape[0]} x {one.image.shape[1]} px, {h} x {w} tokens\n{told}", fontsize=9)
    return figure


def model_of(given: argparse.Namespace) -> nn.Module:
    """The model that the command line names."""
    if given.saved is not None:
        return hub.load(given.saved, **({} if given.scaling is None else {"scaling": given.scaling}))
    _command.check_model(given.model)
    choose("encoding", given.encoding, ["native", *list_encodings()])
    if not (given.pretrained or given.weights):
        print("note: random weights; give --pretrained, --weights FILE, or --saved FOLDER", file=sys.stderr)
    model = timm.create_model(given.model, pretrained=given.pretrained)
    if given.weights is not None:
        _read(model, given.weights)
    options = {} if given.scaling is None else {"scaling": given.scaling}
    return wrap(model, given.encoding, keep_pos_embed=given.encoding == "native", **options).eval()


def _read(model: nn.Module, weights: Path) -> None:
    """Load a checkpoint as timm does, and nothing that runs."""
    try:
        load_checkpoint(model, str(weights), weights_only=True)
    except Exception as error:  # of whatever reader the file is for
        raise ValueError(
            f"{weights}: no weights of this model that can be read ({(str(error).splitlines() or [type(error).__name__])[0]})"
        ) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = _command.Parser(prog="python -m rope_nd.look", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("image", type=Path, help="a picture")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a name of timm's")
    source.add_argument("--saved", help="a folder or repository that rope_nd.hub has written")
    parser.add_argument("--encoding", default="native", help="what to wrap --model with (default: native, its own)")
    parser.add_argument("--scaling", help="a rule above the trained size, such as yarn")
    parser.add_argument("--weights", type=Path, help="a checkpoint for --model")
    parser.add_argument("--pretrained", action="store_true", help="let timm fetch the weights of --model")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448], help="longer side in pixels (default: 224 448)")
    parser.add_argument("--query", type=float, nargs=2, default=(0.5, 0.5), metavar=("Y", "X"), help="shares of height and width")
    parser.add_argument("--layer", type=int, default=-1, help="whose attention (default: -1, the last)")
    parser.add_argument("--output", type=Path, default=Path("look.png"), help="the picture (default: look.png)")
    given = parser.parse_args(arguments)
    try:
        run(given)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def run(given: argparse.Namespace) -> None:
    """Look, write and print."""
    if min(given.sizes) < 1 or not all(0 <= share <= 1 for share in given.query):
        raise ValueError(f"sizes {given.sizes}, query {tuple(given.query)}: pixels of at least 1, and shares from 0 to 1")
    try:
        image = opaque(Image.open(given.image))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(f"{given.image}: no picture that can be read ({error})") from None
    model = model_of(given)
    views = [view(model, image, size, tuple(given.query), given.layer) for size in given.sizes]
    temporary = given.output.with_name(f".{given.output.name}.tmp")
    temporary.write_bytes(save(picture(views)))
    os.replace(temporary, given.output)
    for one in views:
        h, w = one.features.shape[:2]
        print(f"{h:4} x {w:<4} tokens   entropy {one.entropy:.3f}   distance {one.distance:.2f} tokens")
    print(given.output)


if __name__ == "__main__":
    _command.run(main)
