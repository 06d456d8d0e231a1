"""CaiT: patch tokens attend among themselves by talking heads, then a class token looks at them in two last blocks.

The class blocks are left as they are: their one query has no position, as a class token among the patches has none.
"""

from __future__ import annotations

import torch
from timm.models.cait import Cait, LayerScaleBlock, TalkingHeadAttn
from torch import Tensor

from .attention import fused_qkv, out
from .stack import Stack
from .where import Where


class WrappedTalkingHeadAttn(TalkingHeadAttn):
    """Talking heads (Shazeer 2020): heads are mixed before and after the softmax; a bias is added before the first mixing."""

    layer: int

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        where = where or Where()
        q, k, v = fused_qkv(self, x)
        q, k = where.turn(q, k, self.layer)
        scores = (q * self.scale) @ k.mT
        bias, _ = where.scores(q, k, self.layer)
        scores = scores if bias is None else scores + bias
        scores = self.proj_l(scores.movedim(1, -1)).movedim(-1, 1)
        shares = self.proj_w(scores.softmax(dim=-1).movedim(1, -1)).movedim(-1, 1)
        return out(self, x, self.attn_drop(shares) @ v)


class WrappedLayerScaleBlock(LayerScaleBlock):
    """CaiT's block, which passes on what it is told of positions."""

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        x = x + self.drop_path(self.gamma_1 * self.attn(self.norm1(x), where))
        return x + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)))


class WrappedCait(Stack, Cait):  # type: ignore[misc]
    """CaiT."""

    maskable = hideable = False  # heads are mixed, and minus infinity with them

    def _prefix(self) -> list[Tensor]:
        return []

    def prefix_tokens(self) -> int:
        return 0

    def _table(self) -> tuple[Tensor, int] | None:
        return self.pos_embed, 0

    def _map(self, tokens: Tensor, layer: int, norm: bool) -> tuple[Tensor, Tensor]:
        return tokens[:, :0], self.norm(tokens) if norm else tokens

    def _end(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        if self.blocks_token_only is None:
            return self.norm(tokens)
        cls_tokens = self.cls_token.expand(tokens.shape[0], -1, -1)
        for block in self.blocks_token_only:
            cls_tokens = block(tokens, cls_tokens)
        return self.norm(torch.cat((cls_tokens, tokens), dim=1))


MODELS = (WrappedCait,)
ATTENTIONS = (WrappedTalkingHeadAttn,)
BLOCKS = (WrappedLayerScaleBlock,)
