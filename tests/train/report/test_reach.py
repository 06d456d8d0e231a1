"""The page of a report for every reader: axe-core, keyboard alone, telephones, colours."""

import pytest

from rope_nd.explore import part as explored
from tests.browser import PHONE, WIDE, answer, contrast, tab_through, theme_colours, violations, visiting
from tests.train.report.study import make, publish
from train.figures import COLOURS
from train.report.page import part

OPEN = "for (const node of document.querySelectorAll('details')) node.open = true; return null;"
KEYS = {  # control: the key that changes what is seen
    "#theme": "Enter",
    "#encodings input >> nth=1": "Space",
    "#scaling": "ArrowDown",
    "#charts .chart >> nth=0": "Home",
    "#tables thead button >> nth=-1": "Space",
    "#runs summary": "Enter",
    "#rows summary": "Space",
    "#encodings button >> nth=1": "Enter",
}
LOOK = """
const of = (selector, ask) => [...document.querySelectorAll(selector)].map(ask);
return [document.body.innerText, document.documentElement.dataset.theme, of("details", node => node.open),
  boxes().map(box => box.checked), of("th", head => head.getAttribute("aria-sort")),
  of("#charts path", path => path.getAttribute("d"))];
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The addresses of pages of one and of two runs."""
    folder = make(tmp_path_factory.mktemp("small") / "small", {"axial": 0.8, "none": 0.5, "mixed": 0.7}, seeds=(0,))
    return {runs: publish(folder, f"{runs}.html", runs=runs) for runs in (1, 2)}


@pytest.mark.parametrize(
    ("runs", "dark", "width"), [(2, False, WIDE), (2, True, WIDE), (2, False, PHONE), (2, True, PHONE), (1, False, WIDE)]
)
def test_axe_finds_nothing_wrong(tab, small, runs, dark, width):
    with visiting(tab, small[runs], dark=dark, width=width) as page:
        answer(page, OPEN)
        assert violations(page) == []


def test_axe_would_find_what_is_wrong(tab, small):
    with visiting(tab, small[1]) as page:
        answer(page, "document.querySelector('label[for=scaling]').remove(); document.body.style.color = '#999'; return null;")
        found = violations(page)
    assert any("accessible name" in one and "scaling" in one for one in found) and any("contrast" in one for one in found)


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_tab_goes_through_every_control_and_each_is_seen_when_it_is_reached(tab, small, width):
    with visiting(tab, small[2], width=width) as page:
        answer(page, OPEN)
        assert page.locator("[tabindex]:not([aria-label])").count() == 0
        tab_through(page)


def test_every_control_works_by_keys(tab, small):
    with visiting(tab, small[1]) as page:
        for control, key in KEYS.items():
            before = answer(page, LOOK)
            page.locator(control).focus()
            page.keyboard.press(key)
            assert answer(page, LOOK) != before, control


def test_a_file_is_saved_by_keys(tab, small):
    with visiting(tab, small[1]) as page:
        page.get_by_role("button", name="Download CSV, table_zoom.csv").focus()
        with page.expect_download() as asked:
            page.keyboard.press("Enter")
        assert asked.value.suggested_filename == "table_zoom.csv"


def test_a_name_on_which_the_keyboard_is_stands_out(tab, small):
    with visiting(tab, small[1]) as page:
        page.locator("#theme").focus()
        page.keyboard.press("Tab")
        assert set(page.locator(".dim .on").evaluate_all("nodes => nodes.map(node => node.dataset.of)")) == {"axial"}
        page.keyboard.press("Shift+Tab")
        assert page.locator(".on").count() == 0


OUTSIDE = """
const outside = node => !node.closest(".scroll, .strip, .hidden") && node.getBoundingClientRect().right > innerWidth + 0.5;
return [[...document.querySelectorAll("body *")].filter(outside).map(node => node.outerHTML.slice(0, 80)),
  document.documentElement.scrollWidth];
"""


def test_thirty_encodings_fit_a_telephone_and_lose_their_bands(tab, tmp_path):
    many = {f"encoding number {i}": 0.75 - 0.01 * i for i in range(30)}
    with visiting(tab, publish(make(tmp_path / "many", many)), width=PHONE) as page:
        answer(page, OPEN)
        assert answer(page, OUTSIDE) == [[], PHONE]
        assert page.locator(".crowded").count() == 4 and page.locator("#charts .crowded .band").count() > 0
        assert page.locator("#charts .crowded .band").filter(visible=True).count() == 0
        assert page.locator("#charts caption").first.inner_text().endswith("highest first")


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_curves_stand_out_from_what_is_behind_them(dark):
    colours = theme_colours(part("page.css"), dark)
    least = {**dict.fromkeys(("text", "soft", "accent"), 4.5), "control": 3, "grey": 3}
    for name, wanted in least.items():
        assert all(contrast(colours[name], colours[behind]) >= wanted for behind in ("page", "box")), name
    assert all(contrast(pair[dark], colours["page"]) >= 3 for pair in COLOURS)
    assert colours.items() <= theme_colours(explored("page.css"), dark).items()  # the colours of both pages are the same
