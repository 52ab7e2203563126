"""Stage 4: the books of the worker groups when nodes are to go: who leaves them, when, and what that costs."""

import pytest

from tests.support.books_study import (
    STALLED,
    check,
    lost,
    no_waiting,
    study_run,
    until_epoch,
    until_training,
)
from tests.support.fake_ray_train import epoch_record

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")

CHECKPOINTS = {"store": "s", "every_epochs": 1}


def nodes_of(ended):
    return {worker["node"] for worker in ended["world"]["workers"]}


async def group_ids(study):
    return [group["group_id"] for group in (await study.groups.snapshot())["groups"]]


# --- what is placed ----------------------------------------------------------------------------------------------


def test_nothing_is_placed_on_a_node_that_drains():
    async def prepare(study):
        await study.ray.drain_node("a")
        for number, size in enumerate([1, 2, 1, 3]):
            await study.lease(f"t{number}", size)

    study = study_run(prepare, slots={"a": 4, "b": 3})
    assert {worker.node for worker in study.ray.history} == {"b"}
    assert all(study.ended(f"t{number}")["status"] == "finished" for number in range(4))
    check(study)


def test_a_group_ahead_of_need_is_not_placed_there_either():
    async def prepare(study):
        await study.ray.drain_node("a")
        await study.groups.prepare(2)
        await study.ray.driver()
        assert not study.ray.fits
        await study.groups.prepare(1)
        await study.ray.driver()
        assert [fit.nodes for fit in study.ray.fits.values()] == [["b"]]

    study_run(prepare, slots={"a": 2, "b": 1})


def test_an_idle_group_ends_and_another_serves_elsewhere():
    async def prepare(study):
        await study.lease("t0", 2)
        await study.settle()
        await study.ray.drain_node("a")
        (group,) = (await study.groups.snapshot())["groups"]
        assert (group["nodes"], group["state"]) == ({"a": 2}, "stopping")
        await study.lease("t1", 2)

    study = study_run(prepare, slots={"a": 2, "b": 2})
    assert nodes_of(study.ended("t1")) == {"b"}
    assert [worker.ended for worker in study.ray.history if worker.node == "a"] == [True, True], "told, not killed"
    check(study)


def test_a_group_on_other_nodes_stays_warm():
    async def prepare(study):
        await study.lease("t0", 2)
        await study.settle()
        await study.ray.drain_node("b")
        await study.lease("t1", 2)

    study = study_run(prepare, slots={"a": 2, "b": 2})
    assert [worker.served for worker in study.ray.history] == [2, 2]


def test_a_group_that_starts_there_is_given_up_and_its_trial_has_another():
    async def prepare(study):
        await study.lease("t0", 2)
        await study.ray.driver()
        await study.ray.drain_node("a")
        assert await group_ids(study) == ["group-2-of-2"]
        assert len(study.vacated) == 2, "the workers, and what may still be started"

    study = study_run(prepare, slots={"a": 2, "b": 2})
    assert (study.ended("t0")["attempts"], nodes_of(study.ended("t0"))) == (1, {"b"})


def test_an_order_that_nobody_has_taken_yet_is_taken_back():
    async def prepare(study):
        await study.lease("t0", 1)
        await study.ray.drain_node("a")
        await study.ray.driver()
        assert [fit.nodes for fit in study.ray.fits.values()] == [["b"]]

    study_run(prepare, slots={"a": 1, "b": 1})


def test_a_node_that_drains_no_more_has_room_again():
    async def prepare(study):
        await study.ray.drain_node("a")
        await study.lease("t0", 2)
        await study.ray.driver()
        assert not study.ray.fits
        study.ray.draining.clear()
        await study.groups.nodes_changed(study.ray.nodes())

    assert study_run(prepare, slots={"a": 1, "b": 1}).ended("t0")["status"] == "finished"


# --- what trains -------------------------------------------------------------------------------------------------


def test_a_trial_leaves_with_a_checkpoint_and_is_the_next_to_train_elsewhere():
    async def prepare(study):
        await study.lease("t0", 2, checkpoints=CHECKPOINTS)
        await until_epoch(study, "t0", 1)
        await study.lease("t1", 2, checkpoints=CHECKPOINTS)
        await study.ray.drain_node("a")
        await study.tick()

    study = study_run(prepare, slots={"a": 1, "b": 1, "c": 1})
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], lost(ended)) == ("finished", 2, [(1, "preempted")])
    assert ended["failures"][0]["message"] == (
        "a node of the trial's workers is to go, and they have left it (attempt 1); rank 0: 1 epochs"
    )
    assert nodes_of(ended) == nodes_of(study.ended("t1")) == {"b", "c"}
    assert [trial for _, trial, _ in study.ray.history[-1].taken] == ["t0", "t1"]
    assert [worker.ended for worker in study.ray.history[:2]] == [True, True], "told, not killed"
    check(study)


def test_leaving_is_on_no_budget():
    async def prepare(study):
        await study.lease("t0", 1, checkpoints=CHECKPOINTS)
        for node in "abc":
            await until_training(study, "t0")
            await study.ray.drain_node(node)
            while study.ray.training():
                for action in study.ray.actions():
                    await action()

    study = study_run(prepare, slots=dict.fromkeys("abcd", 1), failures=0)
    ended = study.ended("t0")
    assert (ended["status"], nodes_of(ended)) == ("finished", {"d"})
    assert lost(ended) == [(number, "preempted") for number in (1, 2, 3)]


def test_those_of_earlier_engines_are_on_no_budget_either():
    failures = [{"attempt": number, "kind": "preempted", "message": "m", "rank": None} for number in (1, 2)]

    async def prepare(study):
        await study.lease("t0", 1, history={"attempts": 2, "failures": failures})

    assert study_run(prepare, slots={"a": 1}, failures=0).ended("t0")["status"] == "finished"


@pytest.mark.parametrize("checkpoints", [None, {"store": "s", "every_epochs": 0}])
def test_a_trial_without_checkpoints_trains_on_and_its_group_ends_after_it(checkpoints):
    async def prepare(study):
        await study.lease("t0", 1, checkpoints=checkpoints)
        await until_training(study, "t0")
        await study.ray.drain_node("a")
        await study.lease("t1", 1)

    study = study_run(prepare, slots={"a": 1, "b": 1})
    assert (study.ended("t0")["attempts"], nodes_of(study.ended("t0"))) == (1, {"a"})
    assert nodes_of(study.ended("t1")) == {"b"}
    check(study)


def test_a_node_that_goes_before_the_trial_has_left_is_a_lost_one():
    async def prepare(study):
        await study.lease("t0", 2, checkpoints=CHECKPOINTS)
        await until_training(study, "t0")
        await study.ray.drain_node("a")
        await study.ray.lose_node("a")

    study = study_run(prepare, slots={"a": 2, "b": 2})
    assert lost(study.ended("t0")) == [(1, "node_lost")]


def test_a_group_that_breaks_there_is_not_started_again():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_training(study, "t0")
        await study.ray.drain_node("a")
        study.ray.history[1].alive = False

    study = study_run(prepare, slots={"a": 2, "b": 2})
    assert lost(study.ended("t0")) == [(1, "worker_lost")]
    assert nodes_of(study.ended("t0")) == {"b"}
    check(study)


def test_a_trial_that_is_stopped_while_it_leaves_has_no_other_attempt():
    async def prepare(study):
        await study.lease("t0", 1, checkpoints=CHECKPOINTS)
        await until_epoch(study, "t0", 1)
        (worker,) = study.ray.history
        await study.ray.drain_node("a")
        ended = await study.stop("t0", 1)
        assert (ended["status"], ended["attempts"]) == ("stopped", 1)
        await study.ray.post(worker, {"type": "left", "message": "m"})
        await study.ray.post(worker, {"type": "epoch", "epoch": epoch_record(2)})  # no trial is in its hands any more
        assert (await study.groups.snapshot())["waiting"] == []

    study_run(prepare, slots={"a": 1, "b": 1})


def test_a_trial_that_has_left_and_finds_no_room_is_told_so():
    async def prepare(study):
        await study.lease("t0", 3, checkpoints=CHECKPOINTS)
        await until_training(study, "t0")
        await study.ray.drain_node("b")

    study = study_run(prepare, slots={"a": 2, "b": 2})
    ended = study.ended("t0")
    assert (ended["status"], ended["error"]["kind"], ended["attempts"]) == ("failed", "no_room", 2)
    assert "room for 2 workers only, since nodes were lost or are to go" in ended["error"]["message"]
    assert ended["wall_seconds"] >= STALLED - 1
