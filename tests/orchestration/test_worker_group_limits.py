"""Limits of worker groups: each test has groups of its own, so that it can set them."""

import os
import signal
import time

from tests.support.groups import losses, wait_until, worker_groups

SLOW = "tests.support.user_models:Slow"


def test_a_frozen_worker_is_found_by_its_stall(ray_session, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    with worker_groups(tmp_path / "logs", stalled_seconds=4.0, failures_per_trial=0) as desk:
        trial_id = desk.lease(2, model=SLOW, model_args={"seconds": 0.05, "pids": str(pids)}, epochs=30)
        desk.events(trial_id, until=lambda event: event["type"] == "epoch")
        victim = next(path for path in pids.iterdir() if path.name.startswith("1-"))
        os.kill(int(victim.name.split("-")[1]), signal.SIGSTOP)
        ended = desk.events(trial_id)[-1]
        assert (ended["status"], ended["error"]["kind"]) == ("failed", "stalled")
        desk.groups.release.remote(trial_id)
        assert desk.train(2, epochs=1)["status"] == "finished"


def test_a_trial_over_its_time_is_failed_and_frees_its_workers(ray_session, tmp_path):
    with worker_groups(tmp_path, trial_seconds=3.0) as desk:
        ended = desk.train(1, model=SLOW, model_args={"seconds": 0.2}, epochs=1000)
        assert (ended["status"], ended["error"]["kind"]) == ("failed", "time_limit")
        assert ended["attempts"] == 1


def test_a_group_that_idles_longer_than_the_timeout_of_its_process_group_still_serves(ray_session, tmp_path):
    with worker_groups(tmp_path, timeout_seconds=3.0) as desk:
        expected = losses(desk.train(2, epochs=1))
        time.sleep(7.0)
        assert losses(desk.train(2, epochs=1)) == expected
        assert list(desk.served().values()) == [2]


def test_a_group_is_replaced_after_its_number_of_trials(ray_session, tmp_path):
    with worker_groups(tmp_path, trials_per_group=1) as desk:
        first = desk.train(1, epochs=1)
        second = desk.train(1, epochs=1)
        assert losses(first) == losses(second)
        wait_until(lambda: "group-1-of-1" not in desk.served())
