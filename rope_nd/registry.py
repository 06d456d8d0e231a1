"""Names -> encodings."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from ._check import check_options, choose
from .absolute import Sinusoidal, fourier
from .bias import ALiBi, Bias
from .codes import CODES, Code
from .fields import FIRE, LookHere
from .freqs import FAMILIES
from .learned import Learned
from .lie import CayleySTRING, CirculantSTRING, ComRoPE, HARoPE, LieRE
from .parabola import PaPE
from .polar import PoPE
from .presets import PRESETS
from .relative import T5, RelativeTable, T5Joint
from .rope import RoPE
from .scaling import RULES
from .variants import FoPE, HierarchicalRoPE, WaveletRoPE

ABSOLUTE: dict[str, Any] = {
    **{name: partial(Code, code=name) for name in CODES},
    "sinusoidal": Sinusoidal,
    "fourier": fourier,
    "learned": Learned,
}
BIASES: dict[str, type[Bias]] = {
    "alibi": ALiBi,
    "t5": T5,
    "t5_joint": T5Joint,
    "swin": RelativeTable,
    "lookhere": LookHere,
    "fire": FIRE,
}
VARIANTS: dict[str, Any] = {
    "hierarchical_rotary": HierarchicalRoPE,
    "wavelet_rotary": WaveletRoPE,
    "fope": FoPE,
    "pope": PoPE,
    "pape": PaPE,
    "liere": LieRE,
    "comrope_ap": partial(ComRoPE, kind="ap"),
    "comrope_ld": partial(ComRoPE, kind="ld"),
    "string_cayley": CayleySTRING,
    "string_circulant": CirculantSTRING,
    "harope": HARoPE,
}
GENERATED = ("liere", "comrope_ap", "comrope_ld")  # by matrices that have no frequencies
ROTARY: dict[str, Any] = {**{name: partial(RoPE, freqs=name) for name in FAMILIES}, **VARIANTS}


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
    return ["none", *ABSOLUTE, *BIASES, *ROTARY]


def scalings(name: str) -> tuple[str, ...]:
    """The scaling rules that mean anything for an encoding, by name, `"none"` among them."""
    if name == "none" or (name in BIASES and name != "swin"):
        return ("none",)
    squeezed = name in CODES or name in ("learned", "pape", "swin", *GENERATED)  # positions can be squeezed, that is all
    return ("none", "pi") if squeezed else ("none", *RULES)


def make(name: str, axes: int, host: Host, **options: Any) -> nn.ModuleList | nn.Module | None:
    """The encoding or preset of that name for this host: None, an absolute one, a bias, a `RoPE` (one a layer if learned)."""
    choose("encoding", name, [*list_encodings(), *PRESETS])
    options = {k: v for k, v in options.items() if k != "scaling" or v is not None}  # each has its own default
    if scalings(name) == ("none",) and options.pop("scaling", None) not in (None, "none"):
        reason = "has no positions to scale" if name == "none" else "has no scaling rule to choose"
        raise ValueError(f"encoding {name!r} {reason}: leave scaling out")
    if name == "none":
        if options:
            raise ValueError(f"encoding 'none' has no options, got {sorted(options)}")
        return None
    if name in BIASES:
        return _bias(name, axes, host, options)
    if name in ABSOLUTE:
        if name in ("learned", "fourier"):  # the others look at theirs
            check_options(f"encoding {name!r}", options, ABSOLUTE[name])
        encoding: nn.Module = ABSOLUTE[name](host.dim, axes, trained_extent=host.trained_extent, **options)
        return encoding
    known = {"heads": host.heads, "trained_extent": host.trained_extent, "prefix_tokens": host.prefix_tokens, **options}
    seed = known.pop("seed", 0)
    build = partial(ROTARY[name], host.head_dim, axes) if name in ROTARY else partial(PRESETS[name], host.head_dim, axes=axes)
    first = build(seed=seed, **known)
    if not list(first.parameters()):
        return first
    return nn.ModuleList([first, *(build(seed=seed + i, **known) for i in range(1, host.layers))])


def _bias(name: str, axes: int, host: Host, options: dict[str, Any]) -> nn.Module:
    """A bias for all layers or one a layer, as its class says, told of the host what it asks for."""
    cls = BIASES[name]
    check_options(f"encoding {name!r}", options, cls)
    known = {"trained_extent": host.trained_extent} if "trained_extent" in inspect.signature(cls).parameters else {}
    return cls.stack(host.layers, host.queries or host.heads, axes, **{**known, **options})
