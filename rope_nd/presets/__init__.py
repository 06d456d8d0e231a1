"""Published rotary encodings, each a few lines over the core: frequencies, positions, layout.

    RoPE.preset("eva02", head_dim=64)            # or wrap(model, "eva02")

`python -m rope_nd.presets` prints name, axes, paper and users of each.
"""

from __future__ import annotations

from typing import Any

from .._check import choose
from ..rope import RoPE
from . import free, generators, image, multimodal, text, video
from ._preset import Preset

__all__ = ["PRESETS", "Preset", "build", "list_presets"]

_FILES = (text, image, generators, video, multimodal, free)
PRESETS: dict[str, Preset] = {p.name: p for file in _FILES for p in vars(file).values() if isinstance(p, Preset)}


def list_presets() -> list[Preset]:
    """All of them: name, axes, paper, the models that use it."""
    return list(PRESETS.values())


def build(name: str, head_dim: int, **options: Any) -> RoPE:
    """The encoding of that name, see `RoPE.preset`."""
    return PRESETS[choose("preset", name, PRESETS)](head_dim, **options)
