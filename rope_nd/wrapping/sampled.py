"""NaFlexVit and Gemma 4: images of several sizes in one batch, whose patches say where they are (`patch_coord`).

Both have a place where all positions are made, and a loop over blocks that takes what it gives: only that place is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.models.gemma4_vit import Gemma4Attention, Gemma4PatchEmbed, Gemma4VitClassifier, Gemma4VitEncoder
from timm.models.naflexvit import NaFlexVit, create_attention_mask
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from ..positions import augment as augment_positions
from .model import Wrapped, lead
from .plain import Outside
from .where import Where, additive, attend, merge, split


class Sampled(Wrapped):
    """A model that may be given the places of its patches."""

    def _placed(self, encoding: nn.Module | None, coords: Tensor, extents: Tensor, augment: dict[str, Any]) -> Tensor:
        """Coordinates `[B, N, A]` of patches whose indices `[B, N, A]` in grids of `extents` `[B, A]` are given."""
        enc = lead(encoding)
        if enc is None:
            points = coords.float()
        elif enc.sized:
            points = torch.stack([enc.place(c, e) for c, e in zip(coords, extents)])
        else:
            points = enc.place(coords, extents[0])
        return augment_positions(points, **augment) if self.training and augment else points


class NaFlexBlock(Block):
    """timm's Block, which takes what it is told of positions under the name that NaFlexVit gives it."""

    def forward(self, x: Tensor, rope: Where | None = None, attn_mask: None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, attn_mask=rope)


class WrappedNaFlexVit(Sampled, NaFlexVit):
    """NaFlexVit: one size by `[B, C, H, W]`, several by patches with their coordinates."""

    own = {**Wrapped.own, "absolute": r"embeds\.pos_embed"}
    when_dropped = {"absolute": ("embeds", "pos_embed_type", "none")}

    def grid(self) -> tuple[int, ...]:
        grid = self.embeds.pos_embed_grid_size
        if grid is None:
            raise ValueError(
                "this NaFlexVit was built without a size: give wrap trained_extent, the tokens an axis it is trained at"
            )
        return tuple(grid)

    def _forward_embeds(self, x: Tensor, patch_coord: Any, patch_valid: Any, attn_mask: Any) -> dict[str, Any]:
        """Tokens, and what the blocks are told of positions in the place of a rope table."""
        tokens, extent = self.embeds(x, patch_coord=patch_coord, patch_valid=patch_valid)
        n, settings = self.num_prefix_tokens, self.wrapped
        places: Callable[[Any, dict[str, Any]], Tensor]
        if patch_coord is None:
            extent = tuple(extent)
            places = lambda enc, augment: self._points(enc, extent, len(tokens), augment)  # noqa: E731
        else:
            seen = patch_coord if patch_valid is None else patch_coord * patch_valid[..., None]
            extent = seen.amax(dim=1) + 1  # [B, A]
            places = lambda enc, augment: self._placed(enc, patch_coord, extent, augment)  # noqa: E731
        points = places(self.encoding, settings.augment)
        code = self._code(points, extent)
        tokens = tokens if code is None else torch.cat((tokens[:, :n], tokens[:, n:] + code.to(tokens.dtype)), dim=1)
        kept = None
        if self.training and self.patch_drop is not None:
            tokens, kept = self.patch_drop(tokens)
            patch_valid = patch_valid if patch_valid is None or kept is None else patch_valid.gather(1, kept)
        if attn_mask is None:
            only_keys = self.use_key_only_attn_mask
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


class WrappedGemma4PatchEmbed(Gemma4PatchEmbed):
    """Gemma's patch embedding, whose table can be left out."""

    unread = False

    def _position_embeddings(self, position_ids: Tensor, padding_positions: Tensor | None) -> Tensor:
        if self.unread:
            return self.position_embedding_table.new_zeros(())
        return super()._position_embeddings(position_ids, padding_positions)


class WrappedGemma4Attention(Gemma4Attention):
    """Gemma's attention, which pairs channel i with i + D / 4 within each half of the head."""

    layer: int

    def forward(self, x: Tensor, rope_cos: Where | None = None, rope_sin: None = None, attn_mask: None = None) -> Tensor:  # type: ignore[override]
        where = rope_cos or Where()
        q, k = self.q_norm(split(self.q_proj(x), self.num_heads)), self.k_norm(split(self.k_proj(x), self.num_kv_heads))
        v = self.v_norm(split(self.v_proj(x), self.num_kv_heads))
        q, k = (_regroup(y) for y in where.turn(_regroup(q), _regroup(k), self.layer))
        return self.proj_drop(self.o_proj(merge(attend(self, q, k, v, where, scale=1.0))))


def _regroup(x: Tensor) -> Tensor:
    """Exchange the two middle quarters of each head: Gemma's pairs become those of the half layout, and back again."""
    first, second, third, fourth = x.chunk(4, dim=-1)
    return torch.cat((first, third, second, fourth), dim=-1)


class WrappedGemma4VitEncoder(Sampled, Gemma4VitEncoder):
    """Gemma 4's encoder."""

    own = {**Wrapped.own, "absolute": r"patch_embed\.position_embedding_table$"}
    when_dropped = {"absolute": ("patch_embed", "unread", True)}
    own_rope = "rotary_emb"
    num_prefix_tokens = 0

    def grid(self) -> tuple[int, ...]:
        cfg = getattr(self, "pretrained_cfg", None) or {}  # a classifier's encoder has none: timm's own default is 768
        return tuple(s // p for s, p in zip(cfg.get("input_size", (3, 768, 768))[1:], self.patch_size))

    def _encode(
        self,
        x: Tensor,
        position_ids: Tensor,
        padding_positions: Tensor | None,
        block_callback: Callable[[int, Tensor], None] | None = None,
        max_block_index: int | None = None,
    ) -> Tensor:
        """The blocks; `position_ids` `[B, N, 2]` hold column and row."""
        coords = position_ids.flip(-1)
        seen = coords if padding_positions is None else coords.masked_fill(padding_positions[..., None], 0)
        extents = seen.amax(dim=1) + 1  # [B, A]
        points = self._placed(self.encoding, coords, extents, self.wrapped.augment)
        code = self._code(points, extents)
        x = x if code is None else x + code.to(x.dtype)
        mask = None if padding_positions is None else additive(~padding_positions[:, None, None, :], x.dtype)
        own_points = None if self.own_rotary is None else self._placed(self.own_rotary, coords, extents, {})
        where = self._where(points, extents, None, mask, own_points=own_points)
        for layer, block in enumerate(self.blocks if max_block_index is None else self.blocks[: max_block_index + 1]):
            x = self._run(block, x, where, None)
            if block_callback is not None:
                block_callback(layer, x)
        return x


class WrappedGemma4VitClassifier(Outside, Gemma4VitClassifier):
    """A head on Gemma 4's encoder."""
