"""RoPE in another basis: a matrix on queries and keys before the turn."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..positions import Extent, wide
from ..rotation import Rotation
from ..variants import Equipped, per_head
from .blocks import precise, skew, working


def cayley(entries: Tensor, size: int) -> Tensor:
    """(I - S) (I + S)^-1 of the skew-symmetric S of `entries` `[.., n (n - 1) / 2]`: orthogonal, `[.., n, n]`, in float64."""
    s = skew(entries.to(wide(entries.device)), size)
    one = torch.eye(size, dtype=s.dtype, device=s.device)
    return torch.linalg.solve_ex(one + s, one - s).result  # the two commute, and I + S always has an inverse


def fold(weight: Tensor, matrix: Tensor) -> Tensor:
    """A query or key projection that does the work of `matrix` `[H|1, D, D]` too: weight or bias `[H · D, ..]` -> the same shape.

    With both folded (and no norm between projection and turn), plain RoPE gives the scores that the encoding gave.
    """
    width = matrix.shape[-1]
    if weight.shape[0] % (width * matrix.shape[0]):
        raise ValueError(
            f"weight of {weight.shape[0]} rows: expected a multiple of {matrix.shape[0]} heads of {width}, those of q or k alone"
        )
    rows = weight.reshape(-1, width, weight[:1].numel())  # [H, D, C]
    each = matrix.repeat_interleave(rows.shape[0] // matrix.shape[0], 0)
    kind = wide(weight.device)
    return (each.to(kind) @ rows.to(kind)).to(weight.dtype).reshape(weight.shape)


@dataclass(frozen=True, kw_only=True)
class Based(Rotation):
    """A `Rotation` of `basis` `[H|1, D, D]` times queries and keys; with `back`, its transpose follows the turn.

    Without `back` all tokens are brought to the basis, or those that are not turned would no longer fit the others.
    """

    basis: Tensor
    back: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[B, H, N, D]`, N counting the prefix tokens -> same shape, same dtype."""
        y = x.to(working(x, self.dtype))
        turned = super().__call__(change(y, self.basis))
        if not self.back:
            return turned.to(x.dtype)
        rest = change(turned[..., self.prefix_tokens :, :], self.basis.mT).to(x.dtype)
        return torch.cat((x[..., : self.prefix_tokens, :], rest), dim=-2) if self.prefix_tokens else rest


def change(x: Tensor, basis: Tensor) -> Tensor:
    """M x for every token: `[B, H, N, D]` and `[H|1, D, D]`, out of autocast's reach."""
    if x.shape[-1] != basis.shape[-1]:
        raise ValueError(f"x of shape {list(x.shape)} has {x.shape[-1]} channels, the basis {basis.shape[-1]}: check head_dim")
    with precise(x.device):
        return x @ per_head(basis, x).mT.to(x.dtype)


class InBasis(Equipped):
    """A RoPE whose queries and keys are first multiplied by `matrix()`."""

    back = False

    def matrix(self) -> Tensor:
        """`[H|1, D, D]`."""
        raise NotImplementedError

    def fold(self, weight: Tensor) -> Tensor:
        """The projection of queries or keys with `matrix()` folded in, see `fold`."""
        return fold(weight.detach(), self.matrix().detach())

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Based:
        plain = super().forward(positions, extent)
        told: dict[str, Any] = {f.name: getattr(plain, f.name) for f in fields(plain)}
        kind = torch.promote_types(next(self.parameters()).dtype, torch.float32)
        return Based(**told, basis=self.matrix().to(kind), back=self.back)
