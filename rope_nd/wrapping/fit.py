"""Whether an encoding that is given as a module fits the model that it is for."""

from __future__ import annotations

from torch import nn

from ..absolute import Absolute
from ..bias import Bias
from ..registry import Host
from ..rope import RoPE
from .model import lead


def turns(encoding: nn.Module) -> bool:
    """Whether it is a rotary encoding."""
    return isinstance(lead(encoding), RoPE)


def check_module(encoding: nn.Module, host: Host) -> None:
    """A module that does not fit the model is refused before anything runs."""
    ropes = encoding if isinstance(encoding, nn.ModuleList) else [encoding]
    if isinstance(encoding, nn.ModuleList) and len(encoding) not in (1, host.layers):
        raise ValueError(f"encoding is a list of {len(encoding)} modules: give one, or one for each of {host.layers} layers")
    axes = len(host.trained_extent)
    for one in ropes:
        if isinstance(one, (RoPE, Bias, Absolute)) and one.axes != axes:
            ending = "image models have 2" if axes == 2 else f"make it with axes={axes}"
            raise ValueError(f"the {type(one).__name__} has axes={one.axes}: {ending}")
        if isinstance(one, RoPE):
            _check_fit(one, host)
        elif isinstance(one, Bias):
            if one.heads != host.queries:
                raise ValueError(f"encoding has {one.heads} heads, the model {host.queries}: make it with heads={host.queries}")
        elif isinstance(encoding, nn.ModuleList) or not isinstance(one, Absolute):
            raise ValueError(f"encoding is a {type(one).__name__}: give a name, a RoPE, an Absolute or a Bias")
        elif one.dim != host.dim:
            raise ValueError(f"encoding has {one.dim} channels, the model {host.dim}: make it with dim={host.dim}")


def _check_fit(rope: RoPE, host: Host) -> None:
    if rope.head_dim != host.head_dim:
        raise ValueError(f"the RoPE is made for head_dim={rope.head_dim}, the model has {host.head_dim}: make it with that")
    if rope.prefix_tokens != host.prefix_tokens:
        raise ValueError(
            f"the RoPE leaves prefix_tokens={rope.prefix_tokens} unturned, the model has {host.prefix_tokens} prefix tokens "
            f"(class and register tokens): make it with prefix_tokens={host.prefix_tokens}"
        )
    heads = max(t.shape[0] for t in (*rope.parameters(), *rope.buffers()))
    if heads > 1 and host.heads % heads:
        raise ValueError(
            f"the RoPE has frequencies for {heads} heads, the model {host.heads} key heads: make it with heads={host.heads}"
        )
