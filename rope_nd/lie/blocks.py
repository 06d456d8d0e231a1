"""A matrix for each token and block of channels: skew-symmetric generators, and their exponentials applied."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..rope import RoPE
from ..rotation import Layout, Rotation
from ..scaling import Scaling, interpolates
from ..variants import fitted


def skew(entries: Tensor, size: int) -> Tensor:
    """Skew-symmetric matrices `[.., n, n]` with the negative of `entries` `[.., n (n - 1) / 2]` above the diagonal, row by row.

    The exponential of a 2 x 2 one then turns its pair of channels by the entry, as RoPE does.
    """
    rows, columns = torch.triu_indices(size, size, 1, device=entries.device)
    upper = entries.new_zeros(*entries.shape[:-1], size, size)
    upper[..., rows, columns] = entries
    return upper.mT - upper


def precise(device: torch.device) -> AbstractContextManager[object]:
    """Where autocast leaves float32 products alone."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def working(x: Tensor, least: torch.dtype | None) -> torch.dtype:
    """The dtype to turn `x` in, `least` as `Rotation.dtype` has it."""
    return x.dtype if least is None else torch.promote_types(x.dtype, least)


@dataclass(frozen=True, kw_only=True)
class Blocks(Rotation):
    """Matrices for one set of tokens: a `Rotation` whose tables are their rows, so that it is kept, stacked and cut like one.

    `cos` holds the upper half of the rows of each b x b matrix, `sin` the lower, `[.., N, J b b / 2]` for J blocks of channels (for
    b = 2 the rows (cos, -sin) and (sin, cos)). Block j is channels j b .. (j + 1) b - 1; in the half layout, those where this
    order has the pairs (i, i + P). Channels beyond J b pass through.
    """

    block: int

    @classmethod
    def of(cls, matrices: Tensor, rope: RoPE, temperature: Tensor | None) -> Blocks:
        """The rotation by `matrices` `[.., H|1, N, J, b, b]`, with the rest as `rope` says."""
        m = matrices[0] if matrices.ndim == 5 and matrices.shape[0] == 1 else matrices
        size = m.shape[-1]
        upper, lower = (half.flatten(-3) for half in m.split(size // 2, dim=-2))  # [.., N, J b b / 2]
        return cls(upper, lower, rope.layout, rope.prefix_tokens, temperature, rope.rotate_dtype, block=size)

    def matrices(self) -> Tensor:
        """The matrices `[.., N, J, b, b]`."""
        return joined(self.cos, self.sin, self.block)

    def __call__(self, x: Tensor) -> Tensor:
        """Turn `x` `[B, H, N, D]`, N counting the prefix tokens, which are not turned; same shape, same dtype."""
        width = 2 * self.cos.shape[-1] // self.block
        upper, lower = fitted(self, x, max(width, x.shape[-1]))
        work = working(x, self.dtype)
        rest = x[..., self.prefix_tokens :, :]
        y = paired(rest[..., :width].to(work), self.layout)
        turned = unpaired(multiply(joined(upper, lower, self.block).to(work), y), self.layout).to(x.dtype)
        turned = torch.cat((turned, rest[..., width:]), dim=-1) if width < x.shape[-1] else turned
        return torch.cat((x[..., : self.prefix_tokens, :], turned), dim=-2) if self.prefix_tokens else turned


def joined(upper: Tensor, lower: Tensor, size: int) -> Tensor:
    """Matrices `[.., J, b, b]` of their two halves of rows `[.., J b b / 2]`."""
    return torch.cat([half.unflatten(-1, (-1, size // 2, size)) for half in (upper, lower)], dim=-2)


def multiply(matrices: Tensor, x: Tensor) -> Tensor:
    """`[.., N, J, b, b]` by the blocks of `x` `[.., N, J b]`, out of autocast's reach; a table of fewer ranks serves all of `x`."""
    blocks = x.unflatten(-1, matrices.shape[-3:-1])  # [.., N, J, b]
    lead = blocks.shape[:-3]
    if matrices.ndim < 6:
        blocks = blocks.reshape(-1, *(lead[-1:] if matrices.ndim == 5 else (1,)), *blocks.shape[-3:])
    full = matrices[(None,) * (6 - matrices.ndim)]  # [B|1, H|1, N, J, b, b]
    with precise(x.device):
        return torch.einsum("zhnjrc,zhnjc->zhnjr", full, blocks).reshape(x.shape)


def paired(x: Tensor, layout: Layout) -> Tensor:
    """Channels in the order in which the two of a pair are neighbours."""
    return x if layout == "interleaved" else x.unflatten(-1, (2, -1)).mT.flatten(-2)


def unpaired(x: Tensor, layout: Layout) -> Tensor:
    """The inverse of `paired`."""
    return x if layout == "interleaved" else x.unflatten(-1, (-1, 2)).mT.flatten(-2)


def count_blocks(head_dim: int, rotary_dim: int | None, block: int) -> int:
    """How many blocks of even size there are; a width that they do not fill is refused."""
    width = head_dim if rotary_dim is None else rotary_dim
    if isinstance(block, bool) or not isinstance(block, int) or block < 2 or block % 2:
        raise ValueError(f"block={block!r}: give an even number of channels, 8 for example")
    if width % block:
        fits = [size for size in range(2, width + 1, 2) if width % size == 0]
        near = min(fits, key=lambda size: abs(size - block), default=None)
        wide = max(block, (width + block // 2) // block * block)
        also = f"the nearest block that works is {near}, " if near else ""
        raise ValueError(f"{width} channels are no multiple of block={block}: {also}the nearest head_dim (or rotary_dim) {wide}")
    return width // block


def check_scaling(name: str, scaling: Scaling | None) -> None:
    """Generators have no frequencies: what goes by turns is refused."""
    if not interpolates(scaling):
        raise ValueError(f"scaling={scaling!r} goes by frequencies, and a generator of {name} has none: choose 'pi' or none")
