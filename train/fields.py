"""Data classes read from files: whether each value is one that its field may have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


def load(cls: type[Made], path: Path, key: str, what: str) -> Made:
    """A data class from a JSON object, or from what lies under `key` in it, beside what rebuilds a model.

    Unknown fields, and values that are none of a field's, are a ValueError that names the file and them.
    """
    try:
        given = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as {what} ({error})") from None
    if isinstance(given, dict) and key in given:
        given = given[key]
    known = get_type_hints(cls)
    if not isinstance(given, dict) or set(given) - set(known):
        told = f"unknown fields {sorted(set(given) - set(known))}" if isinstance(given, dict) else "it is no JSON object"
        raise ValueError(f"{path}: not {what}, {told}")
    values = {name: _read(value, known[name]) for name, value in given.items()}
    if wrong := [f"{name}={value!r}" for name, value in values.items() if not fits(value, known[name])]:
        raise ValueError(f"{path}: not what the fields are: {', '.join(wrong)}")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:  # TypeError: a field is missing
        raise ValueError(f"{path}: {error}") from None


def _read(value: Any, hint: Any) -> Any:
    """A value as JSON has it, as the field has it."""
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if isinstance(value, str) and Path in (hint, *get_args(hint)) else value


def fits(value: Any, hint: Any) -> bool:
    """Of the types that command lines are made of: numbers (finite), text, paths, flags, choices, tuples, and unions."""
    origin, given = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in given)
    if origin is Literal:
        return value in given
    if origin is tuple:
        kinds = given[:1] * len(value) if isinstance(value, tuple) and given[-1] is ... else given
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool) and abs(value) < 2**1023 and not math.isnan(value)
    return isinstance(value, hint)
