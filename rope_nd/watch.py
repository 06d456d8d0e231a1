"""What a model attends to: the shares that some queries give to all keys, in every layer, of one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .positions import grid

SOFTMAX = torch.softmax, Tensor.softmax, F.softmax


class Watch(TorchFunctionMode):
    """Keeps attention while it is entered: of `queries` (indices of tokens; None: of all), a tensor `[B, H, Q, N]` a layer.

        with torch.no_grad(), Watch([0]) as seen:
            model(image)
        seen.layers[-1]                     # what the class token attends to in the last layer

    It sees PyTorch's fused attention and softmaxes over keys, whatever model calls them, also where queries come in blocks. What
    has fewer queries than keys without being a block of them (attention pooling) is passed over. A compiled model shows nothing.
    """

    def __init__(self, queries: Iterable[int] | None = None) -> None:
        super().__init__()
        self.queries = None if queries is None else sorted(queries)
        self.layers: list[Tensor] = []
        self.parts: list[Tensor] = []
        self.done = 0  # queries of the layer that is under way

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self._fused(*args, **(kwargs or {}))
        elif func in SOFTMAX and _over_keys(found, *args[1:], **(kwargs or {})):
            self._keep(found.shape[-2], found.shape[-1], lambda rows: found[:, :, rows])
        return found

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """The shares that fused attention does not make, of the wanted queries alone."""
        many, keys = query.shape[-2], key.shape[-2]

        def shares(rows: list[int]) -> Tensor:
            k = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1) if enable_gqa else key
            scores = query[:, :, rows].float() @ k.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
            if attn_mask is not None:
                mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., rows, :]
                scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            if is_causal:
                after = torch.arange(keys, device=scores.device) > torch.tensor(rows, device=scores.device)[:, None]
                scores = scores.masked_fill(after, -torch.inf)
            return scores.softmax(dim=-1)

        self._keep(many, keys, shares)

    def _keep(self, many: int, keys: int, shares: Callable[[list[int]], Tensor]) -> None:
        """Take the wanted ones of the next `many` queries; the layer is whole when there are as many as keys."""
        wanted = range(keys) if self.queries is None else self.queries
        rows = [row - self.done for row in wanted if self.done <= row < self.done + many]
        with torch.no_grad():
            self.parts.append(shares(rows).detach().float())
        self.done += many
        if self.done >= keys:
            self.layers.append(torch.cat(self.parts, dim=2))
            self.parts, self.done = [], 0


def _over_keys(shares: Tensor, dim: int | None = None, *_: Any, **__: Any) -> bool:
    """Whether a softmax over the axis `dim` gave shares `[B, H, Nq, Nk]`."""
    return shares.ndim == 4 and dim in (-1, 3) and shares.shape[-2] <= shares.shape[-1]


def attention(model: nn.Module, x: Tensor, queries: Iterable[int] | None = None) -> list[Tensor]:
    """The attention of a model's layers on an input, `[B, H, Q, N]` each. Q are `queries`, or all; N counts prefix tokens.

    Raises ValueError where nothing was seen, or a query is no token.
    """
    told = None if queries is None else sorted(queries)
    with torch.no_grad(), Watch(told) as seen:
        model(x)
    if not seen.layers:
        raise ValueError(f"{type(model).__name__} made no attention over all its tokens (a compiled model shows none)")
    if told is not None and (told[0] < 0 or seen.layers[0].shape[2] != len(told)):
        raise ValueError(f"queries {told}: tokens are 0 to {seen.layers[0].shape[3] - 1}")
    return seen.layers


def entropy(shares: Tensor) -> Tensor:
    """Entropy of attention `[.., N]` over that of looking everywhere alike, from 0 (at one token) to 1."""
    nats = -(shares * shares.clamp(min=torch.finfo(shares.dtype).tiny).log()).sum(-1)
    return nats / torch.tensor(float(shares.shape[-1])).log()


def distance(shares: Tensor, queries: Iterable[int], extent: tuple[int, ...], prefix_tokens: int = 0) -> Tensor:
    """How far off each query looks on the mean, in tokens: `[.., Q]` of attention `[.., Q, N]` of the patches on a grid.

    `queries` are indices among all tokens; shares of prefix tokens, which are nowhere, are left out of the mean.
    """
    points = grid(*extent, device=shares.device)  # [N, A]
    origins = points[torch.tensor(list(queries), device=shares.device) - prefix_tokens]  # [Q, A]
    on_patches = shares[..., prefix_tokens:]
    far = torch.cdist(origins, points)  # [Q, N]
    return (on_patches * far).sum(-1) / on_patches.sum(-1).clamp(min=torch.finfo(shares.dtype).tiny)
