"""Stage 4: the books of the worker groups: attempts that are lost, and what earlier engines have left."""

import pytest

from scalestudy.orchestration.groups import pool
from scalestudy.orchestration.groups.model import GroupLimits, Lease
from tests.support.books_study import STALLED, lost, no_waiting, study_run, trials, until_training
from tests.support.fake_ray_train import FakeFit, epoch_record

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


# --- what is lost ------------------------------------------------------------------------------------------------


def test_every_cause_has_a_budget_of_its_own():
    """Two dead workers, two frozen ones and two dead controllers: two of each are allowed."""

    async def prepare(study):
        await study.lease("t0", 1)
        for cause in ["worker_lost", "stalled", "controller_lost"] * 2:
            await until_training(study, "t0")
            (fit,) = study.ray.fits.values()
            if cause == "controller_lost":
                await study.ray.give_up(fit, "ActorDiedError", cause)
                continue
            fit.workers[0].alive = cause == "stalled"
            fit.workers[0].frozen = cause == "stalled"
            study.clock.now += STALLED + 1 if cause == "stalled" else 0
            await study.tick()

    study = study_run(prepare, slots={"a": 1}, failures=2)
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], ended["error"]) == ("finished", 7, None)
    assert lost(ended) == list(enumerate(["worker_lost", "stalled", "controller_lost"] * 2, start=1))
    assert ended["failures"][0] == {
        "attempt": 1, "kind": "worker_lost", "message": "a worker process died (attempt 1)", "rank": None
    }  # fmt: skip


def test_a_trial_without_losses_has_no_list_of_them():
    study = study_run(trials(1), slots={"a": 1})
    assert "failures" not in study.ended("t0")


def test_the_ranks_counts_of_kernel_kills_are_those_of_the_trial_in_hand():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        counted = {"node": "a", "file": "/events", "kills": 3}
        await study.ray.post(fit.workers[0], {"type": "begun", "kernel_kills": counted})
        assert await study.groups.kernel_kills(fit.group_id) == {0: counted}
        assert await study.groups.kernel_kills("group-9-of-1") == {}

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t0")["status"] == "finished"


def test_a_worker_killed_for_memory_is_a_result():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        report = {1: "OutOfMemoryError: the node was low on memory"}
        assert await study.groups.workers_lost(fit.group_id, fit.workers[0].incarnation, report)

    study = study_run(prepare, slots={"a": 2})
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"]) == ("out_of_memory", 1)
    assert (ended["error"]["kind"], ended["error"]["rank"]) == ("out_of_memory", 1)


def test_a_controller_that_dies_at_every_start_fails_the_trials_of_its_size():
    async def prepare(study):
        await study.lease("t0", 2)
        for number in range(pool.STARTS_WITHOUT_SERVICE):
            assert not study.events["t0"]
            await study.ray.driver()
            (fit,) = study.ray.fits.values()
            assert fit.group_id == f"group-{number + 1}-of-2"
            await study.ray.give_up(fit, "ActorDiedError: controller", "controller_lost")

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t0")["error"]["kind"] == "group_start"


def test_what_a_dead_controller_has_reserved_is_given_back():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        await study.ray.give_up(fit, "ActorDiedError", "controller_lost")
        assert study.vacated == [fit.mark]

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t0")["status"] == "finished"
    assert len(study.vacated) == 1


def test_workers_that_hang_in_their_start_are_started_anew():
    """One is frozen before the books know it: the group is known by its mark alone."""

    async def prepare(study):
        await study.lease("t0", 1)
        await study.tick()
        study.clock.now += GroupLimits.start_seconds - 1
        await study.tick()
        assert study.vacated == []
        study.clock.now += 2
        await study.tick()
        await study.tick()
        (mark,) = study.vacated
        assert mark == next(iter(study.groups._ledger.groups.values())).mark

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t0")["status"] == "finished"
    assert study.ended("t0")["attempts"] == 1


def test_messages_say_where_the_logs_are():
    async def prepare(study):
        study.groups._ledger.logs = "runs/x/driver.log"
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        fit.workers[0].alive = False
        await study.lease("t1", 1, "exception")

    study = study_run(prepare, slots={"a": 1}, failures=0)
    for trial_id in ("t0", "t1"):
        assert study.ended(trial_id)["error"]["message"].endswith("; logs: runs/x/driver.log")


# --- nodes -------------------------------------------------------------------------------------------------------


def test_a_lost_node_costs_an_attempt_and_its_group():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_training(study, "t0")
        await study.ray.lose_node("a")

    study = study_run(prepare, slots={"a": 2, "b": 2})
    ended = study.ended("t0")
    assert (ended["status"], lost(ended)) == ("finished", [(1, "node_lost")])
    assert {worker["node"] for worker in ended["world"]["workers"]} == {"b"}


def test_the_part_of_a_lost_group_on_a_node_that_is_still_there_is_killed():
    async def prepare(study):
        await study.lease("t0", 3)
        await until_training(study, "t0")
        old = list(study.ray.history)
        await study.ray.lose_node("b")
        assert not any(worker.alive for worker in old)
        assert study.ray.overbooked == []
        await study.groups.nodes_changed(study.nodes(a=2, c=2))
        study.ray.slots["c"] = 2

    study = study_run(prepare, slots={"a": 2, "b": 2}, hosts={"c": "c"})
    ended = study.ended("t0")
    assert (ended["status"], ended["world"]["nodes"]) == ("finished", 2)


def test_a_controller_that_comes_after_its_group_was_given_up_is_ended():
    """Its node was lost before; it would wait for a place there until Ray Train's own timeout."""

    async def prepare(study):
        await study.lease("t0", 1)
        (fit,) = (await study.groups.next_orders())["start"]
        await study.groups.nodes_changed(study.nodes(b=1))
        late = FakeFit(fit["group_id"], 1, ["a"])
        await study.groups.controller_started(late.group_id, late)
        assert not late.alive
        assert study.vacated == [fit["mark"]] * 2  # for its workers, and for what may still be started

    assert study_run(prepare, slots={"a": 1, "b": 1}).ended("t0")["status"] == "finished"


def test_a_group_that_does_not_end_is_abandoned():
    """Its workers hang in their start: `close` reaches none of them."""

    async def prepare(study):
        await study.lease("t0", 1)
        await study.ray.driver()
        (fit,) = study.ray.fits.values()
        await study.groups.close()
        assert fit.alive
        await study.groups.abandon()
        assert not fit.alive
        assert study.vacated == [fit.mark]
        await study.ray.give_up(fit, "ActorDiedError", "controller_lost")

    assert study_run(prepare, slots={"a": 1}).ended("t0")["error"]["kind"] == "stopped"


def test_a_size_that_no_node_set_can_hold_is_failed_with_a_remedy_and_holds_nobody_back():
    async def prepare(study):
        await study.lease("t0", 3)
        await study.ray.lose_node("b")
        await study.lease("t1", 2)
        await study.settle(rounds=30)
        assert study.ended("t1")["status"] == "finished"
        assert not study.events["t0"]

    study = study_run(prepare, slots={"a": 2, "b": 2})
    ended = study.ended("t0")
    assert (ended["status"], ended["error"]["kind"]) == ("failed", "no_room")
    assert "room for 2 workers" in ended["error"]["message"]
    assert "needs 3; add nodes" in ended["error"]["message"]
    assert ended["wall_seconds"] >= STALLED - 1


def test_time_without_room_counts_anew_after_there_was_some():
    lease = Lease({"trial_id": "t", "num_workers": 3}, heard_at=0.0)
    assert [lease.lacks_room(2, now) for now in (10.0, 15.0)] == [0.0, 5.0]
    assert lease.lacks_room(3, 16.0) == 0.0
    assert [lease.lacks_room(2, now) for now in (20.0, 21.0)] == [0.0, 1.0]


def test_a_node_that_joins_in_time_gives_room():
    async def prepare(study):
        await study.lease("t0", 3)
        await study.ray.lose_node("b")
        study.clock.now += STALLED - 1
        await study.tick()
        study.ray.slots["c"] = 1
        await study.groups.nodes_changed(study.nodes(a=2, c=1))

    study = study_run(prepare, slots={"a": 2, "b": 2}, hosts={"c": "c"})
    assert study.ended("t0")["status"] == "finished"


# --- what earlier engines have left ------------------------------------------------------------------------------

HISTORY = {
    "epochs": [epoch_record(1)],
    "attempts": 2,
    "started_at": 500.0,
    "wall_seconds": 40.0,
    "startup_seconds": 7.5,
    "flags": ["shared_node", "warm_up_included"],
    "failures": [{"attempt": 1, "kind": "worker_lost", "message": "m", "rank": None}],
    "world": {"device": "cpu", "nodes": 1, "workers": []},
}


def test_a_trial_goes_on_where_its_history_ends():
    async def prepare(study):
        await study.lease("t0", 1, history=HISTORY)

    study = study_run(prepare, slots={"a": 1})
    kinds = [event["type"] for event in study.events["t0"]]
    assert kinds == ["running", "epoch", "ended"]  # epoch 1 is not told again
    assert study.events["t0"][0]["attempt"] == 3
    ended = study.ended("t0")
    assert [epoch["epoch"] for epoch in ended["epochs"]] == [1, 2]
    assert (ended["attempts"], ended["startup_seconds"], ended["flags"]) == (3, 7.5, ["shared_node"])
    assert ended["started_at"] == "1970-01-01T00:08:20.000Z"
    assert lost(ended) == [(1, "worker_lost")]
    assert 40 < ended["wall_seconds"] < 60
    assert "history" not in study.ray.history[0].orders[0]["trial"]


def test_failures_of_earlier_engines_count():
    async def prepare(study):
        await study.lease("t0", 1, history=HISTORY)
        await until_training(study, "t0")
        study.ray.history[0].alive = False

    study = study_run(prepare, slots={"a": 1}, failures=1)
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], ended["error"]["kind"]) == ("failed", 3, "worker_lost")
    assert lost(ended) == [(1, "worker_lost"), (3, "worker_lost")]


def test_a_trial_that_has_lost_too_many_engines_is_not_tried_again():
    failures = [{"attempt": n, "kind": "engine_lost", "message": f"m{n}", "rank": None} for n in (1, 2)]

    async def prepare(study):
        await study.lease("t0", 1, history={"attempts": 2, "failures": failures})

    study = study_run(prepare, slots={"a": 1}, failures=1)
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"]) == ("failed", 2)
    assert ended["error"] == {"kind": "engine_lost", "message": "m2", "rank": None}
    assert not study.ray.history
