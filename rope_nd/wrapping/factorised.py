"""Space, then time: attention within frames, whose results are mixed along time, place by place.

With alpha the weights along time, at one place, and beta those within a frame, token (t, p) gets

    y(t, p) = sum_t' alpha_p(t, t') sum_p' beta_t'(p, p') v(t', p')

from one set of queries, keys and values: a product of two small matrices in place of joint attention's large one, of rows with sum
one, and no weights beside the model's. Where all frames are alike the second sum is the same in all of them, and so is y: a still
clip gives what the image gives, whatever happens in time. T S² + S T² scores for T frames of S tokens, in place of (T S)².

Prefix tokens are in every frame, as keys and as queries, and are the mean over frames afterwards; along time they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .where import Where, attend


@dataclass(frozen=True)
class SpaceThenTime(Where):
    """What layers are told in place of a `Where`: one for the tokens of a frame, one for the moments of a place."""

    space: Where = field(default_factory=Where)
    time: Where = field(default_factory=Where)
    frames: int = 1
    prefix: int = 0

    def turn(self, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """As they are: each step turns its own."""
        return q, k

    def attend(self, attn: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Both steps of the layer `attn`, `[B, H, n + N, D]` -> the same."""
        n, t = self.prefix, self.frames
        turned = self.space.turn(in_frames(q, n, t), in_frames(k, n, t), attn.layer)
        y = attend(attn, *turned, in_frames(v, n, t), self.space, scale=scale)  # [B · T, H, n + S, D]
        prefix, mixed = y[..., :n, :].unflatten(0, (-1, t)).mean(1), from_frames(y[..., n:, :], t)
        turned = self.time.turn(in_places(q[..., n:, :], t), in_places(k[..., n:, :], t), attn.layer)
        z = attend(attn, *turned, in_places(mixed, t), self.time, scale=scale)  # [B · S, H, T, D]
        return torch.cat((prefix, from_places(z, mixed.shape[-2] // t)), dim=-2)


def in_frames(x: Tensor, prefix: int, frames: int) -> Tensor:
    """`[B, H, n + T · S, D]` -> `[B · T, H, n + S, D]`: the prefix tokens before those of each frame."""
    each = x[..., prefix:, :].unflatten(-2, (frames, -1)).transpose(1, 2)  # [B, T, H, S, D]
    first = x[:, None, :, :prefix].expand(-1, frames, -1, -1, -1)  # [B, T, H, n, D]
    return torch.cat((first, each), dim=-2).flatten(0, 1)


def from_frames(x: Tensor, frames: int) -> Tensor:
    """`[B · T, H, S, D]` -> `[B, H, T · S, D]`."""
    return x.unflatten(0, (-1, frames)).transpose(1, 2).flatten(2, 3)


def in_places(x: Tensor, frames: int) -> Tensor:
    """`[B, H, T · S, D]` -> `[B · S, H, T, D]`."""
    return x.unflatten(-2, (frames, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)


def from_places(x: Tensor, places: int) -> Tensor:
    """`[B · S, H, T, D]` -> `[B, H, T · S, D]`."""
    return x.unflatten(0, (-1, places)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def steps(places: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """The places of a frame at time zero `[.., S, A]`, and of the moments at the origin `[.., T, A]`, of those `[.., T · S, A]`."""
    each = places.unflatten(-2, (frames, -1))  # [.., T, S, A]
    is_time = torch.arange(places.shape[-1], device=places.device) == 0  # [A]
    return each[..., 0, :, :].masked_fill(is_time, 0), each[..., :, 0, :].masked_fill(~is_time, 0)


def for_each(where: Where, times: int) -> Where:
    """What differs from sample to sample, for `times` rows of each sample."""

    def repeated(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.ndim < 4 or x.shape[0] == 1 else x.repeat_interleave(times, 0)

    def told(rotation: Any) -> Any:
        tables = {name: repeated(getattr(rotation, name)) for name in ("cos", "sin", "temperature")}
        return replace(rotation, **tables)

    chains = tuple(tuple(told(rotation) for rotation in chain) for chain in where.rotations)
    change: Callable[[Tensor], Any] = repeated
    return replace(where.with_biases(change), rotations=chains, temperature=repeated(where.temperature))
