"""Video: axes (t, h, w), counted in latent frames and patches unless said otherwise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..freqs import axial
from ..positions import Extent, grid
from ..rope import RoPE
from ..rotation import Rotation
from ..scaling import ntk
from ..variants import fitted
from ._preset import preset
from .generators import by_widths


@preset(axes=3, paper="V-JEPA 2 (Assran 2025), its pairs put right", used_by="new models")
def vjepa2(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial, (D // 3) // 2 pairs an axis, the rest of the width unturned; what V-JEPA 2 meant: see `vjepa2_published`."""
    return RoPE(head_dim, 3, **{"theta": theta, "leftover": "unrotated", **options})


@preset(axes=3, paper="V-JEPA 2 (Assran 2025), as published", used_by="V-JEPA 2")
def vjepa2_published(head_dim: int, *, theta: float = 10000.0, **options: Any) -> TiledRoPE:
    """`vjepa2` with the tables of the released weights, tiled: the two channels of a pair turn by different angles."""
    return TiledRoPE(head_dim, 3, **{"theta": theta, **options})


@preset(axes=3, paper="CogVideoX (Yang 2024)", used_by="CogVideoX, ConsisID, EasyAnimate")
def cogvideox(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial: 16, 24 and 24 of 64 channels for t, h and w, theta 10000, pairs (2i, 2i + 1).

    Token indices (CogVideoX 1.5, and 1.0 at the size of its base grid); other sizes of 1.0: `coordinates=laid_over(h, w)`.
    """
    return by_widths(head_dim, (16, 24, 24), theta, options)


def laid_over(height: int, width: int, *, base: tuple[int, int] = (30, 45)) -> dict[str, tuple[float, float, float]]:
    """CogVideoX 1.0's `coordinates` for a grid of `height` x `width` tokens, laid over the middle of the base grid.

    The region has the grid's aspect and fills one side of the base, all its borders whole numbers; along each axis
    x = start + i (stop - start) / N.
    """
    size = base[0] / height if height / width > base[0] / base[1] else base[1] / width
    region = (round(height * size), round(width * size))
    start = [round((whole - part) / 2) for whole, part in zip(base, region)]
    return {"offset": (0.0, *start), "spacing": (1.0, region[0] / height, region[1] / width)}  # type: ignore[dict-item]


@preset(axes=3, paper="HunyuanVideo (Kong 2024)", used_by="HunyuanVideo, FramePack")
def hunyuan_video(head_dim: int, *, theta: float = 256.0, **options: Any) -> RoPE:
    """Axial, theta 256: 16, 56 and 56 of 128 channels for t, h and w, pairs (2i, 2i + 1), token indices."""
    return by_widths(head_dim, (16, 56, 56), theta, options)


@preset(axes=3, paper="Wan (Wan 2025)", used_by="Wan 2.1 and 2.2, SkyReels-V2")
def wan(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial: D // 6 pairs each for h and w, all others for t; pairs (2i, 2i + 1), token indices."""
    return RoPE(head_dim, 3, **{"theta": theta, "leftover": 0, **options})


@preset(axes=3, paper="Cosmos (NVIDIA 2025)", used_by="Cosmos-Predict1, Cosmos-Predict2")
def cosmos(
    head_dim: int,
    *,
    theta: float = 10000.0,
    stretch: tuple[float, float, float] = (2.0, 1.0, 1.0),
    fps: float | None = None,
    base_fps: float = 24.0,
    **options: Any,
) -> RoPE:
    """The split of `wan` in the half layout; NTK with a fixed stretch s_a an axis; time in frames at `base_fps`.

    theta_a = theta s_a^(D_a / (D_a - 2)), D_a the channels of axis a. With `fps` the frames are base_fps / fps apart, without
    (images) one. A `scaling` of one's own acts on top of this.
    """
    plain = axial(head_dim // 2, 3, theta=theta, leftover=0)
    freqs = ntk(plain, plain.new_tensor(stretch), plain.new_ones(3))
    spacing = (1.0 if fps is None else base_fps / fps, 1.0, 1.0)
    return RoPE(head_dim, 3, freqs, **{"layout": "half", "coordinates": {"spacing": spacing}, **options})


@preset(axes=3, paper="Allegro (Zhou 2024)", used_by="Allegro")
def allegro(
    head_dim: int, *, theta: float = 10000.0, interpolation: tuple[float, float, float] = (2.0, 2.0, 2.0), **options: Any
) -> RoPE:
    """Axial in thirds, x_a = i / interpolation_a.

    The model pairs the halves of each third, which is neither of our layouts: its projections are brought to this one by
    `convert_layout(weight, head_dim // 3, "half", "interleaved")`; scores stay.
    """
    spacing = tuple(1 / factor for factor in interpolation)
    return RoPE(head_dim, 3, **{"theta": theta, "leftover": "unrotated", "coordinates": {"spacing": spacing}, **options})


@preset(axes=3, paper="LTX-Video (HaCohen 2024)", used_by="LTX-Video")
def ltx(
    head_dim: int,
    *,
    heads: int = 32,
    theta: float = 10000.0,
    fps: float = 25.0,
    patch: tuple[int, int, int] = (8, 32, 32),
    reference: tuple[float, float, float] = (20.0, 2048.0, 2048.0),
    **options: Any,
) -> RoPE:
    """One spectrum over the width of all heads, dealt to t, h and w in turn, so that each head has its own `[H, P, 3]`.

    n = H P // 3 frequencies w_j = (pi / 2) theta^(j / (n - 1)), slowest first, on coordinates 2 x - 1, x the share of a
    `reference` of 20 seconds and 2048 x 2048 pixels: x = i patch_a / reference_a (t: i patch_t / fps / 20). H P - 3n leading pairs
    stay unturned. `patch`: frames and pixels a token.
    """
    count = heads * (head_dim // 2) // 3
    spectrum = math.pi / 2 * theta ** torch.linspace(0, 1, count, dtype=torch.float64, device="cpu")  # [n]
    rows = spectrum.repeat_interleave(3)[:, None] * torch.eye(3, dtype=torch.float64, device="cpu").repeat(count, 1)
    table = nn.functional.pad(rows, (0, 0, heads * (head_dim // 2) - 3 * count, 0))  # [H P, 3]
    unit = (patch[0] / fps, *patch[1:])
    coordinates = {"offset": -1.0, "spacing": tuple(2 * step / whole for step, whole in zip(unit, reference))}
    return RoPE(head_dim, 3, table.view(heads, -1, 3), **{"heads": heads, "coordinates": coordinates, **options})


@preset(axes=3, paper="Mochi 1 (Genmo 2024)", used_by="Mochi 1")
def mochi(head_dim: int, *, pos_frequencies: Tensor | None = None, heads: int = 24, **options: Any) -> RoPE:
    """Learned wave vectors of each head, one table for all layers, on `mochi_positions`.

    `pos_frequencies`: the checkpoint's `[3, H, P]`; without it, mixed directions to learn from. `at` counts tokens: call
    `rope(mochi_positions(t, h, w))`.
    """
    freqs: str | Tensor = "mixed" if pos_frequencies is None else pos_frequencies.permute(1, 2, 0)  # [H, P, 3]
    return RoPE(head_dim, 3, freqs, **{"heads": heads, "learned": True, **options})


def mochi_positions(frames: int, height: int, width: int, *, area: float = 192 * 192) -> Tensor:
    """Frame indices, and h and w around zero, scaled so that every frame has the same `area` -> `[N, 3]`.

    x = s (i - (N - 1) / 2), s = sqrt(area / (height width)).
    """
    step = math.sqrt(area / (height * width))
    middle = (0.0, -step * (height - 1) / 2, -step * (width - 1) / 2)
    return grid(frames, height, width, spacing=(1.0, step, step), offset=middle)


class TiledRoPE(RoPE):
    """Axial RoPE whose table entries stand side by side (`repeat`) where each should stand twice (`repeat_interleave`).

    With F pairs an axis, x the 2F channels of its block and a_f its angles, all indices of a modulo F:

        x'[2i] = x[2i] cos a_2i - x[2i+1] sin a_2i        x'[2i+1] = x[2i+1] cos a_2i+1 + x[2i] sin a_2i+1

    The two channels of a pair turn by different angles, so neither norms nor differences of coordinates are kept (unless
    F = 1). Weights trained this way need it; scaling rules and all else of `RoPE` apply. The layout is "interleaved".
    """

    def __init__(self, head_dim: int, axes: int, **options: Any) -> None:
        super().__init__(head_dim, axes, **{"leftover": "unrotated", **options})
        if self.layout != "interleaved" or 2 * self.pairs != head_dim:
            raise ValueError(
                f"layout={self.layout!r}, rotary_dim={2 * self.pairs}: tiled tables are for whole heads in the interleaved layout"
            )

    def forward(self, positions: Tensor, extent: Extent | None = None) -> TiledRotation:
        plain = super().forward(positions, extent)
        each = self.pairs // self.axes
        blocks = torch.arange(self.axes * each, device=plain.cos.device).view(self.axes, each).repeat(1, 2).flatten()
        rest = torch.arange(self.axes * each, self.pairs, device=plain.cos.device).repeat_interleave(2)
        of = torch.cat((blocks, rest))  # [D], the pair whose angle a channel has
        return TiledRotation(**{**vars(plain), "cos": plain.cos[..., of], "sin": plain.sin[..., of]})


class TiledRotation(Rotation):
    """A `Rotation` with a table entry a channel, `cos`, `sin` `[.., N, D]`."""

    def __call__(self, x: Tensor) -> Tensor:
        """x cos + y sin with y the partners (-x[2i+1], x[2i]), `[B, H, N, D]` -> the same; prefix tokens as they are."""
        cos, sin = fitted(self, x, self.cos.shape[-1])
        work = x.dtype if self.dtype is None else torch.promote_types(x.dtype, self.dtype)
        rest = x[..., self.prefix_tokens :, :].to(work)
        partner = torch.stack((-rest[..., 1::2], rest[..., ::2]), dim=-1).flatten(-2)
        turned = (rest * cos.to(work) + partner * sin.to(work)).to(x.dtype)
        return torch.cat((x[..., : self.prefix_tokens, :], turned), dim=-2) if self.prefix_tokens else turned
