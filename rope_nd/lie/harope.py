"""HARoPE: each head sees queries and keys through a matrix of its own before they are turned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .basis import InBasis, cayley
from .blocks import precise


class HARoPE(InBasis):
    """Head-wise adaptive rotary position encoding (Li 2025): RoPE(x) U Sigma V', the same for queries and keys of a head.

    U = cayley(S_u) and V = cayley(S_v) are orthogonal, Sigma = diag(exp(s)) positive; entries of S_u and S_v `[H|1, D (D - 1) / 2]`
    and `log_scale` s `[H|1, D]` are learned, one set a head if `heads` is given, and start at zero: the RoPE of the family
    `freqs`, exactly. The paper gives a singular value decomposition for each head; how it keeps U and V orthogonal and Sigma
    positive could not be verified, the Cayley map and exp are ours (a rotation by pi in some plane is out of reach).

    Scores depend on differences of coordinates only. Norms are not kept: at `strength=0` a score is q' V Sigma^2 V' k. The matrix
    acts on all tokens, prefix tokens too, which are not turned. For inference `fold` puts it into the projections of queries and
    keys, where no norm stands between. Frequencies are fixed unless `learned`; all scaling rules apply to them.
    """

    left: Tensor
    right: Tensor
    log_scale: Tensor

    def __init__(
        self, head_dim: int, axes: int, freqs: str | Tensor = "axial", *, heads: int | None = None, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(head_dim, axes, freqs, heads=heads, seed=seed, **options)
        still = torch.zeros(heads or 1, head_dim * (head_dim - 1) // 2, dtype=torch.float64, device="cpu")
        scale = torch.zeros(heads or 1, head_dim, dtype=torch.float64, device="cpu")
        self._equip(left=still, right=still, log_scale=scale)

    def matrix(self) -> Tensor:
        """U Sigma V', `[H|1, D, D]` float64."""
        u, v = (cayley(entries, self.head_dim) for entries in (self.left, self.right))
        with precise(u.device):
            return u * self.log_scale.to(u.dtype).exp()[:, None] @ v.mT
