"""Whole models: what a position encoding adds to one step of a ViT, beside the same model without one, and beside timm's own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..wrapping import wrap
from . import memory
from .row import MB, Row, against, named
from .timing import Subject, interleaved, paired

MODEL, TIMMS = "vit_small_patch16_224", "vit_small_patch16_rope_224"
JITTER = "+jitter"  # an encoding of this ending has its coordinates drawn anew at each step of training
ENCODINGS = ("axial", "axial+jitter", "mixed", "alibi", "pape", "timm")
MODES, PASSES = ("eager", "compiled"), ("inference", "training")
MARKS = {"inference": 1.02, "training": 1.03}


@dataclass(frozen=True)
class Setting:
    """What all models of one table share."""

    size: int
    batch: int
    mode: str
    step: str
    dtype: torch.dtype
    device: torch.device
    model: str = MODEL
    timms: str = TIMMS
    depth: int | None = None


def build(encoding: str, setting: Setting) -> nn.Module:
    """The model with that encoding, `"none"`, or timm's model with its own (`"timm"`), random weights of one seed."""
    torch.manual_seed(0)
    cut: dict[str, Any] = {} if setting.depth is None else {"depth": setting.depth}
    if encoding == "timm":
        model = timm.create_model(setting.timms, img_size=setting.size, **cut)
    else:
        name, jittered = encoding.removesuffix(JITTER), encoding.endswith(JITTER)
        model = wrap(timm.create_model(setting.model, **cut), name, augment={"jitter": 1.2} if jittered else None)
    return model.to(setting.device).train(setting.step == "training")


def tables_size(model: Any, setting: Setting) -> float | None:
    """MB of the tables that one step makes, those of each sample where they are drawn; None for timm's and for none."""
    encoding = getattr(model, "encoding", None)
    if encoding is None:
        return None
    parts: Any = encoding if isinstance(encoding, nn.ModuleList) else [encoding]
    with torch.no_grad():
        made = [part.at(*extent_of(model, setting)) for part in parts]
    tables = [x for one in made for x in ([one] if isinstance(one, Tensor) else vars(one).values()) if isinstance(x, Tensor)]
    return sum(x.nbytes for x in tables) * (setting.batch if model.training and model.wrapped.augment else 1) / MB


def extent_of(model: Any, setting: Setting) -> tuple[int, int]:
    """Tokens an axis."""
    found: tuple[int, int] = model.patch_embed.dynamic_feat_size((setting.size, setting.size))
    return found


def stepper(model: nn.Module, setting: Setting) -> Callable[[object], object]:
    """One step: forward without gradients, or forward and backward with the gradients of all parameters made anew."""
    run = torch.compile(model) if setting.mode == "compiled" else model
    images = torch.rand(setting.batch, 3, setting.size, setting.size, device=setting.device)
    half = torch.autocast(setting.device.type, setting.dtype, enabled=setting.dtype != torch.float32)

    def inference(given: object) -> object:
        with torch.no_grad(), half:
            return run(images)

    def training(given: object) -> object:
        model.zero_grad(set_to_none=True)
        with half:
            loss = run(images).float().square().mean()
        loss.backward()
        return loss.detach()

    return training if setting.step == "training" else inference


def comparisons(names: Sequence[str]) -> list[tuple[str, str]]:
    """Which is set against which: all against none; one that is jittered against the same that is not; ours against timm's."""
    found = [(name, "none") for name in names]
    found += [(name, name.removesuffix(JITTER)) for name in names if name.endswith(JITTER) and name.removesuffix(JITTER) in names]
    return found + ([("axial", "timm")] if {"axial", "timm"} <= set(names) else [])


def mark(name: str, other: str, step: str) -> float | None:
    """The ratio aimed at."""
    if other == "timm":
        return 1.0
    return 1.02 if name.endswith(JITTER) and other != "none" else MARKS[step] if name == "axial" else None


def measure(setting: Setting, encodings: Sequence[str], rounds: int) -> list[Row]:
    """The rows of one table."""
    gc.collect()  # the models of the table before
    if setting.mode == "compiled":
        torch.compiler.reset()  # each table is a start of its own
    names = ["none", *(name for name in encodings if setting.step == "training" or not name.endswith(JITTER))]
    models = [build(name, setting) for name in names]
    subjects = [Subject(name, stepper(model, setting)) for name, model in zip(names, models)]
    times = dict(zip(names, interleaved(subjects, rounds=rounds, device=setting.device)))
    peaks = {name: highest(model, subject, setting.device) / MB for name, model, subject in zip(names, models, subjects)}
    sizes = {name: tables_size(model, setting) for name, model in zip(names, models)}
    size, threads = shape(models[0], setting), torch.get_num_threads()
    found = []
    for name, other in comparisons(names):
        took, base = times[name], times[other]
        ratio, low, high = paired(took, base)
        found.append(
            Row(
                "model", name, setting.device.type, named(setting.dtype), None, setting.mode, setting.step, size, name == "mixed",
                **{**against(took, base), "ratio": ratio}, low=low, high=high, against=other, threads=threads, rounds=rounds,  # type: ignore[arg-type]
                peak_mb=peaks[name], tables_mb=sizes[name], mark=mark(name, other, setting.step),
            )
        )  # fmt: skip
    return found


def highest(model: nn.Module, subject: Subject, device: torch.device) -> int:
    """Bytes that one step allocates at its highest point, those of the gradients among them."""
    model.zero_grad(set_to_none=True)
    found = memory.peak(partial(subject.run, None), device)
    model.zero_grad(set_to_none=True)
    return found


def shape(model: Any, setting: Setting) -> tuple[int, int, int, int]:
    """[B, N, H, D] of the model's queries."""
    height, width = extent_of(model, setting)
    heads: int = model.blocks[0].attn.num_heads
    return setting.batch, model.num_prefix_tokens + height * width, heads, model.embed_dim // heads


def run(
    device: torch.device, *, pairs: int, sizes: Sequence[int], batch: int, encodings: Sequence[str] = ENCODINGS,
    modes: Sequence[str] = MODES[:1], steps: Sequence[str] = PASSES, dtypes: Sequence[torch.dtype] = (torch.float32,), **names: Any,
) -> Iterator[list[Row]]:  # fmt: skip
    """The rows of every table: sizes, eager or compiled, inference or training."""
    for size, dtype, mode, step in product(sizes, dtypes, modes, steps):
        yield measure(Setting(size, batch, mode, step, dtype, device, **names), encodings, pairs)
