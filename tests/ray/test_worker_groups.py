"""Real Ray Train workers, real gloo, real signals: what the worker groups promise."""

import asyncio
import math
import os
import signal
import time

import pytest
import ray

from scalestudy.orchestration.groups.actor import PoolClient
from scalestudy.orchestration.groups.events import EpochDone, Retried, Running, Started
from tests.ray.test_loopback import LOOPBACK, listening
from tests.support.group_faults import SLOW, slow_trial
from tests.support.groups import group_pool, losses, wait_until
from tests.support.processes import family_of, named

MODELS = "tests.support.user_models"


@pytest.fixture(scope="module")
def pool_and_fresh(ray_session, tmp_path_factory):
    """A pool, and what its first two workers have computed in their first trial."""
    with group_pool(tmp_path_factory.mktemp("groups")) as pool:
        yield pool, losses(pool.train(2, seed=7))


@pytest.fixture
def pool(pool_and_fresh):
    return pool_and_fresh[0]


@pytest.fixture
def fresh(pool_and_fresh):
    return pool_and_fresh[1]


def test_every_port_is_on_the_loopback_interface(pool):
    """Of all that this process has started, while a group of two workers is there."""
    assert pool.served_by(2)
    ports = listening(set(family_of(os.getpid())))
    open_to_others = {place: process for place, process in ports.items() if place[0] not in LOOPBACK}
    assert not open_to_others
    assert len(set(ports.values())) >= 4, "Ray's head, its raylet, its agents, its workers"


def test_a_trial_in_a_used_group_equals_the_same_trial_in_a_fresh_one(pool, fresh):
    pool.train(2, seed=1, model="lenet", learning_rate=0.3)
    pool.train(2, seed=2, optimizer={"name": "adam"}, learning_rate=0.001, epochs=1)
    assert losses(pool.train(2, seed=7)) == fresh
    assert len(fresh) == 2


def test_a_group_starts_no_helper_that_it_has_no_use_for(pool):
    pool.train(2, epochs=1)
    assert named(os.getpid(), "ray::SynchronizationActor"), "the barrier of the workers"
    assert not [*named(os.getpid(), "ray::DatasetManager"), *named(os.getpid(), "ray::PlacementGroupCleaner")]


def test_a_worker_starts_in_no_environment_of_its_own(pool, tmp_path):
    """It would be started by a process that imports Ray first, and no process that waits for work could serve."""
    pool.train(2, epochs=1, model=f"{MODELS}:notes_its_environment", model_args={"folder": str(tmp_path)})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"0": "{}", "1": "{}"}


def test_a_diverged_trial_leaves_its_group_warm(pool):
    pool.train(2, epochs=1)
    before = pool.served_by(2)
    ended = pool.train(2, learning_rate=1e20, epochs=3)
    assert ended.status == "diverged"
    assert ended.error.kind == "diverged"
    assert "not finite" in ended.error.message
    assert pool.train(2, epochs=1).status == "finished"
    assert pool.served_by(2) == {group: count + 2 for group, count in before.items()}


def test_code_that_exits_on_one_rank_fails_the_trial_at_once_in_its_words_and_the_next_trial_runs(pool):
    """The status 0 is no success either. The other rank's broken collective is not the cause."""
    model = {"model": "tests.support.quitting:ModelForward", "model_args": {"on_rank": 1, "quits": "exits_zero"}}
    ended = pool.train(2, **model)
    assert (ended.status, ended.attempts, ended.failures) == ("failed", 1, ())
    assert (ended.error.kind, ended.error.rank) == ("exception", 1)
    assert ended.error.message.startswith("SystemExit: 0; logs: ")
    assert "quitting.py" in ended.error.traceback
    assert pool.train(2, epochs=1).status == "finished"


def test_a_model_that_cannot_be_built_is_told_for_all_ranks(pool):
    ended = pool.train(2, model="tests.support.user_models:fails_when_built", model_args={})
    assert ended.status == "failed"
    assert ended.error.message.startswith("LookupError: no weights for this model")


def test_a_killed_worker_costs_an_attempt_and_changes_no_record(pool, tmp_path):
    """The second attempt goes on from the first epoch's end. Without checkpoints: tests/long."""
    undisturbed = pool.train(2, model=SLOW, model_args={"seconds": 0.0}, epochs=4)
    trial_id, workers = slow_trial(pool, tmp_path)
    os.kill(workers[1], signal.SIGKILL)
    events = pool.events(trial_id)
    pool.release(trial_id)
    ended = events[-1]
    assert [isinstance(event, Retried) for event in events].count(True) == 1
    assert (ended.status, ended.attempts) == ("finished", 2)
    assert [epoch.epoch for epoch in ended.epochs] == [1, 2, 3, 4]
    assert losses(ended) == losses(undisturbed)
    assert "resumed" in ended.flags


def test_a_released_trial_is_left_within_a_step_and_its_warm_group_serves_like_a_fresh_one(pool, fresh):
    pool.train(2, epochs=1)
    before = pool.served_by(2)
    trial_id = pool.request(2, model=SLOW, model_args={"seconds": 0.3}, epochs=1000)
    pool.events(trial_id, until=lambda event: isinstance(event, Running))
    time.sleep(1.0)
    pool.release(trial_id)
    released = time.monotonic()
    wait_until(lambda: pool.served_by(2) == {group: count + 1 for group, count in before.items()}, 10)
    assert time.monotonic() - released < 3 * 0.3
    assert losses(pool.train(2, seed=7)) == fresh
    assert pool.served_by(2) == {group: count + 2 for group, count in before.items()}


def test_a_stopped_trial_has_the_epochs_up_to_its_rung_and_leaves_the_group_warm(pool, fresh):
    """Epochs of some ten milliseconds: the training has run ahead, and may even be at its end, when it is stopped."""
    groups = set(pool.served_by(2))
    whole = pool.train(2, epochs=6)
    trial_id = pool.request(2, epochs=6)
    pool.events(trial_id, until=lambda event: isinstance(event, EpochDone) and event.record.epoch == 2)
    ended = ray.get(pool.actor.stop.remote(trial_id, 2))
    assert (ended.status, ended.error, ended.attempts) == ("stopped", None, 1)
    assert losses(ended) == losses(whole)[:2]
    assert ray.get(pool.actor.stop.remote(trial_id, 2)) == ended
    assert pool.events(trial_id)[-1] == ended
    pool.release(trial_id)
    assert losses(pool.train(2, seed=7)) == fresh
    assert set(pool.served_by(2)) == groups


def test_what_is_known_of_a_trial(pool):
    ended = pool.train(2, epochs=2)
    assert ended.world.device == "cpu"
    assert ended.world.nodes == 1
    assert [worker.rank for worker in ended.world.workers] == [0, 1]
    assert ended.train_seconds == pytest.approx(sum(epoch.train_seconds for epoch in ended.epochs), abs=1e-5)
    assert 0 < ended.train_seconds < ended.wall_seconds
    assert 0 <= ended.startup_seconds < ended.wall_seconds
    assert math.isfinite(ended.epochs[-1].samples_per_second)
    assert all(epoch.replica_max_diff == 0.0 for epoch in ended.epochs)


def test_reports_of_a_rank_do_not_overtake_each_other(ray_session):
    """Calls of an asynchronous actor do, when one of them takes longer."""

    class SlowPool:
        def __init__(self):
            self.taken = []

        async def report(self, turn, _rank, _post):
            await asyncio.sleep(0.3 if turn.sequence == 1 else 0.0)
            self.taken.append(turn.sequence)

        async def order(self):
            return self.taken

    slow = ray.remote(SlowPool).options(num_cpus=0).remote()
    client = PoolClient(slow, "group", "incarnation", 0)
    for number in (1, 2, 3):
        sent = client.send_in_order(number, Started(resumed=False))
    ray.get(sent)
    assert ray.get(slow.order.remote()) == [1, 2, 3]
