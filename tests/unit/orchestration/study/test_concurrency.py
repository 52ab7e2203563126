"""Which trials run side by side in the room that there is, and how many."""

import math

import pytest

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.cluster.nodes import Grown, Node
from scalestudy.orchestration.study.concurrency import (
    GROWING_CONCURRENCY,
    Room,
    concurrency,
    timing_rule,
    trainings_rule,
)


def room(*slots, exclusive):
    nodes = tuple(Node(node_id=f"n{number}", slots=each) for number, each in enumerate(slots))
    return Room(nodes=nodes, exclusive=exclusive)


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


UNKNOWN = Grown(machines=math.inf, slots=math.inf, largest_group=math.inf)


@pytest.mark.parametrize(
    ("slots", "exclusive", "grown", "expected"),
    [
        ((), False, Grown(machines=4, slots=8, largest_group=8), 4),
        ((), True, Grown(machines=4, slots=8, largest_group=8), 4),
        ((2,), True, Grown(machines=3, slots=6, largest_group=6), 3),
        ((9,), False, Grown(machines=1, slots=2, largest_group=2), 4),  # it is larger than its autoscaler says
        ((), False, UNKNOWN, GROWING_CONCURRENCY),
        ((2,), True, UNKNOWN, GROWING_CONCURRENCY),
    ],
)
def test_trials_at_a_time_on_a_cluster_that_may_grow(slots, exclusive, grown, expected):
    assert concurrency([2, 3], room(*slots, exclusive=exclusive), grown) == expected


# --- side by side -----------------------------------------------------------------------------------------------------


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
    assert timing_rule(Resources(exclusive=exclusive), device) == rule


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
    assert trainings_rule(resources, device, trains_for_all=True) == rule
    assert trainings_rule(resources, device, trains_for_all=False) == timing_rule(resources, device)
