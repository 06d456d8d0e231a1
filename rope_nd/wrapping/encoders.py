"""The image encoders of DeepSeek and Qwen 3, and classifiers around them (timm 1.0.30 and later)."""

from __future__ import annotations

from typing import ClassVar

from timm.models.deepseek_vit import DeepseekVitBlock, DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder, resample_pos_embed_grid
from torch import Tensor

from .plain import Outside
from .stack import Stack


class WrappedDeepseekVitEncoder(Stack, DeepseekVitEncoder):
    """DeepSeek's encoder, which gives a map."""

    def _end(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        return self.norm(tokens).unflatten(1, extent)


class WrappedQwen3VitEncoder(Stack, Qwen3VitEncoder):
    """Qwen3's encoder, which has no last norm and gives a map; its table is stretched corner to corner."""

    resamples: ClassVar[bool] = False

    def _resized(self, table: Tensor, prefix: int, extent: tuple[int, ...]) -> Tensor:
        return resample_pos_embed_grid(table, self.pos_embed_grid_size, extent).to(table.dtype)

    def _map(self, tokens: Tensor, layer: int, norm: bool) -> tuple[Tensor, Tensor]:
        return tokens[:, :0], tokens

    def _end(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        return tokens.unflatten(1, extent)


class WrappedDeepseekVitClassifier(Outside, DeepseekVitClassifier):
    """A head on DeepSeek's encoder."""


class WrappedQwen3VitClassifier(Outside, Qwen3VitClassifier):
    """A head on Qwen3's encoder."""


MODELS = (WrappedDeepseekVitEncoder, WrappedQwen3VitEncoder)
CLASSIFIERS = (WrappedDeepseekVitClassifier, WrappedQwen3VitClassifier)
UNCHANGED = (DeepseekVitBlock,)
