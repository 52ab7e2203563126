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
    TrialError,
)
from scalestudy.orchestration.groups.failures import Loss
from scalestudy.orchestration.groups.model import GroupLimits, TrialRequest, Turn
from scalestudy.orchestration.groups.pool import STARTS_WITHOUT_SERVICE
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.sweep.search import HITS
from tests.support.epochs import epoch_of
from tests.support.fake_ray_train import FakeFit
from tests.support.pool_study import (
    CHECKPOINTS,
    ENGINES_LOST,
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


def test_the_first_group_is_ordered_before_a_trial_asks():
    async def story(study):
        await study.actor.prepare(2)
        await study.ray.driver()
        assert list(study.ray.fits) == ["group-1-of-2"]
        await study.request("t0", 2)

    study = study_run(story, slots={"a": 2})
    assert len(study.ray.history) == 2


def test_groups_of_the_sizes_to_come_are_started_one_after_the_other():
    async def story(study):
        await study.actor.prepare(1, 2, 1)
        await study.ray.driver()
        assert list(study.ray.fits) == ["group-1-of-1"]
        for _ in range(4):
            for action in study.ray.actions():
                await action()
        assert list(study.ray.fits) == ["group-1-of-1", "group-2-of-2"]
        await study.request("t0", 1)
        await study.request("t1", 2)

    study = study_run(story, slots={"a": 3})
    assert list(study.ray.cold_starts) == ["group-1-of-1", "group-2-of-2"]


def test_the_best_score_so_far_goes_with_the_next_trial():
    async def story(study):
        await study.request("t0")
        await study.settle()
        await study.request("t1", fate="hangs")
        await until_training(study, "t1")
        (worker,) = study.ray.history
        assert worker.given.best_score == 0.5
        await study.release("t1")

    study_run(story, slots={"a": 1})


def test_progress_keeps_a_slow_trial_alive_until_its_time_is_up():
    async def story(study):
        await study.request("t0", fate="hangs")
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

    study = study_run(story, slots={"a": 1})
    ended = study.ended("t0")
    assert (ended.status, ended.attempts, ended.error.kind) == ("failed", 1, "time_limit")


def test_a_released_trial_is_left_within_a_step_and_records_nothing_more():
    async def story(study):
        await study.request("t0", 2, "hangs")
        await until_training(study, "t0")
        await study.request("t1", 2)
        await study.release("t0")
        leader, peer = study.ray.history
        await study.ray.step(leader)  # it has only just begun, and asks
        await study.tick()
        await study.ray.step(leader)
        assert (leader.given, leader.alive, peer.alive) == (None, True, True)
        assert study.events["t0"] == []

    study = study_run(story, slots={"a": 2})
    assert study.ended("t1").status == "finished"
    assert [worker.served for worker in study.ray.history] == [2, 2]  # the group stayed warm


def test_a_silent_follower_keeps_its_lease():
    """Its driver may have been stopped with it, and go on."""

    async def story(study):
        await study.request("t0")
        await until_epoch(study, "t0", 1)
        for _ in range(100):
            study.clock.now += 10
            for action in study.ray.actions():
                await action()
            await study.tick()

    study = study_run(story, slots={"a": 1})
    assert study.kinds("t0") == ["Running", "EpochDone", "EpochDone", "Ended"]
    assert len(study.ray.history[0].taken) == 1


def test_what_a_follower_says_whose_place_another_has_does_not_count():
    async def story(study):
        await study.request("t0")
        await until_epoch(study, "t0", 1)
        late = study.leases["t0"]
        asked = asyncio.ensure_future(study.actor.events("t0", late, 99))
        await study.follow_anew("t0")
        assert await asked is None
        assert await study.actor.events("t0", late, 0) is None
        assert study.ray.training() == {"t0": {"group-1-of-1"}}

    study = study_run(story, slots={"a": 1})
    assert study.ended("t0").status == "finished"
    assert len(study.ray.history[0].taken) == 1, "it was not trained again"


def test_a_trial_goes_on_where_its_history_ends():
    async def story(study):
        await study.request("t0", so_far=HISTORY)

    study = study_run(story, slots={"a": 1})
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


def test_the_error_of_a_trial_that_has_lost_too_many_engines_is_the_last_loss():
    async def story(study):
        await study.request("t0", so_far=ENGINES_LOST)

    ended = study_run(story, slots={"a": 1}, failures=1).ended("t0")
    assert ended.error == TrialError(kind="engine_lost", message="m2")


# --- trials that a scheduler stops --------------------------------------------------------------------------------


def test_a_stopped_trial_keeps_the_epochs_up_to_its_rung_and_leaves_the_group_warm():
    async def story(study):
        await study.request("t0", 2)
        await until_epoch(study, "t0", 1)
        first = await study.stop("t0", 1)
        assert (first.status, numbers(first), first.error, first.attempts) == ("stopped", [1], None, 1)
        await study.request("t1", 2)

    study = study_run(story, slots={"a": 2})
    assert study.ended("t1").status == "finished"
    assert [worker.served for worker in study.ray.history] == [2, 2]


@pytest.mark.parametrize("fate", ["finished", "at_target", "diverged"])
def test_a_trial_that_ran_on_and_ended_before_it_was_stopped_is_stopped_all_the_same(fate):
    """What is told depends on the rung alone, not on how far the training has run ahead."""

    async def story(study):
        await study.request("t0", fate=fate)
        await everybody_acts(study)
        assert study.ray.history[0].served == 1
        assert study.ray.history[0].given is None
        ended = await study.stop("t0", 1)
        assert (ended.status, numbers(ended)) == ("stopped", [1])
        assert study.pool.best_score is None

    study_run(story, slots={"a": 1})


def test_a_trial_stopped_at_its_last_epoch_finishes():
    async def story(study):
        await study.request("t0", epochs=2)
        await until_epoch(study, "t0", 2)
        assert study.open
        stopping = asyncio.ensure_future(study.stop("t0", 2))
        await study.tick()
        await study.ray.step(study.ray.history[0])
        assert (await stopping).status == "finished"

    study_run(story, slots={"a": 1})


def test_a_trial_that_waits_can_be_stopped():
    async def story(study):
        await study.request("t0", fate="hangs")
        await study.request("t1", so_far=TrialRecord(epochs={1: epoch_of(1), 2: epoch_of(2)}, attempts=1))
        ended = await study.stop("t1", 1)
        assert (ended.status, len(ended.epochs)) == ("stopped", 1)
        assert (await study.actor.snapshot()).waiting in ((), ("t0",))
        await study.release("t0")

    study_run(story, slots={"a": 1})


def test_a_trial_that_is_stopped_while_it_leaves_has_no_other_attempt():
    async def story(study):
        await study.request("t0", checkpoints=CHECKPOINTS)
        await until_epoch(study, "t0", 1)
        (worker,) = study.ray.history
        await study.ray.drain_node("a")
        ended = await study.stop("t0", 1)
        assert (ended.status, ended.attempts) == ("stopped", 1)
        await study.ray.report(worker, Left(message="m"))
        await study.ray.report(worker, EpochDone(record=epoch_of(2)))  # no trial is in its hands any more
        assert (await study.actor.snapshot()).waiting == ()

    study_run(story, slots={"a": 1, "b": 1})


# --- ranks, their incarnations, and what they report --------------------------------------------------------------


def test_a_retry_says_what_the_other_ranks_met():
    async def story(study):
        await study.request("t0", 2)
        await until_training(study, "t0")
        await kill(1)(study)

    (retry,) = study_run(story, slots={"a": 2}).of_type("t0", Retried)
    assert "Connection closed by peer" in retry.error.message


def test_a_loss_says_its_cause_and_its_attempt():
    async def story(study):
        await study.request("t0")
        await until_training(study, "t0")
        await kill(0)(study)

    (failure,) = study_run(story, slots={"a": 1}).ended("t0").failures
    assert failure == Failure(attempt=1, kind="worker_lost", message="a worker process died (attempt 1)")


def test_messages_say_where_the_logs_are():
    async def story(study):
        await study.request("t0")
        await until_training(study, "t0")
        await kill(0)(study)
        await study.request("t1", fate="exception")

    study = study_run(story, slots={"a": 1}, failures=0, logs="runs/x/driver.log")
    for trial_id in ("t0", "t1"):
        assert study.ended(trial_id).error.message.endswith("; logs: runs/x/driver.log")


def test_what_a_group_s_start_has_met_is_the_message():
    study = study_run(lambda study: unstartable_and_asked(study), slots={"a": 2})
    assert "no workers" in put_offs(study, "t0")[0].message


def put_offs(study, trial_id):
    """What put a trial off, as it was told."""
    return [event.error for event in study.of_type(trial_id, Retried)]


async def unstartable_and_asked(study):
    study.ray.unstartable.add(2)
    await study.request("t0", 2)


def test_an_exception_restarts_all_workers_of_the_group():
    async def story(study):
        await study.request("t0", 2, "exception")
        await study.request("t1", 2)

    study = study_run(story, slots={"a": 2})
    lives = [worker.incarnation for worker in study.ray.history]
    assert lives == ["group-1-of-2-life-1"] * 2 + ["group-1-of-2-life-2"] * 2


def test_reports_of_an_earlier_life_are_dropped():
    async def story(study):
        await study.request("t0")
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        old = fit.workers[0]
        old.alive = False
        await study.ray.restart(fit)
        await until_training(study, "t0")
        for sequence in (old.served, fit.workers[0].served):
            turn = Turn(group_id=fit.group_id, incarnation=old.incarnation, sequence=sequence)
            await study.actor.report(turn, 0, EpochDone(record=epoch_of(7)))
        assert await study.actor.next_trial(fit.group_id, old.incarnation, 0) is None

    study = study_run(story, slots={"a": 1})
    assert numbers(study.ended("t0")) == [1, 2]


def test_a_rank_that_fails_after_its_trial_has_ended_does_not_harm_the_next_one():
    async def story(study):
        await study.request("t0", 2)
        await study.request("t1", 2)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        first, second = fit.workers
        while second.given is None or first.served < 2:
            await study.ray.step(first)
            await study.ray.step(second) if second.given is None else None
        assert (first.served, second.served) == (2, 1)  # the last rank has not put the first trial down
        await study.ray.fail(second, "exception", "ValueError: late")

    study = study_run(story, slots={"a": 2})
    assert study.ended("t1").status == "finished"


def test_a_late_registration_of_an_earlier_life_does_not_stop_the_new_one():
    async def story(study):
        await study.request("t0", 2)
        await study.ray.driver()
        (fit,) = study.ray.fits.values()
        first, second = fit.workers
        await study.ray.step(first)
        second.alive = False
        await study.ray.restart(fit)
        await study.ray.step(fit.workers[0])
        await study.actor.register(fit.group_id, second.incarnation, study.ray.member(second), second)

    study = study_run(story, slots={"a": 2})
    assert study.ended("t0").status == "finished"


def test_the_ranks_counts_of_kernel_kills_are_those_of_the_trial_in_hand():
    async def story(study):
        await study.request("t0")
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        counted = KillCount(node="a", file="/events", kills=3)
        await study.ray.report(fit.workers[0], Begun(kernel_kills=counted))
        assert await study.actor.kernel_kills(fit.group_id) == {0: counted}
        assert await study.actor.kernel_kills("group-9-of-1") == {}

    study = study_run(story, slots={"a": 1})
    assert study.ended("t0").status == "finished"


def test_a_worker_killed_for_memory_is_a_result():
    async def story(study):
        await study.request("t0", 2)
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        killed = {1: "OutOfMemoryError: the node was low on memory"}
        loss = Loss(incarnation=fit.workers[0].incarnation, cause="worker_lost", out_of_memory=killed)
        assert await study.actor.workers_lost(fit.group_id, loss)

    study = study_run(story, slots={"a": 2})
    ended = study.ended("t0")
    assert (ended.status, ended.attempts) == ("out_of_memory", 1)
    assert (ended.error.kind, ended.error.rank) == ("out_of_memory", 1)


# --- groups and their controllers ---------------------------------------------------------------------------------


def test_a_controller_that_dies_at_every_start_puts_off_the_trials_of_its_size():
    async def story(study):
        await study.request("t0", 2)
        for number in range(STARTS_WITHOUT_SERVICE):
            assert not study.events["t0"]
            await study.ray.driver()
            (fit,) = study.ray.fits.values()
            assert fit.group_id == f"group-{number + 1}-of-2"
            await lose_controller(study)

    study = study_run(story, slots={"a": 2})
    assert [error.kind for error in put_offs(study, "t0")] == ["group_start"]
    assert study.ended("t0").status == "finished", "the next start is well"


def test_what_a_dead_controller_has_reserved_is_given_back():
    async def story(study):
        await study.request("t0")
        await until_training(study, "t0")
        (fit,) = study.ray.fits.values()
        await lose_controller(study)
        assert study.hands.removed == [fit.tag]

    study = study_run(story, slots={"a": 1})
    assert study.ended("t0").status == "finished"
    assert len(study.hands.removed) == 1


def test_workers_that_hang_in_their_start_are_started_anew():
    """One is frozen before it has registered: the group is known by its tag alone."""

    async def story(study):
        await study.request("t0")
        await study.tick()
        study.clock.now += GroupLimits.start_seconds - 1
        await study.tick()
        assert study.hands.removed == []
        study.clock.now += 2
        await study.tick()
        await study.tick()
        (tag,) = study.hands.removed
        assert tag == next(iter(study.pool.groups.values())).tag

    study = study_run(story, slots={"a": 1})
    assert study.ended("t0").status == "finished"
    assert study.ended("t0").attempts == 1


def test_a_controller_that_comes_after_its_group_was_given_up_is_ended():
    """Its node was lost before; it would wait for a place there until Ray Train's own timeout."""

    async def story(study):
        await study.request("t0")
        (start,) = (await study.actor.next_orders()).start
        await study.actor.set_nodes(study.nodes(b=1))
        late = FakeFit(start.group_id, 1, ["a"])
        await study.actor.controller_started(late.group_id, late)
        assert not late.alive
        assert study.hands.removed == [start.tag] * 2  # for its workers, and for what may still be started

    assert study_run(story, slots={"a": 1, "b": 1}).ended("t0").status == "finished"


def test_a_group_that_does_not_end_is_abandoned():
    """Its workers hang in their start: `close` reaches none of them."""

    async def story(study):
        await study.request("t0")
        await study.ray.driver()
        (fit,) = study.ray.fits.values()
        await study.actor.close()
        assert fit.alive
        await study.actor.abandon()
        assert not fit.alive
        assert study.hands.removed == [fit.tag]
        await study.ray.give_up(fit, "ActorDiedError", "controller_lost")

    assert study_run(story, slots={"a": 1}).ended("t0").error.kind == "stopped"


# --- nodes --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("lost", "order"), [("node", ["t0", "t1", "t0"]), ("worker", ["t0", "t0", "t1"])])
def test_a_trial_that_has_lost_a_node_comes_after_those_that_wait(lost, order):
    """One that has lost a worker goes on at once."""

    async def story(study):
        await study.request("t0", 4)
        await study.request("t1", 4)
        await until_training(study, "t0")
        if lost == "node":
            await study.ray.lose_node("b")
            study.ray.slots["c"] = 2
            await study.actor.set_nodes(study.nodes(a=2, c=2))
        else:
            await kill(0)(study)

    study = study_run(story, slots={"a": 2, "b": 2}, hosts={"c": "c"})
    leaders = [worker for worker in study.ray.history if worker.rank == 0]
    assert [trial_id for worker in leaders for _, trial_id, _ in worker.taken] == order


def test_a_size_that_no_node_set_can_hold_is_put_off_with_a_remedy_and_holds_nobody_back():
    async def story(study):
        await study.request("t0", 3)
        await study.ray.lose_node("b")
        await study.request("t1", 2)
        await study.settle(rounds=30)
        assert study.ended("t1").status == "finished"
        assert not study.events["t0"]

    study = study_run(story, slots={"a": 2, "b": 2})
    assert study.given_up == ["t0"]
    assert [error.kind for error in put_offs(study, "t0")] == ["no_room"] * HITS
    assert "room for 2 workers" in put_offs(study, "t0")[0].message
    assert "needs 3; add nodes" in put_offs(study, "t0")[0].message


def test_time_without_room_counts_anew_after_there_was_some():
    request = TrialRequest(order_of("t", 3), lease=1)
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
        assert len(study.hands.removed) == 3, "the workers, and what was still started until the controller had died"

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
        "a node is about to be removed, and the trial's workers have left it (attempt 1); rank 0: 1 epochs"
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
    assert study.given_up == ["t0"]
    assert [error.kind for error in put_offs(study, "t0")] == ["preempted"] + ["no_room"] * HITS
    assert "nodes were lost or are draining: the cluster has room for 2 workers" in put_offs(study, "t0")[1].message


def test_the_time_of_a_trial_counts_from_its_present_attempt():
    async def story(study):
        await study.request("t0", fate="hangs")
        for attempt in (1, 2):
            await until_training(study, "t0")
            (fit,) = study.ray.fits.values()
            began = study.clock.now
            while study.clock.now - began < 0.6 * TRIAL_SECONDS:
                study.clock.now += STALLED - 1
                await study.ray.step(fit.workers[0])
                await study.follow("t0")
                await study.tick()
            assert fit.workers[0].alive, f"attempt {attempt}"
            if attempt == 1:
                await kill(0)(study)
        await study.release("t0")

    study_run(story, slots={"a": 1})
