"""timm's optimisers and schedules, and the scaling of losses in float16."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec

import torch
from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import nn

from train.config import Config


def optimizer(model: nn.Module, opt: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """timm's optimiser of that name; what the model exempts from weight decay (position parameters) is exempt from Muon too."""
    if "muon" in opt and next(model.parameters()).device.type == "cpu" and find_spec("timm.optim.muon"):
        # timm orthogonalises in bfloat16, which CPUs without its instructions emulate: ten times slower than float32
        muon = importlib.import_module("timm.optim.muon")  # timm 1.0.22 and later
        if not isinstance(muon.zeropower_via_newtonschulz, functools.partial):
            muon.zeropower_via_newtonschulz = functools.partial(muon.zeropower_via_newtonschulz, dtype=torch.float32)
    try:
        found = create_optimizer_v2(model, opt=opt, lr=lr, weight_decay=weight_decay, fallback_no_weight_decay=True)
    except (ValueError, AssertionError) as error:
        raise ValueError(f"timm has no optimiser {opt!r}: {error}") from None
    if getattr(found, "is_second_order", False):
        known = [name for name in list_optimizers() if not get_optimizer_info(name).second_order]
        raise ValueError(f"opt {opt!r} takes gradients of gradients, which are not made here: choose from {', '.join(known)}")
    return found


def optimisation(
    model: nn.Module, config: Config, steps: int
) -> tuple[torch.optim.Optimizer, Scheduler | None, torch.amp.GradScaler]:
    """Optimiser, learning rates over `steps` updates, and the scaler, which does nothing but in float16 on a GPU."""
    found = optimizer(model, config.opt, config.lr, config.weight_decay)
    schedule, _ = create_scheduler_v2(
        found,
        config.sched,
        num_epochs=1,
        updates_per_epoch=steps,
        step_on_epochs=False,
        warmup_epochs=min(config.warmup_steps / steps, 0.5),
        warmup_lr=config.lr / 100,
    )
    on_gpu = next(model.parameters()).device.type == "cuda"
    return found, schedule, torch.amp.GradScaler(enabled=config.amp and config.amp_dtype == "float16" and on_gpu)
