"""The report and MLflow's pages of a study, opened in a real browser: what is there can be read, and no script fails.

Pictures are left in `screenshots/`.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from mlflow import MlflowClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.browser import chromium, look
from tests.support.groups import wait_until
from tests.support.ports import free_port, listens
from tests.support.studies import ANSWERED, command, environment, scalestudy, write_spec


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study of four cells, run by the command line."""
    place = tmp_path_factory.mktemp("study")
    done = scalestudy("run", write_spec(place, **ANSWERED), "--address", "local", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def mlflow_pages(study):
    """The address of `scalestudy ui` over the study's store."""
    port = free_port()
    process = subprocess.Popen(
        command("ui", "--port", str(port)),
        cwd=study,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    wait_until(lambda: listens(port), seconds=90)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_can_be_read(browser, study, width):
    page = (study / "out" / "report.html").as_uri()
    look(browser, page, f"report-{width}", "small", "Fastest", "speed-up", "efficiency", width=width, height=3600)
    assert browser.find_elements(By.TAG_NAME, "svg") or browser.find_elements(By.TAG_NAME, "img")
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_the_report_s_table_can_be_sorted(browser, study):
    browser.get((study / "out" / "report.html").as_uri())
    head = next(head for head in browser.find_elements(By.CSS_SELECTOR, "th") if "test acc" in head.text)
    column = len(head.find_elements(By.XPATH, "preceding-sibling::th"))

    def values():
        rows = browser.find_elements(By.CSS_SELECTOR, "table.sortable")[0].find_elements(By.CSS_SELECTOR, "tbody tr")
        return [row.find_elements(By.TAG_NAME, "td")[column].text for row in rows]

    as_run = values()
    button = head.find_element(By.TAG_NAME, "button")
    for press, order, expected in (
        (button.click, "ascending", sorted(as_run)),
        (lambda: button.send_keys(Keys.ENTER), "descending", sorted(as_run, reverse=True)),
        (lambda: button.send_keys(Keys.SPACE), "none", as_run),
    ):
        press()
        assert head.get_attribute("aria-sort") == order
        assert values() == expected


def test_the_experiment_s_page_lists_the_runs(browser, study, mlflow_pages):
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    page = f"{mlflow_pages}/#/experiments/{experiment}/runs"
    look(browser, page, "mlflow-experiment", "small-2", "5 matching runs")


def test_the_parent_run_s_page_shows_the_answer(browser, study, mlflow_pages):
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    parent = client.search_runs([experiment], "tags.`scalestudy.role` = 'study'")[0].info.run_id
    look(browser, f"{mlflow_pages}/#/experiments/{experiment}/runs/{parent}", "mlflow-parent", "Recommended")


def test_four_runs_can_be_compared(browser, study, mlflow_pages):
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    runs = [run.info.run_id for run in client.search_runs([experiment], "tags.`scalestudy.role` = 'trial'")]
    assert len(runs) == 4
    query = f"runs={json.dumps(runs)}&experiments={json.dumps([experiment])}"
    look(browser, f"{mlflow_pages}/#/compare-runs?{query}", "mlflow-compare", "test_accuracy", "learning_rate")
