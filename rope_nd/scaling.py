"""How far we stretch: rules that change wave vectors for extents above the trained one, and a softmax temperature.

A rule is `rule(freqs [H|1, P, A], scale [A], length [A]) -> [H|1, P, A]`: `scale` holds s_a = max(1, extent_a / trained_a),
`length` the trained extent in units of position. Rules know vectors, not axes or bases, so they serve every family.
A pair's turns over the trained extent are r = |(length_a w_a)_a| / 2 pi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ._check import check_options, choose, per_axis
from .freqs import fastest

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]
Scaling = str | Rule | Mapping[str, Mapping[str, object]] | Sequence["str | Rule | Mapping[str, Mapping[str, object]] | None"]


def turns(freqs: Tensor, length: Tensor) -> Tensor:
    """How often each pair turns over the trained extent: `[H|1, P]`."""
    return (freqs * length).norm(dim=-1) / (2 * math.pi)


def pi(freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """Position interpolation (Chen 2023): w_a / s_a, the same as squeezing the positions into the trained range."""
    return freqs / scale


def ntk(freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """NTK-aware scaling (bloc97 2023), for any vectors: w_a s_a^(-rho), rho = 0 for the fastest pair, 1 for the slowest.

    rho = (ln|w|max - ln|w|) / (ln|w|max - ln|w|min), over the pairs that look along axis a at all. For axial frequencies
    this is the base b_a s_a^(D_a / (D_a - 2)), per axis. One pair, or one magnitude: unchanged.
    """
    looks = freqs.abs() > 1e-6 * freqs.norm(dim=-1, keepdim=True)  # [H, P, A], what is left by rounding is no direction
    size = torch.where(looks.any(-1), freqs.norm(dim=-1), 1).log()[..., None]  # [H, P, 1]
    top = torch.where(looks, size, -math.inf).amax(-2, keepdim=True)  # [H, 1, A]
    bottom = torch.where(looks, size, math.inf).amin(-2, keepdim=True)
    span = torch.where(top - bottom > 1e-6, top - bottom, math.inf)
    rho = torch.where(looks & span.isfinite(), (top - size) / span, 0)  # [H, P, A]
    return freqs * scale**-rho


def dynamic_ntk(freqs: Tensor, scale: Tensor, length: Tensor, *, alpha: float = 1.0) -> Tensor:
    """NTK with the stretch alpha s - (alpha - 1) of the extent at hand (emozilla 2023); alpha 1 is `ntk`."""
    return ntk(freqs, (alpha * scale - (alpha - 1)).clamp(min=1), length)


def yarn(freqs: Tensor, scale: Tensor, length: Tensor, *, slow: float = 0.75, fast: float = 1.25) -> Tensor:
    """YaRN by parts (Peng 2023): w_a (g + (1 - g) / s_a), g = clamp((r - slow) / (fast - slow), 0, 1), r the pair's turns.

    Pairs that turn more than `fast` times over the trained extent keep their frequency, those below `slow` are interpolated.
    The defaults suit token grids, where most pairs turn less than once; the text defaults (1, 32) only interpolate there.
    """
    if not 0 <= slow < fast:
        raise ValueError(f"slow={slow}, fast={fast}: the ramp needs 0 <= slow < fast, in turns per trained extent")
    keep = ((turns(freqs, length) - slow) / (fast - slow)).clamp(0, 1)[..., None]  # [H, P, 1]
    return freqs * (keep + (1 - keep) / scale)


def llama3(freqs: Tensor, scale: Tensor, length: Tensor, *, low: float = 1.0, high: float = 4.0) -> Tensor:
    """Llama 3's rule: below `low` turns over the trained length w / s, above `high` unchanged, smooth between."""
    return yarn(freqs, scale, length, slow=low, fast=high)


def longrope(
    freqs: Tensor, scale: Tensor, length: Tensor, *, long: Sequence[float], short: Sequence[float] | None = None
) -> Tensor:
    """LongRoPE (Ding 2024): each pair has its own searched factor `[P]`, `long` above the trained extent, `short` within it."""
    for name, factors in (("long", long), ("short", short)):
        if factors is not None and len(factors) != freqs.shape[-2]:
            raise ValueError(f"{name} has {len(factors)} factors for {freqs.shape[-2]} pairs: give one a pair")
    beyond = freqs / freqs.new_tensor(long)[:, None]
    within = freqs if short is None else freqs / freqs.new_tensor(short)[:, None]
    return torch.where(scale.amax(0) > 1, beyond, within)


def resonance(freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """Resonance RoPE (Wang 2024): wavelengths above one are rounded to whole units, so that phases repeat exactly.

    Applies at every extent: train with it.
    """
    size = freqs.norm(dim=-1, keepdim=True)  # [H, P, 1]
    wave = 2 * math.pi / torch.where(size > 0, size, 1)
    return freqs * torch.where((size > 0) & (wave > 1), wave / wave.round().clamp(min=1), 1)


def truncate(freqs: Tensor, scale: Tensor, length: Tensor, *, keep: float | None = None, min_turns: float | None = None) -> Tensor:
    """Zero the lowest frequencies (p-RoPE, Barbero 2025): those pairs are no longer rotated, the others stay as they are.

    `keep`: the share of pairs that is kept, see `freqs.fastest`; to train with it, give `RoPE(keep=...)`.
    `min_turns`: pairs that turn less often than this over the trained extent are zeroed (HoPE: 1). Applies at every extent.
    """
    if keep is None and min_turns is None:
        raise ValueError("truncate needs keep (a share, as 0.75) or min_turns (turns over the trained extent, as 1.0)")
    kept = freqs if keep is None else fastest(freqs, keep)
    if min_turns is not None:
        kept = torch.where(turns(freqs, length)[..., None] >= min_turns, kept, 0)
    return kept


RULES: dict[str, Callable[..., Tensor]] = {
    rule.__name__: rule for rule in (pi, ntk, dynamic_ntk, yarn, llama3, longrope, resonance, truncate)
}


def identity(freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """No scaling."""
    return freqs


def _fixed(rule: Rule, factor: Sequence[float], freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    return rule(freqs, scale.new_tensor(factor), length)


def needs(scaling: Scaling | None) -> tuple[bool, bool]:
    """Whether a scaling must be told the extent at hand, and whether it must know the trained one."""
    if scaling is None or scaling == "none":
        return False, False
    if callable(scaling):
        return True, True
    if isinstance(scaling, str):
        scaling = {scaling: {}}
    if isinstance(scaling, Mapping):
        entries = [(name, options or {}) for name, options in scaling.items()]
        extent = any(name not in ("resonance", "truncate") and "factor" not in options for name, options in entries)
        return extent, extent or any(name in ("yarn", "llama3") or "min_turns" in options for name, options in entries)
    each = [needs(rule) for rule in scaling]
    return any(e for e, _ in each), any(t for _, t in each)


def named(scaling: Scaling | None) -> bool:
    """Whether a scaling is made of names alone: a function may give other vectors at the next call, or learn."""
    if scaling is None or isinstance(scaling, (str, Mapping)):
        return True
    return not callable(scaling) and all(named(rule) for rule in scaling)


def interpolates(scaling: Scaling | None) -> bool:
    """Whether a scaling is position interpolation, on all axes or some, or a function (whose author knows)."""
    if scaling is None or isinstance(scaling, str):
        return scaling in (None, "none", "pi")
    if callable(scaling):
        return True
    if isinstance(scaling, Mapping):
        return set(scaling) <= {"pi"}
    return all(interpolates(rule) for rule in scaling)


def _chained(rules: Sequence[Rule], freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    for rule in rules:
        freqs = rule(freqs, scale, length)
    return freqs


def _only(rule: Rule, axis: int, freqs: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    here = torch.arange(scale.shape[0], device=scale.device) == axis  # [A]
    return torch.where(here, rule(freqs, torch.where(here, scale, 1), length), freqs)


def _named(name: str, options: Mapping[str, object], axes: int) -> Rule:
    given = dict(options)
    factor = given.pop("factor", None)
    rule = RULES[choose("scaling", name, RULES)]
    check_options(f"scaling {name!r}", given, rule, also=("factor",))
    bound = partial(rule, **given) if given else rule
    return bound if factor is None else partial(_fixed, bound, per_axis("factor", factor, axes))


def build(scaling: Scaling | None, axes: int) -> Rule:
    """One rule from what a user writes.

    A name (`"yarn"`); a mapping of names to options, applied in order (`{"yarn": {"slow": 0.5}, "truncate": {"keep": 0.75}}`,
    where `factor` fixes the scale whatever the extent); a list of one such entry an axis; any function with a rule's signature.
    """
    if scaling is None or scaling == "none":
        return identity
    if callable(scaling):
        return scaling
    if isinstance(scaling, str):
        return _named(scaling, {}, axes)
    if isinstance(scaling, Mapping):
        return partial(_chained, [_named(name, options or {}, axes) for name, options in scaling.items()])
    if len(scaling) != axes:
        raise ValueError(f"scaling={scaling!r} has {len(scaling)} entries for {axes} axes: give one rule, or one an axis")
    return partial(_chained, [partial(_only, build(rule, axes), a) for a, rule in enumerate(scaling)])


Temperature = str | float


def check_temperature(kind: Temperature | None) -> None:
    """Raise ValueError unless `kind` is None, `"log"`, `"yarn"` or a positive number."""
    if isinstance(kind, (int, float)) and not isinstance(kind, bool):
        if not 0 < kind < math.inf:
            raise ValueError(f"temperature={kind!r}: the factor on the scores must be positive and finite")
    elif kind is not None:
        choose("temperature", kind, ("log", "yarn"))


def temperature(kind: Temperature, count: Tensor, trained: Tensor) -> Tensor:
    """The factor on the attention scores at extent `count` `[A]`, for a model trained at `trained` `[A]`: one number, >= 1.

    - `"log"`: ln N / ln N_trained, N the number of tokens: keeps the entropy of attention (Chiang 2022; Su's log-n scaling).
    - `"yarn"`: (0.1 ln s + 1)^2, s the geometric mean of the axes' stretches (Peng 2023, eq. 15: its factor is on q and on k).
    - a number: that number, whatever the extent.
    """
    if not isinstance(kind, str):
        return torch.full_like(count[0], kind)
    if kind == "log":
        return (count.prod().log() / trained.prod().clamp(min=2).log()).clamp(min=1)
    stretch = (count / trained).clamp(min=1).log().mean()
    return (0.1 * stretch + 1) ** 2
