"""The page of a report as a reader meets it: controls, pictures, tables, link, print, widths, colours."""

import json
import re
from pathlib import Path

import pytest

from rope_nd.explore import part as explored
from tests.browser import contrast, in_browser, theme_colours
from train import plots
from train.figures import COLOURS
from train.report.page import SCRIPTS, page, part
from train.report.tables import markdown, tabulate_all
from train.rows import Row, read_rows, read_run, write_rows

CHANCE = 0.1
ENCODINGS = {"none": 0.5, "axial": 0.8, "mixed <b>": 0.7}
RULES = {"none": 0.0, "pi": 0.113, "yarn": 0.207}


def measured(encodings, seeds=(0, 1, 2)):
    for encoding, plain in encodings.items():
        for seed, test, (k, ratio) in ((s, t, p) for s in seeds for t in ("zoom", "canvas") for p in enumerate((1, 2, 4))):
            for rule, gain in RULES.items():
                accuracy = plain - 0.1 * k * (1 if test == "zoom" else 1.3) + gain * (k > 0) + 0.0123 * seed
                upper = 0.85 if test == "canvas" else None
                cost = (1000.0 / ratio**2 + seed, 100.0 + ratio)
                told = ("python -m train.extrapolate --recipe x", f"abc{seed}")
                yield Row(
                    encoding,
                    seed,
                    test,
                    32 * ratio,
                    32 * ratio,
                    rule,
                    "none",
                    accuracy,
                    None,
                    None,
                    upper,
                    500,
                    ratio,
                    *cost,
                    *told,
                )


def make(folder, encodings=ENCODINGS):
    folder.mkdir()
    write_rows(folder / "rows.csv", list(measured(encodings)))
    claim = "A claim.\n\n    python -m train.extrapolate --recipe x"
    settings = {"name": folder.name, "claim": claim, "chance": CHANCE, "train_size": [32, 32], "seeds": [0, 1, 2]}
    (folder / "config.json").write_text(json.dumps({**settings, "command": "python -m train.extrapolate --recipe x"}))
    event = {"event": "trained", "encoding": "axial", "seed": 0, "parameters": 1000, "seconds": 1.5}
    (folder / "log.jsonl").write_text(json.dumps(event))
    (folder / "samples.png").write_bytes(b"\x89PNG not really")
    return folder


def shown(folder):
    return page([read_run(folder)], read_rows(folder / "rows.csv"), CHANCE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = make(tmp_path_factory.mktemp("report") / "study")
    (found / "report.html").write_text(shown(found))
    (found / "table.md").write_text(markdown([read_run(found)], read_rows(found / "rows.csv"), CHANCE))
    return found


@pytest.fixture(scope="module")
def visit(folder, tmp_path_factory):
    text = (folder / "report.html").read_text()
    return lambda script, **how: in_browser(text, script, tmp_path_factory.mktemp("visit"), **how)


WALK = Path(__file__).with_name("report_walk.js").read_text()


@pytest.fixture(scope="module")
def walked(visit):
    return visit(WALK)


def rows_of(folder, test):
    return [row for row in read_rows(folder / "rows.csv") if row.test == test]


def test_an_encoding_switched_off_leaves_the_charts_the_tables_and_the_costs(walked):
    assert set(walked["lines"]) == set(ENCODINGS) and set(walked["without"]) == {"none", "mixed <b>"}
    assert len(walked["lines"]) == 12 and len(walked["without"]) == 8  # two charts, plain and best
    assert set(walked["cheaper"]) == set(walked["untabled"]) == {"none", "mixed <b>"}


def test_none_and_all_switch_every_encoding(walked):
    assert walked["nothing"] == [0, 6, 0]  # the sizes of two charts stay


def test_another_rule_shows_the_values_of_the_rows(walked, folder):
    assert walked["moved"]
    for test, lines in zip(("zoom", "canvas"), walked["yarn"], strict=True):
        for encoding, rule, *shown in lines:
            assert rule.startswith("yarn")
            for ratio, text in zip((1, 2, 4), shown, strict=True):
                own = [r.accuracy for r in rows_of(folder, test) if (r.encoding, r.scaling, r.ratio) == (encoding, "yarn", ratio)]
                centre = sum(own) / 3
                spread = (sum((value - centre) ** 2 for value in own) / 2) ** 0.5
                assert text == f"{100 * centre:.1f} ± {100 * spread:.1f}"
        assert [line[0] for line in lines] == list(ENCODINGS)


def test_the_keyboard_reads_the_chart_at_each_size(walked):
    key, spoken, caption = walked["home"]
    assert (
        caption == "Accuracy in % at 32 px ×1"
        and key[0] == ["none, yarn (best at ×4)", "51.2 ± 1.2"]
        and key[-1] == ["chance", "10.0"]
    )
    assert spoken.startswith("32 px ×1: none, yarn (best at ×4) 51.2 ± 1.2; ") and walked["right"][0][1] == "61.9 ± 1.2"


def test_the_page_the_markdown_and_the_terminal_hold_the_same_tables(walked, folder):
    tables = tabulate_all(read_rows(folder / "rows.csv"), CHANCE)
    markdown = (folder / "table.md").read_text()
    for (header, body, foot), best, table in zip(walked["all"], walked["best"], tables, strict=True):
        without = [[text for j, text in enumerate(line) if j != 2] for line in (table.header, *table.cells)]  # one temperature only
        assert [header, *body, *foot] == without
        assert best == [table.cells[i][j] for i, j in sorted(table.best)]
        lines = markdown.split(f"## {table.test}\n")[1].split("\n## ")[0].replace("**", "")
        assert all("| " + " | ".join(line) + " |" in lines for line in table.cells)


def test_the_picture_holds_the_curves_of_the_page(folder):
    rows = read_rows(folder / "rows.csv")
    figure = plots.draw(rows, list(ENCODINGS), CHANCE)
    for axes, test in zip(figure.axes, ("zoom", "canvas"), strict=True):
        drawn = [tuple(line.get_ydata()) for line in axes.lines]
        every = plots.curves([row for row in rows if row.test == test])
        shown = [c for c in every if c.plain or c is plots.best_scaling(every, c.encoding)[0]]
        assert drawn[: len(shown)] == [tuple(100 * p.mean for p in curve.points.values()) for curve in shown]
        assert len(drawn) == len(shown) + (2 if test == "canvas" else 1)  # upper bound and chance


def test_a_heading_sorts_both_ways_and_says_so(walked):
    values, told, focused = walked["down"]
    assert values == sorted(values, reverse=True) and told == "descending" and focused == "128 px ×4"
    values, told, _ = walked["up"]
    assert values == sorted(values) and told == "ascending" and len(set(values)) > 3


def test_one_encoding_stands_out_while_it_is_pointed_at(walked):
    (dim, on), (dim_after, on_after) = walked["dim"]
    assert dim and on > 0 and not dim_after and on_after == 0


def test_the_files_hold_what_is_shown_and_every_row(walked, folder):
    files, rows = walked["files"], read_rows(folder / "rows.csv")
    assert set(files) == {"table_zoom.csv", "table_canvas.csv", "speed.csv", "memory.csv", "training.csv", "rows.csv"}
    assert [Row(*values) for values in files["rows.csv"][1:]] == rows
    header, *lines = files["table_zoom.csv"]
    assert header[3:5] == ["32 px ×1 mean", "32 px ×1 std"] and len(lines) == 9
    assert lines[0][3] == pytest.approx(sum(r.accuracy for r in rows_of(folder, "zoom")[:1]) + 0.0123)


def test_speed_and_memory_are_means_over_seeds_without_scaling(walked):
    speed, memory = walked["costs"]
    assert speed[0] == ["none", "1,001 ± 1", "251 ± 1", "63.5 ± 1.0"] and memory[2] == [
        "mixed <b>",
        "101 ± 0",
        "102 ± 0",
        "104 ± 0",
    ]


def test_columns_that_no_model_has_are_left_out(walked):
    assert walked["training"] == [["encoding", "seed", "parameters", "seconds"], ["axial", "0", "1,000", "1.5"]]


def test_printing_opens_what_is_folded_and_has_every_row(walked):
    folded, count, same = walked["print"]
    assert folded == 0 and count == 54 * 3 and walked["after"] == 0
    assert "python -m train.extrapolate --recipe x" in same and "abc" not in same  # each row has its own commit


def test_the_link_holds_what_is_chosen_and_a_bad_one_is_named(walked, visit):
    assert walked["link"] == "#off=axial"
    ask = """return [boxes().filter(box => !box.checked).map(box => box.value), $("scaling").value, $("told").textContent];"""
    assert visit(ask, link="#off=mixed+%3Cb%3E&scaling=%3Dpi") == [["mixed <b>"], "=pi", ""]
    off, scaling, told = visit(ask, link="#off=axail&scaling=many")
    assert (
        off == [] and scaling == "both" and told.startswith("off=axail: there is no such encoding here. scaling=many is not one of")
    )


def test_the_switch_and_the_preference_turn_the_page_dark(walked, visit):
    assert walked["theme"] == ["dark", "rgb(20, 23, 27)", "Light"]
    ask = """return [getComputedStyle(document.body).backgroundColor, $("theme").textContent];"""
    assert visit(ask, flags=("--blink-settings=preferredColorScheme=0",)) == ["rgb(20, 23, 27)", "Light"]


def test_no_error_reaches_the_console_and_nothing_is_fetched(walked):
    assert walked["errors"] == [] and walked["loaded"] == []
    parts = [part(name) for name in ("page.html", "page.css", *SCRIPTS)]
    assert not any(re.search(r"\bhref=|\bsrc=|https?://|@import|fetch\(|XMLHttpRequest|WebSocket|innerHTML", one) for one in parts)
    assert "default-src 'none'" in part("page.html")


def test_every_control_picture_and_scrolling_region_has_a_name_and_the_keyboard_reaches_it(walked):
    assert walked["nameless"] == [] and walked["unreachable"] == 0


NARROW = """
document.body.style.width = "375px";
for (const node of document.querySelectorAll("details")) node.open = true;
update();
const edge = document.body.getBoundingClientRect().right + .5;
const outside = node => !node.closest(".scroll, .strip, .hidden") && node.getBoundingClientRect().right > edge;
const cut = [...document.querySelectorAll("body *")].filter(outside).map(node => node.outerHTML.slice(0, 80));
const bands = [...document.querySelectorAll("#charts .crowded .band")].filter(band => getComputedStyle(band).display !== "none");
return [cut, document.querySelectorAll(".crowded").length, document.querySelector("#charts caption").textContent, bands.length];
"""


def test_thirty_encodings_fit_a_telephone_and_lose_their_bands(tmp_path):
    many = {f"encoding number {i}": 0.75 - 0.01 * i for i in range(30)}
    text = shown(make(tmp_path / "many", many))
    outside, crowded, caption, bands = in_browser(text, NARROW, tmp_path, width=500)
    assert outside == [] and crowded == 4 and caption.endswith("highest first") and bands == 0


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_curves_stand_out_from_what_is_behind_them(dark):
    colours = theme_colours(part("page.css"), dark)
    least = {**dict.fromkeys(("text", "soft", "accent"), 4.5), "control": 3, "grey": 3}
    for name, wanted in least.items():
        assert all(contrast(colours[name], colours[behind]) >= wanted for behind in ("page", "box")), name
    assert all(contrast(pair[dark], colours["page"]) >= 3 for pair in COLOURS)
    assert colours.items() <= theme_colours(explored("page.css"), dark).items()  # the colours of both pages are the same
