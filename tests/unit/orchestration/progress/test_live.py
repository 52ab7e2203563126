"""How a running study is shown on a terminal, where there is none, and in `log.jsonl`."""

import io
import json
import logging

from rich.console import Console

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.orchestration.groups.events import EpochDone, Retried, Running, TrialError
from scalestudy.orchestration.progress.live import Lines, LiveTable, Logged, Silent, event_text, study_log
from tests.support.epochs import epoch_of
from tests.unit.orchestration.progress.test_progress import ended, epoch, first, progress, take

__all__ = ["first", "progress"]  # fixtures


def test_events_in_words(progress, first):
    assert event_text(epoch(1), progress) is None
    assert event_text(Running(attempt=1), progress) == "training"
    assert event_text(Running(attempt=2), progress) == "training, attempt 2"
    lost = Retried(attempt=1, error=TrialError(kind="worker_lost", message="a worker died"))
    assert event_text(lost, progress) == "attempt 1 lost: a worker died"
    put_off = Retried(attempt=1, error=TrialError(kind="node_lost", message="a node was lost"))
    assert event_text(put_off, progress) == "attempt 1 lost, and others come first: a node was lost"
    assert event_text(ended(epochs=[epoch_of(1, 0.912345)]), progress) == (
        "finished after 1.00 s of training, test accuracy 0.9123 (0/2)"
    )
    failed = ended("out_of_memory", "no memory")
    assert event_text(failed, progress) == "out of memory after 1.00 s of training: no memory (0/2)"
    diverged = ended("diverged", epochs=[epoch_of(1, None)])
    assert event_text(diverged, progress) == "diverged after 1.00 s of training (0/2)"


def test_the_end_of_a_trial_of_an_error_in_words(progress):
    progress.metric = StudyMetric(name="mse", mode="min", share=False)
    text = event_text(ended(epochs=[epoch_of(1, 0.0123456, metric="mse")]), progress)
    assert text == "finished after 1.00 s of training, test mse 0.01235 (0/2)"


def test_lines(progress, first):
    screen = io.StringIO()
    view = Lines(progress, screen)
    view.stage("2 trials in runs/x")
    for event in (Running(attempt=1), epoch(1), ended()):
        progress.take(first, event)
        view.event(first, event)
    view.close()
    name = progress.trials[first].name
    assert screen.getvalue().splitlines() == [
        "[  0:00] 2 trials in runs/x",
        f"[  0:00] {name}: training",
        f"[  0:00] {name}: finished after 1.00 s of training (1/2)",
    ]


def table(progress, waiting=None):
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=True, color_system=None)
    return LiveTable(progress, console, lambda: waiting or {}), screen, console


def drawn(view, console):
    with console.capture() as capture:
        console.print(view._draw())
    return capture.get()


def test_the_live_table(progress, first):
    view, _, console = table(progress)
    try:
        view.stage("connecting")
        assert "connecting" in drawn(view, console)
        take(progress, first, Running(attempt=1), epoch(1, 0.2, None), epoch(2, 0.9, 12_345.6))
        text = drawn(view, console)
    finally:
        view.close()
    row = next(line for line in text.splitlines() if progress.trials[first].name in line)
    assert row.split()[-4:] == ["2/3", "▂█", "0.9000", "12,346"]


def test_a_trial_that_is_cut_off_is_not_shown_as_running(progress, first):
    view, _, console = table(progress)
    try:
        take(progress, first, Running(attempt=1), epoch(1, 0.2), epoch(2, 0.9))
        progress.stopping = True
        view.stage("writing the report")
        text = drawn(view, console)
    finally:
        view.close()
    row = next(line for line in text.splitlines() if progress.trials[first].name in line)
    assert row.split()[-5:] == ["2/3", "▂█", "0.9000", "cut", "off"]
    assert "0/2 trials · 0:00 elapsed · stopping, 1 trial cut off · best so far 0.9000" in text


def test_a_value_that_is_no_number_leaves_no_gap_in_the_live_table(progress, first):
    view, _, console = table(progress)
    try:
        take(progress, first, Running(attempt=1), epoch(1, 0.2), epoch(2, None))
        text = drawn(view, console)
    finally:
        view.close()
    row = next(line for line in text.splitlines() if progress.trials[first].name in line)
    assert row.split()[-4:] == ["2/3", "▂", "–", "100"]


def test_the_live_table_of_another_metric(progress, first):
    progress.metric = StudyMetric(name="mse", mode="min", share=False)
    view, _, console = table(progress)
    try:
        take(progress, first, Running(attempt=1))
        for number, value in ((1, 12.0), (2, 3.5)):
            record = epoch_of(number, value, metric="mse", samples_per_second=100.0)
            take(progress, first, EpochDone(record=record))
        text = drawn(view, console)
    finally:
        view.close()
    assert "test mse" in text
    assert "accuracy" not in text
    row = next(line for line in text.splitlines() if progress.trials[first].name in line)
    assert row.split()[-4:] == ["2/3", "█▁", "3.5", "100"]


def test_what_is_waited_for_is_shown(progress):
    view, _, console = table(progress, {"starting 2 worker(s)": 7.4})
    try:
        assert "starting 2 worker(s) (7 s)" in drawn(view, console)
    finally:
        view.close()


def test_odd_endings_stay_above_the_table(progress, first):
    view, screen, _ = table(progress)
    name = progress.trials[first].name
    lost = Retried(attempt=1, error=TrialError(kind="worker_lost", message="a worker [died]"))
    for event in (Running(attempt=1), lost, Running(attempt=2), ended("failed", "[red]bad[/red]")):
        progress.take(first, event)
        view.event(first, event)
    view.close()
    shown = screen.getvalue()
    assert f"{name}: attempt 1 lost: a worker [died]" in shown
    assert f"{name}: failed after 1.00 s of training: [red]bad[/red] (1/2)" in shown  # markup in a user's text is text
    assert "finished" not in shown


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


def test_a_log_that_can_not_be_written_stops_nothing(tmp_path):
    with study_log(tmp_path / "missing" / "log.jsonl", "s-1"):
        logging.getLogger("orchestration").warning("nobody hears it")
    assert not (tmp_path / "missing").exists()
