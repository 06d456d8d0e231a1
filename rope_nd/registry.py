"""Names -> encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from ._check import check_options, choose
from .absolute import Sinusoidal
from .bias import ALiBi
from .freqs import FAMILIES
from .learned import Learned
from .rope import RoPE

ABSOLUTE: dict[str, Any] = {"learned": Learned, "sinusoidal": Sinusoidal}
BIASES: dict[str, Any] = {"alibi": ALiBi}


@dataclass(frozen=True)
class Host:
    """What an encoding must know of the model that it serves; `heads` are the key heads, `queries` those of the queries."""

    dim: int
    heads: int
    head_dim: int
    layers: int
    trained_extent: tuple[int, ...]
    prefix_tokens: int
    queries: int | None = None


def list_encodings() -> list[str]:
    """Every name that `wrap` takes."""
    return ["none", *ABSOLUTE, *BIASES, *FAMILIES]


def make(name: str, axes: int, host: Host, **options: Any) -> nn.ModuleList | nn.Module | None:
    """The encoding of that name for this host: None, an absolute one, a bias, a `RoPE` (one a layer in a ModuleList if learned)."""
    choose("encoding", name, list_encodings())
    if name == "none" or name in BIASES:
        if options.pop("scaling", None) not in (None, "none"):
            reason = "has no positions to scale" if name == "none" else "is the same at every size"
            raise ValueError(f"encoding {name!r} {reason}: leave scaling out")
        if name == "none" and options:
            raise ValueError(f"encoding 'none' has no options, got {sorted(options)}")
        if name == "none":
            return None
        check_options(f"encoding {name!r}", options, BIASES[name])
        return BIASES[name](host.queries or host.heads, axes, **options)
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
