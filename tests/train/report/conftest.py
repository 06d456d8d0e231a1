"""The page of a small study in a browser."""

import pytest

from tests.browser import chromium, visiting
from tests.train.report.study import CHANCE, make, publish
from train.report.tables import markdown
from train.rows import read_rows, read_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = make(tmp_path_factory.mktemp("report") / "study")
    (found / "table.md").write_text(markdown([read_run(found)], read_rows(found / "rows.csv"), CHANCE))
    return found


@pytest.fixture(scope="module")
def tab():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def visit(tab, folder):
    """Opens the page of the study, at a link within it, as `visiting` does."""
    address = publish(folder)
    return lambda link="", **how: visiting(tab, address + link, **how)
