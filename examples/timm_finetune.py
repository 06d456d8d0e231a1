"""Fine-tune a timm model at a low size and use it at high ones: wrap, train, evaluate, save, load.

    python examples/timm_finetune.py --steps 150 --sizes 32 64 128

A small VisionTransformer is wrapped with axial rotary positions, trained for some steps on pictures of 32 pixels, tested at
larger sizes without and with a rule that stretches positions, saved by `rope_nd.hub` and loaded again: the outputs are the same.
"""

import tempfile

import timm
import torch
import tyro
from discs import discs
from torch import nn

from rope_nd import hub, wrap

SHAPE = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 2, "num_classes": 4}


def train(model: nn.Module, steps: int, size: int, batch: int = 64) -> float:
    """Plain training; returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=max(steps, 2))
    for step in range(steps):
        pictures, quarters = discs(batch, size, seed=step)
        loss = nn.functional.cross_entropy(model(pictures), quarters)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, size: int) -> float:
    """Share of unseen pictures that are told right at a size."""
    pictures, quarters = discs(128, size, seed=10_000)
    return (model.eval()(pictures).argmax(-1) == quarters).float().mean().item()


def main(steps: int = 150, sizes: tuple[int, ...] = (32, 64, 128)) -> None:
    """Train low, test high, save, load.

    Args:
        steps: Updates.
        sizes: Sizes to test at, in pixels, multiples of 8.
    """
    torch.manual_seed(0)
    model = wrap(timm.create_model("vit_tiny_patch16_224", **SHAPE), "axial", theta=100)
    print(f"loss {train(model, steps, 32):.3f} after {steps} steps at 32 px")
    with tempfile.TemporaryDirectory() as folder:
        hub.save(model.eval(), folder, model_args=SHAPE)
        plain, stretched = hub.load(folder), hub.load(folder, scaling="pi")
    pictures, _ = discs(8, 32, seed=20_000)
    with torch.no_grad():
        print(f"loaded again, outputs differ by {(model(pictures) - plain(pictures)).abs().max():.1e}")
    for size in sizes:
        print(f"{size:4} px: accuracy {accuracy(plain, size):.3f}, with position interpolation {accuracy(stretched, size):.3f}")


if __name__ == "__main__":
    tyro.cli(main)
