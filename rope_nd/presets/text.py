"""Text: one axis, the index of the token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..rope import RoPE
from ._preset import preset


@preset(axes=1, paper="RoFormer (Su 2021)", used_by="RoFormer")
def roformer(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """The first of them: w_i = theta^(-i/P), pairs (2i, 2i + 1), the whole width; eq. 15 and 34 of the paper."""
    return RoPE(head_dim, 1, **{"theta": theta, **options})


@preset(axes=1, paper="GPT-J (Wang 2021)", used_by="GPT-J")
def gptj(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """A quarter of the width turns (64 of 256 channels), pairs (2i, 2i + 1); the spectrum is that of the quarter."""
    return RoPE(head_dim, 1, **{"theta": theta, "rotary_dim": _quarter(head_dim), **options})


@preset(axes=1, paper="GPT-NeoX-20B (Black 2022)", used_by="GPT-NeoX, Pythia")
def gpt_neox(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """A quarter of the width turns, pairs (i, i + D/8) of it: the half layout."""
    return RoPE(head_dim, 1, **{"theta": theta, "rotary_dim": _quarter(head_dim), "layout": "half", **options})


@preset(axes=1, paper="Llama 2 (Touvron 2023)", used_by="Llama 1 and 2, Mistral 7B")
def llama2(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """RoFormer's frequencies in the half layout, as the converted checkpoints have it."""
    return RoPE(head_dim, 1, **{"theta": theta, "layout": "half", **options})


@preset(axes=1, paper="Llama 3 (Grattafiori 2024)", used_by="Llama 3.1")
def llama3(head_dim: int, *, theta: float = 500000.0, factor: float = 8.0, **options: Any) -> RoPE:
    """Half layout, theta 500000, frequencies stretched once and for all from 8192 tokens.

    Pairs that turn r < 1 times over 8192 tokens: w / factor; r > 4: w; between, w (g + (1 - g) / factor), g = (r - 1) / 3. The
    factor does not depend on the sequence at hand. `scaling=None`: Llama 3.0.
    """
    rule = {"llama3": {"factor": factor, "low": 1.0, "high": 4.0}}
    return RoPE(head_dim, 1, **{"theta": theta, "layout": "half", "trained_extent": (8192,), "scaling": rule, **options})


@preset(axes=1, paper="Llama 3.2 (Meta 2024)", used_by="Llama 3.2 1B and 3B")
def llama3_2(head_dim: int, *, factor: float = 32.0, **options: Any) -> RoPE:
    """`llama3` with a factor of 32."""
    return llama3(head_dim, factor=factor, **options)


def yarn_by_index(
    freqs: Tensor, scale: Tensor, length: Tensor, *, factor: float | None = None, slow: float = 1.0, fast: float = 32.0
) -> Tensor:
    """YaRN as its released code and language models have it: a scaling rule for one geometric spectrum on one axis.

    The paper (and `scaling="yarn"`) ramps with the turns r of a pair over the trained length; the code ramps with its index i,
    which is linear in ln r, between whole indices (Peng 2023, code):

        w (g + (1 - g) / s)    g = 1 - clamp((i - a) / (b - a), 0, 1)
        a = floor i(fast)    b = ceil i(slow)    i(r) = ln(r_0 / r) / ln(r_0 / r_1)

    `freqs` `[H|1, P, 1]`, fastest first, two pairs at the least. Both agree on pairs outside both ramps and nowhere else.
    `factor` fixes s whatever the extent: `scaling=partial(yarn_by_index, factor=4.0)`.
    """
    pairs = freqs.shape[-2]
    if freqs.shape[-1] != 1 or pairs < 2:
        raise ValueError(f"freqs of shape {list(freqs.shape)}: yarn_by_index is for one axis and at least 2 pairs; choose 'yarn'")
    log_turns = (freqs[..., 0] * length / (2 * math.pi)).log()  # [H, P]
    first, step = log_turns[:, :1], log_turns[:, :1] - log_turns[:, 1:2]  # [H, 1] each
    low = ((first - math.log(fast)) / step).floor().clamp(min=0)
    high = ((first - math.log(slow)) / step).ceil().clamp(max=2 * pairs - 1)
    span = torch.where(high == low, 0.001, high - low)
    index = torch.arange(pairs, dtype=freqs.dtype, device=freqs.device)  # [P]
    stretched = ((index - low) / span).clamp(0, 1)[..., None]  # [H, P, 1]
    return freqs * (1 - stretched + stretched / (scale if factor is None else factor))


def _quarter(head_dim: int) -> int:
    return max(2, head_dim // 8 * 2)
