"""A Chromium for the tests of pages, driven by Playwright; axe-core; and the contrast of colours that no such tool looks at."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

INSTALLED = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
BROWSER = INSTALLED if find_spec("playwright") else None
NODE = shutil.which("node")
WIDE, PHONE = 1280, 390


@contextmanager
def chromium() -> Iterator[Page]:
    """A tab of the installed Chromium. Until it is closed asyncio.run fails in this thread: it lives no longer than a module."""
    if not BROWSER:
        pytest.skip("no Chromium or no Playwright is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=BROWSER) as browser:
        yield browser.new_page()


def faults_of(page: Page, own: str) -> tuple[list[str], dict[str, Callable[[Any], None]]]:
    """What goes wrong in a page from now on, as a list that grows, and the listeners that fill it."""
    faults: list[str] = []
    kinds, known = ("error", "warning"), (own, "data:", "blob:", "about:")
    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda said: faults.append(said.text) if said.type in kinds else None,
        "pageerror": lambda error: faults.append(str(error)),
        "request": lambda asked: None if asked.url.startswith(known) else faults.append(asked.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    return faults, listeners


@contextmanager
def visiting(page: Page, address: str, *, width: int = WIDE, dark: bool = False) -> Iterator[Page]:
    """The tab, anew, at that address, which may say nothing to the console, break no rule of its policy, ask for nothing else."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(media="screen", color_scheme="dark" if dark else "light")
    page.mouse.move(0, 0)
    page.context.clear_permissions()
    faults, listeners = faults_of(page, address.partition("#")[0])
    try:
        page.goto(address)
        yield page
    finally:
        page.goto("about:blank")
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    assert not faults, faults


def answer(page: Page, script: str) -> Any:
    """What `script`, the body of a function, returns in the page."""
    return json.loads(page.evaluate(f"() => JSON.stringify((() => {{{script}}})())"))


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page as it is shown: its rule and the nodes that break it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [f"{one['help']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]


CONTROLS = """[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter(node => !node.disabled && node.checkVisibility())"""
STOP = f"""
const node = document.activeElement, box = node.getBoundingClientRect(), style = getComputedStyle(node);
const y = (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2;
const ends = [box.left + 2, (box.left + box.right) / 2, box.right - 2];
return {{ place: {CONTROLS}.indexOf(node), ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  seen: ends.every(x => node.contains(document.elementFromPoint(x, y))), html: node.outerHTML.slice(0, 120) }};
"""


def tab_through(page: Page) -> None:
    """Asserts that Tab goes through every control in the order of the page and back; each is seen from end to end, with a ring."""
    count = answer(page, f"return {CONTROLS}.length;")
    assert count > 1
    for key, places in (("Tab", range(count)), ("Shift+Tab", reversed(range(count - 1)))):
        for place in places:
            page.keyboard.press(key)
            stop = answer(page, STOP)
            assert stop == {"place": place, "ring": True, "seen": True, "html": stop["html"]}, key


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
