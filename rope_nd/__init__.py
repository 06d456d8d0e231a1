"""rope_nd: N-dimensional rotary position embeddings for vision transformers.

`import rope_nd` imports torch and einops alone, opens no socket and writes nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import freqs, positions, scaling
from .positions import augment, batch_grids, grid, keep
from .rope import RoPE
from .rotation import Rotation, angles, convert_layout, rotate

if TYPE_CHECKING:
    from .calibration import calibrate
    from .presets import list_presets
    from .pyramid import Pyramid
    from .registry import list_encodings
    from .wrapping import fade, unwrap, wrap

__version__ = "0.1.0"

__all__ = [
    "Pyramid",
    "RoPE",
    "Rotation",
    "angles",
    "augment",
    "batch_grids",
    "calibrate",
    "convert_layout",
    "fade",
    "freqs",
    "grid",
    "keep",
    "list_encodings",
    "list_presets",
    "positions",
    "rotate",
    "scaling",
    "unwrap",
    "wrap",
]

_LATER = {  # loaded on first use
    "Pyramid": "pyramid",
    "calibrate": "calibration",
    "wrap": "wrapping",
    "fade": "wrapping",
    "unwrap": "wrapping",
    "list_encodings": "registry",
    "list_presets": "presets",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
