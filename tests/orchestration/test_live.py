"""How a running study looks on a terminal, and where there is none."""

import io

from rich.console import Console

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.orchestration.progress.live import Lines, LiveTable
from tests.orchestration.test_board import board, ended, epoch, first, running, take

__all__ = ["board", "first"]  # fixtures


def test_lines(board, first):
    screen = io.StringIO()
    view = Lines(board, screen)
    view.stage("2 trials in runs/x")
    for event in (running(), epoch(1), ended()):
        board.take(first, event)
        view.event(first, event)
    view.close()
    name = board.trials[first].run_name
    assert screen.getvalue().splitlines() == [
        "[  0:00] 2 trials in runs/x",
        f"[  0:00] {name}: training",
        f"[  0:00] {name}: finished in 2.0 s (1/2)",
    ]


def table(board, waiting=None):
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=True, color_system=None)
    return LiveTable(board, console, lambda: waiting or {}), screen, console


def drawn(view, console):
    with console.capture() as capture:
        console.print(view._draw())
    return capture.get()


def test_the_live_table(board, first):
    view, _, console = table(board)
    try:
        view.stage("connecting")
        assert "connecting" in drawn(view, console)
        take(board, first, running(), epoch(1, 0.2, None), epoch(2, 0.9, 12_345.6))
        text = drawn(view, console)
    finally:
        view.close()
    row = next(line for line in text.splitlines() if board.trials[first].run_name in line)
    assert row.split()[-4:] == ["2/3", "▂█", "0.9000", "12,346"]


def test_the_live_table_of_another_metric(board, first):
    board.metric = StudyMetric(name="mse", mode="min", share=False)
    view, _, console = table(board)
    try:
        take(board, first, running())
        for number, value in ((1, 12.0), (2, 3.5)):
            told = {"epoch": number, "test_mse": value, "samples_per_second": 100.0}
            take(board, first, {"type": "epoch", "epoch": told})
        text = drawn(view, console)
    finally:
        view.close()
    assert "test mse" in text
    assert "accuracy" not in text
    row = next(line for line in text.splitlines() if board.trials[first].run_name in line)
    assert row.split()[-4:] == ["2/3", "█▁", "3.5", "100"]


def test_what_is_waited_for_is_shown(board):
    view, _, console = table(board, {"starting 2 worker(s)": 7.4})
    try:
        assert "starting 2 worker(s) (7 s)" in drawn(view, console)
    finally:
        view.close()


def test_odd_endings_stay_above_the_table(board, first):
    view, screen, _ = table(board)
    name = board.trials[first].run_name
    lost = {"type": "retry", "attempt": 1, "error": {"message": "a worker [died]"}}
    for event in (running(), lost, running(2), ended("failed", {"message": "[red]bad[/red]"})):
        board.take(first, event)
        view.event(first, event)
    view.close()
    shown = screen.getvalue()
    assert f"{name}: attempt 1 lost: a worker [died]" in shown
    assert f"{name}: failed in 2.0 s: [red]bad[/red] (1/2)" in shown  # markup in a user's text is text
    assert "finished" not in shown
