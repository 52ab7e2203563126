"""Whether first trials fail alike."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.groups.events import TrialError
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.study.alike import Fault, FirstTrials
from tests.support.synthetic_studies import spec_of

TRIALS = make_plan(spec_of("name: x\nsweep: {num_gpus: [1], learning_rate: [0.1, 0.2, 0.3], seed: [0, 1]}")).trials
TRACEBACK = """Traceback (most recent call last):
  File "/a/train.py", line 7, in run_step
    loss()
  File "/a/mine.py", line 12, in forward
    raise ValueError(f"{x}")
ValueError: 3
"""


def ended(status="failed", kind="exception", message="ValueError: 3", traceback=TRACEBACK):
    error = None if status == "finished" else TrialError(kind=kind, message=message, rank=0, traceback=traceback)
    return TrialRecord().end(status, attempts=1, error=error, at=1.0)


@pytest.mark.parametrize(
    "message", ["ValueError: 3; logs: x", "ValueError; logs: x", "ValueError (ranks 0, 1)", "ValueError"]
)
def test_a_fault_is_a_type_and_a_place(message):
    assert Fault.of(TrialError(kind="exception", message=message, traceback=TRACEBACK)) == (
        "ValueError",
        "/a/mine.py:12",
    )
    assert Fault.of(TrialError(kind="exception", message=message)) == ("ValueError", "")


def test_two_cells_that_fail_alike_are_enough_whatever_the_words():
    first = FirstTrials()
    assert first.alike(TRIALS[0], ended()) is None
    assert first.alike(TRIALS[1], ended()) is None, "another seed of the same cell"
    told = first.alike(TRIALS[2], ended(message="ValueError: 4"))
    assert told == "3 trials of different cells failed with the same error, and none has a result: ValueError: 4"


@pytest.mark.parametrize(
    "other",
    [
        {"message": "KeyError: 3"},
        {"traceback": TRACEBACK.replace("line 12", "line 13")},
        {"traceback": TRACEBACK.replace("mine.py", "yours.py")},
        {"kind": "worker_lost"},
        {"kind": "time_limit"},
    ],
)
def test_other_failures_are_not_alike(other):
    first = FirstTrials()
    assert first.alike(TRIALS[0], ended(**other)) is None
    assert first.alike(TRIALS[2], ended()) is None
    assert first.alike(TRIALS[4], ended()) is not None


@pytest.mark.parametrize("status", ["finished", "stopped", "diverged", "out_of_memory", "at_target"])
def test_after_a_result_nothing_is_alike(status):
    first, earlier = FirstTrials(), FirstTrials(["failed", status])
    assert first.alike(TRIALS[0], ended(status, kind=status)) is None
    for trial in TRIALS[1:]:
        assert first.alike(trial, ended()) is None
        assert earlier.alike(trial, ended()) is None


def test_what_failed_in_an_earlier_run_may_have_been_mended():
    first = FirstTrials(["failed", "failed"])
    assert first.alike(TRIALS[0], ended()) is None
    assert first.alike(TRIALS[2], ended()) is not None
