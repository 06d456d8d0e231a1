"""`wrap`: give a timm transformer the position encoding asked for, at any height and width, without touching timm's code.

The model keeps its modules and keys; its class and those of its attentions and patch embedding are exchanged for subclasses
below. What a block must know of positions (`Where`) is handed down explicitly, in the place of timm's `attn_mask` argument, so
that threads, several resolutions in flight and gradient checkpointing cannot mix it up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.attention import Attention, resolve_self_attn_mask
from timm.layers.patch_dropout import patch_dropout_forward
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from ._check import check_options, choose
from .absolute import Learned, Sinusoidal
from .freqs import FAMILIES
from .positions import augment as augment_positions
from .positions import grid, keep, sizes
from .registry import Host, make
from .rope import RoPE
from .rotation import Rotation
from .scaling import Scaling, Temperature, check_temperature, temperature


@dataclass(frozen=True)
class Where:
    """What one attention layer is told of positions: a rotation, a factor on the scores, an additive mask."""

    rotation: Rotation | None = None
    temperature: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False

    def qk(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as attention should see them, `[B, H, N, D]`."""
        if self.rotation is not None:
            return self.rotation.qk(q, k)
        return (q if self.temperature is None else (q * self.temperature).to(q.dtype)), k


class WrappedAttention(Attention):
    """timm's Attention, with queries and keys turned after their norms."""

    def forward(self, x: Tensor, attn_mask: Where | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        where = attn_mask or Where()
        batch, tokens, _ = x.shape
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        packed = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = packed.unbind(0)  # [B, H, N, D] each
        q, k = where.qk(self.q_norm(q), self.k_norm(k))
        if self.fused_attn:
            drop = self.attn_drop.p if self.training else 0.0
            out = nn.functional.scaled_dot_product_attention(q, k, v, where.mask, drop, is_causal=where.is_causal)
        else:
            scores = (q * self.scale) @ k.mT
            bias = resolve_self_attn_mask(tokens, scores, where.mask, where.is_causal)
            scores = scores if bias is None else scores + bias
            out = self.attn_drop(scores.softmax(dim=-1)) @ v
        out = self.norm(out.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        return self.proj_drop(self.proj(out if gate is None else out * gate))


class WrappedPatchEmbed(PatchEmbed):
    """timm's PatchEmbed without its own checks, which format symbolic sizes: a graph would hold for one size only."""

    def forward(self, x: Tensor) -> Tensor:
        if self.dynamic_img_pad:
            height, width = (-s % p for s, p in zip(x.shape[-2:], self.patch_size))
            x = nn.functional.pad(x, (0, width, 0, height))
        return self.norm(self.proj(x).flatten(2).mT)  # [B, N, C]


@dataclass
class Settings:
    """How a model was wrapped, and what `unwrap` must put back."""

    axes: int
    trained_extent: tuple[int, ...]
    keep_pos_embed: bool
    temperature: Temperature | None
    augment: dict[str, Any]
    pos_embed_learns: bool
    strict_img_size: bool


class WrappedVisionTransformer(VisionTransformer):
    """A VisionTransformer with positions of our own, at any height and width."""

    encoding: nn.Module | None
    wrapped: Settings

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """`[B, C, H, W]` -> tokens `[B, prefix + N, D]`."""
        tokens, wheres, _ = self.start(x, attn_mask, is_causal)
        for block, where in zip(self.blocks, wheres):
            tokens = self._block(block, tokens, where)
        return self.norm(tokens)

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
    ) -> Any:
        """As timm's: the outputs of the chosen blocks, and the final features."""
        choose("output_fmt", output_fmt, ("NCHW", "NLC"))
        taken, last = feature_take_indices(len(self.blocks), indices)
        tokens, wheres, extent = self.start(x, attn_mask, is_causal, drop=False)
        outputs = []
        for i, (block, where) in enumerate(zip(self.blocks[: last + 1] if stop_early else self.blocks, wheres)):
            tokens = self._block(block, tokens, where)
            if i in taken:
                outputs.append(self.norm(tokens) if norm else tokens)
        n = self.num_prefix_tokens
        prefix, maps = [y[:, :n] for y in outputs], [y[:, n:] for y in outputs]
        if output_fmt == "NCHW":
            maps = [y.unflatten(1, extent).permute(0, 3, 1, 2).contiguous() for y in maps]
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": maps}
            if n and return_prefix_tokens:
                result["image_intermediates_prefix"] = prefix
            return result if intermediates_only else {**result, "image_features": self.norm(tokens)}
        shown = list(zip(maps, prefix)) if n and return_prefix_tokens else maps
        return shown if intermediates_only else (self.norm(tokens), shown)

    def no_weight_decay(self) -> set[str]:
        """timm's names, and those of learned position parameters."""
        return {*super().no_weight_decay(), *(f"encoding.{n}" for n in _undecayed(self.encoding))}

    def start(
        self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False, drop: bool = True
    ) -> tuple[Tensor, Sequence[Where], tuple[int, int]]:
        """Tokens ready for the first block, what each block is told of positions, and the token grid."""
        extent = self._extent(x)
        patches = self.patch_embed(x)
        patches = patches.flatten(1, 2) if patches.ndim == 4 else patches  # [B, N, C]
        points = self._points(extent, len(patches))
        tokens = self._with_prefix(patches, points, extent)
        kept = None
        if drop and self.training and not isinstance(self.patch_drop, nn.Identity):
            tokens, kept = patch_dropout_forward(
                tokens, self.patch_drop.prob, self.num_prefix_tokens, self.patch_drop.ordered, self.training
            )
        where = [Where(rotation, factor, mask, is_causal) for rotation, factor in self._layers(points, extent, kept)]
        return self.norm_pre(tokens), where * (len(self.blocks) if len(where) == 1 else 1), extent

    def _extent(self, x: Tensor) -> tuple[int, int]:
        """The token grid of an image batch; sizes that would lose pixels are refused."""
        if x.ndim != 4:
            raise ValueError(f"input of shape {list(x.shape)}: expected [B, C, H, W]")
        size, patch = tuple(x.shape[-2:]), self.patch_embed.feat_ratio(as_scalar=False)
        if not self.patch_embed.dynamic_img_pad and any(s % p for s, p in zip(size, patch)):
            near = "x".join(str(max(1, round(s / p)) * p) for s, p in zip(size, patch))
            raise ValueError(f"input of {size[0]}x{size[1]} is no multiple of the patch {patch[0]}x{patch[1]}: resize to {near}")
        extent: tuple[int, int] = self.patch_embed.dynamic_feat_size(size)
        return extent

    def _points(self, extent: tuple[int, int], batch: int) -> Tensor:
        """Coordinates of the patch tokens `[N, A]`, augmented per sample in training `[B, N, A]`."""
        rope = self.encoding.table if isinstance(self.encoding, Sinusoidal) else self._rope()
        points = grid(*extent, device=self.patch_embed.proj.weight.device) if rope is None else rope.positions(*extent)
        return augment_positions(points, batch=batch, **self.wrapped.augment) if self.training and self.wrapped.augment else points

    def _with_prefix(self, patches: Tensor, points: Tensor, extent: tuple[int, int]) -> Tensor:
        """Absolute codes on the patch tokens; class and register tokens before them; timm's own table if it is kept."""
        if isinstance(self.encoding, (Sinusoidal, Learned)):
            patches = patches + self.encoding(points, extent).to(patches.dtype)
        prefix = [p.expand(len(patches), -1, -1) for p in (self.cls_token, self.reg_token) if p is not None]
        if self.pos_embed is None or not self.wrapped.keep_pos_embed:
            return torch.cat([*prefix, patches], dim=1)
        bare = 0 if self.no_embed_class else self.num_prefix_tokens
        table = resample_abs_pos_embed(self.pos_embed, extent, self.patch_embed.grid_size, bare)
        if self.no_embed_class:
            return self.pos_drop(torch.cat([*prefix, patches + table], dim=1))
        return self.pos_drop(torch.cat([*prefix, patches], dim=1) + table)

    def _layers(self, points: Tensor, extent: tuple[int, int], kept: Tensor | None) -> list[tuple[Rotation | None, Tensor | None]]:
        """Rotation and score factor, one for all blocks or one a block."""
        if self._rope() is None:
            kind, trained = self.wrapped.temperature, sizes(self.wrapped.trained_extent, points.device)
            factor = None if kind is None else temperature(kind, sizes(extent, points.device), trained)
            return [(None, factor)]
        points = points if kept is None else keep(points, kept)
        ropes = self.encoding if isinstance(self.encoding, nn.ModuleList) else [self.encoding]
        return [(rope(points, extent), None) for rope in ropes]  # type: ignore[misc]

    def _block(self, block: nn.Module, tokens: Tensor, where: Where) -> Tensor:
        if self.grad_checkpointing and self.training and not torch.compiler.is_compiling():
            return checkpoint(block, tokens, where)
        return block(tokens, where)

    def _rope(self) -> RoPE | None:
        first = self.encoding[0] if isinstance(self.encoding, nn.ModuleList) else self.encoding
        return first if isinstance(first, RoPE) else None


def _undecayed(encoding: nn.Module | None) -> list[str]:
    names = []
    for prefix, module in encoding.named_modules() if encoding is not None else ():
        if isinstance(module, (RoPE, Learned)):
            names += [f"{prefix}.{name}" if prefix else name for name in module.no_weight_decay()]
    return names


def wrap(
    model: nn.Module,
    encoding: str | RoPE | Sinusoidal | Learned,
    *,
    axes: int = 2,
    keep_pos_embed: bool = False,
    strength: float | tuple[float, ...] = 1.0,
    scaling: Scaling | None = None,
    temperature: Temperature | None = None,
    augment: Mapping[str, Any] | None = None,
    trained_extent: tuple[int, ...] | None = None,
    **options: Any,
) -> nn.Module:
    """Give a timm model `encoding` instead of its own positions; it then takes any height and width.

        model = wrap(timm.create_model("vit_small_patch16_224"), "axial", theta=100)

    - `encoding`: a name of `list_encodings()`, or a module (`RoPE`, `Sinusoidal`, `Learned`).
    - `keep_pos_embed`: leave the model's own table in place, resized to the input; else it stays under its key, unread.
    - `strength`: share of each angle that is turned; 0 with `keep_pos_embed=True` is the original model.
    - `scaling`, `temperature`: for inputs above `trained_extent` (tokens an axis, the model's own grid by default).
    - `augment`: `shift`, `jitter`, `rescale` of coordinates in training, one draw a sample.
    - further options go to the encoding.

    Changes the model it is given and returns it (deepcopy first to keep the old one); `unwrap` undoes it. Raises ValueError
    for a class it does not know, naming it.
    """
    vit = _check_classes(model, axes)
    extent = trained_extent or tuple(vit.patch_embed.grid_size)
    check_temperature(temperature)
    check_options("augment", augment or {}, augment_positions)
    if isinstance(encoding, str):
        if encoding in FAMILIES:
            options |= {"strength": strength, "temperature": temperature}
        elif strength != 1.0:
            raise ValueError(f"strength={strength!r} is the share of a rotation: encoding {encoding!r} has none")
        attention = vit.blocks[0].attn
        host = Host(vit.embed_dim, attention.num_heads, attention.head_dim, len(vit.blocks), extent, vit.num_prefix_tokens)
        module = make(encoding, axes, host, scaling=scaling, **options)
    else:
        options |= {"scaling": scaling, "strength": None if strength == 1.0 else strength}
        options |= {"temperature": temperature if isinstance(encoding, RoPE) else None}
        given = ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
        if given:
            raise ValueError(f"encoding is a module: {given} must be given to it")
        module = encoding
    learns, strict = vit.pos_embed is not None and vit.pos_embed.requires_grad, vit.patch_embed.strict_img_size
    vit.__class__ = WrappedVisionTransformer
    for block in vit.blocks:
        block.attn.__class__ = WrappedAttention
    if type(vit.patch_embed) is PatchEmbed:
        vit.patch_embed.__class__ = WrappedPatchEmbed
    vit.wrapped = Settings(axes, extent, keep_pos_embed, temperature, dict(augment or {}), learns, strict)
    vit.encoding = module
    vit.patch_embed.strict_img_size = False
    if vit.pos_embed is not None and not keep_pos_embed:
        vit.pos_embed.requires_grad_(False)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The timm model as it was before `wrap`, weights as they are now."""
    if not isinstance(model, WrappedVisionTransformer):
        raise ValueError(f"{type(model).__name__} was not wrapped")
    settings = model.wrapped
    model.__class__ = VisionTransformer  # type: ignore[assignment]
    for block in model.blocks:
        block.attn.__class__ = Attention
    if type(model.patch_embed) is WrappedPatchEmbed:
        model.patch_embed.__class__ = PatchEmbed  # type: ignore[assignment]
    if model.pos_embed is not None:
        model.pos_embed.requires_grad_(settings.pos_embed_learns)
    model.patch_embed.strict_img_size = settings.strict_img_size
    del model.wrapped, model.encoding
    return model


def _check_classes(model: nn.Module, axes: int) -> Any:
    """Exact classes only: what is not known is refused by name."""
    if isinstance(model, WrappedVisionTransformer):
        raise ValueError("this model is wrapped already: unwrap it first")
    if type(model) is not VisionTransformer:
        raise ValueError(f"wrap does not know {type(model).__name__}: it takes timm's VisionTransformer so far")
    for block in model.blocks:
        attention = getattr(block, "attn", None)  # parallel blocks have none
        if type(block) is not Block or type(attention) is not Attention:
            found = type(block).__name__ + ("" if attention is None else f" with {type(attention).__name__}")
            raise ValueError(f"wrap does not know {found}: it takes Block with Attention")
    if axes != 2:
        raise ValueError(f"axes={axes}: image models have 2")
    return model
