"""What every wrapped model has in common: positions made, told to the blocks, named to optimizers.

The mixin stands before a timm class (`class WrappedNaFlexVit(.., Wrapped, NaFlexVit)`), whose modules and keys it uses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from ..absolute import Absolute
from ..bias import Bias
from ..positions import augment as augment_positions
from ..positions import grid, keep, sizes
from ..rope import RoPE
from ..rotation import Rotation
from ..scaling import Temperature, temperature
from .blocks import Rows, held
from .where import Where

KINDS = ("absolute", "rotary", "bias")


@dataclass
class Settings:
    """How a model was wrapped, and what `unwrap` must put back."""

    axes: int
    trained_extent: tuple[int, ...]
    kept: frozenset[str]  # of the model's own positions, some of KINDS
    temperature: Temperature | None
    augment: dict[str, Any]
    inflation: Any = None  # the choices of a model whose axes are not an image's
    antialias: bool = True  # is the model's own table smoothed where it shrinks
    absolute: float = 1.0  # the weight of that table
    call: dict[str, Any] = field(default_factory=dict)  # what `wrap` was given
    made: tuple[str, dict[str, Any]] | None = None  # the timm architecture and arguments of a model that timm has under no name
    frozen: dict[str, bool] = field(default_factory=dict)  # parameter -> did it learn
    changed: list[tuple[str, str, bool, Any]] = field(default_factory=list)  # module, attribute, was it there, value


class Timm(nn.Module):
    """What a mixin may rely on: the timm class behind it has it."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def no_weight_decay(self) -> set[str]: ...
        def group_matcher(self, coarse: bool = False) -> Any: ...


class Wrapped(Timm):
    """A timm model with positions of our own, at any height and width."""

    encoding: nn.Module | None
    own_rotary: nn.Module | None  # what the model turned by before, if that is kept
    wrapped: Settings

    own: ClassVar[dict[str, str]] = {  # the parameters of the model's own positions, by kind
        "absolute": r"pos_embed$",
        "rotary": r"rope\.",
        "bias": r".*relative_position_bias_table$",
    }
    hideable: ClassVar[bool] = True  # can a bias be minus infinity
    resamples: ClassVar[bool] = False  # is the model's own table resized as a picture, by us
    own_rope: ClassVar[str] = "rope"  # the module that the model turned by
    always: ClassVar[tuple[tuple[str, str, Any], ...]] = ()  # modules' attributes and their values while wrapped
    when_dropped: ClassVar[dict[str, tuple[str, str, Any]]] = {}  # the same, where a kind is not kept

    def own_parameters(self, kind: str) -> list[str]:
        """Names of the parameters of the model's own positions."""
        return [name for name, _ in self.named_parameters() if re.match(self.own[kind], name)]

    def rotating(self) -> list[Any]:
        """The blocks that are told of positions."""
        return list(self.blocks)

    def grid(self) -> tuple[int, ...]:
        """The token grid that the model, and its table, are made for."""
        return tuple(self.patch_embed.grid_size)

    def prefix_tokens(self) -> int:
        """How many tokens stand before the patches where they attend."""
        return int(self.num_prefix_tokens)

    def no_weight_decay(self) -> set[str]:
        """timm's names, and those of learned position parameters."""
        learned = {f"encoding.{name}" for name in _undecayed(self.encoding)}
        return {*super().no_weight_decay(), *learned, *self.own_parameters("rotary")}

    def group_matcher(self, coarse: bool = False) -> Any:
        """timm's, with our positions beside the model's own: in the stem, which layer decay slows the most."""
        matcher = super().group_matcher(coarse)
        if callable(matcher):
            return lambda name: 0 if name.startswith("encoding.") else matcher(name)
        return {**matcher, "stem": rf"{matcher['stem']}|^encoding\."}

    def _points(self, encoding: nn.Module | None, extent: tuple[int, ...], batch: int, augment: dict[str, Any]) -> Tensor | None:
        """Coordinates of the patch tokens `[N, A]`, `[B, N, A]` where they are augmented in training.

        None for the whole grid as it is, whose tables a rotary encoding keeps.
        """
        if self.training and augment:
            return augment_positions(self._whole(encoding, extent), batch=batch, **augment)
        return None if isinstance(lead(encoding), RoPE) else self._whole(encoding, extent)

    def _moved(self, points: Tensor, batch: int, augment: dict[str, Any]) -> Tensor:
        """Coordinates that were given, augmented in training."""
        return augment_positions(points, batch=batch, **augment) if self.training and augment else points

    def _whole(self, encoding: nn.Module | None, extent: tuple[int, ...]) -> Tensor:
        """Coordinates of the whole grid, `[N, A]`."""
        enc, device = lead(encoding), next(self.parameters()).device
        return grid(*extent, device=device) if enc is None else enc.positions(*extent).to(device)

    def _left(self, encoding: nn.Module | None, points: Tensor | None, extent: tuple[int, ...], kept: Tensor) -> Tensor:
        """Coordinates of the tokens that are left, `[B, K, A]`."""
        return keep(self._whole(encoding, extent) if points is None else points, kept)

    def _code(self, points: Tensor | None, extent: Any) -> Tensor | None:
        """What an absolute encoding adds to the patch tokens, `[N, C]` or `[B, N, C]`."""
        return each(self.encoding, points, extent) if isinstance(self.encoding, Absolute) else None

    def _where(
        self,
        points: Tensor | None,
        extent: Any,
        kept: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
        own_points: Tensor | None = None,
    ) -> Where:
        """What the blocks are told: rotations, biases, a factor on the scores, masks.

        `points`, `own_points`: for the encoding and for the model's own; None is the whole grid. `kept`: indices `[B, K]` of what
        is left of them.
        """
        settings, prefix = self.wrapped, self.prefix_tokens()
        if kept is not None:
            points = self._left(self.encoding, points, extent, kept)
            own_points = None if self.own_rotary is None else self._left(self.own_rotary, own_points, extent, kept)
        new, old = self._rotations(self.encoding, points, extent), self._rotations(self.own_rotary, own_points, extent)
        layers = max(len(old), len(new))
        chains = tuple(tuple(r[layer if len(r) > 1 else 0] for r in (old, new) if r) for layer in range(layers))
        factor = None if settings.temperature is None or new else self._factor(settings.temperature, extent)
        biases = self._biases(points, extent, prefix)
        return Where(chains, biases, factor, mask, is_causal, extent, "bias" in settings.kept)

    def _rotations(self, encoding: nn.Module | None, points: Tensor | None, extent: Any) -> tuple[Rotation, ...]:
        """Rotations of an encoding, one for all layers or one a layer; none if it turns nothing."""
        ropes: Sequence[Any] = encoding if isinstance(encoding, nn.ModuleList) else [encoding]  # type: ignore[assignment]
        return tuple(each(rope, points, extent) for rope in ropes) if isinstance(ropes[0], RoPE) else ()

    def _biases(self, points: Any, extent: Any, prefix: int) -> tuple[Tensor | Rows, ...]:
        """The term on the scores `[H, N, N]` or `[B, H, N, N]`, N with prefix tokens, for all layers, or what makes it."""
        first = lead(self.encoding)
        if not isinstance(first, Bias):
            return ()
        if isinstance(self.encoding, nn.ModuleList):
            return tuple(partial(term, enc, points, extent, prefix) for enc in self.encoding)
        samples, tokens = points.shape[0] if points.ndim == 3 else 1, prefix + points.shape[-2]
        return (held(partial(term, first, points, extent, prefix), samples, first.heads, tokens, points.device),)

    def _factor(self, kind: Temperature, extent: Any) -> Tensor:
        """The temperature of an encoding that has none of its own."""
        device = next(self.parameters()).device
        trained = sizes(self.wrapped.trained_extent, device)
        if isinstance(extent, Tensor) and extent.ndim == 2:
            return torch.stack([temperature(kind, sizes(e, device), trained) for e in extent]).view(-1, 1, 1, 1)
        return temperature(kind, sizes(extent, device), trained)

    def _run(self, block: nn.Module, *args: Any) -> Any:
        if getattr(self, "grad_checkpointing", False) and self.training and not torch.compiler.is_compiling():
            return checkpoint(block, *args)
        return block(*args)


def lead(encoding: nn.Module | None) -> Any:
    """The module that says where tokens are: the first, where there is one a layer."""
    return encoding[0] if isinstance(encoding, nn.ModuleList) else encoding


def placed(encoding: nn.Module | None, indices: Tensor, extent: Any) -> Tensor:
    """Coordinates of tokens whose places `[N, A]` or `[B, N, A]` in a grid, or in one of each sample (`[B, A]`), are given."""
    enc = lead(encoding)
    if enc is None:
        return indices.float()
    if not isinstance(extent, Tensor) or extent.ndim == 1:
        return enc.place(indices, extent)
    if not enc.sized:
        return enc.place(indices, extent[0])
    return torch.stack([enc.place(at, size) for at, size in zip(indices, extent)])


def term(enc: Any, points: Tensor, extent: Any, prefix: int, rows: slice | None = None) -> Tensor:
    """What a bias adds to scores, `[H, N, N]` or `[B, H, N, N]`, zero for `prefix` tokens; or what of it belongs to `rows`."""
    if rows is None:
        return nn.functional.pad(each(enc, points, extent), (prefix, 0, prefix, 0))
    start, stop = (max(0, end - prefix) for end in (rows.start, rows.stop))
    bare = rows.stop - rows.start - (stop - start)
    return nn.functional.pad(each(enc, points, extent, slice(start, stop)), (prefix, 0, bare, 0))


def each(enc: Any, points: Tensor | None, extent: Any, rows: slice | None = None) -> Any:
    """What an encoding gives for positions, or a rotary one for the whole grid (None); a bias for the queries `rows` alone.

    For samples of several sizes (`extent` `[B, A]`) one by one, where size matters.
    """
    if points is None:
        return enc.at(*extent)
    run: Any = partial(enc.among, rows=rows) if isinstance(enc, Bias) else enc
    if not isinstance(extent, Tensor) or extent.ndim == 1:
        return run(points, extent)
    if not enc.sized:
        return run(points)
    found = [run(p, e) for p, e in zip(points, extent)]
    if not isinstance(found[0], Rotation):
        return torch.stack(found)
    per_head = [r if r.cos.ndim == 3 else replace(r, cos=r.cos[None], sin=r.sin[None]) for r in found]  # [H|1, N, P]
    factors = [r.temperature for r in found if r.temperature is not None]
    factor = torch.stack(factors).view(-1, 1, 1, 1) if factors else None
    cos, sin = (torch.stack([getattr(r, name) for r in per_head]) for name in ("cos", "sin"))
    return replace(found[0], cos=cos, sin=sin, temperature=factor)


def _undecayed(encoding: nn.Module | None) -> list[str]:
    names = []
    for prefix, module in encoding.named_modules() if encoding is not None else ():
        if isinstance(module, (RoPE, Absolute, Bias)):
            names += [f"{prefix}.{name}" if prefix else name for name in module.no_weight_decay()]
    return names
