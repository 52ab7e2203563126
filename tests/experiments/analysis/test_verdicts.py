"""Stage 8: why it does not get faster."""

import pytest

from experiments.analysis.verdicts import verdicts
from tests.experiments.support import summary_of
from tests.support.trials import Law

TEXT = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [32, 256]}"
GOOD = {"data": 0.0, "fixed": 0.0, "per_example": 0.001, "sync": 0.0005, "optimizer": 0.0001}


def causes(**changes):
    return [verdict["cause"] for verdict in summary_of(TEXT, Law(**{**GOOD, **changes}))["verdicts"]]


def test_a_healthy_study_has_none():
    assert causes() == []


# a step of 32 examples on one worker takes 0.032 s, on two 0.016 s
@pytest.mark.parametrize(
    ("changes", "cause"),
    [({"data": 0.01}, "data"), ({"sync": 0.01}, "allreduce"), ({"fixed": 0.03}, "small_batch_per_worker")],
)
def test_each_cause_is_found_alone(changes, cause):
    assert causes(**changes) == [cause]


def test_thresholds():
    # one worker: data / (data + 0.032 + 0.0001); two workers sync / (sync + 0.016 + 0.0001): 15 % at 0.002841
    assert causes(sync=0.00283) == []
    assert causes(sync=0.00285) == ["allreduce"]
    # seconds per example at m = 16: 0.001 + f/16, at m = 256: 0.001 + f/256; 1.25 × at f = 0.004340
    assert causes(fixed=0.00430) == []
    assert causes(fixed=0.00438) == ["small_batch_per_worker"]


def test_a_verdict_names_evidence_and_remedy():
    (verdict,) = summary_of(TEXT, Law(**{**GOOD, "sync": 0.01}))["verdicts"]
    # 0.01 / (0.01 + 0.016 + 0.0001)
    assert verdict["evidence"] == {"gpus=2 batch=32": pytest.approx(0.3831, abs=1e-4)}
    assert verdict["cells"] == ["gpus=2 batch=32"]
    assert "38%" in verdict["words"]
    assert verdict["remedy"]


def test_flags_are_told_first():
    flagged = summary_of(TEXT, Law(**{**GOOD, "sync": 0.01}), flags={"*": ["shared_node", "oversubscribed"]})
    assert [verdict["cause"] for verdict in flagged["verdicts"]] == ["oversubscribed", "disturbed", "allreduce"]


def test_no_rows_no_verdicts():
    assert verdicts([]) == []


@pytest.mark.parametrize(
    ("sync", "words"),
    [(0.0, "faster than one"), (0.016, "about as fast as one"), (0.05, "slower than one")],
)
def test_were_two_workers_faster(sync, words):
    text = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [32]}"
    answer = summary_of(text, Law(**{**GOOD, "sync": sync}))["scaling"]["words"]
    assert f"Two workers were {words} at the same batch" in answer
