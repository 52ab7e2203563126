"""The report's charts of laws, phases and speed-ups in a real browser: of a study in which every part is there.

What is drawn comes from the summary (`summary_figures`), whose numbers and words tests/unit/experiments/report proves.
Here they are found again in the drawing. The page is loaded once.
"""

from __future__ import annotations

import itertools
import re
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from scalestudy.experiments.report.page import render_page, summary_figures
from tests.support.rich_study import TEXT, rich_data, rich_summary
from tests.system.browser import chromium, look

CHARTS = ("speedup", "predictions", "efficiency", "steps_to_target")
NAMES = (*CHARTS, "phases")
MARKS = "svg > path:not([fill=none]):not([stroke=none])"
LINES = "svg > path[fill=none][stroke-width='1.4']"
BANDS = "svg > path[stroke=none]"


@cache
def numbers_of(name):
    return {figure.name: figure for figure in summary_figures(rich_summary())}[name].numbers


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("rich") / "report.html"
    file.write_text(render_page(rich_summary(), TEXT, rich_data()), "utf-8")
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        look(driver, file.as_uri(), "charts-1400", "Explore", width=1400, height=2400)
        driver.execute_script("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        yield driver
        assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(autouse=True)
def unchosen(page):
    """Ends what a test has chosen and filtered."""
    yield
    page.execute_script(
        "document.querySelector('#chosen button')?.click();"
        "for (const select of document.querySelectorAll('.filters select')) {"
        "  select.value = ''; select.dispatchEvent(new Event('change'));"
        "}"
    )


@contextmanager
def narrow(page):
    """A telephone's screen, for which the figures in sight are drawn anew: 358 pixels wide."""
    wide = attributes(page, "phases", "svg", "width")
    size = {"width": 390, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        WebDriverWait(page, 5).until(lambda _: attributes(page, "phases", "svg", "width") == ["358"])
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        WebDriverWait(page, 5).until(lambda _: attributes(page, "phases", "svg", "width") == wide)


def find(page, name, selector):
    """Elements of a figure."""
    return page.find_elements(By.CSS_SELECTOR, f"[data-figure={name}] {selector}")


def each_of(page, name, selector, expression):
    """What JavaScript says of `each` element of a figure, in one call: a drawing may be made anew at any time."""
    script = f"return [...document.querySelectorAll(arguments[0])].map((each) => {expression})"
    return page.execute_script(script, f"[data-figure={name}] {selector}")


def texts(page, name, selector):
    return each_of(page, name, selector, "(each.innerText ?? each.textContent).trim()")


def attributes(page, name, selector, attribute):
    return each_of(page, name, selector, f"each.getAttribute('{attribute}')")


def boxes(page, name, selector):
    """Left, top, right and bottom of each element of a drawing, an array of shape (elements, 4)."""
    found = each_of(page, name, selector, "each.getBBox()")
    rows = [(box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]) for box in found]
    return np.array(rows, dtype=float).reshape(-1, 4)


def along(drawn, numbers):
    """Whether places stand where an axis has these numbers: further with each, by the same step, to a pixel.

    The middle of a triangle's box is 0.7 pixels from its place.
    """
    step, zero = np.polyfit(numbers, drawn, 1)
    assert np.abs(step * np.asarray(numbers) + zero - drawn).max() < 1
    return step


def choose(page, key, value):
    Select(page.find_element(By.CSS_SELECTOR, f"select[data-key='{key}']")).select_by_value(value)


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_has_its_axes_its_legend_and_a_name(page, name):
    """And is as wide as its place, also in a section that was closed when the page was loaded."""
    numbers = numbers_of(name)
    if name == "phases":
        keys, words = numbers.parts, [numbers.label]
    else:
        keys = (*numbers.series, *numbers.uprights)
        words = [numbers.x.label, numbers.y.label, *(each.note for each in numbers.uprights if each.note)]
    assert texts(page, name, ".keys text") == [each.words for each in keys if each.words]
    assert set(words) <= set(texts(page, name, "svg > text"))
    (plot,) = find(page, name, ".plot")
    assert (plot.get_attribute("role"), plot.get_attribute("tabindex")) == ("group", "0")
    assert plot.get_attribute("aria-label").startswith(texts(page, name, "h3")[0])
    assert attributes(page, name, "svg", "width") == [str(plot.rect["width"]).removesuffix(".0")]


@pytest.mark.parametrize("name", CHARTS)
def test_marks_intervals_lines_and_bands_stand_where_the_axes_have_their_numbers(page, name):
    numbers = numbers_of(name)
    marks = [(each, point) for each in numbers.series if each.shape for point in each.points]
    wanted = [(point.x, point.y) for _, point in marks]
    wanted += [(point.x, end) for _, point in marks if point.low is not None for end in (point.low, point.high)]
    wanted += [(point.x, point.y) for each in numbers.series if each.line for point in each.points]
    for points in (each.points for each in numbers.series if each.band):
        wanted += [*((point.x, point.low) for point in points), *((point.x, point.high) for point in points[::-1])]
    bars = boxes(page, name, "line.interval")[::3]  # of each an upright line, and one at each end
    paths = [*attributes(page, name, LINES, "d"), *attributes(page, name, BANDS, "d")]
    drawn = [
        *boxes(page, name, MARKS).reshape(-1, 2, 2).mean(axis=1),
        *bars[:, [0, 3, 0, 1]].reshape(-1, 2),
        *np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", "".join(paths)), dtype=float),
    ]
    for side, axis, up in ((0, numbers.x, 1), (1, numbers.y, -1)):  # heights of an SVG count downwards
        values = np.array(wanted)[:, side]
        assert along(np.array(drawn)[:, side], np.log(values) if axis.log else values) * up > 0
    paper = page.execute_script("return drawing.css('--paper')")
    assert [fill == paper for fill in attributes(page, name, MARKS, "fill")] == [each.hollow for each, _ in marks]


def test_filters_hide_what_is_of_hidden_cells_alone(page):
    choose(page, "num_gpus", "2")
    assert len(find(page, "speedup", MARKS)) == 5
    choose(page, "learning_rate", "0.05")
    choose(page, "batch_size", "2048")
    # this batch is not best at this rate, and no such cell is soonest; six sizes are predicted
    assert len(find(page, "predictions", MARKS)) == 6
    assert texts(page, "steps_to_target", "svg text") == ["no cell to draw: change the filters or the target"]


def test_stacked_bars_are_as_long_as_their_phases_take(page):
    def labels():
        return [text for text in texts(page, "phases", "svg > text") if text.startswith("workers=")]

    values, found = {bar.label: bar.values for bar in numbers_of("phases").bars}, labels()
    assert (len(values), len(found)) == (20, 16)
    assert texts(page, "phases", ".now") == ["Of 20 sizes 16 from the whole range are shown."]
    first, *_, last = values
    assert (found[0], found[-1]) == (first, last)
    drawn = boxes(page, "phases", "rect[data-cell]").reshape(16, 4, 4)
    assert along((drawn[..., 2] - drawn[..., 0]).ravel(), np.array([values[label] for label in found]).ravel()) > 0
    assert np.allclose(drawn[:, 1:, 0], drawn[:, :-1, 2])  # each part begins where the one before ends
    choose(page, "batch_size", "512")
    assert labels() == [f"workers={workers} batch=512" for workers in (1, 2, 4, 8)]
    assert texts(page, "phases", ".now") == [""]


def test_in_a_map_the_soonest_is_the_strongest_and_a_square_alone_is_strong(page):
    def strengths():
        cells, shades = (
            attributes(page, "time_to_target", "rect[data-cell]", key) for key in ("data-cell", "fill-opacity")
        )
        return {int(cell): float(shade) for cell, shade in zip(cells, shades, strict=True)}

    data, drawn = rich_data(), strengths()
    answer = data["targets"][data["answered"]]
    timed = sorted((answer["seconds"][cell], -shade) for cell, shade in drawn.items() if answer["seconds"][cell])
    assert (len(drawn), len(timed)) == (20, 16)
    shades = [-shade for _, shade in timed]
    assert shades == sorted(shades, reverse=True)
    assert shades[0] == max(drawn.values()) == pytest.approx(0.34)
    assert answer["roles"]["recommended"] in drawn
    words = {"10.7 s", "lr 0.2", "recommended", "33.1 s†", "36.8 s", "cheapest", "not reached"}
    assert words <= set(texts(page, "time_to_target", "svg > text"))
    (told,) = texts(page, "time_to_target", ".now")
    assert "10.7 s (workers=8 batch=1024 lr=0.2) to 48 s (workers=1 batch=1024 lr=0.2)" in told
    assert "20 of 99 seeds at these rates never got there." in told
    choose(page, "num_gpus", "1")
    choose(page, "batch_size", "1024")
    assert [*strengths().values()] == [pytest.approx(0.34)]


def test_what_is_pointed_at_is_told_and_a_cell_can_be_chosen(page):
    def tip(name):
        return find(page, name, ".tip")[0].get_property("textContent")

    def chosen():
        return page.find_element(By.ID, "chosen").text

    bar = find(page, "phases", "rect[data-cell]")[1]
    ActionChains(page).move_to_element(bar).perform()
    for words in ("workers=1 batch=128", "data 2.25 ms, 4%", "forward + backward", "gradient sync (exposed) 0 ms, 0%"):
        assert words in tip("phases")
    ActionChains(page).move_to_element(bar).click().perform()
    assert chosen().startswith("workers=1 batch=128 lr=0.05: ")
    for name in ("pareto", "speedup", "efficiency", "steps_to_target"):
        assert len(find(page, name, ".chosen")) == 1, name
    ActionChains(page).move_to_element(find(page, "predictions", MARKS)[5]).click().perform()
    assert tip("predictions").startswith("32 workers at batch 4096, predicted10.4 s to 0.85 (7.92 s to 12.9 s)")
    assert chosen() == ""  # no cell was trained there


def test_arrow_keys_go_through_marks_that_are_no_cell_too(page):
    (plot,) = find(page, "predictions", ".plot")
    told = []
    for _ in range(10):
        plot.send_keys(Keys.ARROW_RIGHT)
        told += texts(page, "predictions", ".tip strong")
    measured = [text for text in told if text.startswith("workers=")]
    assert (len(set(told)), len(measured)) == (10, 4)  # six sizes are predicted
    plot.send_keys(Keys.ESCAPE)


@pytest.mark.parametrize(("low", "high"), [(1.4, 2.8), (0.5, 200), (1.0, 1.05), (3e-5, 7e3), (9.1, 11)])
def test_ticks_of_a_log_axis_are_few_and_within(page, low, high):
    ticks = page.execute_script("return drawing.ticks(arguments[0], arguments[1], true, 6)", low, high)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= 10
    assert len(ticks) >= 2 or high / low < 1.1


def test_on_a_narrow_screen_every_word_is_within_its_drawing_and_apart_from_others(page):
    with narrow(page):
        for name in (*NAMES, "time_to_target", "rates"):
            assert attributes(page, name, "svg", "width") == ["358"], name
            words = boxes(page, name, "text:not([transform])")
            assert words[:, 0].min() >= 0, name
            assert words[:, 2].max() <= 358, name
            for one, other in itertools.combinations(boxes(page, name, ".keys text"), 2):
                assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1], name
        assert page.execute_script("return document.documentElement.scrollWidth") == 390


def test_in_print_a_figure_whose_section_is_closed_is_as_wide_as_its_place(page):
    """What is closed is not drawn anew where the window changes."""
    sections = "document.querySelectorAll('details').forEach((each) => (each.open = {}))"
    width = "document.querySelector('[data-figure=efficiency] svg').getAttribute('width')"
    page.execute_script(sections.format("false"))
    with narrow(page):
        page.execute_script(f"addEventListener('beforeprint', () => (window.printed = {width}))")
        page.execute_cdp_cmd("Page.printToPDF", {})
        assert page.execute_script("return window.printed") == "358"
    page.execute_script(sections.format("true"))


def test_the_colours_follow_the_page(page):
    def fills():
        return [fill for name in ("phases", "predictions") for fill in attributes(page, name, ".keys rect", "fill")]

    light = fills()
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    try:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        WebDriverWait(page, 5).until(lambda _: fills() != light)
        assert not set(fills()) & set(light)
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_in_a_picture_long_words_go_on_in_the_next_line(page):
    high, wide, tall = page.execute_async_script(
        "const box = document.querySelector('[data-figure=time_to_target]'), done = arguments[0];"
        "const [, , wide, tall] = box.querySelector('svg').getAttribute('viewBox').split(' ').map(Number);"
        "drawing.picture(box).then((canvas) => done([canvas.height, wide, tall]));"
    )
    (told,) = texts(page, "time_to_target", ".now")
    # two pixels each; 560 wide, an edge of 14 around, and 22 for the title and each line of 80 letters at most
    lines = (high / 2 - tall * 560 / wide - 28) / 22
    assert lines == pytest.approx(1 + np.ceil(len(told) / 80), abs=0.05)
