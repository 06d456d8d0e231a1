"""The page, and a browser (or node, for what needs no document) to run it in."""

import json
import re
import subprocess

import pytest

from rope_nd.explore import page, part
from tests.browser import BROWSER, NODE, in_browser

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


@pytest.fixture(scope="session")
def calculate(text, tmp_path_factory):
    """Runs a script with the page's functions, in a browser if there is one."""
    if not BROWSER and not NODE:
        pytest.skip("neither a Chromium nor node is installed")
    run = in_browser if BROWSER else in_node
    return lambda script: run(text, script, tmp_path_factory.mktemp("calculate"))


@pytest.fixture(scope="session")
def visit(text, tmp_path_factory):
    """Runs a script in the page as a browser of that width shows it."""
    if not BROWSER:
        pytest.skip("no Chromium is installed")
    return lambda script, width=1280: in_browser(text, script, tmp_path_factory.mktemp("visit"), width)
