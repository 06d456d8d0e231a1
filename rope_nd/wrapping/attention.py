"""timm's attention layers and parallel blocks, with queries and keys turned after their norms.

Each takes a `Where` in the place of the second argument of timm's own `forward` (a mask, a rope table), which its block passes
on. The parameters and their names are timm's.
"""

from __future__ import annotations

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.layers.diff_attention import DiffAttention
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import DiffParallelScalingBlock, ParallelScalingBlock
from torch import Tensor, nn

from .where import Where, attend, merge, split

Three = tuple[Tensor, Tensor, Tensor]


def fused_qkv(attn: nn.Module, x: Tensor) -> Three:
    """q, k, v `[B, H, N, D]` of one projection, with the separate biases of BEiT and EVA where there are some."""
    bias = attn.qkv.bias if getattr(attn, "q_bias", None) is None else torch.cat((attn.q_bias, attn.k_bias, attn.v_bias))
    y = nn.functional.linear(x, attn.qkv.weight, bias)
    return y.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def separate_qkv(attn: nn.Module, x: Tensor) -> Three:
    """q, k, v of three projections; keys and values may have fewer heads."""
    keys = getattr(attn, "num_kv_heads", attn.num_heads)
    return split(attn.q_proj(x), attn.num_heads), split(attn.k_proj(x), keys), split(attn.v_proj(x), keys)


def out(attn: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The end of a layer: heads merged, norm, gate, projection; what a layer does not have is left out."""
    y = merge(y)
    y = attn.norm(y) if hasattr(attn, "norm") else y
    gate = getattr(attn, "gate", None)
    return attn.proj_drop(attn.proj(y if gate is None else y * gate(x).sigmoid()))


class WrappedAttention(Attention):
    """timm's Attention."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        q, k, v = fused_qkv(self, x)
        where = attn_mask or Where()
        q, k = where.turn(self.q_norm(q), self.k_norm(k), self.layer)
        return out(self, x, attend(self, q, k, v, where))


class TurnedInRope(nn.Module):
    """The forward of timm's two layers that take a rope table, fused or separate projections, grouped keys and values or not."""

    layer: int

    def forward(self, x: Tensor, rope: Where | None = None, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        q, k, v = (separate_qkv if self.qkv is None else fused_qkv)(self, x)
        where = rope or Where()
        q, k = where.turn(self.q_norm(q), self.k_norm(k), self.layer)
        return out(self, x, attend(self, q, k, v, where))


class WrappedAttentionRope(TurnedInRope, AttentionRope):
    """timm's AttentionRope."""


class WrappedEvaAttention(TurnedInRope, EvaAttention):
    """EVA's attention, whose keys have no bias."""


def difference(attn: nn.Module, q: Tensor, k: Tensor, v: Tensor, where: Where) -> Tensor:
    """Differential attention (Ye 2024): two half-width heads attend with the same values, the second is subtracted.

    `q`, `k`: `[B, 2H, N, D]`; `v`: `[B, H, N, 2D]`. Both heads of a pair are turned, each as a head of its own.
    """
    q, k = where.turn(q, k, attn.layer)
    both = attend(attn, q, k, v.repeat_interleave(2, dim=1), where).unflatten(1, (attn.num_heads, 2))
    y = both[:, :, 0] - attn._compute_lambda().type_as(q) * both[:, :, 1]
    return attn.sub_norm(y) * (1 - attn.lambda_init)


class WrappedDiffAttention(DiffAttention):
    """Differential attention."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = self.q_norm(split(q, 2 * self.num_heads)), self.k_norm(split(k, 2 * self.num_heads))
        return out(self, x, difference(self, q, k, split(v, self.num_heads), attn_mask or Where()))


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
        if getattr(self, "out_proj", None) is not None:
            y = self.out_proj(torch.cat((y, mlp), dim=-1))
        else:
            y = self.attn_out_proj(y) + self.mlp_out_proj(mlp)
        return x + self.drop_path(self.ls(y))


class WrappedDiffParallelScalingBlock(DiffParallelScalingBlock):
    """A parallel block with differential attention."""

    layer: int

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        mlp, q, k, v = self.in_proj(self.in_norm(x)).split(self.in_split, dim=-1)
        q, k = self.q_norm(split(q, 2 * self.num_heads)), self.k_norm(split(k, 2 * self.num_heads))
        y = merge(difference(self, q, k, split(v, self.num_heads), attn_mask or Where()))
        mlp = self.mlp_drop(self.mlp_act(mlp if self.mlp_bias is None else mlp + self.mlp_bias))
        return x + self.drop_path(self.ls(self.out_proj(torch.cat((y, mlp), dim=-1))))
