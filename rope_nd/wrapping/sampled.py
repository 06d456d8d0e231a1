"""NaFlexVit: images of several sizes in one batch, whose patches say where they are (`patch_coord`).

It has a place where all positions are made, and a loop over blocks that takes what that gives: only the place is ours.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from timm.models.naflexvit import NaFlexVit, create_attention_mask
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from .model import Wrapped, placed
from .where import Where


class Sampled(Wrapped):
    """A model that may be given the places of its patches."""

    def _placed(self, encoding: nn.Module | None, coords: Tensor, extents: Tensor, augment: dict[str, Any]) -> Tensor:
        """Coordinates `[B, N, A]` of patches whose indices `[B, N, A]` in grids of `extents` `[B, A]` are given."""
        return self._moved(placed(encoding, coords, extents), len(coords), augment)


class NaFlexBlock(Block):
    """timm's Block, which takes what it is told of positions under the name that NaFlexVit gives it."""

    def forward(self, x: Tensor, rope: Where | None = None, attn_mask: None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, attn_mask=rope)  # type: ignore[arg-type]


class WrappedNaFlexVit(Sampled, NaFlexVit):
    """NaFlexVit: one size by `[B, C, H, W]`, several by patches with their coordinates."""

    own: ClassVar[dict[str, str]] = {**Wrapped.own, "absolute": r"embeds\.pos_embed"}
    always = (("", "rope_is_mixed", False),)  # one object tells all blocks, also where each has its own frequencies
    when_dropped: ClassVar[dict[str, tuple[str, str, Any]]] = {"absolute": ("embeds", "pos_embed_type", "none")}

    def grid(self) -> tuple[int, ...]:
        grid = self.embeds.pos_embed_grid_size
        if grid is None:
            raise ValueError("this NaFlexVit has no size: give wrap trained_extent, the tokens an axis that it is trained at")
        return tuple(grid)

    def _forward_embeds(self, x: Tensor, patch_coord: Any, patch_valid: Any, attn_mask: Any) -> dict[str, Any]:
        """Tokens, and what the blocks are told of positions in the place of a rope table."""
        tokens, extent = self.embeds(x, patch_coord=patch_coord, patch_valid=patch_valid)
        n, settings = self.num_prefix_tokens, self.wrapped
        if patch_coord is None:
            extent = tuple(extent)
        else:
            seen = patch_coord if patch_valid is None else patch_coord * patch_valid[..., None]
            extent = seen.amax(dim=1) + 1  # [B, A]

        def places(enc: nn.Module | None, augment: dict[str, Any]) -> Tensor | None:
            if patch_coord is None:
                return self._points(enc, extent, tokens.shape[0], augment)
            return self._placed(enc, patch_coord, extent, augment)

        points = places(self.encoding, settings.augment)
        code = self._code(points, extent)
        tokens = tokens if code is None else torch.cat((tokens[:, :n], tokens[:, n:] + code.to(tokens.dtype)), dim=1)
        kept = None
        if self.training and self.patch_drop is not None:
            tokens, kept = self.patch_drop(tokens)
            patch_valid = patch_valid if patch_valid is None or kept is None else patch_valid.gather(1, kept)
        if attn_mask is None:
            only_keys = getattr(self, "use_key_only_attn_mask", False)
            attn_mask = create_attention_mask(
                patch_valid,
                num_prefix_tokens=n,
                symmetric=not only_keys,
                q_len=1 if only_keys else None,
                dtype=tokens.dtype,
            )
        own_points = None if self.own_rotary is None else places(self.own_rotary, {})
        where = self._where(points, extent, kept, attn_mask, own_points=own_points)
        tokens = self.norm_pre(tokens)
        return {"patches": tokens, "patch_valid": patch_valid, "rope_embeds": where, "attn_mask": None, "keep_indices": kept}


MODELS = (WrappedNaFlexVit,)
