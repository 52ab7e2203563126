"""The report and MLflow's pages of a study, opened in a real browser: what is there can be read, and no script fails.

Pictures are left in `screenshots/`.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

import pytest
from mlflow import MlflowClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from scalestudy.experiments.report import write_report
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.mlflow_filters import study_filter
from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy
from scalestudy.orchestration.tracking.run_content import answer_of
from scalestudy.orchestration.tracking.runs_view import CELL, cell_text, view_tag
from scalestudy.orchestration.tracking.server import resolve_address
from tests.support.groups import wait_until
from tests.support.in_process import scalestudy
from tests.support.ports import free_port
from tests.support.recordings import entries_of, whole
from tests.support.studies import ANSWERED, command, environment, write_spec
from tests.support.synthetic_studies import TINY, folder_of
from tests.system.browser import chromium, look


@pytest.fixture(scope="module")
def study(ray_session, tmp_path_factory):
    """A small study of four cells, run by the command line."""
    place = tmp_path_factory.mktemp("study")
    done = scalestudy("run", write_spec(place, **ANSWERED), "--address", "local", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@dataclass(frozen=True)
class Pages:
    """What `scalestudy ui` serves: its address, the lines that it printed, and the address that it opened."""

    server: str
    printed: list[str]
    opened: str


@pytest.fixture(scope="module")
def ui(study, tmp_path_factory):
    """`scalestudy ui` over the study's store; the browser that it finds writes down what it is to open."""
    place, port = tmp_path_factory.mktemp("ui"), free_port()
    told, asked = place / "printed", place / "asked"
    browser = place / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{asked}"\n')
    browser.chmod(0o755)
    with told.open("w") as out:
        process = subprocess.Popen(
            command("ui", "out", "--port", str(port)),
            cwd=study,
            env=environment(BROWSER=str(browser)),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: asked.exists() and asked.read_text(), seconds=120)
        yield Pages(f"http://127.0.0.1:{port}", told.read_text().splitlines(), asked.read_text())
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def other_study(study, tmp_path_factory):
    """Another study of the same experiment with two seeds a cell, told by its journal; its own run."""
    text = TINY.replace("targets:", "tracking: {experiment: small}\ntargets:").replace(
        "[0.1, 0.2]", "[0.1, 0.2], seed: [0, 1]"
    )
    folder = folder_of(tmp_path_factory.mktemp("other") / "tiny-1", text)
    write_report(folder)
    tracked = TrackedStudy(
        spec=spec_of(folder),
        folder=folder,
        trials=folder.read_plan().by_id(),
        config_of=lambda trial: train_config(trial, "."),
    )
    store = MlflowStore(resolve_address(f"sqlite:///{study / 'mlflow.db'}"), tracked)
    answer = answer_of(json.loads(folder.summary_file.read_text("utf-8")))
    store.write(entries_of([whole(trial) for trial in folder.read_trials()], answer=answer.to_plain()))
    return store.client.get_run(store.runs["tiny-1"])


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


def runs_of(study, role):
    """The experiment, and the runs of a role that the study has in it."""
    client = MlflowClient(tracking_uri=f"sqlite:///{study / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    of_study = study_filter(StudyFolder(study / "out").study_id)
    return experiment, client.search_runs([experiment], f"tags.`scalestudy.role` = '{role}' and {of_study}")


def table(browser):
    """The heads of the list's columns, and the lines of its first row, among them those of its buttons."""
    heads = browser.find_elements(By.CSS_SELECTOR, ".ag-header-cell")
    first = browser.find_elements(By.CSS_SELECTOR, "[role=row][row-index='0']")
    return [head.text for head in heads], [line for part in first for line in part.text.splitlines()]


def test_the_study_s_own_address_is_printed_and_opened_at_its_recommended_cell(browser, study, ui, other_study):
    """In a fresh browser, which would show MLflow's pages for language models, and no column with a figure."""
    assert [line for line in ui.printed if line.endswith(ui.opened)], ui.printed
    names = ("w1 b64 lr.1 s0", "w1 b64 lr.2 s0", "w2 b64 lr.1 s0", "w2 b64 lr.2 s0")
    look(browser, ui.opened, "mlflow-study", "5 matching runs", "Sort: cell_place", *names, width=1920)
    assert "workflowType=machine_learning" in browser.current_url
    body = browser.find_element(By.TAG_NAME, "body").text
    assert "Evaluation runs" not in body, "of the view for language models"
    assert "tiny-1" not in body
    summary = json.loads(StudyFolder(study / "out").summary_file.read_text(encoding="utf-8"))
    recommended = summary["recommendation"]["recommended"]
    heads, first = table(browser)
    assert {"scalestudy.cell", "at_0.6_seconds", "best_test_accuracy", "num_gpus", "learning_rate"} <= set(heads)
    assert "batch_size" not in heads, "it is the same in all cells"
    cell = cell_text(recommended["params"])
    assert {f"{cell} s0", f"★ {cell}"} <= set(first)
    assert body.count("★") == 1


def test_cells_of_several_seeds_are_a_row_each_with_their_trials_folded_below(browser, ui, other_study):
    client = MlflowClient(tracking_uri=ui.server)
    experiment = client.get_experiment(other_study.info.experiment_id)
    key = view_tag("tiny-1").removeprefix("mlflow.sharedViewState.")
    runs = f"{ui.server}/#/experiments/{experiment.experiment_id}/runs"
    page = f"{runs}?workflowType=machine_learning&viewStateShareKey={key}"
    recommended = f"★ {other_study.data.tags['scalestudy.recommended']}"
    browser.get("about:blank")
    look(browser, page, "mlflow-cells", "9 matching runs", f"Group: {recommended}", width=1920)
    heads, first = table(browser)
    assert {"at_0.8_seconds", "best_test_accuracy", "num_gpus", "learning_rate"} <= set(heads)
    assert {f"Group: {recommended}", "2"} <= set(first)
    body = browser.find_element(By.TAG_NAME, "body").text
    assert body.count("Group: ") == 4
    assert f"{other_study.data.tags['scalestudy.recommended']} s0" not in body
    clause = f"{study_filter('tiny-1')} and tags.`{CELL}` = '{recommended}'"
    times = [run.data.metrics["at_0.8_seconds"] for run in client.search_runs([experiment.experiment_id], clause)]
    mean = f"{sum(times) / len(times):.6f}"[:-1]
    assert len(times) == 2
    assert [line for line in first if line.startswith(mean)], first


def test_the_parent_run_s_page_shows_the_answer(browser, study, ui):
    experiment, (parent,) = runs_of(study, "study")
    words = ("Recommended", "recommended_workers", "recommended_seconds", "best_test_accuracy", "digits")
    page = f"{ui.server}/#/experiments/{experiment}/runs/{parent.info.run_id}"
    look(browser, page, "mlflow-parent", *words, parent.data.tags["mlflow.user"], height=2400)


def test_a_trial_s_page_leads_with_its_time_to_the_target(browser, study, ui):
    experiment, trials = runs_of(study, "trial")
    trial = next(run for run in trials if "at_0.6_seconds" in run.data.metrics)
    page = f"{ui.server}/#/experiments/{experiment}/runs/{trial.info.run_id}"
    words = ("to 0.6 test accuracy; best", "test_accuracy", "train_loss")
    look(browser, page, "mlflow-trial", *words, "study.yaml", "digits", "at_0.6_seconds", height=2400)
    body = browser.find_element(By.TAG_NAME, "body").text
    assert [body.index(text) for text in words] == sorted(body.index(text) for text in words)
    look(browser, f"{page}/system-metrics", "mlflow-system", "system/cpu_cores", "system/resident_bytes")


def test_four_runs_can_be_compared(browser, study, ui):
    experiment, trials = runs_of(study, "trial")
    assert len(trials) == 4
    query = f"runs={json.dumps([run.info.run_id for run in trials])}&experiments={json.dumps([experiment])}"
    words = ("at_0.6_seconds", "test_accuracy", "learning_rate", "w2 b64 lr.2 s0")
    look(browser, f"{ui.server}/#/compare-runs?{query}", "mlflow-compare", *words, height=3600)


def test_two_studies_can_be_compared_by_their_answers(browser, study, ui, other_study):
    experiment, (parent,) = runs_of(study, "study")
    runs = [parent.info.run_id, other_study.info.run_id]
    query = f"runs={json.dumps(runs)}&experiments={json.dumps([experiment])}"
    names = [name for name in other_study.data.metrics if name.startswith("recommended_")]
    assert {"recommended_workers", "recommended_seconds"} <= set(names)
    browser.get("about:blank")  # the page of another comparison would go on showing that
    look(browser, f"{ui.server}/#/compare-runs?{query}", "mlflow-compare-studies", *names, "tiny-1", height=3600)
    shown = browser.find_element(By.TAG_NAME, "body").text.splitlines()
    for run in (parent, other_study):
        assert f"{run.data.metrics['recommended_seconds']:.3f}".rstrip("0").rstrip(".") in shown
        assert run.data.params["recommended.batch_size"] in shown
    (file,) = wait_until(lambda: browser.find_elements(By.XPATH, "//*[text()='report.html']"), seconds=30)
    browser.execute_script("arguments[0].click()", file)  # the list of files is below what the window shows
    assert [each.count(" at 90%") > 0 for each in wait_until(lambda: two_reports(browser), seconds=60)] == [True, True]


def two_reports(browser):
    """The texts of the two reports beside each other, once both are there."""
    texts = []
    for frame in browser.find_elements(By.TAG_NAME, "iframe"):
        browser.switch_to.frame(frame)
        texts.append(browser.find_element(By.TAG_NAME, "body").text)
        browser.switch_to.default_content()
    return texts if len(texts) == 2 and all("SCALING STUDY" in text for text in texts) else None
