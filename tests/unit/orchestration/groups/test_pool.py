"""The pool of warm groups, through its actor: every order of events, one thing at a time, beside a fake Ray Train."""

import itertools
import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from scalestudy.orchestration.groups.events import EpochDone, Failure, Retried, Running
from scalestudy.orchestration.groups.failures import UNCOUNTED, Loss
from scalestudy.orchestration.groups.pool import CLOSING_SECONDS
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.sweep.search import HITS
from tests.support.pool_study import (
    HISTORY,
    STALLED,
    UPTIME,
    Study,
    check,
    everybody_acts,
    kill,
    lose_controller,
    lost,
    no_waiting,
    numbers,
    run,
    story,
    study_run,
    trials,
    until_epoch,
    until_training,
)

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


# --- a table: what happens, and what the trials come to -----------------------------------------------------------


def request(trial_id="t0", size=1, fate="finished", **order):
    """A trial asks for workers."""
    return lambda study: study.request(trial_id, size, fate, **order)


def training(trial_id="t0"):
    """Goes on until all ranks of the trial train."""
    return lambda study: until_training(study, trial_id)


def epoch(number=1, trial_id="t0"):
    """Goes on until the trial has told that epoch."""
    return lambda study: until_epoch(study, trial_id, number)


def drain(node):
    return lambda study: study.ray.drain_node(node)


def lose(node):
    return lambda study: study.ray.lose_node(node)


def release(trial_id):
    return lambda study: study.release(trial_id)


def stop(number, trial_id="t0"):
    """A scheduler ends the trial after that epoch."""
    return lambda study: study.stop(trial_id, number)


def follow_anew(trial_id="t0"):
    return lambda study: study.follow_anew(trial_id)


def prepare(*sizes):
    return lambda study: study.actor.prepare(*sizes)


def join(node, slots):
    return lambda study: study.join(node, slots)


async def drain_no_more(study):
    study.ray.draining.clear()
    await study.actor.set_nodes(study.ray.nodes())


async def nothing_starts(study):
    await study.ray.driver()
    assert not study.ray.fits


async def left_within_a_step(study):
    """The ranks leave a trial as soon as rank 0, which has only just begun it, is told to."""
    leader, peer = study.ray.history
    await study.ray.step(leader)
    await study.tick()
    await study.ray.step(leader)
    assert (leader.given, leader.alive, peer.alive) == (None, True, True)
    assert study.events["t0"] == []


async def nobody_follows_for_long(study):
    """The trial's driver may have been stopped with its Tune process, and go on."""
    for _ in range(100):
        study.clock.now += 10
        await study.act()
        await study.tick()


async def t1_ends_before_t0_hears_anything(study):
    await study.settle(rounds=30)
    assert study.ended("t1").status == "finished"
    assert not study.events["t0"]


async def the_idle_group_is_told_to_end(study):
    (group,) = study.pool.groups.values()
    assert (group.slots, group.state) == ({"a": 2}, "stopping")


def is_given_up(group_id, removals):
    """A group was given up, whose room is given back at once and again until its controller has died."""

    async def step(study):
        assert group_id not in study.pool.groups
        assert len(study.hands.removed) == removals

    return step


async def killed_for_memory(study):
    killed = {1: "OutOfMemoryError: the node was low on memory"}
    loss = Loss(incarnation=study.fit.workers[0].incarnation, cause="worker_lost", out_of_memory=killed)
    assert await study.actor.workers_lost(study.fit.group_id, loss)


async def lose_controller_and_its_reservation(study):
    tag = study.fit.tag
    await lose_controller(study)
    assert study.hands.removed == [tag]


async def lose_part(study):
    """A node is lost; the group's workers on another one are killed, for nobody else would end them."""
    await study.ray.lose_node("b")
    assert not any(worker.alive for worker in study.ray.history)


async def settle(study):
    await study.settle()


async def driver(study):
    """The driver carries out the pool's orders."""
    await study.ray.driver()


async def close(study):
    await study.actor.close()


async def leave(study):
    """Goes on until no trial is in the ranks' hands."""
    while study.ray.training():
        await study.act()


def freeze(*ranks):
    """The ranks hang, and the pool's clock passes the limit of stalled trials: they are killed."""

    async def step(study):
        fit = study.fit
        for rank in ranks:
            fit.workers[rank].frozen = True
        await study.later(STALLED + 1)
        assert not any(worker.alive for worker in fit.workers)

    return step


def unstartable(size):
    async def step(study):
        study.ray.unstartable.add(size)

    return step


def until_told(count):
    """Rank 0's steps, until it has told so many posts of its first trial."""

    async def step(study):
        fit = study.fit
        while study.ray.progress.get((fit.workers[0].incarnation, 1), 0) < count:
            for worker in fit.workers:
                await study.ray.step(worker)

    return step


@dataclass(frozen=True, kw_only=True)
class End:
    """What a trial comes to; None: not looked at."""

    status: str = "finished"
    attempts: int | None = 1
    error: str | None = None  # its kind
    message: str | None = None
    rank: int | None = None  # whose error it is
    lost: tuple[tuple[int, str], ...] = ()
    kinds: str | None = None  # of its events
    nodes: str | None = None  # where it was trained at last
    epochs: tuple[int, ...] | None = None
    flags: tuple[str, ...] | None = None

    def of(self, study, trial_id):
        """The trial's end, as far as this one says something."""
        ended = study.ended(trial_id)
        facts = {
            "status": ended.status,
            "attempts": ended.attempts,
            "error": ended.error.kind if ended.error else None,
            "message": ended.error.message if ended.error else None,
            "rank": ended.error.rank if ended.error else None,
            "lost": tuple(lost(ended)),
            "kinds": " ".join(study.kinds(trial_id)),
            "nodes": "".join(sorted({worker.node for worker in ended.world.workers})),
            "epochs": tuple(numbers(ended)),
            "flags": ended.flags,
        }
        always = ("error", "rank")
        return End(**{name: fact for name, fact in facts.items() if name in always or getattr(self, name) is not None})


@dataclass(frozen=True, kw_only=True)
class Row:
    """A story of the pool. ends: of its trials. served: trials of each worker that ever was, or how many took each."""

    story: str
    slots: dict[str, int]
    steps: list[Any]
    ends: dict[str, End] = field(default_factory=dict)
    served: list[int] | None = None
    given_up: list[str] = field(default_factory=list)  # trials that were put off too often
    put_off: str | None = None  # why t0 was, each time
    nodes: str | None = None  # where workers were started
    told: str = ""  # nodes whose workers ended because they were told, and were not killed
    settings: dict[str, Any] = field(default_factory=dict)


FINISHED = End()
PREEMPTED = ((1, "preempted"), (2, "preempted"), (3, "preempted"))
LEFT_TWICE = TrialRecord(
    attempts=2, failures=[Failure(attempt=number, kind="preempted", message="m") for number in (1, 2)]
)
ENGINES_LOST = TrialRecord(
    attempts=2, failures=[Failure(attempt=number, kind="engine_lost", message=f"m{number}") for number in (1, 2)]
)
TABLE = [
    # --- trials that nothing disturbs
    Row(
        story="a trial is trained and ended",
        slots={"a": 2},
        steps=[request(size=2)],
        ends={"t0": End(kinds="Running EpochDone EpochDone Ended", epochs=(1, 2))},
    ),
    Row(
        story="trials of one size share one group",
        slots={"a": 2},
        steps=[trials(2, 2, 2)],
        ends=dict.fromkeys(["t0", "t1", "t2"], FINISHED),
        served=[3, 3],
    ),
    Row(
        story="another size takes the place of an idle group",
        slots={"a": 2},
        steps=[trials(1, 2, 1)],
        ends=dict.fromkeys(["t0", "t1", "t2"], FINISHED),
    ),
    Row(
        story="a group is replaced after its number of trials",
        slots={"a": 1},
        steps=[trials(1, 1, 1, 1, 1)],
        served=[2, 2, 1],
        settings={"trials_per_group": 2},
    ),
    Row(
        story="what used workers give back goes to fresh ones, and so does every later trial",
        slots={"a": 2},
        steps=[trials(2, 2), request("t2", 2, fate="needs_fresh_workers"), request("t3", 2), request("t4", 2)],
        ends={
            **dict.fromkeys(["t0", "t1", "t3", "t4"], FINISHED),
            "t2": End(attempts=2, lost=((1, "used_workers"),)),
        },
        served=[3, 3, 1, 1, 1, 1, 1, 1],
        settings={"failures": 0},
    ),
    Row(
        story="two trials at a time on one host are flagged",
        slots={"a": 2},
        steps=[trials(1, 1)],
        ends=dict.fromkeys(["t0", "t1"], End(flags=("shared_node",))),
    ),
    Row(
        story="undisturbed trials are not flagged",
        slots={"a": 2},
        steps=[trials(1, 1)],
        ends=dict.fromkeys(["t0", "t1"], End(flags=())),
        settings={"exclusive": True},
    ),
    Row(
        story="a diverged trial leaves the group warm",
        slots={"a": 1},
        steps=[request(fate="diverged"), request("t1")],
        ends={"t0": End(status="diverged"), "t1": FINISHED},
        served=[2],
    ),
    Row(
        story="a group that was ordered ahead serves the first trial",
        slots={"a": 2},
        steps=[prepare(2), driver, request(size=2)],
        ends={"t0": FINISHED},
        served=[1, 1],
    ),
    *(
        Row(
            story=f"workers are placed by {placement}",
            slots={"a": 4, "b": 4},
            steps=[prepare(2), trials(2, 3, 6)],
            ends={f"t{number}": End(nodes=nodes) for number, nodes in enumerate(found)},
            settings={"placement": placement},
        )
        for placement, found in (("pack", ("a", "b", "ab")), ("spread", ("ab", "ab", "ab")))
    ),
    # --- attempts that break
    Row(
        story="an exception is final and costs the group only",
        slots={"a": 2},
        steps=[request(size=2, fate="exception"), request("t1", 2)],
        ends={"t0": End(status="failed", error="exception", rank=1), "t1": FINISHED},
        served=[1, 1, 1, 1],
    ),
    Row(
        story="a GPU that fails costs an attempt, and the next one has workers of another life",
        slots={"a": 2},
        steps=[request(size=2, fate="loses_its_gpu"), request("t1", 2)],
        ends={"t0": End(attempts=2, lost=((1, "device_lost"),)), "t1": FINISHED},
        served=[1, 1, 2, 2],
    ),
    Row(
        story="out of memory is final and costs the group only",
        slots={"a": 2},
        steps=[request(size=2, fate="out_of_memory"), request("t1", 2)],
        ends={"t0": End(status="out_of_memory", error="out_of_memory", rank=1), "t1": FINISHED},
        served=[1, 1, 1, 1],
    ),
    Row(
        story="a worker killed for memory is a result",
        slots={"a": 2},
        steps=[request(size=2), training(), killed_for_memory],
        ends={"t0": End(status="out_of_memory", error="out_of_memory", rank=1)},
    ),
    Row(
        story="what a dead controller has reserved is given back",
        slots={"a": 1},
        steps=[request(), training(), lose_controller_and_its_reservation],
        ends={"t0": End(attempts=2, lost=((1, "controller_lost"),))},
    ),
    Row(
        story="a lost worker means another attempt without doubled epochs",
        slots={"a": 2},
        steps=[request(size=2), training(), until_told(2), kill(1)],
        ends={
            "t0": End(
                attempts=2,
                lost=((1, "worker_lost"),),
                kinds="Running EpochDone Retried Running EpochDone Ended",
                epochs=(1, 2),
            )
        },
    ),
    *(
        Row(
            story=f"a trial may lose {failures} attempts to one cause",
            slots={"a": 1},
            steps=[request(), *[training(), kill(0)] * (failures + 1)],
            ends={
                "t0": End(
                    status="failed",
                    attempts=failures + 1,
                    error="worker_lost",
                    lost=tuple((number, "worker_lost") for number in range(1, failures + 2)),
                )
            },
            settings={"failures": failures},
        )
        for failures in (0, 1, 2)
    ),
    Row(
        story="every cause has a budget of its own",
        slots={"a": 1},
        steps=[request(), *[training(), kill(0), training(), freeze(0), training(), lose_controller] * 2],
        ends={"t0": End(attempts=7, lost=tuple(enumerate(["worker_lost", "stalled", "controller_lost"] * 2, start=1)))},
    ),
    Row(
        story="a frozen worker is found and its trial tried again",
        slots={"a": 2},
        steps=[request(size=2), training(), freeze(1)],
        ends={"t0": End(attempts=2, lost=((1, "stalled"),))},
    ),
    Row(
        story="a released trial that its ranks do not leave is broken off as stalled",
        slots={"a": 2},
        steps=[request(size=2), training(), release("t0"), request("t1", 2), freeze(0, 1)],
        ends={"t1": FINISHED},
    ),
    Row(
        story="a group that never starts puts off the trials of its size only",
        slots={"a": 2},
        steps=[unstartable(2), trials(2, 2, 1)],
        ends={"t2": FINISHED},
        given_up=["t0", "t1"],
    ),
    # --- trials that are given back or stopped, and Tune processes that vanish
    Row(
        story="a released trial is left within a step and its group stays warm",
        slots={"a": 2},
        steps=[request(size=2, fate="hangs"), training(), request("t1", 2), release("t0"), left_within_a_step],
        ends={"t1": FINISHED},
        served=[2, 2],
    ),
    Row(
        story="a stopped trial keeps the epochs up to its rung and leaves the group warm",
        slots={"a": 2},
        steps=[request(size=2), epoch(1), stop(1), request("t1", 2)],
        ends={"t0": End(status="stopped", epochs=(1,)), "t1": FINISHED},
        served=[2, 2],
    ),
    Row(
        story="a silent follower keeps its lease",
        slots={"a": 1},
        steps=[request(), epoch(1), nobody_follows_for_long],
        ends={"t0": End(kinds="Running EpochDone EpochDone Ended")},
        served=[1],
    ),
    Row(
        story="a waiting trial can be released",
        slots={"a": 1},
        steps=[request(fate="hangs"), request("t1"), release("t1"), release("t0"), request("t2")],
        ends={"t2": FINISHED},
        served=[1],
    ),
    Row(
        story="a trial whose follower died trains on and is told again",
        slots={"a": 1},
        steps=[request(), epoch(1), follow_anew()],
        ends={
            "t0": End(
                attempts=2,
                lost=((1, "tune_trial"),),
                kinds="Running EpochDone Retried Running EpochDone Ended",
                flags=(),
            )
        },
        served=[1],
    ),
    Row(
        story="followers have a budget too",
        slots={"a": 1},
        steps=[request(fate="hangs"), training(), follow_anew(), follow_anew()],
        ends={"t0": End(status="failed", attempts=2, error="tune_trial", lost=((1, "tune_trial"), (2, "tune_trial")))},
        settings={"failures": 1},
    ),
    Row(
        story="a follower that comes after the end hears all of it",
        slots={"a": 1},
        steps=[request(), everybody_acts, follow_anew()],
        ends={"t0": End(kinds="Running EpochDone EpochDone Ended")},
    ),
    # --- nodes that go
    Row(
        story="a lost node costs an attempt and its group",
        slots={"a": 2, "b": 2},
        steps=[request(size=2), training(), lose("a")],
        ends={"t0": End(attempts=2, lost=((1, "node_lost"),), nodes="b")},
    ),
    Row(
        story="a group that loses a node loses all its workers and is started anew where there is room",
        slots={"a": 2, "b": 2},
        steps=[request(size=3), training(), lose_part, join("c", 2)],
        ends={"t0": End(attempts=2, lost=((1, "node_lost"),), nodes="ac")},
    ),
    Row(
        story="a node that joins in time gives room",
        slots={"a": 2, "b": 2},
        steps=[request(size=3), lose("b"), lambda study: study.later(STALLED - 1), join("c", 1)],
        ends={"t0": FINISHED},
    ),
    Row(
        story="a node that drains no more has room again",
        slots={"a": 1, "b": 1},
        steps=[drain("a"), request(size=2), nothing_starts, drain_no_more],
        ends={"t0": FINISHED},
    ),
    Row(
        story="an order that nobody has taken yet is taken back",
        slots={"a": 1, "b": 1},
        steps=[request(), drain("a")],
        ends={"t0": End(nodes="b")},
        nodes="b",
    ),
    Row(
        story="nothing is placed on a node that drains",
        slots={"a": 4, "b": 3},
        steps=[drain("a"), trials(1, 2, 1, 3)],
        ends=dict.fromkeys(["t0", "t1", "t2", "t3"], FINISHED),
        nodes="b",
    ),
    Row(
        story="no group starts ahead of need on a node that drains",
        slots={"a": 2, "b": 1},
        steps=[drain("a"), prepare(2), nothing_starts, prepare(1), driver],
        nodes="b",
    ),
    Row(
        story="a size that the nodes can't hold is put off and holds nobody back",
        slots={"a": 2, "b": 2},
        steps=[request(size=3), lose("b"), request("t1", 2), t1_ends_before_t0_hears_anything],
        ends={"t1": FINISHED},
        given_up=["t0"],
        put_off=" ".join(["no_room"] * HITS),
    ),
    Row(
        story="an idle group on a node that drains ends and another serves elsewhere",
        slots={"a": 2, "b": 2},
        steps=[request(size=2), settle, drain("a"), the_idle_group_is_told_to_end, request("t1", 2)],
        ends={"t1": End(nodes="b")},
        told="a",
    ),
    Row(
        story="a group that starts on a node that drains is given up and its trial has another",
        slots={"a": 2, "b": 2},
        steps=[request(size=2), driver, drain("a"), is_given_up("group-1-of-2", removals=3)],
        ends={"t0": End(nodes="b")},
    ),
    Row(
        story="a group on other nodes stays warm",
        slots={"a": 2, "b": 2},
        steps=[request(size=2), settle, drain("b"), request("t1", 2)],
        ends={"t1": FINISHED},
        served=[2, 2],
    ),
    Row(
        story="leaving a node is on no budget",
        slots=dict.fromkeys("abcd", 1),
        steps=[
            request(checkpoints="s"),
            *(step for node in "abc" for step in (training(), drain(node), leave)),
        ],
        ends={"t0": End(attempts=4, lost=PREEMPTED, nodes="d")},
        settings={"failures": 0},
    ),
    Row(
        story="attempts that earlier engines left are on no budget either",
        slots={"a": 1},
        steps=[request(so_far=LEFT_TWICE)],
        ends={"t0": End(attempts=3, lost=PREEMPTED[:2])},
        settings={"failures": 0},
    ),
    Row(
        story="a trial without checkpoints trains on, and its group ends after it",
        slots={"a": 1, "b": 1},
        steps=[request(), training(), drain("a"), request("t1")],
        ends={"t0": End(nodes="a"), "t1": End(nodes="b")},
    ),
    Row(
        story="a node that goes before the trial has left is a lost one",
        slots={"a": 2, "b": 2},
        steps=[request(size=2, checkpoints="s"), training(), drain("a"), lose("a")],
        ends={"t0": End(attempts=2, lost=((1, "node_lost"),))},
    ),
    Row(
        story="a trial that has left and finds no room is told so",
        slots={"a": 2, "b": 2},
        steps=[request(size=3, checkpoints="s"), training(), drain("b")],
        given_up=["t0"],
        put_off=" ".join(["preempted"] + ["no_room"] * HITS),
    ),
    Row(
        story="a group that breaks on a node that drains is not started again",
        slots={"a": 2, "b": 2},
        steps=[request(size=2), training(), drain("a"), kill(1)],
        ends={"t0": End(attempts=2, lost=((1, "worker_lost"),), nodes="b")},
    ),
    # --- what earlier engines have left
    Row(
        story="failures of earlier engines count",
        slots={"a": 1},
        steps=[request(so_far=HISTORY), training(), kill(0)],
        ends={
            "t0": End(
                status="failed",
                attempts=3,
                error="worker_lost",
                lost=((1, "worker_lost"), (3, "worker_lost")),
                flags=("shared_node",),
            )
        },
        settings={"failures": 1},
    ),
    Row(
        story="a trial that has lost too many engines is not tried again",
        slots={"a": 1},
        steps=[request(so_far=ENGINES_LOST)],
        ends={
            "t0": End(
                status="failed",
                attempts=2,
                error="engine_lost",
                message="m2",
                lost=((1, "engine_lost"), (2, "engine_lost")),
                kinds="Ended",
            )
        },
        served=[],
        settings={"failures": 1},
    ),
    # --- the end of the study
    Row(
        story="a trial that comes after close is refused and no group starts",
        slots={"a": 1},
        steps=[close, request(), prepare(1)],
        ends={"t0": End(status="failed", error="stopped")},
        served=[],
    ),
]


def check_records(study):
    """What a fold of the told events knows of each trial is what its end says: the pool and the journal agree."""
    for trial_id, events in study.events.items():
        if trial_id in [*study.released, *study.given_up] or not events:
            continue
        so_far = study.orders[trial_id].so_far
        record = fold(events, so_far)
        assert record.ended == events[-1], trial_id
        assert sorted(record.epochs) == numbers(record.ended), trial_id
        assert record.world == record.ended.world, trial_id
        assert 0 <= record.ended.wall_seconds < UPTIME / 2, f"{trial_id}: its moments are of one clock"
        known = {(failure.attempt, failure.kind) for failure in record.failures}
        assert known <= set(lost(record.ended)), trial_id
        assert len(lost(record.ended)) - len(known) <= 1, "only the last loss may be told by the end alone"
        if any(isinstance(event, Running) for event in events):
            assert record.attempts <= record.ended.attempts, trial_id
        assert record.flags <= set(record.ended.flags) | {"warm_up_included"}, trial_id


def fold(events, so_far):
    """A record of the events that are news, as a study keeps it."""
    record = deepcopy(so_far)
    for moment, event in enumerate(events):
        if record.is_news(event):
            record.apply(event, float(moment))
    return record


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.story)
def test_the_pool(row):
    async def story(study):
        for step in row.steps:
            await step(study)

    study = study_run(story, slots=row.slots, **row.settings)
    assert {trial_id: end.of(study, trial_id) for trial_id, end in row.ends.items()} == row.ends
    assert study.given_up == row.given_up
    if row.put_off is not None:
        assert " ".join(event.error.kind for event in study.of_type("t0", Retried)) == row.put_off
    if row.served is not None:
        assert [worker.served and len(worker.taken) for worker in study.ray.history] == row.served
    if row.nodes is not None:
        assert {worker.node for worker in study.ray.history} == set(row.nodes)
    assert all(worker.ended for worker in study.ray.history if worker.node in row.told)
    check(study)
    check_records(study)


# --- closing ------------------------------------------------------------------------------------------------------


@story(slots={"a": 1})
async def test_nothing_is_recorded_after_the_end_that_close_gave(study):
    await study.train("t0")
    (worker,) = study.ray.history
    await study.actor.close()
    for _ in range(10):
        await study.ray.step(worker)
        if worker.given is None:
            break
    await study.settle()
    assert study.kinds("t0") == ["Running", "Ended"]


@story(slots={"a": 1})
async def test_close_kills_what_does_not_end_within_seconds(study):
    await study.train("t0")
    (worker,) = study.ray.history
    worker.frozen = True
    await study.actor.close()
    await study.later(CLOSING_SECONDS - 1)
    assert worker.alive
    await study.later(2)
    assert not worker.alive
    fit = study.fit
    await study.ray.restart(fit)
    assert not study.ray.fits, "the controller does not start it again"


# --- every order of events ----------------------------------------------------------------------------------------

FATES = ["finished"] * 6 + ["diverged", "exception", "out_of_memory"]


def check_end(study):
    """What must hold of every trial and of every group's ranks."""
    assert not study.open, f"never ended: {study.open}"
    for trial_id, events in study.events.items():
        kinds = study.kinds(trial_id)
        cut = trial_id in [*study.released, *study.given_up]
        assert kinds.count("Ended") == (not cut), f"{trial_id}: {kinds}"
        assert cut or kinds[-1] == "Ended"
        epochs = [event.record.epoch for event in events if isinstance(event, EpochDone)]
        assert len(epochs) == len(set(epochs))
        retries = study.of_type(trial_id, Retried)
        assert [event.attempt for event in retries] == list(range(1, 1 + len(retries)))
        causes = Counter(event.error.kind for event in retries)
        assert max((causes[kind] for kind in causes if kind not in UNCOUNTED), default=0) <= study.failures
    check_records(study)
    for _, workers in itertools.groupby(study.ray.history, key=lambda worker: worker.incarnation):
        taken = sorted((worker.taken for worker in workers), key=len)
        assert all(shorter == taken[-1][: len(shorter)] for shorter in taken)


async def fault(study, chance):
    """Something that goes wrong, or that somebody does."""
    nodes, fits = list(study.ray.slots), list(study.ray.fits.values())
    kinds = ["worker", "worker", "release", "stop", "tune process", "controller", "node", "drain"]
    kind = chance.choice(kinds)
    if kind == "worker":
        study.ray.harm(chance)
    elif kind == "release" and study.open:
        await study.release(chance.choice(study.open))
    elif kind == "stop" and study.open:
        await stop_after_what_was_seen(study, chance.choice(study.open))
    elif kind == "tune process" and study.open:
        await study.follow_anew(chance.choice(study.open))
    elif kind == "controller" and fits:
        await study.ray.give_up(chance.choice(fits), "ActorDiedError", "controller_lost")
    elif kind == "node" and len(nodes) > 1 and chance.random() < 0.2:
        await study.ray.lose_node(chance.choice(nodes))
    elif kind == "drain" and len(nodes) > 1 and chance.random() < 0.4:
        await study.ray.drain_node(chance.choice(nodes))


async def stop_after_what_was_seen(study, trial_id):
    """As a scheduler does, at the last epoch that it has heard of; before the first it has nothing to say."""
    epochs = [event.record.epoch for event in study.of_type(trial_id, EpochDone)]
    if epochs:
        ended = await study.stop(trial_id, epochs[-1])
        assert ended.status in ("stopped", "finished")
        assert numbers(ended) == epochs


async def explore(seed):
    """A random study: its cluster, trials, faults and the order of everything come from the seed."""
    chance = random.Random(seed)
    slots = {name: chance.randint(1, 3) for name in "abc"[: chance.randint(1, 3)]}
    study = Study(
        slots=slots,
        hosts=chance.choice([{}, dict.fromkeys("ab", "one machine")]),
        exclusive=chance.random() < 0.5,
        failures=chance.randint(0, 2),
        trials_per_group=chance.choice([1, 3, 200]),
    )
    faults, at_a_time = chance.choice([0, 0.02, 0.05]), chance.randint(1, 5)
    planned = [(f"t{n}", chance.randint(1, sum(slots.values())), chance.choice(FATES)) for n in range(8)]
    if chance.random() < 0.5:
        planned.sort(key=lambda trial: trial[1])
    if chance.random() < 0.1:
        study.ray.unstartable.add(planned[0][1])
    if chance.random() < 0.5:
        await study.actor.prepare(planned[0][1])
    while planned or study.open:
        roll = chance.random()
        if planned and len(study.open) < at_a_time and roll < 0.2:
            await study.request(*planned.pop(0), checkpoints=chance.choice([None, "s"]))
        elif study.open and roll < 0.4:
            await study.follow(chance.choice(study.open))
        elif roll > 1 - 3 * faults:
            await fault(study, chance)
        elif chance.random() < 0.002:
            await study.later(STALLED + 1)
        else:
            await chance.choice(study.ray.actions())()
        study.clock.now += 0.001
        check(study)
        if not planned and chance.random() < 0.01:
            break
    if faults:
        await study.later(STALLED + 1)  # what is frozen is found
    await study.settle()
    check_end(study)
    await study.actor.close()
    for _ in range(20):
        await study.act()
        await study.later(STALLED / 4)
    assert study.ray.closed
    assert not study.ray.fits, "a group did not end"


@pytest.mark.parametrize("block", range(4))
def test_any_order_of_events(block):
    for seed in range(25 * block, 25 * (block + 1)):
        try:
            run(lambda seed=seed: explore(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@story(slots={"t": 2, "a": 2}, types={"a": "A100", "t": "T4"}, placement="spread")
async def test_a_trial_waits_for_gpus_of_one_type_and_its_record_names_it(study):
    await trials(2, 2, 3)(study)
    wanted = await study.actor.share("none", [])
    assert (wanted.why, wanted.num_workers, wanted.room, wanted.largest_group) == ("shrunken", 3, 4, 2)
    await study.settle()
    worlds = [study.ended(f"t{number}").world for number in (0, 1)]
    assert {(world.nodes, world.accelerator) for world in worlds} == {(1, "A100")}
    (put_off, *_) = study.of_type("t2", Retried)
    assert put_off.error.message == (
        "nodes were lost or are draining: the cluster has room for 2 workers on GPUs of one type (A100 2, T4 2), "
        "and a study never mixes types, and the trial needs 3; add nodes, or remove this num_gpus"
    )


@pytest.mark.parametrize("seed", range(20))
def test_closing_at_any_moment_ends_every_trial_and_group(seed):
    async def scenario():
        chance = random.Random(seed)
        study = Study(slots={"a": 2, "b": 1}, exclusive=chance.random() < 0.5)
        for number in range(4):
            await study.request(f"t{number}", chance.randint(1, 3))
        for _ in range(chance.randint(0, 120)):
            await chance.choice(study.ray.actions())()
            if chance.random() < 0.02:
                study.ray.harm(chance)
        await study.actor.close()
        await study.later(STALLED + 1)
        await study.settle()
        check_end(study)

    run(scenario)
