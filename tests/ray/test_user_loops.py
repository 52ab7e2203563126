"""Users' Ray Train loops on a real Ray: how their reports are counted and timed, and how each of their ends is told."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import ray

from scalestudy.orchestration.groups.events import EpochDone, Retried
from scalestudy.orchestration.groups.host import LoopGroups
from scalestudy.training.pulse import AT_A_REPORT
from tests.support import loops
from tests.support.groups import group_pool, wait_until
from tests.support.processes import mentioning

METRICS = {"accuracy": "eval_acc", "samples": "seen", "clock": "own_seconds"}


@pytest.fixture(scope="module")
def pool(ray_session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    groups = LoopGroups(storage=str(folder / "checkpoints"), datasets={})
    with group_pool(folder / "logs", loop=groups, trials_per_group=1) as pool:
        yield pool


@pytest.fixture(scope="module")
def pool_with_data(ray_session, tmp_path_factory):
    """Apart: a group that has a Ray data set starts in twice the seconds."""
    folder = tmp_path_factory.mktemp("with-data")
    groups = LoopGroups(storage=str(folder / "checkpoints"), datasets={"train": "tests.support.loops:numbers"})
    with group_pool(folder / "logs", loop=groups, trials_per_group=1) as pool:
        yield pool


def config(loop, **arguments):
    return {"loop": f"tests.support.loops:{loop}", "metrics": METRICS, "loop_args": arguments}


@pytest.fixture(scope="module")
def ends(pool, pool_with_data, tmp_path_factory):
    """How each of these loops ends, side by side: the first one hangs, and is ended by the limit of a trial at last."""
    kill = before(3, "kill", once=str(tmp_path_factory.mktemp("killed") / "once"))
    trials = {
        "one rank": pool.request(2, **config("reports_on_one_rank")),
        "killed": pool.request(1, epochs=9, **config("counts", sleep=0.7, breaks=[kill, before(5, "hang")])),
        "exits": pool.request(
            2, epochs=9, **config("counts", steps=True, sleep=0.3, breaks=[before(5, "exit", rank=1)])
        ),
    }
    sums = pool_with_data.request(1, stop_at=4950.0, epochs=9, **config("sums_and_leaves_a_process"))
    one_rank, killed = trials.pop("one rank"), trials.pop("killed")
    before_stop = pool.events(killed, until=lambda event: isinstance(event, EpochDone) and event.record.epoch == 4)
    stopped = ray.get(pool.actor.stop.remote(killed, 4), timeout=10)
    pool.release(killed)
    summed = pool_with_data.end_of(sums)
    ends = {name: pool.end_of(trial) for name, trial in trials.items()}
    wait_until(lambda: ray.get(pool.actor.__ray_call__.remote(waits_at_a_report)))
    ray.get(pool.actor.__ray_call__.remote(no_time_left))
    return {**ends, "sums": summed, "one rank": pool.end_of(one_rank), "killed": (before_stop, stopped)}


def waits_at_a_report(actor):
    trained = [group.assignment for group in actor._pool.groups.values() if group.assignment]
    return any(beat.activity == AT_A_REPORT for each in trained for beat in each.beats.last.values())


def no_time_left(actor):
    actor._pool.limits = replace(actor._pool.limits, trial_seconds=0.0)


def before(report, how, rank=0, once=""):
    """What a loop does before a report of a rank."""
    return {"how": how, "rank": rank, "at": report, "once": once}


def test_reports_are_epochs_with_the_times_of_the_loop(ends):
    ended = ends["exits"]
    assert ended.world.backend == "gloo"
    assert [each.epoch for each in ended.epochs] == [1, 2, 3, 4]
    assert [each.test_metric for each in ended.epochs] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [(each.samples, each.steps) for each in ended.epochs] == [(2560, 10)] * 4
    own = [each.more["clock"] for each in ended.epochs]  # seconds since its first line, by rank 0
    told = list(itertools.accumulate(each.train_seconds for each in ended.epochs))
    assert told == pytest.approx(own, abs=0.05)


def test_code_that_exits_on_one_rank_ends_the_trial_with_its_exception(ends):
    """All reports before are counted."""
    ended = ends["exits"]
    assert (ended.status, ended.error.kind, ended.error.rank) == ("failed", "exception", 1)
    assert ended.error.message.startswith("SystemExit: 0")
    assert (ended.attempts, len(ended.epochs)) == (1, 4)


def test_a_killed_worker_goes_on_from_rays_checkpoint_until_a_scheduler_stops_it(pool, ends):
    """It hangs before its fifth report, and leaves at once."""
    events, ended = ends["killed"]
    assert [event.error.kind for event in events if isinstance(event, Retried)] == ["worker_lost"]
    told = Counter(event.record.epoch for event in events if isinstance(event, EpochDone))
    assert told == dict.fromkeys([1, 2, 3, 4], 1)
    assert (ended.status, ended.attempts, ended.error) == ("stopped", 2, None)
    assert "resumed" in ended.flags
    assert [each.samples for each in ended.epochs] == [2560] * 4
    wait_until(lambda: not pool.look()["groups"], 10)


def test_a_loop_that_hangs_is_ended_by_the_limit_and_ranks_that_have_not_reported_are_named(ends):
    ended = ends["one rank"]
    assert (ended.status, ended.error.kind) == ("failed", "time_limit")
    assert "rank 0 waited at a report that rank 1 had not made" in ended.error.message


def test_a_loop_ends_at_its_target(ends):
    """At its second report in a row that meets it: its data set's sum."""
    ended = ends["sums"]
    assert (ended.status, [each.test_metric for each in ended.epochs], ended.error) == ("at_target", [4950, 4950], None)


def test_what_a_loop_leaves_behind_ends(ends):
    assert ends["sums"].epochs
    wait_until(lambda: not mentioning(loops.LEFT), 20)
