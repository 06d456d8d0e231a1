"""Gemma 4's image encoder (timm 1.0.27 and later): square or with patches that say where they are, as in NaFlexVit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from timm.models.gemma4_vit import Gemma4Attention, Gemma4Block, Gemma4PatchEmbed, Gemma4VitClassifier, Gemma4VitEncoder
from torch import Tensor

from .model import Wrapped
from .plain import Outside
from .sampled import Sampled
from .where import Where, additive, attend, merge, split


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

    own: ClassVar[dict[str, str]] = {**Wrapped.own, "absolute": r"patch_embed\.position_embedding_table$"}
    when_dropped: ClassVar[dict[str, tuple[str, str, Any]]] = {"absolute": ("patch_embed", "unread", True)}
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


MODELS = (WrappedGemma4VitEncoder,)
CLASSIFIERS = (WrappedGemma4VitClassifier,)
ATTENTIONS = (WrappedGemma4Attention,)
EMBEDS = (WrappedGemma4PatchEmbed,)
UNCHANGED = (Gemma4Block,)
