"""The page for every reader: axe-core, keyboard alone, telephones, colours."""

import pytest

from rope_nd.explore import part
from tests.browser import PHONE, WIDE, answer, contrast, tab_through, theme_colours, violations

OPEN = "$('numbers').open = $('missing').open = true; return null;"
MANY = "#encoding=axial&axes=3&leftover=counts&split=10x10x10&scaling=truncate"  # shows most controls
KEYS = {  # control: the key that changes what is seen
    "#theme": "Enter",
    "#encoding": "ArrowDown",
    "#axes": "ArrowDown",
    "#width": "ArrowUp",
    "#theta": "ArrowUp",
    "#coordinates": "ArrowDown",
    "#trained-0": "ArrowUp",
    "#tested-1": "ArrowDown",
    "#scaling": "ArrowDown",
    "#along": "ArrowDown",
    "#head": "ArrowDown",
    "#y": "ArrowDown",
    "#x": "ArrowUp",
    "#held input >> visible=true": "ArrowUp",
    "#whole": "Space",
    "#before": "ArrowRight",
    "#after": "ArrowUp",
    "#numbers summary": "Enter",
    "#missing summary": "Space",
    "#copy": "Enter",
    "#link": "Space",
}
LOOK = """return [document.body.innerText, getComputedStyle(document.body).color,
  [...document.querySelectorAll("details")].map(node => node.open),
  [...document.querySelectorAll("main canvas")].map(canvas => canvas.toDataURL())];"""


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_wrong(visit, dark, width):
    with visit(MANY, dark=dark, width=width) as page:
        answer(page, OPEN)
        page.locator("#theta").fill("-1")  # the picture stays, and an error is told
        assert page.get_by_role("alert").inner_text() and violations(page) == []


def test_axe_would_find_what_is_wrong(visit):
    with visit() as page:
        answer(page, "document.querySelector('label[for=theta]').remove(); document.body.style.color = '#999'; return null;")
        found = violations(page)
    assert any("labels" in one and "theta" in one for one in found) and any("contrast" in one for one in found)


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_tab_goes_through_every_control_and_each_is_seen_when_it_is_reached(visit, width):
    with visit(MANY, width=width) as page:
        answer(page, OPEN)
        tab_through(page)


def test_every_control_works_by_keys(visit):
    with visit("#encoding=axial&axes=2&scaling=yarn") as page:
        for control, key in KEYS.items():
            before = answer(page, LOOK)
            page.locator(control).focus()
            page.keyboard.press(key)
            page.wait_for_timeout(50)
            assert answer(page, LOOK) != before, control


OUTSIDE = """
const outside = node => !node.closest("table, [hidden]") && node.getBoundingClientRect().right > innerWidth + 0.5;
return [[...document.querySelectorAll("body *")].filter(outside).map(node => `${node.tagName} ${node.id}`),
  document.documentElement.scrollWidth];
"""


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_nothing_is_cut_off_on_a_telephone(visit, axes):
    with visit(f"#encoding=mixed&axes={axes}&scaling=truncate", width=PHONE) as page:
        answer(page, OPEN)
        assert answer(page, OUTSIDE) == [[], PHONE]


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_marks_stand_out_from_what_is_behind_them(dark):
    colours = theme_colours(part("page.css"), dark)
    least = {**dict.fromkeys("text soft wrong accent second third fourth".split(), 4.5), "control": 3, "grey": 3}
    for name, wanted in least.items():
        for behind in ("page", "box"):
            assert contrast(colours[name], colours[behind]) >= wanted, (name, behind)
