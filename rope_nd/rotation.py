"""How we turn: angles, the tables made of them, and their application to queries and keys.

angles = positions · freqs'            positions [N, A]     freqs [H|1, P, A]     angles [H|1, N, P]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from ._check import choose
from .positions import wide
from .turning import How, parts, turn, turn_packed_

Layout = Literal["interleaved", "half"]


def angles(positions: Tensor, freqs: Tensor) -> Tensor:
    """Phases in float64 (float32 where the device has no more): `[N, A]` -> `[H|1, N, P]`, `[B, N, A]` -> `[B, H|1, N, P]`.

    An elementwise product and sum: a matmul would be lowered to half precision by autocast.
    """
    kind = wide(positions.device)
    at, look = positions.to(kind)[..., None, :, :], freqs.to(kind)  # [..., 1, N, A], [H, P, A]
    total = at[..., 0, None] * look[:, None, :, 0]  # [..., H, N, P]
    for axis in range(1, freqs.shape[-1]):
        total = total + at[..., axis, None] * look[:, None, :, axis]
    return total


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, layout: Layout = "interleaved", *, dtype: torch.dtype | None = torch.float32
) -> Tensor:
    """Turn the pairs of `x` `[..., N, D]` by the angles whose cos and sin are `[..., N, P]`; D may exceed 2P.

    q'[2i] = q[2i] cos_i - q[2i+1] sin_i and q'[2i+1] = q[2i] sin_i + q[2i+1] cos_i (RoFormer, Su 2021, eq. 34); the half layout
    pairs channel i with i + P of the first 2P. Channels beyond 2P pass through. The output has the dtype of `x`.

    `dtype` is the least precision in which the turning happens: float32 by default, None for the input's own.
    """
    check_width(x.shape[-1], cos.shape[-1])
    choose("layout", layout, get_args(Layout))
    return turn((x,), cos, sin, How(layout), dtype)[0]


def check_width(channels: int, pairs: int) -> None:
    """A head has the channels that `pairs` pairs need."""
    if channels < 2 * pairs:
        raise ValueError(f"x has {channels} channels a head, the tables turn {2 * pairs}: head_dim must be at least {2 * pairs}")


def convert_layout(weight: Tensor, head_dim: int, source: Layout, target: Layout, *, rotary_dim: int | None = None) -> Tensor:
    """Reorder the rows of a query or key projection so that `target` layout does with it what `source` did: exact, a permutation.

    `weight`: `[H · head_dim, ...]`, a weight or bias of the projection, or of a norm over the head (`[head_dim]`).
    `rotary_dim`: how many leading channels of each head are turned (all by default). Scores do not change.
    """
    for name in (source, target):
        choose("layout", name, get_args(Layout))
    width = head_dim if rotary_dim is None else rotary_dim
    if weight.shape[0] % head_dim or width % 2 or not 0 < width <= head_dim:
        raise ValueError(
            f"weight of {weight.shape[0]} rows, head_dim={head_dim}, rotary_dim={width}: rows must be a multiple of head_dim, "
            "and rotary_dim even and at most head_dim"
        )
    if source == target:
        return weight.clone()
    order = torch.arange(width, device=weight.device)
    order = order.view(-1, 2).T if target == "half" else order.view(2, -1).T  # pairs together, or halves together
    rest = torch.arange(width, head_dim, device=weight.device)
    rows = weight.unflatten(0, (-1, head_dim))  # [H, head_dim, ...]
    return rows[:, torch.cat((order.flatten(), rest))].flatten(0, 1)


@dataclass(frozen=True)
class Rotation:
    """Tables for one set of tokens, ready to turn queries and keys.

    `cos`, `sin`: `[N, P]`, per head `[H, N, P]`, per sample `[B, 1, N, P]`, or both `[B, H, N, P]`; float32.
    `prefix_tokens`: class and register tokens that stand before the N tokens and are not turned.
    `temperature`: factor on all attention scores (None for 1); `qk` puts it on the queries, so that unrotated pairs and
    prefix tokens are not left out. `dtype`: the least precision of the turning, see `rotate`. `circle`: cos and sin are those of
    angles (cos² + sin² = 1), so that their gradients can be had from the turned tensor; other tables keep the unturned one.
    """

    cos: Tensor
    sin: Tensor
    layout: Layout = "interleaved"
    prefix_tokens: int = 0
    temperature: Tensor | None = None
    dtype: torch.dtype | None = torch.float32
    circle: bool = False

    @classmethod
    def from_angles(
        cls,
        angles: Tensor,
        layout: Layout = "interleaved",
        *,
        prefix_tokens: int = 0,
        temperature: Tensor | None = None,
        dtype: torch.dtype | None = torch.float32,
        table_dtype: torch.dtype = torch.float32,
    ) -> Rotation:
        """Tables of `angles` `[H|1, N, P]` or `[B, H|1, N, P]` (radians, whole turns removed before the cast to float32)."""
        choose("layout", layout, get_args(Layout))
        phase = (angles - 2 * math.pi * torch.round(angles / (2 * math.pi))).to(table_dtype)
        if phase.ndim == 3 and phase.shape[0] == 1:
            phase = phase[0]  # [N, P], which fits x of any rank
        cos, sin = phase.cos(), phase.sin()
        if torch.compiler.is_compiling():  # one buffer: compilers would make cosines anew in every layer
            cos, sin = torch.stack((cos, sin)).unbind(0)
        return cls(cos, sin, layout, prefix_tokens, temperature, dtype, circle=True)

    @property
    def tokens(self) -> int:
        """How many tokens an input must have, prefix tokens included."""
        return self.cos.shape[-2] + self.prefix_tokens

    @property
    def _how(self) -> How:
        return How(self.layout, self.prefix_tokens, False, self.circle)

    def __call__(self, x: Tensor) -> Tensor:
        """Turn `x` `[B, H, N, D]` (`[..., N, D]` with tables `[N, P]`), N counting the prefix tokens; same shape, same dtype."""
        self._check(x.shape)
        return turn((x,), *self._tables(x.shape), self._how, self.dtype)[0]

    def qk(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Turned queries and keys, the temperature put on all queries."""
        if type(self).__call__ is Rotation.__call__ and q.shape == k.shape and q.dtype == k.dtype:
            self._check(q.shape)
            q, k = turn((q, k), *self._tables(q.shape), self._how, self.dtype)  # the gradient of their tables is summed at once
        else:
            q, k = self(q), self(k)
        return (q if self.temperature is None else (q * self.temperature).to(q.dtype)), k

    def packed_(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v `[B, H, N, D]` of one projection `[B, N, 3, H, D]`, q and k turned as `qk` does, the temperature put on q.

        They are turned where they lie, if that can be: `qkv` is used up and is not to be looked at again. Backward writes one
        gradient of the projection's shape and leaves those that arrive as they are.
        """
        if qkv.ndim != 5 or qkv.shape[2] != 3:
            raise ValueError(f"qkv of shape {list(qkv.shape)}: give [B, N, 3, H, D], the projection of queries, keys and values")
        if type(self) is Rotation:
            batch, tokens, _, heads, channels = qkv.shape
            shape = (batch, heads, tokens, channels)
            self._check(shape)
            turned = turn_packed_(qkv, *self._tables(shape), self._how, self.dtype, self.temperature)
            if turned is not None:
                return turned
        q, k, v = parts(qkv)
        return *self.qk(q, k), v

    def keep(self, indices: Tensor) -> Rotation:
        """The rotation of a kept subset of tokens, `indices` `[K]` or per sample `[B, K]`, counted without prefix tokens."""
        if indices.ndim == 1:
            return replace(self, cos=self.cos[..., indices, :], sin=self.sin[..., indices, :])
        at = indices[:, None, :, None]  # [B, 1, K, 1]

        def pick(table: Tensor) -> Tensor:
            full = table.expand(indices.shape[0], *((1,) if table.ndim == 2 else table.shape[-3:-2]), *table.shape[-2:])
            return full.gather(2, at.expand(-1, full.shape[1], -1, full.shape[-1]))  # [B, H|1, K, P]

        return replace(self, cos=pick(self.cos), sin=pick(self.sin))

    def _check(self, shape: Sequence[int]) -> None:
        """Tokens and channels are those that the tables are for."""
        if shape[-2] != self.tokens:
            raise ValueError(
                f"x of shape {list(shape)} has {shape[-2]} tokens, the rotation is for {self.cos.shape[-2]} and "
                f"{self.prefix_tokens} prefix tokens: check the extent, or give prefix_tokens (class and register tokens)"
            )
        check_width(shape[-1], self.cos.shape[-1])

    def _tables(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The tables as they broadcast against `x`: key heads repeated for grouped queries; ranks and counts checked."""
        cos, sin = self.cos, self.sin
        if cos.ndim > len(shape):
            raise ValueError(f"x of shape {list(shape)} has too few dimensions for tables {list(cos.shape)}: give [B, H, N, D]")
        if cos.ndim == 4 and cos.shape[0] not in (1, shape[0]):
            raise ValueError(f"x has a batch of {shape[0]}, the positions were given for {cos.shape[0]} samples")
        heads = cos.shape[-3] if cos.ndim > 2 else 1
        if heads == 1 or heads == shape[-3]:
            return cos, sin
        if shape[-3] % heads:
            raise ValueError(f"x has {shape[-3]} heads, the frequencies {heads}: the one must be a multiple of the other")
        group = shape[-3] // heads
        return cos.repeat_interleave(group, -3), sin.repeat_interleave(group, -3)
