"""How others turn queries and keys, from the same tables; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Turn = Callable[[Tensor, Tensor], Pair]


@dataclass(frozen=True)
class Rival:
    """`make(cos, sin, layout, prefix, dtype)` -> what turns q and k `[B, H, N, D]`; tables `[N, P]`, `[H, N, P]` if `per_head`."""

    make: Callable[[Tensor, Tensor, str, int, torch.dtype], Turn]
    layouts: tuple[str, ...]
    per_head: bool


def spread(table: Tensor, layout: str) -> Tensor:
    """One column a pair -> one a channel, `[.., N, P]` -> `[.., N, 2P]`."""
    return torch.cat((table, table), -1) if layout == "half" else table.repeat_interleave(2, -1)


def partner(x: Tensor, layout: str) -> Tensor:
    """Each channel's partner, the first of a pair from the second with its sign changed: `[.., D]` -> `[.., D]`."""
    if layout == "half":
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-b, a), -1).flatten(-2)


def after(turn: Callable[[Tensor], Tensor], prefix: int) -> Turn:
    """`turn` for q and k, their prefix tokens left as they are."""

    def one(x: Tensor) -> Tensor:
        return torch.cat((x[..., :prefix, :], turn(x[..., prefix:, :])), -2) if prefix else turn(x)

    return lambda q, k: (one(q), one(k))


def textbook(cos: Tensor, sin: Tensor, layout: str, prefix: int, dtype: torch.dtype) -> Turn:
    """x cos + partner(x) sin in float32."""
    c, s = spread(cos, layout), spread(sin, layout)  # [.., N, D]

    def turn(x: Tensor) -> Tensor:
        y = x.float()
        return (y * c + partner(y, layout) * s).to(x.dtype)

    return after(turn, prefix)


def timm(cos: Tensor, sin: Tensor, layout: str, prefix: int, dtype: torch.dtype) -> Turn:
    """As timm's AttentionRope does."""
    apply = import_module("timm.layers").apply_rot_embed_cat
    table = torch.cat((spread(sin, layout), spread(cos, layout)), -1)  # [.., N, 2D]
    return after(partial(apply, emb=table, half=layout == "half"), prefix)


def transformers(cos: Tensor, sin: Tensor, layout: str, prefix: int, dtype: torch.dtype) -> Turn:
    """As the DINOv3 of transformers does, whose tables have the dtype of the model."""
    apply = import_module("transformers.models.dinov3_vit.modeling_dinov3_vit").apply_rotary_pos_emb
    c, s = spread(cos, layout).to(dtype), spread(sin, layout).to(dtype)
    return lambda q, k: apply(q, k, c, s)


def rotary_embedding_torch(cos: Tensor, sin: Tensor, layout: str, prefix: int, dtype: torch.dtype) -> Turn:
    """As rotary-embedding-torch does, which takes the angles and makes their sines at each call."""
    apply = import_module("rotary_embedding_torch").apply_rotary_emb
    return after(partial(apply, spread(torch.atan2(sin, cos), layout)), prefix)


RIVALS = {
    "timm": Rival(timm, ("interleaved", "half"), True),
    "transformers": Rival(transformers, ("half",), False),
    "rotary-embedding-torch": Rival(rotary_embedding_torch, ("interleaved",), False),
    "textbook": Rival(textbook, ("interleaved", "half"), True),
}


def installed() -> tuple[dict[str, Rival], list[str]]:
    """The rivals that can be imported, and the names of those that cannot."""
    zero = torch.zeros(1, 1)
    found: dict[str, Rival] = {}
    for name, rival in RIVALS.items():
        try:
            rival.make(zero, zero, rival.layouts[0], 0, zero.dtype)
        except ImportError:
            continue
        found[name] = rival
    return found, [name for name in RIVALS if name not in found]
