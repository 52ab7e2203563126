"""Trials side by side, then timed apart: the rule; tests/ray has a study that follows it."""

import pytest

from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.groups.events import Ended
from scalestudy.orchestration.progress.progress import StudyProgress
from scalestudy.orchestration.study import schedule
from scalestudy.orchestration.study.trials import train_config
from tests.support.synthetic_studies import study_of

STEPS = 65  # five to warm up, sixty to be timed


@pytest.mark.parametrize(
    ("exclusive", "device", "rule"),
    [
        ("auto", "cpu", "exclusive"),
        ("auto", "cuda", "packed, then timed"),
        (True, "cpu", "exclusive"),
        (True, "cuda", "exclusive"),
        (False, "cpu", "packed"),
        (False, "cuda", "packed"),
    ],
)
def test_the_rule(exclusive, device, rule):
    assert schedule.timing_rule(Resources(exclusive=exclusive), device) == rule


def test_the_training_loop_takes_a_timing_trial():
    text = "name: x\nsweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, powersgd, local_sgd]}"
    spec, plan, trials = study_of(text, flags={"*": ["shared_node"]})
    for trial in timing_trials(spec, plan.trials, {each["trial_id"]: each for each in trials}):
        config = train_config(trial, "data")
        assert (config.max_steps, config.warm_up_steps) == (STEPS, 5)
    assert all(train_config(trial, "data").max_steps is None for trial in plan.trials)


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
    assert "0/2 timing runs" in progress.line()
    progress.take(timings[0].trial_id, Ended.from_facts({**trials[0], "status": "failed"}))
    assert "2/2 trials" in progress.line()
    assert "1/2 timing runs" in progress.line()
    assert (progress.total, len(progress.statuses)) == (2, 2)
