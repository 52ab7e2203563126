"""What an engine takes from a spec."""

import math
from types import SimpleNamespace

import pytest

from scalestudy.experiments.spec.sections import Limits
from scalestudy.orchestration.cluster.nodes import Grown, Node
from scalestudy.orchestration.study.concurrency import Room
from scalestudy.orchestration.study.engine import DAY, Engine, collective_seconds


@pytest.mark.parametrize(
    ("minutes", "stalled", "seconds"), [(60.0, 120.0, 3600.0), (0.1, 120.0, 120.0), (1e12, 120.0, DAY)]
)
def test_a_rank_waits_for_another_as_long_as_that_may_load_or_write(minutes, stalled, seconds):
    assert collective_seconds(Limits(trial_minutes=minutes, stalled_seconds=stalled)) == seconds


def test_while_a_cluster_grows_one_trial_waits_beyond_those_with_room():
    def at_a_time(grown, *slots):
        nodes = [Node(node_id=str(number), slots=count) for number, count in enumerate(slots)]
        room = Room(nodes=(), exclusive=False)
        engine = object.__new__(Engine)  # starts nothing
        vars(engine).update(_grown=grown, _sizes=[2, 4], _room=room, host=SimpleNamespace(room=nodes))
        return engine._at_a_time()

    grown = Grown(machines=9, slots=18, largest_group=18)
    assert [at_a_time(grown), at_a_time(grown, 2), at_a_time(grown, 2, 2, 2)] == [2, 2, 4]
    assert at_a_time(None, 2) == math.inf, "without an autoscaler the room at the start decides"
