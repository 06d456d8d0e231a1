"""What the student learns: the features of the teacher, token by token, and whatever the model pools of them.

The loss on a feature s whose target is t, with r the root mean square of t over its channels, is

    cosine (1 - <s, t> / |s||t|)  +  smooth mean_c huber(s_c / r - t_c / r)

The cosine is what retrieval sees and what is measured, but it is blind to length, and a few channels of large values decide it.
The second term knows length, so that heads trained on the original go on working, and is linear in large differences, so that
those channels do not hide the others. Dividing by r makes both terms of order one whatever the model.

It is taken at the end, and after some blocks on the way (`inside`): each layer is told where it goes wrong, which needs far fewer
steps than finding out from the end (layer-wise distillation, Romero 2015, FitNets).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rope_nd.look import normalised
from rope_nd.wrapping.families import wrapped_trunk
from train.retrofit.config import Config


@dataclass(frozen=True)
class Features:
    """`patches` `[B, N, C]`, `pooled` `[B, C]` (class token, mean or attention pooling, as the model has it), `extent` (h, w).

    `inside`: all tokens `[B, prefix + N, C]` after some blocks.
    """

    patches: Tensor
    pooled: Tensor
    extent: tuple[int, int]
    inside: tuple[Tensor, ...] = ()


def features(model: Any, images: Tensor, inside: int = 0) -> Features:
    """Of normalised images `[B, 3, H, W]`; tokens are kept after every `inside`-th block but the last, 0: after none."""
    with listening(model, inside) as heard:
        tokens = model.forward_features(images)  # [B, prefix + N, C]
    height, width = model.patch_embed.dynamic_feat_size(images.shape[-2:])
    pooled = model.forward_head(tokens, pre_logits=True)
    return Features(tokens[:, model.num_prefix_tokens :], pooled, (height, width), tuple(heard))


@contextmanager
def listening(model: nn.Module, every: int) -> Iterator[list[Tensor]]:
    """What comes out of every n-th block but the last, n = `every`, while it is entered."""
    heard: list[Tensor] = []
    blocks = list(wrapped_trunk(model).blocks)[every - 1 : -1 : every] if every else []  # type: ignore[union-attr]
    hooks = [block.register_forward_hook(lambda block, given, out: heard.append(out)) for block in blocks]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def resampled(found: Features, extent: tuple[int, int]) -> Features:
    """Patch tokens at the size of another grid, bicubic, smoothed where it shrinks."""
    if found.extent == extent:
        return found
    shrinks = any(new < old for new, old in zip(extent, found.extent))

    def resized(patches: Tensor) -> Tensor:
        picture = patches.mT.unflatten(-1, found.extent)  # [B, C, h, w]
        return F.interpolate(picture.float(), extent, mode="bicubic", antialias=shrinks).flatten(-2).mT.to(patches.dtype)

    count = found.patches.shape[1]
    inside = tuple(torch.cat((tokens[:, :-count], resized(tokens[:, -count:])), dim=1) for tokens in found.inside)
    return Features(resized(found.patches), found.pooled, extent, inside)


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
    """Of patch tokens and of what is pooled, and of all tokens inside."""
    target, share = resampled(teacher, student.extent), config.class_weight
    patches, pooled = distance(student.patches, target.patches, config), distance(student.pooled, target.pooled, config)
    inside = [distance(mine, its, config) for mine, its in zip(student.inside, target.inside)]
    return (1 - share) * patches + share * pooled + sum(inside) / max(1, len(inside))


def fidelity(student: Features, teacher: Features) -> tuple[Tensor, Tensor]:
    """Cosines to the teacher, of each image `[B]`: the mean over its patch tokens, and that of what is pooled."""
    target = resampled(teacher, student.extent)
    patches = F.cosine_similarity(student.patches.float(), target.patches.float(), dim=-1).mean(-1)
    return patches, F.cosine_similarity(student.pooled.float(), target.pooled.float(), dim=-1)
