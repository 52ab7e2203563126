"""Which trials run side by side in the room that there is, and how many."""

import math

import pytest

from scalestudy.orchestration.cluster.nodes import Grown, Node
from scalestudy.orchestration.study.concurrency import (
    GROWING_CONCURRENCY,
    Room,
    concurrency,
    sharing_rule,
)
from scalestudy.orchestration.study.folders import read_spec


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


GRID = {"name": "x", "sweep": {"num_gpus": [1, 2]}}
ADAPTIVE = {**GRID, "search": {"method": "adaptive"}, "budget": {"trials": 5}, "targets": {"accuracy": [0.9]}}


@pytest.mark.parametrize(
    ("study", "exclusive", "device", "rule"),
    [
        (GRID, "auto", "cpu", "exclusive"),
        (GRID, "auto", "cuda", "packed, then timed"),
        (GRID, True, "cpu", "exclusive"),
        (GRID, True, "cuda", "exclusive"),
        (GRID, False, "cpu", "packed"),
        (GRID, False, "cuda", "packed"),
        (ADAPTIVE, "auto", "cpu", "packed"),
        (ADAPTIVE, "auto", "cuda", "packed"),
        (ADAPTIVE, True, "cpu", "exclusive"),
        (ADAPTIVE, True, "cuda", "exclusive"),
        (ADAPTIVE, False, "cpu", "packed"),
    ],
)
def test_the_rule(study, exclusive, device, rule):
    assert sharing_rule(read_spec({**study, "resources": {"exclusive": exclusive}}), device) == rule
