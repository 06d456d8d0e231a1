"""Wrapping timm models: `wrap` and `unwrap`, with one file a family of models."""

from .door import unwrap, wrap
from .fading import fade
from .model import Wrapped
from .where import Where

__all__ = ["Where", "Wrapped", "fade", "unwrap", "wrap"]
