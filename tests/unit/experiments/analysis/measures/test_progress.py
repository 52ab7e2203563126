"""How far the trainings of a study are at an evaluation, as their lines say it."""

import pytest

from scalestudy.experiments.analysis.measures.progress import (
    LOOP_TELLS_NONE,
    STEPS_A_SECOND,
    Progress,
    with_updates,
)
from scalestudy.experiments.analysis.measures.usable import usable
from tests.support.loop_studies import loop_study
from tests.support.synthetic_studies import TINY, study_of

SMALL = """
name: small
workload: {loop: 'my_loop:train'}
train: {epochs: 4}
sweep: {num_gpus: [1], batch_size: [100], learning_rate: [0.2], seed: [0, 1]}
"""


def progress(spec, lines):
    return Progress.of(spec, usable(lines).trials)


def test_the_built_in_loop_counts_its_updates_and_nothing_is_filled_in():
    spec, _, lines = study_of(TINY)
    known = usable(lines)
    assert progress(spec, lines) == Progress(unit="steps", why="")
    assert with_updates(known, spec, Progress()) is known


def test_a_loop_that_tells_its_examples_has_steps():
    spec, _, lines = loop_study(text=SMALL)
    found = progress(spec, lines)
    assert found == Progress(unit="steps")
    (first, _) = with_updates(usable(lines), spec, found).trials
    assert [epoch.steps for epoch in first.epochs] == [15] * 4  # 1437 examples in batches of 100
    assert first.whole_periods
    assert first.seconds_of(first.epochs[0]) == first.epochs[0].train_seconds


def test_one_report_without_examples_leaves_time_alone():
    spec, _, lines = loop_study(text=SMALL)
    lines[1]["epochs"][2]["samples"] = 0
    found = progress(spec, lines)
    assert found == Progress(unit="seconds", why=LOOP_TELLS_NONE)
    for trial in with_updates(usable(lines), spec, found).trials:
        for epoch in trial.epochs:
            assert epoch.steps == epoch.train_seconds * STEPS_A_SECOND
            assert (epoch.samples, epoch.samples_per_second, epoch.tokens_per_second) == (None, None, None)


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_a_trial_that_does_not_count_decides_nothing(status):
    spec, _, lines = loop_study(text=SMALL)
    lines[1]["epochs"][0]["samples"], lines[1]["status"] = 0, status
    assert progress(spec, lines).unit == "steps"


def test_a_study_without_trials_lacks_nothing_yet():
    spec, _, _ = loop_study(text=SMALL)
    assert progress(spec, []) == Progress()
