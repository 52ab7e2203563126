"""Factorised studies before they start, and when they grow: what is refused, and how trials share a machine."""

import pytest

from scalestudy.experiments.analysis.answers.factorised import held_out_trials
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.experiments.spec.sections import Resources
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.nodes import ClusterNode
from scalestudy.orchestration.commands.plan import forecast
from scalestudy.orchestration.study import schedule
from scalestudy.orchestration.study.opening import open_extended, open_new, open_resumed
from scalestudy.orchestration.study.ready import check_exact
from scalestudy.orchestration.sweep.search import search_for
from scalestudy.training.registry import DATASETS, MODELS
from tests.support.trials import make_trials

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [2, 4], batch_size: [32], learning_rate: [0.1, 0.2]}
search: {method: factorised, held_out: 1}
"""
MODULE = "tests.unit.training.loop.test_exactness"


def spec_of(text=SPEC):
    return parse_study(text, "study.yaml", models=MODELS, datasets=DATASETS)


# --- is it exact? ---------------------------------------------------------------------------------------------------


def check(model, **changes):
    text = SPEC.replace("model: lenet", f"model: '{model}'")
    for before, after in changes.values():
        text = text.replace(before, after)
    spec = spec_of(text)
    check_exact(spec, make_plan(spec), "data")


def test_a_model_that_trains_alike_at_every_num_gpus():
    check("lenet")
    check(f"{MODULE}:Plain")
    check(f"{MODULE}:normalised", train=("epochs: 2", "epochs: 2, sync_batch_norm: true"))


@pytest.mark.parametrize(
    ("model", "problem", "remedy"),
    [
        ("normalised", "layer 0 is batch normalisation", "set train.sync_batch_norm: true; or set search.method: grid"),
        ("Functional", "draws random numbers", "take them out; or set search.method: grid, or search.allow_inexact"),
        ("Centred", "depends on the examples beside it", "search.allow_inexact: true"),
        ("broken", "can't be tried here: LookupError: no weights", "correct it, or set search.allow_inexact: true"),
    ],
)
def test_a_model_that_does_not(model, problem, remedy):
    with pytest.raises(RequestError) as refused:
        check(f"{MODULE}:{model}")
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith(f"workload.model: {MODULE}:{model}: ")
    assert problem in str(refused.value)
    assert remedy in str(refused.value)


def test_nobody_asks_where_it_does_not_matter():
    check(f"{MODULE}:broken", search=("held_out: 1", "allow_inexact: true"))
    check(f"{MODULE}:broken", search=("method: factorised, held_out: 1", "method: grid"))


def test_batch_normalisation_that_is_swept_is_looked_at_each_way():
    with pytest.raises(RequestError, match="batch normalisation"):
        check(f"{MODULE}:normalised", sweep=("sweep: {", "sweep: {train.sync_batch_norm: [true, false], "))


# --- side by side ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exclusive", "device", "rule"),
    [
        ("auto", "cpu", "packed, then timed"),
        (True, "cpu", "exclusive"),
        (False, "cpu", "packed, then timed"),
        ("auto", "cuda", "packed, then timed"),
        (True, "cuda", "exclusive"),
    ],
)
def test_trainings_whose_times_do_not_count_run_side_by_side(exclusive, device, rule):
    resources = Resources(exclusive=exclusive)
    assert schedule.trainings_rule(resources, device, factorised=True) == rule
    assert schedule.trainings_rule(resources, device, factorised=False) == schedule.timing_rule(resources, device)


def test_the_forecast_is_that_of_the_trainings():
    spec = spec_of(SPEC.replace("[2, 4]", "[1, 2]"))
    nodes = [ClusterNode(node_id="node-1", host="machine-1", cpus=2.0, gpus=0.0)]
    expected = forecast(spec, make_plan(spec), [], nodes)
    assert (expected.room.exclusive, len(expected.schedule.trials), expected.schedule.makespan) == (False, 2, 2)


# --- it goes on, and grows ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A study whose trainings have ended, and whose held-out trial has begun."""
    opened = open_new(spec_of(), tmp_path / "out")
    opened.write()
    journal = Journal(opened.folder.journal_folder)
    journal.append("", {"type": "study", "state": "started"})
    records = {record["trial_id"]: record for record in make_trials(opened.plan)}
    for trial_id, record in records.items():
        journal.append(trial_id, {"type": "ended", **record})
        opened.folder.append_trial(record)
    (trial,) = held_out_trials(opened.spec, opened.plan, (), records)
    journal.append(trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": None})
    journal.append(trial.trial_id, {"type": "running", "attempt": 1})
    return opened.folder


def test_the_sweep_has_the_trainings_alone(folder):
    opened = open_resumed(folder.path)
    assert len(opened.trials) == 3
    assert (len(opened.plan.trials), opened.plan.expected_trials, opened.plan.sizes) == (2, 3, (2, 4))
    assert search_for(opened.spec, opened.plan, []).next().trial.num_gpus == 2
    folder.update_plan(opened.plan.with_trials(opened.trials.values()))
    again = open_resumed(folder.path)
    assert (len(again.plan.trials), len(again.plan.swept), again.plan.expected_trials) == (3, 2, 3)
    search = search_for(again.spec, again.plan, [])
    assert [search.next().trial.num_gpus, search.next().trial.num_gpus, search.next()] == [2, 2, None]


@pytest.mark.parametrize(
    ("old", "new", "trainings"),
    [
        ("[0.1, 0.2]", "[0.1, 0.2, 0.4]", 3),
        ("[2, 4]", "[2, 4, 8]", 2),
        ("[0.1, 0.2]}", "[0.1, 0.2], seed: [0, 1]}", 4),
        ("held_out: 1", "held_out: 2", 2),
        ("held_out: 1", "held_out: 1, train_on: 2", 2),
        (
            "[2, 4], batch_size: [32], learning_rate: [0.1, 0.2]}\nsearch: {method: factorised",
            "[1, 2, 4], batch_size: [32], learning_rate: [0.1, 0.2]}\nsearch: {method: factorised, train_on: 2",
            2,
        ),
    ],
)
def test_a_factorised_study_grows(folder, old, new, trainings):
    opened = open_extended(spec_of(SPEC.replace(old, new)), folder.path)
    assert len(opened.plan.swept) == trainings
    assert opened.history.ended.keys() | opened.history.open.keys() <= opened.trials.keys()
    assert len(opened.trials) == trainings + 1, "what was held out stays"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[2, 4]", "[1, 2, 4]", r"search.train_on: the trainings so far had num_gpus 2, not 1; set search.train_on: 2"),
        ("method: factorised, held_out: 1", "method: grid", "search: is another one; leave all but search.samples and"),
        ("held_out: 1", "allow_inexact: true", "search: is another one"),
        ("epochs: 2", "epochs: 3", "2 of the trials that have run are not in the spec"),
    ],
)
def test_what_a_factorised_study_refuses(folder, old, new, message):
    with pytest.raises(RequestError, match=message):
        open_extended(spec_of(SPEC.replace(old, new)), folder.path)
