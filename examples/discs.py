"""Pictures for the examples: a disc in one of four quarters, drawn at any size. The label is the quarter, so places are needed."""

import torch
from torch import Tensor


def discs(count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures `[B, 3, size, size]` on noise, and the quarters `[B]`; the same scenes at every size."""
    random = torch.Generator().manual_seed(seed)
    quarter = torch.randint(4, (count,), generator=random)
    within = 0.15 + 0.2 * torch.rand(count, 2, generator=random)  # of the whole picture
    centre = within + 0.5 * torch.stack((quarter // 2, quarter % 2), dim=-1)  # [B, 2]
    line = (torch.arange(size) + 0.5) / size
    y, x = line[:, None] - centre[:, 0, None, None], line - centre[:, 1, None, None]  # [B, size, 1], [B, 1, size]
    disc = ((y.square() + x.square()).sqrt() < 0.12).float()  # [B, size, size]
    noise = 0.3 * torch.randn(count, size, size, generator=random)
    return (disc + noise)[:, None].expand(-1, 3, -1, -1).contiguous(), quarter
