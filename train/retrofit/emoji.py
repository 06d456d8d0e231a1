"""Emoji of several styles as pictures in folders, one a subgroup, from npm's vector sets."""

from __future__ import annotations

import importlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from train import archives

STYLES = "noto noto-v1 twemoji openmoji fluent-emoji fluent-emoji-flat emojione emojione-v1 fxemoji".split()
NAMES = "emojibase-data@17.0.0"
SHORT = [f"en/shortcodes/{name}.json" for name in ("cldr", "emojibase", "github", "iamcal", "joypixels")]


@dataclass(frozen=True)
class Picture:
    """Where it goes, below train/ or val/, and what it is."""

    path: str
    svg: str
    held: bool


def held(name: str, share: float) -> bool:
    """Whether a concept is kept from training, by a checksum of its name: the same in all styles."""
    return zlib.crc32(name.encode()) < share * 2**32


def parts(archive: Path, *names: str) -> list[Any]:
    """JSON files of an npm package."""
    return [json.loads(data) for data in archives.read(archive, *(f"package/{name}" for name in names))]


def plain(hexcode: str) -> str:
    """A sequence of code points without the mark for colour."""
    return "-".join(part for part in hexcode.lower().split("-") if part != "fe0f")


def key(name: str) -> str:
    """A name without what sets write in different ways: case, dashes, marks."""
    return re.sub("[^a-z0-9]", "", name.lower())


def concepts(archive: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Sequence of code points -> name of its subgroup, and any name of an emoji -> its sequence; skin tones are one concept."""
    listed, groups, *shortcodes = parts(archive, "en/data.json", "meta/groups.json", *SHORT)
    known = {plain(one["hexcode"]): groups["subgroups"][str(one["subgroup"])] for one in listed if "subgroup" in one}
    names = {key(one["label"]): plain(one["hexcode"]) for one in listed if "subgroup" in one}
    for table in shortcodes:
        for code, found in table.items():
            for name in [found] if isinstance(found, str) else found:
                names.setdefault(key(name), plain(code))
    return known, names


def codes(icons: dict[str, Any], chars: dict[str, str], names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Sequence of code points and icon: as the set tells, or where it does not, by the icon's name."""
    if chars:
        yield from ((plain(code), icon) for code, icon in chars.items())
    else:
        every = (*icons["icons"], *icons.get("aliases", {}))
        yield from ((names[key(icon)], icon) for icon in every if key(icon) in names)


def drawing(icons: dict[str, Any], name: str) -> str | None:
    """An icon as an SVG file, by its own name or that of what it is an alias of; None if there is nothing to draw."""
    while name not in icons["icons"]:
        name = icons.get("aliases", {}).get(name, {}).get("parent", "")
        if not name:
            return None
    icon = icons["icons"][name]
    if not icon["body"]:
        return None
    left, top = icon.get("left", icons.get("left", 0)), icon.get("top", icons.get("top", 0))
    width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
    head = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {head} viewBox="{left} {top} {width} {height}">{icon["body"]}</svg>'


def pictures(names: Path, styles: dict[str, Path], share: float) -> Iterator[Picture]:
    """Every emoji that has a subgroup, in every style."""
    known, named = concepts(names)
    for style, archive in styles.items():
        icons, chars = parts(archive, "icons.json", "chars.json")
        seen: set[str] = set()
        for concept, icon in codes(icons, chars, named):
            if concept in known and concept not in seen and (svg := drawing(icons, icon)) is not None:
                seen.add(concept)
                yield Picture(f"emoji-{known[concept]}/{concept}-{style}.png", svg, held(concept, share))


def draw(picture: Picture, folder: Path, pixels: int, held_pixels: int) -> None:
    """Write one picture, its longer side so many pixels."""
    path = folder / ("val" if picture.held else "train") / picture.path
    path.parent.mkdir(parents=True, exist_ok=True)
    size = held_pixels if picture.held else pixels
    render = importlib.import_module("resvg_py").svg_to_bytes
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(bytes(render(svg_string=picture.svg, width=size, height=size, skip_system_fonts=True)))
    temporary.replace(path)


def draw_all(found: list[Picture], folder: Path, pixels: int, held_pixels: int, workers: int) -> None:
    """Those that are not there yet."""
    left = [one for one in found if not (folder / ("val" if one.held else "train") / one.path).exists()]
    one = partial(draw, folder=folder, pixels=pixels, held_pixels=held_pixels)
    if workers < 2:
        for picture in left:
            one(picture)
        return
    with Pool(workers) as pool:
        for _ in pool.imap_unordered(one, left, chunksize=16):
            pass
