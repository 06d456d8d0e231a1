"""What the labels of a run stand for, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from train.config import DRAWN, Config
from train.moving import Moving


def class_count(config: Config) -> int | None:
    """Number of classes: what the run says, or else what the data tells; None for the model's own."""
    if config.num_classes is not None:
        return config.num_classes
    if config.dataset in DRAWN:
        return len(answers(config)) + (config.rest > 0)
    if config.dataset in ("folder", "clips", "volumes"):
        root = Path(config.data_dir or "") / config.train_split
        if not root.is_dir():
            raise ValueError(f"{root}: there is no such folder, which tells the classes: mend --data-dir, or give --num-classes")
        return len({path.name for path in root.iterdir() if path.is_dir()})
    return None


def answer_count(config: Config) -> int | None:
    """Number of classes that can be the answer: all but the rest, which is the last."""
    count = class_count(config)
    return count - 1 if count is not None and config.rest else count


def rest(config: Config) -> int | None:
    """The class that is no answer, behind all that are; None without one."""
    return answer_count(config) if config.rest else None


def answers(config: Config) -> Sequence[str]:
    """What the labels of a drawn data set stand for."""
    if config.dataset == "moving":
        return Moving("train", question=config.question, classes=config.characters).answers
    return config.characters or ("up", "right", "down", "left")
