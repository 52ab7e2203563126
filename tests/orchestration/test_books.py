"""Stage 4: the books of the worker groups, driven in this process: every order of events, and every fault."""

import asyncio
import itertools
import random
from dataclasses import dataclass, field

import pytest

from orchestration import worker_groups
from orchestration.books import GroupLimits
from orchestration.leases import Node
from orchestration.worker_groups import WorkerGroups
from tests.support.fake_ray_train import FakeClock, FakeRayTrain, epoch_record

STALLED, TRIAL_SECONDS = 100.0, 1_000.0


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Long polls answer at once; the watch looks each time that it is its turn."""
    monkeypatch.setattr(worker_groups, "POLL_SECONDS", 0)
    monkeypatch.setattr(worker_groups, "TICK_SECONDS", 0)


@dataclass
class Study:
    """The books, their clock, a fake Ray Train, and trials that follow their events as the Tune trainable does."""

    slots: dict[str, int]
    hosts: dict[str, str] = field(default_factory=dict)  # of raylets that share a machine
    exclusive: bool = False
    failures: int = 2
    trials_per_group: int = 200
    clock: FakeClock = field(default_factory=FakeClock)
    events: dict[str, list[dict]] = field(default_factory=dict)  # of every trial that was leased
    released: set[str] = field(default_factory=set)  # before their end
    open: list[str] = field(default_factory=list)

    def __post_init__(self):
        limits = GroupLimits(
            trial_seconds=TRIAL_SECONDS,
            stalled_seconds=STALLED,
            failures_per_trial=self.failures,
            trials_per_group=self.trials_per_group,
        )
        self.hosts = {node: self.hosts.get(node, node) for node in self.slots}
        nodes = [Node(node_id=node, slots=count, host=self.hosts[node]) for node, count in self.slots.items()]
        self.groups = WorkerGroups(nodes, limits, exclusive=self.exclusive, kill=FakeRayTrain.kill, clock=self.clock)
        self.ray = FakeRayTrain(self.groups, self.slots, self.hosts)
        self.watching = asyncio.ensure_future(self.groups.watch())

    async def lease(self, trial_id, num_workers, fate="finished"):
        self.events[trial_id] = []
        self.open.append(trial_id)
        await self.groups.lease({"trial_id": trial_id, "num_workers": num_workers, "fate": fate})

    async def follow(self, trial_id):
        seen = self.events[trial_id]
        seen.extend(await self.groups.events(trial_id, len(seen)))
        if seen and seen[-1]["type"] == "ended":
            self.open.remove(trial_id)
            await self.groups.release(trial_id)

    async def stop(self, trial_id):
        """A scheduler ends the trial before its time."""
        self.open.remove(trial_id)
        self.released.add(trial_id)
        await self.groups.release(trial_id)

    async def tick(self):
        for _ in range(3):
            await asyncio.sleep(0)

    async def settle(self, rounds=400):
        """Everything that can happen without a fault, fairly, until every trial has ended."""
        for _ in range(rounds):
            if not self.open:
                return
            for action in self.ray.actions():
                await action()
            for trial_id in list(self.open):
                await self.follow(trial_id)
            self.clock.now += 0.5
            await self.tick()

    def ended(self, trial_id):
        (event,) = [event for event in self.events[trial_id] if event["type"] == "ended"]
        return event


def run(scenario):
    """Runs an async scenario to its end."""

    async def main():
        try:
            return await asyncio.wait_for(scenario(), timeout=60)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    return asyncio.run(main())


def study_run(prepare=None, then=None, **settings):
    """A study that is filled with trials by `prepare`, settles, and is looked at by `then`."""

    async def scenario():
        study = Study(**settings)
        await prepare(study)
        await study.settle()
        if then:
            await then(study)
        return study

    return run(scenario)


def trials(*sizes, fate="finished"):
    async def prepare(study):
        for number, size in enumerate(sizes):
            await study.lease(f"t{number}", size, fate)

    return prepare


# --- one thing at a time ------------------------------------------------------------------------------------------


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


async def until_training(study, trial_id):
    while study.ray.training().get(trial_id) is None:
        for action in study.ray.actions():
            await action()


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


def test_a_released_trial_frees_its_workers_at_once_and_records_nothing_more():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await study.lease("t1", 1)
        await until_training(study, "t0")
        (old,) = study.ray.history
        await study.stop("t0")
        assert not old.alive
        await study.ray.post(old, {"type": "epoch", "epoch": epoch_record(1)})

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t1")["status"] == "finished"


def test_a_waiting_trial_can_be_released():
    async def prepare(study):
        await study.lease("t0", 1, "hangs")
        await study.lease("t1", 1)
        await study.stop("t1")
        await study.stop("t0")
        await study.lease("t2", 1)

    study = study_run(prepare, slots={"a": 1})
    taken = {trial for worker in study.ray.history for _, trial, _ in worker.taken}
    assert taken == {"t2"}


def test_a_trial_that_is_leased_again_takes_the_place_of_its_first_lease():
    """A Tune trial that starts anew after its process died."""

    async def prepare(study):
        await study.lease("t0", 1)
        await study.lease("t1", 1)
        await study.settle()
        await study.lease("t2", 1, "hangs")
        study.open.remove("t2")
        await until_training(study, "t2")
        await study.lease("t2", 1)
        for _ in range(9):
            for action in study.ray.actions():
                await action()
            check(study)

    study = study_run(prepare, slots={"a": 2})
    assert study.ended("t2")["status"] == "finished"


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
        await study.groups.post(
            fit.group_id, old.incarnation, 0, old.served, {"type": "epoch", "epoch": epoch_record(7)}
        )
        assert await study.groups.next_trial(fit.group_id, old.incarnation, 0) is None

    study = study_run(prepare, slots={"a": 1})
    assert [epoch["epoch"] for epoch in study.ended("t0")["epochs"]] == [1, 2]


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


def test_the_books_can_be_looked_at():
    async def then(study):
        shown = await study.groups.snapshot()
        assert shown["waiting"] == []
        assert shown["groups"] == [{"group_id": "group-1-of-1", "num_workers": 1, "state": "idle", "served": 1}]

    study_run(trials(1), then, slots={"a": 1})


def test_the_best_metric_so_far_goes_with_the_next_trial():
    async def prepare(study):
        await study.lease("t0", 1)
        await study.settle()
        await study.lease("t1", 1, "hangs")
        await until_training(study, "t1")
        (worker,) = study.ray.history
        assert worker.order["best"] == 0.5
        await study.stop("t1")

    study_run(prepare, slots={"a": 1})


# --- closing -----------------------------------------------------------------------------------------------------


def test_close_answers_everybody_at_once(monkeypatch):
    monkeypatch.setattr(worker_groups, "POLL_SECONDS", 1_000)

    async def scenario():
        study = Study(slots={"a": 1})
        await study.lease("t0", 1)
        await study.ray.driver()
        (fit,) = study.ray.fits.values()
        await study.ray.step(fit.workers[0])
        rank = asyncio.ensure_future(study.groups.next_trial(fit.group_id, fit.workers[0].incarnation, 1))
        await study.groups.events("t0", 0)
        running = asyncio.ensure_future(study.groups.events("t0", 1))
        await study.groups.lease({"trial_id": "t1", "num_workers": 1})
        waiting = asyncio.ensure_future(study.groups.events("t1", 0))
        driver = asyncio.ensure_future(study.groups.next_orders())
        await driver  # how long the start took
        driver = asyncio.ensure_future(study.groups.next_orders())
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in (rank, running, waiting, driver))
        await study.groups.close()
        for task in (running, waiting):
            (ended,) = await asyncio.wait_for(task, 5)
            assert (ended["type"], ended["error"]["kind"]) == ("ended", "stopped")
        assert await asyncio.wait_for(rank, 5) == {"stop": True}
        assert await asyncio.wait_for(driver, 5) is None

    run(scenario)


def test_nothing_is_recorded_after_the_end_that_close_gave():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (worker,) = study.ray.history
        await study.groups.close()
        for _ in range(10):
            await study.ray.step(worker)
            if worker.order is None:
                break

    study = study_run(prepare, slots={"a": 1})
    assert [event["type"] for event in study.events["t0"]] == ["running", "ended"]


def test_a_trial_that_comes_after_close_is_refused_and_no_group_starts():
    async def prepare(study):
        await study.groups.close()
        await study.lease("t0", 1)
        await study.groups.prepare(1)

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t0")["error"]["kind"] == "stopped"
    assert not study.ray.history


# --- every order of events ---------------------------------------------------------------------------------------

FATES = ["finished"] * 6 + ["diverged", "exception", "out_of_memory"]


def check(study):
    """What must hold at every moment."""
    assert not study.ray.overbooked, study.ray.overbooked
    for trial_id, groups in study.ray.training().items():
        assert len(groups) == 1, f"{trial_id} is in {groups}"
        assert trial_id not in study.released
    if study.exclusive:
        for host in study.hosts.values():
            busy, starting = study.ray.busy(host), study.ray.starting(host)
            assert len(busy) + len(starting) <= 1, f"on {host}: {busy} beside {starting}"


def check_end(study):
    """What must hold of every trial and of every group's ranks."""
    assert not study.open, f"never ended: {study.open}"
    for trial_id, events in study.events.items():
        kinds = [event["type"] for event in events]
        assert kinds.count("ended") == (trial_id not in study.released), f"{trial_id}: {kinds}"
        assert trial_id in study.released or kinds[-1] == "ended"
        epochs = [event["epoch"]["epoch"] for event in events if event["type"] == "epoch"]
        assert len(epochs) == len(set(epochs))
        assert kinds.count("retry") <= study.failures
    for _, workers in itertools.groupby(study.ray.history, key=lambda worker: worker.incarnation):
        taken = sorted((worker.taken for worker in workers), key=len)
        assert all(shorter == taken[-1][: len(shorter)] for shorter in taken)


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
    faults, at_a_time = chance.choice([0, 0.01, 0.05]), chance.randint(1, 5)
    planned = [(f"t{n}", chance.randint(1, sum(slots.values())), chance.choice(FATES)) for n in range(12)]
    if chance.random() < 0.5:
        planned.sort(key=lambda trial: trial[1])
    if chance.random() < 0.1:
        study.ray.unstartable.add(planned[0][1])
    if chance.random() < 0.5:
        await study.groups.prepare(planned[0][1])
    while planned or study.open:
        roll = chance.random()
        if planned and len(study.open) < at_a_time and roll < 0.2:
            await study.lease(*planned.pop(0))
        elif study.open and roll < 0.4:
            await study.follow(chance.choice(study.open))
        elif study.open and roll > 1 - faults / 2:
            await study.stop(chance.choice(study.open))
        elif roll > 1 - 2 * faults:
            study.ray.harm(chance)
        elif chance.random() < 0.002:
            study.clock.now += STALLED + 1
            await study.tick()
        else:
            await chance.choice(study.ray.actions())()
        study.clock.now += 0.001
        check(study)
        if not planned and chance.random() < 0.01:
            break
    if faults:
        study.clock.now += STALLED + 1  # what is frozen is found
        await study.tick()
    await study.settle()
    check_end(study)
    await study.groups.close()
    for _ in range(20):
        for action in study.ray.actions():
            await action()
        study.clock.now += STALLED / 4
        await study.tick()
    assert study.ray.closed
    assert not study.ray.fits, "a group did not end"


@pytest.mark.parametrize("block", range(8))
def test_any_order_of_events(block):
    for seed in range(25 * block, 25 * (block + 1)):
        try:
            run(lambda seed=seed: explore(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_large_trial_is_not_starved_by_small_ones_that_keep_coming(exclusive):
    async def scenario():
        study = Study(slots={"a": 2, "b": 2}, exclusive=exclusive)
        for number in range(4):
            await study.lease(f"small{number}", 1)
        await study.lease("large", 4)
        for number in range(4, 200):
            while len(study.open) < 5:
                await study.lease(f"small{number}-{len(study.open)}-{len(study.events)}", 1)
            for action in study.ray.actions():
                await action()
            for trial_id in list(study.open):
                await study.follow(trial_id)
            study.clock.now += 0.1
            if "large" not in study.open:
                break
        assert study.ended("large")["status"] == "finished"

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_closing_at_any_moment_ends_every_trial_and_group(seed):
    async def scenario():
        chance = random.Random(seed)
        study = Study(slots={"a": 2, "b": 1}, exclusive=chance.random() < 0.5)
        for number in range(4):
            await study.lease(f"t{number}", chance.randint(1, 3))
        for _ in range(chance.randint(0, 120)):
            await chance.choice(study.ray.actions())()
            if chance.random() < 0.02:
                study.ray.harm(chance)
        await study.groups.close()
        study.clock.now += STALLED + 1
        await study.tick()
        await study.settle()
        check_end(study)

    run(scenario)
