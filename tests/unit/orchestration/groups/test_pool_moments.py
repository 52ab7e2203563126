"""The pool of warm groups at single moments: what a rank is given, what is killed, what is told."""

import asyncio

import pytest

from scalestudy.orchestration.groups.events import (
    Begun,
    EpochDone,
    Failure,
    KillCount,
    Left,
    Retried,
    Running,
)
from scalestudy.orchestration.groups.model import GroupLimits, TrialRequest, Turn
from scalestudy.orchestration.groups.pool import STARTS_WITHOUT_SERVICE
from scalestudy.orchestration.groups.trial_record import TrialRecord
from tests.support.epochs import epoch_of
from tests.support.fake_ray_train import FakeFit
from tests.support.pool_study import (
    HISTORY,
    STALLED,
    TRIAL_SECONDS,
    check,
    everybody_acts,
    kill,
    lose_controller,
    lost,
    no_waiting,
    numbers,
    order_of,
    story,
    study_run,
    trials,
    until_epoch,
    until_training,
)

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


# --- trials -------------------------------------------------------------------------------------------------------


def test_what_a_trial_s_end_says():
    study = study_run(trials(2), slots={"a": 2})
    ended = study.ended("t0")
    assert [worker.rank for worker in ended.world.workers] == [0, 1]
    assert ended.startup_seconds > 0
    assert study.ray.cold_starts.keys() == {"group-1-of-2"}
    assert study.ray.cold_starts["group-1-of-2"] > 0
    assert {worker.fit.group_id for worker in study.ray.history} == {"group-1-of-2"}
    (running, *_) = study.events["t0"]
    assert running == Running(attempt=1, world=ended.world)


@story(slots={"a": 3})
async def test_groups_of_the_sizes_to_come_are_started_one_after_the_other(study):
    await study.actor.prepare(1, 2, 1)
    await study.ray.driver()
    assert list(study.ray.fits) == ["group-1-of-1"]
    for _ in range(4):
        await study.act()
    assert list(study.ray.fits) == ["group-1-of-1", "group-2-of-2"]
    await study.request("t0", 1)
    await study.request("t1", 2)
    await study.settle()
    assert list(study.ray.cold_starts) == ["group-1-of-1", "group-2-of-2"]


@story(slots={"a": 1})
async def test_the_best_score_so_far_goes_with_the_next_trial(study):
    await study.request("t0")
    await study.settle()
    await study.train("t1", fate="hangs")
    (worker,) = study.ray.history
    assert worker.given.best_score == 0.5
    await study.release("t1")


@story(slots={"a": 1})
async def test_a_trial_that_goes_on_has_its_time_in_each_attempt(study):
    """A slow one is no stalled one, and it is ended once the present attempt has had its time."""

    async def goes_on(seconds):
        worker, began = study.fit.workers[0], study.clock.now
        while study.clock.now - began < seconds:
            study.clock.now += STALLED - 1
            await study.ray.step(worker)
            await study.follow("t0")
            await study.tick()
        return worker

    await study.train("t0", fate="hangs")
    assert (await goes_on(0.6 * TRIAL_SECONDS)).alive
    await kill(0)(study)
    await until_training(study, "t0")
    assert (await goes_on(TRIAL_SECONDS - STALLED)).alive
    assert not (await goes_on(1)).alive
    ended = await study.end_of("t0")
    assert (ended.status, ended.attempts, ended.error.kind) == ("failed", 2, "time_limit")


@story(slots={"a": 1})
async def test_what_a_follower_says_whose_place_another_has_does_not_count(study):
    await study.request("t0")
    await until_epoch(study, "t0", 1)
    late = study.leases["t0"]
    asked = asyncio.ensure_future(study.actor.events("t0", late, 99))
    await study.follow_anew("t0")
    assert await asked is None
    assert await study.actor.events("t0", late, 0) is None
    assert study.ray.training() == {"t0": {"group-1-of-1"}}
    assert (await study.end_of("t0")).status == "finished"
    assert len(study.ray.history[0].taken) == 1, "it was not trained again"


@story(slots={"a": 1})
async def test_a_trial_goes_on_where_its_history_ends(study):
    await study.request("t0", so_far=HISTORY)
    await study.settle()
    assert study.kinds("t0") == ["Running", "EpochDone", "Ended"]  # epoch 1 is not told again
    assert study.events["t0"][0].attempt == 3
    ended = study.ended("t0")
    assert numbers(ended) == [1, 2]
    assert (ended.attempts, ended.startup_seconds, ended.flags) == (3, 7.5, ("shared_node",))
    assert ended.started_at == "1970-01-01T00:08:20.000Z"
    assert lost(ended) == [(1, "worker_lost")]
    assert 40 < ended.wall_seconds < 60
    assert study.ray.history[0].all_given[0].order.so_far == TrialRecord(), "the ranks need no more"
    assert HISTORY.attempts == 2, "the pool works with a copy"


# --- trials that a scheduler stops --------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["finished", "at_target", "diverged"])
@story(slots={"a": 1})
async def test_a_trial_that_ran_on_and_ended_before_it_was_stopped_is_stopped_all_the_same(study, fate):
    """What is told depends on the rung alone, not on how far the training has run ahead."""
    await study.request("t0", fate=fate)
    await everybody_acts(study)
    assert study.ray.history[0].served == 1
    assert study.ray.history[0].given is None
    ended = await study.stop("t0", 1)
    assert (ended.status, numbers(ended)) == ("stopped", [1])
    assert study.pool.best_score is None


@story(slots={"a": 1})
async def test_a_trial_stopped_at_its_last_epoch_finishes(study):
    await study.request("t0", epochs=2)
    await until_epoch(study, "t0", 2)
    assert study.open
    stopping = asyncio.ensure_future(study.stop("t0", 2))
    await study.tick()
    await study.ray.step(study.ray.history[0])
    assert (await stopping).status == "finished"


@story(slots={"a": 1})
async def test_a_trial_that_waits_can_be_stopped(study):
    await study.request("t0", fate="hangs")
    await study.request("t1", so_far=TrialRecord(epochs={1: epoch_of(1), 2: epoch_of(2)}, attempts=1))
    ended = await study.stop("t1", 1)
    assert (ended.status, len(ended.epochs)) == ("stopped", 1)
    assert study.pool.waiting in ([], ["t0"])
    await study.release("t0")


@story(slots={"a": 1, "b": 1})
async def test_a_trial_that_is_stopped_while_it_leaves_has_no_other_attempt(study):
    await study.request("t0", checkpoints="s")
    await until_epoch(study, "t0", 1)
    (worker,) = study.ray.history
    await study.ray.drain_node("a")
    ended = await study.stop("t0", 1)
    assert (ended.status, ended.attempts) == ("stopped", 1)
    await study.ray.report(worker, Left(message="m"))
    await study.ray.report(worker, EpochDone(record=epoch_of(2)))  # no trial is in its hands any more
    assert study.pool.waiting == []


# --- ranks, their incarnations, and what they report --------------------------------------------------------------


def put_offs(study, trial_id):
    """What put a trial off, as it was told."""
    return [event.error for event in study.of_type(trial_id, Retried)]


@story(slots={"a": 2}, failures=1, logs="runs/x/driver.log")
async def test_messages_say_cause_attempt_and_logs(study):
    for attempt in (1, 2):
        await (study.train("t0", 2) if attempt == 1 else until_training(study, "t0"))
        await kill(1)(study)
    ended = await study.end_of("t0")
    peer = "a worker process died (attempt 1); rank 0: RuntimeError: Connection closed by peer; logs: runs/x/driver.log"
    assert ended.failures[0] == Failure(attempt=1, kind="worker_lost", message=peer)
    assert put_offs(study, "t0")[0].message == peer
    assert ended.error.message == peer.replace("attempt 1", "attempt 2")
    await study.request("t1", fate="exception")
    assert (await study.end_of("t1")).error.message.endswith("; logs: runs/x/driver.log")
    study.ray.unstartable.add(2)
    await study.request("t2", 2)
    await study.settle()
    assert "no workers" in put_offs(study, "t2")[0].message


@story(slots={"a": 1})
async def test_reports_of_an_earlier_life_are_dropped(study):
    fit = await study.train("t0")
    old = fit.workers[0]
    old.alive = False
    await study.ray.restart(fit)
    await until_training(study, "t0")
    for sequence in (old.served, fit.workers[0].served):
        turn = Turn(group_id=fit.group_id, incarnation=old.incarnation, sequence=sequence)
        await study.actor.report(turn, 0, EpochDone(record=epoch_of(7)))
    assert await study.actor.next_trial(fit.group_id, old.incarnation, 0) is None
    await study.settle()
    assert numbers(study.ended("t0")) == [1, 2]


@story(slots={"a": 2})
async def test_a_rank_that_fails_after_its_trial_has_ended_does_not_harm_the_next_one(study):
    await study.request("t0", 2)
    await study.request("t1", 2)
    await until_training(study, "t0")
    fit = study.fit
    first, second = fit.workers
    while second.given is None or first.served < 2:
        await study.ray.step(first)
        await study.ray.step(second) if second.given is None else None
    assert (first.served, second.served) == (2, 1)  # the last rank has not put the first trial down
    await study.ray.fail(second, "exception", "ValueError: late")
    assert (await study.end_of("t1")).status == "finished"


@story(slots={"a": 2})
async def test_a_late_registration_of_an_earlier_life_does_not_stop_the_new_one(study):
    await study.request("t0", 2)
    await study.ray.driver()
    fit = study.fit
    first, second = fit.workers
    await study.ray.step(first)
    second.alive = False
    await study.ray.restart(fit)
    await study.ray.step(fit.workers[0])
    await study.actor.register(fit.group_id, second.incarnation, study.ray.member(second), second)
    assert (await study.end_of("t0")).status == "finished"


@story(slots={"a": 1})
async def test_the_ranks_counts_of_kernel_kills_are_those_of_the_trial_in_hand(study):
    fit = await study.train("t0")
    counted = KillCount(node="a", file="/events", kills=3)
    await study.ray.report(fit.workers[0], Begun(kernel_kills=counted))
    assert await study.actor.kernel_kills(fit.group_id) == {0: counted}
    assert await study.actor.kernel_kills("group-9-of-1") == {}
    assert (await study.end_of("t0")).status == "finished"


# --- groups and their controllers ---------------------------------------------------------------------------------


@story(slots={"a": 2})
async def test_a_controller_that_dies_at_every_start_puts_off_the_trials_of_its_size(study):
    await study.request("t0", 2)
    for number in range(STARTS_WITHOUT_SERVICE):
        assert not study.events["t0"]
        await study.ray.driver()
        fit = study.fit
        assert fit.group_id == f"group-{number + 1}-of-2"
        await lose_controller(study)
    await study.settle()
    assert [error.kind for error in put_offs(study, "t0")] == ["group_start"]
    assert study.ended("t0").status == "finished", "the next start is well"


@story(slots={"a": 1})
async def test_workers_that_hang_in_their_start_are_started_anew(study):
    """One is frozen before it has registered: the group is known by its tag alone."""
    await study.request("t0")
    await study.tick()
    await study.later(GroupLimits.start_seconds - 1)
    assert study.hands.removed == []
    await study.later(2)
    await study.tick()
    (tag,) = study.hands.removed
    assert tag == next(iter(study.pool.groups.values())).tag
    assert (await study.end_of("t0")).status == "finished"
    assert study.ended("t0").attempts == 1


@story(slots={"a": 1, "b": 1})
async def test_a_controller_that_comes_after_its_group_was_given_up_is_ended(study):
    """Its node was lost before; it would wait for a place there until Ray Train's own timeout."""
    await study.request("t0")
    (start,) = (await study.actor.next_orders()).start
    await study.actor.set_nodes(study.nodes(b=1))
    late = FakeFit(start.group_id, 1, ["a"])
    await study.actor.controller_started(late.group_id, late)
    assert not late.alive
    assert study.hands.removed == [start.tag] * 2  # for its workers, and for what may still be started
    assert (await study.end_of("t0")).status == "finished"


@story(slots={"a": 1})
async def test_a_group_that_does_not_end_is_abandoned(study):
    """Its workers hang in their start: `close` reaches none of them."""
    await study.request("t0")
    await study.ray.driver()
    fit = study.fit
    await study.actor.close()
    assert fit.alive
    await study.actor.abandon()
    assert not fit.alive
    assert study.hands.removed == [fit.tag]
    await study.ray.give_up(fit, "ActorDiedError", "controller_lost")
    assert (await study.end_of("t0")).error.kind == "stopped"


# --- nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "order"), [("node", ["t0", "t1", "t0"]), ("worker", ["t0", "t0", "t1"])])
@story(slots={"a": 2, "b": 2}, hosts={"c": "c"})
async def test_a_trial_that_has_lost_a_node_comes_after_those_that_wait(study, lost, order):
    """One that has lost a worker goes on at once."""
    await study.request("t0", 4)
    await study.request("t1", 4)
    await until_training(study, "t0")
    if lost == "node":
        await study.ray.lose_node("b")
        study.ray.slots["c"] = 2
        await study.actor.set_nodes(study.nodes(a=2, c=2))
    else:
        await kill(0)(study)
    await study.settle()
    leaders = [worker for worker in study.ray.history if worker.rank == 0]
    assert [trial_id for worker in leaders for _, trial_id, _ in worker.taken] == order


def test_time_without_room_counts_anew_after_there_was_some():
    request = TrialRequest(order_of("t", 3), lease=1)
    assert [request.seconds_without_room(2, now) for now in (10.0, 15.0)] == [0.0, 5.0]
    assert request.seconds_without_room(3, 16.0) == 0.0
    assert [request.seconds_without_room(2, now) for now in (20.0, 21.0)] == [0.0, 1.0]


@story(slots={"a": 1, "b": 1, "c": 1})
async def test_a_trial_leaves_with_a_checkpoint_and_is_the_next_to_train_elsewhere(study):
    await study.request("t0", 2, checkpoints="s")
    await until_epoch(study, "t0", 1)
    await study.request("t1", 2, checkpoints="s")
    await study.ray.drain_node("a")
    await study.tick()
    ended = await study.end_of("t0")
    assert (ended.status, ended.attempts, lost(ended)) == ("finished", 2, [(1, "preempted")])
    assert ended.failures[0].message == (
        "a node is about to be removed, and the trial's workers have left it (attempt 1); rank 0: 1 epochs"
    )
    for each in (ended, study.ended("t1")):
        assert {worker.node for worker in each.world.workers} == {"b", "c"}
    assert [trial for _, trial, _ in study.ray.history[-1].taken] == ["t0", "t1"]
    assert [worker.ended for worker in study.ray.history[:2]] == [True, True], "told, not killed"
    check(study)
