"""The report's figures, filters and slider in a real browser. Pictures are left in `screenshots/`.

The study is synthetic, so that what the page must show is known.
"""

from __future__ import annotations

import csv
import json
import shutil
import struct
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from scalestudy.experiments.report import write_report
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.live_page import TrialNow, live_page
from scalestudy.experiments.report.pictures import write_pictures
from scalestudy.experiments.study.folder import StudyFolder
from tests.support.synthetic_studies import folder_of
from tests.support.trials import Law
from tests.system.browser import SCREENSHOTS, chromium, look

TEXT = """
name: fashion
description: "</script><b>How</b> many workers, 'what' batch & rate?"
train: {epochs: 8}
targets: {accuracy: [0.6, 0.8], price_per_gpu_hour: 2}
sweep: {num_gpus: [1, 2, 4], batch_size: [32, 64, 128], learning_rate: [0.05, 0.1, 0.2], seed: [0, 1, 2]}
"""
EXPLORED = ("curves", "pareto", "speedup", "rates", "time_to_target", "memory")
FIGURES = (*EXPLORED, "phases", "predictions", "efficiency", "steps_to_target")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("runs") / "fashion-1", TEXT, Law(noise=0.05, learning=150))
    write_report(folder, 99.0)
    return folder


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(tmp_path_factory, downloads):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
        yield driver


@pytest.fixture
def page(browser, folder):
    """The report as it opens for the first time."""
    browser.set_window_size(1400, 2400)
    browser.get(folder.report_file.as_uri())
    browser.execute_script("sessionStorage.clear()")
    browser.refresh()
    yield browser
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def data_of(browser) -> dict:
    return json.loads(browser.execute_script("return document.getElementById('study-data').textContent"))


def texts(browser, selector: str) -> list[str]:
    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, selector)]


def marks(browser, figure: str) -> list[int]:
    """Cells that a figure shows."""
    found = browser.find_elements(By.CSS_SELECTOR, f"[data-figure={figure}] [data-cell]")
    return sorted({int(each.get_attribute("data-cell")) for each in found})


def shown_rows(browser) -> list[int]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#cells .scroll:first-of-type tr[data-cell]")
    return [int(row.get_attribute("data-cell")) for row in rows if row.is_displayed()]


def choose_target(browser, place: int) -> None:
    browser.execute_script(
        "const slider = document.getElementById('target'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input', { bubbles: true }))",
        place,
    )


@pytest.mark.parametrize("width", [420, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_everyone(browser, folder, width, scheme):
    """axe-core finds nothing, in light and dark, and nothing is wider than the window."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    look(browser, folder.report_file.as_uri(), f"explorer-{width}-{scheme}", "Explore", width=width, height=5200)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    browser.execute_script((files("axe_core_python") / "axe.min.js").read_text("utf-8"))
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found["violations"]] == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_every_figure_is_drawn_from_the_page_alone(page):
    assert [each.get_attribute("data-figure") for each in page.find_elements(By.CSS_SELECTOR, "[data-figure]")] == list(
        FIGURES
    )
    data = data_of(page)
    cells = set(range(len(data["cells"]["label"])))
    timed = {place for place in cells if data["targets"][data["answered"]]["seconds"][place] is not None}
    assert len(timed) > 9
    for figure, wanted in (("curves", cells), ("pareto", timed), ("memory", cells)):
        assert set(marks(page, figure)) == wanted
    assert len(marks(page, "rates")) == len(marks(page, "time_to_target")) == 9
    assert len(marks(page, "phases")) == len(marks(page, "speedup")) == 9  # a timing has the cells of all rates
    entries = page.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert [each for each in entries if not each.startswith(("data:", "blob:"))] == []
    assert "</script><b>How</b> many workers, 'what' batch & rate?" in texts(page, ".question")


def test_a_point_tells_its_cell_seeds_and_interval(page):
    data = data_of(page)
    place = data["targets"][data["answered"]]["roles"]["recommended"]
    point = page.find_element(By.CSS_SELECTOR, f"#explore-pareto path[data-cell='{place}']")
    ActionChains(page).move_to_element(point).perform()
    (tip,) = [text for text in texts(page, "#explore-pareto .tip") if text]
    assert data["cells"]["label"][place] in tip
    assert "3 of 3 seeds" in tip
    assert " s to 0.8 (" in tip
    assert "cost " in tip


def test_a_cell_that_is_chosen_is_marked_everywhere(page):
    button = page.find_element(By.CSS_SELECTOR, "tr[data-cell='4'] button.choose")
    button.send_keys(Keys.ENTER)
    label = data_of(page)["cells"]["label"][4]
    assert texts(page, "#chosen")[0].startswith(f"{label}: ")
    assert page.find_element(By.CSS_SELECTOR, "tr[data-cell='4']").get_attribute("class").split()[-1] == "chosen"
    for figure in ("pareto", "memory"):
        assert len(page.find_elements(By.CSS_SELECTOR, f"#explore-{figure} .chosen")) == 1
    ActionChains(page).move_to_element(
        page.find_element(By.CSS_SELECTOR, "#explore-pareto [data-cell='5']")
    ).click().perform()
    assert data_of(page)["cells"]["label"][5] in texts(page, "#chosen")[0]
    page.find_element(By.CSS_SELECTOR, "#chosen button").click()
    assert texts(page, "#chosen") == [""]


def test_arrow_keys_go_through_a_figure(page):
    plot = page.find_element(By.CSS_SELECTOR, "#explore-pareto .plot")
    seen = []
    for _ in range(3):
        plot.send_keys(Keys.ARROW_RIGHT)
        seen.append(texts(page, "#chosen")[0])
        plot = page.find_element(By.CSS_SELECTOR, "#explore-pareto .plot")
    assert len(set(seen)) == 3
    plot.send_keys(Keys.ESCAPE)
    assert texts(page, "#chosen") == [""]


def test_filters_hold_for_figures_and_table_and_survive_a_reload(page):
    data = data_of(page)
    select = Select(page.find_element(By.CSS_SELECTOR, "select[data-key='num_gpus']"))
    assert [option.text for option in select.options] == ["all", "1", "2", "4"]
    select.select_by_value("2")
    page.refresh()
    wanted = [place for place, params in enumerate(data["cells"]["params"]) if params[0] == 2]
    assert Select(page.find_element(By.CSS_SELECTOR, "select[data-key='num_gpus']")).first_selected_option.text == "2"
    timed = [place for place in wanted if data["targets"][data["answered"]]["seconds"][place] is not None]
    assert marks(page, "curves") == marks(page, "memory") == wanted
    assert marks(page, "pareto") == timed
    assert sorted(shown_rows(page)) == wanted


def test_curves_show_losses_and_the_rate_too(page):
    """And the choice survives a reload."""
    cells, curves = len(data_of(page)["cells"]["label"]), "#explore-curves"

    def drawn() -> tuple[int, int, str, str]:
        lines = page.find_elements(By.CSS_SELECTOR, f"{curves} path[data-cell]")
        dotted = [line for line in lines if line.get_attribute("stroke-dasharray")]
        return len(lines), len(dotted), "".join(texts(page, f"{curves} svg text")), texts(page, f"{curves} .now")[0]

    for words, lines, dotted in (("test accuracy", 1, 0), ("train and test loss", 2, 1), ("learning rate", 1, 0)):
        Select(page.find_element(By.ID, "quantity")).select_by_visible_text(words)
        page.refresh()
        found = drawn()
        assert found[:2] == (lines * cells, dotted * cells)
        assert words in found[2]
        assert ("target 0.8" in found[2]) == (words == "test accuracy")
        assert bool(found[3]) == (dotted > 0)


def test_the_slider_says_what_is_chosen_at_its_target(page):
    data = data_of(page)
    assert len(data["targets"]) == 7
    for place in (0, 3, 6):
        choose_target(page, place)
        answer = data["targets"][place]
        assert texts(page, "#target-value") == [f"{answer['target']:g}"]
        winners = page.find_elements(By.CSS_SELECTOR, "#cells .scroll:first-of-type tr.winner")
        roles = {
            role.text: int(row.get_attribute("data-cell"))
            for row in winners
            for role in row.find_elements(By.CSS_SELECTOR, ".role:not(.metric)")
        }
        assert roles == answer["roles"]
        said = texts(page, "#target-words p") or texts(page, ".choices .which")  # at the study's own target
        if "recommended" in roles:
            assert data["cells"]["label"][roles["recommended"]] in "".join(said)
        assert f"s to accuracy {answer['target']:g}" in texts(page, "#cells th")


def test_above_the_hardest_target_that_a_cell_reached_the_page_says_so(browser, tmp_path: Path):
    folder = folder_of(tmp_path / "hard-1", TEXT.replace("0.8]", "0.998]"), Law(noise=0.05, learning=150))
    write_report(folder, 99.0)
    browser.get(folder.report_file.as_uri())
    assert "no cell reached" not in "".join(texts(browser, "#explore-pareto .plot"))
    choose_target(browser, 24)
    first, best = texts(browser, "#target-words p")
    assert first.startswith("No cell reached a test accuracy of 0.998: the best, workers=")
    assert best.startswith("Best test accuracy: ")
    for figure in ("pareto", "time_to_target"):
        assert texts(browser, f"#explore-{figure} .plot") == ["no cell reached 0.998"]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_no_column_is_cut_off_by_a_metric_with_a_long_name(browser, tmp_path: Path):
    """At 1,300 pixels each table is as wide as its place; on a telephone's screen the page itself does not scroll."""
    text = (
        "name: x\nworkload: {metric: 'my:bits_per_byte_of_text', metric_mode: min}\ntrain: {epochs: 4}\n"
        "targets: {accuracy: [0.4]}\nsweep: {batch_size: [32], learning_rate: [0.1, 0.2], "
        "train.schedule: [constant, {name: cosine, args: {floor: 0.1}}]}"
    )
    folder = folder_of(tmp_path / "long-1", text, Law(noise=0.05, learning=60))
    write_report(folder, 99.0)
    for width in (1300, 420):
        size = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(folder.report_file.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        if width == 1300:
            opened = "document.querySelectorAll('details').forEach((each) => (each.open = true));"
            wide = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
            assert browser.execute_script(f"{opened} return {wide}.map((each) => each.ariaLabel)") == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_cells_and_figures_can_be_taken_along(page, downloads):
    page.find_element(By.ID, "csv").click()
    page.find_element(By.CSS_SELECTOR, "#explore-pareto .png").click()
    for name in ("cells.csv", "explore-pareto.png"):
        WebDriverWait(page, 10).until(lambda _, name=name: (downloads / name).exists())
    time.sleep(0.5)
    with (downloads / "cells.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    data = data_of(page)
    assert [row["cell"] for row in rows] == data["cells"]["label"]
    assert [float(row["samples_per_second"]) for row in rows] == data["cells"]["samples_per_second"]
    assert [float(row["seconds"]) if row["seconds"] else None for row in rows] == data["targets"][data["answered"]][
        "seconds"
    ]
    assert (downloads / "explore-pareto.png").read_bytes()[:4] == b"\x89PNG"


def test_every_figure_is_a_picture_for_slides(folder, tmp_path: Path):
    """`report --png`: its own Chromium draws each figure of the page once more, with title and legend."""
    written = {file.stem: file for file in write_pictures(folder)}
    assert set(written) == {*FIGURES, "report"}
    for name, file in written.items():
        content = file.read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        assert (content[:8], len(content) > 8_000) == (b"\x89PNG\r\n\x1a\n", True), name
        assert (width >= 1_000, height >= 400) == (True, True), name
        shutil.copy(file, SCREENSHOTS / f"figure-{name}.png")


def test_without_scripts_there_are_the_answer_and_the_tables(browser, folder):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.set_window_size(1400, 2400)
        browser.get(folder.report_file.as_uri())
        browser.save_screenshot(str(SCREENSHOTS / "explorer-no-scripts.png"))
        tree = browser.execute_cdp_cmd("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    # the browser lays out what is shown alone
    laid_out = "\n".join(tree["strings"][number] for number in tree["documents"][0]["layout"]["text"] if number >= 0)
    for words in ("Recommended", "The figures are drawn by the page's script", "Where a step's time goes", "epoch s"):
        assert words in laid_out
    for words in ("Cells as CSV", "A point is a cell."):
        assert words not in laid_out


@pytest.fixture(scope="module")
def served(folder, tmp_path_factory):
    """The address on this machine of a folder with the report of a study that is in MLflow too."""
    place = tmp_path_factory.mktemp("served")
    copy = StudyFolder(shutil.copytree(folder.path, place / "fashion-1"))
    copy.write_json(copy.pages_file, {"experiment": "http://127.0.0.1:5000/#/experiments/1"})
    write_report(copy)
    handler = partial(SimpleHTTPRequestHandler, directory=place)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield place, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("sandbox", "offered"), [('sandbox="allow-scripts"', False), ("", True)])
def test_in_mlflows_frame_nothing_is_offered_that_the_frame_forbids(browser, served, sandbox, offered):
    """MLflow shows an artifact in a frame that runs scripts, and may neither save files nor open windows."""
    place, address = served
    frame = '<!DOCTYPE html><link rel="icon" href="data:,"><iframe {} width="1300" height="2300" src="{}"></iframe>'
    (place / f"{offered}.html").write_text(frame.format(sandbox, "fashion-1/report.html"))
    look(browser, f"{address}/{offered}.html", f"explorer-frame-{offered}", width=1400, height=2400)
    browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
    try:
        browser.execute_script("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        saves = browser.find_elements(By.CSS_SELECTOR, ".save")
        assert [each.is_displayed() for each in saves] == [offered] * (1 + len(FIGURES))
        assert bool(browser.find_elements(By.CSS_SELECTOR, "a.runs")) == offered
        assert marks(browser, "pareto")
        browser.find_element(By.CSS_SELECTOR, "tr[data-cell='4'] button.choose").click()
        assert texts(browser, "#chosen")[0]
    finally:
        browser.switch_to.default_content()


def test_the_page_is_small(folder):
    assert folder.report_file.stat().st_size < 1_000_000


def write_live_page(folder, ended, planned, running=()):
    """The page of a study of which so many trials have ended."""
    study = AnalysedStudy.of(folder, trials=folder.read_trials()[:ended])
    progress = f"{ended}/{planned} trials"
    folder.write_text(folder.report_file, live_page(study, running, ended=ended, planned=planned, progress=progress))


def test_the_page_of_a_study_that_runs_reloads_itself(browser, tmp_path: Path):
    folder = folder_of(tmp_path / "fashion-2", TEXT, Law(learning=150))
    running = TrialNow(
        name="x",
        cell=folder.read_plan().trials[-1].cell,
        attempt=1,
        period="epoch",
        last=9,
        evaluations=[(1, 2.0, 0.5), (2, 2.0, 0.75)],
    )
    write_live_page(folder, 40, 81, [running])
    page = folder.report_file
    page.write_text(page.read_text("utf-8").replace("AGAIN_SECONDS = 20", "AGAIN_SECONDS = 1"), "utf-8")
    look(browser, page.as_uri(), "explorer-live", "40/81 trials", width=1400, height=3000)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#explore [data-cell][stroke-dasharray]")) == 1
    # in one script each: the page may be loaded anew between two
    browser.execute_script(
        "const select = document.querySelector(\"select[data-key='num_gpus']\"); select.value = '1';"
        "select.dispatchEvent(new Event('change'))"
    )
    write_live_page(folder, 41, 81, [running])
    page.write_text(page.read_text("utf-8").replace("AGAIN_SECONDS = 20", "AGAIN_SECONDS = 1000"), "utf-8")
    shown = "return document.getElementById('live').textContent"
    WebDriverWait(browser, 10).until(lambda driver: "41/81 trials" in driver.execute_script(shown))
    assert browser.execute_script("return document.querySelector(\"select[data-key='num_gpus']\").value") == "1"
    text = page.read_text("utf-8")
    page.write_text(text.replace(text.partition('data-written="')[2].partition('"')[0], "1000"), "utf-8")
    browser.refresh()
    assert texts(browser, "#stale")[0].startswith("Last written at ")


def test_what_was_chosen_on_a_page_is_looked_up_by_value_on_the_next(browser, tmp_path: Path):
    """The page of a running study has the spec's targets alone, that of an ended one those between too."""
    folder = folder_of(tmp_path / "fashion-3", TEXT, Law(noise=0.05, learning=150))
    write_live_page(folder, 81, 81)
    browser.get(folder.report_file.as_uri())
    browser.execute_script("sessionStorage.clear()")
    browser.refresh()
    assert texts(browser, "#target-value") == ["0.8"]
    browser.find_element(By.CSS_SELECTOR, "tr[data-cell='4'] button.choose").click()
    label = data_of(browser)["cells"]["label"][4]
    write_report(folder, 99.0)
    browser.refresh()
    assert texts(browser, "#target-value") == ["0.8"]
    assert texts(browser, "#chosen")[0].startswith(f"{label}: ")
    choose_target(browser, 12)
    asked = texts(browser, "#target-value")
    browser.refresh()
    assert texts(browser, "#target-value") == asked


@pytest.mark.parametrize("ended", [0, 1])
def test_a_page_without_anything_to_explore_has_no_script_error(browser, tmp_path: Path, ended):
    text = "name: bare\ntargets: {accuracy: [0.8]}\nsweep: {seed: [0, 1]}"
    folder = folder_of(tmp_path / "bare-1", text, endings={"*": "failed"})
    write_live_page(folder, ended, 2)
    look(browser, folder.report_file.as_uri(), f"explorer-bare-{ended}", f"{ended}/2 trials")
