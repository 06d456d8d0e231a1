"""Differential attention, alone and in a parallel block (timm 1.0.25 and later)."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers.diff_attention import DiffAttention
from timm.models.vision_transformer import DiffParallelScalingBlock
from torch import Tensor

from .attention import out
from .blocks import by_rows
from .where import Where, fused, merge, probabilities, split


def difference(attn: Any, q: Tensor, k: Tensor, v: Tensor, where: Where) -> Tensor:
    """Differential attention (Ye 2024): two half-width heads attend with the same values, the second is subtracted.

    `q`, `k`: `[B, 2H, N, D]`; `v`: `[B, H, N, 2D]`. Both heads of a pair are turned, each as a head of its own.
    """
    q, k = where.turn(q, k, attn.layer)
    share = attn._compute_lambda().type_as(q)

    def step(q: Tensor, rows: slice | None) -> Tensor:
        if attn.fused_attn:
            mask, is_causal = where.scores(q, k, attn.layer, None, rows)
            first, second = (fused(attn, q[:, i::2], k[:, i::2], v, _of_pair(mask, i, attn.num_heads), is_causal) for i in (0, 1))
            return first - share * second
        shares = attn.attn_drop(probabilities(attn, q, k, where, rows=rows)).unflatten(1, (attn.num_heads, 2))
        return (shares[:, :, 0] - share * shares[:, :, 1]) @ v

    y = step(q, None) if attn.fused_attn and not where.adds(None) else by_rows(step, q, k.shape[2])
    return attn.sub_norm(y) * (1 - attn.lambda_init)


def _of_pair(mask: Tensor | None, i: int, heads: int) -> Tensor | None:
    """The mask of the first or second head of each pair; one for both where it has no heads, or one a pair."""
    apart = mask is not None and mask.ndim > 2 and mask.shape[-3] == 2 * heads
    return mask[..., i::2, :, :] if apart and mask is not None else mask


class WrappedDiffAttention(DiffAttention):
    """Differential attention."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = self.q_norm(split(q, 2 * self.num_heads)), self.k_norm(split(k, 2 * self.num_heads))
        return out(self, x, difference(self, q, k, split(v, self.num_heads), attn_mask or Where()))


class WrappedDiffParallelScalingBlock(DiffParallelScalingBlock):
    """A parallel block with differential attention."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        mlp, q, k, v = self.in_proj(self.in_norm(x)).split(self.in_split, dim=-1)
        q, k = self.q_norm(split(q, 2 * self.num_heads)), self.k_norm(split(k, 2 * self.num_heads))
        y = merge(difference(self, q, k, split(v, self.num_heads), attn_mask or Where()))
        mlp = self.mlp_drop(self.mlp_act(mlp if self.mlp_bias is None else mlp + self.mlp_bias))
        return x + self.drop_path(self.ls(self.out_proj(torch.cat((y, mlp), dim=-1))))


ATTENTIONS = (WrappedDiffAttention, WrappedDiffParallelScalingBlock)
