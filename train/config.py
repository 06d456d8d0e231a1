"""What a training run is: one flat dataclass, which is the command line, the run's config.json and the study's unit."""

from __future__ import annotations

import ast
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from train import checks, fields
from train.bad import MAX_PIXELS
from train.glyphs import CLASSES

Test = Literal["zoom", "canvas", "longer", "rate", "slices"]
Kind = Literal["images", "clips", "volumes"]
KINDS: dict[str, Kind] = {"moving": "clips", "clips": "clips", "solids": "volumes", "volumes": "volumes"}  # others are images
TESTED: dict[str, tuple[Test, ...]] = {  # what larger test inputs can be
    "glyphs": ("zoom", "canvas"),
    "arrows": ("canvas",),
    "moving": ("longer", "rate", "zoom", "canvas"),
    "clips": ("longer", "rate", "zoom"),
    "solids": ("zoom", "canvas", "slices"),
    "volumes": ("canvas", "zoom", "slices"),  # the last two with `spacing`
}
CHARACTERS = {"glyphs": CLASSES, "solids": "0123456789"}
DRAWN = "glyphs", "arrows", "moving", "solids"  # data sets that are made here


@dataclass(frozen=True)
class Config:
    """Train a timm model, wrapped with a position encoding, on images, clips or volumes."""

    # data
    dataset: str = "glyphs"
    """glyphs, arrows; moving (clips) and solids (volumes); with --data-dir folder (images), clips, volumes, or any name timm's
    create_dataset takes (torch/cifar10, hfds/...); streams: wds (tar shards), hfids/NAME."""
    data_dir: str | None = None
    """Root of the data set; a folder of images, clips or volumes holds train/ and val/, one folder a class."""
    train_split: str = "train"
    val_split: str | None = None
    """Split that accuracy is measured on (default: test for what is drawn, val for clips and volumes, validation otherwise)."""
    classes: str | None = None
    """The characters that are drawn (default: all 47 for glyphs, ten digits for solids, what the question takes for moving);
    one class each for glyphs, solids and the question glyph."""
    question: Literal["direction", "order", "glyph"] = "direction"
    """Moving: which of eight ways, which of two glyphs came first, or which glyph."""
    tests: tuple[Test, ...] | None = None
    """What larger test inputs are (default: all that the data set has). Glyphs: also what to train on; with both, half of the
    pictures are of each."""
    rest: float = 0.0
    """Glyphs: train on whole ones of many sizes, and this share of pictures without one, a class more (`train.glyphs.views`)."""
    train_samples: int = 60000
    """What is drawn: number of training inputs (glyphs: of each test)."""
    val_samples: int = 2000
    """Number of test inputs."""
    workers: int = 2
    cache: bool = False
    """What is drawn: all training inputs once, into memory, a byte a number: 3 KB a picture of 32 px, 25 KB a clip of 8 frames
    of 32 px, 4 KB a volume of 16³; at most 4 GB. Volumes from files: each read once, four bytes a number."""
    max_bad: int = 0
    """Training files that may be broken: each is named once and left out, one more is an error. Tests leave nothing out."""
    max_pixels: int = MAX_PIXELS
    """Pixels of a picture or frame, or voxels of a volume, that a file may claim; above, it is not decoded."""
    # model
    model: str = "vit_tiny_patch16_224"
    """Any timm model name that rope_nd.wrap takes."""
    model_kwargs: tuple[str, ...] = ()
    """Arguments of timm.create_model as key=value, for example depth=4 embed_dim=64."""
    num_classes: int | None = None
    """Default: as many as glyphs or folders; for other data sets the model's own."""
    img_size: tuple[int, ...] = (224,)
    """Training size in pixels: one number, or height and width. Volumes, in voxels: one number, or depth, height and width."""
    frames: int = 8
    """Clips: frames of one."""
    fps: float = 8.0
    """Clips: frames a second."""
    tubelet: int | None = None
    """Frames or slices a token (default: one frame; as many slices as a patch has pixels)."""
    attention: Literal["joint", "factorised"] = "joint"
    """Clips and volumes: over all tokens at once, or within frames and then along time."""
    encoding: str = "axial"
    """A name of rope_nd.list_encodings(), native (the model's own positions, at any size), or timm (the model unwrapped)."""
    encoding_kwargs: tuple[str, ...] = ()
    """Options of the encoding as key=value, for example theta=100.0."""
    positions: Literal["index", "units"] = "index"
    """What is told in training: nothing, so that frames and voxels are counted, or seconds and millimetres (the true spacing of
    each volume, as its file says it)."""
    spacing: tuple[float, ...] = ()
    """Volumes from files: millimetres, one number or depth, height, width. Voxels of files are averaged to about this spacing,
    by whole numbers, and positions in millimetres count by it (default: voxels as they are, and 1 mm)."""
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
    fsdp: bool = False
    """Under torchrun: share parameters, gradients and the optimiser's state out over the processes; alone it changes nothing."""
    device: str = "cpu"
    threads: int | None = None
    """CPU threads of this process (default: PyTorch's choice)."""
    seed: int = 0
    output: str = "runs"
    save_every: int | None = None
    """Updates between checkpoints (default: each minute, but so that saving takes at most a twentieth of the time)."""
    keep: int = 2
    """Checkpoints that stay, beside the best."""
    measure_every: int | None = None
    """Updates between measurements of accuracy at the training size; the checkpoint of the best stays."""
    max_skipped: int = 10
    """Updates in a row that may be left out because the loss or a gradient is not finite."""
    experiment: str | None = None
    """Name of the run's folder (default: made of the time, the model and the encoding)."""

    def __post_init__(self) -> None:
        counts = ("batch_size", "epochs", "grad_accum_steps", "train_samples", "val_samples", "keep", "max_skipped", "max_pixels")
        for name in (*counts, *(name for name in ("save_every", "measure_every") if getattr(self, name) is not None)):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        for check in (checks.size, checks.kind, checks.tests, checks.shared):
            check(self)
        if self.max_bad < 0 or (self.max_bad and (self.mixup or self.cutmix)):
            raise ValueError(f"max_bad={self.max_bad}: from 0, and 0 with mixup or cutmix, which pair all samples of a batch")
        if any(size > min(self.size) for size in self.train_sizes):
            raise ValueError(f"train_sizes={self.train_sizes}: none may be above the training size {min(self.size)}")
        if not 0 <= self.rest < 1 or (self.rest and (self.dataset != "glyphs" or len(self.img_size) > 1)):
            raise ValueError(f"rest={self.rest}: a share below 1, of square pictures of glyphs")
        if self.label is not None and (not self.label.strip() or set(self.label) & set("/\\\n\0")):
            raise ValueError(f"label={self.label!r}: it names files, so give a line without slashes")
        if self.dataset not in DRAWN and self.data_dir is None:
            raise ValueError(f"dataset {self.dataset!r} needs --data-dir")

    @property
    def kind(self) -> Kind:
        """images `[B, C, H, W]`, clips `[B, C, T, H, W]` or volumes `[B, C, D, H, W]`."""
        return KINDS.get(self.dataset, "images")

    @property
    def size(self) -> tuple[int, ...]:
        """Training size: (height, width), (frames, height, width) or (depth, height, width)."""
        first = {"images": (), "clips": (self.frames,), "volumes": self.img_size[:1]}[self.kind]
        return (*first, self.img_size[1 if len(self.img_size) == 3 else 0], self.img_size[-1])

    @property
    def title(self) -> str:
        """What tables call this model."""
        return self.label or self.encoding

    @property
    def characters(self) -> str | None:
        """The characters that are drawn; None: what the question takes, or none are."""
        return self.classes if self.classes is not None else CHARACTERS.get(self.dataset)

    @property
    def measured_split(self) -> str:
        usual = "test" if self.dataset in DRAWN else "validation" if self.kind == "images" else "val"
        return self.val_split or usual

    @property
    def known_tests(self) -> tuple[Test, ...]:
        """What larger test inputs can be; volumes from files are averaged to a spacing only if one is given."""
        known = TESTED.get(self.dataset, ("zoom",))
        return ("canvas",) if self.dataset == "volumes" and not self.spacing else known

    @property
    def measured_tests(self) -> tuple[Test, ...]:
        """What larger test inputs are."""
        known = self.known_tests
        return known if self.tests is None else tuple(test for test in self.tests if test in known)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read a run's config.json; unknown fields, and values that are none of a field's, are an error that names them."""
        return fields.load(cls, path, "train", "a run's config")


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
