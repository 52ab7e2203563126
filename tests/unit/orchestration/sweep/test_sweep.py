"""The sweep as Tune asks it for trials. What it does with a whole study is in tests/ray."""

import json
from types import SimpleNamespace

import pytest
from ray.tune.search import Searcher

from scalestudy.orchestration.groups.events import EpochDone, to_plain
from scalestudy.orchestration.groups.model import TrialOrder
from scalestudy.orchestration.sweep.sweep import _searcher, _stopper
from tests.support.epochs import epoch_of


def test_a_trial_is_given_while_fewer_run_than_there_is_use_for():
    order = TrialOrder(trial_id="t", num_workers=1, config=None)
    sweep = SimpleNamespace(running=1, next_order=lambda: order, is_over=False)
    room = SimpleNamespace(now=1)
    searcher = _searcher(sweep, lambda: room.now)
    assert searcher.suggest("1") is None, "not FINISHED: Tune asks again"
    room.now = 2
    assert searcher.suggest("1") == {"trial_id": "t", "order": order}
    sweep.next_order, sweep.is_over, sweep.running = lambda: None, True, 0
    assert searcher.suggest("1") == Searcher.FINISHED


@pytest.mark.parametrize("stops", [True, False])
def test_every_result_is_delivered_and_the_answer_is_whether_its_trial_stops(stops):
    delivered, event = [], EpochDone(record=epoch_of(3))
    sweep = SimpleNamespace(deliver=lambda *told: delivered.append(told) or stops)
    stopper = _stopper(sweep, lambda: False)
    assert stopper("tune's id", {"of": "t", "event": json.dumps(to_plain(event))}) == stops
    assert delivered == [("t", event)]
    assert stopper("tune's id", {"done": True}) is False, "a process that ended without a report"
    assert len(delivered) == 1
