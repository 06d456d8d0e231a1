"""The pages of docs/ name what there is."""

import importlib
import re
from pathlib import Path

import rope_nd

ROOT = Path(__file__).parent.parent
PAGES = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
SHOWN = {name for text in PAGES.values() for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}


def found(name):
    """What a dotted name means."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(name)


def test_all_that_is_shown_exists_and_says_what_it_is():
    assert len(SHOWN) > 15
    for name in SHOWN:
        assert found(name).__doc__, name


def test_every_public_name_has_a_place():
    shown = [found(name) for name in SHOWN]
    for name in rope_nd.__all__:
        thing = getattr(rope_nd, name)
        module = getattr(thing, "__module__", None)
        assert any(thing is one or getattr(one, "__name__", None) == module for one in shown), name


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert sorted(re.findall(r"(\w+\.md)$", menu, re.MULTILINE)) == sorted(PAGES)
