"""Which way each pair looks: wave vectors `freqs` `[H|1, P, A]` in radians per unit of position, float64.

A head of width D = 2P is P planes; plane f at position x turns by the angle <w_f, x>. Every rotary family is a choice of
the rows w_f: along one axis (axial), or in any direction (mixed, golden, simplex, spiral). A zero row is a pair that is
not rotated. All functions are pure, build on the CPU whatever the default device, and take `pairs` and `axes` first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ._check import check_options, choose, per_axis

Schedule = Literal["geometric", "wavelength", "pixel", "log-pixel"]
Leftover = Literal["spread", "unrotated"] | int
Numbers = float | Sequence[float]


def magnitudes(
    n: int,
    *,
    schedule: Schedule | Callable[[int], Tensor] = "geometric",
    theta: float = 100.0,
    wavelength: tuple[float, float] | None = None,
    max_freq: float | None = None,
) -> Tensor:
    """`n` angular frequencies `[n]`, i = 0 .. n - 1, in radians per unit of position.

    - `"geometric"`: theta^(-i/n), fastest first (Vaswani 2017, RoFormer 2021; theta 10000 for text, 100 for images).
    - `"wavelength"`: 2 pi / lambda_i, lambda log-spaced over `wavelength=(shortest, longest)`, both ends met (DINOv3 periods).
    - `"pixel"`: pi · linspace(1, max_freq / 2, n), for coordinates in (-1, 1), slowest first (timm, lucidrains).
    - `"log-pixel"`: pi · 2^linspace(0, log2(max_freq) - 1, n).
    - a function `n -> [n]` for anything else.
    """
    if callable(schedule):
        made = schedule(n).to("cpu", torch.float64)
        if made.shape != (n,):
            raise ValueError(f"schedule({n}) returned shape {list(made.shape)}: it must return [{n}]")
        return made
    name = choose("schedule", schedule, get_args(Schedule))
    at = torch.arange(n, dtype=torch.float64, device="cpu")  # [n]
    if name == "geometric":
        if not isinstance(theta, (int, float)) or not theta > 0:
            raise ValueError(f"theta={theta!r}: the base of a geometric schedule must be one positive number")
        return theta ** (-at / n)
    part = at / max(n - 1, 1)  # 0 .. 1
    if name == "wavelength":
        if wavelength is None or not 0 < min(wavelength) or len(wavelength) != 2:
            raise ValueError(f"wavelength={wavelength!r}: give (shortest, longest), both positive, in units of position")
        shortest, longest = (math.log(w) for w in wavelength)
        return 2 * math.pi * torch.exp(-(shortest + part * (longest - shortest)))
    if max_freq is None or not max_freq >= 2:
        raise ValueError(f"max_freq={max_freq!r}: the {name} schedule needs max_freq of at least 2, for example 224")
    if name == "pixel":
        return math.pi * (1 + part * (max_freq / 2 - 1))
    return math.pi * 2 ** (part * (math.log2(max_freq) - 1))


def split_pairs(pairs: int, axes: int, leftover: Leftover = "spread", split: Sequence[int] | None = None) -> tuple[int, ...]:
    """How many pairs each axis gets. What is left when `pairs` is no multiple of `axes` goes where `leftover` says:

    `"spread"`: one each to the first axes; `"unrotated"`: to none; an axis index: all to that axis. `split` gives the counts
    outright; pairs beyond their sum stay unrotated. Raises ValueError when an axis would get none.
    """
    if split is not None:
        counts = tuple(split)
        if len(counts) != axes or any(not isinstance(n, int) or n < 1 for n in counts) or sum(counts) > pairs:
            raise ValueError(f"split={split!r}: give {axes} counts of at least 1 whose sum is at most {pairs} pairs")
        return counts
    if pairs < axes:
        raise ValueError(
            f"head_dim={2 * pairs} has {pairs} pairs for axes={axes}: axial frequencies need a pair for each axis; "
            f"the nearest width that works is head_dim={2 * axes}"
        )
    each, left = divmod(pairs, axes)
    counts_ = [each] * axes
    if isinstance(leftover, int) and not isinstance(leftover, bool):
        if not -axes <= leftover < axes:
            raise ValueError(f"leftover={leftover}: there is no such axis among {axes}")
        counts_[leftover] += left
    elif choose("leftover", leftover, ("spread", "unrotated")) == "spread":
        for axis in range(left):
            counts_[axis] += 1
    return tuple(counts_)


def _along(axes: int, counts: Sequence[int], pairs: int, theta: Numbers, options: dict[str, object]) -> Tensor:
    rows = torch.zeros(pairs, axes, dtype=torch.float64, device="cpu")  # [P, A]
    start = 0
    for axis, (n, base) in enumerate(zip(counts, per_axis("theta", theta, axes))):
        rows[start : start + n, axis] = magnitudes(n, theta=base, **options)  # type: ignore[arg-type]
        start += n
    return rows


def axial(
    pairs: int,
    axes: int,
    *,
    theta: Numbers = 100.0,
    leftover: Leftover = "spread",
    split: Sequence[int] | None = None,
    **schedule: object,
) -> Tensor:
    """Disjoint subspaces: each pair looks along one axis, each axis has the whole spectrum (ViT axial RoPE) -> `[1, P, A]`.

    w = theta_a^(-i / F_a) e_a for the i-th of the F_a pairs of axis a; blocks in axis order, unrotated pairs last.
    `theta` may be one number an axis; the rest goes to `magnitudes`. See `split_pairs` for what happens to leftover pairs.
    """
    return _along(axes, split_pairs(pairs, axes, leftover, split), pairs, theta, schedule)[None]


def interleaved(pairs: int, axes: int, *, theta: float = 100.0, **schedule: object) -> Tensor:
    """One spectrum over all pairs, dealt to the axes in turn (interleaved M-RoPE): theta^(-p/P) e_(p mod A) -> `[1, P, A]`."""
    split_pairs(pairs, axes)
    turn = torch.eye(axes, dtype=torch.float64, device="cpu").repeat(-(-pairs // axes), 1)[:pairs]  # [P, A]
    return (turn * magnitudes(pairs, theta=theta, **schedule)[:, None])[None]  # type: ignore[arg-type]


def fastest(freqs: Tensor, keep: float) -> Tensor:
    """The fastest floor(keep · n) of the n pairs that look (mostly) along each axis; the others zero, no longer rotated.

    p-RoPE (Barbero 2025) for any wave vectors `[H|1, P, A]`: what is kept stays as it is, with the exponents of the whole width.
    """
    if not 0 <= keep <= 1:
        raise ValueError(f"keep={keep}: give a share between 0 and 1")
    size, along = freqs.norm(dim=-1), freqs.abs()  # what is equal but for rounding is equal: of equals the first
    axis = (along >= (1 - 1e-6) * along.amax(-1, keepdim=True)).int().argmax(-1)  # [H, P], as size
    alike = (axis[:, :, None] == axis[:, None, :]) & (size > 0)[:, None, :]  # [H, P, P]
    at = torch.arange(freqs.shape[-2], device=freqs.device)
    mine, other = size[:, :, None], size[:, None, :]
    near = (other - mine).abs() <= 1e-6 * mine
    before = torch.where(near, at < at[:, None], other > mine)  # [H, P, P], faster
    rank, count = (alike & before).sum(-1), alike.sum(-1)  # [H, P], 0 is the fastest
    return torch.where((rank < torch.floor(keep * count + 1e-9))[..., None], freqs, 0)


def rotations(count: int, axes: int, seed: int) -> Tensor:
    """`count` random rotations, uniform in SO(A): `[count, A, A]`, reproducible from `seed`."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    normal = torch.randn(count, axes, axes, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(normal)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]  # Haar over O(A)
    q[:, :, -1] *= torch.linalg.det(q).sign()[:, None]
    return q


def mixed(pairs: int, axes: int, *, heads: int = 1, theta: float = 10.0, seed: int = 0, **schedule: object) -> Tensor:
    """The initialisation of RoPE-Mixed (Heo 2024, ECCV), for any number of axes -> `[H, P, A]`; meant to be learned.

    Each head turns the axial frame by its own random rotation Q_h: w = m_i Q_h e_k, m_i = theta^(-i / F_k). With two axes
    this is the paper's: m_i (cos a, sin a) in the first half, m_i (-sin a, cos a) in the second, a ~ U(0, 2 pi) a head.
    """
    counts = [pairs // axes + (k < pairs % axes) for k in range(axes)]
    return _along(axes, counts, pairs, theta, schedule) @ rotations(heads, axes, seed).mT  # [H, P, A]


def directions(count: int, axes: int) -> Tensor:
    """`count` unit vectors `[count, A]` spread evenly with low discrepancy, whatever prefix of them is taken.

    Two axes: angles k pi / phi, phi the golden ratio. More: frac(k alpha) with alpha_j = phi_A^(-j), phi_A the root of
    x^(A+1) = x + 1, through the normal quantile onto the sphere (Xiong, "golden gate RoPE").
    """
    k = torch.arange(1, count + 1, dtype=torch.float64, device="cpu")  # [count]
    if axes == 1:
        return torch.ones(count, 1, dtype=torch.float64, device="cpu")
    if axes == 2:
        angle = k * math.pi * 2 / (1 + math.sqrt(5))
        return torch.stack((angle.cos(), angle.sin()), -1)
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (axes + 1))
    alpha = root ** -torch.arange(1, axes + 1, dtype=torch.float64, device="cpu")  # [A]
    normal = torch.erfinv(2 * (k[:, None] * alpha % 1) - 1)  # [count, A]
    return normal / normal.norm(dim=-1, keepdim=True)


def golden(pairs: int, axes: int, *, heads: int = 1, theta: float = 100.0, **schedule: object) -> Tensor:
    """Evenly spread fixed directions, one sequence running across heads and pairs (golden-gate RoPE) -> `[H, P, A]`."""
    size = magnitudes(pairs, theta=theta, **schedule)  # type: ignore[arg-type]  # [P]
    return directions(heads * pairs, axes).view(heads, pairs, axes) * size[:, None]


def spiral(pairs: int, axes: int, *, ways: int | None = None, theta: float = 100.0, **schedule: object) -> Tensor:
    """`ways` directions, each with a group of pairs and the whole spectrum (Spiral RoPE) -> `[1, P, A]`.

    Two axes: directions at angles pi k / ways, as published; other ranks take them from `directions`. By default two ways
    an axis, fewer where there are not pairs enough. Leftover pairs go one each to the first groups.
    """
    count = min(2 * axes, pairs) if ways is None else ways
    if not 1 <= count <= pairs:
        raise ValueError(f"ways={ways}: give from 1 to {pairs} directions, one pair each at the least")
    angle = torch.arange(count, dtype=torch.float64, device="cpu") * (math.pi / count)
    toward = torch.stack((angle.cos(), angle.sin()), -1) if axes == 2 else directions(count, axes)  # [K, A]
    groups = [pairs // count + (k < pairs % count) for k in range(count)]
    rows = [magnitudes(n, theta=theta, **schedule)[:, None] * toward[k] for k, n in enumerate(groups)]  # type: ignore[arg-type]
    return torch.cat(rows)[None]


def simplex(pairs: int, axes: int, *, heads: int = 1, theta: float = 100.0, seed: int = 0, **schedule: object) -> Tensor:
    """A + 1 directions of a regular simplex at each scale, turned at random (nD-RoPE) -> `[H, P, A]`.

    w = r_s R_s u_i with sum u_i = 0 and <u_i, u_j> = -1/A, so that sum w w' is a multiple of the identity. Pairs beyond a
    multiple of A + 1 stay unrotated (head width 64 in two dimensions: two of them).
    """
    scales = pairs // (axes + 1)
    if scales == 0:
        raise ValueError(f"{pairs} pairs: simplex directions on {axes} axes need {axes + 1}; head_dim={2 * (axes + 1)} works")
    centred = torch.eye(axes + 1, dtype=torch.float64, device="cpu") - 1 / (axes + 1)
    corners = torch.linalg.eigh(centred)[1][:, 1:] * math.sqrt((axes + 1) / axes)  # [A + 1, A], unit rows
    turn = rotations(heads * scales, axes, seed).view(heads, scales, 1, axes, axes)
    size = magnitudes(scales, theta=theta, **schedule)[:, None, None]  # type: ignore[arg-type]  # [S, 1, 1]
    rows = (turn @ corners[..., None])[..., 0] * size  # [H, S, A + 1, A]
    return torch.nn.functional.pad(rows.flatten(1, 2), (0, 0, 0, pairs - scales * (axes + 1)))


FAMILIES: dict[str, Callable[..., Tensor]] = {
    "axial": axial,
    "interleaved": interleaved,
    "mixed": mixed,
    "golden": golden,
    "simplex": simplex,
    "spiral": spiral,
}


def vectors(
    freqs: str | Tensor, pairs: int, axes: int, *, theta: object, heads: int | None, seed: int, **options: object
) -> Tensor:
    """Wave vectors `[H|1, P, A]`, float64, on the CPU: of a family by name with its options, or those given, checked."""
    if isinstance(freqs, Tensor):
        given = freqs.detach().to("cpu", torch.float64)
        rows = given[None] if given.ndim == 2 else given
        if rows.ndim != 3 or rows.shape[1:] != (pairs, axes) or rows.shape[0] not in (1, heads or rows.shape[0]):
            raise ValueError(
                f"freqs of shape {list(freqs.shape)}: expected [{heads or 'H'} or 1, {pairs}, {axes}] (head, pair, axis)"
            )
        if theta is not None or options:
            raise ValueError(f"freqs are given as a tensor: theta={theta!r} and {sorted(options)} have no meaning beside it")
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("freqs hold NaN or infinity: give finite wave vectors")
        return rows
    family = FAMILIES[choose("freqs", freqs, FAMILIES)]
    takes = inspect.signature(family).parameters
    check_options(f"freqs {freqs!r}", options, family, magnitudes)
    extra = {"theta": theta, "heads": heads, "seed": seed if "seed" in takes else None}
    return family(pairs, axes, **options, **{n: v for n, v in extra.items() if v is not None and (n != "heads" or n in takes)})
