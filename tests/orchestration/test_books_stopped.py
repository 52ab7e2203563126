"""Stage 4: the books of the worker groups: trials that are stopped, given back or left alone, and who looks on."""

import asyncio

import pytest

from scalestudy.orchestration.groups import model
from tests.support.books_study import STALLED, lost, no_waiting, study_run, until_epoch, until_training
from tests.support.fake_ray_train import epoch_record

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


# --- what is stopped ---------------------------------------------------------------------------------------------


def test_a_stopped_trial_keeps_the_epochs_up_to_its_rung_and_leaves_the_group_warm():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_epoch(study, "t0", 1)
        first = await study.stop("t0", 1)
        assert (first["status"], [epoch["epoch"] for epoch in first["epochs"]]) == ("stopped", [1])
        assert (first["error"], first["attempts"]) == (None, 1)
        await study.lease("t1", 2)

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t1")["status"] == "finished"
    assert [worker.served for worker in study.ray.history] == [2, 2]


def test_stopping_twice_gives_the_same_end():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_epoch(study, "t0", 1)
        first = await study.groups.stop("t0", 1)
        study.clock.now += 5
        assert await study.groups.stop("t0", 1) == first
        assert (await study.groups.events("t0", 99)) == [first]
        await study.stop("t0", 1)
        assert await study.groups.stop("t0", 1) is None

    study_run(prepare, slots={"a": 1})


@pytest.mark.parametrize("fate", ["finished", "diverged"])
def test_a_trial_that_ran_on_and_ended_before_it_was_stopped_is_stopped_all_the_same(fate):
    """What is told depends on the rung alone, not on how far the training has run ahead."""

    async def prepare(study):
        await study.lease("t0", 1, fate)
        for _ in range(20):
            for action in study.ray.actions():
                await action()
        assert study.ray.history[0].served == 1
        assert study.ray.history[0].order is None
        ended = await study.stop("t0", 1)
        assert (ended["status"], [epoch["epoch"] for epoch in ended["epochs"]]) == ("stopped", [1])
        assert study.groups._ledger.best is None

    study_run(prepare, slots={"a": 1})


def test_a_trial_stopped_at_its_last_epoch_finishes():
    async def prepare(study):
        await study.lease("t0", 1, config={"epochs": 2})
        await until_epoch(study, "t0", 2)
        assert study.open
        stopping = asyncio.ensure_future(study.stop("t0", 2))
        await study.tick()
        await study.ray.step(study.ray.history[0])
        assert (await stopping)["status"] == "finished"

    study_run(prepare, slots={"a": 1})


def test_a_trial_that_waits_can_be_stopped():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await study.lease("t1", 1, history={"epochs": [epoch_record(1), epoch_record(2)], "attempts": 1})
        ended = await study.stop("t1", 1)
        assert (ended["status"], len(ended["epochs"])) == ("stopped", 1)
        assert (await study.groups.snapshot())["waiting"] in ([], ["t0"])
        await study.release("t0")

    study_run(prepare, slots={"a": 1})


def test_a_trial_that_does_not_leave_is_broken_off_as_stalled():
    async def prepare(study):
        await study.lease("t0", 2)
        await until_training(study, "t0")
        study.ray.history[1].frozen = study.ray.history[0].frozen = True
        await study.release("t0")
        await study.lease("t1", 2)
        study.clock.now += STALLED + 1
        await study.tick()
        assert not any(worker.alive for worker in study.ray.history)

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t1")["status"] == "finished"


def test_close_kills_what_does_not_end_within_seconds():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (worker,) = study.ray.history
        worker.frozen = True
        await study.groups.close()
        study.clock.now += model.CLOSING_SECONDS - 1
        await study.tick()
        assert worker.alive
        study.clock.now += 2
        await study.tick()
        assert not worker.alive
        (fit,) = study.ray.fits.values()
        await study.ray.restart(fit)
        assert not study.ray.fits, "the controller does not start it again"

    study_run(prepare, slots={"a": 1})


def test_a_trial_that_comes_back_waits_until_its_old_group_has_left_it():
    """Two groups never train one trial at a time: they would write the same checkpoints."""

    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await until_training(study, "t0")
        (old,) = study.ray.history
        await study.release("t0")
        study.released.clear()
        await study.lease("t0", 1)
        await study.lease("t1", 1)
        await study.ray.post(old, {"type": "epoch", "epoch": epoch_record(2)})  # of the old attempt: nobody's any more
        for _ in range(6):
            for action in [
                study.ray.driver,
                *(lambda w=w: study.ray.step(w) for w in study.ray.history if w is not old),
            ]:
                await action()
        assert study.ray.training() == {"t0": {"group-1-of-1"}, "t1": {"group-2-of-1"}}
        assert await study.groups.events("t0", 0) == []

    study = study_run(prepare, slots={"a": 3})
    assert [study.ended(trial_id)["status"] for trial_id in ("t0", "t1")] == ["finished"] * 2
    assert [epoch["epoch"] for epoch in study.ended("t0")["epochs"]] == [1, 2]


# --- Tune processes that vanish ----------------------------------------------------------------------------------


def test_a_trial_whose_follower_died_trains_on_and_is_told_again():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_epoch(study, "t0", 1)
        await study.follow_anew("t0")

    study = study_run(prepare, slots={"a": 1})
    kinds = [event["type"] for event in study.events["t0"]]
    assert kinds == ["running", "epoch", "retry", "running", "epoch", "ended"]
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], lost(ended)) == ("finished", 2, [(1, "tune_trial")])
    assert ended["flags"] == []
    assert [len(worker.taken) for worker in study.ray.history] == [1]


def test_followers_have_a_budget_too():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await until_training(study, "t0")
        await study.follow_anew("t0")
        await study.follow_anew("t0")

    study = study_run(prepare, slots={"a": 1}, failures=1)
    ended = study.ended("t0")
    assert (ended["status"], ended["attempts"], ended["error"]["kind"]) == ("failed", 2, "tune_trial")
    assert lost(ended) == [(1, "tune_trial"), (2, "tune_trial")]


def test_a_follower_that_comes_after_the_end_hears_all_of_it():
    async def prepare(study):
        await study.lease("t0", 1)
        for _ in range(20):
            for action in study.ray.actions():
                await action()
        await study.follow_anew("t0")

    study = study_run(prepare, slots={"a": 1})
    assert [event["type"] for event in study.events["t0"]] == ["running", "epoch", "epoch", "ended"]
    assert study.ended("t0")["attempts"] == 1


def test_a_lease_that_nobody_follows_any_more_is_given_back():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await until_training(study, "t0")
        study.open.remove("t0")
        await study.lease("t1", 1)
        waited = 0
        while waited < model.FOLLOWER_SECONDS + 10:
            (worker,) = study.ray.history
            await study.ray.step(worker)
            await study.follow("t1")
            study.clock.now += 10
            waited += 10
            await study.tick()
        with pytest.raises(LookupError, match="t0 has no lease"):
            await study.groups.events("t0", 0)
        study.events["t0"] = []

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t1")["status"] == "finished"
    assert len(study.ray.history) == 1


# --- looking at the books ----------------------------------------------------------------------------------------


def test_the_books_can_be_looked_at():
    async def prepare(study):
        await study.lease("t0", 1)
        await study.settle()
        await study.lease("t1", 2, "hangs")
        await study.lease("t2", 1)
        await until_training(study, "t1")
        shown = await study.groups.snapshot()
        (group,) = shown["groups"]
        assert group == {
            "group_id": "group-2-of-2", "num_workers": 2, "state": "leased", "trial": "t1", "served": 0,
            "nodes": {"a": 2},
        }  # fmt: skip
        assert [(lease["trial"], lease["attempt"], lease["group"]) for lease in shown["leases"]] == [
            ("t1", 1, "group-2-of-2"), ("t2", 1, None)
        ]  # fmt: skip
        assert (shown["waiting"], shown["evictions"], shown["room"]) == (["t2"], 1, {"a": 2})
        assert shown["cold_starts"].keys() == {"group-1-of-1", "group-2-of-2"}
        await study.release("t1")

    async def then(study):
        assert (await study.groups.snapshot())["listening"] == 0

    study_run(prepare, then, slots={"a": 2})


def test_no_question_is_left_open_when_trials_have_ended():
    async def prepare(study):
        for number, fate in enumerate(["finished", "diverged", "exception", "out_of_memory", "hangs"]):
            await study.lease(f"t{number}", 1, fate)
        await until_training(study, "t4")
        await study.release("t4")

    async def then(study):
        for _ in range(5):
            for action in study.ray.actions():
                await action()
        assert (await study.groups.snapshot())["listening"] == 0

    study_run(prepare, then, slots={"a": 1})


def test_groups_of_the_sizes_to_come_are_started_one_after_the_other():
    async def prepare(study):
        await study.groups.prepare(1, 2, 1)
        await study.ray.driver()
        assert list(study.ray.fits) == ["group-1-of-1"]
        for _ in range(4):
            for action in study.ray.actions():
                await action()
        assert list(study.ray.fits) == ["group-1-of-1", "group-2-of-2"]
        await study.lease("t0", 1)
        await study.lease("t1", 2)

    study = study_run(prepare, slots={"a": 3})
    assert list(study.ray.cold_starts) == ["group-1-of-1", "group-2-of-2"]
