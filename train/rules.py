"""Rules: how a trained model is tested, and which ways mean anything for an encoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import nn

from rope_nd.pyramid import READINGS, Pyramid
from rope_nd.registry import scalings
from rope_nd.scaling import RULES, Scaling

TIME = "time "  # before the name of a scaling: along the first of three axes alone


class Rule(NamedTuple):
    """A scaling or a reading, a temperature, and positions counted in tokens ("index") or at the true spacing ("units")."""

    scaling: str = "none"
    temperature: str = "none"
    positions: str = "index"


def reader(model: nn.Module, rule: Rule, size: Sequence[int], rest: int | None) -> nn.Module:
    """The model as a rule reads with it: the whole input at once, or windows of the training size (`rest`: its last class)."""
    scales = READINGS.get(rule.scaling)
    return model if scales is None else Pyramid(model, size, scales=scales, rest=rest)


def scaling_of(name: str) -> Scaling:
    """A scaling as `wrap` takes it; `"time yarn"` is YaRN along time, and nothing along the other axes."""
    if name in READINGS:
        return "none"
    return [name.removeprefix(TIME), "none", "none"] if name.startswith(TIME) else name


def usable(encoding: str, rules: Iterable[Sequence[str]]) -> list[Rule]:
    """The rules that mean anything for an encoding: tables can only be stretched, no positions not at all, timm is left alone."""
    known = {"timm": ("none",), "native": ("none", *RULES)}.get(encoding) or scalings(encoding)
    along = () if encoding == "swin" else tuple(TIME + name for name in known)  # its table is stretched as a whole
    return [
        rule
        for rule in (Rule(*given) for given in rules)
        if rule.scaling in (*known, *along, *READINGS)
        and (encoding != "timm" or rule.temperature == "none")
        and ((encoding not in ("none", "timm") and rule.scaling not in READINGS) or rule.positions == "index")
    ]
