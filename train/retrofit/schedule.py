"""What changes over the steps, each a function of the step alone: strength, the table's weight, the learning rate, the size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from train.draws import draws
from train.retrofit.config import Config


def ramp(step: int, steps: int, start: float, share: float) -> float:
    """From 0 to 1 over `share` of `steps`, beginning after `start` of them."""
    done = step - start * steps
    return float(done >= 0) if share == 0 else min(1.0, max(0.0, done / (share * steps)))


def strength(step: int, config: Config) -> float:
    """The share of each angle that is turned at a step."""
    return ramp(step, config.steps, 0.0, config.strength_share)


def absolute(step: int, config: Config) -> float:
    """The weight of the model's own table at a step."""
    gone = ramp(step, config.steps, config.absolute_start, config.absolute_share)
    return 1 - (1 - config.keep_absolute) * gone


def rate(step: int, config: Config) -> float:
    """The learning rate: linear warm-up, then a cosine to `final_lr` at the last step."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
    return config.final_lr + (config.lr - config.final_lr) * (1 + math.cos(math.pi * min(1.0, done))) / 2


def size(step: int, sizes: Sequence[int], seed: int) -> int:
    """The training size of a step."""
    return sizes[int(torch.randint(len(sizes), (), generator=draws(seed, step, 1)))]
