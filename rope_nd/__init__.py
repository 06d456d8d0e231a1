"""rope_nd: N-dimensional rotary position embeddings for vision transformers.

`import rope_nd` imports torch and einops alone, opens no socket and writes nothing.
"""

from . import freqs, positions, scaling
from .positions import augment, batch_grids, grid, keep
from .rope import RoPE
from .rotation import Rotation, angles, convert_layout, rotate

__version__ = "0.1.0"

__all__ = [
    "RoPE",
    "Rotation",
    "angles",
    "augment",
    "batch_grids",
    "convert_layout",
    "freqs",
    "grid",
    "keep",
    "positions",
    "rotate",
    "scaling",
]
