"""A MONAI pipeline and a model of volumes that knows millimetres.

    python examples/monai_volumes.py --steps 60

Bodies are longer from slice to slice than within a slice, or the reverse, and slices are 1 or 3 mm apart. MONAI's transforms carry
the affine along (`MetaTensor.pixdim` are the millimetres of a voxel); the model is told them sample by sample as `spacing`, so
that where a token is, is in millimetres and one batch may mix scanners. Told nothing, it takes voxels for those of training.
"""

import timm
import torch
import tyro
from monai.data import MetaTensor
from monai.transforms import Compose, RandFlip, RandGaussianNoise, ResizeWithPadOrCrop, ScaleIntensity
from torch import Tensor, nn

import models  # noqa: F401  registers the models with timm

SIDE = 32  # voxels of a volume
SHAPE = {"img_size": SIDE, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 2, "num_classes": 2}
PIPELINE = Compose(
    [
        ResizeWithPadOrCrop((SIDE, SIDE, SIDE)),
        ScaleIntensity(),
        RandFlip(prob=0.5, spatial_axis=2),
        RandGaussianNoise(prob=0.5, std=0.05),
    ]
)


def body(long: bool, thickness: float, random: torch.Generator) -> MetaTensor:
    """An ellipsoid `[1, D, H, W]` in slices `thickness` mm apart: 9 mm along one axis and 5 mm along the others, or the reverse."""
    radii = torch.tensor([9.0, 5.0, 5.0] if long else [5.0, 9.0, 9.0]) * (0.9 + 0.2 * torch.rand(1, generator=random))
    spacing = torch.tensor([thickness, 1.0, 1.0])
    centre = (torch.tensor([SIDE, 28.0, 28.0]) * spacing + 4 * torch.randn(3, generator=random)) / 2  # mm
    voxels = torch.stack(torch.meshgrid(*(torch.arange(n) for n in (SIDE, 28, 28)), indexing="ij"), dim=-1)  # [D, H, W, 3]
    inside = ((voxels * spacing - centre) / radii).square().sum(-1) < 1  # [D, H, W]
    return MetaTensor(inside[None].float(), affine=torch.diag(torch.tensor([thickness, 1.0, 1.0, 1.0])))


def batch(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Volumes `[B, 1, D, H, W]`, their millimetres `[B, 3]` and labels `[B]`, through the pipeline."""
    random = torch.Generator().manual_seed(seed)
    PIPELINE.set_random_state(seed)
    labels = torch.randint(2, (count,), generator=random)
    thick = 1.0 + 2.0 * torch.randint(2, (count,), generator=random)
    made = [PIPELINE(body(bool(label), float(mm), random)) for label, mm in zip(labels, thick)]
    spacing = torch.stack([volume.pixdim for volume in made]).float()  # [B, 3]
    return torch.stack([volume.as_tensor() for volume in made]), spacing, labels


def trained(steps: int) -> nn.Module:
    """A small model after some updates."""
    model: nn.Module = timm.create_model("rope_volume_vit_tiny_patch16_96", spacing=(1.0, 1.0, 1.0), theta=10.0, **SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        volumes, spacing, labels = batch(16, step)
        loss = nn.functional.cross_entropy(model(volumes, spacing=spacing), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(steps: int = 60) -> None:
    """Train, then test on new volumes.

    Args:
        steps: Updates of sixteen volumes.
    """
    torch.manual_seed(0)
    model = trained(steps)
    volumes, spacing, labels = batch(64, 10_000)
    with torch.no_grad():
        told, untold = model(volumes, spacing=spacing), model(volumes)
    right = (told.argmax(-1) == labels).float().mean()
    changed = (told - untold).abs().amax(-1)  # [B]
    thick = spacing[:, 0] > 1
    print(f"accuracy {right:.3f} on {len(labels)} volumes, {int(thick.sum())} of them in slices of 3 mm")
    print(
        f"told nothing, outputs change by {changed[thick].mean():.1e} with slices of 3 mm, {changed[~thick].mean():.1e} with 1 mm"
    )


if __name__ == "__main__":
    tyro.cli(main)
