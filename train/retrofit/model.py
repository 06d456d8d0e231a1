"""The models of a retrofit: the original, its frozen self as teacher, and the student; to and from a folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from rope_nd import fade, hub, wrap
from rope_nd.wrapping.families import wrapped_trunk
from train.config import pairs
from train.modelling import load_weights, write
from train.retrofit.config import Config


def original(config: Config, *, empty: bool = False) -> nn.Module:
    """The pretrained model as timm makes it; `empty`: without its weights."""
    options = pairs(config.model_kwargs, "model_kwargs")
    if config.weights is None and not config.pretrained:
        raise ValueError(f"model {config.model!r} has no weights to start from: give --weights FILE.safetensors, or --pretrained")
    try:
        model = timm.create_model(config.model, pretrained=config.pretrained and not empty, **options)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(f"timm cannot make model {config.model!r} with {options}: {error}") from None
    if config.weights is not None and not empty:
        load_weights(model, config.weights)
    return model.eval()


def teacher(model: nn.Module, *, antialias: bool = True, temperature: Any = None) -> nn.Module:
    """A frozen copy with its own positions, its table resized to any input."""
    frozen = wrap(copy.deepcopy(model), "native", antialias=antialias, temperature=temperature)
    inner: Any = wrapped_trunk(frozen)
    if not inner.own_parameters("absolute"):
        raise ValueError(f"{type(model).__name__} has no table of absolute positions to replace: choose another model")
    return frozen.eval().requires_grad_(False)


def student(model: nn.Module, config: Config, *, strength: float = 0.0, absolute: float = 1.0) -> nn.Module:
    """A copy with the encoding beside its table; by default that is the original still."""
    options = pairs(config.encoding_kwargs, "encoding_kwargs")
    if config.scaling is not None:
        options["scaling"] = config.scaling
    copied: Any = copy.deepcopy(model)
    tokens = config.trained_tokens or min(sizes(config, copied)) // patch(copied)
    augment = {"rescale": config.rescale_coords} if config.rescale_coords != 1 else None
    kept = {"keep_pos_embed": "absolute", "strength": strength, "antialias": config.antialias, "augment": augment}
    wrapped = wrap(copied, config.encoding, trained_extent=(tokens, tokens), **kept, **options)
    return fade(wrapped, strength=strength, absolute=absolute).eval()


def fold(model: nn.Module) -> nn.Module:
    """Move what is the same in all places out of the table: its mean into the stem's bias, the prefix tokens' entries into them.

    The model computes the same: weights of an interpolation sum to one. What is not there (a stem without bias) stays.
    """
    inner: Any = wrapped_trunk(model)
    table, prefix = inner._table()
    with torch.no_grad():
        names = ("cls_token", "dist_token", "reg_token")
        tokens = [token for token in (getattr(inner, name, None) for name in names) if token is not None] if prefix else []
        start = 0
        for token in tokens:
            token += table[:, start : start + token.shape[1]]
            start += token.shape[1]
        table[:, :start] = 0
        bias = getattr(getattr(inner.patch_embed, "proj", None), "bias", None)
        if bias is not None and isinstance(inner.patch_embed.norm, nn.Identity):
            mean = table[0, prefix:].mean(0)
            bias += mean
            table[:, prefix:] -= mean
    return model


def patch(model: Any) -> int:
    """Pixels a token."""
    found = model.patch_embed.patch_size
    return int(found if isinstance(found, int) else found[0])


def pretrained_size(model: Any) -> int:
    """Pixels of the images that the model was trained on."""
    found = model.patch_embed.img_size
    return int(found if isinstance(found, int) else found[0])


def rounded(size: float, step: int) -> int:
    """The nearest whole number of patches, in pixels."""
    return max(1, round(size / step)) * step


def sizes(config: Config, model: Any) -> tuple[int, ...]:
    """The training sizes, checked."""
    step, full = patch(model), pretrained_size(model)
    given = config.sizes or tuple(dict.fromkeys(rounded(full * ratio, step) for ratio in (0.5, 0.75, 1, 1.5)))
    for size in (*given, *config.measure_sizes, *(config.home or ())):
        if size % step:
            raise ValueError(f"size {size} is no multiple of the patch {step}: the nearest is {rounded(size, step)}")
    return given


def save(model: nn.Module, config: Config, folder: Path) -> None:
    """model.safetensors, and beside the config what `rope_nd.hub.load(folder)` needs; each whole or as it was."""
    told = {"retrofit": json.loads(config.to_json()), **hub.describe(model, pairs(config.model_kwargs, "model_kwargs"))}
    write(model, told, folder)


def load(folder: Path) -> tuple[nn.Module, Config]:
    """The retrofitted model of a folder, turning fully, with what is left of its table; and its config."""
    config = Config.load(folder / "config.json")
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder}: no model.safetensors there; the run is not finished, start the same command again")
    model = student(original(config, empty=True), config, strength=1.0, absolute=config.keep_absolute)
    load_weights(model, folder / "model.safetensors")
    return model, config
