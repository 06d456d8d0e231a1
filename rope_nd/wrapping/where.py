"""What an attention layer is told of positions, and the attention that heeds it.

`Where` is made once a forward pass and handed down explicitly, block by block, so that threads, several resolutions in flight
and gradient checkpointing cannot mix it up. A layer knows its number and picks what is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..rotation import Rotation
from .blocks import Rows, by_rows, is_large, part

T = TypeVar("T")


@dataclass(frozen=True)
class Where:
    """Positions, as all layers of one forward pass see them.

    `rotations`: the turns of queries and keys, one chain for all layers or one a layer (empty: none are turned).
    `biases`: additive terms on the scores `[H, N, N]` or `[B, H, N, N]`, N with prefix tokens: one for all layers or one a layer,
    each a tensor, or a function that makes it, or the rows of some queries, when a layer asks.
    `temperature`: a factor on all scores. `mask`, `is_causal`: what the caller forbids, as timm's attention takes them.
    `extent`: the token grid; `own_bias`: whether layers add the relative bias that came with the model.
    """

    rotations: tuple[tuple[Rotation, ...], ...] = ()
    biases: tuple[Tensor | Rows, ...] = ()
    temperature: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False
    extent: tuple[int, ...] = field(default=())
    own_bias: bool = False

    def turn(self, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Queries and keys as attention should see them, `[B, H, N, D]`."""
        for rotation in _of(self.rotations, layer) or ():
            q, k = rotation.qk(q, k)
        return (q if self.temperature is None else (q * self.temperature).to(q.dtype)), k

    def turns_in_place(self, layer: int) -> bool:
        """Whether a packed projection may be turned where it lies: one turn of pairs, outside of graphs."""
        if torch.compiler.is_compiling() or type(self).turn is not Where.turn:
            return False
        chain = _of(self.rotations, layer) or ()
        return len(chain) == 1 and type(chain[0]) is Rotation

    def turn_packed(self, qkv: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v `[B, H, N, D]` of a projection `[B, N, 3, H, D]`, of which q and k are turned in place."""
        q, k, v = self.rotations[layer if len(self.rotations) > 1 else 0][0].packed_(qkv)
        return (q if self.temperature is None else (q * self.temperature).to(q.dtype)), k, v

    def bias(self, layer: int, rows: slice | None = None) -> Tensor | None:
        """The additive term of a layer, or its rows of some queries."""
        found = _of(self.biases, layer)
        if isinstance(found, Tensor):
            return part(found, rows)
        return None if found is None else found(rows)

    def with_biases(self, change: Callable[[Tensor], Tensor]) -> Where:
        """The same with `change` done to each bias as a whole, when it is made."""

        def after(bias: Tensor | Rows) -> Tensor | Rows:
            def made(rows: slice | None = None) -> Tensor:
                return part(change(bias if isinstance(bias, Tensor) else bias()), rows)

            return change(bias) if isinstance(bias, Tensor) else made

        return replace(self, biases=tuple(after(bias) for bias in self.biases))

    def adds(self, own: Tensor | None) -> bool:
        """Whether something is added to scores, pair by pair, that attention cannot be told otherwise; `own`: a layer's bias."""
        return own is not None or bool(self.biases) or (self.mask is not None and self.is_causal)

    def scores(
        self, q: Tensor, k: Tensor, layer: int, own: Tensor | None = None, rows: slice | None = None
    ) -> tuple[Tensor | None, bool]:
        """The mask that attention should add (or heed, if boolean), and whether it is causal beside it.

        A mask alone, or causality alone, is passed on as it came; with a bias, all become one additive mask. `rows`: which of all
        queries `q` holds.
        """
        if not self.adds(own) and (rows is None or not self.is_causal):
            return None if self.mask is None else part(self.mask, rows), self.is_causal
        parts = [term for term in (None if own is None else part(own, rows), self.bias(layer, rows)) if term is not None]
        if self.mask is not None:
            parts.append(additive(part(self.mask, rows), q.dtype))
        if self.is_causal:
            parts.append(causal(q, k, rows))
        total = parts[0]
        for term in parts[1:]:
            total = total + term
        kind = torch.promote_types(total.dtype, q.dtype)
        return total.to(kind).clamp(min=torch.finfo(q.dtype).min / 2).to(q.dtype), False  # a row of -inf has no softmax

    def attend(self, attn: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor | None:
        """Attention of another kind than softmax over all tokens at once, where there is one: `[B, H, N, D]`."""
        return None

    def without_prefix(self, tokens: int) -> Where:
        """For layers before the prefix tokens (`tokens` of them) are there."""
        bare = tuple(tuple(replace(r, prefix_tokens=0) for r in chain) for chain in self.rotations)
        return replace(self.with_biases(lambda bias: bias[..., tokens:, tokens:]), rotations=bare)


def _of(items: tuple[T, ...], layer: int) -> T | None:
    if not items:
        return None
    return items[layer] if len(items) > 1 else items[0]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to be added to scores: true of a boolean mask becomes 0, false minus infinity."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))


def causal(q: Tensor, k: Tensor, rows: slice | None = None) -> Tensor:
    """`[Nq, Nk]`: minus infinity where a key stands after the query."""
    shape, first = (q.shape[-2], k.shape[-2]), 0 if rows is None else rows.start
    return torch.full(shape, float("-inf"), dtype=q.dtype, device=q.device).triu(1 + first)


def probabilities(
    attn: Any,
    q: Tensor,
    k: Tensor,
    where: Where,
    *,
    own: Tensor | None = None,
    scale: float | None = None,
    rows: slice | None = None,
) -> Tensor:
    """Softmax of the scaled scores `[B, H, Nq, Nk]`, before dropout, of normed and turned queries and keys."""
    scores = (q * (attn.scale if scale is None else scale)) @ k.mT
    mask, is_causal = where.scores(q, k, attn.layer, own, rows)
    if mask is not None:
        scores = scores + additive(mask, scores.dtype)
    if is_causal:
        scores = scores + causal(q, k)
    return scores.softmax(dim=-1)


def fused(attn: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None = None) -> Tensor:
    """PyTorch's attention, in the way it wants to be asked if it is to make no scores: `[B, H, N, D]`.

    On CPUs that is a mask of four axes, and q, k and v of one width. Zeros change nothing, but they take time in backward, so
    with gradients q, k and v are as they come, unless scores are large.
    """
    wide = v.shape[-1]
    heeded = not torch.is_grad_enabled() or is_large(q.shape[1], q.shape[2], k.shape[2])
    if q.shape[-1] != wide and q.device.type == "cpu" and heeded and not torch.compiler.is_compiling():
        most = max(q.shape[-1], wide)
        q, k, v = (nn.functional.pad(x, (0, most - x.shape[-1])) for x in (q, k, v))
    mask = mask[None] if mask is not None and mask.ndim == 3 else mask
    drop, scale = attn.attn_drop.p if attn.training else 0.0, attn.scale if scale is None else scale
    y = nn.functional.scaled_dot_product_attention(q, k, v, mask, drop, is_causal=is_causal, scale=scale)
    return y[..., :wide]


def attend(
    attn: Any, q: Tensor, k: Tensor, v: Tensor, where: Where, *, own: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Attention of the timm layer `attn`, fused or not as it says: `[B, H, N, D]` -> `[B, H, N, D]`.

    `q`, `k` come normed and turned; `own` is the layer's own additive bias. Grouped keys and values are repeated here, after the
    turning, which is done once a key head.
    """
    if k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    other = where.attend(attn, q, k, v, scale)
    if other is not None:
        return other

    def step(q: Tensor, rows: slice | None) -> Tensor:
        if attn.fused_attn:
            return fused(attn, q, k, v, *where.scores(q, k, attn.layer, own, rows), scale)
        return attn.attn_drop(probabilities(attn, q, k, where, own=own, scale=scale, rows=rows)) @ v

    return step(q, None) if attn.fused_attn and not where.adds(own) else by_rows(step, q, k.shape[2])


def split(x: Tensor, heads: int) -> Tensor:
    """`[B, N, H · D]` -> `[B, H, N, D]`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """`[B, H, N, D]` -> `[B, N, H · D]`."""
    x = x.transpose(1, 2)
    # ONNX's exporter takes attention apart into steps whose memory lies in another order than the traced kernel's
    return (x.clone(memory_format=torch.contiguous_format) if torch.onnx.is_in_onnx_export() else x).flatten(2)
