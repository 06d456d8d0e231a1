"""The loss of a batch: sizes drawn, mixup, smoothing, precision."""

from __future__ import annotations

from typing import Any

import torch
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from train.cases import own, places, trained
from train.config import Config
from train.draws import SIZE, draws
from train.modelling import normalise


class Objective:
    """`Objective(config, classes)(model, batch, micro)`: the loss of micro-batch number `micro`."""

    def __init__(self, config: Config, classes: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.told = places(config, trained(config), config.positions)
        mixes = config.mixup or config.cutmix
        self.mixup = Mixup(config.mixup, config.cutmix, label_smoothing=config.smoothing, num_classes=classes) if mixes else None
        self.criterion: nn.Module = SoftTargetCrossEntropy() if mixes else LabelSmoothingCrossEntropy(config.smoothing)
        if config.bce_loss:
            self.criterion = BinaryCrossEntropy(smoothing=config.smoothing)

    def __call__(self, model: nn.Module, batch: tuple[Tensor, ...], micro: int) -> Tensor:
        config, (images, labels, *where) = self.config, batch
        images, labels = self._sized(normalise(images, self.device), micro), labels.to(self.device)
        if config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if self.mixup is not None:
            images, labels = self.mixup(images, labels)
        told: dict[str, Any] = own(self.told, where)
        with torch.autocast(self.device.type, getattr(torch, config.amp_dtype), enabled=config.amp):
            loss: Tensor = self.criterion(model(images, **told), labels)
        return loss

    def _sized(self, images: Tensor, micro: int) -> Tensor:
        """Images at the size that is drawn for this micro-batch, on all processes alike."""
        config = self.config
        if not config.train_sizes:
            return images
        pick = int(torch.randint(len(config.train_sizes), (), generator=draws(config.seed, micro, SIZE)))
        size = config.train_sizes[pick]
        return nn.functional.interpolate(images, (size, size), mode="bicubic", antialias=True)
