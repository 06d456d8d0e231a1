"""Tables of whole grids: trigonometry along each axis where pairs look along one, and kept until something changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from .positions import wide
from .rotation import Rotation, angles

KEPT = 4  # grids at a time
State = Tensor | tuple[int, int]


def looks_along_axes(freqs: Tensor) -> bool:
    """Whether each pair of `freqs` `[H|1, P, A]` looks along one axis at the most, the same in all heads."""
    return bool(((freqs != 0).any(0).sum(-1) <= 1).all())


def axial_tables(columns: Sequence[Tensor], freqs: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin `[H|1, N, P]` of a grid with coordinates `columns` (A of `[N_a]`), for pairs that look along one axis each.

    cos and sin of N_1 + .. + N_A places an axis, spread over the N_1 · .. · N_A tokens: the same bits as token by token.
    """
    heads, pairs, _ = freqs.shape
    extent, axis = [len(column) for column in columns], freqs.abs().amax(0).argmax(-1)  # [P]
    cos, sin = (torch.empty((heads, *extent, pairs), device=freqs.device, dtype=torch.float32) for _ in range(2))
    for a, column in enumerate(columns):
        mine = (axis == a).nonzero().flatten().tolist()
        if not mine:
            continue
        along = Rotation.from_angles(angles(column[:, None].to(wide(column.device)), freqs[:, mine, a, None]))
        shape = (heads, *(n if b == a else 1 for b, n in enumerate(extent)), len(mine))
        at = slice(mine[0], mine[-1] + 1) if mine[-1] - mine[0] + 1 == len(mine) else mine
        cos[..., at], sin[..., at] = along.cos.view(shape), along.sin.view(shape)
    return cos.flatten(1, -2), sin.flatten(1, -2)


class Shelf:
    """The last few rotations of a module, each found by all that it was made of. A copy of the module begins with none."""

    def __init__(self) -> None:
        self.found: dict[Hashable, tuple[Tensor, State, Rotation]] = {}

    def get(self, key: Hashable, freqs: Tensor, make: Callable[[], Rotation]) -> Rotation:
        """The rotation of that key, made anew if `freqs` is another tensor than then, or holds something else.

        Made outside inference mode: a table that is kept serves training too.
        """
        kept = self.found.get(key)
        if kept is not None and kept[0] is freqs and _same(kept[1], freqs):
            return kept[2]
        with torch.inference_mode(False), torch.no_grad():
            state = freqs.detach().clone() if seen(freqs) else (freqs._version, freqs.data_ptr())
            made = make()
        for old in list(self.found)[: 1 - KEPT or None]:  # a copy: other threads may put and take meanwhile
            self.found.pop(old, None)
        self.found[key] = (freqs, state, made)
        return made

    def __reduce__(self) -> tuple[type[Shelf], tuple[()]]:
        return Shelf, ()


def seen(freqs: Tensor) -> bool:
    """Whether values can be looked at without waiting for a device."""
    return freqs.device.type == "cpu"


def _same(state: State, freqs: Tensor) -> bool:
    """By what is in them; on other devices by what PyTorch counts, which writes through `freqs.data` escape."""
    if isinstance(state, Tensor):
        return torch.equal(state, freqs.detach())
    return state == (freqs._version, freqs.data_ptr())
