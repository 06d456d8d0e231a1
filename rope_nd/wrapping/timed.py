"""Time for a model that turns by height and width already: its own wave vectors, and a third component."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._check import choose
from ..freqs import magnitudes
from ..registry import Host
from ..rope import RoPE
from ..variants import Equipped
from .inflation import Inflation


class Timed(Equipped):
    """A model's wave vectors `(w_h, w_w)` with a component of time, `(time, w_h, w_w)`, learned and float32.

    `time`: its start, `[H|1, P]`. With `alone`, pairs whose component of time is not zero turn by time and nothing else.
    """

    time: Tensor

    def __init__(self, space: RoPE, time: Tensor, *, alone: bool = False, learned: bool = True, **options: Any) -> None:
        flat = space.vectors().detach()  # [H|1, P, 2]
        super().__init__(space.head_dim, 3, nn.functional.pad(flat, (1, 0)), layout=space.layout, **options)
        self.space, self.alone = space, alone
        self._equip(learned, time=time)

    def vectors(self) -> Tensor:
        flat = self.space.vectors()  # [H|1, P, 2]
        time = self.time.to(flat)[..., None]  # [H|1, P, 1]
        if self.alone:
            flat, time = torch.where(time != 0, 0, flat), torch.where(time != 0, time, 0)  # the others learn no time
        heads = max(len(flat), len(time))
        return torch.cat((time.expand(heads, -1, -1), flat.expand(heads, -1, -1)), dim=-1)


def slowest(flat: Tensor, share: float, theta: float) -> Tensor:
    """The component of time `[H|1, P]` where it takes over the slowest pairs of `flat` `[H|1, P, 2]`, this share of them.

    Of n pairs taken over the i-th fastest gets theta^(-i / n) radians a token; the others have zero, and keep what they had.
    """
    if not 0 < share < 1 or not theta > 0:
        raise ValueError(f"time_share={share!r} must be between 0 and 1, time_theta={theta!r} a positive base")
    count = max(1, round(share * flat.shape[-2]))
    taken = flat.norm(dim=-1).argsort(dim=-1, stable=True)[:, :count].flip(-1)  # [H|1, n], the fastest first
    speed = magnitudes(count, theta=theta).to(flat).expand(taken.shape)
    return torch.zeros_like(flat[..., 0]).scatter(-1, taken, speed)


def with_time(flat: nn.Module, host: Host, given: Inflation | None, **options: Any) -> nn.Module:
    """The model's own rotation `flat` (a `RoPE` of two axes, or one a layer) with axes (t, h, w).

    `given.time`: `"added"`, `"slowest"`, see `wrap`; without `given`, time turns nothing.
    """
    each: list[Any] = list(flat) if isinstance(flat, nn.ModuleList) else [flat]
    options = {"coordinates": lifted(each[0].coordinates), **options}
    how = None if given is None else given.time or "added"
    if how == "added":
        start = torch.zeros(host.heads, each[0].pairs)
        layers = each if len(each) > 1 else each * host.layers
        return nn.ModuleList(Timed(rope, start, **options) for rope in layers)
    if how is None or given is None:
        starts = [torch.zeros(1, rope.pairs) for rope in each]
    else:
        share = 0.25 if given.time_share is None else given.time_share
        theta = 100.0 if given.time_theta is None else given.time_theta
        starts = [slowest(rope.vectors().detach(), share, theta) for rope in each]
    made = [Timed(rope, s, alone=how is not None, learned=how is not None, **options) for rope, s in zip(each, starts)]
    if isinstance(flat, nn.ModuleList):
        return nn.ModuleList(made)
    first = made[0]
    return RoPE(first.head_dim, 3, first.vectors().detach(), layout=first.layout, **options)  # nothing in it is learned


def check_time(given: Inflation | None, turns: bool) -> None:
    """Raise ValueError for choices of time that have no meaning: the model turns nothing, or nothing is taken over."""
    for name in ("time", "time_share", "time_theta"):
        value = getattr(given, name, None)
        if value is None:
            continue
        if not turns:
            raise ValueError(f"{name}={value!r} is for encoding 'native' of a model that turns by height and width: leave it out")
        if name == "time":
            choose("time", value, ("added", "slowest"))
        elif getattr(given, "time", None) != "slowest":
            raise ValueError(f"{name}={value!r} is for time='slowest'")


def lifted(coordinates: dict[str, Any]) -> dict[str, Any]:
    """`grid`'s choices for height and width, with time counted in tokens from zero."""
    found = dict(coordinates)
    if "offset" in found:
        offset = found["offset"]
        found["offset"] = (0.0, *(offset if isinstance(offset, (tuple, list)) else (offset, offset)))
    if found.get("normalize") is not None:
        mode = found["normalize"]
        found["normalize"] = ("index", *((mode, mode) if isinstance(mode, str) else mode))
    if found.get("reference") is not None:
        found["reference"] = (1, *found["reference"])
    return found


def lifted_augmentation(drawn: dict[str, float]) -> dict[str, Any]:
    """A model's own augmentation of height and width, which leaves time where it is; a rescaling is of all axes."""
    still = {"shift": 0.0, "jitter": 1.0}
    return {name: (still[name], value, value) if name in still else value for name, value in drawn.items()}
