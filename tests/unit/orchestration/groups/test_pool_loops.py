"""Trials of users' loops in the pool: what their reports and ends come to. A group serves one trial."""

import math

import pytest

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.clock import PoolClock
from scalestudy.orchestration.groups.events import (
    EpochDone,
    LoopCheckpoint,
    LoopEnded,
    LoopReport,
    Member,
    RankFailed,
    Retried,
    TrialError,
)
from scalestudy.orchestration.groups.failures import Loss
from scalestudy.orchestration.groups.model import GroupLimits, TrialOrder, Turn
from scalestudy.orchestration.groups.pool import GroupPool, PoolSettings
from scalestudy.training.config import TrainConfig

LIMITS = GroupLimits(trial_seconds=600, stalled_seconds=60, failures_per_trial=2, trials_per_group=1)
CONFIG = TrainConfig.from_dict(
    {"loop": "my_code:loop", "metrics": {"accuracy": "acc"}, "batch_size": 64, "learning_rate": 0.1, "epochs": 9}
)


class Hands:
    """What the pool would have done on a cluster."""

    def __init__(self):
        self.killed, self.removed = [], []

    def kill(self, actor):
        self.killed.append(actor)

    def remove_workers(self, tag):
        self.removed.append(tag)


class Loops:
    """A pool with one trial of a user's loop, whose workers are there."""

    def __init__(self, **order):
        self.hands = Hands()
        node = Node(node_id="n", slots=2)
        self.pool = GroupPool([node], PoolSettings(limits=LIMITS, exclusive=False), self.hands, PoolClock())
        self.pool.request(TrialOrder(trial_id="t", num_workers=1, config=CONFIG, **order))
        self.request = self.pool.requests["t"]
        self.start_group("life 1")

    def start_group(self, life):
        self.pool.reconcile()
        (self.start,) = self.pool.starts
        self.pool.starts = []
        self.pool.controller_started(self.group.group_id, "controller")
        self.register(life)

    def lose_worker(self):
        """A worker dies, and Ray Train is told not to start the group again."""
        group = self.group
        self.pool.workers_lost(
            group.group_id, Loss(incarnation=group.incarnation, cause="worker_lost", out_of_memory={})
        )
        assert group.state == "stopping"
        self.pool.group_closed(group.group_id, "NotWantedError", "worker_lost")

    @property
    def group(self):
        return self.pool.groups[self.start.group_id]

    def register(self, life):
        member = Member(rank=0, node="n", host="n", pid=1, cores=2, device="cpu", threads=1)
        self.pool.register(self.start.group_id, life, member, f"worker of {life}")
        self.pool.reconcile()

    def tell(self, post):
        group = self.group
        turn = Turn(group_id=group.group_id, incarnation=group.incarnation, sequence=group.assignment.sequence)
        self.pool.report(turn, 0, post)
        self.pool.reconcile()

    def report(self, value, **more):
        number = len(self.request.record.epochs) + 1
        values = {} if value is None else {"accuracy": value}
        self.tell(LoopReport(**{"seconds": float(number), "keys": ("acc",), "values": values, **more}))

    def epochs(self):
        return [event.record.epoch for event in self.request.events if isinstance(event, EpochDone)]


def test_reports_are_epochs_and_the_end_closes_the_trial_and_its_group():
    loops = Loops()
    loops.report(0.5)
    loops.report(0.6)
    loops.tell(LoopEnded())
    assert (loops.request.ended.status, loops.epochs()) == ("finished", [1, 2])
    assert loops.group.state == "stopping"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_last_metric_that_is_not_finite_is_divergence(value):
    loops = Loops()
    loops.report(0.5)
    loops.report(value)
    loops.tell(LoopEnded())
    assert loops.request.ended.status == "diverged"
    assert loops.request.ended.error.message == f"accuracy is {value:g} at report 2, its last"


def test_an_end_without_the_metric_fails():
    loops = Loops()
    loops.report(None)
    loops.tell(LoopEnded())
    assert (loops.request.ended.status, loops.request.ended.error.kind) == ("failed", "exception")
    assert loops.request.ended.error.message.startswith("no report of my_code:loop has 'acc': they have acc")


def test_an_end_after_a_resumed_attempt_without_a_further_report_is_an_end():
    loops = Loops()
    loops.report(0.5, checkpoint="run/1")
    loops.lose_worker()
    loops.start_group("life 2")
    loops.tell(LoopEnded())
    assert (loops.request.ended.status, loops.epochs()) == ("finished", [1])


def test_the_target_ends_the_trial_and_the_loop():
    loops = Loops(stop_at=0.6)
    for value in (0.6, 0.5, 0.6, 0.7):
        assert loops.group.assignment is not None
        loops.report(value)
    assert (loops.request.ended.status, loops.epochs()) == ("at_target", [1, 2, 3, 4])
    assert loops.group.assignment is None
    assert loops.group.state == "stopping"


def test_a_timing_run_ends_after_its_reports():
    loops = Loops(reports=2)
    loops.report(0.1)
    assert loops.request.ended is None
    loops.report(0.2)
    assert (loops.request.ended.status, loops.group.state) == ("finished", "stopping")


def test_a_target_that_the_last_epoch_meets_is_left_to_the_loop_s_end():
    loops = Loops(stop_at=0.6)
    for _ in range(7):
        loops.report(0.1)
    loops.report(0.6)
    loops.report(0.6)  # the ninth of nine
    assert loops.request.ended is None


def test_after_a_lost_worker_another_group_goes_on_from_the_checkpoint():
    loops = Loops()
    loops.report(0.5, checkpoint="run/1")
    loops.report(0.6)
    loops.lose_worker()
    assert [type(event) for event in loops.request.events[-1:]] == [Retried]
    loops.start_group("life 2")
    assert loops.group.trial_id == "t"
    assert len(loops.pool.groups) == 1
    assert loops.group.assignment.loop.checkpoint == LoopCheckpoint(address="run/1", epoch=1)
    assert loops.group.assignment.checkpoint == "run/1", "which its ranks get"
    loops.report(0.6, resumed=True)  # the second again
    loops.report(0.7, resumed=True)
    assert loops.epochs() == [1, 2, 3]
    assert "resumed" in loops.request.record.flags


def test_a_group_that_fails_in_mid_trial_puts_off_no_other_trial():
    loops = Loops()
    loops.pool.request(TrialOrder(trial_id="other", num_workers=1, config=CONFIG))
    loops.pool.nodes = [Node(node_id="n", slots=1)]
    loops.report(0.5)
    loops.pool.group_closed(loops.group.group_id, "GetTimeoutError", "worker_lost")
    other = loops.pool.requests["other"]
    assert (other.events, other.put_off) == ([], False)
    assert loops.pool.waiting == ["t", "other"]


def test_checkpoints_of_open_trials_are_kept():
    loops = Loops()
    loops.report(0.5, checkpoint="run/1")
    assert loops.pool.kept_checkpoints() == ["run/1"]
    loops.tell(LoopEnded())
    assert loops.pool.kept_checkpoints() == []


def test_data_sets_that_can_not_be_made_end_every_trial():
    loops = Loops()
    loops.pool.request(TrialOrder(trial_id="waits", num_workers=2, config=CONFIG))
    error = TrialError(kind="exception", message="workload.datasets: my_data:train: ValueError: no data")
    loops.pool.datasets_failed(error)
    loops.pool.request(TrialOrder(trial_id="comes", num_workers=1, config=CONFIG))
    for trial_id in ("waits", "comes"):
        ended = loops.pool.requests[trial_id].ended
        assert (ended.status, ended.error) == ("failed", error)
    assert loops.request.ended is None  # it has its data sets


def test_a_checkpoint_that_came_without_the_metric_is_gone_on_from_too():
    loops = Loops()
    loops.report(0.5)
    loops.report(None, seconds=1.5, checkpoint="run/1")
    loops.lose_worker()
    loops.start_group("life 2")
    assert loops.group.assignment.loop.checkpoint == LoopCheckpoint(address="run/1", epoch=1, seconds=0.5)


def test_a_later_run_goes_on_from_the_journal_s_checkpoint():
    first = Loops()
    first.report(0.5, checkpoint="run/1")
    again = Loops(so_far=first.request.record)
    assert again.group.assignment.loop.checkpoint == LoopCheckpoint(address="run/1", epoch=1)


def test_an_exception_ends_trial_and_group():
    loops = Loops()
    loops.tell(RankFailed(kind="exception", message="SystemExit: 0"))
    assert (loops.request.ended.status, loops.request.ended.attempts) == ("failed", 1)
    assert loops.group.state == "stopping"  # so Ray Train starts no workers again


def test_a_loop_that_is_stopped_ends_at_once():
    loops = Loops()
    loops.report(0.5)
    loops.pool.stop("t", 1)
    assert (loops.request.ended.status, loops.request.ended.error) == ("stopped", None)
    assert loops.hands.killed == ["controller", "worker of life 1"]
    assert not loops.pool.groups
