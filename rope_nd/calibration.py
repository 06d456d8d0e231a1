"""Which rule suits this model at this size? `calibrate` asks the model itself, and needs no labels.

    best = calibrate(model, images)  # some dozens of unlabelled inputs of the size at hand
    best.name, best.model(images)    # "yarn" or "pyramid", and the model under that rule

A rule that leaves a model at home gives an input the answer that it gives the same input shifted by half a token: the object is
where it was, but for what the grid of tokens cuts. A model that is lost answers by accident, and the accident changes with the
shift. So the rule whose answers stay most often is taken, less what they would by chance: a model that gives (almost) every input
the same answer is steady, too, and knows nothing. How sure the model is tells less: one that sees the whole of a large
field at once is sure of something, and the surest of many windows is always sure.

Agreement under changes that keep the class goes with accuracy where labels are missing (Deng 2022, effective invariance); how well
it ranks rules of extrapolation is measured in results/record.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import hub
from ._check import choose
from .pyramid import READINGS, Pyramid
from .scaling import RULES

CANDIDATES = "none", "pi", "ntk", "yarn", *READINGS


@dataclass(frozen=True)
class Calibrated:
    """The rule that was found, the model under it, and for each candidate how steady its answers are, see `steadiness`."""

    name: str
    model: nn.Module
    stays: dict[str, float]


def calibrate(
    model: nn.Module,
    images: Tensor,
    candidates: Iterable[str] | Mapping[str, nn.Module] = CANDIDATES,
    *,
    size: Sequence[int] | None = None,
    shift: int | Sequence[int] | None = None,
    rest: int | None = None,
    batch: int = 32,
) -> Calibrated:
    """The candidate whose answers change least often when inputs `[B, C, *extent]` are shifted.

    - `candidates`: names of scalings (those of `wrap`) and of readings through windows (whole, windows, pyramid), or models by
      name. Of several that are equally steady the first is taken.
    - `size`: of the training inputs, for windows; the model's `patch_embed.img_size`.
    - `shift`: samples along each axis, there and back; half a token.
    - `rest`: the class that is no answer, if there is one; see `Pyramid`.

    The model must be a wrapped one, made by timm's `create_model`; it is not changed. The images must be of several classes: where
    all answers are one and the same, nothing tells knowledge from accident. Raises ValueError for unknown candidates.
    """
    if images.ndim < 3 or not len(images):
        raise ValueError(f"images of shape {tuple(images.shape)}: give a batch [B, C, *extent]")
    models = candidates if isinstance(candidates, Mapping) else {name: under(model, name, size, rest) for name in candidates}
    if not models:
        raise ValueError(f"candidates is empty: give some of {', '.join(CANDIDATES)}, or models by name")
    step = _steps(model, shift, images.ndim - 2)
    stays = {name: steadiness(one, images, step, rest, batch) for name, one in models.items()}
    best = max(stays, key=lambda name: stays[name])  # the first of equals
    return Calibrated(best, models[best], stays)


def under(model: nn.Module, name: str, size: Sequence[int] | None = None, rest: int | None = None) -> nn.Module:
    """The model under one rule: a copy with another scaling, or windows of the training size shown to a copy without one."""
    choose("candidate", name, (*RULES, "none", *READINGS))
    changed = hub.build(hub.describe(model), scaling="none" if name in READINGS else name)
    device = next(model.parameters()).device
    copy = hub.fill(changed, {key: value.cpu() for key, value in model.state_dict().items()}, "the model").to(device).eval()
    if name not in READINGS:
        return copy
    found = size or getattr(getattr(model, "patch_embed", None), "img_size", None)
    if not found:
        raise ValueError(f"candidate {name!r} needs the size that the model was trained at: give size=(height, width)")
    return Pyramid(copy, tuple(found), scales=READINGS[name], rest=rest)


@torch.no_grad()
def steadiness(model: nn.Module, images: Tensor, shift: Sequence[int], rest: int | None = None, batch: int = 32) -> float:
    """The share of answers that stay when inputs are shifted, above chance; mean of there and back."""
    told = None if isinstance(model, Pyramid) else rest

    def all_of(by: Sequence[int]) -> Tensor:
        return torch.cat([answers(model(moved(part, by)), told) for part in images.split(batch)])

    first = all_of([0] * len(shift))
    return sum(above_chance(first, all_of([sign * n for n in shift])) for sign in (1, -1)) / 2


def above_chance(one: Tensor, two: Tensor) -> float:
    """p - c of two lists of answers `[N]`: p the share of equal ones, c that share for the same answers in any order.

    Between 1 (all equal, and of very many classes) and -1; 0 where all answers are one. Cohen's kappa, which is that over 1 - c,
    is 1 for answers that are all the same but for one that stays.
    """
    return ((one == two).double().mean() - (one[:, None] == two).double().mean()).item()


def answers(logits: Tensor, rest: int | None) -> Tensor:
    """The class of each input `[B]`, which is never the rest."""
    if rest is not None:
        logits = logits.index_fill(-1, torch.tensor([rest % logits.shape[-1]], device=logits.device), float("-inf"))
    return logits.argmax(-1)


def moved(x: Tensor, shift: Sequence[int]) -> Tensor:
    """Inputs moved by so many samples along each axis; what comes in repeats the border."""
    for axis, by in enumerate(shift, start=2):
        at = (torch.arange(x.shape[axis], device=x.device) - by).clamp(0, x.shape[axis] - 1)
        x = x.index_select(axis, at)
    return x


def _steps(model: nn.Module, shift: int | Sequence[int] | None, axes: int) -> list[int]:
    if shift is None:
        patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
        if patch is None:
            raise ValueError("how far to shift is not known of this model: give shift=, in samples, about half a token")
        each = [patch] * axes if isinstance(patch, int) else [1] * (axes - len(patch)) + list(patch)
        return [max(1, n // 2) for n in each]
    found = [shift] * axes if isinstance(shift, int) else list(shift)
    if len(found) != axes or not any(found):
        raise ValueError(f"shift {shift!r}: give one number, or {axes}, one an axis, not all zero")
    return found
