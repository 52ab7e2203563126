"""Limits of worker groups: each test has groups of its own, so that it can set them."""

import re
import time

import pytest

from scalestudy.training.data.loading import EVALUATION_BATCH
from tests.support.groups import group_pool, losses

SLOW = "tests.support.user_models:Slow"


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
