"""From images to clips and volumes: the choices there are, and the stem that makes tubes of what made patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor, nn

from .._check import choose
from .budget import Drop

Attention = Literal["joint", "factorised"]
Time = Literal["added", "slowest"]
EIGHT = 8  # tokens along an axis that an image has not, where nobody says how many


@dataclass(frozen=True)
class Inflation:
    """What `wrap` is told of a model whose axes are not those of an image; see there."""

    axes: int
    tubelet: int = 1
    inflate: str | Sequence[float] = "mean"
    frames: int | None = None
    spacing: Sequence[float] | None = None
    attention: str = "joint"
    tokens: int | None = None
    drop: str | None = None
    time: str | None = None
    time_share: float | None = None
    time_theta: float | None = None

    def __post_init__(self) -> None:
        for name in ("axes", "tubelet", "frames", "tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: give a whole number of at least 1")
        if self.frames is not None and self.frames % self.tubelet:
            raise ValueError(f"frames={self.frames} is no multiple of tubelet={self.tubelet}")
        choose("attention", self.attention, get_args(Attention))
        if self.drop is not None:
            choose("drop", self.drop, get_args(Drop))
        if self.attention == "factorised" and self.drop not in (None, "tube"):
            raise ValueError(f"drop={self.drop!r}: factorised attention needs the same places in all frames, choose 'tube'")
        if self.spacing is not None and (len(self.spacing) != self.axes or min(self.spacing) <= 0):
            raise ValueError(f"spacing={self.spacing!r}: give {self.axes} positive numbers, one an axis")
        shares(self.inflate, self.tubelet)

    @property
    def dropping(self) -> str:
        """How tokens above the budget go."""
        return self.drop or ("tube" if self.attention == "factorised" else "random")

    @property
    def distances(self) -> tuple[float, ...]:
        """The trained distance between samples along each axis."""
        return (1.0,) * self.axes if self.spacing is None else tuple(self.spacing)

    def trained(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens an axis that the model is trained at, from those of its images."""
        first = EIGHT if self.frames is None else self.frames // self.tubelet
        return tuple(([first] + [EIGHT] * (self.axes - 3) + list(grid))[-self.axes :]) if self.axes > 2 else grid[-self.axes :]


def read(axes: int, options: dict[str, Any]) -> tuple[Inflation | None, dict[str, Any]]:
    """The choices that concern more axes than an image's, and the options that are left for the encoding."""
    if isinstance(axes, bool) or not isinstance(axes, int) or axes < 1:
        raise ValueError(f"axes={axes!r}: give 2 for images, 3 for clips and volumes, any other number for tokens with coordinates")
    names = {field.name for field in fields(Inflation)} - {"axes"}
    given = {name: value for name, value in options.items() if name in names}
    grid = set(given) & {"tubelet", "inflate", "frames", "attention", "time", "time_share", "time_theta"}
    for name in sorted(given if axes == 2 else grid if axes != 3 else ()):
        raise ValueError(f"{name}={given[name]!r} is for axes=3, [B, C, T, H, W], and axes={axes}: leave it out")
    return (None if axes == 2 else Inflation(axes, **given)), {n: v for n, v in options.items() if n not in names}


def shares(inflate: str | Sequence[float], tubelet: int) -> tuple[float, ...]:
    """What each frame of a tube gets of an image's weights; of sum one, so that a still tube gives what the image gave.

    `"mean"`: all alike. `"centre"`: the frame in the middle all of it (I3D, Carreira 2017; ViViT, Arnab 2021). Numbers: in their
    proportion.
    """
    if isinstance(inflate, str):
        middle = choose("inflate", inflate, ("mean", "centre")) == "centre"
        return tuple(float(i == tubelet // 2) if middle else 1 / tubelet for i in range(tubelet))
    each = tuple(float(number) for number in inflate)
    if len(each) != tubelet or not math.isfinite(sum(each)) or abs(sum(each)) < 1e-6:
        raise ValueError(f"inflate={inflate!r}: give {tubelet} numbers, one a frame of a tube, whose sum is not zero")
    return tuple(number / sum(each) for number in each)


class Tubes(nn.Conv3d):
    """A convolution over tubes, whose weight `[D, C, t, p, p]` may be loaded from an image's `[D, C, p, p]`, under the same key."""

    shares: tuple[float, ...]

    def inflated(self, weight: Tensor) -> Tensor:
        return torch.stack([weight * share for share in self.shares], dim=2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        found = state_dict.get(f"{prefix}weight")
        if found is not None and found.ndim == 4:
            state_dict[f"{prefix}weight"] = self.inflated(found)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def inflate(embed: Any, shares: tuple[float, ...]) -> None:
    """Make the image stem of `embed` one of tubes, in place."""
    flat, tubelet = embed.proj, len(shares)
    kernel, stride = (tubelet, *flat.kernel_size), (tubelet, *flat.stride)
    embed.proj = Tubes(flat.in_channels, flat.out_channels, kernel, stride, bias=flat.bias is not None, device="meta")
    embed.proj.shares = shares
    _take(embed.proj, flat, embed.proj.inflated(flat.weight.detach()))


def deflate(embed: Any) -> None:
    """The stem of images again: the sum over a tube."""
    deep = embed.proj
    embed.proj = nn.Conv2d(
        deep.in_channels, deep.out_channels, deep.kernel_size[1:], deep.stride[1:], bias=deep.bias is not None, device="meta"
    )
    _take(embed.proj, deep, deep.weight.detach().sum(2))


def _take(new: Any, old: Any, weight: Tensor) -> None:
    """The new convolution with that weight, and the rest of the old."""
    new.weight, new.bias = nn.Parameter(weight, requires_grad=old.weight.requires_grad), old.bias
    new.train(old.training)


class TubeEmbed(PatchEmbed):
    """timm's PatchEmbed with tubes: `[B, C, T, H, W]` -> `[B, N, D]`."""

    def feat_ratio(self, as_scalar: bool = True) -> Any:
        return max(self.patch_size) if as_scalar else tuple(self.proj.kernel_size)

    def dynamic_feat_size(self, img_size: Any) -> Any:
        pad = self.dynamic_img_pad
        return tuple(-(-size // of) if pad else size // of for size, of in zip(img_size, self.proj.kernel_size))

    def forward(self, x: Tensor) -> Tensor:
        if self.dynamic_img_pad:
            frames, height, width = (-size % of for size, of in zip(x.shape[2:], self.proj.kernel_size))
            x = nn.functional.pad(x, (0, width, 0, height, 0, frames))
        return self.norm(self.proj(x).flatten(2).mT)


def check_attention(given: Inflation, model: Any, layers: Sequence[nn.Module]) -> None:
    """Raise ValueError for what factorised attention cannot do."""
    if given.attention == "joint":
        return
    for layer in layers:
        if hasattr(layer, "lambda_init"):
            raise ValueError(f"attention='factorised' is not for {type(layer).__name__}: leave it out")
    if not isinstance(getattr(model, "patch_drop", None), (nn.Identity, type(None))):
        raise ValueError("attention='factorised' needs the same places in all frames, which patch_drop does not leave: give tokens")


def check_stem(embed: Any) -> None:
    """Raise ValueError for a stem that cannot be inflated, naming it."""
    if type(embed) is not PatchEmbed:
        raise ValueError(f"wrap inflates PatchEmbed, and does not know how to inflate {type(embed).__name__}")
    if type(embed.proj) is not nn.Conv2d or set(embed.proj.padding) != {0}:
        raise ValueError(f"wrap does not know how to inflate {type(embed.proj).__name__} in the stem")
