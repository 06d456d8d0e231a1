"""SAM's image encoder: most blocks attend within windows, which stay as they are; the global ones are wrapped.

A window has the same size whatever the image, so its relative tables need no other; those of the global blocks are the model's
own bias, which grows by interpolation.
"""

from __future__ import annotations

from typing import ClassVar

from timm.layers.pos_embed import resample_abs_pos_embed_nhwc
from timm.models.vision_transformer_sam import Attention, Block, VisionTransformerSAM, get_decomposed_rel_pos_bias
from torch import Tensor, nn

from .attention import fused_qkv
from .stack import Stack
from .where import Where, attend, merge


class WrappedSAMAttention(Attention):
    """The attention of a global block."""

    layer: int

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        """`[B, h, w, C]` -> `[B, h, w, C]`."""
        where, own, (height, width) = where or Where(), None, x.shape[1:3]
        q, k, v = fused_qkv(self, x.flatten(1, 2))
        q, k = self.q_norm(q), self.k_norm(k)
        if where.own_bias and self.use_rel_pos:
            size = (height, width)
            flat = get_decomposed_rel_pos_bias(q.flatten(0, 1), self.rel_pos_h, self.rel_pos_w, size, size)
            own = flat.unflatten(0, (-1, self.num_heads))  # [B, H, N, N]
        q, k = where.turn(q, k, self.layer)
        y = merge(attend(self, q, k, v, where, own=own))
        return self.proj_drop(self.proj(y)).unflatten(1, (height, width))


class WrappedSAMBlock(Block):
    """A global block, which passes on what it is told of positions."""

    def forward(self, x: Tensor, where: Where | None = None) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), where)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class WrappedVisionTransformerSAM(Stack, VisionTransformerSAM):  # type: ignore[misc]
    """SAM's encoder in its global blocks. Its tokens are a map, and its last norm is the neck."""

    own: ClassVar[dict[str, str]] = {**Stack.own, "rotary": r"rope_global\.", "bias": r"blocks\.\d+\.attn\.rel_pos_[hw]$"}
    num_prefix_tokens = 0
    own_rope = "rope_global"
    resamples = False

    def own_parameters(self, kind: str) -> list[str]:
        """Names of the parameters of the model's own positions; those of windows are not among them."""
        names = super().own_parameters(kind)
        return [n for n in names if kind != "bias" or self.blocks[int(n.split(".")[1])].window_size == 0]

    def rotating(self) -> list[nn.Module]:
        return [block for block in self.blocks if block.window_size == 0]

    def _table(self) -> tuple[Tensor, int] | None:
        return None if self.pos_embed is None else (self.pos_embed, 0)

    def _resized(self, table: Tensor, prefix: int, extent: tuple[int, ...]) -> Tensor:
        return resample_abs_pos_embed_nhwc(table, extent).flatten(1, 2)

    def _ready(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        return self.norm_pre(tokens).unflatten(1, extent)  # [B, h, w, C]

    def _step(self, layer: int, block: nn.Module, tokens: Tensor, where: Where) -> Tensor:
        return self._run(block, tokens, where) if isinstance(block, WrappedSAMBlock) else self._run(block, tokens)

    def _map(self, tokens: Tensor, layer: int, norm: bool) -> tuple[Tensor, Tensor]:
        y = self.neck(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if norm else tokens
        y = y.flatten(1, 2)
        return y[:, :0], y

    def _end(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        return self.neck(tokens.permute(0, 3, 1, 2))


MODELS = (WrappedVisionTransformerSAM,)
ATTENTIONS = (WrappedSAMAttention,)
BLOCKS = (WrappedSAMBlock,)
