"""Worker groups that hang, or lose their pool: each test has groups of its own."""

import os
import signal

import pytest

from tests.support.group_faults import controllers_of, slow_trial
from tests.support.groups import group_pool, wait_until
from tests.support.processes import is_alive, named, parent_of


@pytest.mark.chaos
def test_a_worker_that_freezes_before_the_pool_knows_it_is_replaced(ray_session, tmp_path):
    """Its group is known by its tag alone; the trial has lost no attempt, for it has not begun."""
    with group_pool(tmp_path / "logs", start_seconds=25.0) as pool:
        before = set(named(os.getpid(), "ray::RayTrainWorker"))
        trial_id = pool.request(1, epochs=1)
        (victim,) = wait_until(lambda: set(named(os.getpid(), "ray::RayTrainWorker")) - before)
        os.kill(victim, signal.SIGSTOP)
        ended = pool.end_of(trial_id)
        assert (ended.status, ended.attempts) == ("finished", 1)
        wait_until(lambda: not is_alive(victim))


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
        os.kill(pool.pid, signal.SIGKILL)
        assert pool.host.join(15)
        assert pool.host.pool_lost
        wait_until(lambda: not any(map(is_alive, workers.values())), 15)
        wait_until(lambda: len(controllers_of(raylet)) == before - 1, 15)
