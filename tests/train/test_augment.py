"""Pictures of training: every operation of timm's policies takes every strength."""

import random

import pytest
import torch
from PIL import Image

from train.augment import operations, transform


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "rand-m9-mstdinf", "rand-m0", "augmix-m10", "original", "v0", "3a"])
def test_every_operation_takes_every_strength(policy):
    random.seed(0)
    made = transform((16, 16), training=True, auto_augment=policy, color_jitter=None)
    picture = Image.new("RGB", (20, 24), (200, 100, 50))
    for op in operations(made):
        op.prob, op.magnitude_std = 1.0, 0
        for op.magnitude in range(11):
            op(picture)


def test_at_least_one_bit_is_kept():
    made = transform((16, 16), training=True, auto_augment="rand-m9-inc1", color_jitter=None)
    (op,) = (op for op in operations(made) if op.name.startswith("Posterize"))
    op.prob, op.magnitude = 1.0, 10
    assert op(Image.new("RGB", (2, 2), (200, 100, 50))).getpixel((0, 0)) == (128, 0, 0)


def test_in_tests_pictures_are_whole():
    picture = Image.new("RGB", (16, 16), (255, 255, 255))
    picture.putpixel((0, 0), (0, 0, 0))
    made = transform((16, 16), training=False)
    assert made(picture)[:, 0, 0].max() < 0 and torch.equal(made(picture)[0] < 0, torch.eye(16)[:1].T * torch.eye(16)[:1] > 0)
