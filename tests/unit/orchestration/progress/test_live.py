"""What a running study shows, as an approved text, and its log.jsonl."""

import io
import json
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.orchestration.groups.events import EpochDone, Retried, Running, TrialError
from scalestudy.orchestration.progress import progress as progress_module
from scalestudy.orchestration.progress.live import Lines, LiveTable, Logged, Silent, study_log
from tests.support.approved import approved
from tests.support.epochs import epoch_of
from tests.unit.orchestration.progress.test_progress import ended, epoch, first, progress, take

__all__ = ["first", "progress"]  # fixtures
LOST = Retried(attempt=1, error=TrialError(kind="worker_lost", message="a worker [died]"))
PUT_OFF = Retried(attempt=2, error=TrialError(kind="node_lost", message="a node was lost"))
GIVEN_BACK = Retried(attempt=2, error=TrialError(kind="used_workers", message="the model was kept"))
EVENTS = [
    Running(attempt=1),
    epoch(1),
    LOST,
    Running(attempt=2),
    PUT_OFF,
    GIVEN_BACK,
    ended(epochs=[epoch_of(1, 0.912345)]),
    ended("diverged", epochs=[epoch_of(1, None)]),
    ended("out_of_memory", "no memory"),
    ended("failed", "[red]bad[/red]"),  # markup in a user's text is text
    ended(),
]
MSE = StudyMetric(name="mse", mode="min", share=False)


@pytest.fixture(autouse=True)
def _after_65_seconds(progress, monkeypatch):
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: 165.0))
    progress.started = 100.0


class Shown:
    """The text of a view that is told of the first trial's events."""

    def __init__(self, progress, first, view_on):
        self.progress, self.first, self.screen = progress, first, io.StringIO()
        self.view = view_on(self.screen)

    def events(self, *events):
        for event in events:
            self.progress.take(self.first, event)
            self.view.event(self.first, event)


def test_the_lines_of_a_job_s_log(progress, first):
    shown = Shown(progress, first, lambda screen: Lines(progress, screen))
    shown.view.stage("2 trials in runs/x")
    shown.events(*EVENTS)
    progress.metric = MSE
    shown.events(ended(epochs=[epoch_of(1, 0.0123456, metric="mse")]))
    shown.view.close()
    approved(shown.screen.getvalue(), Path(__file__).parent / "lines.txt")


def test_the_live_table_and_what_stays_above_it(progress, first):
    waiting, drawn = {}, []

    def view_on(screen):
        console = Console(file=screen, width=120, force_terminal=True, color_system=None)
        return LiveTable(progress, console, lambda: waiting)

    def draw(moment):
        console = Console(file=io.StringIO(), width=120, color_system=None)
        console.print(shown.view._draw())
        drawn.append(f"--- {moment}\n{console.file.getvalue()}")

    shown = Shown(progress, first, view_on)
    try:
        shown.view.stage("connecting")
        draw("before anything runs")
        waiting["starting 2 worker(s)"] = 7.4
        draw("what is waited for")
        waiting.clear()
        take(progress, first, Running(attempt=1), epoch(1, 0.2, None), epoch(2, 0.9, 12_345.6))
        draw("after two epochs")
        take(progress, first, epoch(3, None))
        draw("after a value that is no number")
        progress.stopping = True
        draw("a trial that is cut off")
        progress.stopping, progress.metric, progress.best = False, MSE, None
        take(progress, first, ended(), Running(attempt=1))
        for number, value in ((1, 12.0), (2, 3.5)):
            take(progress, first, EpochDone(record=epoch_of(number, value, metric="mse", samples_per_second=100.0)))
        draw("of another metric")
        take(progress, first, EpochDone(record=epoch_of(3, 2.0, metric="mse", samples=50, tokens=3_200)))
        draw("of a task that counts tokens")
        shown.events(*EVENTS)
    finally:
        shown.view.close()
    printed = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.screen.getvalue())
    stays = [line for line in printed.splitlines() if ": " in line]
    approved("".join(drawn) + "--- above the table\n" + "\n".join(stays), Path(__file__).parent / "table.txt")


# --- log.jsonl ----------------------------------------------------------------------------------------------------


def lines(file):
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_every_event_has_the_studys_and_the_trials_id(tmp_path, progress, first):
    file = tmp_path / "log.jsonl"
    view = Logged(Silent(), progress)
    with study_log(file, "s-1"):
        view.stage("starting")
        for event in (Running(attempt=1), epoch(1)):
            progress.take(first, event)
            view.event(first, event)
    opening, running = lines(file)  # an epoch's record is in the journal
    assert (opening["message"], opening["study_id"], opening["level"]) == ("starting", "s-1", "info")
    assert "trial_id" not in opening
    assert (running["trial_id"], running["event"], running["study_id"]) == (first, "running", "s-1")
    assert running["message"].endswith(": training")
    assert running["at"].endswith("Z")
    assert list(running) == ["at", "level", "logger", "study_id", "trial_id", "event", "message"]


def test_retries_and_ends_are_named_in_the_log_as_in_the_journal(tmp_path, progress, first):
    view = Logged(Silent(), progress)
    with study_log(tmp_path / "log.jsonl", "s-1"):
        view.event(first, Retried(attempt=1, error=TrialError(kind="worker_lost", message="died")))
        view.event(first, ended())
    assert [line["event"] for line in lines(tmp_path / "log.jsonl")] == ["retry", "ended"]


def test_warnings_and_tracebacks_of_these_packages_are_in_it_and_no_others(tmp_path):
    file, ours = tmp_path / "log.jsonl", logging.getLogger("scalestudy.orchestration.tracking.writer")
    before = logging.getLogger("orchestration").level
    with study_log(file, "s-1"):
        logging.getLogger("elsewhere").warning("not ours")
        ours.warning("MLflow is out of reach:\n%s", "…")
        try:
            raise ValueError("broken")
        except ValueError:
            ours.exception("the sweep broke off")
    ours.warning("after it")
    warning, error = lines(file)
    assert (warning["level"], warning["message"]) == ("warning", "MLflow is out of reach:\n…")
    assert error["traceback"].endswith("ValueError: broken")
    assert logging.getLogger("orchestration").level == before


def test_a_name_that_is_no_text_is_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("scalestudy"), "propagate", False)  # pytest can't send such a name
    with study_log(tmp_path / "log.jsonl", "s"):
        logging.getLogger("scalestudy.a").warning("no such file: %s", os.fsdecode(b"m\xfcll"))
    assert r"no such file: m\udcfcll" in (tmp_path / "log.jsonl").read_text("utf-8")


def test_a_log_that_can_not_be_written_stops_nothing(tmp_path):
    with study_log(tmp_path / "missing" / "log.jsonl", "s-1"):
        logging.getLogger("orchestration").warning("nobody hears it")
    assert not (tmp_path / "missing").exists()
