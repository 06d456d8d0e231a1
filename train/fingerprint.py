"""What a model does with positions, as a digest: by it rules that amount to the same are told."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rope_nd.wrapping.families import wrapped_trunk
from rope_nd.wrapping.stack import Stack


@torch.inference_mode()
def fingerprint(model: nn.Module, size: tuple[int, ...], **told: Any) -> bytes:
    """What a model does with positions at a size, as a digest: codes, tables, biases and score factors.

    A model of which that cannot be told without running it (patches of several sizes) has a new digest each time.
    """
    inner = wrapped_trunk(model)
    if inner is None:
        return b"timm"
    if not isinstance(inner, Stack):
        return secrets.token_bytes(16)
    digest = hashlib.sha256()
    for table in _tables(inner.eval().start(torch.zeros(1, inner.in_chans, *size), **told)):
        digest.update(table.float().numpy().tobytes())
    return digest.digest()


def _tables(thing: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and data classes, and those that functions in them make."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (list, tuple)) or is_dataclass(thing):
        for part in thing if isinstance(thing, (list, tuple)) else vars(thing).values():
            yield from _tables(part)
    elif callable(thing):
        yield from _tables(thing())
