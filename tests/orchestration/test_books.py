"""Stage 4: the books of the worker groups, driven in this process, one thing at a time."""

import pytest

from tests.support.books_study import (
    STALLED,
    TRIAL_SECONDS,
    no_waiting,
    study_run,
    trials,
    until_training,
)
from tests.support.fake_ray_train import epoch_record

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


def test_a_trial_is_trained_and_ended():
    study = study_run(trials(2), slots={"a": 2})
    kinds = [event["type"] for event in study.events["t0"]]
    assert kinds == ["running", "epoch", "epoch", "ended"]
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], ended["error"]) == ("finished", 1, None)
    assert [worker["rank"] for worker in ended["world"]["workers"]] == [0, 1]
    assert ended["startup_seconds"] > 0


def test_trials_of_one_size_share_one_group():
    study = study_run(trials(2, 2, 2), slots={"a": 2})
    assert {worker.fit.group_id for worker in study.ray.history} == {"group-1-of-2"}
    assert [worker.served for worker in study.ray.history] == [3, 3]


def test_another_size_takes_the_place_of_an_idle_group():
    study = study_run(trials(1, 2, 1), slots={"a": 2})
    assert [study.ended(trial)["status"] for trial in study.events] == ["finished"] * 3
    assert not study.ray.overbooked


def test_a_group_is_replaced_after_its_number_of_trials():
    study = study_run(trials(1, 1, 1, 1, 1), slots={"a": 1}, trials_per_group=2)
    assert [len(worker.taken) for worker in study.ray.history] == [2, 2, 1]


def test_the_first_group_is_ordered_before_a_trial_asks():
    async def prepare(study):
        await study.groups.prepare(2)
        await study.ray.driver()
        assert list(study.ray.fits) == ["group-1-of-2"]
        await study.lease("t0", 2)

    study = study_run(prepare, slots={"a": 2})
    assert len(study.ray.history) == 2


def test_the_driver_learns_how_long_a_start_took():
    study = study_run(trials(1), slots={"a": 1})
    assert study.ray.cold_starts.keys() == {"group-1-of-1"}
    assert study.ray.cold_starts["group-1-of-1"] > 0


@pytest.mark.parametrize(
    ("fate", "status", "kind"),
    [("exception", "failed", "exception"), ("out_of_memory", "out_of_memory", "out_of_memory")],
)
def test_an_exception_is_final_and_costs_the_group_only(fate, status, kind):
    async def prepare(study):
        await study.lease("t0", 2, fate)
        await study.lease("t1", 2)

    study = study_run(prepare, slots={"a": 2})
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"]) == (status, 1)
    assert (ended["error"]["kind"], ended["error"]["rank"]) == (kind, 1)
    assert study.ended("t1")["attempts"] == 1
    assert [worker.incarnation for worker in study.ray.history] == [
        "group-1-of-2-life-1", "group-1-of-2-life-1", "group-1-of-2-life-2", "group-1-of-2-life-2"
    ]  # fmt: skip


def test_a_diverged_trial_leaves_the_group_warm():
    async def prepare(study):
        await study.lease("t0", 1, "diverged")
        await study.lease("t1", 1)

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t0")["status"] == "diverged"
    assert len(study.ray.history) == 1


def test_a_lost_worker_means_another_attempt_without_doubled_epochs():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        while study.ray.progress.get((fit.workers[0].incarnation, 1), 0) < 2:
            for worker in fit.workers:
                await study.ray.step(worker)
        fit.workers[1].alive = False

    study = study_run(prepare, slots={"a": 2})
    kinds = [event["type"] for event in study.events["t0"]]
    assert kinds == ["running", "epoch", "retry", "running", "epoch", "ended"]
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"]) == ("finished", 2)
    assert [epoch["epoch"] for epoch in ended["epochs"]] == [1, 2]
    retry = next(event for event in study.events["t0"] if event["type"] == "retry")
    assert "Connection closed by peer" in retry["error"]["message"]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_trial_has_its_number_of_lost_attempts(failures):
    async def prepare(study):
        await study.lease("t0", 1)
        for _ in range(failures + 1):
            await until_training(study, "t0")
            (fit,) = study.ray.fits.values()
            fit.workers[0].alive = False
            await study.ray.restart(fit)
            for action in study.ray.actions():
                await action()

    study = study_run(prepare, slots={"a": 1}, failures=failures)
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], ended["error"]["kind"]) == ("failed", failures + 1, "worker_lost")


def test_a_frozen_worker_is_found_and_its_trial_tried_again():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        fit.workers[1].frozen = True
        study.clock.now += STALLED + 1
        await study.tick()
        assert not any(worker.alive for worker in fit.workers)

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t0")["status"] == "finished"
    (retry,) = [event for event in study.events["t0"] if event["type"] == "retry"]
    assert retry["error"]["kind"] == "stalled"


def test_progress_keeps_a_slow_trial_alive_until_its_time_is_up():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        began = study.clock.now
        while study.clock.now - began < TRIAL_SECONDS - STALLED:
            study.clock.now += STALLED - 1
            await study.ray.step(fit.workers[0])
            await study.follow("t0")
            await study.tick()
        assert fit.workers[0].alive
        study.clock.now += STALLED - 1
        await study.ray.step(fit.workers[0])
        study.clock.now += STALLED - 1
        await study.tick()
        assert not fit.workers[0].alive

    study = study_run(prepare, slots={"a": 1})
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], ended["error"]["kind"]) == ("failed", 1, "time_limit")


def test_a_group_that_never_starts_fails_the_trials_of_its_size_only():
    async def prepare(study):
        study.ray.unstartable.add(2)
        await study.lease("t0", 2)
        await study.lease("t1", 2)
        await study.lease("t2", 1)

    study = study_run(prepare, slots={"a": 2})
    for trial in ("t0", "t1"):
        ended = study.ended(trial)
        assert (ended["status"], ended["error"]["kind"], ended["attempts"]) == ("failed", "group_start", 1)
        assert "no workers" in ended["error"]["message"]
    assert study.ended("t2")["status"] == "finished"


def test_a_released_trial_is_left_within_a_step_and_records_nothing_more():
    async def prepare(study):
        await study.lease("t0", 2, "hangs")
        await until_training(study, "t0")
        await study.lease("t1", 2)
        await study.release("t0")
        leader, peer = study.ray.history
        await study.ray.step(leader)  # it has only just begun, and asks
        await study.tick()
        await study.ray.step(leader)
        assert (leader.order, leader.alive, peer.alive) == (None, True, True)
        assert study.events["t0"] == []

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t1")["status"] == "finished"
    assert [worker.served for worker in study.ray.history] == [2, 2]  # the group stayed warm


def test_a_waiting_trial_can_be_released():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await study.lease("t1", 1)
        await study.release("t1")
        await study.release("t0")
        await study.lease("t2", 1)

    study = study_run(prepare, slots={"a": 1})
    taken = {trial for worker in study.ray.history for _, trial, _ in worker.taken}
    assert taken == {"t2"}


def test_two_trials_at_a_time_on_one_host_are_flagged():
    study = study_run(trials(1, 1), slots={"a": 2})
    assert [study.ended(trial)["flags"] for trial in ("t0", "t1")] == [["shared_node"]] * 2


def test_undisturbed_trials_are_not_flagged():
    study = study_run(trials(1, 1), slots={"a": 2}, exclusive=True)
    assert [study.ended(trial)["flags"] for trial in ("t0", "t1")] == [[]] * 2


def test_reports_of_an_earlier_life_are_dropped():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        old = fit.workers[0]
        old.alive = False
        await study.ray.restart(fit)
        await until_training(study, "t0")
        late = {"type": "epoch", "epoch": epoch_record(7)}
        for sequence in (old.served, fit.workers[0].served):
            await study.groups.post(fit.group_id, old.incarnation, 0, sequence, late)
        assert await study.groups.next_trial(fit.group_id, old.incarnation, 0) is None

    study = study_run(prepare, slots={"a": 1})
    assert [epoch["epoch"] for epoch in study.ended("t0")["epochs"]] == [1, 2]


def test_a_rank_that_fails_after_its_trial_has_ended_does_not_harm_the_next_one():
    async def prepare(study):
        await study.lease("t0", 2)
        await study.lease("t1", 2)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        first, second = fit.workers
        while second.order is None or first.served < 2:
            await study.ray.step(first)
            await study.ray.step(second) if second.order is None else None
        assert (first.served, second.served) == (2, 1)  # the last rank has not put the first trial down
        await study.ray.fail(second, "exception", "ValueError: late")

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t1")["status"] == "finished"


def test_a_late_registration_of_an_earlier_life_does_not_stop_the_new_one():
    async def prepare(study):
        await study.lease("t0", 2)
        await study.ray.driver()
        (fit,) = study.ray.fits.values()
        first, second = fit.workers
        await study.ray.step(first)
        second.alive = False
        await study.ray.restart(fit)
        await study.ray.step(fit.workers[0])
        await study.groups.register(fit.group_id, second.incarnation, 1, study.ray.member(second), second)

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t0")["status"] == "finished"


def test_a_rank_of_an_unknown_group_is_told_to_stop():
    async def prepare(study):
        assert await study.groups.next_trial("group-9-of-1", "x", 0) == {"stop": True}
        await study.groups.post("group-9-of-1", "x", 0, 1, {"type": "progress"})

    study_run(prepare, slots={"a": 1})


def test_the_best_metric_so_far_goes_with_the_next_trial():
    async def prepare(study):
        await study.lease("t0", 1)
        await study.settle()
        await study.lease("t1", 1, "hangs")
        await until_training(study, "t1")
        (worker,) = study.ray.history
        assert worker.order["best"] == 0.5
        await study.release("t1")

    study_run(prepare, slots={"a": 1})
