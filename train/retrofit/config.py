"""What a retrofit is: one flat dataclass, which is the command line and the run's config.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rope_nd._check import choose
from train import fields

Train = Literal["qk", "attn", "all", "lora"]
TRAINS: tuple[Train, ...] = ("qk", "attn", "all", "lora")


@dataclass(frozen=True)
class Config:
    """Give a pretrained timm model rotary positions, by distilling it from its frozen self on images without labels."""

    model: str
    """Any timm model with a table of absolute positions that rope_nd.wrap takes."""
    data: Path
    """A folder of images, however nested; folders with train/ and val/ train on the first and measure on the second."""
    weights: Path | None = None
    """The pretrained weights (.safetensors, or a timm checkpoint)."""
    pretrained: bool = False
    """Let timm fetch its own weights."""
    model_kwargs: tuple[str, ...] = ()
    """Arguments of timm.create_model as key=value."""
    # positions
    encoding: str = "axial"
    """A rotary encoding or preset."""
    encoding_kwargs: tuple[str, ...] = ()
    """Options of the encoding as key=value, for example theta=100.0."""
    scaling: str | None = "pi"
    """A rule above trained_tokens (pi, ntk, yarn, ..), for encodings whose coordinates count tokens. The default interpolates: a
    larger image has finer steps of the same turn, as a resized table has."""
    trained_tokens: int | None = None
    """Tokens an axis that the rule counts from (default: those of the smallest of sizes, so that training knows finer steps)."""
    rescale_coords: float = 1.0
    """Coordinates are stretched by up to this in training, one draw an image, so that finer and coarser steps are known."""
    antialias: bool = True
    """Smooth the table where it shrinks, as timm does. DINOv2 was trained without: --no-antialias."""
    fold: bool = True
    """Before training, move the mean of the table into the bias of the stem and the class token's entry into that token: the model
    is the same, and fading takes from it only what differs between places."""
    strength_share: float = 0.1
    """The share of the steps over which strength goes from 0 to 1."""
    absolute_start: float = 0.0
    """The share of the steps after which the table's weight begins to fall from 1."""
    absolute_share: float = 0.1
    """The share of the steps over which it falls."""
    keep_absolute: float = 0.0
    """The weight that it falls to."""
    # distillation
    sizes: tuple[int, ...] = ()
    """Training sizes in pixels, one drawn a step (default: 0.5, 0.75, 1 and 1.5 times the pretrained size)."""
    home: tuple[int, int] | None = None
    """The sizes, from and to, at which the original is right itself and taught by as it is (default: the pretrained one alone).
    At others the teacher sees the image at the nearest of these, and its tokens are resampled."""
    cosine: float = 1.0
    """Weight of 1 - cosine."""
    smooth: float = 1.0
    """Weight of smooth L1 on features over the length of the teacher's."""
    class_weight: float = 0.5
    """Share of the class token (or whatever the model pools) in the loss; the others are patch tokens."""
    inside: int = 1
    """Tokens are compared after every so many blocks, too, with the same weight in all as at the end; 0: at the end alone."""
    # what trains, and how
    train: Train = "all"
    """qk: projections of q and k, norms and frequencies; attn: also v and the output projection; all; lora: low-rank, with peft."""
    rank: int = 16
    """Of lora."""
    steps: int = 1000
    batch_size: int = 24
    lr: float = 1e-4
    final_lr: float = 1e-6
    weight_decay: float = 0.0
    warmup_steps: int = 20
    clip_grad: float = 1.0
    ema: float = 0.0
    """Decay of a running mean of the weights, which is then what is measured and saved; 0: none."""
    crop: float = 0.4
    """The least area of a random crop, as a share of the image."""
    bf16: bool = False
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    # what is measured and written
    measure_sizes: tuple[int, ...] = ()
    """Sizes of the fidelity over time (default: sizes)."""
    measure_images: int = 48
    measure_every: int = 100
    save_every: int = 100
    stop_after: int | None = None
    """Stop at this step, as an interruption would; the same command goes on from there."""
    output: Path = Path("runs/retrofit")

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "rank", "measure_images", "measure_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        for name in ("strength_share", "absolute_start", "absolute_share", "keep_absolute", "class_weight", "ema"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: a share, from 0 to 1")
        if self.absolute_start + self.absolute_share > 1:
            raise ValueError(f"absolute_start + absolute_share = {self.absolute_start + self.absolute_share}: at most 1")
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop={self.crop}: a share of the area, above 0 and at most 1")
        if self.inside < 0:
            raise ValueError(f"inside={self.inside}: after every so many blocks, or 0 for none")
        if self.cosine < 0 or self.smooth < 0 or self.cosine + self.smooth == 0:
            raise ValueError(f"cosine={self.cosine}, smooth={self.smooth}: weights of at least 0, and not both 0")
        if self.home is not None and not 0 < self.home[0] <= self.home[1]:
            raise ValueError(f"home={self.home}: the smallest size, then the largest")
        if min((*self.sizes, *self.measure_sizes), default=1) < 1:
            raise ValueError(f"sizes={self.sizes}, measure_sizes={self.measure_sizes}: pixels, at least 1")
        choose("train", self.train, TRAINS)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, default=str)

    @classmethod
    def load(cls, path: Path) -> Config:
        """From a run's config.json."""
        if not path.is_file():
            raise ValueError(f"{path}: no config there; give the folder of a retrofit")
        return fields.load(cls, path, "retrofit", "a retrofit's config")
