"""Build `fonts.zip` and `FONTS.md` from Debian font packages: `python -m train.glyphs.build`.

Needs a Debian machine with package lists (`apt-get update`), `dpkg-deb`, fontTools, Pillow and numpy; 300 MB of packages pass
through a temporary folder, and two minutes of one core. The result is a function of the package versions and those libraries.

A font is kept when its package's copyright file names a permissive licence, it is no dingbat (OS/2 panose family 4 or 5), it has
all of `CLASSES`, and no two of them look alike once both are scaled to one size. Two fonts are one cluster when one's family name
begins with the other's or their renders of `RagQ5e` correlate above 0.93 (union-find); a cluster lies in one split. Each family
keeps its `PER_FAMILY` least alike fonts, so that large families stay small. What is packed is outlines alone: no names, hints or
layout. B612 (EPL-2.0 beside OFL-1.1) and OpenDyslexic (CC-BY-3.0) are left out for their licences.
"""

import hashlib
import json
import logging
import re
import subprocess
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont

from train import cli
from train.archives import unpack
from train.glyphs.draw import CLASSES, Font, glyph, span
from train.glyphs.outline import rebuild

HERE = Path(__file__).parent
PACKAGES = """
3270 agave aksharyogini2 allerta amiga anonymous-pro aoyagi-kouzan-t aoyagi-soseki apropal arapey averia-gwf averia-sans-gwf
averia-serif-gwf babelstone-modern bajaderka blankenburg breip bwht cabin cabinsketch campania cantarell cardo century-catalogue
cherrybomb clear-sans cmu comfortaa comic-neue compagnon courier-prime croscore crosextra-caladea crosextra-carlito dancingscript
dejavu-core dejavu-extra dosis dotgothic16 ebgaramond ebgaramond-extra elstob essays1743 eurofurence evertype-conakry fantasma
fantasque-sans fanwood ferrite-core firacode gamaliel gemunu-libre georgewilliams gfs-artemisia gfs-didot gfs-neohellenic glasstty
go gotico-antiqua goudybookletter hack havana hosny-amiri hosny-thabit humor-sans inconsolata inter jetbrains-mono joscelyn
junction junicode jura karla karmilla kaushanscript kiloji klaudia-berenika klee konatu kouzan-mouhitsu kristi lato le-murmure
league-mono league-spartan leckerli-one lemonada liberation2 lindenhill linuxlibertine lobster lobstertwo lxgw-wenkai manrope
millimetre monofur monoid mononoki morisawa-bizud-gothic morisawa-bizud-mincho motoya-l-cedar mplus nanum nanum-eco nanum-extra
national-park noto-core noto-mono ocr-b oflb-asana-math okolaks oldstandard open-sans opendin oxygen play prociono quattrocento
quicksand radisnoir rampart reggae ricty-diminished rit-sundar roadgeek roboto-slab roboto-unhinted rocknroll routed-gothic seto
sil-abyssinica sil-akatab sil-alkalami sil-andika sil-annapurna sil-charis sil-dai-banna sil-doulos sil-ezra sil-galatia
sil-gentium sil-gentium-basic sil-harmattan sil-lateef sil-mingzat sil-mondulkiri sil-mondulkiri-extra sil-nuosusil sil-padauk
sil-scheherazade sil-shimenkan sil-sophia-nubian sil-tagmukay sil-taiheritagepro sixtyfour smc-chilanka smiley-sans solide-mirage
sora stick stix teluguvijayam train triod-postnaja tuffy ukij-uyghur vollkorn woowa-bm yanone-kaffeesatz yrsa-rasa yusei-magic
""".split()
PERMISSIVE = {
    "OFL-1.0": r"OFL-1\.0|Open Font License 1\.0",
    "OFL-1.1": r"(SIL-)?OFL(-1\.1)?(-RFN)?|SIL(-1\.1)?|SIL Open Font License|SIL_Open_Font_License_1\.1",
    "Apache-2.0": r"Apache-2(\.0)?",
    "BSD-3-Clause": r"BSD-3-clause|BSD3",
    "MIT": r"MIT|Expat",
    "CC0-1.0": r"CC0-1\.0",
    "Bitstream-Vera": r"Bitstream-?Vera",
    "Unlicense": r"Unlicense",
    "public-domain": r"public-domain",
}
FAMILY, ALIKE, CASES, TWINS = 0.93, 0.96, 0.6, 0.985  # correlations: one cluster, one letter, only capitals, one font
PER_FAMILY, PIXELS = 4, 24
UNCLEAR = "Amiga", "BM Euljiro ", "C 64", "Glass TTY", "Joscelyn", "UKIJ Elipbe"  # scan lines, wear, secretary hand, ruled lines
HELD_OUT = {"test": 0.26, "val": 0.1}  # of the fonts, in clusters of at most PER_FAMILY; the rest is train
STYLE_WORDS = (
    r"(?i)\b((extra|ultra|semi|demi)?[ -]?(thin|hairline|light|bold|black|condensed|expanded)|book|regular|roman|medium"
    r"|heavy|italic|oblique|slanted|narrow|cond|wide|ot|otf|ttf|variable|vf|w\d+)\b"
)


def fetch(folder: Path) -> dict[str, tuple[str, Path]]:
    """Download and unpack the packages: name -> (version, root of its files)."""
    subprocess.run(["apt-get", "download", *(f"fonts-{name}" for name in PACKAGES)], cwd=folder, check=True, capture_output=True)
    found = {}
    for archive in sorted(folder.glob("*.deb")):
        name, version = subprocess.run(
            ["dpkg-deb", "-W", "--showformat", "${Package} ${Version}", archive], check=True, capture_output=True, text=True
        ).stdout.split()
        unpack(archive, folder / name)
        found[name] = version, folder / name
    return found


def licence(copyright: str) -> str | None:
    """The permissive licence of the fonts in a Debian copyright file, or None: all parts of one alternative must be permissive."""
    stated = re.search(r"^Files:\s*\*(?:\.ttf)?\s*\n(?:(?!Files:|License:).*\n)*?License:[ \t]*(\S.*)$", copyright, re.M)
    if not stated:
        plain = re.search(r"licensed under the SIL Open Font License,\s+Version (1\.[01])", copyright)
        return plain and f"OFL-{plain[1]}"
    either = r" or |\|| and " if "dual-licensed" in copyright else r" or |\|"
    for choice in re.split(either, stated[1].strip()):
        parts = [
            next((name for name, rule in PERMISSIVE.items() if re.fullmatch(rule, part.strip(), re.I)), None)
            for part in choice.split(" and ")
        ]
        if all(parts):
            return " and ".join(parts)
    return None


def names(font: TTFont) -> tuple[str, str]:
    """Family and style; words of weight, width and slant are taken off the family, so that all its members share it."""
    full = font["name"].getDebugName(16) or font["name"].getDebugName(1) or ""
    family = re.sub(r"\s+", " ", re.sub(STYLE_WORDS, "", re.sub(r"[-_]", " ", full))).strip()
    style = font["name"].getDebugName(17) or font["name"].getDebugName(2) or ""
    return family or full, style


def look(font: Font) -> np.ndarray:
    """Centred unit-norm renders of every class, the larger side of each box at 24 px: [47, 24 * 24]."""
    pictures = []
    for c in CLASSES:
        h, w = span(font, c, PIXELS)
        pictures.append(glyph(font, c, PIXELS, (PIXELS - h) / 2, (PIXELS - w) / 2, (PIXELS, PIXELS)))
    flat = np.stack(pictures).reshape(len(CLASSES), -1).astype(np.float64)  # [47, 576]
    flat -= flat.mean(1, keepdims=True)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True).clip(1e-9)


def read(name: str, version: str, root: Path) -> tuple[list[dict], str | None]:
    """The usable fonts of one package, with their bytes and renders, and the package's copyright file."""
    text = (root / "usr/share/doc" / name / "copyright").read_text(errors="replace")
    if not (terms := licence(text)):
        print(f"{name}: no permissive licence, left out")
        return [], None
    fonts = []
    for path in sorted(p for p in root.rglob("*") if p.suffix.lower() in (".ttf", ".otf") and not p.is_symlink()):
        font = TTFont(path, lazy=True)
        panose = getattr(font.get("OS/2"), "panose", None)
        if (panose and panose.bFamilyType in (4, 5)) or not (built := rebuild(font)):
            continue
        data, boxes, unit = built
        family, style = names(font)
        fonts.append(
            {
                "family": family,
                "style": style,
                "package": name,
                "version": version,
                "licence": terms,
                "unit": unit,
                "boxes": boxes,
                "data": data,
                "look": look(Font(data, 0, family, tuple(map(tuple, boxes)), unit)),
            }
        )
    return fonts, text


def clear(font: dict) -> bool:
    """No two classes that look alike once both have the same size, small letters that are no capitals, and no UNCLEAR design."""
    alike = font["look"] @ font["look"].T  # [47, 47]
    cases = np.mean([alike[CLASSES.index(c), CLASSES.index(c.upper())] for c in CLASSES if c.islower()])
    return np.triu(alike, 1).max() <= ALIKE and cases <= CASES and not font["family"].startswith(UNCLEAR)


def cluster(fonts: list[dict]) -> np.ndarray:
    """Union-find over shared family names and alike renders: the cluster of each font, numbered by first appearance."""
    root = list(range(len(fonts)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    probe = np.stack([f["look"][[CLASSES.index(c) for c in "RagQ5e"]].ravel() for f in fonts]) / np.sqrt(6)  # [F, 6 * 576]
    family = [f["family"].lower() + " " for f in fonts]
    same = np.array([[a.startswith(b) for b in family] for a in family])  # [F, F]
    for i, j in np.argwhere(same | (probe @ probe.T > FAMILY)):
        root[find(int(i))] = find(int(j))
    roots = [find(i) for i in range(len(fonts))]
    return np.array([list(dict.fromkeys(roots)).index(r) for r in roots])


def thin(fonts: list[dict]) -> list[dict]:
    """No two fonts alike beyond TWINS, and at most PER_FAMILY a family: the first, then whichever is least like those kept."""
    looks = np.stack([f["look"].ravel() for f in fonts]) / np.sqrt(len(CLASSES))  # [F, 47 * 576]
    alike, kept, taken = looks @ looks.T, [], Counter()
    for family in dict.fromkeys(f["family"] for f in fonts):
        members = [i for i in range(len(fonts)) if fonts[i]["family"] == family]
        while members and taken[family] < PER_FAMILY:
            best = min(members, key=lambda i: max((alike[i, j] for j in kept if fonts[j]["family"] == family), default=0))
            members = [i for i in members if i != best]
            if not kept or alike[best, kept].max() < TWINS:
                kept.append(best)
                taken[family] += 1
    return [fonts[i] for i in sorted(kept)]


def split(fonts: list[dict]) -> None:
    """Write `split` into each font: clusters in the order of a hash of their first family; the large ones all go to train."""
    sizes = Counter(f["cluster"] for f in fonts)
    first: dict[int, str] = {}
    for f in fonts:
        first.setdefault(f["cluster"], f["family"])
    place, count = dict.fromkeys(sizes, "train"), Counter()
    for c in sorted(sizes, key=lambda c: hashlib.sha256(first[c].encode()).hexdigest()):
        fits = [s for s, share in HELD_OUT.items() if count[s] + sizes[c] <= share * len(fonts)]
        if fits and sizes[c] <= PER_FAMILY:
            place[c] = fits[0]
            count[fits[0]] += sizes[c]
    for f in fonts:
        f["split"] = place[f["cluster"]]


def write(fonts: list[dict], licences: dict[str, str]) -> None:
    """`fonts.zip`: a file a font, `index.json` and the copyright files; timestamps are 1980, so equal input gives equal bytes."""
    index = [{"file": f"{i:04d}.ttf"} | {k: v for k, v in f.items() if k not in ("data", "look")} for i, f in enumerate(fonts)]
    members = {"index.json": json.dumps(index, separators=(",", ":")).encode()}
    members |= {f"licences/{name}": text.encode() for name, text in licences.items()}
    members |= {entry["file"]: f["data"] for entry, f in zip(index, fonts)}
    with zipfile.ZipFile(HERE / "fonts.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    (HERE / "FONTS.md").write_text(table(fonts))


def table(fonts: list[dict]) -> str:
    lines = [
        "# Fonts in fonts.zip",
        "",
        f"Written by `python -m train.glyphs.build`. Outlines of the classes `{CLASSES}` alone,",
        "taken from Debian packages, unnamed (reserved font names stay with the originals) and unhinted.",
        "The copyright file of each package is in the archive under `licences/`.",
        "",
        "| split | fonts | families | clusters |",
        "|---|--:|--:|--:|",
    ]
    for s in ("train", "val", "test"):
        own = [f for f in fonts if f["split"] == s]
        lines.append(f"| {s} | {len(own)} | {len({f['family'] for f in own})} | {len({f['cluster'] for f in own})} |")
    lines += ["", "| package | version | licence | fonts | families |", "|---|---|---|--:|---|"]
    for name in dict.fromkeys(f["package"] for f in fonts):
        own = [f for f in fonts if f["package"] == name]
        families = ", ".join(sorted({f["family"] for f in own}))
        lines.append(f"| {name} | {own[0]['version']} | {own[0]['licence']} | {len(own)} | {families} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write fonts.zip and FONTS.md from the packages of a Debian machine."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    fonts, licences = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (version, root) in fetch(Path(folder)).items():
            found, licences[name] = read(name, version, root)
            fonts += found
    readable = [f for f in fonts if clear(f)]
    for f, number in zip(readable, cluster(readable)):
        f["cluster"] = int(number)
    kept = thin(readable)
    split(kept)
    write(kept, {name: licences[name] for name in dict.fromkeys(f["package"] for f in kept)})
    print(
        f"{len(fonts)} fonts with all classes, {len(readable)} with clear letters, {len(kept)} kept, "
        f"{len({f['cluster'] for f in kept})} clusters, {(HERE / 'fonts.zip').stat().st_size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    cli.run(main, "python -m train.glyphs.build")
