"""Real Ray Train workers and real faults: each has its own word, costs no record and changes none."""

import os
import signal
import time
from pathlib import Path

import pytest
import ray

from scalestudy.orchestration.groups.events import EpochDone, Retried
from tests.support.groups import group_pool, losses, wait_until
from tests.support.processes import children_of, is_alive, named, parent_of, title_of

SLOW = "tests.support.user_models:Slow"
BREAKS = "tests.support.faulty_models:BreaksInStep"
STALLED = 5.0
STEPS = 6  # an epoch of the digits in batches of 256


@pytest.fixture(scope="module")
def pool(ray_session, tmp_path_factory):
    with group_pool(tmp_path_factory.mktemp("groups"), stalled_seconds=STALLED) as pool:
        yield pool


@pytest.fixture(scope="module")
def undisturbed(pool):
    """What the slow trial computes if nothing happens to it."""
    return losses(pool.train(2, model=SLOW, model_args={"seconds": 0.0}, epochs=4))


def slow_trial(pool, folder):
    """A trial of two workers in its second epoch, with a checkpoint; returns its id and its workers' processes."""
    pids = folder / "pids"
    pids.mkdir()
    arguments = {"seconds": 0.1, "pids": str(pids)}
    trial_id = pool.request(2, folder / "checkpoints", model=SLOW, model_args=arguments, epochs=4)
    pool.events(trial_id, until=lambda event: isinstance(event, EpochDone))
    wait_until(lambda: list((folder / "checkpoints").glob("*/manifest.json")))
    ranks = dict(path.name.split("-") for path in pids.iterdir())
    return trial_id, {int(rank): int(pid) for rank, pid in ranks.items()}


def check_went_on(ended, kind, undisturbed):
    """The next attempt went on from the checkpoint, and every epoch is there once, as if nothing had happened."""
    assert (ended.status, ended.attempts, ended.error) == ("finished", 2, None)
    assert [(lost.attempt, lost.kind) for lost in ended.failures] == [(1, kind)]
    assert "; logs: " in ended.failures[0].message
    assert [epoch.epoch for epoch in ended.epochs] == [1, 2, 3, 4]
    assert losses(ended) == undisturbed
    assert ("resumed" in ended.flags) is (kind != "tune_trial")


def test_a_killed_worker(pool, undisturbed, tmp_path):
    trial_id, workers = slow_trial(pool, tmp_path)
    os.kill(workers[1], signal.SIGKILL)
    check_went_on(pool.end_of(trial_id), "worker_lost", undisturbed)


def test_a_frozen_worker(pool, undisturbed, tmp_path):
    trial_id, workers = slow_trial(pool, tmp_path)
    os.kill(workers[1], signal.SIGSTOP)
    frozen_at = time.monotonic()
    pool.events(trial_id, until=lambda event: isinstance(event, Retried))
    assert STALLED - 3 < time.monotonic() - frozen_at < STALLED + 3
    check_went_on(pool.end_of(trial_id), "stalled", undisturbed)


def test_a_killed_controller(pool, undisturbed, tmp_path):
    trial_id, workers = slow_trial(pool, tmp_path)
    controllers = controllers_of(parent_of(workers[0]))
    assert len(controllers) == 1
    os.kill(controllers[0], signal.SIGKILL)
    check_went_on(pool.end_of(trial_id), "controller_lost", undisturbed)
    wait_until(lambda: not any(map(is_alive, workers.values())), 20)
    assert ray.available_resources()["CPU"] == 2, "what the dead controller had reserved is free again"


def test_a_tune_process_that_is_replaced_follows_the_same_training(pool, undisturbed, tmp_path):
    trial_id, workers = slow_trial(pool, tmp_path)
    pool.follow_anew(trial_id)
    ended = pool.end_of(trial_id)
    check_went_on(ended, "tune_trial", undisturbed)
    assert all(map(is_alive, workers.values()))


@pytest.mark.parametrize("step", [1, STEPS + 3, 2 * STEPS])
def test_an_exception_on_one_rank_in_the_first_a_middle_and_the_last_step(pool, step):
    """The one rank's exception decides, though the other's collective breaks too; its traceback is where it says."""
    ended = pool.train(2, model=BREAKS, model_args={"step": step}, epochs=2)
    assert (ended.status, ended.attempts) == ("failed", 1)
    assert (ended.error.kind, ended.error.rank) == ("exception", 1)
    assert ended.failures == ()
    assert [epoch.epoch for epoch in ended.epochs] == list(range(1, (step - 1) // STEPS + 1))
    message, _, log = ended.error.message.partition("; logs: ")
    assert message == "ArithmeticError: it can't go on"
    text = Path(log).read_text("utf-8")
    assert "attempt 1, rank 1" in text
    assert "faulty_models.py" in text
    assert "raise" in text


def test_out_of_memory_on_one_rank_is_a_result(pool):
    ended = pool.train(2, model=BREAKS, model_args={"step": STEPS + 1, "memory": True}, epochs=2)
    assert (ended.status, ended.attempts, ended.error.rank) == ("out_of_memory", 1, 1)
    assert len(ended.epochs) == 1
    assert pool.train(2, epochs=1).status == "finished"


def test_a_worker_that_freezes_before_the_pool_knows_it_is_replaced(ray_session, tmp_path):
    """Its group is known by its tag alone; the trial has lost no attempt, for it has not begun."""
    with group_pool(tmp_path / "logs", start_seconds=25.0) as pool:
        before = set(named(os.getpid(), "ray::RayTrainWorker"))
        trial_id = pool.request(1, epochs=1)
        (victim,) = wait_until(lambda: set(named(os.getpid(), "ray::RayTrainWorker")) - before)
        os.kill(victim, signal.SIGSTOP)
        ended = pool.end_of(trial_id)
        assert (ended.status, ended.attempts) == ("finished", 1)
        assert not is_alive(victim)


def test_a_group_that_hangs_in_its_start_does_not_hold_the_end(ray_session, tmp_path):
    """Its controller waits for a frozen worker, and `fit()` for the controller; both end before Ray is shut down."""
    with group_pool(tmp_path / "logs") as pool:
        before = set(named(os.getpid(), "ray::RayTrainWorker"))
        pool.request(1, epochs=1)
        (victim,) = wait_until(lambda: set(named(os.getpid(), "ray::RayTrainWorker")) - before)
        os.kill(victim, signal.SIGSTOP)
        assert pool.host.close(3)
        wait_until(lambda: not is_alive(victim))


def test_without_its_pool_a_group_ends_and_leaves_nothing_behind(ray_session, tmp_path):
    """Killed in the middle of a training: no rank is left in a collective, and Ray Train starts none again."""
    with group_pool(tmp_path / "logs", stalled_seconds=60.0) as pool:
        _, workers = slow_trial(pool, tmp_path)
        raylet = parent_of(workers[0])
        before = len(controllers_of(raylet))
        os.kill(ray.get(pool.actor.__ray_call__.remote(lambda actor: os.getpid())), signal.SIGKILL)
        assert pool.host.join(15)
        assert pool.host.pool_lost
        wait_until(lambda: not any(map(is_alive, workers.values())), 15)
        wait_until(lambda: len(controllers_of(raylet)) == before - 1, 15)


def controllers_of(raylet):
    """The Ray Train controllers of a raylet."""
    return [pid for pid in children_of(raylet) if "TrainController" in title_of(pid)]
