"""Which timm classes `wrap` knows: exact classes, and what it makes of them. Each family's file ends with what it has."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from timm.layers.hybrid_embed import HybridEmbed
from timm.models import naflexvit, tnt, vision_transformer
from torch import nn

from .inflated import INFLATED
from .inflation import TubeEmbed, check_stem
from .model import Wrapped
from .refused import WHY
from .sampled import NaFlexBlock, WrappedNaFlexVit

FILES = ["attention", "plain", "relative", "cait", "convit", "tnt", "sam", "sampled"]
LATER = {"diff": "timm.layers.diff_attention", "encoders": "timm.models.deepseek_vit", "gemma": "timm.models.gemma4_vit"}
FOUND = [*FILES, *(ours for ours, timms in LATER.items() if find_spec(timms))]
MODULES = [importlib.import_module(f".{name}", __package__) for name in FOUND]


def _all(kind: str) -> tuple[type, ...]:
    return tuple(cls for file in MODULES for cls in getattr(file, kind, ()))


def _pairs(kind: str) -> dict[type, type]:
    """timm class -> ours, which names it last among its bases."""
    return {cls.__bases__[-1]: cls for cls in _all(kind)}


MODELS, CLASSIFIERS, EMBEDS = _pairs("MODELS"), _pairs("CLASSIFIERS"), _pairs("EMBEDS")
ATTENTIONS, BLOCKS, UNCHANGED = _pairs("ATTENTIONS"), _pairs("BLOCKS"), _all("UNCHANGED")
OURS = {**MODELS, **CLASSIFIERS, **ATTENTIONS, **BLOCKS, **EMBEDS, vision_transformer.Block: NaFlexBlock}


def attentions(block: Any) -> list[Any]:
    """The attention layers of a block that see all tokens."""
    if type(block) in ATTENTIONS:
        return [block]
    if isinstance(block, vision_transformer.ParallelThingsBlock):
        return [branch.attn for branch in block.attns]
    return [block.attn_out if isinstance(block, tnt.Block) else block.attn]


def embedding(model: Any) -> Any:
    """What makes patches of an image."""
    return getattr(model, "pixel_embed", getattr(model, "patch_embed", getattr(model, "embeds", None)))


def head_width(layer: Any) -> int:
    """Channels of a head; where a layer does not say, its scale does."""
    return int(getattr(layer, "head_dim", 0)) or round(layer.scale**-2)


def is_ours(part: nn.Module) -> bool:
    """Whether wrapping gave a module its class."""
    return type(part) in (*OURS.values(), *INFLATED.values(), TubeEmbed)


def swaps(model: Any, axes: int = 2) -> list[tuple[nn.Module, type]]:
    """What must become what, the model first. Raises ValueError for what is not known, by name."""
    if axes != 2 and type(model) in MODELS and type(model) not in INFLATED:
        names = ", ".join(cls.__name__ for cls in INFLATED)
        raise ValueError(f"axes={axes}: wrap knows {type(model).__name__} for images alone; other axes are for {names}")
    if type(model) not in MODELS:
        name = type(model).__name__
        raise ValueError(f"wrap does not know {name}" + (f": it {WHY[name]}" if name in WHY else ""))
    ours: Any = (MODELS if axes == 2 else INFLATED)[type(model)]
    found: list[tuple[nn.Module, type]] = [(model, ours)]
    embed = embedding(model)
    if axes == 3:
        check_stem(embed)
        found.append((embed, TubeEmbed))
    elif type(embed) in EMBEDS:
        found.append((embed, EMBEDS[type(embed)]))
    elif type(embed) not in (HybridEmbed, naflexvit.NaFlexEmbeds):
        raise ValueError(f"wrap does not know {type(embed).__name__} before the blocks")
    for block in ours.rotating(model):
        found += _block_swaps(block, naflex=ours is WrappedNaFlexVit)
    return found


def _block_swaps(block: Any, naflex: bool) -> list[tuple[nn.Module, type]]:
    kind = type(block)
    if (kind not in UNCHANGED and kind not in BLOCKS and kind not in ATTENTIONS) or (naflex and kind in ATTENTIONS):
        raise ValueError(f"wrap does not know {kind.__name__}")
    found: list[tuple[nn.Module, type]] = [(block, BLOCKS[kind])] if kind in BLOCKS else []
    if naflex and kind is vision_transformer.Block:
        found.append((block, NaFlexBlock))
    for layer in attentions(block):
        if type(layer) not in ATTENTIONS:
            raise ValueError(f"wrap does not know {kind.__name__} with {type(layer).__name__}")
        found.append((layer, ATTENTIONS[type(layer)]))
    return found


def held(model: Any) -> Any:
    """What a feature extractor holds; any other model as it is."""
    return model.model if hasattr(model, "out_indices") and isinstance(getattr(model, "model", None), nn.Module) else model


def trunk(model: nn.Module) -> Any:
    """The model with the blocks: itself, or the encoder of a classifier, or what a feature extractor holds."""
    inner = held(model)
    return inner.encoder if type(inner) in (*CLASSIFIERS, *CLASSIFIERS.values()) else inner


def wrapped_trunk(model: nn.Module) -> Wrapped | None:
    """The wrapped model inside, if there is one."""
    inner = trunk(model)
    return inner if isinstance(inner, Wrapped) else None
