"""timm's transforms of pictures, with what newer versions of Pillow no longer take mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from timm.data import create_transform


def transform(size: tuple[int, ...], *, training: bool, **augment: Any) -> Callable[..., Any]:
    """timm's `create_transform` of pictures to `size` (H, W), uncropped in tests.

    timm posterises to as few as 0 bits, which is a black picture; Pillow 13 refuses it. Here it keeps at least one bit.
    """
    made: Callable[..., Any] = create_transform((3, *size), is_training=training, crop_pct=1.0, **augment)
    for op in operations(made):
        if op.name.startswith("Posterize"):
            op.level_fn = partial(_some_bits, op.level_fn)
    return made


def operations(made: Any) -> Iterator[Any]:
    """The operations that RandAugment, AutoAugment or AugMix draw from."""
    for step in getattr(made, "transforms", ()):
        yield from getattr(step, "ops", ())
        for policy in getattr(step, "policy", ()):
            yield from policy


def _some_bits(level: Callable[..., tuple[int]], magnitude: float, hparams: Any) -> tuple[int]:
    return (max(1, level(magnitude, hparams)[0]),)
