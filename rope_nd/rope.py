"""RoPE: the thin module that composes positions, frequencies, scaling and rotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from ._check import check_extent, check_options, check_trained, check_widths, choose, per_axis, readable
from .freqs import fastest, vectors
from .grids import Shelf, axial_tables, looks_along_axes, seen
from .positions import Extent, as_positions, axis_coordinates, modes, place, sizes, steps, wide
from .rotation import Layout, Rotation, angles
from .scaling import Scaling, Temperature, build, check_temperature, identity, named, needs
from .scaling import temperature as score_factor


class RoPE(nn.Module):
    """N-dimensional rotary position embedding.

        rope = RoPE(64, 2)                        # head width 64, axes (h, w), axial, theta 100
        rotation = rope.at(14, 14)                # tables for 196 tokens
        q, k = rotation(q), rotation(k)           # [B, H, 196, 64] each

    Parameters
    - `head_dim`: width D of a head, even. `axes`: number of coordinates of a position.
    - `freqs`: a family (`"axial"`, `"interleaved"`, `"mixed"`, `"golden"`, `"simplex"`, `"spiral"`) or wave vectors `[H|1, P, A]`.
    - `theta`: base of the geometric schedule, one number or one an axis; None is the family's own (100; mixed 10).
    - `heads`: number of (key) heads, for families that differ by head. `learned`: train the frequencies (default: mixed only).
    - `layout`: `"interleaved"` pairs channels (2i, 2i + 1), `"half"` pairs (i, i + P).
    - `keep`: turn the fastest pairs alone, this share of those along each axis (p-RoPE, Barbero 2025); the others stay unturned.
    - `rotary_dim`: turn the leading channels only (GPT-NeoX turns a quarter); the spectrum is that of this width.
    - `scaling`: what happens above `trained_extent` (tokens an axis): a rule's name, options, a list of one an axis, or a
      function; see `rope_nd.scaling.build`. `temperature`: `"log"`, `"yarn"` or a number, a factor on all scores.
    - `coordinates`: keyword arguments of `grid` (spacing, offset, normalize, by, reference) for `at`.
    - `strength`: the share of each angle that is turned, one number or one an axis: 0 is no rotation.
    - `prefix_tokens`: class and register tokens before the others, never turned.
    - `rotate_dtype`: least precision of the turning (None: the input's own). `seed`: for families that draw at random.
    - further options go to the family: `leftover`, `split`, `schedule`, `wavelength`, `max_freq`, `ways`.

    Fixed frequencies live in float64, learned ones in float32 at the least, whatever the module is cast to; they survive
    meta-device construction (learned ones through `reset_parameters`). Only learned frequencies are in the state dict.

    Raises ValueError for unknown names, widths and extents, with the value and the mend.
    """

    freqs: Tensor
    still: Tensor | None

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str | Tensor = "axial",
        *,
        theta: float | tuple[float, ...] | None = None,
        heads: int | None = None,
        layout: Layout = "interleaved",
        scaling: Scaling | None = None,
        trained_extent: tuple[int, ...] | None = None,
        temperature: Temperature | None = None,
        learned: bool | None = None,
        keep: float = 1.0,
        rotary_dim: int | None = None,
        coordinates: Mapping[str, object] | None = None,
        strength: float | tuple[float, ...] = 1.0,
        prefix_tokens: int = 0,
        rotate_dtype: torch.dtype | None = torch.float32,
        seed: int = 0,
        **options: object,
    ) -> None:
        super().__init__()
        width = head_dim if rotary_dim is None else rotary_dim
        check_widths(head_dim, width, axes, heads, prefix_tokens)
        self.head_dim, self.axes, self.heads, self.pairs = head_dim, axes, heads, width // 2
        self.layout: Layout = choose("layout", layout, get_args(Layout))  # type: ignore[assignment]
        self.scaling, self.temperature = scaling, temperature
        self.trained_extent = check_trained(trained_extent, axes)
        self.coordinates = dict(coordinates or {})
        check_options("coordinates", self.coordinates, steps, also=("offset",))
        self.prefix_tokens, self.rotate_dtype = prefix_tokens, rotate_dtype
        self.strength = per_axis("strength", strength, axes)
        self._rule = build(scaling, axes)
        check_temperature(temperature)
        self._initial = vectors(freqs, self.pairs, axes, theta=theta, heads=heads, seed=seed, **options)
        if keep != 1:
            self._initial = fastest(self._initial, keep)
        self.learned = freqs == "mixed" if learned is None and isinstance(freqs, str) else bool(learned)
        needs_extent, needs_trained = needs(scaling)
        self._needs_extent = needs_extent or isinstance(temperature, str)
        if (needs_trained or self._needs_extent) and self.trained_extent is None:
            raise ValueError(f"scaling={scaling!r}, temperature={temperature!r} need trained_extent (tokens an axis)")
        if self.learned:
            self.freqs = nn.Parameter(torch.empty(self._initial.shape, dtype=torch.float32))
        else:
            device = torch.get_default_device()
            self.register_buffer("freqs", torch.empty(self._initial.shape, dtype=wide(device), device=device), persistent=False)
        still = (self._initial == 0).all(-1, keepdim=True)  # [H|1, P, 1]
        kept_still = still.to(torch.get_default_device()) if self.learned and bool(still.any()) else None
        self.register_buffer("still", kept_still, persistent=False)
        self._shelf = Shelf()
        self.reset_parameters()

    @classmethod
    def preset(cls, name: str, head_dim: int, **options: Any) -> RoPE:
        """A published encoding by name (`rope_nd.list_presets()`): `RoPE.preset("eva02", head_dim=64)`.

        `options` are the preset's own (see its docstring) and those of `RoPE`: trained_extent, scaling, heads, ...
        """
        return import_module(".presets", __package__).build(name, head_dim, **options)  # presets are made of this class

    def reset_parameters(self) -> None:
        """Set the frequencies to their initial values, on whatever device they are (after `to_empty`, say)."""
        with torch.no_grad():
            self.freqs.copy_(self._initial)
            if self.still is not None:
                self.still.copy_((self._initial == 0).all(-1, keepdim=True))

    if TYPE_CHECKING:  # which nn.Module leaves open

        def __call__(self, positions: Tensor, extent: Extent | None = None) -> Rotation: ...

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Rotation:
        """Tables for `positions` `[N, A]` or `[B, N, A]`, scaled for `extent` (tokens an axis of the whole grid).

        With a scaling or temperature that depends on the size, `extent` is required; a kept subset passes the whole grid's.
        """
        points = as_positions(positions, self.axes)
        freqs, factor = self._scaled(extent)
        if set(self.strength) != {1.0}:
            freqs = freqs * freqs.new_tensor(self.strength)
        return Rotation.from_angles(
            angles(points, freqs),
            self.layout,
            prefix_tokens=self.prefix_tokens,
            temperature=factor,
            dtype=self.rotate_dtype,
            table_dtype=self.vectors().dtype if self.learned else torch.float32,
        )

    def at(self, *extent: int) -> Rotation:
        """Tables for a token grid of `extent`, scaled for it as configured: `rope.at(28, 28)`.

        Those of named rules are kept for the next call until something changes; of learned frequencies where no gradient is
        recorded, on CPUs.
        """
        kind = type(self)  # one that is made of more than its frequencies is made anew
        plain = kind.forward is RoPE.forward and kind.vectors is RoPE.vectors and kind.positions is RoPE.positions
        learning = self.learned and (torch.is_grad_enabled() or not seen(self.freqs))
        if not plain or learning or not named(self.scaling) or not readable(self.freqs) or self.freqs.is_inference():
            rotation: Rotation = self(self.positions(*extent), extent)
            return rotation
        how = (self.layout, self.prefix_tokens, self.rotate_dtype, self.temperature, self.strength, self.trained_extent)
        key = (extent, self._rule, repr(self.coordinates), *how)
        return self._shelf.get(key, self.freqs, lambda: self._of_grid(extent))

    def _of_grid(self, extent: tuple[int, ...]) -> Rotation:
        freqs, factor = self._scaled(extent)
        freqs = freqs * freqs.new_tensor(self.strength)
        if self.learned or not looks_along_axes(freqs):
            rotation: Rotation = self(self.positions(*extent), extent)
            return rotation
        cos, sin = axial_tables(self._columns(extent), freqs)
        if len(cos) == 1:
            cos, sin = cos[0], sin[0]
        return Rotation(cos, sin, self.layout, self.prefix_tokens, factor, self.rotate_dtype, circle=True)

    def positions(self, *extent: int) -> Tensor:
        """The coordinates `[N, A]` that `at` uses, on the scale of the trained extent, so that all stretching is left to the rule.

        Normalised coordinates shrink their steps as the grid grows; with a scaling set they are kept from it.
        """
        return torch.stack(torch.meshgrid(*self._columns(extent), indexing="ij"), dim=-1).flatten(0, -2)

    def _columns(self, extent: tuple[int, ...]) -> list[Tensor]:
        """The coordinates along each axis, A of `[N_a]`."""
        self._check_rank(extent)
        device = self.freqs.device
        columns = axis_coordinates(*extent, dtype=wide(device), device=device, **self.coordinates)  # type: ignore[arg-type]
        pitch = self._pitch(extent)
        return [column * (pitch[axis] if isinstance(pitch, Tensor) else pitch) for axis, column in enumerate(columns)]

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        """The coordinates `[.., A]` that `positions` has for chosen tokens, by their indices along each axis."""
        return place(indices, extent, **self.coordinates) * self._pitch(extent)  # type: ignore[arg-type]

    @property
    def sized(self) -> bool:
        """Whether the size of the grid matters, to the coordinates or to the rule."""
        return self._needs_extent or set(modes(self.coordinates.get("normalize"), self.axes)) != {"index"}  # type: ignore[arg-type]

    def vectors(self) -> Tensor:
        """The wave vectors in use `[H|1, P, A]`, before scaling and strength; a pair that began unturned is never learned."""
        return self.freqs if self.still is None else self.freqs.masked_fill(self.still, 0)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay must leave alone: learned frequencies."""
        return {"freqs"} if self.learned else set()

    def extra_repr(self) -> str:
        kind = "learned" if self.learned else "fixed"
        shape = "x".join(map(str, self.freqs.shape))
        return f"head_dim={self.head_dim}, axes={self.axes}, freqs={shape} {kind}, layout={self.layout!r}, scaling={self.scaling!r}"

    def _scaled(self, extent: Extent | None) -> tuple[Tensor, Tensor | None]:
        """The wave vectors for this extent, and the factor on the scores."""
        freqs = self.vectors()
        if extent is not None:
            self._check_rank(extent)
        elif self._needs_extent:
            raise ValueError(
                f"extent=None, but scaling={self.scaling!r}, temperature={self.temperature!r} depend on it: call "
                "rope(positions, extent=(h, w)) with the whole grid's tokens an axis, or rope.at(h, w)"
            )
        if self._rule is identity and self.temperature is None:
            return freqs, None
        trained = sizes(self.trained_extent or (1,) * self.axes, freqs.device)  # [A]
        count = trained if extent is None else sizes(extent, freqs.device)
        factor = None if self.temperature is None else score_factor(self.temperature, count, trained)
        length = trained * self._steps(self.trained_extent or (1,) * self.axes)
        return self._rule(freqs, (count / trained).clamp(min=1), length), factor

    def _pitch(self, extent: Extent) -> Tensor | int:
        """What brings normalised coordinates back to the trained pitch where a rule does the stretching, `[A]`."""
        if self.trained_extent is None or self._rule is identity:
            return 1
        return (self._steps(self.trained_extent) / self._steps(extent)).clamp(min=1)

    def _steps(self, extent: Extent) -> Tensor:
        options = {k: v for k, v in self.coordinates.items() if k != "offset"}
        return steps(extent, device=self.freqs.device, **options)  # type: ignore[arg-type]

    def _check_rank(self, extent: Extent) -> None:
        if len(extent if isinstance(extent, Tensor) else check_extent(tuple(extent))) != self.axes:
            raise ValueError(f"extent={tuple(extent)!r} has {len(extent)} entries: this RoPE has axes={self.axes}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RoPE:
        """Follow device moves, refuse loss of precision: fixed frequencies stay float64, learned ones float32 or better."""
        fixed = self._buffers.pop("freqs", None)

        def precise(t: Tensor) -> Tensor:
            moved = fn(t)
            fits = not t.is_floating_point() or moved.dtype in (torch.float32, torch.float64)
            return moved if fits else t.to(moved.device)

        super()._apply(precise, recurse)
        if fixed is not None:
            device = fn(torch.empty(0, device=fixed.device)).device
            self._buffers["freqs"] = self._initial.to(device, wide(device))
        return self
