"""Bias encodings: a term on the score of each pair of tokens. `enc(query_positions, key_positions) -> [H, Nq, Nk]`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .positions import Extent, as_positions, grid, wide


class Bias(nn.Module):
    """What bias encodings have in common: positions are the tokens' indices, and prefix tokens have no bias.

    Subclasses give `forward(query_positions [Nq, A], key_positions [Nk, A], extent) -> [H, Nq, Nk]`, also for a batch of
    positions `[B, N, A]` -> `[B, H, Nq, Nk]`.
    """

    axes: int
    sized = False

    def positions(self, *extent: int) -> Tensor:
        """The coordinates `[N, A]` of a token grid."""
        device = next((t.device for t in self.parameters()), None)
        return grid(*extent, dtype=wide(device), device=device)

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        """The coordinates `[.., A]` of chosen tokens: their indices."""
        return indices.to(wide(indices.device))

    def at(self, *extent: int) -> Tensor:
        """The bias of a token grid `[H, N, N]`."""
        points = self.positions(*extent)
        bias: Tensor = self(points, points, extent)
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

    def slopes(self, device: torch.device | str | None = None) -> Tensor:
        """m_h, `[H]`, float32 whatever the module is cast to."""
        return 2.0 ** (-8 * torch.arange(1, self.heads + 1, device=device, dtype=torch.float32) / self.heads)

    def forward(self, query_positions: Tensor, key_positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[Nq, A]`, `[Nk, A]` -> `[H, Nq, Nk]`, `[B, ..]` -> `[B, H, Nq, Nk]`, float32."""
        query, key = as_positions(query_positions, self.axes), as_positions(key_positions, self.axes)
        square = (query[..., :, None, 0] - key[..., None, :, 0]) ** 2  # no matmul: autocast would lower it
        for axis in range(1, self.axes):
            square = square + (query[..., :, None, axis] - key[..., None, :, axis]) ** 2
        return -self.slopes(square.device)[:, None, None] * square.sqrt().float()[..., None, :, :]
