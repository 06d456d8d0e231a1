"""Bias encodings: a term on the score of each pair of tokens. `enc(query_positions, key_positions) -> [H, Nq, Nk]`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .positions import Extent, as_positions, grid, wide


class Bias(nn.Module):
    """What bias encodings have in common: positions are the tokens' indices, and prefix tokens have no bias.

    Subclasses give `between(query [Nq, A], key [Nk, A], extent) -> [H, Nq, Nk]`, also for a batch of positions
    `[B, N, A]` -> `[B, H, Nq, Nk]`. Where `sized`, `extent` (tokens an axis of the whole grid) matters.
    """

    axes: int
    heads: int
    sized = False

    def forward(self, query_positions: Tensor, key_positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[Nq, A]`, `[Nk, A]` -> `[H, Nq, Nk]`, `[B, N, A]` -> `[B, H, Nq, Nk]`, float32."""
        return self.between(as_positions(query_positions, self.axes), as_positions(key_positions, self.axes), extent)

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        raise NotImplementedError

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

    def among(self, positions: Tensor, extent: Extent | None = None) -> Tensor:
        """The bias of tokens among themselves `[H, N, N]`, `[B, H, N, N]`."""
        bias: Tensor = self(positions, positions, extent)
        return bias

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay must leave alone: all."""
        return {name for name, _ in self.named_parameters()}


class ALiBi(Bias):
    """Attention with linear biases (Press 2022), for any number of axes: the farther a key, the less it counts.

    bias[h, i, j] = -m_h |x_i - x_j|, the Euclidean distance in tokens, m_h = 2^(-8 (h + 1) / H) for h = 0 .. H - 1. The paper's
    slopes for text; both directions are alike. Nothing is learned, and nothing depends on the size of the grid.
    """

    def __init__(self, heads: int, axes: int) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads={heads}: give a whole number of at least 1")
        self.heads, self.axes = heads, axes

    @property
    def slopes(self) -> Tensor:
        """m_h, `[H]`, float32 whatever the module is cast to."""
        return 2.0 ** (-8 * torch.arange(1, self.heads + 1, dtype=torch.float32) / self.heads)

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        square = (query[..., :, None, 0] - key[..., None, :, 0]) ** 2  # no matmul: autocast would lower it
        for axis in range(1, self.axes):
            square = square + (query[..., :, None, axis] - key[..., None, :, axis]) ** 2
        return -self.slopes.to(square.device)[:, None, None] * square.sqrt().float()[..., None, :, :]
