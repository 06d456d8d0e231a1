"""A Chromium for the tests of pages: what a script returns in a page, as a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
NODE = shutil.which("node")
WATCH = """<script>const ERRORS = [];
addEventListener("error", event => ERRORS.push(event.message));
addEventListener("unhandledrejection", event => ERRORS.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => ERRORS.push(event.violatedDirective));
for (const name of ["error", "warn"]) console[name] = (...said) => ERRORS.push(said.join(" "));</script>"""
ANSWER = """<script>{ const answer = document.createElement("pre");
answer.id = "answer";
answer.textContent = JSON.stringify((() => {%s})());
document.body.append(answer); }</script>"""


def in_browser(text: str, script: str, folder: Path, width: int = 1280, link: str = "", flags: tuple[str, ...] = ()) -> Any:
    """What `script`, the body of a function, returns in the page of that text; ERRORS holds what went to the console."""
    if not BROWSER:
        pytest.skip("no Chromium is installed")
    file = folder / "page.html"
    watched = text.replace('<meta name="viewport"', WATCH + '<meta name="viewport"', 1)
    before, end, after = watched.rpartition("</body>")
    file.write_text(before + ANSWER.replace("%s", script) + end + after, encoding="utf-8")
    told = dom(file.as_uri() + link, folder, f"--window-size={width},900", *flags)
    found = re.search(r'<pre id="answer">(.*?)</pre>', told, re.DOTALL)
    assert found, told[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def dom(address: str, folder: Path, *flags: str) -> str:
    """The document as it is after its scripts."""
    known = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", *flags]
    return subprocess.run([BROWSER, *known, "--dump-dom", address], capture_output=True, text=True, timeout=300, check=True).stdout


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    """Contrast ratio of two colours (WCAG 2)."""
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def theme_colours(css: str, dark: int) -> dict[str, str]:
    """The named colours of a style sheet, light (0) or dark (1)."""
    return {name: pair[dark] for name, *pair in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", css)}
