"""Look at a rotary encoding before training with it: `python -m rope_nd.explore FILE.html` writes one page.

The page has no other file and asks for nothing over the network. Wave vectors come from this library, as tables
(`rope_nd.explore.tables`); the page applies theta, split, scaling and extents to them, with the equations of `rope_nd.scaling` and
`rope_nd.positions`, and is tested against both.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib.resources import files
from pathlib import Path

SCRIPTS = ("vectors.js", "kernel.js", "state.js", "draw.js", "charts.js", "page.js")


def page() -> str:
    """The page, whole."""
    from .tables import tables

    data = json.dumps(tables(), separators=(",", ":")).replace("<", "\\u003c")
    scripts = "\n".join(part(name) for name in SCRIPTS)
    shell = part("page.html").replace("/* style */", part("page.css")).replace("/* scripts */", scripts)
    return shell.replace("/* data */", data)


def part(name: str) -> str:
    """A file that the page is made of."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def write(file: Path, text: str) -> None:
    """Write `file` whole or not at all; what stood there stays until the new page is complete."""
    handle, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, file)
    except BaseException:
        os.unlink(draft)
        raise
