"""Users' Ray Train loops on a real Ray: how their reports are counted and timed, and how each of their ends is told."""

import itertools
from collections import Counter

import pytest
import ray

from scalestudy.orchestration.groups.events import EpochDone, Retried
from scalestudy.orchestration.groups.host import LoopGroups
from tests.support import loops
from tests.support.groups import group_pool, wait_until
from tests.support.processes import mentioning

METRICS = {"accuracy": "eval_acc", "samples": "seen", "clock": "own_seconds"}
TRIAL_SECONDS = 20.0


@pytest.fixture(scope="module")
def pool(ray_session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    groups = LoopGroups(storage=str(folder / "checkpoints"), datasets={"train": "tests.support.loops:numbers"})
    with group_pool(folder / "logs", loop=groups, trials_per_group=1, trial_seconds=TRIAL_SECONDS) as pool:
        yield pool


def config(loop, **arguments):
    own = {"loop": f"tests.support.loops:{loop}", "metrics": METRICS, "loop_args": arguments}
    return {"model_args": {}, **own}


@pytest.fixture(scope="module")
def ends(pool, tmp_path_factory):
    """How each of these loops ends, side by side: those that hang are ended by the limit of a trial."""
    killed = before(3, "kill", rank=1, once=str(tmp_path_factory.mktemp("killed") / "once"))
    trials = {
        "hangs": pool.request(1, epochs=2, **config("counts", breaks=before(2, "hang"))),
        "one rank": pool.request(2, **config("reports_on_one_rank")),
        "counts": pool.request(2, epochs=4, **config("counts", steps=True, sleep=0.5)),
        "killed": pool.request(2, epochs=4, **config("counts", sleep=0.7, breaks=killed)),
        "raises": pool.request(2, epochs=9, **config("counts", breaks=before(7, "raise", rank=1))),
        "exits": pool.request(1, epochs=2, **config("counts", breaks=before(2, "exit"))),
        "target": pool.request(1, stop_at=0.2, epochs=9, **config("counts", sleep=0.3)),
        "leaves": pool.request(1, **config("leaves_a_process")),
        "sums": pool.request(1, **config("sums")),
    }
    return {name: (pool.events(trial), pool.release(trial))[0] for name, trial in trials.items()}


def before(report, how, rank=0, once=""):
    """What a loop does before a report of a rank."""
    return {"how": how, "rank": rank, "at": report, "once": once}


def said(events):
    ended = events[-1]
    return ended.status, ended.error.kind, ended.error.message


def test_reports_are_epochs_with_the_times_of_the_loop(ends):
    ended = ends["counts"][-1]
    assert (ended.status, ended.world.backend) == ("finished", "gloo")
    assert [each.epoch for each in ended.epochs] == [1, 2, 3, 4]
    assert [each.test_metric for each in ended.epochs] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [(each.samples, each.steps) for each in ended.epochs] == [(2560, 10)] * 4
    own = [each.more["clock"] for each in ended.epochs]  # seconds since its first line, by rank 0
    told = list(itertools.accumulate(each.train_seconds for each in ended.epochs))
    assert told == pytest.approx(own, abs=0.05)


def test_a_killed_worker_goes_on_from_rays_checkpoint(ends):
    events, ended = ends["killed"], ends["killed"][-1]
    assert (ended.status, ended.attempts) == ("finished", 2)
    assert [event.error.kind for event in events if isinstance(event, Retried)] == ["worker_lost"]
    told = Counter(event.record.epoch for event in events if isinstance(event, EpochDone))
    assert told == dict.fromkeys([1, 2, 3, 4], 1)
    assert "resumed" in ended.flags
    assert [each.samples for each in ended.epochs] == [2560] * 4


def test_a_loop_ends_at_its_target(ends):
    ended = ends["target"][-1]
    assert (ended.status, len(ended.epochs), ended.error) == ("at_target", 3, None)  # the next one confirms the second


def test_a_loop_that_a_scheduler_stops_leaves_at_once(pool, ends):
    trial = pool.request(1, epochs=2, **config("counts", breaks=before(2, "hang")))
    pool.events(trial, until=lambda event: isinstance(event, EpochDone))
    ended = ray.get(pool.actor.stop.remote(trial, 1), timeout=10)
    assert (ended.status, len(ended.epochs), ended.error) == ("stopped", 1, None)
    pool.release(trial)
    wait_until(lambda: not pool.look()["groups"], 10)


def test_an_exception_on_one_rank_ends_the_trial(ends):
    status, kind, message = said(ends["raises"])
    assert (status, kind) == ("failed", "exception")
    assert message.startswith("ValueError: broken before report 7")
    ended = ends["raises"][-1]
    assert (ended.attempts, ended.error.rank, len(ended.epochs)) == (1, 1, 6)


def test_sys_exit_is_an_exception(ends):
    status, kind, message = said(ends["exits"])
    assert (status, kind, ends["exits"][-1].attempts) == ("failed", "exception", 1)
    assert message.startswith("SystemExit: 0")


def test_a_loop_that_hangs_is_ended_by_the_limit(ends):
    status, kind, message = said(ends["hangs"])
    assert (status, kind) == ("failed", "time_limit")
    assert "last while in the user's loop" in message


def test_ranks_that_have_not_reported_are_named(ends):
    status, kind, message = said(ends["one rank"])
    assert (status, kind) == ("failed", "time_limit")
    assert "rank 0 waited at a report that rank 1 had not made" in message


def test_what_a_loop_leaves_behind_ends(ends):
    assert ends["leaves"][-1].status == "finished"
    assert not mentioning(loops.LEFT)


def test_a_data_set_reaches_the_loop(ends):
    assert ends["sums"][-1].epochs[0].test_metric == sum(range(100))
