"""What a large run is planned from: the numbers are those of the model and the files at hand."""

from train import plan
from train.config import Config
from train.engine import Trainer


def test_pictures_are_as_large_as_photographs(tmp_path):
    root = plan.photographs(tmp_path / "data", 6)
    files = sorted(root.glob("*/*/*.jpg"))
    assert len(files) == 6 and all(60_000 < file.stat().st_size < 160_000 for file in files)


def test_a_checkpoint_holds_weights_average_and_two_moments(tmp_path):
    small = ("patch_size=8", "embed_dim=64", "depth=2", "num_heads=2")
    root = plan.photographs(tmp_path / "data", 24)
    given = {"model_kwargs": small, "img_size": (32,), "dataset": "folder", "data_dir": str(root), "batch_size": 4}
    trainer = Trainer(Config(**given, workers=0, threads=1, steps=5, model_ema=True), tmp_path / "run")
    plan.moved(trainer)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    assert plan.sizes(trainer)["a step, each device of many sends and receives (DDP, float32)"] == f"{8 * parameters / 1e6:.0f} MB"
    told = plan.checkpoints(trainer, 1)["a checkpoint"]
    assert abs(float(told.split(" MB")[0]) - 16 * parameters / 1e6) <= 1
    assert float(next(iter(plan.loader(trainer, 2).values())).split()[0]) > 0
