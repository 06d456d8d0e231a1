"""The page, and a browser (or node, for what needs no document) to run it in."""

import json
import re
import subprocess

import pytest

from rope_nd.explore import page, part
from tests.browser import BROWSER, NODE, answer, chromium, visiting

PURE = ("vectors.js", "kernel.js", "state.js")


@pytest.fixture(scope="session")
def text():
    return page()


def in_node(text, script, folder):
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    (folder / "data.json").write_text(data)
    (folder / "run.js").write_text(
        f'"use strict"; const DATA = require({json.dumps(str(folder / "data.json"))});\n'
        + "\n".join(part(name) for name in PURE)
        + f"\nprocess.stdout.write(JSON.stringify((() => {{{script}}})()));"
    )
    return json.loads(subprocess.run([NODE, folder / "run.js"], capture_output=True, text=True, timeout=300, check=True).stdout)


@pytest.fixture(scope="module")
def tab():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def visit(tab, text, tmp_path_factory):
    """Opens the page, at a link within it, as `visiting` does."""
    file = tmp_path_factory.mktemp("explore") / "page.html"
    file.write_text(text, encoding="utf-8")
    return lambda link="", **how: visiting(tab, file.as_uri() + link, **how)


@pytest.fixture(scope="module")
def calculate(request, text, tmp_path_factory):
    """Runs a script with the page's functions, in a browser if there is one."""
    if not BROWSER and not NODE:
        pytest.skip("neither Chromium with Playwright nor node is installed")
    if not BROWSER:
        return lambda script: in_node(text, script, tmp_path_factory.mktemp("calculate"))

    def run(script):
        with request.getfixturevalue("visit")() as page:
            return answer(page, script)

    return run
