"""Images: `rope_vit_{tiny,small,base}_patch16_224`, `[B, 3, H, W]`, any H and W in multiples of 16.

Encodings beside axial are `encoding="mixed"`, `"alibi"`, `"sinusoidal"` or any of `rope_nd.list_encodings()` and
`rope_nd.list_presets()`; for what other arguments do see `models._vit` and `rope_nd.wrap`. At sizes above those of training,
`scaling="yarn"` and others stretch.
"""

from __future__ import annotations

from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from models._vit import BASE, SMALL, TINY, cfg, create

default_cfgs = generate_default_cfgs({f"rope_vit_{size}_patch16_224": cfg(224) for size in ("tiny", "small", "base")})


def _create(size: str, pretrained: bool, shape: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    start = f'wrap(timm.create_model("vit_{size}_patch16_224", pretrained=True), "axial", keep_pos_embed=True)'
    return create(f"rope_vit_{size}_patch16_224", pretrained, 2, start, **{**shape, **options})


@register_model
def rope_vit_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-Ti/16: 5.5 M parameters without a head, 1.25 GMACs at 224 x 224."""
    return _create("tiny", pretrained, TINY, kwargs)


@register_model
def rope_vit_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-S/16: 21.6 M parameters without a head, 4.57 GMACs at 224 x 224."""
    return _create("small", pretrained, SMALL, kwargs)


@register_model
def rope_vit_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViT-B/16: 85.6 M parameters without a head, 17.5 GMACs at 224 x 224."""
    return _create("base", pretrained, BASE, kwargs)
