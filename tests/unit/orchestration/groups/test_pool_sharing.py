"""The pool on a cluster that it shares: room that others hold, who waits for whom, what is given back."""

from dataclasses import replace

import pytest

from scalestudy.orchestration.groups.model import Wanted
from scalestudy.orchestration.groups.pool import AVOID_SECONDS, MOST_AVOID_SECONDS, YIELD_SECONDS
from tests.support.pool_study import STALLED, everybody_acts, no_waiting, story, study_run, until_training

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


def held(study, **taken):
    """The cluster's nodes, with the slots that others hold."""
    return [replace(node, taken=taken.get(node.node_id, 0)) for node in study.nodes(**study.slots)]


@story(slots={"a": 2})
async def test_a_trial_waits_as_long_as_others_hold_its_room(study):
    await study.actor.set_nodes(held(study, a=1))
    await study.request("t0", 2)
    await study.settle(rounds=int(8 * STALLED))
    assert study.kinds("t0") == [], "it is not put off"
    wanted = await study.actor.share("none", [])
    assert wanted == Wanted(why="others", num_workers=2, one_node=True, room=2, largest_group=2, taken=1)
    await study.actor.set_nodes(held(study))
    assert await study.actor.share("none", []) is None
    assert (await study.end_of("t0")).attempts == 1


@story(slots={"a": 4})
async def test_what_own_groups_leave_no_room_for_is_not_wanted_from_others(study):
    await study.train("t0", 2, "hangs")
    await study.actor.set_nodes(held(study, a=1))
    await study.request("t1", 3)
    assert await study.actor.share("none", []) is None, "without others, too, it would wait for t0"
    await study.release("t0")
    await study.release("t1")


@story(slots={"a": 2}, grows=True)
async def test_a_cluster_that_grows_is_waited_for_and_told_what_is_wanted(study):
    await study.request("t0", 3)
    await study.request("t1", 1)
    await study.settle(rounds=int(8 * STALLED))
    assert study.ended("t1").status == "finished"
    assert study.kinds("t0") == []
    wanted = Wanted(why="growth", num_workers=3, one_node=False, room=2, largest_group=2, taken=0)
    assert await study.actor.share("none", []) == wanted
    study.ray.slots["b"] = study.slots["b"] = 2
    study.ray.hosts["b"] = study.hosts["b"] = "b"
    await study.actor.set_nodes(held(study))
    assert (await study.end_of("t0")).status == "finished"


@story(slots={"a": 2})
async def test_a_group_that_gets_no_room_is_withdrawn_and_its_trial_blamed_for_nothing(study):
    await study.request("t0", 2)
    await study.ray.driver()
    fit = study.fit
    await study.actor.set_nodes(held(study, a=1))
    await study.actor.share("none", [fit.group_id])
    assert not fit.alive
    assert fit.tag in study.hands.removed
    study.hands.removed.clear()
    await study.ray.give_up(fit, "ActorDiedError", "controller_lost")
    assert fit.tag in study.hands.removed, "its controller may have asked for workers anew before it died"
    assert not study.pool.groups
    await study.actor.set_nodes(held(study))
    ended = await study.end_of("t0")
    assert (ended.status, ended.attempts, ended.failures) == ("finished", 1, ())


def grown(why):
    return Wanted(why=why, num_workers=3, one_node=False, room=2, largest_group=2, taken=0)


@pytest.mark.parametrize("grows", [True, False])
def test_a_trial_too_large_for_now_is_told_of_while_smaller_ones_have_their_turn(grows):
    async def story(study):
        await study.request("t0", 2, "hangs")
        await until_training(study, "t0")
        await study.request("t1", 1)
        await study.request("t2", 3)
        assert await study.actor.share("none", []) == grown("growth" if grows else "shrunken")
        await study.actor.set_nodes(held(study, a=2))
        await study.release("t0")
        await everybody_acts(study)
        assert (await study.actor.share("none", [])).num_workers == 1, "the first one is held up, and comes first"
        await study.actor.set_nodes(held(study))
        await study.release("t2")

    study_run(story, slots={"a": 2}, grows=grows)


@story(slots={"a": 2, "b": 2})
async def test_a_trial_that_a_shrunken_cluster_can_t_hold_is_told_of_before_it_is_put_off(study):
    await study.ray.lose_node("b")
    await study.request("t0", 3)
    assert await study.actor.share("none", []) == grown("shrunken")
    await study.settle(rounds=int(8 * STALLED))
    assert study.given_up == ["t0"]
    assert await study.actor.share("none", []) is None, "it does not wait any more"


# --- starts for which Ray finds no place ------------------------------------------------------------------------------


async def withdrawn(study):
    """The only group that starts got no place."""
    await study.ray.driver()
    fit = study.fit
    wanted = await study.actor.share("none", [fit.group_id])
    await study.ray.give_up(fit, "ActorDiedError", "controller_lost")
    return wanted


async def passes(study, seconds):
    await study.later(seconds)
    return [dict(group.slots) for group in study.pool.groups.values()]


@story(slots={"a": 2}, hosts={"a": "m"})
async def test_a_withdrawn_start_is_not_repeated_at_once_and_its_trial_says_why_it_waits(study):
    unplaced = Wanted(why="unplaced", num_workers=2, one_node=True, room=2, largest_group=2, taken=0, machines=("m",))
    await study.request("t0", 2)
    for seconds in (AVOID_SECONDS, 2 * AVOID_SECONDS, 4 * AVOID_SECONDS):
        assert await withdrawn(study) == unplaced
        assert await passes(study, seconds - 0.5) == []
        assert await study.actor.share("none", []) == unplaced
        assert await passes(study, 1.0) == [{"a": 2}]
        assert await study.actor.share("none", []) == unplaced, "it is not there yet"
    for _ in range(20):
        assert await withdrawn(study) == unplaced
        await passes(study, MOST_AVOID_SECONDS + 1)
    await until_training(study, "t0")
    assert await study.actor.share("none", []) is None
    await study.request("t1", 2)
    assert await study.actor.share("none", []) is None, "it waits for its own study"
    ended = await study.end_of("t0")
    assert (ended.status, ended.attempts, ended.failures) == ("finished", 1, ())


@story(slots={"a": 2, "b": 2})
async def test_a_withdrawn_start_is_repeated_elsewhere_if_there_is_room(study):
    await study.request("t0", 2)
    await withdrawn(study)
    assert await passes(study, 0) == [{"b": 2}]
    assert (await study.end_of("t0")).status == "finished"


@story(slots={"a": 3})
async def test_a_trial_whose_start_ray_refused_gets_the_room_of_an_idle_group(study):
    await study.request("t0", 2)
    await study.settle()
    await study.request("t1", 1)
    await study.ray.driver()
    (start,) = [group for group in study.ray.fits if group.endswith("of-1")]
    await study.actor.share("none", [start])
    assert [(group.num_workers, group.state) for group in study.pool.groups.values()] == [(2, "stopping")]
    assert (await study.end_of("t1")).status == "finished"


@story(slots={"a": 2})
async def test_a_group_whose_workers_are_there_is_not_withdrawn(study):
    fit = await study.train("t0", 2)
    await study.actor.share("none", [fit.group_id])
    assert fit.alive


async def two_idle_groups(study):
    await study.request("t0", 1)
    await study.request("t1", 2)
    await study.settle()
    assert len(study.pool.groups) == 2


async def wait_beside(study, demand, seconds):
    await study.actor.share(demand, [])
    await study.later(seconds)
    await everybody_acts(study)
    return sorted(group.num_workers for group in study.pool.groups.values())


@pytest.mark.parametrize(("demand", "left"), [("none", [1, 2]), ("other", []), ("younger study", [1])])
@story(slots={"a": 4})
async def test_idle_groups_are_given_back_while_others_wait(study, demand, left):
    await two_idle_groups(study)
    assert await wait_beside(study, demand, YIELD_SECONDS - 0.5) == [1, 2]
    assert await wait_beside(study, demand, 1.0) == left
    await study.request("t2", 2)
    assert (await study.end_of("t2")).status == "finished"


@story(slots={"a": 4})
async def test_a_study_that_trains_keeps_no_idle_group_for_itself(study):
    await two_idle_groups(study)
    await study.train("t2", 2, "hangs")
    await wait_beside(study, "younger study", 1.0)
    assert await wait_beside(study, "younger study", YIELD_SECONDS) == [2]
    await study.release("t2")


@story(slots={"a": 2})
async def test_a_group_that_has_just_become_idle_is_kept(study):
    await study.request("t0", 1)
    await study.actor.share("other", [])
    study.clock.now += YIELD_SECONDS + 1
    await study.settle()
    assert await wait_beside(study, "other", YIELD_SECONDS - 1) == [1]
    assert await wait_beside(study, "none", 2.0) == [1], "nobody waits any more"


@story(slots={"a": 2})
async def test_no_group_starts_ahead_of_need_while_others_wait(study):
    await study.actor.share("other", [])
    await study.actor.prepare(2)
    assert not study.pool.groups
    await study.actor.share("none", [])
    await study.actor.prepare(2)
    assert len(study.pool.groups) == 1


@pytest.mark.parametrize(("hosts", "flags"), [({}, ()), ({"a": "m", "b": "m"}, ("shared_node",))])
def test_a_trial_on_a_machine_where_others_hold_room_is_flagged(hosts, flags):
    async def story(study):
        await study.request("t0", 2)
        await until_training(study, "t0")
        await study.actor.set_nodes(held(study, b=1))

    assert study_run(story, slots={"a": 2, "b": 1}, hosts=hosts).ended("t0").flags == flags


@story(slots={"a": 3})
async def test_a_trial_that_begins_beside_others_work_is_flagged(study):
    await study.actor.set_nodes(held(study, a=1))
    await study.request("t0", 2)
    assert (await study.end_of("t0")).flags == ("shared_node",)
