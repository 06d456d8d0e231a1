"""What the page knows of the library, as JSON: the wave vectors of every encoding, by axes and head width.

Of a geometric spectrum only the exponents are fixed: w_p = theta^(-e_p) u_p. The tables hold u `[H|1, P, A]` and e `[H|1, P]`,
found from the vectors that the library makes at two thetas, so that the page can take any theta. A head's unturned channels are
rows of zeros: a kernel is the mean over all pairs of a head.
"""

from __future__ import annotations

import base64
import inspect
import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..freqs import FAMILIES
from ..positions import modes
from ..presets import PRESETS
from ..presets.free import EndToEnd
from ..registry import ABSOLUTE, BIASES, ROTARY, Host, list_encodings, make, scalings
from ..scaling import RULES

WIDTHS = (16, 32, 48, 64, 72, 80, 96, 128)
HEADS = 6  # of the model in the page's code, ViT-S
AXES = {1: ("x",), 2: ("h", "w"), 3: ("t", "h", "w"), 4: ("t", "d", "h", "w")}
OFFERED = (*FAMILIES, "wavelet_rotary", "pope")
LEFT_OUT = {
    "none": "has no positions",
    **dict.fromkeys(ABSOLUTE, "is added to the tokens: it turns nothing"),
    **dict.fromkeys(BIASES, "is added to the scores: it turns nothing"),
    **dict.fromkeys(("liere", "comrope_ap", "comrope_ld"), "turns by matrices that have no wave vectors"),
    **dict.fromkeys(("string_cayley", "harope"), "starts as axial, in a basis that is learned"),
    "string_circulant": "starts as axial with one pair less, in a fixed basis",
    "hierarchical_rotary": "has scores that depend on which block a token is in, not on offsets alone",
    "fope": "mixes waves: its scores depend on both positions, not on offsets alone",
    "pape": "has parabolas in place of turns",
    "longrope": "is a scaling rule whose factors are searched for each model",
    "vjepa2_published": "turns the two channels of a pair by different angles",
}
LOW, HIGH = 100.0, 10000.0  # the two thetas that exponents are found from


class Pool:
    """Arrays as base64 of little-endian float64, each kept once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def add(self, values: Tensor) -> int:
        """Where these values are in the pool; rounded to 13 decimals, so that what is equal but for rounding is kept once."""
        plain = (values.double().round(decimals=13) + 0.0).contiguous()  # no negative zeros
        text = base64.b64encode(plain.numpy().astype("<f8").tobytes()).decode()
        return self.known.setdefault(text, len(self.known))


def names() -> list[str]:
    """What the page offers: encodings, then the presets that are not among them."""
    return [*OFFERED, *(name for name in PRESETS if name not in ROTARY and name not in LEFT_OUT)]


def build(name: str, axes: int, width: int, trained: tuple[int, ...], **options: Any) -> Any:
    """The encoding as `wrap` would make it for the first layer of ViT-S with heads of that width, in float64."""
    host = Host(HEADS * width, HEADS, width, 1, trained, 0)
    made = make(name, axes, host, learned=False, **options)
    return made[0] if isinstance(made, nn.ModuleList) else made


def rows(name: str, axes: int, width: int, **options: Any) -> Tensor:
    """Wave vectors `[H|1, P, A]`, as many as the head has pairs; one head where all are alike."""
    found = build(name, axes, width, (14,) * axes, **options).vectors().detach().double()
    found = nn.functional.pad(found, (0, 0, 0, max(width // 2 - found.shape[1], 0)))
    return found[:1] if bool((found == found[:1]).all()) else found


def spectrum(name: str, axes: int, width: int) -> tuple[Tensor, Tensor]:
    """u `[H|1, P, A]` and e `[H|1, P]` of w = theta^(-e) u; e is zero where theta has no meaning."""
    if name == "wavelet_rotary":
        u = rows(name, axes, width)
        return u, torch.zeros(u.shape[:2], dtype=torch.float64)
    low, high = (rows(name, axes, width, theta=theta) for theta in (LOW, HIGH))
    ratio = torch.where((low != 0).any(-1), low.norm(dim=-1) / high.norm(dim=-1), 1)  # [H|1, P]
    e = ratio.log() / math.log(HIGH / LOW)
    return low * LOW ** e[..., None], e


def theta_of(name: str, axes: int, width: int) -> float | None:
    """The theta an encoding has by default: what turns u into the vectors that the library makes without one."""
    u, e = spectrum(name, axes, width)
    if float(e.abs().max()) < 1e-9:
        return None
    ratio = torch.where(u.norm(dim=-1) > 0, u.norm(dim=-1) / rows(name, axes, width).norm(dim=-1), 1)
    at = e.abs().argmax()
    return float(f"{math.exp(float(ratio.log().flatten()[at] / e.flatten()[at])):.9g}")


def coordinates(name: str, axes: int) -> dict[str, Any]:
    """How positions of a grid are measured: a mode and a spacing an axis, and what the length is taken from."""
    first, other = (build(name, axes, 96, (n,) * axes) for n in (14, 15))
    given = first.coordinates
    spacing = given.get("spacing", 1.0)
    reference = given.get("reference")
    return {
        "modes": list(modes(given.get("normalize"), axes)),
        "spacing": list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * axes,
        "by": given.get("by", "axis"),
        "reference": "trained" if reference != other.coordinates.get("reference") else reference and list(reference),
        "ends": isinstance(first, EndToEnd),
    }


def variant(name: str, axes: int, pool: Pool) -> dict[str, Any]:
    """One encoding on that many axes, at each head width: `[u, e, heads]`, or why it does not take the width."""
    found: dict[str, Any] = {}
    for width in WIDTHS:
        try:
            u, e = spectrum(name, axes, width)
        except ValueError as error:  # the page says it when that width is chosen
            found[str(width)] = str(error)
        else:
            found[str(width)] = [pool.add(u), pool.add(e), u.shape[0]]
    own = build(name, axes, 96, (14,) * axes).scaling
    trained = PRESETS[name](96).trained_extent if own else None
    return {"theta": theta_of(name, axes, 96), "coordinates": coordinates(name, axes), "own": own, "trained": trained, "at": found}


def entry(name: str, pool: Pool) -> dict[str, Any]:
    """One encoding: what it is, and its vectors."""
    preset = PRESETS.get(name) if name not in ROTARY else None
    ranks = list(AXES) if preset is None or preset.axes is None else [preset.axes]
    maker: Any = ROTARY[name] if preset is None else preset.build
    text = inspect.getdoc(FAMILIES.get(name) or getattr(maker, "func", maker)) or ""
    return {
        "preset": preset is not None,
        "about": plain(text),
        "source": "" if preset is None else f"{preset.paper}; {preset.used_by}",
        "rules": [rule for rule in scalings(name) if rule != "longrope"],
        "axes": {str(axes): variant(name, axes, pool) for axes in ranks},
    }


def plain(text: str) -> str:
    """The first paragraph of a docstring without its marks and shapes."""
    first = " ".join(text.split("\n\n")[0].split())
    return re.sub(r" -> `\[[^`]*\]`", "", first).replace("`", "")


def options(rule: str) -> dict[str, float | None]:
    """The numbers a rule takes, with its defaults."""
    parameters = inspect.signature(RULES[rule]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def tables() -> dict[str, Any]:
    """All of it."""
    pool = Pool()
    encodings = {name: entry(name, pool) for name in names()}
    known = {*list_encodings(), *PRESETS, *RULES}
    return {
        "version": __version__,
        "widths": WIDTHS,
        "heads": HEADS,
        "axes": {str(axes): letters for axes, letters in AXES.items()},
        "rules": {rule: options(rule) for rule in RULES if rule != "longrope"},
        "encodings": encodings,
        "left_out": {name: why for name, why in LEFT_OUT.items() if name in known},
        "pool": list(pool.known),
    }
