"""A token budget: which tubes are left of a clip in training."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Drop = Literal["random", "uniform", "tube"]


def left(drop: str, tokens: int, grid: tuple[int, ...], count: int, batch: int, device: torch.device) -> Tensor | None:
    """Indices `[B, K]`, K <= `tokens`, in ascending order, of what is left of `count` tokens, one draw a sample; None for all.

    - `"random"`: any of them.
    - `"uniform"`: evenly spaced in their order, floor((k + u) N / K) with one u ~ U(0, 1).
    - `"tube"`: the same places in every frame (VideoMAE, Tong 2022), floor(tokens / T) of them, drawn at random.
    """
    if count <= tokens:
        return None
    if drop == "random":
        return torch.rand(batch, count, device=device).argsort(-1)[:, :tokens].sort(-1).values
    if drop == "uniform":
        at = torch.arange(tokens, device=device) + torch.rand(batch, 1, device=device)  # [B, K]
        return (at * (count / tokens)).long().clamp(max=count - 1)
    if not grid:
        raise ValueError("drop='tube' keeps places in every frame, and these tokens have no grid: choose 'random' or 'uniform'")
    frames, places = grid[0], math.prod(grid[1:])
    if tokens < frames:
        raise ValueError(f"tokens={tokens} is less than one in each of {frames} frames: give more, or drop='random'")
    kept = torch.rand(batch, places, device=device).argsort(-1)[:, : tokens // frames].sort(-1).values  # [B, k]
    return (torch.arange(frames, device=device)[:, None] * places + kept[:, None]).flatten(1)  # [B, T · k]


def pick(tokens: Tensor, indices: Tensor, prefix: int) -> Tensor:
    """Prefix tokens and the chosen ones behind them: `[B, prefix + N, D]`, `[B, K]` -> `[B, prefix + K, D]`."""
    chosen = tokens[:, prefix:].gather(1, indices[..., None].expand(-1, -1, tokens.shape[-1]))
    return torch.cat((tokens[:, :prefix], chosen), dim=1)
