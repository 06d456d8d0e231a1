"""Scores of many tokens: all pairs at once where that is little, else some queries at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGE = 2**28  # bytes of one sample's scores, in float32, above which they are made block by block
BLOCK = 2**22  # bytes of a block on a CPU, whose caches hold it
HELD = 2**31  # bytes of a term that is made once for all layers

Rows = Callable[..., Tensor]  # gives a term on the scores: `make()` the whole, `make(rows)` what belongs to some queries


def size(heads: int, queries: int, keys: int) -> int:
    """Bytes of scores `[H, Nq, Nk]` in float32."""
    return 4 * heads * queries * keys


def is_large(heads: int, queries: int, keys: int) -> bool:
    """Whether scores are made block by block; not in a graph, which is for any size."""
    return not torch.compiler.is_compiling() and size(heads, queries, keys) > LARGE


def part(term: Tensor, rows: slice | None) -> Tensor:
    """The rows of some queries of a term `[.., Nq, Nk]`, or of one that is the same for all of them, `[.., 1, Nk]`."""
    return term if rows is None or term.shape[-2] == 1 else term[..., rows, :]


def by_rows(step: Callable[[Tensor, slice | None], Tensor], q: Tensor, keys: int) -> Tensor:
    """`step(q, None)` of queries `[B, H, N, D]`; where scores are large, `step(q[.., rows, :], rows)` of blocks of them, joined.

    With gradients, what a block makes is not kept for backward but made again.
    """
    samples, heads, queries, _ = q.shape
    if not is_large(heads, queries, keys):
        return step(q, None)
    run = partial(checkpoint, step, use_reentrant=False) if torch.is_grad_enabled() else step
    return torch.cat([run(q[..., rows, :], rows) for rows in blocks(samples * heads, queries, keys, q.device)], dim=-2)


def held(term: Rows, samples: int, heads: int, tokens: int, device: torch.device) -> Tensor | Rows:
    """A term `[H, N, N]`, `[B, H, N, N]` that all layers add: made now if there is room for it, or else what makes it."""
    if not is_large(heads, tokens, tokens):
        return term()
    if torch.is_grad_enabled() or size(samples * heads, tokens, tokens) > HELD:
        return term
    first, *others = blocks(samples * heads, tokens, tokens, device)
    made = term(first)
    whole = made.new_empty(*made.shape[:-2], tokens, tokens)
    whole[..., first, :] = made
    for rows in others:
        whole[..., rows, :] = term(rows)
    return whole


def blocks(heads: int, queries: int, keys: int, device: torch.device) -> list[slice]:
    """Queries in their order, as many at a time as BLOCK bytes of scores; LARGE on other devices, which want more at once."""
    most = BLOCK if device.type == "cpu" else LARGE
    step = max(1, most // size(heads, 1, keys))
    return [slice(start, min(start + step, queries)) for start in range(0, queries, step)]
