"""Choices of a run that do not go together; each is a ValueError that names the value and the mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train.config import Config

SHARED = (  # optimisers that were seen to give, shared out by rows, the weights that one process has
    *("sgd", "momentum", "nesterov", "adam", "adamw", "nadamw", "radam", "rmsprop", "adagrad", "lion", "adan", "lamb", "lars"),
    *("muon", "nmuon"),
)


def size(config: Config) -> None:
    """Sizes, frames and rate."""
    many, what = (2, "pixels, or height and width") if config.kind != "volumes" else (3, "voxels, or depth, height and width")
    if len(config.img_size) not in (1, many) or min(config.img_size) < 1:
        raise ValueError(f"img_size={config.img_size}: give one size in {what}")
    if config.spacing and (len(config.spacing) not in (1, 3) or not all(0 < mm < float("inf") for mm in config.spacing)):
        raise ValueError(f"spacing={config.spacing}: millimetres above 0, one number or depth, height and width")
    for name in ("frames", "tubelet"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: at least 1")
    if not 0 < config.fps < float("inf"):
        raise ValueError(f"fps={config.fps}: frames a second, above 0")
    if config.kind == "clips" and config.frames % (config.tubelet or 1):
        raise ValueError(f"frames={config.frames} is no multiple of tubelet={config.tubelet}")


def kind(config: Config) -> None:
    """Choices that do not go with images, or with clips and volumes."""
    for name, known in (("question", ("direction", "order", "glyph")), ("attention", ("joint", "factorised"))):
        if getattr(config, name) not in known:
            raise ValueError(f"{name} {getattr(config, name)!r}: choose one of {', '.join(known)}")
    images, dataset = config.kind == "images", config.dataset
    flat = {"train_sizes": (), "cutmix": 0.0, "channels_last": False}
    for name, neutral in {"tubelet": None, "attention": "joint"}.items() if images else flat.items():
        if getattr(config, name) != neutral:
            other = "clips and volumes" if images else "images"
            raise ValueError(f"{name}={getattr(config, name)!r} is for {other}, and {dataset} are {config.kind}: leave it out")
    if config.spacing and dataset != "volumes":
        raise ValueError(f"spacing={config.spacing} is for volumes from files, and {dataset} say their own: leave it out")
    if config.positions not in ("index", "units") or (images and config.positions == "units"):
        raise ValueError(f"positions {config.positions!r}: choose index, or units (for clips and volumes)")
    if config.positions == "units" and dataset == "volumes" and config.mixup:
        raise ValueError(f"mixup={config.mixup} mixes volumes of several spacings, and positions are in units: leave one out")
    if not images and config.encoding == "timm":
        raise ValueError(f"encoding 'timm' is for images, and {dataset} are {config.kind}: choose native")


def tests(config: Config) -> None:
    """What larger test inputs are."""
    known, given = config.known_tests, config.tests
    if given is not None and (not config.measured_tests or (config.kind != "images" and set(given) - set(known))):
        more = "; zoom and slices need spacing" if config.dataset == "volumes" and not config.spacing else ""
        raise ValueError(f"tests {', '.join(given) or 'is empty'}: for {config.dataset} choose from {', '.join(known)}{more}")


def shared(config: Config) -> None:
    """What cannot be shared out over processes."""
    if not config.fsdp:
        return
    for name in ("torchcompile", "channels_last"):
        if getattr(config, name):
            raise ValueError(f"--fsdp does not go with --{name.replace('_', '-')}: leave one of them out")
    if config.opt not in SHARED:
        raise ValueError(f"--fsdp with opt {config.opt!r}, not seen to work on shared weights: choose {', '.join(SHARED)}")
