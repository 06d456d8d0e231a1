"""The plain families: one stack of blocks over patch tokens, whose differences are a hook or two of `Stack`."""

from __future__ import annotations

from typing import Any

from timm.layers.format import nchw_to
from timm.layers.patch_embed import PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from .model import Timm
from .points import Points


class WrappedPatchEmbed(PatchEmbed):
    """timm's PatchEmbed without its own checks, which format symbolic sizes: a graph would hold for one size only."""

    def forward(self, x: Tensor) -> Tensor:
        if self.dynamic_img_pad:
            height, width = (-s % p for s, p in zip(x.shape[-2:], self.patch_size))
            x = nn.functional.pad(x, (0, width, 0, height))
        y = self.proj(x)
        return self.norm(y.flatten(2).mT if self.flatten else nchw_to(y, self.output_fmt))


class WrappedVisionTransformer(Points, VisionTransformer):
    """ViT, with all that timm builds of it: DeiT-III, CLIP, SigLIP, DINOv2, hybrids, ViTamin."""

    drops_bare_tokens = False


class WrappedVisionTransformerDistilled(Points, VisionTransformerDistilled):
    """DeiT with a distillation token."""


class WrappedEva(Points, Eva):  # type: ignore[misc]
    """EVA, EVA-02, Perception Encoder, rope-vit, DINOv3, Sapiens 2."""


class Outside(Timm):
    """A classifier around a wrapped encoder: only the names of parameters are its matter."""

    def group_matcher(self, coarse: bool = False) -> Any:
        """timm's, with our positions in the stem."""
        matcher = super().group_matcher(coarse)
        return {**matcher, "stem": rf"{matcher['stem']}|^encoder\.encoding\."}


MODELS = (WrappedVisionTransformer, WrappedVisionTransformerDistilled, WrappedEva)
EMBEDS = (WrappedPatchEmbed,)
