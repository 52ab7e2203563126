"""What a person watching a study sees: the board's state, and both ways of showing it."""

import pytest

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.orchestration.progress.live import Silent, event_text
from scalestudy.orchestration.progress.progress import Board, clock, sparkline
from tests.support.synthetic_studies import study_of

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 3}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1]}
"""


@pytest.fixture
def board():
    _, plan, _ = study_of(SPEC)
    return Board({trial.trial_id: trial for trial in plan.trials})


@pytest.fixture
def first(board):
    return next(iter(board.trials))


def running(attempt=1):
    return {"type": "running", "attempt": attempt, "world": {}}


def epoch(number, accuracy=0.5, rate=100.0):
    return {
        "type": "epoch", "epoch": {"epoch": number, "test_accuracy": accuracy, "samples_per_second": rate}
    }  # fmt: skip


def ended(status="finished", error=None, epochs=()):
    return {"type": "ended", "status": status, "wall_seconds": 2.0, "error": error, "epochs": list(epochs)}


def take(board, trial_id, *events):
    for event in events:
        board.take(trial_id, event)


def test_sparkline():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([-1.0, 2.0, None]) == "▁█ "
    assert sparkline([0.0] * 20 + [1.0], width=3) == "▁▁█"
    assert sparkline([]) == ""


def test_a_sparkline_of_what_is_no_share_fills_its_height():
    assert sparkline([30.0, 20.0, None, 10.0], share=False) == "█▅ ▁"
    assert sparkline([7.0, 7.0], share=False) == "▅▅"
    assert sparkline([None], share=False) == " "
    assert sparkline([900.0, 2.0, 1.0], width=2, share=False) == "█▁"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (65, "1:05"), (3_599, "59:59"), (7_384, "2:03:04")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_a_running_trial(board, first):
    take(board, first, running(), epoch(1, 0.4), epoch(2, None, None))
    trial = board.running[first]
    assert trial.values == [0.4, None]
    assert trial.samples_per_second == 100.0
    assert board.best == (0.4, board.trials[first])


def test_a_second_attempt_keeps_the_epochs_that_are_not_told_again(board, first):
    take(board, first, running(), epoch(1, 0.4), running(2), epoch(2, 0.6))
    assert board.running[first].attempt == 2
    assert board.running[first].values == [0.4, 0.6]


def test_progress(board, first):
    assert board.remaining_seconds is None
    assert board.progress().startswith("0/2 trials · 0:00 elapsed")
    board.started -= 10
    take(board, first, running(), epoch(1, 0.4), ended("out_of_memory"))
    assert first not in board.running
    assert board.remaining_seconds == pytest.approx(10, abs=0.5)
    text = board.progress()
    assert "about 0:10 left" in text
    assert "1 out of memory" in text
    assert f"best so far 0.4000 ({board.trials[first].run_name})" in text


def test_events_in_words(board, first):
    assert event_text(epoch(1), board) is None
    assert event_text(running(), board) == "training"
    assert event_text(running(2), board) == "training, attempt 2"
    lost = {"type": "retry", "attempt": 1, "error": {"message": "a worker died"}}
    assert event_text(lost, board) == "attempt 1 lost: a worker died"
    assert event_text(ended(epochs=[{"test_accuracy": 0.912345}]), board) == (
        "finished in 2.0 s, test accuracy 0.9123 (0/2)"
    )
    failed = ended("out_of_memory", {"message": "no memory"})
    assert event_text(failed, board) == "out of memory in 2.0 s: no memory (0/2)"
    assert event_text(ended("diverged", epochs=[{"test_accuracy": None}]), board) == "diverged in 2.0 s (0/2)"


def test_a_study_of_an_error_is_watched_by_its_error(board, first):
    board.metric = StudyMetric(name="mse", mode="min", share=False)
    for number, value in enumerate((0.5, 0.01234, 0.02, None), start=1):
        told = {"epoch": number, "test_mse": value, "test_accuracy": 1.0, "samples_per_second": 1.0}
        take(board, first, *([running()] if number == 1 else []), {"type": "epoch", "epoch": told})
    assert board.running[first].values == [0.5, 0.01234, 0.02, None]
    assert board.best == (0.01234, board.trials[first])
    assert f"best so far 0.01234 test mse ({board.trials[first].run_name})" in board.progress()
    text = event_text(ended(epochs=[{"test_mse": 0.0123456}]), board)
    assert text == "finished in 2.0 s, test mse 0.01235 (0/2)"


def test_silence(board, first):
    view = Silent()
    view.stage("x")
    view.event(first, running())
    view.close()
