"""How a model lies on the processes of a run: whole on one or on each (DDP), or shared out by rows (FSDP2)."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import nn

from train import sharding
from train.cases import case, trained
from train.config import Config
from train.evaluate import score, test_set
from train.modelling import build, load_weights


class Spread:
    """The model of a run and its moving average (if there is one), on the device. `runner` is what a batch is given to."""

    def __init__(self, config: Config, rank: int, world: int, device: torch.device) -> None:
        self.config, self.rank, self.world = config, rank, world
        self.shared = config.fsdp and world > 1
        self.model = build(config)
        if config.checkpoint:
            load_weights(self.model, Path(config.checkpoint))
        if config.grad_checkpointing:
            self.model.set_grad_checkpointing(True)
        if not self.shared:
            self.model.to(device, memory_format=torch.channels_last if config.channels_last else torch.contiguous_format)
        self.ema = ModelEmaV3(self.model, decay=config.model_ema_decay, use_warmup=True) if config.model_ema else None
        if self.shared:
            for model in (self.model, *(() if self.ema is None else (self.ema.module,))):
                sharding.share_out(model, device, world)
        self.runner = self._runner()

    def _runner(self) -> nn.Module:
        runner: nn.Module = torch.compile(self.model) if self.config.torchcompile else self.model
        return nn.parallel.DistributedDataParallel(runner) if self.world > 1 and not self.shared else runner

    def gathering(self, last: bool) -> AbstractContextManager[Any]:
        """For one of the micro-batches of an update: gradients are averaged over all processes after the last, where each process
        holds them whole. Those that are shared out are so after each: to hold them whole is what FSDP is there to avoid."""
        alone = self.world == 1 or self.shared
        return contextlib.nullcontext() if last or alone else self.runner.no_sync()  # type: ignore[operator]

    def used(self) -> nn.Module | None:
        """The model that is measured and used, on the first process; all of them call this together."""
        model = self.model if self.ema is None else self.ema.module
        if self.shared:
            return sharding.whole(model, self.config, self.rank)
        return model if self.rank == 0 else None


def accuracies(model: nn.Module | None, config: Config, told: dict[str, Any]) -> dict[str, float]:
    """Accuracy at the training size, by test; nothing where there is no model. `told`: see `cases.places`."""
    if model is None:
        return {}
    home = [case(config, test, 1) for test in config.measured_tests] if config.kind == "images" else [trained(config)]
    sets = {at.test: test_set(config, at, config.val_samples)[0] for at in home}
    return {test: score(model, data, config, **told).accuracy for test, data in sets.items()}
