"""What the library offers, name by name, is written down in api.txt: a change of it is seen, and meant.

python -m tests.test_api        # writes api.txt again
"""

import difflib
import importlib
import inspect
import re
import types
from pathlib import Path

import rope_nd

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_name("api.txt")
MEND = "the public interface is another one; if that is meant, run `python -m tests.test_api` and commit tests/api.txt"


def offered():
    """A line for each public name: of rope_nd, and of what the pages of docs/ show."""
    shown = {name for page in (ROOT / "docs").glob("*.md") for name in re.findall(r"^::: (rope_nd\S*)", page.read_text(), re.M)}
    lines = set()
    for name in sorted(shown | {f"rope_nd.{name}" for name in rope_nd.__all__}):
        lines.update(described(name, found(name)))
    return sorted(lines)


def found(name):
    """What a dotted name means; of a name that a module and a function share, what `rope_nd` offers."""
    home, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(home), last, None)
    return importlib.import_module(name) if thing is None else thing


def described(name, thing):
    """The lines of a module, a class or a function."""
    if isinstance(thing, types.ModuleType):
        for own, member in public(thing):
            yield from described(f"{name}.{own}", member)
    elif inspect.isclass(thing):
        yield f"{name}{signature(thing)}"
        for own, member in vars(thing).items():
            if not own.startswith("_"):
                yield from method(f"{name}.{own}", member)
    elif callable(thing):
        yield f"{name}{signature(thing)}"


def method(name, member):
    if isinstance(member, property):
        yield f"{name} -> {member.fget.__annotations__.get('return', 'unknown')}"
    elif isinstance(member, staticmethod | classmethod):
        yield f"{name}{signature(member.__func__)}"
    elif inspect.isfunction(member):
        yield f"{name}{signature(member)}"


def public(module):
    """What `__all__` of a module names, or what is written in it, in either case without what begins with an underscore."""
    names = getattr(module, "__all__", None) or [name for name, one in vars(module).items() if written(one, module)]
    return [(name, getattr(module, name)) for name in names if not name.startswith("_")]


def written(thing, module):
    return (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__ == module.__name__


def signature(thing):
    try:
        return str(inspect.signature(thing))
    except ValueError:  # what is not written in Python
        return "(...)"


def difference(old, new):
    return "\n".join(difflib.unified_diff(old, new, "tests/api.txt", "as it is", lineterm="", n=0))


def test_the_public_interface_is_the_one_that_is_written_down():
    changed = difference(FILE.read_text().splitlines(), offered())
    assert not changed, f"{MEND}\n{changed}"


def test_a_changed_signature_is_a_difference(monkeypatch):
    def rotate(x, cos, sin, *, layout="half"):
        """Another default."""

    monkeypatch.setattr(rope_nd, "rotate", rotate)
    lines = difference(FILE.read_text().splitlines(), offered()).splitlines()
    assert "+rope_nd.rotate(x, cos, sin, *, layout='half')" in lines and any(line.startswith("-rope_nd.rotate(") for line in lines)


def test_all_that_rope_nd_offers_is_written_down():
    names = {re.split(r"[( ]", line)[0] for line in FILE.read_text().splitlines()}
    for name in rope_nd.__all__:
        assert any(one == f"rope_nd.{name}" or one.startswith(f"rope_nd.{name}.") for one in names), name
    assert {"rope_nd.hub.load", "rope_nd.rope.RoPE.at", "rope_nd.watch.attention"} <= names


def test_no_line_differs_from_run_to_run():
    assert not re.search(r"0x[0-9a-f]{6}|/\w+/\w+/", FILE.read_text())


if __name__ == "__main__":
    FILE.write_text("\n".join(offered()) + "\n")
