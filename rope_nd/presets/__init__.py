"""Published rotary encodings, each a few lines over the core: frequencies, positions, layout.

    RoPE.preset("eva02", head_dim=64)            # or wrap(model, "eva02")
    python -m rope_nd.presets                    # name, axes, paper and users of each
"""

from __future__ import annotations

from typing import Any

from .._check import choose
from ..rope import RoPE
from . import free, image, text, video
from ._preset import Preset

__all__ = ["PRESETS", "Preset", "build", "list_presets"]

PRESETS: dict[str, Preset] = {
    found.name: found for module in (text, image, video, free) for found in vars(module).values() if isinstance(found, Preset)
}


def list_presets() -> list[Preset]:
    """All of them: name, axes, paper, the models that use it."""
    return list(PRESETS.values())


def build(name: str, head_dim: int, **options: Any) -> RoPE:
    """The encoding of that name, see `RoPE.preset`."""
    return PRESETS[choose("preset", name, PRESETS)](head_dim, **options)
