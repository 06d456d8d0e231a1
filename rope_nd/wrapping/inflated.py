"""timm's image models as models of clips and volumes, and of tokens with any number of coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from ..positions import keep as keep_positions
from .factorised import SpaceThenTime, for_each, steps
from .inflation import Inflation
from .model import placed
from .places import Measure, Places, on_grid
from .points import Points
from .stack import token_grid
from .where import Where


class Inflated(Points):
    """`[B, C, T, H, W]`, any T, H and W, tokens in the order (t, h, w).

    `forward`, `forward_features` and `forward_intermediates` also take

    - `spacing`, `[3]` or `[B, 3]`: the distance between samples along each axis, seconds between frames (1 / fps), millimetres
      between voxels; the trained one if not given.
    - `offset`, `[3]` or `[B, 3]`, in the same units: where the first sample is, as for a part cut out of a whole.
    - `extent`: tokens an axis of that whole, for encodings whose scaling or coordinates depend on it.
    - `keep`, `[B, K]`: indices of the tokens to be encoded, the others are left out (not with factorised attention).
    """

    formats: ClassVar[tuple[str, ...]] = ("NCTHW", "NCHW", "NTHWC", "NLC")  # the second is the first, for timm's extractors

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **places: Any) -> Any:
        return self.forward_head(self.forward_features(x, attn_mask, is_causal, **places))

    def forward_intermediates(self, x: Tensor, *rest: Any, keep: Tensor | None = None, **options: Any) -> Any:
        """As timm's, maps `[B, C, T, H, W]` (`"NCTHW"`, also called `"NCHW"`), `[B, T, H, W, C]` (`"NTHWC"`), or `"NLC"`."""
        if keep is None:
            return super().forward_intermediates(x, *rest, **options)
        if options.get("output_fmt") != "NLC":
            raise ValueError("keep leaves no whole map: give output_fmt='NLC'")
        return super().forward_intermediates(x, *rest, keep=keep, **options)

    def start(  # type: ignore[override]
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        drop: bool = True,
        *,
        spacing: Measure | None = None,
        offset: Measure | None = None,
        extent: Sequence[int] | None = None,
        keep: Tensor | None = None,
    ) -> tuple[Tensor, Where]:
        given = self._given()
        if given.axes != 3:
            raise ValueError(f"a model with axes={given.axes} has no stem: call forward_tokens(tokens, coords)")
        tokens = token_grid(x, self.patch_embed)
        where = {"spacing": spacing, "offset": offset, "extent": extent, "keep": keep}
        size = self.patch_embed.feat_ratio(as_scalar=False)
        places = on_grid(tokens, size, given.distances, **where, batch=x.shape[0], device=x.device)  # type: ignore[arg-type]
        ready, told = self._tokens(self.patch_embed(x), places, mask, is_causal, drop)
        return self._ready(ready, tokens), told

    def _given(self) -> Inflation:
        given: Inflation = self.wrapped.inflation
        return given

    def _resized(self, table: Tensor, prefix: int, extent: tuple[int, ...]) -> Tensor:
        """The image's table at the size of a frame, the same for each frame."""
        if not extent:
            raise ValueError("the model's own table belongs to a grid, and these tokens have none: wrap without 'absolute'")
        frame = resample_abs_pos_embed(
            table, extent[1:], self.grid(), prefix, antialias=self.wrapped.antialias
        )  # [1, prefix + S, C]
        return torch.cat((frame[:, :prefix], frame[:, prefix:].repeat(1, extent[0], 1)), dim=1)

    def _told(
        self, places: Places, points: Any, own_points: Any, kept: Tensor | None, mask: Tensor | None, is_causal: bool
    ) -> Where:
        if self._given().attention == "joint":
            return super()._told(places, points, own_points, kept, mask, is_causal)
        if mask is not None or is_causal or not places.grid or places.keep is not None:
            raise ValueError("attn_mask, is_causal, keep and tokens without a grid: factorised attention takes none of them")
        frames, at = places.grid[0], places.spread(next(self.parameters()).device)
        space, time = steps(at if kept is None else keep_positions(at, kept), frames)
        count, prefix = space.shape[-2], self.prefix_tokens()
        one, other = (self._step_of(at, places) for at in (space, time))
        return SpaceThenTime(
            space=for_each(one, frames),
            time=for_each(other.without_prefix(prefix), count),
            frames=frames,
            prefix=prefix,
            extent=places.grid,
        )

    def _step_of(self, at: Tensor, places: Places) -> Where:
        """What the tokens of one frame are told, or the moments of one place."""
        points = self._moved(placed(self.encoding, at, places.extent), places.batch, self.wrapped.augment)
        own = None if self.own_rotary is None else placed(self.own_rotary, at, places.extent)
        return self._where(points, places.extent, own_points=own)


class InflatedVisionTransformer(Inflated, VisionTransformer):
    """ViT, with all that timm builds of it."""

    drops_bare_tokens = False


class InflatedVisionTransformerDistilled(Inflated, VisionTransformerDistilled):
    """DeiT with a distillation token."""


class InflatedEva(Inflated, Eva):  # type: ignore[misc]
    """EVA, EVA-02, Perception Encoder, rope-vit, DINOv3, Sapiens 2."""


CLASSES = (InflatedVisionTransformer, InflatedVisionTransformerDistilled, InflatedEva)
INFLATED: dict[type, type] = {cls.__bases__[-1]: cls for cls in CLASSES}
