"""timm's attention layers and parallel blocks, with queries and keys turned after their norms.

Each takes a `Where` in the place of the second argument of timm's own `forward` (a mask, a rope table), which its block passes
on. The parameters and their names are timm's.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block, ParallelScalingBlock, ParallelThingsBlock, ResPostBlock
from torch import Tensor, nn

from .model import Timm
from .where import Where, attend, merge, split

Three = tuple[Tensor, Tensor, Tensor]


def packed_qkv(attn: Any, x: Tensor) -> Tensor:
    """q, k, v `[B, N, 3, H, D]` of one projection, with the separate biases of BEiT and EVA where there are some."""
    if getattr(attn, "q_bias", None) is None:
        y = attn.qkv(x)
    else:
        y = nn.functional.linear(x, attn.qkv.weight, torch.cat((attn.q_bias, attn.k_bias, attn.v_bias)))
    return y.unflatten(-1, (3, attn.num_heads, -1))


def fused_qkv(attn: Any, x: Tensor) -> Three:
    """q, k, v `[B, H, N, D]` of one projection."""
    q, k, v = packed_qkv(attn, x).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def bare(attn: Any) -> bool:
    """Whether nothing stands between the projection and the turning, and nobody has kept what will be turned in place."""
    norms = (getattr(attn, name, None) for name in ("q_norm", "k_norm"))
    plain = type(attn.qkv) is nn.Linear and not attn.qkv._forward_hooks
    return plain and all(norm is None or type(norm) is nn.Identity for norm in norms)


def separate_qkv(attn: Any, x: Tensor) -> Three:
    """q, k, v of three projections; keys and values may have fewer heads."""
    keys = getattr(attn, "num_kv_heads", attn.num_heads)
    return split(attn.q_proj(x), attn.num_heads), split(attn.k_proj(x), keys), split(attn.v_proj(x), keys)


def out(attn: Any, x: Tensor, y: Tensor) -> Tensor:
    """The end of a layer: heads merged, norm, gate, projection; what a layer does not have is left out."""
    y = merge(y)
    y = attn.norm(y) if hasattr(attn, "norm") else y
    gate = getattr(attn, "gate", None)
    return attn.proj_drop(attn.proj(y if gate is None else y * gate(x).sigmoid()))


def self_attention(attn: Any, x: Tensor, where: Where | None, own: Tensor | None = None) -> Tensor:
    """A whole layer: projections, norms of queries and keys where it has them, turning, attention, the end. `own`: its bias."""
    where = where or Where()
    if attn.qkv is not None and bare(attn) and where.turns_in_place(attn.layer):
        return out(attn, x, attend(attn, *where.turn_packed(packed_qkv(attn, x), attn.layer), where, own=own))
    q, k, v = (separate_qkv if attn.qkv is None else fused_qkv)(attn, x)
    if hasattr(attn, "q_norm"):
        q, k = attn.q_norm(q), attn.k_norm(k)
    q, k = where.turn(q, k, attn.layer)
    return out(attn, x, attend(attn, q, k, v, where, own=own))


class WrappedAttention(Attention):
    """timm's Attention."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        return self_attention(self, x, attn_mask)


class TurnedInRope(Timm):
    """The forward of timm's two layers that take a rope table, fused or separate projections, grouped keys and values or not."""

    layer: int

    def forward(self, x: Tensor, rope: Where | None = None, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        return self_attention(self, x, rope)


class WrappedAttentionRope(TurnedInRope, AttentionRope):  # type: ignore[misc]
    """timm's AttentionRope."""


class WrappedEvaAttention(TurnedInRope, EvaAttention):  # type: ignore[misc]
    """EVA's attention, whose keys have no bias."""


class WrappedParallelScalingBlock(ParallelScalingBlock):
    """A block whose attention and MLP run beside each other (Dehghani 2023)."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        mlp, q, k, v = self.in_proj(self.in_norm(x)).split(self.in_split, dim=-1)
        q, k, v = (split(y, self.num_heads) for y in (q, k, v))
        where = attn_mask or Where()
        q, k = where.turn(self.q_norm(q), self.k_norm(k), self.layer)
        y = merge(attend(self, q, k, v, where))
        mlp = self.mlp_drop(self.mlp_act(mlp if self.mlp_bias is None else mlp + self.mlp_bias))
        joined: Any = getattr(self, "out_proj", None)  # one projection for both, or one each
        apart: Any = self
        y = apart.attn_out_proj(y) + apart.mlp_out_proj(mlp) if joined is None else joined(torch.cat((y, mlp), dim=-1))
        return x + self.drop_path(self.ls(y))


ATTENTIONS = (WrappedAttention, WrappedAttentionRope, WrappedEvaAttention, WrappedParallelScalingBlock)
UNCHANGED = (Block, ResPostBlock, ParallelThingsBlock, EvaBlock, EvaBlockPostNorm)  # blocks that pass on a second argument
