"""Clips: `rope_video_vit_{tiny,small,base}_patch16_224`, `[B, 3, T, H, W]`, any T, H and W in multiples of 2, 16 and 16.

Tubes of 2 frames and 16 x 16 pixels and clips of 16 frames, as in VideoMAE (Tong 2022): 8 x 14 x 14 tokens. `frames=` and
`tubelet=` say otherwise; `spacing=(1 / fps, 1, 1)` counts time in seconds, and the forward takes that of its clip;
`attention="factorised"` is for long ones. For what else there is see `models._vit`, `rope_nd.wrap` and
`rope_nd.wrapping.inflated.Inflated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from models import _vit
from models._vit import BASE, SMALL, TINY, cfg, create

default_cfgs = generate_default_cfgs(
    {f"rope_video_vit_{size}_patch16_224": cfg(224, classes=400) for size in ("tiny", "small", "base")}
)


def from_image(image: str | nn.Module, checkpoint: str | Path | None = None, **options: Any) -> nn.Module:
    """A model of clips that starts as a model of images, with the options of `models._vit.from_image`.

    from_image("vit_small_patch16_224", pretrained=True, num_classes=174)
    from_image("rope_vit_tiny_patch16_224", "run/model.safetensors", model={"img_size": 32, "num_classes": 47}, frames=8)
    """
    return _vit.from_image(image, checkpoint, **{**defaults(options), **options})


def defaults(options: Mapping[str, Any]) -> dict[str, int]:
    """Tubes of 2 frames, clips of 16 unless `trained_extent` says how many tokens."""
    return {"tubelet": 2} if "trained_extent" in options else {"tubelet": 2, "frames": 16}


def _create(size: str, pretrained: bool, shape: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    start = f'models.video.from_image("vit_{size}_patch16_224", pretrained=True)'
    return create(f"rope_video_vit_{size}_patch16_224", pretrained, 3, start, **{**shape, **defaults(options), **options})


@register_model
def rope_video_vit_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-Ti/16x2: 5.6 M parameters without a head, 20.1 GMACs at 16 x 224 x 224."""
    return _create("tiny", pretrained, TINY, kwargs)


@register_model
def rope_video_vit_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-S/16x2: 21.9 M parameters without a head, 56.9 GMACs at 16 x 224 x 224."""
    return _create("small", pretrained, SMALL, kwargs)


@register_model
def rope_video_vit_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-B/16x2: 86.2 M parameters without a head, 180 GMACs at 16 x 224 x 224."""
    return _create("base", pretrained, BASE, kwargs)
