"""The state of a study as its events tell it."""

import pytest

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.orchestration.groups.events import Ended, EpochDone, Reopened, Retried, Running, TrialError
from scalestudy.orchestration.progress.progress import StudyProgress, clock, sparkline
from tests.support.epochs import epoch_of
from tests.support.synthetic_studies import study_of

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 3}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1]}
"""


@pytest.fixture
def progress():
    _, plan, _ = study_of(SPEC)
    return StudyProgress(plan.by_id())


@pytest.fixture
def first(progress):
    return next(iter(progress.trials))


def epoch(number, accuracy=0.5, rate=100.0):
    return EpochDone(record=epoch_of(number, accuracy, samples_per_second=rate))


def ended(status="finished", message=None, epochs=()):
    error = TrialError(kind="exception", message=message) if message else None
    return Ended(
        status=status,
        attempts=1,
        started_at="",
        ended_at="",
        wall_seconds=2.0,
        train_seconds=1.0,
        startup_seconds=None,
        epochs=tuple(epochs),
        error=error,
    )


def take(progress, trial_id, *events):
    for event in events:
        progress.take(trial_id, event)


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


def test_a_running_trial(progress, first):
    take(progress, first, Running(attempt=1), epoch(1, 0.4), epoch(2, None, None))
    trial = progress.running[first]
    assert trial.values == [0.4, None]
    assert trial.samples_per_second == 100.0
    assert progress.best == (0.4, progress.trials[first])


def test_a_second_attempt_keeps_the_epochs_that_are_not_told_again(progress, first):
    take(progress, first, Running(attempt=1), epoch(1, 0.4), Running(attempt=2), epoch(2, 0.6))
    assert progress.running[first].attempt == 2
    assert progress.running[first].values == [0.4, 0.6]


def test_a_trial_of_an_earlier_run_rests_until_it_is_taken_up(progress, first):
    progress.catch_up([(first, Running(attempt=1)), (first, epoch(1, 0.4)), ("of-another-plan", Running(attempt=1))])
    assert (list(progress.running), list(progress.resting)) == ([], [first])
    take(progress, first, Running(attempt=2), epoch(2, 0.6))
    assert (list(progress.resting), progress.running[first].values) == ([], [0.4, 0.6])


def test_a_trial_that_ends_before_it_is_taken_up_rests_no_more(progress, first):
    progress.catch_up([(first, Running(attempt=1))])
    take(progress, first, ended("failed", "its failures have used up the budget"))
    assert (progress.resting, progress.statuses) == ({}, {first: "failed"})


def test_the_line(progress, first):
    assert progress.remaining_seconds is None
    assert progress.line().startswith("0/2 trials · 0:00 elapsed")
    progress.started -= 10
    take(progress, first, Running(attempt=1), epoch(1, 0.4), ended("out_of_memory"))
    assert first not in progress.running
    assert progress.remaining_seconds == pytest.approx(10, abs=0.5)
    text = progress.line()
    assert "about 0:10 left" in text
    assert "1 out of memory" in text
    assert f"best so far 0.4000 ({progress.trials[first].name})" in text


def test_a_study_that_stops_foretells_no_time(progress, first):
    second = list(progress.trials)[1]
    take(progress, first, Running(attempt=1), ended())
    take(progress, second, Running(attempt=1), epoch(1, 0.4))
    assert " left" in progress.line()
    progress.stopping = True
    assert " left" not in progress.line()
    assert progress.line().startswith("1/2 trials · 0:00 elapsed · stopping, 1 trial cut off")
    take(progress, second, ended())  # it came to its end all the same
    assert progress.line().startswith("2/2 trials · 0:00 elapsed · stopping · best so far")


def test_a_study_of_an_error_is_watched_by_its_error(progress, first):
    progress.metric = StudyMetric(name="mse", mode="min", share=False)
    take(progress, first, Running(attempt=1))
    for number, value in enumerate((0.5, 0.01234, 0.02, None), start=1):
        take(progress, first, EpochDone(record=epoch_of(number, value, metric="mse")))
    assert progress.running[first].values == [0.5, 0.01234, 0.02, None]
    assert progress.best == (0.01234, progress.trials[first])
    assert f"best so far 0.01234 test mse ({progress.trials[first].name})" in progress.line()


# --- timing runs ------------------------------------------------------------------------------------------------------


def test_the_progress_tells_timing_runs_apart():
    spec, plan, trials = study_of("name: x\nsweep: {num_gpus: [1, 2]}", flags={"*": ["shared_node"]})
    known = plan.by_id()
    progress = StudyProgress(known, expected=2)
    for record in trials:
        progress.take(record["trial_id"], Ended.from_facts(record))
    assert progress.line().startswith("2/2 trials")
    assert "timing" not in progress.line()
    timings = timing_trials(spec, plan.trials, {each["trial_id"]: each for each in trials})
    known.update({trial.trial_id: trial for trial in timings})
    assert "0/4 timing runs" in progress.line()
    progress.take(timings[0].trial_id, Ended.from_facts({**trials[0], "status": "failed"}))
    assert "2/2 trials" in progress.line()
    assert "1/4 timing runs" in progress.line()
    assert (progress.total, len(progress.statuses)) == (2, 2)


def test_a_trial_that_is_put_off_rests_until_its_turn_comes(progress, first):
    put_off = Retried(attempt=1, error=TrialError(kind="node_lost", message="m"))
    take(progress, first, Running(attempt=1), epoch(1, 0.4), put_off)
    assert (list(progress.running), list(progress.resting)) == ([], [first])
    take(progress, first, Running(attempt=2))
    assert (list(progress.running), list(progress.resting)) == ([first], [])
    take(progress, first, Retried(attempt=2, error=TrialError(kind="stalled", message="m")))
    assert list(progress.running) == [first], "it comes next"


def test_a_trial_that_is_reopened_has_not_ended(progress, first):
    progress.catch_up([(first, ended("failed")), (first, Reopened())])
    assert (progress.statuses, progress.ended_before) == ({}, 0)


def test_a_study_that_grows_has_no_total_and_foretells_no_time(progress, first):
    """An adaptive search adds trials until it is sure: what is known so far says nothing of its end."""
    known = {first: progress.trials[first]}
    fixed, growing = StudyProgress(dict(known), expected=30), StudyProgress(dict(known), expected=30, grows=True)
    for each in (fixed, growing):
        take(each, first, Running(attempt=1), epoch(1), ended("at_target"))
    assert fixed.remaining_seconds is not None
    assert growing.remaining_seconds is None
    assert (growing.total, growing.count, fixed.count) == (1, "1", "1/30")
    assert growing.line().startswith("1 trials so far · ")
    assert "left" not in growing.line()
