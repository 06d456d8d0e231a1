"""Files that cannot be read, or that claim to hold more than may be decoded: a BadFile names the file, and nothing else comes out.

The size is taken from the header, before anything is decoded: 235 bytes of a PNG can claim 10000 x 10000 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 2**26
FORMATS = "PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF"  # not EPS, for which Pillow calls another program


class BadFile(ValueError):
    """A file that is broken, or larger than may be; the message names it."""


@contextmanager
def naming(what: str | Callable[[], str]) -> Iterator[None]:
    """Whatever a decoder raises within, over bytes that may be anything, becomes a BadFile that begins with `what`."""
    try:
        yield
    except (BadFile, ImportError):
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or ["without a word"]
        kind = "" if isinstance(error, (OSError, ValueError, SyntaxError)) else f"{type(error).__name__}, "
        raise BadFile(f"{what if isinstance(what, str) else what()}: {kind}{said[0]}") from error


def check_size(sides: Sequence[int], most: int, unit: str = "pixels") -> None:
    """Refuse what has more than `most` pixels, or voxels. `sides`: of which the header tells; none may be below 1."""
    claim = f"its header claims {' x '.join(map(str, sides))} {unit}"
    if min(sides, default=1) < 1:
        raise ValueError(claim)
    if prod(sides) > most:
        raise ValueError(f"{claim}, {prod(sides):,} in all, above {most:,}: raise --max-pixels if they are true")


def picture(file: Any, most: int = MAX_PIXELS) -> Image.Image:
    """A picture of an open file, its header read and its size checked, not decoded yet."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # here `most` is the limit
    try:
        found = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"its content is no picture of a known kind ({', '.join(FORMATS)})") from None
    finally:
        Image.MAX_IMAGE_PIXELS = before
    check_size(found.size[::-1], most)
    return found
