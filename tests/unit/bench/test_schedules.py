"""The simulation of `make bench BENCH=packing`: when each trial runs, and the bound."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.study.concurrency import Room
from tests.bench.schedules import Costs, Work, lower_bound, simulate

COSTS = Costs(start=5.0, stop=1.0, trial=0.5)


def works(*given):
    return [Work(trial_id=f"t{n}", num_workers=size, duration=seconds) for n, (size, seconds) in enumerate(given)]


def room(*slots, exclusive=False):
    nodes = tuple(Node(node_id=f"n{number}", slots=each) for number, each in enumerate(slots))
    return Room(nodes=nodes, exclusive=exclusive)


def times(schedule):
    return [(span.start, span.end) for span in schedule.trials]


def spanning(schedule):
    """Trials whose workers lie on several nodes."""
    return sum(group.served for group in schedule.groups if group.nodes > 1)


def test_one_group_serves_one_trial_after_another():
    schedule = simulate(works((1, 10.0), (1, 20.0)), room(2, exclusive=True), COSTS)
    # start 5; trial 10 + 0.5 → 15.5; trial 20 + 0.5 → 36
    assert times(schedule) == [(5.0, 15.5), (15.5, 36.0)]
    assert schedule.makespan == 36.0
    assert len(schedule.groups) == 1


def test_another_size_costs_an_eviction_and_a_start():
    schedule = simulate(works((1, 10.0), (2, 10.0)), room(2, exclusive=True), COSTS)
    # 5 + 10.5 = 15.5; its group ends, 1; the next starts, 5; 21.5 + 10.5
    assert times(schedule) == [(5.0, 15.5), (21.5, 32.0)]
    assert [group.served for group in schedule.groups] == [1, 1]


def test_small_trials_run_side_by_side_and_the_large_one_is_not_starved():
    schedule = simulate(works((1, 10.0), (1, 30.0), (2, 10.0), (1, 10.0)), room(2))
    # the 2-worker trial waits for both cores and the last small one waits behind it
    assert times(schedule) == [(0.0, 10.0), (0.0, 30.0), (30.0, 40.0), (40.0, 50.0)]


def test_the_study_of_the_benchmark():
    """Twelve trials of 20 s on four slots: the bound is 4·20·(1 + 2 + 4) ÷ 4 = 140 s."""
    twelve = works(*[(size, 20.0) for size in (1, 2, 4) for _ in range(4)])
    assert lower_bound(twelve, room(4)) == 140.0
    assert simulate(twelve, room(4)).makespan == 140.0


SIZES = st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 30.0)), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(
    SIZES,
    st.lists(st.integers(2, 5), min_size=2, max_size=3),
    st.booleans(),
    st.sampled_from(["pack", "spread"]),
)
def test_every_trial_runs_once_and_never_more_than_fit(given_works, slots, exclusive, placement):
    todo = works(*given_works)
    where = room(*slots, exclusive=exclusive)
    schedule = simulate(todo, where, COSTS, placement)
    assert sorted(span.trial_id for span in schedule.trials) == sorted(work.trial_id for work in todo)
    assert schedule.makespan >= lower_bound(todo, where) - 1e-6
    sizes = {work.trial_id: work.num_workers for work in todo}
    for span in schedule.trials:
        beside = [other for other in schedule.trials if other.start <= span.start < other.end]
        assert sum(sizes[other.trial_id] for other in beside) <= where.slots
        assert len(beside) <= (len(slots) if exclusive else where.slots)
    for group in schedule.groups:
        mine = sorted((s.start, s.end) for s in schedule.trials if s.group_id == group.group_id)
        assert len(mine) == group.served
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(mine))
        assert all(group.ready <= start for start, _ in mine)


@pytest.mark.parametrize("sizes", [(1, 2, 4), (1, 2, 4, 8), (2, 4, 8), (1, 8), (4, 8)])
def test_on_two_nodes_no_trial_spans_that_one_can_hold(sizes):
    """Dealt out over all nodes with room (`spread`), a third at least of those with several workers would."""
    chance = random.Random(0)
    todo = works(*[(size, chance.uniform(5.0, 60.0)) for size in sizes for _ in range(40)])
    several = sum(work.num_workers > 1 for work in todo)
    spread, packed = (simulate(todo, room(8, 8), Costs(), rule) for rule in ("spread", "pack"))
    assert spanning(spread) / several > 0.3
    assert spanning(packed) == 0
    assert packed.makespan < 1.05 * spread.makespan
