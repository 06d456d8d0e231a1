"""Font files of bare outlines, which FreeType draws unhinted and at any part of a pixel. Used by `build` alone.

FreeType rounds where it puts a bitmap to whole pixels and hints fonts that bring no hints of their own. Both would bend the
geometry differently at each size, so the outlines are packed anew: with two variation axes that move them, and a font program
that does nothing, for which the autohinter stays away.
"""

import io

from fontTools.fontBuilder import FontBuilder
from fontTools.pens.boundsPen import BoundsPen
from fontTools.pens.cu2quPen import Cu2QuPen
from fontTools.pens.recordingPen import DecomposingRecordingPen
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont, newTable
from fontTools.ttLib.tables._f_v_a_r import Axis
from fontTools.ttLib.tables.ttProgram import Program
from fontTools.ttLib.tables.TupleVariation import TupleVariation

from train.glyphs.draw import CLASSES, REACH, STEPS

EPOCH = 2082844800  # 1970 in the seconds since 1904 of a font


def rebuild(font: TTFont) -> tuple[bytes, list[list[int]], int] | None:
    """A TrueType font of the classes' outlines alone, their boxes in font units, and units per em; None if one is missing."""
    cmap, glyphs, unit = font.getBestCmap() or {}, font.getGlyphSet(), font["head"].unitsPerEm
    if any(ord(c) not in cmap for c in CLASSES):
        return None
    outlines, boxes = {".notdef": TTGlyphPen(None).glyph()}, []
    for c in CLASSES:
        shape, bounds, pen = DecomposingRecordingPen(glyphs), BoundsPen(None), TTGlyphPen(None)
        glyphs[cmap[ord(c)]].draw(shape)
        shape.replay(Cu2QuPen(pen, max_err=unit / 2000, reverse_direction="glyf" not in font))
        outlines[f"u{ord(c):04x}"] = glyph = pen.glyph()
        glyph.draw(bounds, None)
        if bounds.bounds is None:
            return None
        boxes.append([round(v) for v in bounds.bounds])
    return pack(outlines, unit), boxes, unit


def pack(outlines: dict, unit: int) -> bytes:
    """A font file that FreeType draws unhinted, with the two axes of `movable`."""
    build = FontBuilder(unit, isTTF=True)
    build.setupGlyphOrder(list(outlines))
    build.setupCharacterMap({ord(c): f"u{ord(c):04x}" for c in CLASSES})
    build.setupGlyf(outlines)
    build.setupHorizontalMetrics({n: (unit, getattr(g, "xMin", 0)) for n, g in outlines.items()})
    build.setupHorizontalHeader(ascent=unit, descent=-unit // 4)
    build.setupPost(keepGlyphNames=False)
    movable(build, outlines, unit)
    no_hints(build.font)
    build.font["head"].created = build.font["head"].modified = EPOCH
    build.font.recalcTimestamp = False
    build.save(out := io.BytesIO())
    return out.getvalue()


def movable(build: FontBuilder, outlines: dict, unit: int) -> None:
    """Variation axes that move every outline right and up by up to REACH em, for offsets of less than a pixel."""
    build.font["fvar"] = newTable("fvar")
    for tag in ("RGHT", "UPWD"):
        axis = Axis()
        axis.axisTag, axis.axisNameID, axis.minValue, axis.defaultValue, axis.maxValue = tag, 256, 0, 0, STEPS
        build.font["fvar"].axes.append(axis)
    step, still = round(unit * REACH), [(0, 0)] * 4  # the four phantom points stay
    build.setupGvar(
        {
            name: [
                TupleVariation({"RGHT": (0, 1, 1)}, [(step, 0)] * len(g.coordinates) + still),
                TupleVariation({"UPWD": (0, 1, 1)}, [(0, step)] * len(g.coordinates) + still),
            ]
            for name, g in outlines.items()
            if g.numberOfContours > 0
        }
    )


def no_hints(font: TTFont) -> None:
    """A font program of one empty function: FreeType takes the font for hinted and keeps its autohinter away."""
    font["fpgm"] = newTable("fpgm")
    font["fpgm"].program = Program()
    font["fpgm"].program.fromBytecode(bytes([0xB0, 0, 0x2C, 0x2D]))  # PUSHB 0, FDEF, ENDF
    font["maxp"].maxFunctionDefs, font["maxp"].maxStackElements, font["maxp"].maxSizeOfInstructions = 1, 4, 1
