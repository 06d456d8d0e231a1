"""What a preset is, and how one is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..rope import RoPE


@dataclass(frozen=True)
class Preset:
    """A published rotary encoding. `build(head_dim, **options) -> RoPE`; `axes` is None where any number goes (`axes=`)."""

    name: str
    axes: int | None
    paper: str
    used_by: str
    build: Callable[..., RoPE]

    def __call__(self, head_dim: int, *, axes: int | None = None, **options: Any) -> RoPE:
        """The encoding for heads of this width; options of its own, and those of `RoPE`, go through."""
        if self.axes is None:
            return self.build(head_dim, axes=2 if axes is None else axes, **options)
        if axes not in (None, self.axes):
            raise ValueError(f"preset {self.name!r} has {self.axes} axes, asked for axes={axes}: choose another of list_presets()")
        return self.build(head_dim, **options)


def preset(*, axes: int | None, paper: str, used_by: str) -> Callable[[Callable[..., RoPE]], Preset]:
    """Decorator: a function `(head_dim, *, ..., **options) -> RoPE` becomes the `Preset` of its name."""

    def made(build: Callable[..., RoPE]) -> Preset:
        return Preset(build.__name__, axes, paper, used_by, build)

    return made
