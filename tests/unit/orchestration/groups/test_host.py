"""What the driver says while trials wait for room, and which groups it takes for unplaced. The rest needs Ray."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import cloudpickle
from ray.exceptions import RayTaskError
from ray.train.v2.api.exceptions import ControllerError

from scalestudy.orchestration.cluster.sharing import Reservation
from scalestudy.orchestration.groups import host
from scalestudy.orchestration.groups.host import (
    SAY_SECONDS,
    UNPLACED_SECONDS,
    GroupHost,
    GroupResources,
    waits_for,
    why_ended,
)
from scalestudy.orchestration.groups.model import Wanted
from scalestudy.training.exceptions import InputError

RESOURCES = GroupResources(device="cpu", cpus_per_worker=2, gpus_per_worker=0, timeout_seconds=1.0)
WANTED = Wanted(why="others", num_workers=4, one_node=True, room=4, largest_group=4, taken=3)


@pytest.fixture
def clock(monkeypatch):
    moment = SimpleNamespace(now=100.0)
    monkeypatch.setattr(host.time, "monotonic", lambda: moment.now)
    return moment


@pytest.fixture
def wish(monkeypatch):
    """A wish whose placement groups are notes of what was asked."""
    said, placed = [], []
    wish = host._Wish(RESOURCES, said.append, math.inf)
    monkeypatch.setattr(wish, "_place", lambda wanted: placed.append(wanted.num_workers))
    monkeypatch.setattr(wish, "drop", lambda: placed.append(None))
    return SimpleNamespace(show=wish.show, said=said, placed=placed)


def test_what_is_waited_for_in_words():
    assert waits_for(WANTED, 10) == (
        "waiting for room for 4 workers (10 s): other work on the cluster holds the room of 3 of 4"
    )
    assert waits_for(replace(WANTED, num_workers=1), 120).startswith("waiting for room for 1 worker (2 min): ")
    large = replace(WANTED, why="growth", num_workers=8)
    grows = "waiting for room for 8 workers (1 min): the cluster has room for 4 until its autoscaler adds nodes, "
    assert waits_for(large, 70) == grows + "whose limit is not known"
    assert waits_for(large, 70, 16) == grows + "up to 16"
    assert waits_for(replace(large, why="shrunken"), 10) == (
        "waiting for room for 8 workers (10 s): nodes were lost or are draining, and the cluster has room for 4"
    )
    assert waits_for(replace(large, why="shrunken", room=6), 10).endswith("room for 4 on GPUs of one type")
    unplaced = replace(WANTED, why="unplaced", machines=("a", "b"))
    assert waits_for(unplaced, 10) == (
        "waiting for room for 4 workers (10 s): Ray has found no place for a group of 4 workers, although 4 look free "
        "on a, b"
    )
    assert waits_for(replace(unplaced, machines=tuple("abcd")), 10).endswith("4 look free on a, b, c …")


def test_it_is_said_after_ten_seconds_and_then_every_minute(clock, wish):
    for _ in range(int(UNPLACED_SECONDS + 2 * SAY_SECONDS) + 1):
        wish.show(WANTED)
        clock.now += 1
    assert [text.partition("(")[2].partition(")")[0] for text in wish.said] == ["10 s", "1 min", "2 min"]
    assert set(wish.placed) == {None, 4}
    assert wish.placed.count(None) == 1, "what is there already stays"


@pytest.mark.parametrize("why", ["shrunken", "unplaced"])
def test_what_nobody_can_help_with_is_said_and_not_shown(clock, wish, why):
    wish.show(WANTED)
    for _ in range(2):
        wish.show(replace(WANTED, why=why))
        clock.now += UNPLACED_SECONDS
    assert len(wish.said) == 1
    assert wish.placed == [None, 4, None, None]


def test_another_wait_is_counted_from_its_own_beginning(clock, wish):
    wish.show(WANTED)
    clock.now += UNPLACED_SECONDS - 1
    wish.show(None)
    wish.show(WANTED)
    clock.now += UNPLACED_SECONDS - 1
    wish.show(WANTED)
    wish.show(replace(WANTED, num_workers=2))
    clock.now += UNPLACED_SECONDS - 1
    wish.show(replace(WANTED, num_workers=2))
    assert wish.said == []


def test_the_runs_of_a_user_s_loop_go_unless_a_trial_may_go_on_from_them(tmp_path):
    groups = GroupHost(None, RESOURCES, tmp_path)
    groups._runs = {str(tmp_path / name) for name in ("a", "b")}
    for run in groups._runs:
        Path(run, "checkpoint_1").mkdir(parents=True)
    groups._forget_runs([str(tmp_path / "b" / "checkpoint_1")])
    assert [name for name in ("a", "b") if (tmp_path / name).exists()] == ["b"]
    groups._forget_runs([])
    assert not (tmp_path / "b").exists()


def test_a_group_that_waits_for_long_for_its_room_is_unplaced(clock, tmp_path):
    groups = GroupHost(None, RESOURCES, tmp_path)
    groups._tags = {7.0: "group-1-of-2", 8.0: "group-2-of-2"}
    waiting = Reservation(key="a", name="", job=1, memory=7.0, waits=True)
    others = [Reservation(key="b", name="", job=1, memory=8.0, waits=False), replace(waiting, key="c", memory=9.0)]
    assert groups._long_unplaced([waiting, *others]) == []
    clock.now += UNPLACED_SECONDS - 1
    assert groups._long_unplaced([waiting, *others]) == []
    clock.now += 2
    assert groups._long_unplaced([waiting, *others]) == ["group-1-of-2"]
    assert groups._long_unplaced(others) == []
    assert groups._long_unplaced([waiting, *others]) == [], "it had room in between"


def test_what_a_worker_asks_for():
    assert RESOURCES.per_worker(5) == {"CPU": 2, "memory": 5}
    assert RESOURCES.per_worker() == {"CPU": 2}
    assert replace(RESOURCES, device="cuda", gpus_per_worker=0.5).per_worker() == {"CPU": 2, "GPU": 0.5}


def test_a_gpu_that_can_t_be_used_is_the_reason_of_a_group_that_did_not_start():
    """As it comes from the worker, through the controller: pickled twice, with a traceback around its text."""
    mistake = InputError("device: CUDA does not work: the driver is too old", "choose cpu")
    raised = RayTaskError("join", "Traceback …", mistake).as_instanceof_cause()
    failure = cloudpickle.loads(cloudpickle.dumps(ControllerError(raised)))
    assert why_ended(failure) == "device: CUDA does not work: the driver is too old; choose cpu"
    other = ControllerError(RuntimeError("no\nroom"))
    assert why_ended(other) == "ControllerError: Training failed due to controller error: no room"
