"""The sweep as Tune asks it for trials. What it does with a whole study is in tests/ray."""

from types import SimpleNamespace

from ray.tune.search import Searcher

from scalestudy.orchestration.groups.model import TrialOrder
from scalestudy.orchestration.sweep.sweep import _searcher


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
