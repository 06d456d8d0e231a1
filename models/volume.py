"""Volumes: `rope_volume_vit_{tiny,small,base}_patch16_96`, `[B, 1, D, H, W]`, any D, H and W in multiples of 16.

One channel, cubes of 16 voxels a side in volumes of 96, as in UNETR (Hatamizadeh 2022): 6 x 6 x 6 tokens. `patch_size=` changes
the cubes, `img_size=` the volume, `tubelet=` and `frames=` the depth of either; `spacing=(3.0, 1.0, 1.0)` is the voxel of training
in millimetres, and the forward takes that of its input, sample by sample. Without `num_classes=` there is no head, but the mean of
the tokens. For what else there is see `models._vit`, `rope_nd.wrap` and `rope_nd.wrapping.inflated.Inflated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from models import _vit
from models._vit import BASE, PLAIN, SMALL, TINY, cfg, create

default_cfgs = generate_default_cfgs(
    {f"rope_volume_vit_{size}_patch16_96": cfg(96, channels=1, classes=0) for size in ("tiny", "small", "base")}
)


def from_image(
    image: str | nn.Module,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = False,
    model: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """A model of volumes that starts as a model of images, with the options of `models._vit.from_image` and one channel.

    from_image("vit_small_patch16_224", pretrained=True, num_classes=11, spacing=(3.0, 1.0, 1.0))

    Cubes have the side of the patch, and the volume that of the image: `tubelet` and `frames` say otherwise.
    """
    flat = _vit.load(image, checkpoint, pretrained=pretrained, model=model)
    deep = cubes(flat.patch_embed.img_size, flat.patch_embed.patch_size, options)
    return _vit.from_image(flat, **{"in_chans": 1, **deep, **options})


def cubes(size: Any, patch: Any, options: Mapping[str, Any]) -> dict[str, int]:
    """As deep as the rows of a patch, and of the image unless `trained_extent` says how many tokens."""
    side, rows = (int(n[0]) if isinstance(n, (tuple, list)) else int(n) for n in (size, patch))
    return {"tubelet": rows} if "trained_extent" in options else {"tubelet": rows, "frames": side}


def _create(size: str, pretrained: bool, shape: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    start = f'models.volume.from_image("vit_{size}_patch16_224", pretrained=True)'
    given = {"img_size": 96, **PLAIN, **shape, **options}
    deep = cubes(given["img_size"], given["patch_size"], options)
    return create(f"rope_volume_vit_{size}_patch16_96", pretrained, 3, start, **{**deep, **given})


@register_model
def rope_volume_vit_tiny_patch16_96(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-Ti/16 in cubes: 6.1 M parameters without a head, 1.53 GMACs at 96 x 96 x 96."""
    return _create("tiny", pretrained, TINY, kwargs)


@register_model
def rope_volume_vit_small_patch16_96(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-S/16 in cubes: 22.9 M parameters without a head, 5.36 GMACs at 96 x 96 x 96."""
    return _create("small", pretrained, SMALL, kwargs)


@register_model
def rope_volume_vit_base_patch16_96(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-B/16 in cubes: 88.2 M parameters without a head, 19.9 GMACs at 96 x 96 x 96."""
    return _create("base", pretrained, BASE, kwargs)
