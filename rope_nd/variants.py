"""Rotary encodings beyond the plain one: each is a `RoPE` that overrides what differs, so that whatever takes a RoPE takes it.

Here are those that turn as RoPE does with other tables (hierarchical, wavelet, FoPE), and what the ones with tensors of their own
share. Those that make queries and keys wider have a file each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ._check import choose, per_axis
from .positions import Extent, as_positions, sizes, wide
from .rope import RoPE
from .rotation import Rotation
from .scaling import turns

Within = Literal["offset", "position"]


class HierarchicalRoPE(RoPE):
    """Blocks and places within them: slow pairs see which block a token is in, fast pairs where in it (after HiRoPE, Zhang 2024).

    With B = `block` (units of position, one number or one an axis) and r = |(B_a w_a)_a| / 2 pi the turns of a pair over a block:

        angle = <w, B floor(x / B)>  if r < slow,  else  <w, x mod B>  (within="offset")  or  <w, x>  (within="position")

    The paper's slow pairs count blocks (functions of a program), and take indices in place of positions in a trained text model.
    Here a block is a box of the grid, measured in units of position, so that a frequency keeps its meaning; scaling rules act on
    the frequencies and leave blocks and the choice of slow pairs as they are. For coordinates with a natural grain: cells of a
    mosaic, tiles of a large scan, windows.

    Scores depend on differences of coordinates only under shifts by whole blocks; with `"position"`, the fast pairs' share of
    them under every shift. Plain RoPE is the limit of large blocks: exactly so from B_a = 2 pi slow / |w_a| on for the slowest pair
    of each axis (of axial frequencies), for coordinates in [0, B) with `"offset"`, for all with `"position"`.
    A coordinate within 1e-5 blocks below a border belongs to the next block, so that rounding does not matter.
    """

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str | Tensor = "axial",
        *,
        block: float | tuple[float, ...] = 4.0,
        within: Within = "offset",
        slow: float = 0.25,
        **options: Any,
    ) -> None:
        super().__init__(head_dim, axes, freqs, **options)
        self.block, self.slow = per_axis("block", block, axes), slow
        self.within = choose("within", within, get_args(Within))
        if min(self.block) <= 0 or slow < 0:
            raise ValueError(
                f"block={block!r} must be positive, in units of position, and slow={slow!r} at least 0, in turns a block"
            )

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Rotation:
        points = as_positions(positions, self.axes)
        block = points.new_tensor(self.block)  # [A]
        start = (points / block + 1e-5).floor() * block  # [.., N, A]
        coarse = super().forward(start, extent)
        fine = super().forward(points - start if self.within == "offset" else points, extent)
        slow = turns(self.vectors(), block) < self.slow  # [H|1, P]
        which = slow[0] if slow.shape[0] == 1 else slow[:, None]  # as it broadcasts against [.., N, P]
        return replace(fine, cos=torch.where(which, coarse.cos, fine.cos), sin=torch.where(which, coarse.sin, fine.sin))


def octaves(n: int, *, shortest: float = 2.0, voices: int = 1) -> Tensor:
    """A dyadic ladder of `n` angular frequencies, fastest first: 2 pi / (shortest 2^(i / voices)), i = 0 .. n - 1."""
    return 2 * math.pi / (shortest * 2 ** (torch.arange(n, dtype=torch.float64, device="cpu") / voices))


class WaveletRoPE(RoPE):
    """Scales that double, like those of a wavelet bank: periods of 2, 4, 8, .. tokens on every axis.

        w_i = 2 pi / (shortest 2^(i / voices))        i = 0 .. F_a - 1 for the F_a pairs of axis a

    `shortest`: the shortest period in units of position; `voices`: steps an octave, for more pairs than octaves (16 pairs an axis
    reach 2^16 tokens at one voice, 27 at four). The idea of scales is that of wavelet position encodings (Oka 2025), which shift
    and stretch a wave of finite length; here waves go on for ever. It is linear in the position, so all scaling rules apply.

    This is the geometric schedule and no other: base 2^(F_a / voices), times 2 pi / shortest. What differs from RoPE with another
    theta: the base follows from the number of pairs, so neighbours are an octave apart at any head width; the fastest pair has a
    period of 2 tokens, not 2 pi; with one voice all periods are whole tokens, so that phases repeat exactly. At a period of two
    tokens a pair tells even offsets from odd ones, and not left from right. For images whose structure has no preferred scale.
    """

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str = "axial",
        *,
        shortest: float = 2.0,
        voices: int = 1,
        **options: Any,
    ) -> None:
        told = sorted({"theta", "schedule", "wavelength", "max_freq"} & options.keys())
        if told:
            raise ValueError(f"{told[0]}={options[told[0]]!r}: octaves set the whole schedule; give shortest and voices instead")
        if not shortest > 0 or isinstance(voices, bool) or not isinstance(voices, int) or voices < 1:
            raise ValueError(f"shortest={shortest!r} must be a positive period, voices={voices!r} a whole number of at least 1")
        super().__init__(head_dim, axes, freqs, schedule=partial(octaves, shortest=shortest, voices=voices), **options)


class Equipped(RoPE):
    """A RoPE with tensors of its own beside the frequencies, heads first `[H|1, ..]`.

    Learned ones are float32 parameters that do not decay, fixed ones float32 buffers outside the state dict; neither loses
    precision to a cast, and `reset_parameters` gives all of them their first values again.
    """

    _starts: tuple[tuple[str, Tensor], ...] = ()

    def _equip(self, learned: bool = True, **starts: Tensor) -> None:
        self._starts += tuple(starts.items())
        for name, start in starts.items():
            empty = torch.empty(start.shape, dtype=torch.float32)
            if learned:
                self.register_parameter(name, nn.Parameter(empty))
            else:
                self.register_buffer(name, empty, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            for name, start in self._starts:
                getattr(self, name).copy_(start)

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Equipped:
        super()._apply(fn, recurse)
        for name, start in self._starts:
            if name in self._buffers:
                self._buffers[name] = start.to(self.freqs.device, torch.float32)
        return self


class FoPE(Equipped):
    """Fourier position embedding (Hua 2024, ICML 2025): each pair is turned by a mixture of waves in place of one.

        (q_2f + i q_2f+1)' = (q_2f + i q_2f+1) sum_j a_fj e^(i <w_j, x>)        a = I + N(0, sigma), w_j = 0 below one turn

    Layers before attention mix frequencies, says the paper, so a pair should expect a series. Waves that turn less than
    `min_turns` times over the trained extent were never seen whole; they stand still (w_j = 0, a constant in the sum).
    `mixture` a is `[H|1, P, P]`, one a head if `heads` is given, over the pairs of all axes; fixed by `seed` as published, or
    learned from there (`learned_mixture`). sigma 0.05 is our choice: at 32 pairs the noise has 0.28 the strength of the wave.

    Neither norms nor differences are kept: scores depend on both coordinates where a differs from I. At sigma 0 this is RoPE with
    `scaling={"truncate": {"min_turns": 1}}`. Scaling rules act on the waves that are left. For training short and testing long.
    Token grids are short: of 16 pairs an axis at theta 100, 13 turn less than once over 14 tokens and would stand still; use a
    lower `min_turns` or a smaller theta there.
    """

    mixture: Tensor

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str | Tensor = "axial",
        *,
        trained_extent: tuple[int, ...] | None = None,
        sigma: float = 0.05,
        min_turns: float = 1.0,
        learned_mixture: bool = False,
        heads: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if trained_extent is None:
            raise ValueError("trained_extent=None: FoPE stills the waves that turn too little over it; give tokens an axis")
        if sigma < 0 or min_turns < 0:
            raise ValueError(f"sigma={sigma!r} and min_turns={min_turns!r} must be at least 0")
        super().__init__(head_dim, axes, freqs, trained_extent=trained_extent, heads=heads, seed=seed, **options)
        self.min_turns = min_turns
        noise = sigma * normal(seed, heads or 1, self.pairs, self.pairs)  # [H|1, P, P]
        self._equip(learned_mixture, mixture=torch.eye(self.pairs, dtype=torch.float64, device="cpu") + noise)

    def vectors(self) -> Tensor:
        """The wave vectors in use `[H|1, P, A]`: those that turn too little over the trained extent are zero."""
        trained = self.trained_extent or (1,) * self.axes
        length = sizes(trained, self.freqs.device) * self._steps(trained)  # [A], in units of position
        return torch.where(turns(self.freqs, length)[..., None] < self.min_turns, 0, self.freqs)

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Rotation:
        waves = super().forward(positions, extent)
        return replace(waves, cos=mix(waves.cos, self.mixture), sin=mix(waves.sin, self.mixture), circle=False)


def mix(table: Tensor, weights: Tensor) -> Tensor:
    """sum_j a_fj t_j, out of autocast's reach: tables `[.., N, P]` and weights `[H|1, P, P]` -> `[.., N, P]` or `[.., H, N, P]`."""
    kind, result = wide(table.device), torch.promote_types(table.dtype, weights.dtype)
    a, t = (weights[0] if weights.shape[0] == 1 else weights).to(kind), table.to(kind)
    if kind == torch.float64:
        return (t @ a.mT).to(result)  # autocast lowers float32 products, not these
    return (t[..., None, :] * a[..., None, :, :]).sum(-1).to(result)


def fitted(rotation: Rotation, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The tables of a rotation as they broadcast against `x` without its prefix tokens; tokens and channels are counted."""
    if x.shape[-2] != rotation.tokens or x.shape[-1] != width:
        raise ValueError(
            f"x of shape {list(x.shape)} has {x.shape[-2]} tokens of {x.shape[-1]} channels, the rotation is for "
            f"{rotation.cos.shape[-2]} and {rotation.prefix_tokens} prefix tokens of {width}: check extent, prefix_tokens, head_dim"
        )
    return rotation._tables(x.shape)


def per_head(values: Tensor, x: Tensor) -> Tensor:
    """What each head has, `[H|1, ..]`, as it broadcasts against `x` `[B, H, N, D]`; repeated for grouped queries."""
    own = values.shape[0]
    if own == 1:
        return values[0]
    if x.shape[-3] % own:
        raise ValueError(f"x has {x.shape[-3]} heads, the encoding {own}: the one must be a multiple of the other")
    return values.repeat_interleave(x.shape[-3] // own, 0)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator(device="cpu").manual_seed(seed), dtype=torch.float64, device="cpu")


def whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
    return value
