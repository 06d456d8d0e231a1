"""Which weights train: q and k alone, attention, everything, or low-rank additions; and a running mean of them."""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rope_nd.wrapping.families import wrapped_trunk
from train.retrofit.config import Config

NORMS = r".*norm\w*\.(weight|bias)|encoding\..*"  # norms and frequencies, trained with whatever else
FUSED = r"blocks\..*\.qkv\.(weight|bias)"
APART = r"blocks\..*\.([qk]_proj\.(weight|bias)|q_bias)"
REST = r"blocks\..*\.(v_proj\.(weight|bias)|v_bias|attn\.proj\.(weight|bias))"
LINEAR = r"blocks\..*\.(qkv|[qkv]_proj|attn\.proj)"


def chosen(model: nn.Module, train: str) -> dict[str, float]:
    """Names of the parameters that train, with the share of their leading rows that do: 2/3 of a fused qkv for q and k alone."""
    inner = wrapped_trunk(model)
    table = set(inner.own_parameters("absolute")) if inner is not None else set()
    names = [name for name, _ in model.named_parameters() if name not in table]
    if train == "all":
        return dict.fromkeys(names, 1.0)
    found = {name: 1.0 for name in names if re.fullmatch(NORMS, name) or ".lora_" in name}
    if train == "lora":
        return found
    attention = {name: 2 / 3 if train == "qk" else 1.0 for name in names if re.fullmatch(FUSED, name)}
    attention |= {name: 1.0 for name in names if re.fullmatch(APART if train == "qk" else f"{APART}|{REST}", name)}
    if train == "attn":
        attention |= {name: 1.0 for name in names if re.fullmatch(REST, name)}
    if not attention:
        raise ValueError(f"train {train!r}: {type(model).__name__} has no projections known by name; choose all")
    return {**found, **attention}


def freeze_others(model: nn.Module, train: str) -> dict[str, nn.Parameter]:
    """The parameters that train; all others are frozen, and so are rows that are not to move (their gradient is zero)."""
    shares, found = chosen(model, train), {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in shares)
        if name in shares:
            found[name] = parameter
            if shares[name] < 1:
                parameter.register_hook(partial(_leading, round(len(parameter) * shares[name])))
    return found


def _leading(rows: int, grad: Tensor) -> Tensor:
    return torch.cat((grad[:rows], torch.zeros_like(grad[rows:])))


def groups(model: nn.Module, train: str, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters for the optimiser: those that decay, and those that do not (vectors, position parameters, parts of a weight)."""
    shares, named = chosen(model, train), dict(model.named_parameters())
    exempt = set(getattr(model, "no_weight_decay", set)())
    decays = [name for name, share in shares.items() if named[name].ndim > 1 and share == 1 and name not in exempt]
    others = [name for name in shares if name not in set(decays)]
    each = [(decays, weight_decay), (others, 0.0)]
    return [{"params": [named[name] for name in names], "weight_decay": decay} for names, decay in each if names]


def add_lora(model: nn.Module, rank: int) -> nn.Module:
    """Low-rank additions to the projections of attention, zero at first; needs peft."""
    peft = _peft()
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and re.fullmatch(LINEAR, name)]
    if not names:
        raise ValueError(f"train 'lora': {type(model).__name__} has no projections known by name; choose all")
    return peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=names), model)


def merge_lora(model: nn.Module) -> nn.Module:
    """The additions become part of the weights they were added to; names are those of the model again."""
    for name, part in list(model.named_modules()):
        if hasattr(part, "get_base_layer") and hasattr(part, "merge"):
            part.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, part.get_base_layer())
    return model


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise ValueError(f"train 'lora' needs peft: pip install 'rope_nd[retrofit]' ({error})") from None


class Mean:
    """A running mean of the weights that train, faster at the start: decay min(d, (1 + step) / (10 + step))."""

    def __init__(self, weights: dict[str, nn.Parameter], decay: float) -> None:
        self.decay, self.values = decay, {name: p.detach().clone() for name, p in weights.items()}

    @torch.no_grad()
    def update(self, weights: dict[str, nn.Parameter], step: int) -> None:
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        for name, parameter in weights.items():
            self.values[name].lerp_(parameter, share)


def mean_of(weights: dict[str, nn.Parameter], config: Config) -> Mean | None:
    return Mean(weights, config.ema) if config.ema else None
