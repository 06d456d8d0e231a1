"""BEiT and VisionTransformerRelPos: models that come with a relative bias, here at any grid.

A table holds one entry for each offset between two tokens of the trained window, and three more where there is a class token.
At another size it is resized as timm's `resize_rel_pos_bias_table` does (after BEiT): the trained offsets are laid out in a
geometric progression that reaches the ends of the new window, so that near neighbours keep their entries and far ones are
stretched, and what lies between is interpolated linearly. Here that is two small matrices, differentiable and traceable.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from timm.layers.pos_embed_rel import RelPosBias, RelPosMlp
from timm.models.beit import Attention, Beit, Block
from timm.models.vision_transformer_relpos import RelPosAttention, RelPosBlock, ResPostRelPosBlock, VisionTransformerRelPos
from torch import Tensor, nn

from ..positions import sizes
from .attention import self_attention
from .stack import Stack
from .where import Where


def ratio(reach: int, target: Tensor) -> Tensor:
    """The q in [1.01, 1.5] with 1 + q + .. + q^(reach - 1) = `target`, by bisection (19 steps: timm's stop at 1e-6)."""
    low, high = target.new_tensor(1.01), target.new_tensor(1.5)
    for _ in range(math.ceil(math.log2(0.49 / 1e-6))):
        q = (low + high) / 2
        above = (1 - q**reach) / (1 - q) > target
        low, high = torch.where(above, low, q), torch.where(above, q, high)
    return q


def offset_weights(trained: int, count: int, device: torch.device) -> Tensor:
    """How each offset of a new axis reads the trained ones: `[2 count - 1, 2 trained - 1]`."""
    far = sizes((count,), device)[0] - 1
    offsets = torch.arange(2 * count - 1, device=device).to(far.dtype) - far
    if trained == 1:
        return offsets.new_ones(2 * count - 1, 1)
    q = ratio(trained - 1, far)
    steps = torch.arange(trained, device=device, dtype=far.dtype)
    laid = (q**steps - 1) / (q - 1)  # 0, 1, 1 + q, ...: where the trained offsets 0 .. trained - 1 lie
    size = offsets.abs().clamp(max=laid[-1])
    below = ((laid <= size[:, None]).sum(1) - 1).clamp(0, trained - 2)  # ONNX has no searchsorted
    share = (size - laid[below]) / (laid[below + 1] - laid[below])
    near = trained - 1 + offsets.sign().long() * below  # column of the trained offset nearer to zero
    next_ = near + torch.where(offsets < 0, -1, 1)
    weights = offsets.new_zeros(2 * count - 1, 2 * trained - 1)
    return weights.scatter_add(1, near[:, None], 1 - share[:, None]).scatter_add(1, next_[:, None], share[:, None])


def offset_index(extent: tuple[int, ...], device: torch.device) -> Tensor:
    """`[N, N]`: which entry of a flat table of offsets the pair (query, key) reads."""
    height, width = extent
    rows, columns = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
    y, x = rows.flatten(), columns.flatten()
    return (y[:, None] - y + height - 1) * (2 * width - 1) + x[:, None] - x + width - 1


def table_bias(table: Tensor, window: tuple[int, int], extent: tuple[int, ...]) -> Tensor:
    """The bias of a table of the trained `window`, at the grid `extent`: `[offsets, H]` -> `[H, N, N]`.

    With three entries more, for a class token, `[H, 1 + N, 1 + N]`.
    """
    count = (2 * window[0] - 1) * (2 * window[1] - 1)
    entries, rest = table[:count], table[count:]
    if torch.compiler.is_compiling() or tuple(extent) != tuple(window):  # a graph must hold for both
        rows, columns = _as_trained(window, extent, [offset_weights(w, n, table.device) for w, n in zip(window, extent)])
        square = entries.float().unflatten(0, (2 * window[0] - 1, 2 * window[1] - 1))  # [2h - 1, 2w - 1, H]
        entries = torch.einsum("ia,abh,jb->ijh", rows, square, columns).flatten(0, 1).to(table.dtype)
    bias = entries[offset_index(extent, table.device)].permute(2, 0, 1)  # [H, N, N]
    if not len(rest):
        return bias
    first = rest[0].view(-1, 1, 1).expand(-1, 1, bias.shape[1])  # from the class token, to it, and its own
    below = torch.cat((rest[1].view(-1, 1, 1).expand(-1, bias.shape[1], 1), bias), dim=2)
    return torch.cat((torch.cat((rest[2].view(-1, 1, 1), first), dim=2), below), dim=1)


def _as_trained(window: tuple[int, int], extent: tuple[int, ...], weights: list[Tensor]) -> list[Tensor]:
    """Weights that read each offset as it is where the whole grid is the trained one, without a branch."""
    same = (sizes(extent, weights[0].device) == sizes(window, weights[0].device)).all()
    plain = [
        (torch.arange(w.shape[0], device=w.device)[:, None] - n) == torch.arange(w.shape[1], device=w.device) - t
        for w, n, t in zip(weights, extent, window)
    ]
    return [torch.where(same, p.to(w.dtype), w).to(torch.float32) for p, w in zip(plain, weights)]


def module_bias(module: nn.Module, extent: tuple[int, ...]) -> Tensor:
    """The bias `[H, prefix + N, prefix + N]` of timm's RelPosBias or RelPosMlp at the grid `extent`."""
    if isinstance(module, RelPosBias):
        return table_bias(module.relative_position_bias_table, module.window_size, extent)
    if not isinstance(module, RelPosMlp):
        raise ValueError(f"wrap does not know the relative bias {type(module).__name__}: it takes RelPosBias and RelPosMlp")
    weight = module.mlp.fc1.weight
    values = module.mlp(_log_offsets(module, extent, weight.device).to(weight.dtype)).flatten(0, 1)  # [offsets, H]
    bias = module.bias_act(values[offset_index(extent, weight.device)].permute(2, 0, 1))
    bias = bias if module.bias_gain is None else module.bias_gain * bias
    return nn.functional.pad(bias, (module.prefix_tokens, 0, module.prefix_tokens, 0))


def _log_offsets(module: RelPosMlp, extent: tuple[int, ...], device: torch.device) -> Tensor:
    """Offsets on a logarithmic scale `[2h - 1, 2w - 1, 2]`, as timm's `gen_relative_log_coords`."""
    axes = [torch.arange(2 * n - 1, device=device).float() - (n - 1) for n in extent]
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    if module.bias_gain is None:  # all modes but "swin"
        return offsets.sign() * offsets.abs().log1p()
    window = getattr(module, "pretrained_window_size", (0, 0))
    trained = window if window[0] > 0 else extent
    scaled = offsets * 8 / (sizes(trained, device) - 1).clamp(min=1).float()
    return scaled.sign() * (1 + scaled.abs()).log2() / math.log2(8)


class WrappedBeitAttention(Attention):
    """BEiT's attention; its table is read at the grid at hand."""

    layer: int

    def forward(self, x: Tensor, shared_rel_pos_bias: Where | None = None) -> Tensor:  # type: ignore[override]
        where, own = shared_rel_pos_bias, None
        if where is not None and where.own_bias and self.relative_position_bias_table is not None:
            own = table_bias(self.relative_position_bias_table, self.window_size, where.extent)
        return self_attention(self, x, where, own)


class WrappedRelPosAttention(RelPosAttention):
    """Attention with a relative bias of its own; queries and keys may be normed."""

    layer: int

    def forward(self, x: Tensor, shared_rel_pos: Where | None = None) -> Tensor:  # type: ignore[override]
        where, own = shared_rel_pos, None
        if where is not None and where.own_bias and self.rel_pos is not None:
            own = module_bias(self.rel_pos, where.extent)
        return self_attention(self, x, where, own)


class SharedBias(Stack):
    """A model whose layers may share one relative bias: it goes with the biases that the blocks are told."""

    def _shared(self, extent: Any) -> Tensor | None:
        raise NotImplementedError

    def _where(self, points: Tensor | None, extent: Any, *rest: Any, **named: Any) -> Where:
        where = super()._where(points, extent, *rest, **named)
        shared = self._shared(extent) if where.own_bias else None
        if shared is None:
            return where
        return where.with_biases(lambda bias: bias + shared) if where.biases else replace(where, biases=(shared,))


class WrappedBeit(SharedBias, Beit):
    """BEiT and BEiT v2."""

    def _shared(self, extent: Any) -> Tensor | None:
        shared = self.rel_pos_bias
        return None if shared is None else table_bias(shared.relative_position_bias_table, shared.window_size, extent)


class WrappedVisionTransformerRelPos(SharedBias, VisionTransformerRelPos):
    """timm's ViT with relative positions instead of a table."""

    own: ClassVar[dict[str, str]] = {**Stack.own, "bias": r"(.*\.)?(shared_)?rel_pos\."}

    def _shared(self, extent: Any) -> Tensor | None:
        return None if self.shared_rel_pos is None else module_bias(self.shared_rel_pos, extent)


MODELS = (WrappedBeit, WrappedVisionTransformerRelPos)
ATTENTIONS = (WrappedBeitAttention, WrappedRelPosAttention)
UNCHANGED = (Block, RelPosBlock, ResPostRelPosBlock)
