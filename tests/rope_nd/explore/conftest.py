"""The page, and a browser (or node, for what needs no document) to run it in."""

import json
import re
import shutil
import subprocess

import pytest

from rope_nd.explore import page, part

PURE = ("vectors.js", "kernel.js", "state.js")
BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
NODE = shutil.which("node")
WATCH = """<script>const ERRORS = [];
addEventListener("error", event => ERRORS.push(event.message));
addEventListener("unhandledrejection", event => ERRORS.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => ERRORS.push(event.violatedDirective));
for (const name of ["error", "warn"]) console[name] = (...said) => ERRORS.push(said.join(" "));</script>"""


@pytest.fixture(scope="session")
def text():
    return page()


def in_browser(text, script, folder, width=1280):
    """What `script`, the body of a function, returns in the page."""
    answer = f'<script>document.body.append(el("pre", {{ id: "answer" }}, JSON.stringify((() => {{{script}}})())));</script>'
    file = folder / "page.html"
    file.write_text(
        text.replace('<meta name="viewport"', WATCH + '<meta name="viewport"', 1).replace("</body>", answer + "</body>")
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    told = subprocess.run(
        [BROWSER, *flags, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    found = re.search(r'<pre id="answer">(.*?)</pre>', told, re.DOTALL)
    assert found, told[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


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
