"""ConViT: its first blocks gate between content and a learned function of the offset, then a class token joins.

That function is the model's own bias: dropped, the gate is left out and content alone attends. timm takes the grid for a square
and keeps its offsets in a buffer; here they come from the grid at hand.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from timm.models.convit import GPSA, MHSA, Block, ConVit
from torch import Tensor, nn

from .attention import fused_qkv, out
from .stack import Stack
from .where import Where, merge, probabilities, split


def offsets(extent: tuple[int, ...], like: Tensor) -> Tensor:
    """Column and row offsets of every pair and their squared distance `[N, N, 3]`."""
    height, width = extent
    rows = torch.arange(height, device=like.device).repeat_interleave(width)
    columns = torch.arange(width, device=like.device).repeat(height)
    x, y = (at - at[:, None] for at in (columns, rows))  # [query, key]
    return torch.stack((x, y, x**2 + y**2), dim=-1).to(like.dtype)


class WrappedGPSA(GPSA):
    """Gated positional self-attention (d'Ascoli 2021, eq. 7)."""

    layer: int

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        where = where or Where()
        q, k = self.qk(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = where.turn(q, k, self.layer)
        shares = probabilities(self, q, k, where)
        if where.own_bias:
            place = self.pos_proj(offsets(where.extent, self.pos_proj.weight)).permute(2, 0, 1).softmax(dim=-1)  # [H, N, N]
            gate = self.gating_param.view(-1, 1, 1).sigmoid()
            shares = (1 - gate) * shares + gate * place
            shares = shares / shares.sum(dim=-1, keepdim=True)
        y = merge(self.attn_drop(shares) @ split(self.v(x), self.num_heads))
        return self.proj_drop(self.proj(y))


class WrappedMHSA(MHSA):
    """Plain attention."""

    layer: int

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        where = where or Where()
        q, k, v = fused_qkv(self, x)
        q, k = where.turn(q, k, self.layer)
        return out(self, x, self.attn_drop(probabilities(self, q, k, where)) @ v)


class WrappedConVitBlock(Block):
    """ConViT's block, which passes on what it is told of positions."""

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), where))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class WrappedConVit(Stack, ConVit):  # type: ignore[misc]
    """ConViT."""

    num_prefix_tokens = 1  # older timm does not say
    maskable = False  # the attention to places would look past a mask
    own: ClassVar[dict[str, str]] = {**Stack.own, "bias": r"blocks\.\d+\.attn\.(pos_proj\.|gating_param$)"}

    def _prefix(self) -> list[Tensor]:
        return []

    def _table(self) -> tuple[Tensor, int] | None:
        return (self.pos_embed, 0) if self.use_pos_embed else None

    def _step(self, layer: int, block: nn.Module, tokens: Tensor, where: Where) -> Tensor:
        if layer < self.local_up_to_layer:
            return self._run(block, tokens, where.without_prefix(self.num_prefix_tokens))
        if layer == self.local_up_to_layer:
            tokens = torch.cat((self.cls_token.expand(tokens.shape[0], -1, -1), tokens), dim=1)
        return self._run(block, tokens, where)

    def _map(self, tokens: Tensor, layer: int, norm: bool) -> tuple[Tensor, Tensor]:
        y = self.norm(tokens) if norm else tokens
        first = 1 if layer >= self.local_up_to_layer else 0
        return y[:, :first], y[:, first:]


MODELS = (WrappedConVit,)
ATTENTIONS = (WrappedGPSA, WrappedMHSA)
BLOCKS = (WrappedConVitBlock,)
