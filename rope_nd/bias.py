"""Bias encodings: a term on the score of each pair of tokens. `enc(query_positions, key_positions) -> [H, Nq, Nk]`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .positions import Extent, as_positions, grid, sizes, wide


def offsets(query: Tensor, key: Tensor) -> list[Tensor]:
    """How far each key lies from each query along each axis, A tensors `[.., Nq, Nk]`, float64 where the device has it."""
    start, end = query.to(wide(query.device)), key.to(wide(key.device))
    return [end[..., None, :, axis] - start[..., :, None, axis] for axis in range(query.shape[-1])]


def length(parts: list[Tensor]) -> Tensor:
    """The Euclidean length of vectors given by their parts."""
    square = parts[0] ** 2  # no matmul and no norm: autocast would lower the one and stack the other
    for part in parts[1:]:
        square = square + part**2
    return square.sqrt()


def read(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table `[K, H]` for pairs of tokens `[.., Nq, Nk]` -> `[.., H, Nq, Nk]`, float32."""
    rows = table.float().mT.contiguous().index_select(1, index.flatten())  # [H, .. · Nq · Nk]
    return rows.reshape(len(rows), *index.shape).movedim(0, -3)


class Bias(nn.Module):
    """What bias encodings have in common: positions are the tokens' indices, and prefix tokens have no bias.

    Subclasses give `between(query [Nq, A], key [Nk, A], extent) -> [H, Nq, Nk]`, also for a batch of positions
    `[B, N, A]` -> `[B, H, Nq, Nk]`. Where `sized`, `extent` (tokens an axis of the whole grid) matters and must be given.
    Where `layered`, each layer of a model has its own. Where it `hides`, it holds minus infinity, as a mask does.
    """

    axes: int
    heads: int
    sized = False
    layered = False
    hides = False

    def __init__(self, heads: int, axes: int) -> None:
        super().__init__()
        for name, value in (("heads", heads), ("axes", axes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: give a whole number of at least 1")
        self.heads, self.axes = heads, axes

    @classmethod
    def stack(cls, layers: int, heads: int, axes: int, **options: Any) -> nn.Module:
        """What a model of `layers` layers takes: one module for all of them or, where `layered`, a list of one a layer."""
        if not cls.layered:
            return cls(heads, axes, **options)
        return nn.ModuleList([cls(heads, axes, **options) for _ in range(layers)])

    def forward(self, query_positions: Tensor, key_positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[Nq, A]`, `[Nk, A]` -> `[H, Nq, Nk]`, `[B, N, A]` -> `[B, H, Nq, Nk]`, float32."""
        return self.between(as_positions(query_positions, self.axes), as_positions(key_positions, self.axes), extent)

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        raise NotImplementedError

    def whole(self, extent: Extent | None) -> Tensor:
        """Tokens an axis of the whole grid `[A]`, which whoever uses a bias that is `sized` must tell it."""
        if extent is None or len(extent) != self.axes:
            raise ValueError(
                f"extent={extent!r}, but this {type(self).__name__} depends on the size of the grid: give the whole grid's tokens "
                f"an axis, {self.axes} of them, as in bias(query, key, extent={(14,) * self.axes}), or call bias.at"
            )
        return sizes(extent, next((t.device for t in self.parameters()), None))

    def positions(self, *extent: int) -> Tensor:
        """The coordinates `[N, A]` of a token grid."""
        device = next((t.device for t in self.parameters()), None)
        return grid(*extent, dtype=wide(device), device=device)

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        """The coordinates `[.., A]` of chosen tokens: their indices."""
        return indices.to(wide(indices.device))

    def at(self, *extent: int) -> Tensor:
        """The bias of a token grid `[H, N, N]`."""
        return self.among(self.positions(*extent), extent)

    def among(self, positions: Tensor, extent: Extent | None = None, *, rows: slice | None = None) -> Tensor:
        """The bias of tokens among themselves `[H, N, N]`, `[B, H, N, N]`, or what of it belongs to the queries `rows`."""
        bias: Tensor = self(positions if rows is None else positions[..., rows, :], positions, extent)
        return bias

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay must leave alone: all."""
        return {name for name, _ in self.named_parameters()}


class ALiBi(Bias):
    """Attention with linear biases (Press 2022), for any number of axes: the farther a key, the less it counts.

    bias[h, i, j] = -m_h |x_i - x_j|, the Euclidean distance in tokens, m_h = 2^(-8 (h + 1) / H) for h = 0 .. H - 1. The paper's
    slopes for text; both directions are alike. Nothing is learned, and nothing depends on the size of the grid.
    """

    @property
    def slopes(self) -> Tensor:
        """m_h, `[H]`, float32 whatever the module is cast to."""
        return 2.0 ** (-8 * torch.arange(1, self.heads + 1, dtype=torch.float32) / self.heads)

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        distance = length(offsets(query, key)).float()  # [.., Nq, Nk]
        return -self.slopes.to(distance.device)[:, None, None] * distance[..., None, :, :]
