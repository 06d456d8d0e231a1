"""What the entries have in common: timm's VisionTransformer with `rope_nd.wrap` around it, made by timm's builder.

Twelve blocks, heads of 64, patches of 16, as ViT-Ti, -S and -B (Dosovitskiy 2021, Touvron 2021); what is not as there:

- No class token, the mean of all tokens: as good or better in plain training (Beyer 2022), and usual for clips (VideoMAE, Tong
  2022). With rotary positions there is one reason more: tokens that are never turned see where the others are, and patches among
  themselves only how far apart. Without prefix tokens a model does not change when all coordinates move together.
- No registers. They take up what collects in patches of large models trained for long (Darcet 2024); `reg_tokens=4` adds them.
- No norms of queries and keys, which keep models of billions of weights from diverging (Dehghani 2023); `qk_norm=True` adds them.
- The last norm before the mean, not behind it: features of tokens are normed, and keys are those of timm's `vit_*` without
  `cls_token` and `pos_embed`.
- No table of positions, unless `keep_pos_embed` asks for it.

Any argument of VisionTransformer changes these; all others are `rope_nd.wrap`'s: `encoding="axial"`, options of the encoding
(`theta=`, ..), `scaling`, `temperature`, `augment`, `strength`, and with three axes `frames`, `tubelet`, `spacing`, `attention`, ..
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm
from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import VisionTransformer, adapt_input_conv, build_model_with_cfg, load_checkpoint
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from rope_nd import RoPE, unwrap, wrap
from rope_nd.registry import Host
from rope_nd.wrapping import Wrapped
from rope_nd.wrapping.inflation import Inflation
from rope_nd.wrapping.timed import with_time

TINY: dict[str, Any] = {"embed_dim": 192, "depth": 12, "num_heads": 3}
SMALL: dict[str, Any] = {"embed_dim": 384, "depth": 12, "num_heads": 6}
BASE: dict[str, Any] = {"embed_dim": 768, "depth": 12, "num_heads": 12}
PLAIN = {"patch_size": 16, "class_token": False, "global_pool": "avg", "fc_norm": False}
MODEL = set(inspect.signature(VisionTransformer).parameters)


def cfg(size: int, channels: int = 3, classes: int = 1000) -> dict[str, Any]:
    """timm's default configuration of an entry: `input_size` `(C, H, W)`, of one frame or slice."""
    mean, std = (IMAGENET_INCEPTION_MEAN[:channels], IMAGENET_INCEPTION_STD[:channels])  # one half, each
    return {
        "url": "", "num_classes": classes, "input_size": (channels, size, size), "pool_size": None, "crop_pct": 0.9,
        "interpolation": "bicubic", "mean": mean, "std": std, "first_conv": "patch_embed.proj", "classifier": "head",
    }  # fmt: skip


class ClipFeatures(FeatureGetterNet):  # type: ignore[misc]
    """What `features_only=True` makes of a model with three axes: a list of maps `[B, T, H, W, C]`."""

    model: Any

    def forward(self, x: Tensor, **places: Any) -> list[Tensor]:
        """`places`: the `spacing`, `offset` and `extent` that the model's own forward takes."""
        options = {"indices": self.out_indices, "norm": self.norm, "output_fmt": "NTHWC", "intermediates_only": True}
        maps: list[Tensor] = self.model.forward_intermediates(x, **options, **places)
        return maps


def create(name: str, pretrained: bool, axes: int, start: str, **options: Any) -> nn.Module:
    """The entry of that name. `start`: how to start from a model of images, for those who ask for pretrained weights."""
    if pretrained:
        raise ValueError(f"{name} has no pretrained weights: leave pretrained out and train it, or start from images, {start}")
    maps: dict[str, Any] = {"out_indices": 3, "feature_cls": "getter"}
    if axes == 3:
        maps |= {"feature_cls": ClipFeatures, "output_fmt": "NHWC"}
    return build_model_with_cfg(partial(compose, axes), name, False, feature_cfg=maps, **{**PLAIN, **options})


def compose(axes: int, *, encoding: str | nn.Module = "axial", keep_pos_embed: Any = False, **options: Any) -> nn.Module:
    """timm's model, wrapped; it has a table of positions only where that is read."""
    read = bool(keep_pos_embed) or (isinstance(encoding, str) and encoding == "native")
    own = {name: value for name, value in options.items() if name in MODEL}
    beside = {name: value for name, value in options.items() if name not in MODEL}
    args = {"pos_embed": "learn" if read else "none", **own}
    model: Any = wrap(VisionTransformer(**args), encoding, axes=axes, keep_pos_embed=keep_pos_embed, **beside)
    model.wrapped.made = "vit_base_patch16_224", args  # from which `rope_nd.hub` builds it without this folder
    return model


def from_image(
    image: str | nn.Module,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = False,
    num_classes: int | None = None,
    in_chans: int | None = None,
    model: Mapping[str, Any] | None = None,
    encoding: str | nn.Module | None = None,
    **options: Any,
) -> nn.Module:
    """A model with three axes that starts as a model of images; `models.video` and `models.volume` have it with their defaults.

    - `image`: a timm name, of this folder's or `local-dir:` too, made with the arguments `model`; or a model, which is changed.
    - `checkpoint`: a file of its weights, loaded strictly; or timm's own with `pretrained=True`.
    - `num_classes`: a new head, 0 for none. `in_chans`: other channels; the weights of one are the sum of those of three.
    - `encoding`: by default the model keeps its positions, and a still clip of one tube is to it what the image was. A model with
      a table gets an axial encoding that turns by time alone; one that turns by height and width, timm's or ours, gets a component
      of time in every pair, zero at first and learned. Otherwise as `wrap` has it, with its further `options`.
    """
    flat = load(image, checkpoint, pretrained=pretrained, model=model)
    if num_classes is not None:
        flat.reset_classifier(num_classes)
    if in_chans is not None:
        see(flat, in_chans)
    if encoding is None:
        encoding, options = as_it_was(flat, options)
    return wrap(unwrap(flat) if isinstance(flat, Wrapped) else flat, encoding, axes=3, **options)


def load(image: str | nn.Module, checkpoint: str | Path | None, *, pretrained: bool, model: Mapping[str, Any] | None) -> Any:
    """The model of images with its weights."""
    flat = image if isinstance(image, nn.Module) else timm.create_model(image, pretrained=pretrained, **(model or {}))
    if checkpoint is not None:
        load_checkpoint(flat, str(checkpoint), weights_only=True)
    return flat


def see(flat: Any, channels: int) -> None:
    """Make the stem take so many channels: one is the sum of three, as gray is that in each of them."""
    proj = flat.patch_embed.proj
    if channels == proj.in_channels:
        return
    if proj.in_channels != 3:
        raise ValueError(f"in_chans={channels}: the model has {proj.in_channels} channels, and only three become others")
    weight = adapt_input_conv(channels, proj.weight.detach())
    proj.weight, proj.in_channels, flat.in_chans = nn.Parameter(weight), channels, channels


def as_it_was(flat: Any, options: dict[str, Any]) -> tuple[str | nn.Module, dict[str, Any]]:
    """An encoding with which a still clip of one tube is the image to the model as it was, and the options it leaves."""
    if isinstance(flat, Wrapped):
        return lifted(flat, options)
    if getattr(flat, "rope", None) is not None:
        return "native", options
    return "axial", {"keep_pos_embed": True, "strength": (1.0, 0.0, 0.0), **options}


def lifted(flat: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """The rotary encoding of a wrapped model, with a component of time in each pair, head and layer: zero, and learned."""
    ropes = list(flat.encoding) if isinstance(flat.encoding, nn.ModuleList) else [flat.encoding]
    first: Any = ropes[0]
    if type(first) is not RoPE:
        raise ValueError(f"from_image gives time to plain rotary encodings, the model has {type(first).__name__}: give encoding")
    frames, tubelet = options.get("frames"), options.get("tubelet", 1)
    extent = options.get("trained_extent") or (8 if frames is None else frames // tubelet, *flat.grid())
    heads, layers = flat.blocks[0].attn.num_heads, len(flat.blocks)
    host = Host(flat.embed_dim, heads, first.head_dim, layers, extent, first.prefix_tokens)
    told = {name: options.pop(name, getattr(first, name)) for name in ("scaling", "temperature")}
    told |= {"prefix_tokens": first.prefix_tokens, "trained_extent": extent, "strength": (1.0, *first.strength)}
    made = with_time(flat.encoding, host, Inflation(3), **told)
    return made, {"keep_pos_embed": flat.wrapped.kept, **options}
