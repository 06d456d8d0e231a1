"""What several tests of training take."""

from pathlib import Path

import pytest
import torch
from PIL import Image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Two classes of blurred noise, twelve images each."""
    root, random = tmp_path_factory.mktemp("pictures"), torch.Generator().manual_seed(0)
    for name in ("light", "dark"):
        (root / name).mkdir()
        for i in range(12):
            noise = torch.randint(100, (6, 6, 3), generator=random, dtype=torch.uint8) + 150 * (name == "light")
            Image.fromarray(noise.numpy()).resize((48, 40), Image.Resampling.BICUBIC).save(root / name / f"{i}.png")
    return root
