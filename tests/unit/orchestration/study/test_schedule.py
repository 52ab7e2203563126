"""The schedule that `plan` foretells."""

import json
import os
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.cluster.nodes import ClusterNode, Node
from scalestudy.orchestration.commands.plan import bar, duration_text, forecast, forecast_lines, gpus_here, machines
from scalestudy.orchestration.study.schedule import (
    Costs,
    GroupSpan,
    Room,
    TrialSpan,
    Work,
    concurrency,
    lower_bound,
    simulate,
)
from tests.support.studies import scalestudy, write_spec
from tests.support.synthetic_studies import spec_of, study_of

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2]}
"""
COSTS = Costs(start=5.0, stop=1.0, trial=0.5)


def works(*given):
    return [Work(trial_id=f"t{n}", num_workers=size, duration=seconds) for n, (size, seconds) in enumerate(given)]


def room(*slots, exclusive=False, trials_per_group=200):
    nodes = tuple(Node(node_id=f"n{number}", slots=each) for number, each in enumerate(slots))
    return Room(nodes=nodes, exclusive=exclusive, trials_per_group=trials_per_group)


def times(schedule):
    return [(span.start, span.end) for span in schedule.trials]


def test_one_group_serves_one_trial_after_another():
    schedule = simulate(works((1, 10.0), (1, 20.0)), room(2, exclusive=True), COSTS)
    # start 5; trial 10 + 0.5 → 15.5; trial 20 + 0.5 → 36
    assert times(schedule) == [(5.0, 15.5), (15.5, 36.0)]
    assert (schedule.makespan, schedule.work, schedule.lower_bound) == (36.0, 30.0, 30.0)
    assert (len(schedule.groups), schedule.evictions) == (1, 0)


def test_another_size_costs_an_eviction_and_a_start():
    schedule = simulate(works((1, 10.0), (2, 10.0)), room(2, exclusive=True), COSTS)
    # 5 + 10.5 = 15.5; its group ends, 1; the next starts, 5; 21.5 + 10.5
    assert times(schedule) == [(5.0, 15.5), (21.5, 32.0)]
    assert [group.stopped for group in schedule.groups] == [15.5, None]
    assert schedule.evictions == 1


def test_small_trials_run_side_by_side_and_the_large_one_is_not_starved():
    schedule = simulate(works((1, 10.0), (1, 30.0), (2, 10.0), (1, 10.0)), room(2))
    # the 2-worker trial waits for both cores and the last small one waits behind it
    assert times(schedule) == [(0.0, 10.0), (0.0, 30.0), (30.0, 40.0), (40.0, 50.0)]


def test_a_group_is_replaced_after_its_number_of_trials():
    schedule = simulate(works((1, 10.0), (1, 10.0)), room(1, trials_per_group=1), COSTS)
    assert times(schedule) == [(5.0, 15.5), (21.5, 32.0)]
    assert (len(schedule.groups), schedule.evictions) == (2, 0)


def test_the_issues_packing_study():
    """Twelve trials of 20 s on four slots: the bound is 4·20·(1 + 2 + 4) ÷ 4 = 140 s."""
    twelve = works(*[(size, 20.0) for size in (1, 2, 4) for _ in range(4)])
    assert lower_bound(twelve, room(4)) == 140.0
    assert simulate(twelve, room(4)).makespan == 140.0


def test_a_trial_that_never_fits():
    with pytest.raises(ValueError, match="num_gpus: 3: there is room for 2 workers"):
        simulate(works((3, 1.0)), room(2))


def test_nothing_to_do():
    schedule = simulate([], room(2))
    assert (schedule.makespan, schedule.lower_bound, schedule.trials) == (0.0, 0.0, ())


@pytest.mark.parametrize(
    ("slots", "exclusive", "sizes", "expected"),
    [
        ((4,), True, [1, 2], 1),
        ((4, 4), True, [1], 2),
        ((4, 0), True, [1], 1),
        ((4, 4), False, [2, 4], 4),
        ((2,), False, [2], 1),
    ],
)
def test_trials_at_a_time(slots, exclusive, sizes, expected):
    assert concurrency(sizes, room(*slots, exclusive=exclusive)) == expected


SIZES = st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 30.0)), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(SIZES, st.lists(st.integers(2, 5), min_size=2, max_size=3), st.booleans(), st.integers(1, 5))
def test_every_trial_runs_once_and_never_more_than_fit(given_works, slots, exclusive, trials_per_group):
    todo = works(*given_works)
    where = room(*slots, exclusive=exclusive, trials_per_group=trials_per_group)
    schedule = simulate(todo, where, COSTS)
    assert sorted(span.trial_id for span in schedule.trials) == sorted(work.trial_id for work in todo)
    assert schedule.makespan >= schedule.lower_bound - 1e-6
    sizes = {work.trial_id: work.num_workers for work in todo}
    for span in schedule.trials:
        beside = [other for other in schedule.trials if other.start <= span.start < other.end]
        assert sum(sizes[other.trial_id] for other in beside) <= where.slots
        assert len(beside) <= (len(slots) if exclusive else where.slots)
    for group in schedule.groups:
        mine = sorted((s.start, s.end) for s in schedule.trials if s.group_id == group.group_id)
        assert len(mine) == group.served <= trials_per_group
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(mine))
        assert all(group.ready <= start for start, _ in mine)


def test_ten_thousand_trials_take_no_time():
    todo = works(*[(size, 1.0 + number % 7) for size in (1, 2, 4, 8) for number in range(2_500)])
    began = time.perf_counter()
    simulate(todo, room(8, 8, 8, 8), COSTS)
    assert time.perf_counter() - began < 2.0


# --- of a spec ----------------------------------------------------------------------------------------------------


def two_cores():
    return [ClusterNode(node_id="a", host="a", cpus=2.0, gpus=0.0)]


def test_a_forecast_from_earlier_timings():
    spec, plan, trials = study_of(SPEC)
    first = plan.trials[0]
    earlier = [{**trial, "workload": first.workload, "train": first.train} for trial in trials]
    found = forecast(spec, plan, earlier, two_cores())
    assert found.unit == "seconds"
    assert found.why is None
    assert found.room.exclusive
    trained = sum(e["train_seconds"] + e["eval_seconds"] for trial in trials for e in trial["epochs"])
    assert found.makespan_seconds == pytest.approx(trained + 4 * 0.1 + 2 * 7.0 + 1.5, rel=0.02)
    assert "schedule: about" in "\n".join(forecast_lines(found))


def test_a_forecast_of_what_was_never_measured_counts_epochs():
    spec, plan, _ = study_of(SPEC)
    found = forecast(spec, plan, [], two_cores())
    assert (found.unit, found.makespan_seconds, found.schedule.makespan) == ("epochs", None, 32)
    assert found.to_dict()["why"] == "no earlier timing for 4 of 4 trials"
    text = "\n".join(forecast_lines(found))
    assert "32 epochs one after another; in seconds not known" in text
    assert "2 group starts, 1 of them ended early" in text


def test_a_forecast_without_room():
    spec, plan, _ = study_of(SPEC)
    found = forecast(spec, plan, [], [ClusterNode(node_id="a", host="a", cpus=1.0, gpus=0.0)])
    assert found.schedule is None
    assert forecast_lines(found) == [
        "schedule: none (num_gpus: 2: there is room for 1 workers at a time; for other machines: --slots, --nodes)"
    ]


def test_a_search_that_makes_its_trials_later_has_no_schedule():
    spec = spec_of(SPEC + "search: {method: tpe, samples: 3}\n")
    found = forecast(spec, make_plan(spec), [], two_cores())
    assert forecast_lines(found) == ["schedule: none (tpe chooses the points while the study runs)"]


def test_a_scheduler_makes_it_a_bound():
    spec, plan, _ = study_of(SPEC + "search: {scheduler: asha}\n")
    found = forecast(spec, plan, [], two_cores())
    assert found.at_most
    assert any("at most, for trials may be stopped early: 32 epochs" in line for line in forecast_lines(found))


def test_the_machines_to_plan_for():
    spec, _, _ = study_of(SPEC)
    (here,) = machines(spec.resources, None, 1, None)
    assert (here.cpus, here.gpus) == (os.cpu_count(), gpus_here())
    named = machines(spec.resources.model_copy(update={"device": "cuda", "gpus_per_worker": 0.5}), 4, 2, None)
    assert [(node.cpus, node.gpus) for node in named] == [(4.0, 2.0), (4.0, 2.0)]


# --- as text ------------------------------------------------------------------------------------------------------


def test_a_bar():
    group = GroupSpan(group_id="g", num_workers=1, ordered=2.0, ready=4.0, stopped=9.0)
    spans = [
        TrialSpan(trial_id="t", group_id="g", start=4.0, end=6.0),
        TrialSpan(trial_id="u", group_id="g", start=7.0, end=8.0),
    ]
    assert bar(group, spans, 10.0, width=10) == "  ░░██·█· "


def test_many_groups_are_cut():
    spec, plan, _ = study_of(SPEC)
    many = spec.model_copy(update={"limits": spec.limits.model_copy(update={"trials_per_group": 1})})
    lines = forecast_lines(forecast(many, plan, [], two_cores()))
    assert sum("1 trial" in line for line in lines) == 4
    assert [duration_text(value) for value in (48.2, 720.0, 12_600.0)] == ["48 s", "12 min", "3.5 h"]


def test_the_command(tmp_path):
    write_spec(tmp_path)
    done = scalestudy("plan", "study.yaml", "--slots", "4", "--nodes", "2", "--json", cwd=tmp_path)
    schedule = json.loads(done.stdout)["schedule"]
    assert schedule["slots"] == [4, 4]
    assert schedule["makespan_seconds"] is None
    assert len(schedule["trials"]) == 4
    assert (
        "room for 4 + 4 workers"
        in scalestudy("plan", "study.yaml", "--slots", "4", "--nodes", "2", cwd=tmp_path).stdout
    )
