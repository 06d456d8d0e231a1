"""What a training run is: one flat dataclass, which is the command line, the run's config.json and the study's unit."""

from __future__ import annotations

import ast
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from train.glyphs import CLASSES

DRAWN = "glyphs", "arrows"  # data sets that are made here


@dataclass(frozen=True)
class Config:
    """Train a timm model, wrapped with a position encoding, on glyphs, arrows, an image folder, or any data set that timm knows."""

    # data
    dataset: str = "glyphs"
    """glyphs, arrows, folder (with --data-dir), or any name timm's create_dataset takes (torch/cifar10, hfds/..., wds/...)."""
    data_dir: str | None = None
    """Root of the data set; an image folder holds train/ and val/, one folder a class."""
    train_split: str = "train"
    val_split: str | None = None
    """Split that accuracy is measured on (default: test for glyphs and arrows, validation otherwise)."""
    classes: str = CLASSES
    """Glyphs: the characters, one class each."""
    tests: tuple[Literal["zoom", "canvas"], ...] = ("zoom", "canvas")
    """Glyphs: what to train on; with both, half of the pictures are of each."""
    train_samples: int = 60000
    """Glyphs and arrows: number of training pictures (glyphs: of each test)."""
    val_samples: int = 2000
    """Number of test pictures."""
    workers: int = 2
    cache: bool = False
    """Glyphs: draw all training pictures once, into memory."""
    # model
    model: str = "vit_tiny_patch16_224"
    """Any timm model name that rope_nd.wrap takes."""
    model_kwargs: tuple[str, ...] = ()
    """Arguments of timm.create_model as key=value, for example depth=4 embed_dim=64."""
    num_classes: int | None = None
    """Default: as many as glyphs or folders; for other data sets the model's own."""
    img_size: tuple[int, ...] = (224,)
    """Training size in pixels: one number, or height and width."""
    encoding: str = "axial"
    """A name of rope_nd.list_encodings(), native (the model's own positions, at any size), or timm (the model unwrapped)."""
    encoding_kwargs: tuple[str, ...] = ()
    """Options of the encoding as key=value, for example theta=100.0."""
    label: str | None = None
    """Name in tables and files (default: the encoding), to tell models of one encoding apart."""
    keep_pos_embed: bool = False
    checkpoint: str | None = None
    """Start from these weights (.safetensors, or a timm checkpoint)."""
    # coordinates in training, one draw a sample
    shift_coords: float = 0.0
    jitter_coords: float = 1.0
    rescale_coords: float = 1.0
    # optimisation
    batch_size: int = 64
    epochs: int = 10
    steps: int | None = None
    """Number of updates, instead of epochs."""
    opt: str = "adamw"
    """Any optimiser of timm; muon learns small models several times faster."""
    lr: float = 1e-3
    weight_decay: float = 0.05
    sched: str = "cosine"
    warmup_steps: int = 100
    clip_grad: float | None = 1.0
    grad_accum_steps: int = 1
    smoothing: float = 0.0
    bce_loss: bool = False
    """Binary cross-entropy over classes, as in DeiT-III."""
    mixup: float = 0.0
    cutmix: float = 0.0
    drop_path: float = 0.0
    aa: str | None = None
    """Auto-augmentation policy of timm for pictures, for example 3a (DeiT-III) or rand-m9-mstd0.5-inc1."""
    color_jitter: float = 0.4
    model_ema: bool = False
    model_ema_decay: float = 0.999
    train_sizes: tuple[int, ...] = ()
    """Multi-scale training: each batch is resized to one of these, at random; none may exceed the training size."""
    # running
    amp: bool = False
    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    torchcompile: bool = False
    channels_last: bool = False
    grad_checkpointing: bool = False
    device: str = "cpu"
    threads: int | None = None
    """CPU threads of this process (default: PyTorch's choice)."""
    seed: int = 0
    output: str = "runs"
    experiment: str | None = None
    """Name of the run's folder (default: made of the time, the model and the encoding)."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "grad_accum_steps", "train_samples", "val_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        if len(self.img_size) not in (1, 2) or min(self.img_size) < 1:
            raise ValueError(f"img_size={self.img_size}: give one size in pixels, or height and width")
        if any(size > min(self.size) for size in self.train_sizes):
            raise ValueError(f"train_sizes={self.train_sizes}: none may be above the training size {min(self.size)}")
        if self.label is not None and (not self.label.strip() or set(self.label) & set("/\\\n\0")):
            raise ValueError(f"label={self.label!r}: it names files, so give a line without slashes")
        if self.dataset == "glyphs" and not self.tests:
            raise ValueError("tests is empty: train on zoom, canvas or both")
        if self.dataset not in DRAWN and self.data_dir is None:
            raise ValueError(f"dataset {self.dataset!r} needs --data-dir")

    @property
    def size(self) -> tuple[int, int]:
        """Training size (height, width)."""
        return (self.img_size[0], self.img_size[-1])

    @property
    def title(self) -> str:
        """What tables call this model."""
        return self.label or self.encoding

    @property
    def measured_split(self) -> str:
        return self.val_split or ("test" if self.dataset in DRAWN else "validation")

    @property
    def measured_tests(self) -> tuple[str, ...]:
        """What larger test pictures are: more pixels of the same, or a larger field."""
        return {"glyphs": self.tests, "arrows": ("canvas",)}.get(self.dataset, ("zoom",))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read a run's config.json; unknown or missing fields are an error that names them."""
        try:
            given = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: cannot be read as a run's config ({error})") from None
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(given, dict) or set(given) - known:
            raise ValueError(f"{path}: not a run's config, unknown fields {sorted(set(given) - known)}")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def pairs(given: tuple[str, ...], what: str) -> dict[str, Any]:
    """`("depth=4", "mode=cubic")` -> `{"depth": 4, "mode": "cubic"}`; values are Python literals, or else text."""
    found: dict[str, Any] = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or not name.isidentifier():
            raise ValueError(f"{what} {item!r}: write key=value, for example depth=4")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found
