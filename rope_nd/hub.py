"""Saved models: a folder of `config.json` and `model.safetensors` from which the wrapped model is built again.

    hub.save(model, "folder")                      # any model that `wrap` was given by name
    model = hub.load("folder")                     # the same model, the same outputs
    model = hub.load("folder", scaling="yarn")     # the same weights, used at larger sizes
    hub.push(model, "me/my-model"); hub.load("me/my-model")

`config.json` is what timm writes for its own models (architecture, model_args, pretrained_cfg) and, as `rope_nd`, the call of
`wrap`. Nothing that is loaded is run: JSON and safetensors hold no code, and architectures are names that timm knows.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.models import is_model
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from ._check import check_options
from .rope import RoPE
from .wrapping import fade, wrap
from .wrapping.families import wrapped_trunk
from .wrapping.model import Wrapped

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
USED = ("scaling", "temperature", "trained_extent", "augment", "strength", "antialias", "spacing", "tokens", "drop", "attention")
SEEN = "img_size", "in_chans", "num_classes", "global_pool"  # what timm reads from a model as it is now


def save(
    model: nn.Module, folder: str | Path, *, model_args: Mapping[str, Any] | None = None, about: str = "", check: bool = True
) -> None:
    """Write a wrapped timm model, and a card of it, into a folder; each file is whole or not there.

    - `model_args`: what `timm.create_model` was given, where timm has not recorded it (before 1.0.31) or it is no JSON.
    - `about`: Markdown for the card, such as a table of results.
    - `check`: build the model again from what was written and compare outputs on one input of the model's own size.

    Raises ValueError for what cannot be written so that it is the same again: an encoding given as a module, options that are no
    JSON, a model that comes out another.
    """
    folder = Path(folder)
    config = describe(model, model_args)
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    if check:
        _same(model, config, weights)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as made:
        save_file(weights, Path(made) / WEIGHTS)
        (Path(made) / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        (Path(made) / CARD).write_text(card(config, about))
        for name in (WEIGHTS, CARD, CONFIG):
            os.replace(Path(made) / name, folder / name)


def describe(model: nn.Module, model_args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What builds the model again, as JSON: timm's own description of it and the call of `wrap` beside it."""
    inner = wrapped_trunk(model)
    if inner is None:
        raise ValueError(f"{type(model).__name__} was not wrapped: call wrap first, or save it with timm")
    call = {name: _plain(name, value) for name, value in _call(inner).items()}
    config = _timm(model, model_args or {})
    if inner.wrapped.made is not None:  # an entry of `models`, whose name an installed library does not know
        architecture, own = inner.wrapped.made
        now = {name: value for name, value in config["model_args"].items() if name in SEEN}
        config |= {"architecture": architecture, "model_args": {**own, **now, **(model_args or {})}}
    return {**config, "rope_nd": {"wrap": call, "absolute": inner.wrapped.absolute}}


def build(config: Mapping[str, Any], **changes: Any) -> nn.Module:
    """The model of a config, with random weights; `changes` of the call of `wrap` that leave parameters as they are."""
    told = config.get("rope_nd")
    if not isinstance(told, Mapping) or not isinstance(told.get("wrap"), Mapping):
        raise ValueError("the config says nothing of rope_nd: it is of no model that rope_nd.hub has saved")
    check_options("change", changes, also=USED)
    name = config.get("architecture")
    if not isinstance(name, str) or not is_model(name):
        raise ValueError(f"architecture {name!r}: timm {timm.__version__} has no model of that name")
    args = {**_tuples(config.get("model_args") or {}), "num_classes": config.get("num_classes")}
    try:
        model = timm.create_model(name, pretrained=False, pretrained_cfg=dict(config.get("pretrained_cfg") or {}), **args)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise ValueError(f"timm cannot make model {name!r} with {args}: {error}") from None
    model = wrap(model, **{**_tuples(told["wrap"]), **changes})
    if told.get("absolute", 1.0) != 1.0:
        fade(model, absolute=told["absolute"])
    return model


def load(source: str | Path, *, revision: str | None = None, **changes: Any) -> nn.Module:
    """The model of a folder, or of a repository of the Hugging Face hub, in evaluation mode.

    `changes` of the call of `wrap`: scaling, temperature, trained_extent, strength, and what else leaves parameters as they are.
    Raises ValueError for a folder that holds no such model, and for weights that are another model's.
    """
    folder = Path(source) if Path(source).is_dir() else _fetched(str(source), revision)
    try:
        config = json.loads((folder / CONFIG).read_text())
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{folder}: no readable {CONFIG} and {WEIGHTS} there ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG}: a JSON object is expected, found {type(config).__name__}")
    return fill(build(config, **changes), weights, str(folder / WEIGHTS)).eval()


def push(model: nn.Module, repo_id: str, *, private: bool = False, message: str = "Upload model", **saved: Any) -> str:
    """Save, as `save` does with its further arguments, and upload to the Hugging Face hub; returns the address of the commit."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        save(model, folder, **saved)
        api = HfApi()
        api.create_repo(repo_id, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
    return str(done.commit_url)


def card(config: Mapping[str, Any], about: str = "") -> str:
    """The Markdown that a repository shows."""
    call = dict(config["rope_nd"]["wrap"])
    encoding, options = call.pop("encoding"), "".join(f", {name}={value!r}" for name, value in call.items())
    head = ["---", "library_name: rope_nd", "tags:", *(f"- {tag}" for tag in ("rope_nd", "timm", "rope")), "---", ""]
    lines = [
        f"# {config['architecture']} with {encoding} positions",
        "",
        "```python",
        "from rope_nd import hub",
        'model = hub.load("FOLDER_OR_REPOSITORY")',
        "```",
        "",
        f"Wrapped by `wrap(model, {encoding!r}{options})`.",
    ]
    return "\n".join([*head, *lines, *(("", about.strip()) if about.strip() else ())]) + "\n"


def _fetched(repo_id: str, revision: str | None) -> Path:
    """The files of a repository, as huggingface_hub keeps them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(f"{repo_id!r} is neither a folder here nor a repository that can be read: {error}") from error


def _call(inner: Wrapped) -> dict[str, Any]:
    """What `wrap` was called with, but for what is as it is by default; `strength` is that of now."""
    known = inspect.signature(wrap).parameters
    call = {n: v for n, v in inner.wrapped.call.items() if n not in known or v != known[n].default}
    ropes = [module for module in (inner.encoding or nn.Module()).modules() if isinstance(module, RoPE)]
    if ropes and (set(ropes[0].strength) != {1.0} or "strength" in call):
        call["strength"] = ropes[0].strength
    return call


def _plain(name: str, value: Any) -> Any:
    """A value as JSON has it."""
    if name == "encoding" and isinstance(value, nn.Module):
        raise ValueError(f"encoding was given as a {type(value).__name__}, which cannot be written down: wrap by a name to save")
    if isinstance(value, set | frozenset):
        return sorted(value)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is no JSON, so it cannot be saved: give numbers, text, or lists of them") from None


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, Mapping):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _timm(model: nn.Module, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """timm's description of a model, as it writes it."""
    with tempfile.TemporaryDirectory() as folder:
        save_config_for_hf(model, f"{folder}/{CONFIG}", model_args=dict(model_args))
        found: dict[str, Any] = json.loads((Path(folder) / CONFIG).read_text())
    return {"model_args": dict(model_args), **found}


def fill(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> nn.Module:
    """The model with these weights, all of them; those of another model, from `where`, are refused with the first difference."""
    own = model.state_dict()
    wrong = [f"{name} {list(t.shape)}" for name, t in weights.items() if name not in own or own[name].shape != t.shape]
    wrong += [f"no {name}" for name in own if name not in weights]
    if wrong:
        raise ValueError(f"{where}: weights of another model ({len(wrong)} differences, the first: {wrong[0]})")
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def _same(model: nn.Module, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the config and the weights give the model's outputs again."""
    mend = "say what timm.create_model was given, as model_args"
    try:
        with torch.random.fork_rng(devices=[]):
            again = fill(build(config), weights, "rebuilt")
    except ValueError as error:
        raise ValueError(f"{config['architecture']} cannot be built again ({error}): {mend}") from None
    first, trained = next(model.parameters()), model.training
    again.to(first.device, first.dtype)
    x = _input(model).to(first.device, first.dtype)
    try:
        wanted, found = (_tensors(one.eval()(x)) for one in (model, again))
    finally:
        model.train(trained)
    if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(wanted, found, strict=True)):
        raise ValueError(f"{config['architecture']}, built again, gives other outputs: {mend}, and wrap by name with its options")


def _input(model: nn.Module) -> Tensor:
    """One random input of the model's own size."""
    inner: Any = wrapped_trunk(model)
    embed, given = inner.patch_embed, inner.wrapped.inflation
    size = [n * k for n, k in zip(inner.wrapped.trained_extent[-2:], embed.feat_ratio(as_scalar=False)[-2:])]
    frames = [] if given is None else [inner.wrapped.trained_extent[0] * given.tubelet]
    return torch.randn(1, embed.proj.weight.shape[1], *frames, *size, generator=torch.Generator().manual_seed(0))


def _tensors(found: Any) -> list[Tensor]:
    """The tensors that a model returns."""
    return [found] if isinstance(found, Tensor) else [t for one in found for t in _tensors(one)]
