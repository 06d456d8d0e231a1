"""The page of a report as a reader meets it: controls, pictures, tables, files, link, print."""

import csv
import re
from dataclasses import replace

import pytest

from tests.browser import answer, visiting
from tests.train.report.study import CHANCE, ENCODINGS, cells, key, lines, publish
from train import plots
from train.report.page import SCRIPTS, part
from train.report.tables import markdown, tabulate_all
from train.rows import read_rows, read_run

DARK, LIGHT = "rgb(20, 23, 27)", "rgb(255, 255, 255)"
GROUND = "return getComputedStyle(document.body).backgroundColor;"


def rows_of(folder, test):
    return [row for row in read_rows(folder / "rows.csv") if row.test == test]


def spread(values):
    """Mean ± sample standard deviation of shares, in %, as the page writes it."""
    centre = sum(values) / len(values)
    return f"{100 * centre:.1f} ± {100 * (sum((value - centre) ** 2 for value in values) / (len(values) - 1)) ** 0.5:.1f}"


def shown_values(page):
    """The rows of both tables, without the names of rules."""
    return [cells(page, f"#tables [aria-label^={test}] tbody") for test in ("zoom", "canvas")]


def expected_values(rows, rule):
    own = [row for row in rows if row.scaling == rule]
    at = lambda name, ratio: spread([row.accuracy for row in own if (row.encoding, row.ratio) == (name, ratio)])  # noqa: E731
    return [[name, *(at(name, ratio) for ratio in (1, 2, 4))] for name in ENCODINGS]


def test_an_encoding_switched_off_leaves_the_charts_the_tables_and_the_costs(visit):
    with visit() as page:
        assert set(lines(page)) == set(ENCODINGS) and len(lines(page)) == 12  # two charts, plain and best
        page.get_by_label("axial", exact=True).uncheck()
        assert set(lines(page)) == set(lines(page, "#costs")) == {"none", "mixed <b>"} and len(lines(page)) == 8
        assert {line[0] for line in cells(page, "#tables tbody")} == {"none", "mixed <b>"}
        page.get_by_label("axial", exact=True).check()
        assert set(lines(page)) == set(lines(page, "#costs")) == set(ENCODINGS)


def test_none_and_all_switch_every_encoding(visit):
    with visit() as page:
        page.get_by_role("button", name="None").click()
        assert not lines(page) and not cells(page, "#tables tbody")
        assert page.locator("#costs .chart text").count() == 6  # the sizes of two charts stay
        page.get_by_role("button", name="All").click()
        assert len(lines(page)) == 12


def test_another_rule_moves_the_curves_and_shows_the_values_of_the_rows(visit, folder):
    drawn = "return [...document.querySelectorAll('#charts .line')].map(line => line.getAttribute('d'));"
    with visit() as page:
        before = answer(page, drawn)
        page.get_by_label("Scaling").select_option("yarn")
        assert answer(page, drawn) != before
        for test, table in zip(("zoom", "canvas"), shown_values(page), strict=True):
            assert [[line[0], *line[2:]] for line in table] == expected_values(rows_of(folder, test), "yarn")
            assert all(line[1].startswith("yarn") for line in table)


def test_another_temperature_shows_the_values_of_its_rows(tab, folder):
    rows = read_rows(folder / "rows.csv")
    warm = [replace(row, temperature="log", accuracy=row.accuracy + 0.05) for row in rows]
    with visiting(tab, publish(folder, "warm.html", [*rows, *warm])) as page:
        page.get_by_label("Scaling").select_option("pi")
        page.get_by_label("Temperature").select_option("log")
        for test, table in zip(("zoom", "canvas"), shown_values(page), strict=True):
            own = [row for row in warm if row.test == test]
            assert [[line[0], *line[3:]] for line in table] == expected_values(own, "pi")
            assert {line[2] for line in table} == {"log"}


def test_the_keyboard_and_the_pointer_read_the_chart_at_each_size(visit):
    with visit() as page:
        page.get_by_label("Scaling").select_option("yarn")
        chart = page.get_by_role("slider").first
        chart.focus()
        page.keyboard.press("Home")
        caption, values = key(page)
        assert caption == "Accuracy in % at 32 px ×1" and values[-1] == ["chance", "10.0"]
        assert values[0] == ["none, yarn (best at ×4)", "51.2 ± 1.2"]
        assert chart.get_attribute("aria-valuetext").startswith("32 px ×1: none, yarn (best at ×4) 51.2 ± 1.2; ")
        page.keyboard.press("ArrowRight")
        assert key(page)[1][0][1] == "61.9 ± 1.2"
        box = chart.bounding_box()
        chart.hover(position={"x": box["width"] - 30, "y": 100})
        assert key(page)[0] == "Accuracy in % at 128 px ×4"


def test_the_page_the_markdown_and_the_terminal_hold_the_same_tables(visit, folder):
    tables, written = tabulate_all(read_rows(folder / "rows.csv"), CHANCE), (folder / "table.md").read_text()
    assert written == markdown([read_run(folder)], read_rows(folder / "rows.csv"), CHANCE)
    with visit() as page:
        page.get_by_label("Scaling").select_option("every scaling")
        for table in tables:
            where = f"#tables [aria-label^={table.test}]"
            without = [[text for j, text in enumerate(line) if j != 2] for line in (table.header, *table.cells)]  # one temperature
            assert [line for part in ("thead", "tbody", "tfoot") for line in cells(page, f"{where} {part}")] == without
            assert page.locator(f"{where} .best").all_inner_texts() == [table.cells[i][j] for i, j in sorted(table.best)]
            text = written.split(f"## {table.test}\n")[1].split("\n## ")[0].replace("**", "")
            assert all("| " + " | ".join(line) + " |" in text for line in table.cells)


def test_the_picture_holds_the_curves_of_the_page(folder):
    rows = read_rows(folder / "rows.csv")
    figure = plots.draw(rows, list(ENCODINGS), CHANCE)
    for axes, test in zip(figure.axes, ("zoom", "canvas"), strict=True):
        drawn = [tuple(line.get_ydata()) for line in axes.lines]
        every = plots.curves([row for row in rows if row.test == test])
        shown = [c for c in every if c.plain or c is plots.best_scaling(every, c.encoding)[0]]
        assert drawn[: len(shown)] == [tuple(100 * p.mean for p in curve.points.values()) for curve in shown]
        assert len(drawn) == len(shown) + (2 if test == "canvas" else 1)  # upper bound and chance


def test_a_heading_sorts_both_ways_and_says_so(visit):
    with visit() as page:
        page.get_by_label("Scaling").select_option("every scaling")
        heading = page.locator("#tables th").filter(has_text="128 px ×4").first
        for told_order, reverse in (("descending", True), ("ascending", False)):
            heading.get_by_role("button").click()
            values = [float(line[-1].split()[0]) for line in shown_values(page)[0]]
            assert values == sorted(values, reverse=reverse) and len(set(values)) > 3
            assert heading.get_attribute("aria-sort") == told_order
            assert answer(page, "return document.activeElement.textContent;") == "128 px ×4"


def test_one_encoding_stands_out_while_it_is_pointed_at(visit):
    with visit() as page:
        page.locator("#encodings label", has_text="mixed <b>").hover()
        assert page.locator(".dim .chart .on").count() > 0
        assert set(page.locator(".on").evaluate_all("nodes => nodes.map(node => node.dataset.of)")) == {"mixed <b>"}
        page.locator("h1").hover()
        assert page.locator(".on").count() == 0 and page.locator(".dim").count() == 0


def test_the_files_hold_what_is_shown_and_every_row(visit, folder, tmp_path):
    with visit() as page:
        page.get_by_label("Scaling").select_option("every scaling")
        page.get_by_text("Every row, with its").click()
        for button in page.get_by_role("button", name="Download CSV").all():
            with page.expect_download() as asked:
                button.click()
            asked.value.save_as(tmp_path / asked.value.suggested_filename)
    names = {"table_zoom.csv", "table_canvas.csv", "speed.csv", "memory.csv", "training.csv", "rows.csv"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert read_rows(tmp_path / "rows.csv") == read_rows(folder / "rows.csv")
    with open(tmp_path / "table_zoom.csv", newline="") as file:
        header, *body = csv.reader(file)
    assert header[3:5] == ["32 px ×1 mean", "32 px ×1 std"] and len(body) == 9
    assert float(body[0][3]) == pytest.approx(rows_of(folder, "zoom")[0].accuracy + 0.0123)


def test_speed_and_memory_are_means_over_seeds_without_scaling(visit):
    with visit() as page:
        speed, memory = (cells(page, f"#costs [aria-label^={name}] tbody") for name in ("speed", "memory"))
        assert speed[0] == ["none", "1,001 ± 1", "251 ± 1", "63.5 ± 1.0"]
        assert memory[2] == ["mixed <b>", "101 ± 0", "102 ± 0", "104 ± 0"]


def test_columns_that_no_model_has_are_left_out(visit):
    with visit() as page:
        assert cells(page, "#training table") == [["encoding", "seed", "parameters", "seconds"], ["axial", "0", "1,000", "1.5"]]


def test_printing_opens_what_is_folded_and_has_every_row(visit):
    with visit() as page:
        page.evaluate(
            "addEventListener('beforeprint', () => { window.folded = document.querySelectorAll('details:not([open])').length })"
        )
        page.pdf()
        assert answer(page, "return window.folded;") == 0 and page.locator("details[open]").count() == 0
        assert len(cells(page, "#rows tbody")) == 54 * 3
        same = page.locator("#rows dl").text_content()
        assert "python -m train.extrapolate --recipe x" in same and "abc" not in same  # each row has its own commit


def test_paper_is_light_has_no_controls_and_cuts_no_table(visit):
    with visit(dark=True) as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert answer(page, GROUND) == LIGHT
        assert not any(page.locator(f"#controls, {name}").first.is_visible() for name in ("#theme", "button", "select"))
        cut = "node => getComputedStyle(node).overflowX !== 'visible' && node.scrollWidth > node.clientWidth"
        assert page.locator(".scroll").evaluate_all(f"nodes => nodes.filter({cut}).length") == 0


def test_the_link_holds_what_is_chosen_and_a_bad_one_is_named(visit):
    with visit() as page:
        page.get_by_label("axial", exact=True).uncheck()
        page.wait_for_url(lambda address: address.endswith("#off=axial"))
    with visit("#off=mixed+%3Cb%3E&scaling=%3Dpi") as page:
        assert page.locator("#encodings input:not(:checked)").input_value() == "mixed <b>"
        assert page.get_by_label("Scaling").input_value() == "=pi" and page.get_by_role("status").text_content() == ""
    with visit("#off=axail&scaling=many") as page:
        assert page.locator("#encodings input:not(:checked)").count() == 0
        assert page.get_by_label("Scaling").input_value() == "both"
        said = page.get_by_role("status").inner_text()
        assert said.startswith("off=axail: there is no such encoding here. scaling=many is not one of")


def test_the_switch_and_the_preference_turn_the_page_dark(visit):
    with visit() as page:
        page.emulate_media(color_scheme="dark")
        page.get_by_role("button", name="Light colours").wait_for()
        assert answer(page, GROUND) == DARK
        page.get_by_role("button", name="Light colours").click()
        assert answer(page, GROUND) == LIGHT
        page.get_by_role("button", name="Dark colours").click()
        assert answer(page, GROUND) == DARK


def test_nothing_of_the_page_is_fetched():
    parts = [part(name) for name in ("page.html", "page.css", *SCRIPTS)]
    assert not any(re.search(r"\bhref=|\bsrc=|https?://|@import|fetch\(|XMLHttpRequest|WebSocket|innerHTML", one) for one in parts)
    assert "default-src 'none'" in part("page.html")
