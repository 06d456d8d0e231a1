"""A Lightning module around a wrapped model, trained at one size and tested at another.

    python examples/lightning_module.py --steps 100 --sizes 32 64

A wrapped model is an ordinary module: Lightning's trainer, its checkpoints and its precision settings work with it as with any
other. Nothing in a checkpoint depends on the size of the pictures, so it loads for every size.
"""

import logging
import tempfile
from collections.abc import Iterator

import lightning
import timm
import torch
import tyro
from discs import discs
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from rope_nd import wrap


class Discs(IterableDataset):
    """Batches of discs at a size."""

    def __init__(self, batches: int, size: int, seed: int) -> None:
        self.batches, self.size, self.seed = batches, size, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (discs(64, self.size, self.seed + i) for i in range(self.batches))


class Classifier(lightning.LightningModule):
    """Four quarters, told by a ViT with rotary positions."""

    def __init__(self, encoding: str = "axial", lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        shape = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 2}
        self.model = wrap(timm.create_model("vit_tiny_patch16_224", num_classes=4, **shape), encoding)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        right = (self.model(batch[0]).argmax(-1) == batch[1]).float().mean()
        self.log("accuracy", right)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main(steps: int = 100, sizes: tuple[int, ...] = (32, 64)) -> None:
    """Train at 32 pixels, load the checkpoint, test.

    Args:
        steps: Updates.
        sizes: Sizes to test at, in pixels, multiples of 8.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(max_steps=steps, enable_checkpointing=False, default_root_dir=folder, **quiet)
        trainer.fit(Classifier(), DataLoader(Discs(steps, 32, seed=0), batch_size=None))
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        trained = Classifier.load_from_checkpoint(f"{folder}/last.ckpt")
    for size in sizes:
        data = DataLoader(Discs(2, size, seed=10_000), batch_size=None)
        (found,) = lightning.Trainer(**quiet).test(trained, data, verbose=False)
        print(f"{size:4} px: accuracy {found['accuracy']:.3f}")


if __name__ == "__main__":
    tyro.cli(main)
