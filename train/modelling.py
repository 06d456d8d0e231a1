"""From a config to a wrapped model, and to and from a checkpoint folder (model.safetensors beside config.json)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

import models
from rope_nd import hub, list_encodings, wrap
from rope_nd._check import choose
from rope_nd._command import nearest
from rope_nd.wrapping.families import wrapped_trunk
from rope_nd.wrapping.inflation import TubeEmbed
from train.answers import class_count
from train.cases import trained
from train.config import Config, pairs
from train.durable import publish
from train.rules import scaling_of


def build(config: Config, *, scaling: str | None = None, temperature: str | None = None) -> nn.Module:
    """The model of this run, with random weights; a scaling or temperature changes no parameter, so weights fit any of them."""
    choose("encoding", config.encoding, ["timm", "native", *list_encodings()])
    options: dict[str, Any] = {
        "img_size": config.size[-2:],
        "drop_path_rate": config.drop_path,
        **({"in_chans": 1} if config.kind == "volumes" else {}),
        **pairs(config.model_kwargs, "model_kwargs"),
    }
    if (classes := class_count(config)) is not None:
        options.setdefault("num_classes", classes)
    if config.encoding == "timm":
        return _create(
            config.model, {**options, "dynamic_img_size": True}, optional=("dynamic_img_size", "img_size", "drop_path_rate")
        )
    augment = {"shift": config.shift_coords, "jitter": config.jitter_coords, "rescale": config.rescale_coords}
    told = {
        "keep_pos_embed": config.keep_pos_embed,
        "temperature": None if temperature == "none" else temperature,
        "augment": augment if augment != {"shift": 0.0, "jitter": 1.0, "rescale": 1.0} else None,
        **({"scaling": scaling_of(scaling)} if scaling is not None else {}),
        **pairs(config.encoding_kwargs, "encoding_kwargs"),
    }
    if config.model in models.NAMES:  # which are wrapped as they are made
        return _create(config.model, {**options, "encoding": config.encoding, **_deep(config, config.tubelet), **told})
    model = _create(config.model, options)
    axes = {} if config.kind == "images" else {"axes": 3}
    tubelet = config.tubelet or (1 if config.kind == "clips" else token_size(model)[0])
    return wrap(model, config.encoding, **axes, **_deep(config, tubelet), **told)


def _deep(config: Config, tubelet: int | None) -> dict[str, Any]:
    """What `wrap` must know of clips or volumes; a `tubelet` of None is the model's own choice."""
    if config.kind == "images":
        return {}
    at = trained(config)
    chosen = {} if tubelet is None else {"tubelet": tubelet}
    return {**chosen, "frames": at.size[0], "spacing": at.spacing, "attention": config.attention}


def _create(name: str, options: dict[str, Any], optional: tuple[str, ...] = ()) -> nn.Module:
    """timm's create_model; arguments that not every model has are left out, one after the other, where it refuses them."""
    try:
        return timm.create_model(name, **options)
    except TypeError as error:
        if optional:
            return _create(name, {k: v for k, v in options.items() if k != optional[0]}, optional[1:])
        raise ValueError(f"timm cannot make model {name!r} with {options}: {error}") from None
    except (RuntimeError, AssertionError) as error:
        near = "" if timm.is_model(name) else nearest(name, timm.list_models())
        raise ValueError(f"timm cannot make model {name!r} with {options}: {error}{near}") from None


def token_size(model: nn.Module) -> tuple[int, ...]:
    """Samples a token along each axis: pixels, in a model of clips frames before them; 16 where there are no patches."""
    embed = getattr(model, "patch_embed", None)
    if isinstance(embed, TubeEmbed):
        return tuple(embed.feat_ratio(as_scalar=False))
    patch = getattr(embed, "patch_size", (16, 16))
    return (patch, patch) if isinstance(patch, int) else tuple(patch)


def save(model: nn.Module, config: Config, folder: Path) -> None:
    """Write the weights, and beside the config what `rope_nd.hub.load(folder)` needs; each file is whole or as it was."""
    rebuilt = hub.describe(model) if wrapped_trunk(model) is not None else {}
    write(model, {"train": dataclasses.asdict(config), **rebuilt}, folder)


def write(model: nn.Module, told: dict[str, Any], folder: Path) -> None:
    """config.json and model.safetensors; each is whole or as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    publish(folder / "config.json", json.dumps(told, indent=2))
    publish(folder / "model.safetensors", safetensors.torch.save(weights))


def folders_of(study: Path, names: Sequence[str] = ()) -> list[Path]:
    """The folders of a study's models: those of `names`, or all."""
    folders = [study / name for name in names] or sorted(path.parent for path in study.glob("*/model.safetensors"))
    if not folders:
        raise ValueError(f"{study}: no trained models there; give the folder of a study, such as runs/low_precision-001")
    return folders


def load(folder: Path, **scaled: Any) -> tuple[nn.Module, Config]:
    """The model of a checkpoint folder (or of its model.safetensors), rebuilt from its config, and that config."""
    folder = folder.parent if folder.suffix == ".safetensors" else folder
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder}: no checkpoint there (model.safetensors and config.json are expected)")
    config = Config.load(folder / "config.json")
    model = build(config, **scaled)
    load_weights(model, folder / "model.safetensors")
    return model, config


def load_weights(model: nn.Module, path: Path) -> None:
    """Strictly; a checkpoint of another model is refused with the first difference."""
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error})") from None
    hub.fill(model, weights, str(path))


def normalise(images: Tensor, device: torch.device | str) -> Tensor:
    """uint8 inputs to about unit range; those that are normalised already pass."""
    moved = images.to(device, non_blocking=True)
    return (moved.float() - 127.5) / 64 if moved.dtype == torch.uint8 else moved
