"""The report and MLflow's pages of a study, opened in a real browser: what is there can be read, and no script fails.

Pictures are left in `screenshots/`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time

import pytest
from mlflow import MlflowClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.groups import wait_until
from tests.support.studies import REPOSITORY, command, environment, scalestudy, write_spec

SCREENSHOTS = REPOSITORY / "screenshots"
ANSWERED_404 = ("/ajax-api/2.0/mlflow/users/current",)
"""What MLflow's pages ask of a server with accounts; one without answers 404, and the pages go on."""
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study of four cells, run by the command line."""
    place = tmp_path_factory.mktemp("study")
    done = scalestudy("run", write_spec(place), "--address", "local", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    for argument in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    SCREENSHOTS.mkdir(exist_ok=True)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def mlflow_pages(study):
    """The address of `scalestudy ui` over the study's store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        command("ui", "--port", str(port)),
        cwd=study,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    wait_until(lambda: _listens(port), seconds=90)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def look(browser, address: str, name: str, *texts: str, width: int = 1280, height: int = 1400) -> None:
    """Opens a page, waits until every text is on it, keeps a picture, and fails for errors in its scripts."""
    browser.get_log("browser")
    browser.set_window_size(width, height)
    browser.get(address)
    try:
        for text in texts:
            WebDriverWait(browser, 30).until(
                lambda page, text=text: text in page.find_element(By.TAG_NAME, "body").text
            )
        time.sleep(1.5)  # pictures and charts are drawn after the text
    finally:
        browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in severe if not any(known in message for known in ANSWERED_404)]


@pytest.mark.parametrize("width", [1280, 420])
def test_the_report_can_be_read(browser, study, width):
    page = (study / "out" / "report.html").as_uri()
    look(browser, page, f"report-{width}", "small", "Fastest", "speed-up", "efficiency", width=width, height=3600)
    assert browser.find_elements(By.TAG_NAME, "svg") or browser.find_elements(By.TAG_NAME, "img")
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
    assert not browser.find_elements(By.TAG_NAME, "script")


def test_the_experiment_s_page_lists_the_runs(browser, study, mlflow_pages):
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    page = f"{mlflow_pages}/#/experiments/{experiment}/runs"
    look(browser, page, "mlflow-experiment", "small-2", "5 matching runs")


def test_the_parent_run_s_page_shows_the_answer(browser, study, mlflow_pages):
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    parent = client.search_runs([experiment], "tags.`scalestudy.role` = 'study'")[0].info.run_id
    look(browser, f"{mlflow_pages}/#/experiments/{experiment}/runs/{parent}", "mlflow-parent", "Fastest")


def test_four_runs_can_be_compared(browser, study, mlflow_pages):
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    runs = [run.info.run_id for run in client.search_runs([experiment], "tags.`scalestudy.role` = 'trial'")]
    assert len(runs) == 4
    query = f"runs={json.dumps(runs)}&experiments={json.dumps([experiment])}"
    look(browser, f"{mlflow_pages}/#/compare-runs?{query}", "mlflow-compare", "test_accuracy", "learning_rate")
