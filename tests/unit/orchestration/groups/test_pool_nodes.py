"""The pool of warm groups when nodes drain, go and come."""

import pytest

from scalestudy.orchestration.groups.model import TrialRequest
from tests.support.pool_study import (
    CHECKPOINTS,
    STALLED,
    check,
    lost,
    no_waiting,
    order_of,
    study_run,
    until_epoch,
    until_training,
)

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


def test_the_part_of_a_lost_group_on_a_node_that_is_still_there_is_killed():
    async def story(study):
        await study.request("t0", 3)
        await until_training(study, "t0")
        old = list(study.ray.history)
        await study.ray.lose_node("b")
        assert not any(worker.alive for worker in old)
        assert study.ray.overbooked == []
        await study.actor.set_nodes(study.nodes(a=2, c=2))
        study.ray.slots["c"] = 2

    study = study_run(story, slots={"a": 2, "b": 2}, hosts={"c": "c"})
    ended = study.ended("t0")
    assert (ended.status, ended.world.nodes) == ("finished", 2)


def test_a_size_that_no_node_set_can_hold_is_failed_with_a_remedy_and_holds_nobody_back():
    async def story(study):
        await study.request("t0", 3)
        await study.ray.lose_node("b")
        await study.request("t1", 2)
        await study.settle(rounds=30)
        assert study.ended("t1").status == "finished"
        assert not study.events["t0"]

    study = study_run(story, slots={"a": 2, "b": 2})
    ended = study.ended("t0")
    assert (ended.status, ended.error.kind) == ("failed", "no_room")
    assert "room for 2 workers" in ended.error.message
    assert "needs 3; add nodes" in ended.error.message
    assert ended.wall_seconds >= STALLED - 1


def test_time_without_room_counts_anew_after_there_was_some():
    request = TrialRequest(order_of("t", 3), heard_at=0.0)
    assert [request.seconds_without_room(2, now) for now in (10.0, 15.0)] == [0.0, 5.0]
    assert request.seconds_without_room(3, 16.0) == 0.0
    assert [request.seconds_without_room(2, now) for now in (20.0, 21.0)] == [0.0, 1.0]


def test_a_node_that_joins_in_time_gives_room():
    async def story(study):
        await study.request("t0", 3)
        await study.ray.lose_node("b")
        study.clock.now += STALLED - 1
        await study.tick()
        study.ray.slots["c"] = 1
        await study.actor.set_nodes(study.nodes(a=2, c=1))

    study = study_run(story, slots={"a": 2, "b": 2}, hosts={"c": "c"})
    assert study.ended("t0").status == "finished"


def test_a_group_ahead_of_need_is_not_placed_on_a_node_that_drains():
    async def story(study):
        await study.ray.drain_node("a")
        await study.actor.prepare(2)
        await study.ray.driver()
        assert not study.ray.fits
        await study.actor.prepare(1)
        await study.ray.driver()
        assert [fit.nodes for fit in study.ray.fits.values()] == [["b"]]

    study_run(story, slots={"a": 2, "b": 1})


def test_an_idle_group_on_a_node_that_drains_ends_and_another_serves_elsewhere():
    async def story(study):
        await study.request("t0", 2)
        await study.settle()
        await study.ray.drain_node("a")
        (group,) = (await study.actor.snapshot()).groups
        assert (group.nodes, group.state) == ({"a": 2}, "stopping")
        await study.request("t1", 2)

    study = study_run(story, slots={"a": 2, "b": 2})
    assert {worker.node for worker in study.ended("t1").world.workers} == {"b"}
    assert [worker.ended for worker in study.ray.history if worker.node == "a"] == [True, True], "told, not killed"
    check(study)


def test_a_group_that_starts_on_a_node_that_drains_is_given_up_and_its_trial_has_another():
    async def story(study):
        await study.request("t0", 2)
        await study.ray.driver()
        await study.ray.drain_node("a")
        assert [group.group_id for group in (await study.actor.snapshot()).groups] == ["group-2-of-2"]
        assert len(study.hands.removed) == 2, "the workers, and what may still be started"

    study = study_run(story, slots={"a": 2, "b": 2})
    ended = study.ended("t0")
    assert (ended.attempts, {worker.node for worker in ended.world.workers}) == (1, {"b"})


def test_an_order_that_nobody_has_taken_yet_is_taken_back():
    async def story(study):
        await study.request("t0")
        await study.ray.drain_node("a")
        await study.ray.driver()
        assert [fit.nodes for fit in study.ray.fits.values()] == [["b"]]

    study_run(story, slots={"a": 1, "b": 1})


def test_a_node_that_drains_no_more_has_room_again():
    async def story(study):
        await study.ray.drain_node("a")
        await study.request("t0", 2)
        await study.ray.driver()
        assert not study.ray.fits
        study.ray.draining.clear()
        await study.actor.set_nodes(study.ray.nodes())

    assert study_run(story, slots={"a": 1, "b": 1}).ended("t0").status == "finished"


def test_a_trial_leaves_with_a_checkpoint_and_is_the_next_to_train_elsewhere():
    async def story(study):
        await study.request("t0", 2, checkpoints=CHECKPOINTS)
        await until_epoch(study, "t0", 1)
        await study.request("t1", 2, checkpoints=CHECKPOINTS)
        await study.ray.drain_node("a")
        await study.tick()

    study = study_run(story, slots={"a": 1, "b": 1, "c": 1})
    ended = study.ended("t0")
    assert (ended.status, ended.attempts, lost(ended)) == ("finished", 2, [(1, "preempted")])
    assert ended.failures[0].message == (
        "a node of the trial's workers is to go, and they have left it (attempt 1); rank 0: 1 epochs"
    )
    for each in (ended, study.ended("t1")):
        assert {worker.node for worker in each.world.workers} == {"b", "c"}
    assert [trial for _, trial, _ in study.ray.history[-1].taken] == ["t0", "t1"]
    assert [worker.ended for worker in study.ray.history[:2]] == [True, True], "told, not killed"
    check(study)


def test_a_trial_that_has_left_and_finds_no_room_is_told_so():
    async def story(study):
        await study.request("t0", 3, checkpoints=CHECKPOINTS)
        await until_training(study, "t0")
        await study.ray.drain_node("b")

    study = study_run(story, slots={"a": 2, "b": 2})
    ended = study.ended("t0")
    assert (ended.status, ended.error.kind, ended.attempts) == ("failed", "no_room", 2)
    assert "room for 2 workers only, since nodes were lost or are to go" in ended.error.message
    assert ended.wall_seconds >= STALLED - 1
