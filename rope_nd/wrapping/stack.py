"""Models that are one stack of blocks over tokens: one forward for all of them.

timm writes that forward anew in each model, mostly with no argument that could carry positions. A family says what is its own:
its prefix tokens, its table, how a block is called, how it ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from timm.layers.patch_dropout import patch_dropout_forward
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from .._check import choose
from .model import Wrapped, placed
from .places import Places
from .where import Where


class Stack(Wrapped):
    """Patches, prefix tokens, blocks, norm."""

    maskable: ClassVar[bool] = True
    resamples: ClassVar[bool] = True
    drops_bare_tokens: ClassVar[bool] = True  # is pos_drop applied though nothing was added
    formats: ClassVar[tuple[str, ...]] = ("NCHW", "NLC")  # of maps

    # ---- what a family may say otherwise

    def _prefix(self) -> list[Tensor]:
        """Class and register tokens, in their order."""
        found = (getattr(self, name, None) for name in ("cls_token", "dist_token", "reg_token"))
        return [token for token in found if token is not None]

    def _table(self) -> tuple[Tensor, int] | None:
        """The model's own table `[1, prefix + N, C]`, and how many of its entries belong to prefix tokens."""
        if getattr(self, "pos_embed", None) is None:
            return None
        return self.pos_embed, 0 if getattr(self, "no_embed_class", False) else self.num_prefix_tokens

    def _resized(self, table: Tensor, prefix: int, extent: tuple[int, ...]) -> Tensor:
        """That table at the size of `extent`."""
        return resample_abs_pos_embed(table, extent, self.grid(), prefix, antialias=self.wrapped.antialias)

    def _weighed(self, table: Tensor) -> Tensor:
        return table if self.wrapped.absolute == 1 else table * self.wrapped.absolute

    def _ready(self, tokens: Tensor, extent: tuple[int, ...]) -> Tensor:
        """From tokens with their positions to the first block."""
        return self.norm_pre(tokens) if hasattr(self, "norm_pre") else tokens

    def _step(self, layer: int, block: nn.Module, tokens: Any, where: Where) -> Any:
        """One block."""
        return self._run(block, tokens, where)

    def _end(self, tokens: Any, extent: tuple[int, ...]) -> Tensor:
        """From the last block to what `forward_features` returns."""
        return self.norm(tokens)

    def _map(self, tokens: Any, layer: int, norm: bool) -> tuple[Tensor, Tensor]:
        """Prefix and patch tokens of what block `layer` gave."""
        y = self.norm(tokens) if norm else tokens
        n = self.num_prefix_tokens
        return y[:, :n], y[:, n:]

    # ---- timm's interface

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **places: Any) -> Tensor:
        """`[B, C, H, W]` -> tokens `[B, prefix + N, D]`, or what the timm class gives."""
        return self._through(*self.start(x, attn_mask, is_causal, **places))

    def _through(self, tokens: Any, where: Where) -> Tensor:
        """All blocks, and the end."""
        for layer, block in enumerate(self.blocks):
            tokens = self._step(layer, block, tokens, where)
        return self._end(tokens, where.extent)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        **places: Any,
    ) -> Any:
        """As timm's: the outputs of the chosen blocks, and the final features."""
        shape = choose("output_fmt", str(getattr(output_fmt, "value", output_fmt)), self.formats)
        taken, last = feature_take_indices(len(self.blocks), indices)
        tokens, where = self.start(x, attn_mask, is_causal, drop=False, **places)
        outputs = []
        for layer, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            tokens = self._step(layer, block, tokens, where)
            if layer in taken:
                outputs.append(self._map(tokens, layer, norm))
        prefix, maps = [p for p, _ in outputs], [m for _, m in outputs]
        if shape != "NLC":
            maps = [m.unflatten(1, where.extent) for m in maps]
        if shape.startswith("NC"):
            maps = [m.movedim(-1, 1).contiguous() for m in maps]
        with_prefix = return_prefix_tokens and self.num_prefix_tokens
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": maps}
            if with_prefix:
                result["image_intermediates_prefix"] = prefix
            return result if intermediates_only else {**result, "image_features": self._end(tokens, where.extent)}
        shown = list(zip(maps, prefix)) if with_prefix else maps
        return shown if intermediates_only else (self._end(tokens, where.extent), shown)

    def start(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False, drop: bool = True) -> tuple[Any, Where]:
        """Tokens ready for the first block, and what the blocks are told of positions."""
        extent = token_grid(x, self.patch_embed)
        patches = self.patch_embed(x)
        patches = patches.flatten(1, 2) if patches.ndim == 4 else patches  # [B, N, D]
        tokens, where = self._tokens(patches, Places(extent, extent, x.shape[0]), mask, is_causal, drop)
        return self._ready(tokens, where.extent), where

    def _tokens(self, patches: Tensor, places: Places, mask: Tensor | None, is_causal: bool, drop: bool) -> tuple[Tensor, Where]:
        """Tokens of patches `[B, N, D]` with all that is added to them, and what the blocks are told."""
        if not self.maskable and (mask is not None or is_causal):
            raise ValueError(f"attn_mask, is_causal: the attention of {type(self).__bases__[-1].__name__} cannot be masked")
        points = self._at(self.encoding, places, self.wrapped.augment)
        own_points = None if self.own_rotary is None else self._at(self.own_rotary, places, {})
        tokens, kept = self._kept(self._with_prefix(patches, points, places), places, drop)
        return tokens, self._told(places, points, own_points, kept, mask, is_causal)

    def _at(self, encoding: nn.Module | None, places: Places, augment: dict[str, Any]) -> Tensor | None:
        """Coordinates of the patch tokens, `[N, A]` or `[B, N, A]`; None for the whole grid, where its tables are kept."""
        if places.indices is None:
            return self._points(encoding, places.grid, places.batch, augment)
        return self._moved(placed(encoding, places.indices, places.extent), places.batch, augment)

    def _told(
        self, places: Places, points: Any, own_points: Any, kept: Tensor | None, mask: Tensor | None, is_causal: bool
    ) -> Where:
        """What the blocks are told, of the tokens that are `kept`."""
        return replace(self._where(points, places.extent, kept, mask, is_causal, own_points), extent=places.grid)

    def _kept(self, tokens: Tensor, places: Places, drop: bool) -> tuple[Tensor, Tensor | None]:
        """The tokens that are left by timm's patch dropout, and the indices of their patches."""
        dropout = getattr(self, "patch_drop", None)
        if not drop or not self.training or dropout is None or isinstance(dropout, nn.Identity):
            return tokens, None
        found: tuple[Tensor, Tensor | None] = patch_dropout_forward(
            tokens, dropout.prob, self.num_prefix_tokens, dropout.ordered, True
        )
        return found

    def _with_prefix(self, patches: Tensor, points: Tensor | None, places: Places) -> Tensor:
        """Absolute codes on the patch tokens; prefix tokens before them; the model's own table if it is kept."""
        code = self._code(points, places.extent)
        patches = patches if code is None else patches + code.to(patches.dtype)
        own = self._table() if "absolute" in self.wrapped.kept else None
        table, bare = (None, 0) if own is None else (self._weighed(self._resized(*own, places.grid)), own[1])
        if table is not None and not bare:
            patches = patches + table
        prefix = [p.expand(patches.shape[0], -1, -1) for p in self._prefix()]
        tokens = torch.cat([*prefix, patches], dim=1)  # contiguous, whatever the patches were
        if table is not None and bare:
            tokens = tokens + table
        added = code is not None or table is not None or self.drops_bare_tokens
        return self.pos_drop(tokens) if added and hasattr(self, "pos_drop") else tokens


NAMES = {2: ("[B, C, H, W]", "patch"), 3: ("[B, C, T, H, W]", "tube")}


def token_grid(x: Tensor, embed: Any) -> tuple[int, ...]:
    """The token grid of a batch of images or clips; sizes that would lose pixels are refused, with the nearest that does not."""
    patch = embed.feat_ratio(as_scalar=False)
    expected, what = NAMES[len(patch)]
    if x.ndim != 2 + len(patch):
        raise ValueError(f"input of shape {list(x.shape)}: expected {expected}")
    size, channels = tuple(x.shape[2:]), getattr(getattr(embed, "proj", None), "in_channels", None)
    if len(patch) == 3 and x.shape[1] != channels:
        raise ValueError(f"input of shape {list(x.shape)} has {x.shape[1]} channels, the model {channels}: expected {expected}")
    if not getattr(embed, "dynamic_img_pad", False) and any(s % p for s, p in zip(size, patch)):
        near, given, of = ("x".join(map(str, n)) for n in ([max(1, round(s / p)) * p for s, p in zip(size, patch)], size, patch))
        where = "" if len(patch) == 2 else f" in {expected}"
        raise ValueError(f"input of {given} is no multiple of the {what} {of}{where}: resize to {near}")
    return tuple(embed.dynamic_feat_size(size))
