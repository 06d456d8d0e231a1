"""What the student learns: the features of the teacher, token by token, and whatever the model pools of them.

The loss on a feature s whose target is t, with r the root mean square of t over its channels, is

    cosine (1 - <s, t> / |s||t|)  +  smooth mean_c huber(s_c / r - t_c / r)

The cosine is what retrieval sees and what is measured, but it is blind to length, and a few channels of large values decide it.
The second term knows length, so that heads trained on the original go on working, and is linear in large differences, so that
those channels do not hide the others. Dividing by r makes both terms of order one whatever the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rope_nd.look import normalised
from train.retrofit.config import Config


@dataclass(frozen=True)
class Features:
    """`patches` `[B, N, C]`, `pooled` `[B, C]` (class token, mean or attention pooling, as the model has it), `extent` (h, w)."""

    patches: Tensor
    pooled: Tensor
    extent: tuple[int, int]


def features(model: Any, images: Tensor) -> Features:
    """Of normalised images `[B, 3, H, W]`."""
    tokens = model.forward_features(images)  # [B, prefix + N, C]
    height, width = model.patch_embed.dynamic_feat_size(images.shape[-2:])
    return Features(tokens[:, model.num_prefix_tokens :], model.forward_head(tokens, pre_logits=True), (height, width))


def resampled(found: Features, extent: tuple[int, int]) -> Features:
    """Patch tokens at the size of another grid, bicubic, smoothed where it shrinks."""
    if found.extent == extent:
        return found
    picture = found.patches.mT.unflatten(-1, found.extent)  # [B, C, h, w]
    shrinks = any(new < old for new, old in zip(extent, found.extent))
    resized = F.interpolate(picture.float(), extent, mode="bicubic", antialias=shrinks)
    return Features(resized.flatten(-2).mT.to(found.patches.dtype), found.pooled, extent)


def target_size(size: int, home: tuple[int, int]) -> int:
    """The size at which the teacher sees an image whose student sees it at `size`."""
    return min(max(size, home[0]), home[1])


def normalise(images: Tensor, model: nn.Module, device: torch.device | str) -> Tensor:
    """uint8 images as the pretrained model expects them."""
    return normalised(images.to(device).float() / 255, model)


def distance(student: Tensor, teacher: Tensor, config: Config) -> Tensor:
    """The loss above, its mean over features `[.., C]`."""
    student, teacher = student.float(), teacher.float()
    length = teacher.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)
    apart = 1 - F.cosine_similarity(student, teacher, dim=-1).mean()
    return config.cosine * apart + config.smooth * F.smooth_l1_loss(student / length, teacher / length)


def loss(student: Features, teacher: Features, config: Config) -> Tensor:
    """Of patch tokens and of what is pooled."""
    target, share = resampled(teacher, student.extent), config.class_weight
    patches, pooled = distance(student.patches, target.patches, config), distance(student.pooled, target.pooled, config)
    return (1 - share) * patches + share * pooled


def fidelity(student: Features, teacher: Features) -> tuple[Tensor, Tensor]:
    """Cosines to the teacher, of each image `[B]`: the mean over its patch tokens, and that of what is pooled."""
    target = resampled(teacher, student.extent)
    patches = F.cosine_similarity(student.patches.float(), target.patches.float(), dim=-1).mean(-1)
    return patches, F.cosine_similarity(student.pooled.float(), target.pooled.float(), dim=-1)
