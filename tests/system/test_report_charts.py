"""The report's charts of laws, phases and speed-ups in a real browser: of a study in which every part is there.

What is drawn comes from the summary (`summary_figures`), whose numbers tests/unit/experiments/report proves. Here they
are found again in the drawing. The page is loaded once.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from scalestudy.experiments.report.page import render_page, summary_figures
from tests.support.browser import chromium, look
from tests.support.rich_study import TEXT, rich_data, rich_summary

NAMES = ("speedup", "phases", "predictions", "efficiency", "steps_to_target")
SIZES = """
return [...document.querySelectorAll(arguments[0])].map((each) => {
  const { x, y, width, height } = each.getBBox();
  return [x, y, x + width, y + height];
});
"""


@cache
def figures():
    return {figure.name: figure for figure in summary_figures(rich_summary())}


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


def figure(name):
    return f"[data-figure={name}]"


def texts(page, selector):
    return [each.text for each in page.find_elements(By.CSS_SELECTOR, selector)]


def boxes(page, selector):
    """Left, top, right and bottom of each element of a drawing, an array of shape (elements, 4)."""
    return np.array(page.execute_script(SIZES, selector), dtype=float).reshape(-1, 4)


def middles(page, selector):
    """The middle of each: arrays x, y."""
    left, top, right, bottom = boxes(page, selector).T
    return (left + right) / 2, (top + bottom) / 2


def along(drawn, numbers):
    """Whether places stand where an axis has these numbers: further with each, by the same step, to half a pixel."""
    step, zero = np.polyfit(numbers, drawn, 1)
    assert np.abs(step * np.asarray(numbers) + zero - drawn).max() < 0.5
    return step


def choose(page, key, value):
    Select(page.find_element(By.CSS_SELECTOR, f"select[data-key='{key}']")).select_by_value(value)


def markers(name, series):
    """The marks of the series that is the n-th with marks."""
    numbers = figures()[name].numbers
    shaped = [each for each in numbers.series if each.shape]
    before = sum(len(each.points) for each in shaped[:series])
    return shaped[series], slice(before, before + len(shaped[series].points))


MARKS = "svg > path:not([fill=none]):not([stroke=none])"


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_has_its_axes_its_legend_and_a_name(page, name):
    """And is as wide as its place, also in a section that was closed when the page was loaded."""
    wanted, numbers = figures()[name], figures()[name].numbers
    assert texts(page, f"{figure(name)} h3") == [wanted.title]
    assert texts(page, f"{figure(name)} figcaption")[0].startswith(wanted.caption)
    words = (part.words for part in (numbers.parts if name == "phases" else (*numbers.series, *numbers.uprights)))
    assert texts(page, f"{figure(name)} .keys text") == [each for each in words if each]
    labels = [numbers.label] if name == "phases" else [numbers.x.label, numbers.y.label]
    assert set(labels) <= set(texts(page, f"{figure(name)} svg > text"))
    plot = page.find_element(By.CSS_SELECTOR, f"{figure(name)} .plot")
    assert (plot.get_attribute("role"), plot.get_attribute("tabindex")) == ("group", "0")
    assert plot.get_attribute("aria-label").startswith(wanted.title)
    drawing = plot.find_element(By.TAG_NAME, "svg")
    assert drawing.get_attribute("width") == str(plot.rect["width"]).removesuffix(".0")


def test_stacked_bars_are_as_long_as_their_phases_take(page):
    numbers = figures()["phases"].numbers
    labels = [bar.label for bar in numbers.bars]
    found = [text for text in texts(page, f"{figure('phases')} svg > text") if text.startswith("workers=")]
    assert len(labels) == 20
    assert len(found) == 16
    assert "Of 20 sizes 16 from the whole range are shown." in texts(page, f"{figure('phases')} .now")
    assert (found[0], found[-1]) == (labels[0], labels[-1])
    assert set(found) <= set(labels)
    drawn = boxes(page, f"{figure('phases')} rect[data-cell]").reshape(16, 4, 4)
    milliseconds = np.array([numbers.bars[labels.index(label)].values for label in found])
    assert along((drawn[..., 2] - drawn[..., 0]).ravel(), milliseconds.ravel()) > 0
    assert np.allclose(drawn[:, 1:, 0], drawn[:, :-1, 2])  # each part begins where the one before ends
    choose(page, "batch_size", "512")
    found = [text for text in texts(page, f"{figure('phases')} svg > text") if text.startswith("workers=")]
    assert found == [f"workers={workers} batch=512" for workers in (1, 2, 4, 8)]
    assert texts(page, f"{figure('phases')} .now") == [""]


@pytest.mark.parametrize("name", ["speedup", "efficiency"])
def test_bars_are_the_intervals_of_the_measured_speed_ups(page, name):
    points = [point for each in figures()[name].numbers.series for point in each.points if point.low is not None]
    # of each an upright line, and one at each end
    drawn = boxes(page, f"{figure(name)} line.interval")[::3]
    assert len(drawn) == len(points) == 15  # one worker has no bar
    low, high = [point.low for point in points], [point.high for point in points]
    assert along([*drawn[:, 3], *drawn[:, 1]], [*low, *high]) < 0  # heights of an SVG count downwards
    assert along(drawn[:, 0], [point.x for point in points]) > 0


def test_speed_ups_stand_at_their_workers(page):
    x, y = middles(page, f"{figure('speedup')} {MARKS}")
    second, place = markers("speedup", 1)
    assert second.shape == "square"
    assert along(x[place], [point.x for point in second.points]) > 0
    assert along(y[place], [point.y for point in second.points]) < 0
    choose(page, "num_gpus", "2")
    assert len(middles(page, f"{figure('speedup')} {MARKS}")[0]) == 5


def test_predictions_stand_on_logarithmic_axes_hollow_beyond_the_measured(page):
    x, y = middles(page, f"{figure('predictions')} {MARKS}")
    for number in (0, 1, 2):
        series, place = markers("predictions", number)
        assert along(x[place], np.log([point.x for point in series.points])) > 0
        assert along(y[place], np.log([point.y for point in series.points])) < 0
    within, beyond, _ = (markers("predictions", number)[1] for number in (0, 1, 2))
    fills = page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.getAttribute('fill'))",
        f"{figure('predictions')} {MARKS}",
    )
    assert set(fills[within]).isdisjoint(fills[beyond])
    ends = [text for text in texts(page, f"{figure('predictions')} svg > text") if text == "ends here"]
    assert ends == ["ends here"]


def test_the_law_of_steps_goes_through_its_band(page):
    numbers = figures()["steps_to_target"].numbers
    law = next(each for each in numbers.series if each.words.startswith("S_min"))
    paths = page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.getAttribute('d'))",
        f"{figure('steps_to_target')} svg > path",
    )
    band, line = (np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", path), dtype=float) for path in paths[:2])
    along(line[:, 0], np.log([point.x for point in law.points]))
    step = along(line[:, 1], np.log([point.y for point in law.points]))
    low, high = band[: len(line)], band[len(line) :][::-1]
    # the band is 10 % to each side
    assert low[:, 1] - line[:, 1] == pytest.approx(step * np.log(0.9), abs=0.3)
    assert high[:, 1] - line[:, 1] == pytest.approx(step * np.log(1.1), abs=0.3)


def test_in_a_map_the_soonest_is_the_strongest_and_a_square_alone_is_strong(page):
    def squares():
        return page.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map("
            "(each) => [Number(each.dataset.cell), Number(each.getAttribute('fill-opacity'))])",
            f"{figure('time_to_target')} rect[data-cell]",
        )

    data = rich_data()
    answer = data["targets"][data["answered"]]
    drawn = dict(squares())
    timed = sorted((answer["seconds"][cell], -strength) for cell, strength in drawn.items() if answer["seconds"][cell])
    assert len(drawn) == 20
    assert len(timed) == 16
    strengths = [strength for _, strength in timed]
    assert strengths == sorted(strengths)
    assert -strengths[0] == max(drawn.values()) == pytest.approx(0.34)
    assert answer["roles"]["recommended"] in drawn
    words = texts(page, f"{figure('time_to_target')} svg > text")
    for text in ("10.7 s", "lr 0.2", "recommended", "33.1 s†", "36.8 s", "cheapest", "not reached"):
        assert text in words
    (told,) = texts(page, f"{figure('time_to_target')} .now")
    assert "10.7 s (workers=8 batch=1024 lr=0.2) to 48 s (workers=1 batch=1024 lr=0.2)" in told
    assert "20 of 99 seeds at these rates never got there." in told
    choose(page, "num_gpus", "1")
    choose(page, "batch_size", "1024")
    assert [strength for _, strength in squares()] == [pytest.approx(0.34)]


def test_what_is_pointed_at_is_told_and_a_cell_can_be_chosen(page):
    def tip(name):
        return page.execute_script("return document.querySelector(arguments[0]).textContent", f"{figure(name)} .tip")

    bar = page.find_elements(By.CSS_SELECTOR, f"{figure('phases')} rect[data-cell]")[1]
    ActionChains(page).move_to_element(bar).perform()
    for words in ("workers=1 batch=128", "data 2.25 ms, 4%", "forward + backward", "gradient sync (exposed) 0 ms, 0%"):
        assert words in tip("phases")
    ActionChains(page).move_to_element(bar).click().perform()
    label = "workers=1 batch=128 lr=0.05"
    assert texts(page, "#chosen")[0].startswith(f"{label}: ")
    for name in ("pareto", "speedup", "efficiency", "steps_to_target"):
        assert len(page.find_elements(By.CSS_SELECTOR, f"{figure(name)} .chosen")) == 1, name
    beyond = page.find_elements(By.CSS_SELECTOR, f"{figure('predictions')} {MARKS}")[5]
    ActionChains(page).move_to_element(beyond).click().perform()
    assert tip("predictions").startswith("32 workers at batch 4096, predicted10.4 s to 0.85 (7.92 s to 12.9 s)")
    assert texts(page, "#chosen") == [""]  # no cell was trained there


def test_arrow_keys_go_through_marks_that_are_no_cell_too(page):
    plot = page.find_element(By.CSS_SELECTOR, f"{figure('predictions')} .plot")
    told = []
    for _ in range(10):
        plot.send_keys(Keys.ARROW_RIGHT)
        told.append(texts(page, f"{figure('predictions')} .tip strong")[0])
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
    size = {"width": 390, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
    wide = page.execute_script("return document.querySelector('[data-figure=phases] svg').clientWidth")
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for name in (*NAMES, "time_to_target", "rates"):
            plot = page.find_element(By.CSS_SELECTOR, f"{figure(name)} .plot")
            WebDriverWait(page, 5).until(
                lambda _, plot=plot: plot.find_element(By.TAG_NAME, "svg").get_attribute("width") == "358"
            )
            keys, words = (
                boxes(page, f"{figure(name)} .keys text"),
                boxes(page, f"{figure(name)} text:not([transform])"),
            )
            assert words[:, 0].min() >= 0, name
            assert words[:, 2].max() <= 358, name
            for place, one in enumerate(keys):
                for other in keys[place + 1 :]:
                    assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1], name
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    WebDriverWait(page, 5).until(
        lambda page: (
            page.execute_script("return document.querySelector('[data-figure=phases] svg').clientWidth") == wide
        )
    )


def test_the_colours_follow_the_page(page):
    def fills():
        return page.execute_script(
            "return ['phases', 'predictions'].map((name) =>"
            "document.querySelector(`[data-figure=${name}] .keys rect`).getAttribute('fill'))"
        )

    light = fills()
    try:
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
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
    (told,) = texts(page, f"{figure('time_to_target')} .now")
    # two pixels each; 560 wide, an edge of 14 around, and 22 for the title and each line of 80 letters at most
    lines = (high / 2 - tall * 560 / wide - 28) / 22
    assert lines == pytest.approx(1 + np.ceil(len(told) / 80), abs=0.05)
