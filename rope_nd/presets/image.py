"""Images."""

from __future__ import annotations

from typing import Any

from ..rope import RoPE
from ._preset import preset


@preset(axes=2, paper="RoPE-ViT (Heo 2024)", used_by="timm vit_*_rope_*, naver-ai rope-vit")
def rope_vit_axial(head_dim: int, *, theta: float = 100.0, **options: Any) -> RoPE:
    """Axial, base 100, token indices; columns first."""
    return RoPE(head_dim, 2, axial_columns_first(head_dim, theta), **options)


def axial_columns_first(head_dim: int, theta: float) -> Any:
    """Axial wave vectors `[1, P, 2]` with the pairs of x before those of y."""
    return RoPE(head_dim, 2, theta=theta).freqs.flip(-1)
