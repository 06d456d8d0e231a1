"""The training loop: timm's optimisers, schedules, losses and EMA around a wrapped model, on one process or several."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from train.cases import case, trained
from train.config import Config
from train.data import loader, order, training_set
from train.evaluate import score, test_set
from train.modelling import build, load_weights, normalise, save

Report = Callable[[dict[str, Any]], None]


def optimizer(model: nn.Module, opt: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """timm's optimiser of that name; what the model exempts from weight decay (position parameters) is exempt from Muon too."""
    if "muon" in opt and next(model.parameters()).device.type == "cpu" and find_spec("timm.optim.muon"):
        # timm orthogonalises in bfloat16, which CPUs without its instructions emulate: ten times slower than float32
        muon = importlib.import_module("timm.optim.muon")  # timm 1.0.22 and later
        if not isinstance(muon.zeropower_via_newtonschulz, functools.partial):
            muon.zeropower_via_newtonschulz = functools.partial(muon.zeropower_via_newtonschulz, dtype=torch.float32)
    try:
        return create_optimizer_v2(model, opt=opt, lr=lr, weight_decay=weight_decay, fallback_no_weight_decay=True)
    except (ValueError, AssertionError) as error:
        raise ValueError(f"timm has no optimiser {opt!r}: {error}") from None


class Trainer:
    """One run: `Trainer(config, report).fit()` trains, measures at the training size, and writes `folder`."""

    def __init__(self, config: Config, folder: Path, report: Report = lambda event: None) -> None:
        self.config, self.folder, self.report = config, folder, report
        if config.threads:
            torch.set_num_threads(config.threads)
        self.rank, self.world = _join_processes(config)
        torch.manual_seed(config.seed)
        self.device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if config.device == "cuda" else config.device)
        self.data = training_set(config)
        self.model = build(config)
        if config.checkpoint:
            load_weights(self.model, Path(config.checkpoint))
        if config.grad_checkpointing:
            self.model.set_grad_checkpointing(True)
        self.model.to(self.device, memory_format=torch.channels_last if config.channels_last else torch.contiguous_format)
        self.optimizer = optimizer(self.model, config.opt, config.lr, config.weight_decay)
        per_epoch = len(self.data) // (config.batch_size * self.world)
        self.steps = config.steps or config.epochs * max(1, per_epoch // config.grad_accum_steps)
        self.ema = ModelEmaV3(self.model, decay=config.model_ema_decay, use_warmup=True) if config.model_ema else None
        self.runner = self._runner()
        self.random = torch.Generator().manual_seed(config.seed)

    def fit(self) -> dict[str, Any]:
        """Train; returns what the `trained` event says."""
        config, start, waited = self.config, time.perf_counter(), 0.0
        scheduler, _ = create_scheduler_v2(
            self.optimizer,
            config.sched,
            num_epochs=1,
            updates_per_epoch=self.steps,
            step_on_epochs=False,
            warmup_epochs=min(config.warmup_steps / self.steps, 0.5),
            warmup_lr=config.lr / 100,
        )
        scaler = torch.amp.GradScaler(enabled=config.amp and config.amp_dtype == "float16" and self.device.type == "cuda")
        micro = self.steps * config.grad_accum_steps
        indices = order(len(self.data), config.batch_size, config.seed, micro, self.rank, self.world)
        batches = iter(loader(self.data, indices, config.workers))
        self.runner.train()
        loss = torch.zeros(())
        for step in range(self.steps):
            if scheduler is not None:
                scheduler.step_update(step)
            for part in range(config.grad_accum_steps):
                asked = time.perf_counter()
                images, labels = next(batches)
                waited += time.perf_counter() - asked
                last = part + 1 == config.grad_accum_steps
                with contextlib.nullcontext() if last or self.world == 1 else self.runner.no_sync():
                    loss = self._loss(images, labels) / config.grad_accum_steps
                    scaler.scale(loss).backward()
            self._update(scaler)
            if self.ema is not None:
                self.ema.update(self.model, step)
            if step % 20 == 0 or step + 1 == self.steps:
                self._tell({"event": "step", "step": step + 1, "steps": self.steps, "loss": loss.item() * config.grad_accum_steps})
        seconds = time.perf_counter() - start
        return self._finish(seconds, waited / seconds, loss.item() * config.grad_accum_steps)

    def _runner(self) -> nn.Module:
        runner: nn.Module = self.model
        if self.config.torchcompile:
            runner = torch.compile(runner)
        if self.world > 1:
            runner = nn.parallel.DistributedDataParallel(runner)
        return runner

    @functools.cached_property
    def _mixup(self) -> Mixup | None:
        config = self.config
        if not config.mixup and not config.cutmix:
            return None
        classes: int = self.model.num_classes
        return Mixup(config.mixup, config.cutmix, label_smoothing=config.smoothing, num_classes=classes)

    @functools.cached_property
    def _criterion(self) -> nn.Module:
        if self.config.bce_loss:
            return BinaryCrossEntropy(smoothing=self.config.smoothing)
        return LabelSmoothingCrossEntropy(self.config.smoothing) if self._mixup is None else SoftTargetCrossEntropy()

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        config = self.config
        images, labels = normalise(images, self.device), labels.to(self.device)
        if config.train_sizes:
            pick = int(torch.randint(len(config.train_sizes), (), generator=self.random))
            size = config.train_sizes[pick]
            images = nn.functional.interpolate(images, (size, size), mode="bicubic", antialias=True)
        if config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if self._mixup is not None:
            images, labels = self._mixup(images, labels)
        with torch.autocast(self.device.type, getattr(torch, config.amp_dtype), enabled=config.amp):
            loss: Tensor = self._criterion(self.runner(images), labels)
        return loss

    def _update(self, scaler: torch.amp.GradScaler) -> None:
        if self.config.clip_grad is not None:
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_grad)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _finish(self, seconds: float, waited: float, loss: float) -> dict[str, Any]:
        """Save, then measure at the training size, as `train.evaluate` does."""
        config, best = self.config, self.model if self.ema is None else self.ema.module
        if self.rank == 0:
            save(best, config, self.folder)
        accuracies = {}
        home = [case(config, test, 1) for test in config.measured_tests] if config.kind == "images" else [trained(config)]
        for at in home if self.rank == 0 else ():
            accuracies[at.test] = score(best, test_set(config, at, config.val_samples)[0], config).accuracy
        parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        event = {
            "event": "trained",
            "encoding": config.title,
            "seed": config.seed,
            "steps": self.steps,
            "seconds": round(seconds, 2),
            "wait_share": round(waited, 4),
            "loss": round(loss, 4),
            "accuracy": sum(accuracies.values()) / max(1, len(accuracies)),
            "accuracies": accuracies,
            "parameters": parameters,
        }
        self._tell(event)
        if self.world > 1:
            dist.destroy_process_group()
        return event

    def _tell(self, event: dict[str, Any]) -> None:
        if self.rank == 0:
            self.report(event)


def _join_processes(config: Config) -> tuple[int, int]:
    """Rank and number of processes under torchrun; (0, 1) alone."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if config.device == "cuda" else "gloo")
    return (dist.get_rank(), world) if world > 1 else (0, 1)
