"""Sizes as they are typed, and the cases that they are."""

from __future__ import annotations

from collections.abc import Sequence

from train.cases import Case, case, seen
from train.config import Config, Test


def parse_size(text: str) -> tuple[int, ...]:
    """`224`, `320x448` (height x width) or `16x64x64` (frames or slices before them)."""
    parts = text.lower().split("x")
    if len(parts) > 3 or not all(part.isdigit() and int(part) for part in parts):
        raise ValueError(f"size {text!r}: write 224, 320x448 for height and width, or 16x64x64 with frames or slices")
    return tuple(int(part) for part in parts)


def cases_of(config: Config, tests: Sequence[Test], sizes: Sequence[str], token: tuple[int, ...]) -> list[Case]:
    """The cases asked for, each of whole tokens; by default those of the training size."""
    sized = [parse_size(text) for text in sizes]
    found = [seen(config, test, size) for test in tests for size in sized] or [case(config, test, 1) for test in tests]
    for at in found:
        if len(token) == len(at.size) and any(n % of for n, of in zip(at.size, token)):
            shape, of = ("x".join(map(str, numbers)) for numbers in (at.size, token))
            raise ValueError(f"size {shape} is no multiple of the {'patch' if len(token) == 2 else 'tube'} {of}")
    return found
