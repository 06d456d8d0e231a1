"""The short help of commands with many options: the most used ones with a line each, and the names of the others."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, get_type_hints

Option = tuple[str, Any, str]  # name, default, what it is


def brief(main: Callable[..., Any], program: str, shown: tuple[str, ...], width: int) -> str:
    """The help of `main` that shows some of its options, in their order."""
    found = {name: (default, about) for name, default, about in options(main)}
    rows = [(_usage(name, found[name][0]), found[name][1]) for name in shown]
    column = max(len(usage) for usage, _ in rows) + 2
    lines = [f"usage: {program} [options]", "", *textwrap.wrap((inspect.getdoc(main) or "").split("\n")[0], width), ""]
    lines += [
        f"  {usage:{column}}{textwrap.shorten(about, width - column - 2, placeholder=' ..', break_on_hyphens=False)}"
        for usage, about in rows
    ]
    rest = " ".join(flag(name) for name in found if name not in shown)
    wrapped = textwrap.wrap(rest, width - 2, break_on_hyphens=False)
    return "\n".join([*lines, "", "Further ones:", *(f"  {line}" for line in wrapped), "", "--help-all explains them all."])


def options(main: Callable[..., Any]) -> Iterator[Option]:
    """Every option of a command: its arguments, and the fields of a dataclass among them."""
    hints, said = get_type_hints(main), dict(re.findall(r"^ {4}(\w+): (.*)", inspect.getdoc(main) or "", re.MULTILINE))
    for name, parameter in inspect.signature(main).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            below = documented(hints[name])
            yield from ((one.name, one.default, below.get(one.name, "")) for one in dataclasses.fields(hints[name]))
        else:
            yield name, parameter.default, said.get(name, "")


def documented(cls: Any) -> dict[str, str]:
    """The text below each field of a dataclass."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for above, below in pairwise(tree.body):
        if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(above.target)] = " ".join(str(below.value.value).split())
    return found


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _usage(name: str, default: Any) -> str:
    """An option with its default, or what it must be given."""
    if default in (dataclasses.MISSING, inspect.Parameter.empty):
        return f"{flag(name)} {name.upper()}"
    if default in (None, ()) or isinstance(default, bool):
        return flag(name)
    return f"{flag(name)} {' '.join(map(str, default)) if isinstance(default, tuple) else default}"
