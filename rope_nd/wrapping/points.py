"""Models of one stack whose tokens may come with coordinates, and without an image."""

from __future__ import annotations

from torch import Tensor

from ..positions import as_positions, wide
from .budget import left, pick
from .places import Places
from .stack import Stack


class Points(Stack):
    """A `Stack` that takes tokens as they are."""

    def forward_tokens(
        self,
        tokens: Tensor,
        coords: Tensor,
        *,
        extent: tuple[int, ...] | Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Tokens `[B, N, D]` at `coords` `[N, A]` or `[B, N, A]` -> features `[B, prefix + N, D]`, which `forward_head` takes.

        Tokens are what the stem makes of patches, or anything of that width. Coordinates are in the units of `spacing` (pixels and
        frames unless `wrap` was told otherwise; where there is no stem, those of the encoding): where the first sample of each
        token is. `extent`: tokens an axis of the whole that scaling and normalised coordinates go by; the trained one by default.
        """
        axes, unit = self.wrapped.axes, self._token()
        if tokens.ndim != 3 or tokens.shape[-1] != self.embed_dim or coords.shape[-2] != tokens.shape[1]:
            raise ValueError(
                f"tokens of shape {list(tokens.shape)}, coords of shape {list(coords.shape)}: give [B, N, {self.embed_dim}] and "
                f"[N, {axes}] or [B, N, {axes}]"
            )
        points = as_positions(coords, axes).to(wide(coords.device))
        indices = points / points.new_tensor(unit)
        places = Places((), self.wrapped.trained_extent if extent is None else extent, tokens.shape[0], indices)
        ready, where = self._tokens(tokens, places, attn_mask, is_causal, drop=True)
        return self._through(self._ready(ready, ()), where)

    def _token(self) -> tuple[float, ...]:
        """How far tokens are apart along each axis, in the units of `spacing`."""
        size = self.patch_embed.feat_ratio(as_scalar=False)
        given = self.wrapped.inflation
        distances = (1.0,) * self.wrapped.axes if given is None else given.distances
        return tuple(n * d for n, d in zip(size if len(size) == len(distances) else (1,) * len(distances), distances))

    def _kept(self, tokens: Tensor, places: Places, drop: bool) -> tuple[Tensor, Tensor | None]:
        """What is chosen, or left of the budget; timm's patch dropout goes on from there."""
        n, given, first = self.prefix_tokens(), self.wrapped.inflation, places.keep
        if first is None and drop and self.training and given is not None and given.tokens is not None:
            count = tokens.shape[1] - n
            first = left(given.dropping, given.tokens, places.grid, count, tokens.shape[0], tokens.device)
        if first is None:
            return super()._kept(tokens, places, drop)
        tokens, kept = super()._kept(pick(tokens, first, n), places, drop)
        return tokens, first if kept is None else first.gather(1, kept)
