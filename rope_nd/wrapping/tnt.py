"""TNT: an inner transformer over the pixels of each patch, an outer one over the patches. The outer one is wrapped.

Positions inside a patch do not depend on the size of the image: the inner table (`pixel_pos`) always stays.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from timm.models.tnt import TNT, Attention, Block, PixelEmbed
from torch import Tensor, nn

from .attention import out
from .places import Places
from .stack import Stack, token_grid
from .where import Where, probabilities, split

Pair = tuple[Tensor, Tensor]


class WrappedPixelEmbed(PixelEmbed):
    """TNT's pixel embedding at any size."""

    def forward(self, x: Tensor, pixel_pos: Tensor) -> Tensor:
        """`[B, C, H, W]` -> `[B · N, pixels, D]`."""
        if self.legacy:
            y = self.unfold(self.proj(x)).mT.flatten(0, 1).unflatten(-1, (self.in_dim, *self.new_patch_size))
        else:
            size: Any = self.patch_size
            y = self.proj(self.unfold(x).mT.flatten(0, 1).unflatten(-1, (x.shape[1], *size)))
        return (y + pixel_pos).flatten(2).mT


class WrappedTNTAttention(Attention):
    """The outer attention."""

    layer: int

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        where = where or Where()
        q, k = self.qk(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = where.turn(q, k, self.layer)
        return out(self, x, self.attn_drop(probabilities(self, q, k, where)) @ split(self.v(x), self.num_heads))


class WrappedTNTBlock(Block):
    """TNT's block: pixels, then patches; only the latter are told of positions."""

    def forward(self, pixel_embed: Tensor, patch_embed: Tensor, where: Where | None = None) -> Pair:
        pixel_embed = pixel_embed + self.drop_path(self.attn_in(self.norm_in(pixel_embed)))
        pixel_embed = pixel_embed + self.drop_path(self.mlp_in(self.norm_mlp_in(pixel_embed)))
        batch, tokens = patch_embed.shape[0], patch_embed.shape[1] - 1
        if self.norm2_proj is None:
            added = self.proj(self.norm1_proj(pixel_embed).reshape(batch, tokens, -1))
        else:
            added = self.norm2_proj(self.proj(self.norm1_proj(pixel_embed.reshape(batch, tokens, -1))))
        patch_embed = torch.cat((patch_embed[:, :1], patch_embed[:, 1:] + added), dim=1)
        patch_embed = patch_embed + self.drop_path(self.attn_out(self.norm_out(patch_embed), where))
        return pixel_embed, patch_embed + self.drop_path(self.mlp(self.norm_mlp(patch_embed)))


class WrappedTNT(Stack, TNT):
    """Transformer in transformer."""

    own: ClassVar[dict[str, str]] = {**Stack.own, "absolute": r"patch_pos$"}

    def start(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False, drop: bool = True) -> tuple[Pair, Where]:
        """Pixel and patch tokens, and what the blocks are told of positions."""
        extent = token_grid(x, self.pixel_embed)
        pixels = self.pixel_embed(x, self.pixel_pos)
        patches = self.norm2_proj(self.proj(self.norm1_proj(pixels.reshape(x.shape[0], extent[0] * extent[1], -1))))
        tokens, where = self._tokens(patches, Places(extent, extent, x.shape[0]), mask, is_causal, drop)
        return (pixels, tokens), where

    def _table(self) -> tuple[Tensor, int] | None:
        return self.patch_pos, 1

    def grid(self) -> tuple[int, ...]:
        return tuple(self.pixel_embed.grid_size)

    def _step(self, layer: int, block: nn.Module, tokens: Pair, where: Where) -> Pair:
        return self._run(block, *tokens, where)

    def _map(self, tokens: Pair, layer: int, norm: bool) -> Pair:
        return super()._map(tokens[1], layer, norm)

    def _end(self, tokens: Pair, extent: tuple[int, ...]) -> Tensor:
        return self.norm(tokens[1])


MODELS = (WrappedTNT,)
ATTENTIONS = (WrappedTNTAttention,)
BLOCKS = (WrappedTNTBlock,)
EMBEDS = (WrappedPixelEmbed,)
