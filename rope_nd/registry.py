"""Names -> encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from ._check import check_options, choose
from .absolute import Learned, Sinusoidal
from .freqs import FAMILIES
from .rope import RoPE

ABSOLUTE: dict[str, Any] = {"learned": Learned, "sinusoidal": Sinusoidal}


@dataclass(frozen=True)
class Host:
    """What an encoding must know of the model that it serves."""

    dim: int
    heads: int
    head_dim: int
    layers: int
    trained_extent: tuple[int, ...]
    prefix_tokens: int


def list_encodings() -> list[str]:
    """Every name that `wrap` takes."""
    return ["none", *ABSOLUTE, *FAMILIES]


def make(name: str, axes: int, host: Host, **options: Any) -> nn.ModuleList | nn.Module | None:
    """The encoding of that name for this host: None, an absolute one, or a `RoPE` (a ModuleList of one a layer if learned)."""
    choose("encoding", name, list_encodings())
    if name == "none":
        if options.pop("scaling", None) not in (None, "none"):
            raise ValueError("encoding 'none' has no positions to scale: leave scaling out")
        if options:
            raise ValueError(f"encoding 'none' has no options, got {sorted(options)}")
        return None
    if name in ABSOLUTE:
        options = {k: v for k, v in options.items() if not (name == "learned" and k == "scaling" and v is None)}
        if name == "learned":  # the others hand theirs to a RoPE, which looks at them
            check_options("encoding 'learned'", options, Learned)
        encoding: nn.Module = ABSOLUTE[name](host.dim, axes, trained_extent=host.trained_extent, **options)
        return encoding
    known = {"heads": host.heads, "trained_extent": host.trained_extent, "prefix_tokens": host.prefix_tokens, **options}
    seed = known.pop("seed", 0)
    first = RoPE(host.head_dim, axes, name, seed=seed, **known)
    if not first.learned:
        return first
    return nn.ModuleList([first, *(RoPE(host.head_dim, axes, name, seed=seed + i, **known) for i in range(1, host.layers))])
