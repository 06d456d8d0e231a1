"""The plain families: one stack of blocks over patch tokens, whose differences are a hook or two of `Stack`."""

from __future__ import annotations

from typing import Any

from timm.layers.format import nchw_to
from timm.layers.patch_embed import PatchEmbed
from timm.models.deepseek_vit import DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder, resample_pos_embed_grid
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from .stack import Stack


class WrappedPatchEmbed(PatchEmbed):
    """timm's PatchEmbed without its own checks, which format symbolic sizes: a graph would hold for one size only."""

    def forward(self, x: Tensor) -> Tensor:
        if self.dynamic_img_pad:
            height, width = (-s % p for s, p in zip(x.shape[-2:], self.patch_size))
            x = nn.functional.pad(x, (0, width, 0, height))
        y = self.proj(x)
        return self.norm(y.flatten(2).mT if self.flatten else nchw_to(y, self.output_fmt))


class WrappedVisionTransformer(Stack, VisionTransformer):
    """ViT, with all that timm builds of it: DeiT-III, CLIP, SigLIP, DINOv2, hybrids, ViTamin."""

    drops_bare_tokens = False


class WrappedVisionTransformerDistilled(Stack, VisionTransformerDistilled):
    """DeiT with a distillation token."""


class WrappedEva(Stack, Eva):
    """EVA, EVA-02, Perception Encoder, rope-vit, DINOv3, Sapiens 2."""


class WrappedDeepseekVitEncoder(Stack, DeepseekVitEncoder):
    """DeepSeek's encoder, which gives a map."""

    def _end(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        return self.norm(tokens).unflatten(1, extent)


class WrappedQwen3VitEncoder(Stack, Qwen3VitEncoder):
    """Qwen3's encoder, which has no last norm and gives a map; its table is stretched corner to corner."""

    def _resized(self, table: Tensor, prefix: int, extent: tuple[int, ...]) -> Tensor:
        return resample_pos_embed_grid(table, self.pos_embed_grid_size, extent).to(table.dtype)

    def _map(self, tokens: Tensor, layer: int, norm: bool) -> tuple[Tensor, Tensor]:
        return tokens[:, :0], tokens

    def _end(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        return tokens.unflatten(1, extent)


class Outside(nn.Module):
    """A classifier around a wrapped encoder: only the names of parameters are its matter."""

    def group_matcher(self, coarse: bool = False) -> Any:
        """timm's, with our positions in the stem."""
        matcher = super().group_matcher(coarse)
        return {**matcher, "stem": rf"{matcher['stem']}|^encoder\.encoding\."}


class WrappedDeepseekVitClassifier(Outside, DeepseekVitClassifier):
    """A head on DeepSeek's encoder."""


class WrappedQwen3VitClassifier(Outside, Qwen3VitClassifier):
    """A head on Qwen3's encoder."""
