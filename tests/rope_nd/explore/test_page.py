"""The page as a reader meets it: controls, link, errors, files, print."""

import re

import pytest

from rope_nd.explore import SCRIPTS, part
from rope_nd.explore.tables import LEFT_OUT, names
from rope_nd.presets import PRESETS
from rope_nd.registry import list_encodings
from rope_nd.scaling import RULES
from tests.browser import answer

DARK, LIGHT = "rgb(20, 23, 27)", "rgb(255, 255, 255)"
GROUND = "return getComputedStyle(document.body).backgroundColor;"
LOOK = """
const shown = [...document.querySelectorAll("main canvas")].filter(canvas => canvas.checkVisibility());
return Object.fromEntries(shown.map(canvas => [canvas.id, canvas.toDataURL()]));
"""
STEPS = {  # control: its value, one after the other, and the pictures that must change
    "theta": ("30", "before lines"),
    "width": ("32", "before lines"),
    "trained-0": ("9", "before turns"),
    "tested-1": ("40", "before lines"),
    "y": ("1", "before"),
    "scaling": ("yarn", "after lines"),
    "options-0": ("0.2", "after lines"),
    "along": ("0", "after lines"),
    "whole": (True, "before"),
    "coordinates": ("centred", "before lines"),
    "leftover": ("counts", ""),
    "split": ("12 2", "after lines"),
    "encoding": ("mixed", "before lines"),
    "head": ("3", "before vectors around"),
    "axes": ("3", "before lines"),
    "held-0": ("3", "before"),
}


def put(page, **values):
    """Gives controls their values, as a reader does: of a choice its value or its text. `_` stands for the hyphen of a name."""
    for name, value in values.items():
        control = page.locator("#" + name.replace("_", "-"))
        kind = control.evaluate("node => node.type")
        {"select-one": control.select_option, "checkbox": control.set_checked}.get(kind, control.fill)(value)


def error(page):
    return page.get_by_role("alert").inner_text()


def linked(page):
    """The part of the address that holds the state, at once."""
    return answer(page, "setLink(); return location.hash;")


def test_every_control_changes_the_pictures_it_is_about(visit):
    with visit() as page:
        for name, (value, pictures) in STEPS.items():
            before = answer(page, LOOK)
            put(page, **{name: value})
            after = answer(page, LOOK)
            assert set(pictures.split()) <= {one for one in after if after[one] != before.get(one)}, name
        put(page, encoding="dinov3")
        assert answer(page, LOOK)["before"] != after["before"]


def test_every_control_and_picture_has_a_name(visit):
    with visit("#encoding=axial&axes=3&leftover=counts&split=9x9x9&scaling=yarn") as page:
        for role in ("combobox", "spinbutton", "textbox", "checkbox", "button", "img"):
            found = page.get_by_role(role)
            assert found.count() and found.count() == page.get_by_role(role, name=re.compile(r"\w")).count(), role


def test_bad_values_are_named_with_their_mend_and_leave_the_picture(visit):
    with visit() as page:
        good = answer(page, LOOK)
        put(page, theta="-1")
        assert error(page).startswith("theta=-1: give") and answer(page, LOOK) == good
        put(page, theta="100")
        assert error(page) == ""
        put(page, trained_0="0")
        assert error(page).startswith("trained h=0: give a whole number")
        put(page, trained_0="14", encoding="flux", width="48")
        assert error(page).startswith("head_dim=48 cannot be shared") and "width=48" not in linked(page)
        put(page, encoding="axial", axes="2", width="64", scaling="truncate", options_0="")
        assert error(page).startswith("truncate needs keep")


def test_the_link_holds_the_state_and_a_bad_one_says_what_is_shown_instead(visit):
    with visit() as page:
        put(page, encoding="mixed", scaling="truncate", options_1="0.5", options_0="", head="2")
        page.wait_for_url(re.compile("keep=no&min_turns=0.5.*head=1"))  # shown as 2
        state, link = answer(page, "return [state, toLink(state)];")
    with visit(link) as page:
        assert answer(page, "return state;") == state and error(page) == ""
    with visit("#encoding=axail&theta=-3&trained=4x4x4&width=5") as page:
        said = error(page)
        for wrong in ("encoding=axail", "width=5", "trained=4x4x4", "theta=-3"):
            assert re.search(rf"{wrong} [^:]*: \S+ is shown", said), wrong


def test_another_link_in_the_address_is_followed(visit):
    with visit() as page:
        page.evaluate("location.hash = '#encoding=mixed&axes=3&trained=4x5x6'")
        page.get_by_label("Offset").first.wait_for()
        assert page.locator("#encoding").input_value() == "mixed" and page.locator("#trained-2").input_value() == "6"


def test_arrow_keys_and_the_pointer_read_the_map_and_the_table_has_every_pair(visit):
    with visit() as page:
        page.locator("#before").focus()
        page.keyboard.press("ArrowRight")
        readout = page.locator("#readout")
        assert readout.inner_text().startswith("At offset h 0, w +1: 0.")
        page.locator("#before").hover(position={"x": 40, "y": 5})
        assert re.match(r"At offset h −\d+, w −\d+: 0\.", readout.inner_text())
        page.get_by_text("Every pair in numbers").click()
        page.locator("#table tbody tr").first.wait_for()
        assert page.locator("#table tbody tr").count() == 32


def test_the_code_and_the_link_are_copied(visit):
    with visit() as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for button, said in (("Copy code", "Code copied."), ("Copy link", "Link copied.")):
            page.get_by_role("button", name=button).click()
            page.get_by_role("status").filter(has_text=said).wait_for()
            copied = page.evaluate("navigator.clipboard.readText()")
            assert copied == (page.locator("#code").inner_text() if button == "Copy code" else page.url)


def test_where_nothing_can_be_copied_the_page_says_what_to_take(visit):
    with visit() as page:
        page.context.grant_permissions(["clipboard-read"])  # and none to write
        for button, said in (("Copy code", "select the code."), ("Copy link", "take the address above.")):
            page.get_by_role("button", name=button).click()
            page.get_by_role("status").filter(has_text=said).wait_for()


def test_the_switch_and_the_preference_turn_the_page_and_its_pictures_dark(visit):
    with visit() as page:
        light = answer(page, LOOK)
        page.emulate_media(color_scheme="dark")
        page.get_by_role("button", name="Light").wait_for()
        assert answer(page, GROUND) == DARK and answer(page, LOOK)["lines"] != light["lines"]
        page.get_by_role("button", name="Light").click()
        assert answer(page, GROUND) == LIGHT and answer(page, LOOK) == light
        page.get_by_role("button", name="Dark").click()
        assert answer(page, GROUND) == DARK


def test_paper_is_light_and_the_screen_is_dark_again_after_it(visit):
    with visit(dark=True) as page:
        before = answer(page, LOOK)
        page.evaluate("addEventListener('beforeprint', () => { window.printed = document.documentElement.dataset.theme })")
        page.pdf()
        assert answer(page, "return window.printed;") == "light" and answer(page, LOOK) == before
        page.emulate_media(media="print", color_scheme="dark")
        assert answer(page, GROUND) == LIGHT and not page.locator("form, #theme, #copy").filter(visible=True).count()


def test_a_change_is_drawn_within_a_few_frames(visit):
    ask = "return Array.from({ length: 12 }, () => { const from = performance.now(); draw(); return performance.now() - from; });"
    with visit("#encoding=axial&scaling=ntk") as page:
        assert min(answer(page, ask)) < 250  # about 10 ms where nothing else runs


def test_every_encoding_preset_and_rule_is_offered_or_left_out_with_a_reason(visit):
    known = {*list_encodings(), *PRESETS, *RULES}
    with visit() as page:
        offered = page.locator("#encoding option").evaluate_all("options => options.map(option => option.value)")
        rules, left = answer(page, "return [Object.keys(DATA.rules), Object.keys(DATA.left_out)];")
    assert offered == names() and {*offered, *rules, *left} == known and not set(LEFT_OUT) & {*names(), *rules}


def test_nothing_of_the_page_is_fetched(text):
    parts = [part(name) for name in ("page.html", "page.css", *SCRIPTS)]
    assert not any(re.search(r"\b(src|href)=|https?://|@import|fetch\(|XMLHttpRequest|WebSocket", one) for one in parts)
    assert "default-src 'none'" in text


FAULTS = {
    "an error": "setTimeout(() => { throw new Error('an error'); })",
    "a promise": "Promise.reject(new Error('a promise')); null",
    "a warning": "console.warn('a warning')",
    "Content Security Policy": "document.body.append(Object.assign(new Image(), { src: 'https://example.org/a.png' }))",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_visit_fails_when_anything_goes_wrong_in_the_page(visit, fault):
    with pytest.raises(AssertionError, match=fault), visit() as page:
        page.evaluate(FAULTS[fault])
        page.wait_for_timeout(50)
