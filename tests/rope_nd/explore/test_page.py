"""The page as a reader meets it: controls, link, errors, widths, colours."""

import re

import pytest

from rope_nd.explore import SCRIPTS, part
from rope_nd.explore.tables import LEFT_OUT, names
from rope_nd.presets import PRESETS
from rope_nd.registry import list_encodings
from rope_nd.scaling import RULES
from tests.browser import contrast, theme_colours

WALK = """
const pictures = ["before", "after", "lines", "around", "vectors", "turns"], seen = {}, said = {};
const visible = () => pictures.filter(id => $(id).getBoundingClientRect().height > 0);
const look = () => Object.fromEntries(visible().map(id => [id, $(id).toDataURL()]));
function set(id, value) {
  const node = $(id);
  if (node.type === "checkbox") node.checked = value; else node.value = value;
  node.dispatchEvent(new Event("input", { bubbles: true }));
}
function walk(name, id, value) {
  const old = look();
  set(id, value);
  const now = look();
  seen[name] = Object.keys(now).filter(key => now[key] !== old[key]);
}
walk("theta", "theta", 30);
walk("width", "width", "32");
walk("trained", "trained-0", 9);
walk("tested", "tested-1", 40);
walk("y", "y", 1);
walk("scaling", "scaling", "yarn");
walk("option", "options-0", 0.2);
walk("along", "along", "0");
walk("whole", "whole", true);
walk("coordinates", "coordinates", "centred");
set("scaling", "none");
walk("leftover", "leftover", "counts");
walk("split", "split", "12 2");
walk("encoding", "encoding", "mixed");
walk("head", "head", "3");
walk("axes", "axes", "3");
walk("held", "held-0", 3);
walk("preset", "encoding", "dinov3");
set("encoding", "axial");
const good = look();
set("theta", -1);
said.theta = $("error").textContent;
said.kept = JSON.stringify(look()) === JSON.stringify(good);
set("theta", 100);
said.mended = $("error").textContent;
set("trained-0", 0);
said.trained = $("error").textContent;
set("trained-0", 14);
set("encoding", "flux"); set("width", "48");
said.flux = $("error").textContent;
setLink();
said.unlinked = location.hash.includes("width=48");
set("encoding", "axial"); set("axes", "2"); set("width", "64");
set("tested-0", 28); set("scaling", "truncate"); set("options-0", "");
said.truncate = $("error").textContent;
set("options-1", 0.5);
setLink();
said.link = location.hash;
said.again = toLink(fromLink(location.hash).state);
said.bad = fromLink("#encoding=axail&theta=-3&trained=4x4x4&width=5").notes;
$("before").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
said.readout = $("readout").textContent;
$("theme").click();
said.theme = [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor];
$("numbers").open = true;
pairTable();
said.rows = document.querySelectorAll("#table tbody tr").length;
const times = [];
set("scaling", "ntk");
for (let i = 0; i < 12; i++) { const from = performance.now(); draw(); times.push(performance.now() - from); }
const nameless = [...document.querySelectorAll("input, select, button, canvas, summary")].filter(node =>
  !(node.labels?.length || node.getAttribute("aria-label") || node.textContent.trim())).map(node => node.id);
const offered = [...$("encoding").options].map(option => option.value);
return { seen, said, nameless, offered, left: Object.keys(DATA.left_out), rules: Object.keys(DATA.rules),
  fastest: Math.min(...times), errors: ERRORS, loaded: performance.getEntriesByType("resource").map(entry => entry.name) };
"""


@pytest.fixture(scope="module")
def walked(visit):
    return visit(WALK)


def test_every_control_changes_the_pictures_it_is_about(walked):
    seen = walked["seen"]
    for name in ("theta", "width", "tested", "scaling", "option", "along", "coordinates", "split", "encoding", "axes", "preset"):
        assert {"before", "lines"} & set(seen[name]) or {"after", "lines"} <= set(seen[name]), (name, seen[name])
    assert {"before", "turns"} <= set(seen["trained"]) and "before" in seen["whole"] and "before" in seen["y"]
    assert {"before", "vectors", "around"} <= set(seen["head"]) and "before" in seen["held"]


def test_no_error_reaches_the_console_and_nothing_is_fetched(walked, text):
    assert walked["errors"] == [] and walked["loaded"] == []
    parts = [part(name) for name in ("page.html", "page.css", *SCRIPTS)]
    assert not any(re.search(r"\b(src|href)=|https?://|@import|fetch\(|XMLHttpRequest|WebSocket", one) for one in parts)
    assert "default-src 'none'" in text


def test_every_control_and_picture_has_a_name(walked):
    assert walked["nameless"] == []


def test_bad_values_are_named_with_their_mend_and_leave_the_picture(walked):
    said = walked["said"]
    assert said["theta"].startswith("theta=-1: give") and said["kept"] and said["mended"] == ""
    assert said["trained"].startswith("trained h=0: give a whole number")
    assert said["flux"].startswith("head_dim=48 cannot be shared") and not said["unlinked"]
    assert said["truncate"].startswith("truncate needs keep")


def test_the_link_holds_the_state_and_a_bad_one_says_what_is_shown_instead(walked):
    assert walked["said"]["link"] == walked["said"]["again"] and "keep=no&min_turns=0.5" in walked["said"]["link"]
    for told, wrong in zip(walked["said"]["bad"], ("encoding=axail", "width=5", "trained=4x4x4", "theta=-3"), strict=True):
        assert told.startswith(wrong) and told.endswith("is shown")


def test_arrow_keys_read_the_map_and_the_table_has_every_pair(walked):
    assert walked["said"]["readout"].startswith("At offset h 0, w +1: 0.") and walked["said"]["rows"] == 32


def test_the_switch_turns_the_page_dark(walked):
    assert walked["said"]["theme"] == ["dark", "rgb(20, 23, 27)"]


def test_a_change_is_drawn_within_a_few_frames(walked):
    assert walked["fastest"] < 250  # about 10 ms where nothing else runs


def test_every_encoding_preset_and_rule_is_offered_or_left_out_with_a_reason(walked):
    known = {*list_encodings(), *PRESETS, *RULES}
    assert walked["offered"] == names()
    assert {*walked["offered"], *walked["rules"], *walked["left"]} == known
    assert not set(LEFT_OUT) & {*names(), *walked["rules"]}


def test_nothing_is_cut_off_on_a_telephone(visit):
    ask = """
    document.body.style.width = "390px";
    $("numbers").open = $("missing").open = true;
    const edge = document.body.getBoundingClientRect().right + 0.5;
    return [1, 2, 3, 4].flatMap(axes => {
      change(begin("mixed", axes));
      change({ scaling: "truncate", options: defaultsOf("truncate") });
      const outside = node => !node.closest("table, [hidden]") && node.getBoundingClientRect().right > edge;
      return [...document.querySelectorAll("body *")].filter(outside).map(node => `${axes} axes: ${node.tagName} ${node.id}`);
    });
    """
    assert visit(ask, width=390) == []


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_marks_stand_out_from_what_is_behind_them(dark):
    colours = theme_colours(part("page.css"), dark)
    least = {**dict.fromkeys("text soft wrong accent second third fourth".split(), 4.5), "control": 3, "grey": 3}
    for name, wanted in least.items():
        for behind in ("page", "box"):
            assert contrast(colours[name], colours[behind]) >= wanted, (name, behind)
