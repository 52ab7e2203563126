"""Limits of worker groups: each test has groups of its own, so that it can set them."""

import re
import time

import pytest

from scalestudy.training.data.loading import EVALUATION_BATCH
from tests.support.groups import group_pool, losses

SLOW = "tests.support.user_models:Slow"


def test_a_trial_over_its_time_is_failed_and_frees_its_workers(ray_session, tmp_path):
    with group_pool(tmp_path, trial_seconds=3.0) as pool:
        ended = pool.train(1, model=SLOW, model_args={"seconds": 0.2}, epochs=1000)
        assert (ended.status, ended.error.kind) == ("failed", "time_limit")
        assert ended.attempts == 1


@pytest.mark.chaos
def test_neither_a_long_evaluation_nor_a_long_start_is_a_stall_but_a_batch_that_hangs_is(ray_session, tmp_path):
    """With two ranks, so that one may also wait for the other; and a frozen rank: test_worker_group_faults.py."""
    evaluated = {"data": "synthetic", "data_args": {"train_samples": 256, "test_samples": 2 * 6 * EVALUATION_BATCH}}
    with group_pool(tmp_path, stalled_seconds=5.0, failures_per_trial=0) as pool:
        slow = {"seconds": 0.0, "evaluating": 1.2, "built": 7.0}
        ended = pool.train(2, model=SLOW, model_args=slow, epochs=1, **evaluated)
        assert (ended.status, ended.attempts, ended.error) == ("finished", 1, None)
        assert ended.epochs[0].eval_seconds > 6 * 1.2 > 5.0
        ended = pool.train(2, model=SLOW, model_args=slow | {"evaluating": 60.0, "built": 0.0}, epochs=1, **evaluated)
        assert (ended.status, ended.error.kind) == ("failed", "stalled")
        assert re.match(r"no progress for [5-8] s while evaluating, after 0 batches", ended.error.message)


@pytest.mark.chaos
def test_a_group_that_idles_longer_than_the_timeout_of_its_process_group_still_serves(ray_session, tmp_path):
    with group_pool(tmp_path, timeout_seconds=3.0) as pool:
        expected = losses(pool.train(2, epochs=1))
        time.sleep(7.0)
        assert losses(pool.train(2, epochs=1)) == expected
        assert list(pool.served().values()) == [2]


@pytest.mark.chaos
def test_sizes_take_turns_where_only_one_fits(ray_session, tmp_path):
    """Of four CPUs three are taken, then two, then three."""
    with group_pool(tmp_path) as pool:
        ended = [pool.train(size, epochs=1) for size in (3, 2, 3)]
    assert [event.status for event in ended] == ["finished"] * 3
    assert [len(event.world.workers) for event in ended] == [3, 2, 3]
    assert losses(ended[0]) == losses(ended[2])
    accuracies = [event.epochs[0].test_metric for event in ended]
    assert max(accuracies) - min(accuracies) < 0.05  # the same global batches, summed in another order
