"""Real Ray Train workers and real faults: each has its own word, costs no record and changes none."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import ray

from scalestudy.orchestration.groups.events import Retried
from tests.support.group_faults import SLOW, controllers_of, slow_trial
from tests.support.groups import group_pool, losses, wait_until
from tests.support.processes import is_alive, parent_of

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


def check_went_on(ended, kind, undisturbed, *, resumed=True):
    """Another attempt has finished the trial, and every epoch is there once, as if nothing had happened.

    resumed: from a checkpoint.
    """
    assert (ended.status, ended.attempts, ended.error) == ("finished", 2, None)
    assert [(lost.attempt, lost.kind) for lost in ended.failures] == [(1, kind)]
    assert "; logs: " in ended.failures[0].message
    assert [epoch.epoch for epoch in ended.epochs] == [1, 2, 3, 4]
    assert losses(ended) == undisturbed
    assert ("resumed" in ended.flags) is resumed


def test_a_killed_worker_of_a_trial_without_checkpoints(pool, undisturbed, tmp_path):
    """With checkpoints: tests/ray/test_worker_groups.py."""
    trial_id, workers = slow_trial(pool, tmp_path, checkpointed=False)
    os.kill(workers[1], signal.SIGKILL)
    check_went_on(pool.end_of(trial_id), "worker_lost", undisturbed, resumed=False)


@pytest.mark.chaos
def test_a_frozen_worker(pool, undisturbed, tmp_path):
    trial_id, workers = slow_trial(pool, tmp_path)
    os.kill(workers[1], signal.SIGSTOP)
    frozen_at = time.monotonic()
    pool.events(trial_id, until=lambda event: isinstance(event, Retried))
    assert STALLED - 3 < time.monotonic() - frozen_at < STALLED + 3
    ended = pool.end_of(trial_id)
    check_went_on(ended, "stalled", undisturbed)
    assert re.match(r"rank 1 sent nothing for [5-7] s", ended.failures[0].message)


def test_a_pool_that_was_stopped_for_longer_than_its_limits_blames_no_trial(pool, undisturbed, tmp_path):
    trial_id, _ = slow_trial(pool, tmp_path)
    actor = pool.pid
    os.kill(actor, signal.SIGSTOP)
    try:
        time.sleep(STALLED + 3)
    finally:
        os.kill(actor, signal.SIGCONT)
    ended = pool.end_of(trial_id)
    assert (ended.status, ended.attempts, ended.failures) == ("finished", 1, ())
    assert losses(ended) == undisturbed


def test_a_killed_controller(pool, undisturbed, tmp_path):
    trial_id, workers = slow_trial(pool, tmp_path)
    controllers = controllers_of(parent_of(workers[0]))
    assert len(controllers) == 1
    os.kill(controllers[0], signal.SIGKILL)
    check_went_on(pool.end_of(trial_id), "controller_lost", undisturbed)
    wait_until(lambda: not any(map(is_alive, workers.values())), 20)
    assert ray.available_resources()["CPU"] == 2, "what the dead controller had reserved is free again"


@pytest.mark.chaos
@pytest.mark.parametrize("step", [1, STEPS + 3, 2 * STEPS])
def test_an_exception_on_one_rank_in_the_first_a_middle_and_the_last_step(pool, step):
    """The one rank's exception decides, though the other's collective breaks too; its traceback is where it says.

    Once, without the traceback's file: tests/ray/test_worker_groups.py.
    """
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
    """Not in the epoch's first step: rank 1 would tell of it while rank 0 still sends the record of the one before."""
    ended = pool.train(2, model=BREAKS, model_args={"step": STEPS + 3, "memory": True}, epochs=2)
    assert (ended.status, ended.attempts, ended.error.rank) == ("out_of_memory", 1, 1)
    assert len(ended.epochs) == 1
    assert pool.train(2, epochs=1).status == "finished"
