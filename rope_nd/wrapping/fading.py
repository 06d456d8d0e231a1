"""Between a model's own positions and an encoding's: how much of each, changed in place while a model trains."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

from .._check import per_axis
from ..rope import RoPE
from .families import wrapped_trunk
from .model import Wrapped

Model = TypeVar("Model", bound=nn.Module)


def fade(model: Model, *, strength: float | tuple[float, ...] | None = None, absolute: float | None = None) -> Model:
    """Set how far a wrapped model turns, and how much of its own table it adds; what is None stays as it is.

        model = wrap(vit, "axial", keep_pos_embed="absolute", strength=0)        # the original
        fade(model, strength=0.5, absolute=0.5)                                 # between the two
        fade(model, strength=1, absolute=0)                                     # as if wrapped without the table

    - `strength`: the share of each angle that is turned, one number or one an axis, in every rotary module of the encoding.
    - `absolute`: the factor on the model's own table, the entries of prefix tokens with it. The table itself is not changed.

    Nothing is rebuilt and no parameter or key changes, so optimizers go on. The factor is no part of the state dict. Returns the
    model. Raises ValueError where there is nothing to set.
    """
    inner = wrapped_trunk(model)
    if inner is None:
        raise ValueError(f"{type(model).__name__} was not wrapped: call wrap first")
    ropes = [module for module in (inner.encoding or nn.Module()).modules() if isinstance(module, RoPE)]
    if strength is not None and not ropes:
        raise ValueError(f"strength={strength!r} is the share of a rotation: the encoding of this model has none")
    if absolute is not None:
        _check_absolute(inner, absolute)
    if strength is not None:
        share = per_axis("strength", strength, inner.wrapped.axes)
        for rope in ropes:
            rope.strength = share
    if absolute is not None:
        inner.wrapped.absolute = float(absolute)
    return model


def _check_absolute(inner: Wrapped, absolute: float) -> None:
    if not math.isfinite(absolute):
        raise ValueError(f"absolute={absolute!r}: the factor on the model's own table must be finite")
    if "absolute" not in inner.wrapped.kept:
        raise ValueError(f"absolute={absolute!r}: this model has dropped its table; wrap it with keep_pos_embed='absolute'")
    if not hasattr(inner, "_weighed"):
        raise ValueError(f"absolute={absolute!r}: {type(inner).__bases__[-1].__name__} adds its table inside its stem, unweighed")


def check_resampling(kind: type[Wrapped], antialias: bool) -> None:
    """Raise ValueError for a table that is not resized by us, or resized as one cannot choose."""
    if not antialias and not kind.resamples:
        raise ValueError(f"antialias=False: the table of {kind.__bases__[-1].__name__} is resized in its own way; leave it out")
