"""How far scores move when queries and keys are rounded to fewer bits, before an encoding acts on them or after.

A cache of keys is rounded before the turning (each head's channels keep their own range, and keys are turned when read) or after
it (what is stored is ready). KVQuant (Hooper 2024) and KIVI (Liu 2024) round keys with a scale a channel, and before, since turning
mixes a channel that is large with its partner. Q-ROAR (2025) finds that squeezed positions and rounding make each other worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ._check import choose
from .absolute import Absolute
from .bias import Bias
from .freqs import magnitudes
from .polar import Polar
from .rope import RoPE
from .rotation import Layout, Rotation

Format = Literal["fp16", "bf16", "int8", "e4m3", "e5m2", "int4"]
Per = Literal["token", "channel"]
When = Literal["before", "after"]
CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FORMATS: tuple[Format, ...] = get_args(Format)
WHENS: tuple[When, ...] = get_args(When)
TOPS: dict[Format, float] = {"int8": 127.0, "int4": 7.0, **{name: torch.finfo(CASTS[name]).max for name in ("e4m3", "e5m2")}}


@dataclass(frozen=True)
class ScoreError:
    """What rounding does to the scores of random queries and keys.

    - `relative`: root mean square of the error over that of the exact scores.
    - `tokens`: root mean square of the error over that of the change of the exact scores when the keys move by one token along the
      first axis: how many tokens of distance the error is worth. Infinite where nothing changes.
    - `shares`: the part of each band of frequencies, fastest first, in the mean square of the error; they add up to one.
    - `bands`: the same as `tokens` for the products of each band's channels by themselves.

    The last two are None for what does not turn pairs of channels.
    """

    relative: float
    tokens: float
    shares: tuple[float, ...] | None
    bands: tuple[float, ...] | None


def quantise(x: Tensor, format: Format, *, per: Per = "token") -> Tensor:
    """`x` `[.., N, D]` with each value rounded to the nearest that `format` can hold; same shape, same dtype.

    - `"fp16"`, `"bf16"`: cast there and back, without a scale (`per` has no meaning): beyond 65504, fp16 is infinite.
    - `"e4m3"`, `"e5m2"`: 8-bit floats of 3 and 2 bits of mantissa. x / s is rounded, s such that the largest value is 448, 57344.
    - `"int8"`, `"int4"`: s · round(x / s), symmetric: s such that the largest value is 127, 7. Ties go to the even number.

    s is one number a token (over its D channels) or one a channel (over the N tokens), kept in float32 or better. Zeros stay.
    """
    choose("format", format, FORMATS)
    over = {"token": -1, "channel": -2}[choose("per", per, get_args(Per))]
    if not x.is_floating_point():
        raise ValueError(f"x is {x.dtype}: give a floating-point tensor, whole numbers have nothing to round")
    if format not in TOPS:
        return x.to(CASTS[format]).to(x.dtype)
    work = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = work.abs().amax(dim=over, keepdim=True)  # [.., N, 1] or [.., 1, D]
    scale = torch.where(largest > 0, largest / TOPS[format], 1)
    held = (work / scale).round() if format.startswith("int") else (work / scale).to(CASTS[format]).to(work.dtype)
    return (held * scale).to(x.dtype)


@torch.no_grad()
def score_error(
    enc: Any,
    format: Format,
    *,
    extent: tuple[int, ...],
    when: When = "before",
    per: Per = "token",
    outliers: int = 0,
    size: float = 8.0,
    bands: int = 4,
    width: int = 64,
    tokens: int = 128,
    seed: int = 0,
) -> ScoreError:
    """The error of scores q k' / sqrt(D) of `tokens` random tokens of a grid `extent`, both q and k rounded to `format`.

    Queries and keys are normal; `outliers` of the keys' D channels, evenly spread, are `size` times larger. How an encoding is
    scaled for a larger grid is its own affair (`RoPE(.., scaling="pi", trained_extent=(16, 16))`).

    - rotary: rounded `when="before"` they are turned or `"after"`. The 16-bit formats, after, run as under autocast, for encodings
      that split channels there.
    - absolute: the code is added to normal tokens and both go through one fixed orthogonal projection `[C, C]`; there is one place.
    - bias, `width` channels a head: it is added to the scores as it is, and counts as a part of them; pairs that it hides do not.

    Bands: the pairs of a head by |w| of the trained frequencies, fastest first, in `bands` parts. The same arguments give the same
    numbers.
    """
    choose("when", when, WHENS)
    if getattr(enc, "prefix_tokens", 0):
        raise ValueError(f"prefix_tokens={enc.prefix_tokens}: all random tokens are of the grid; give an encoding without a prefix")
    draw = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randint(max(n - 1, 1), (tokens,), generator=draw) for n in extent], dim=-1)  # [N, A]
    step = torch.tensor([1, *(0 for _ in extent[1:])])
    here, there = enc.place(index, extent), enc.place(index + step, extent)
    channels = enc.dim if isinstance(enc, Absolute) else getattr(enc, "head_dim", width)
    q, k = torch.randn(2, 1, getattr(enc, "heads", None) or 1, tokens, channels, generator=draw)  # [1, H, N, D] each
    seen = partial(_attended, enc, q, k, _mixing(enc, channels, outliers, size, draw), extent, here)
    dots = partial(_dots, order=_order(enc, here, extent), bands=bands)
    exact = dots(*seen(here))  # [bands, 1, H, N, N]
    errors = dots(*seen(here, partial(quantise, format=format, per=per), when, CASTS.get(format, torch.float32))) - exact
    scores, changes = exact.sum(0), dots(*seen(there)) - exact
    if isinstance(enc, Bias):
        near, far = (enc(here, at, extent) * math.sqrt(channels) for at in (here, there))  # [H, N, N]
        scores, changes = scores + near, changes + far - near
    return _compare(errors, scores, changes)


def _mixing(enc: Any, channels: int, outliers: int, size: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """What makes tokens queries and keys, `[D, D]` each: a projection if absolute, and for keys the gain of each channel."""
    gain = torch.ones(channels)
    gain[torch.arange(outliers) * channels // max(outliers, 1)] = size
    mix = torch.linalg.qr(torch.randn(channels, channels, generator=draw))[0] if isinstance(enc, Absolute) else torch.eye(channels)
    return mix, mix * gain


def _attended(
    enc: Any,
    q: Tensor,
    k: Tensor,
    mix: tuple[Tensor, Tensor],
    extent: tuple[int, ...],
    here: Tensor,
    there: Tensor,
    hold: Callable[[Tensor], Tensor] = torch.clone,
    when: When = "before",
    arriving: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Queries at `here` and keys at `there` as attention has them, each rounded by `hold` once."""
    if isinstance(enc, Absolute):
        q, k = q + enc(here, extent), k + enc(there, extent)
    q, k = q @ mix[0], k @ mix[1]
    if isinstance(enc, (Absolute, Bias)):
        return hold(q), hold(k)
    if when == "before":
        q, k = hold(q), hold(k)
    with torch.autocast("cpu", arriving, enabled=when == "after" and arriving in (torch.float16, torch.bfloat16)):
        q, k = enc(here, extent).qk(q, k)[0], enc(there, extent).qk(q, k)[1]
    return (q, k) if when == "before" else (hold(q), hold(k))


def _order(enc: Any, here: Tensor, extent: tuple[int, ...]) -> tuple[Layout, Tensor] | None:
    """How channels make pairs, and the pairs of each head from the fastest on `[H|1, P]`; None for what has no such pairs."""
    if isinstance(enc, (Absolute, Bias)):
        return None
    rotation = enc(here, extent)
    polar = isinstance(rotation, Polar)  # each channel has a cosine and a sine
    if type(rotation) not in (Rotation, Polar) or rotation.cos.shape[-1] != enc.head_dim // (1 if polar else 2):
        return None
    order = enc.vectors().norm(dim=-1).argsort(dim=-1, descending=True, stable=True)
    return "half" if polar else rotation.layout, order


def _dots(q: Tensor, k: Tensor, order: tuple[Layout, Tensor] | None, bands: int) -> Tensor:
    """Products of queries and keys, the channels of each band by themselves: `[B, H, N, D]` twice -> `[bands, B, H, N, N]`."""
    q, k = q.double(), k.double()
    if order is None:
        return (q @ k.mT)[None]
    parts = [_sorted(x, *order).tensor_split(bands, dim=-2) for x in (q, k)]
    return torch.stack([a.flatten(-2) @ b.flatten(-2).mT for a, b in zip(*parts)])


def _sorted(x: Tensor, layout: Layout, order: Tensor) -> Tensor:
    """The pairs of each head `[B, H, N, P, 2]`, fastest first."""
    pairs = x.unflatten(-1, (-1, 2)) if layout == "interleaved" else x.unflatten(-1, (2, -1)).mT
    return pairs.take_along_dim(order[None, :, None, :, None], dim=-2)


def _compare(errors: Tensor, scores: Tensor, changes: Tensor) -> ScoreError:
    """The measures of errors and changes `[bands, 1, H, N, N]` and scores `[1, H, N, N]`, over the pairs that are not hidden."""
    visible = scores.isfinite() & changes.isfinite().all(0)
    errors, scores, changes = (torch.where(visible, x, 0) for x in (errors, scores, changes))
    total, change = errors.sum(0), changes.sum(0)
    square = total.square().sum()
    relative, tokens = (square / torch.stack((scores, change)).square().sum((1, 2, 3, 4))).sqrt().tolist()
    if len(errors) == 1:
        return ScoreError(relative, tokens, None, None)
    shares = (errors * total).sum((1, 2, 3, 4)) / square
    worth = (errors.square().sum((1, 2, 3, 4)) / changes.square().sum((1, 2, 3, 4))).sqrt()
    return ScoreError(relative, tokens, tuple(shares.tolist()), tuple(worth.tolist()))


def phase_error(dtype: torch.dtype | None, longest: int, *, pairs: int = 32, theta: float = 100.0) -> float:
    """The largest error, in radians up to pi, of an angle x w at positions x = 0 .. `longest`, w = theta^(-i / pairs).

    Positions, frequencies and their product are held in `dtype`; None is what `RoPE` does: angles in float64, tables in float32.
    """
    at, freqs = torch.arange(longest + 1, dtype=torch.float64), magnitudes(pairs, theta=theta)
    if dtype is None:
        rotation = RoPE(2 * pairs, 1, theta=theta)(at[:, None])
        made = torch.atan2(rotation.sin.double(), rotation.cos.double())  # [N, P]
    else:
        made = (at.to(dtype)[:, None] * freqs.to(dtype)).double()
    off = made - at[:, None] * freqs
    return (off - 2 * math.pi * (off / (2 * math.pi)).round()).abs().max().item()
