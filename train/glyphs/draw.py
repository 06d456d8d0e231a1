"""Letters and digits in free fonts, drawn by FreeType at the asked pixel size: nothing here resamples a raster.

A `Sample` holds a class, a font, two colours and a place in *field units* (1 = the side of the field seen in training), all from a
Philox stream keyed by (seed, split, index): a sample depends on no other. Two tests draw it,

    zoom     the field is the picture, at any number of pixels; augmented: a random square window of the field, drawn larger
    canvas   a field is always `field` pixels; the picture is larger, the glyph 0.75 field, with strokes at one density per area

FreeType places bitmaps on whole pixels, so the packed fonts carry two variation axes that move the outline by up to `REACH` em
right and up: glyphs land anywhere to 1/64 pixel. Masks are uint8 coverage, pictures are paper + (ink - paper) * mask.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, sqrt
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
SPLITS = "train", "val", "test"
REACH, STEPS = 0.25, 1 << 14  # the axes run from 0 to STEPS, which moves the outline by REACH em
ZOOM_SIDE = 0.7, 0.9  # larger side of the glyph's box, in fields
CANVAS_SIDE = 0.75
CROP_AREA = 0.08, 1.0  # of the field, when augmented
DENSITY, LENGTH, WIDTH = 4.0, (0.08, 0.22), (0.05, 0.12)  # strokes per field area; their extent and thickness, in fields
CONTRAST, TRIES = 0.35, 24  # least difference of luminance, of 1, and how many pairs of colours to look at
LUMA = np.array([0.299, 0.587, 0.114])

Split = Literal["train", "val", "test"]
U = TypeVar("U", float, np.ndarray)


@dataclass(frozen=True, eq=False)
class Font:
    """A packed font file, with the box (x0, y0, x1, y1) of each of `CLASSES` in font units, y up, and the units per em."""

    data: bytes
    cluster: int
    family: str
    boxes: tuple[tuple[int, int, int, int], ...]
    unit: int


@dataclass(frozen=True, eq=False)
class Sample:
    label: int  # index into the classes it was made with
    char: str
    font: Font
    key: tuple[int, Split, int]  # seed, split and index, which name its random streams
    ink: np.ndarray  # [3] in [0, 1]
    paper: np.ndarray  # [3]
    dice: np.ndarray  # [7] uniforms: side, glyph y x, crop area, crop y x, place


@lru_cache
def load_fonts(split: Split) -> list[Font]:
    with zipfile.ZipFile(Path(__file__).with_name("fonts.zip")) as archive:
        return [
            Font(archive.read(e["file"]), e["cluster"], e["family"], tuple(map(tuple, e["boxes"])), e["unit"])
            for e in json.loads(archive.read("index.json"))
            if e["split"] == split
        ]


@lru_cache
def clusters(split: Split) -> list[list[Font]]:
    groups: dict[int, list[Font]] = {}
    for font in load_fonts(split):
        groups.setdefault(font.cluster, []).append(font)
    return list(groups.values())


class Streams:
    """One generator, moved to the start of any sample's stream: `part` 0 holds its choices, 1 its strokes."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator, self.state = np.random.Generator(self.bits), self.bits.state

    def at(self, seed: int, split: Split, index: int, part: int = 0) -> np.random.Generator:
        self.state["state"]["key"] = np.array([seed, index * len(SPLITS) + SPLITS.index(split)], np.uint64)
        self.state["state"]["counter"] = np.array([0, 0, 0, part], np.uint64)
        self.bits.state = self.state
        return self.generator


def rolls(seed: int, split: Split, indices: Sequence[int], count: int) -> np.ndarray:
    """The first `count` uniforms of each sample's choices: [B, count]."""
    streams = Streams()
    return np.stack([streams.at(seed, split, int(i)).random(count) for i in indices])


def choose(u: np.ndarray, split: Split) -> list[Font]:
    """A cluster uniformly, then a font of it, from uniforms [B, 2]: large families do not dominate."""
    groups = clusters(split)
    picked = [(groups[int(a * len(groups))], b) for a, b in u]
    return [group[int(b * len(group))] for group, b in picked]


def samples(seed: int, split: Split, indices: Sequence[int], classes: str = CLASSES) -> list[Sample]:
    u = rolls(seed, split, indices, 10 + 6 * TRIES)  # [B, R]
    fonts, labels, dice = choose(u[:, :2], split), (u[:, 2] * len(classes)).astype(int).tolist(), u[:, 3:10]
    ink, paper = colours(u[:, 10:].reshape(-1, TRIES, 2, 3))
    return [
        Sample(label, classes[label], fonts[i], (seed, split, int(indices[i])), ink[i], paper[i], dice[i])
        for i, label in enumerate(labels)
    ]


def colours(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ink and paper [B, 3] from pairs [B, TRIES, 2, 3]: the first with enough contrast, the darker of the two being the ink."""
    luma = pairs @ LUMA  # [B, T, 2]
    good = np.abs(luma[..., 0] - luma[..., 1]) >= CONTRAST  # [B, T]
    first = np.where(good.any(1), good.argmax(1), TRIES - 1)
    pair = pairs[np.arange(len(pairs)), first]  # [B, 2, 3]
    order = np.argsort(pair @ LUMA, axis=1)  # [B, 2], the darker first
    ink, paper = np.moveaxis(np.take_along_axis(pair, order[..., None], 1), 1, 0)  # [B, 3] each
    none = ~good.any(1)[:, None]
    return np.where(none, 0.0, ink), np.where(none & (paper @ LUMA < CONTRAST)[:, None], 1.0, paper)


def span(font: Font, char: str, side: float) -> tuple[float, float]:
    """Height and width of a glyph's box whose larger side is `side`."""
    x0, y0, x1, y1 = font.boxes[CLASSES.index(char)]
    unit = side / max(x1 - x0, y1 - y0)
    return (y1 - y0) * unit, (x1 - x0) * unit


def glyph(font: Font, char: str, side: float, top: float, left: float, size: tuple[int, int]) -> np.ndarray:
    """The coverage of one glyph, its box `side` pixels at the larger side and at (top, left), clipped to [h, w], uint8."""
    x0, y0, x1, y1 = font.boxes[CLASSES.index(char)]
    scale = side / max(x1 - x0, y1 - y0)  # pixels per font unit
    em = max(1.0, scale * font.unit)
    x, y = left - x0 * scale, top + y1 * scale  # of the outline's origin, y down
    column, row = floor(x), ceil(y)
    face = ImageFont.FreeTypeFont(io.BytesIO(font.data), em, layout_engine=ImageFont.Layout.BASIC)
    face.set_variation_by_axes([min(STEPS, round(part / em / REACH * STEPS)) for part in (x - column, row - y)])
    image = Image.new("L", size[::-1])
    ImageDraw.Draw(image).text((column, row), char, fill=255, font=face, anchor="ls")
    return np.asarray(image)


def between(u: U, low: float, high: float) -> U:
    return low + (high - low) * u


def zoom(samples: list[Sample], size: tuple[int, int], augment: bool = False) -> np.ndarray:
    """Masks [B, h, w]. The field is a square of the shorter side, placed uniformly along the longer one; the rest is paper."""
    masks = np.zeros((len(samples), *size), np.uint8)
    field = min(size)
    for mask, s in zip(masks, samples):
        side_u, y_u, x_u, area_u, crop_y, crop_x, place = s.dice
        window = sqrt(between(area_u, *CROP_AREA)) if augment else 1.0  # side of what is shown, in fields
        side = between(side_u, *ZOOM_SIDE)
        h, w = span(s.font, s.char, side)
        top, left = y_u * (1 - h) - crop_y * (1 - window), x_u * (1 - w) - crop_x * (1 - window)
        y, x = (round(place * (length - field)) for length in size)
        px = field / window
        mask[y : y + field, x : x + field] = glyph(s.font, s.char, side * px, top * px, left * px, (field, field))
    return masks


def glyph_box(s: Sample, size: tuple[int, int], field: int) -> tuple[float, float, float, float]:
    """Top, left, height and width in pixels of a canvas sample's glyph: uniform over the canvas, fully inside."""
    h, w = span(s.font, s.char, CANVAS_SIDE * field)
    return s.dice[1] * (size[0] - h), s.dice[2] * (size[1] - w), h, w


def crop_corner(s: Sample, size: tuple[int, int], field: int) -> tuple[int, int]:
    """Top-left pixel of the true crop: a field by field window inside the canvas that contains the glyph, uniform among those."""
    top, left, h, w = glyph_box(s, size, field)
    corner = []
    for u, start, extent, length in ((s.dice[4], top, h, size[0]), (s.dice[5], left, w, size[1])):
        low, high = max(0, ceil(start + extent - field)), min(length - field, floor(start))
        corner.append(low + int(u * (high - low + 1)))
    return corner[0], corner[1]


def canvas(samples: list[Sample], size: tuple[int, int], field: int, crop: bool = False) -> np.ndarray:
    """Masks [B, h, w] of the canvas, or of its true crops [B, field, field]: the same pixels, drawn without the rest."""
    shape = (field, field) if crop else size
    masks = np.empty((len(samples), *shape), np.uint8)
    corners = [crop_corner(s, size, field) if crop else (0, 0) for s in samples]
    for i, (s, corner) in enumerate(zip(samples, corners)):
        top, left, _, _ = glyph_box(s, size, field)
        masks[i] = glyph(s.font, s.char, CANVAS_SIDE * field, top - corner[0], left - corner[1], shape)
    lines, owner = strokes(samples, size, field)
    lines[:, :4] -= np.tile(np.array(corners)[owner], 2)
    draw_strokes(masks, lines, owner)
    return masks


def strokes(samples: list[Sample], size: tuple[int, int], field: int) -> tuple[np.ndarray, np.ndarray]:
    """Distractors [S, 5] in pixels, both ends (y, x) and the half width, and the sample of each [S].

    A Poisson process of one density per area, over the edges too, each sample's from its own stream.
    """
    streams, pad = Streams(), LENGTH[1] / 2
    area = np.array(size) / field + 2 * pad  # [2] in fields
    draws = [(rng := streams.at(*s.key, part=1)).random((rng.poisson(DENSITY * area.prod()), 5)) for s in samples]
    u, owner = np.concatenate(draws), np.repeat(np.arange(len(draws)), [len(d) for d in draws])  # [S, 5], [S]
    width = between(u[:, 3], *WIDTH)
    reach = np.maximum(between(u[:, 2], *LENGTH) - width, 0) / 2  # round caps are part of the extent
    angle = np.pi * u[:, 4]
    middle, arm = u[:, :2] * area - pad, np.stack([np.sin(angle), np.cos(angle)], 1) * reach[:, None]
    return np.concatenate([middle - arm, middle + arm, width[:, None] / 2], 1) * field, owner


def draw_strokes(masks: np.ndarray, lines: np.ndarray, owner: np.ndarray, chunk: int = 2048) -> None:
    """Add round-capped segments [S, 5] to masks [B, h, w], each to that of its owner; the edge is a ramp one pixel wide."""
    _, height, width = masks.shape
    low = np.minimum(lines[:, :2], lines[:, 2:4]) - lines[:, 4:] - 1  # [S, 2] a corner of each patch
    high = np.maximum(lines[:, :2], lines[:, 2:4]) + lines[:, 4:] + 1
    seen = ((high > 0) & (low < (height, width))).all(1)
    lines, owner, low, high = lines[seen], owner[seen], np.floor(low[seen]), high[seen]
    if not len(lines):
        return
    steps = np.arange(ceil((high - low).max()))  # [K]
    for part in (slice(i, i + chunk) for i in range(0, len(lines), chunk)):
        y, x = (low[part, None, axis].astype(int) + steps for axis in (0, 1))  # [S, K] each
        cover = capsule(lines[part], y + 0.5, x + 0.5)  # [S, K, K]
        inside = (cover > 0) & ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None]
        flat = ((owner[part, None] * height + y) * width)[:, :, None] + x[:, None]
        np.maximum.at(masks.reshape(-1), flat[inside], cover[inside])


def capsule(lines: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Coverage [S, K, K], uint8, of points no further than half the width from a segment."""
    ends = lines[:, :4].astype(np.float32)
    y, x = (v.astype(np.float32) - ends[:, [i]] for v, i in ((y, 0), (x, 1)))  # [S, K] from the first end
    dy, dx = ends[:, 2:3] - ends[:, :1], ends[:, 3:4] - ends[:, 1:2]  # [S, 1]
    norm = np.maximum(dy * dy + dx * dx, 1e-6)
    along = np.clip((y * (dy / norm))[:, :, None] + (x * (dx / norm))[:, None], 0, 1)  # [S, K, K]
    distance = np.hypot(y[:, :, None] - along * dy[:, :, None], x[:, None] - along * dx[:, :, None])
    cover: np.ndarray = np.clip(lines[:, 4, None, None].astype(np.float32) + 0.5 - distance, 0, 1)
    return (cover * 255 + 0.5).astype(np.uint8)


def paint(masks: np.ndarray, samples: list[Sample]) -> np.ndarray:
    """Pictures [B, 3, h, w], uint8, from masks [B, h, w]: paper + (ink - paper) * mask."""
    ink, paper = (np.stack([getattr(s, name) for s in samples])[:, :, None] * 255 for name in ("ink", "paper"))  # [B, 3, 1]
    shades = (paper + (ink - paper) * (np.arange(256) / 255) + 0.5).astype(np.uint8)  # [B, 3, 256]
    pictures = np.empty((len(samples), 3, *masks.shape[1:]), np.uint8)
    for picture, shade, mask in zip(pictures, shades, masks):
        for channel in range(3):
            np.take(shade[channel], mask, out=picture[channel], mode="clip")
    return pictures
