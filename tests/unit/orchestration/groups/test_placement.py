"""The pure decision who gets which group."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.placement import Grant, GroupView, Request, Start, Stop, ahead, decide

ONE_NODE = [Node(node_id="a", slots=2)]
TWO_NODES = [Node(node_id="a", slots=2), Node(node_id="b", slots=2)]
EIGHTS = [Node(node_id="a", slots=8), Node(node_id="b", slots=8)]
FOURS_AND_EIGHTS = [*(Node(node_id=name, slots=4) for name in "ab"), *(Node(node_id=name, slots=8) for name in "yz")]


def group(name, num_workers, state, slots=None, *, exhausted=False):
    return GroupView(
        group_id=name, num_workers=num_workers, state=state, slots=slots or {"a": num_workers}, exhausted=exhausted
    )


def ask(*sizes):
    return [Request(trial_id=f"t{number}", num_workers=size) for number, size in enumerate(sizes)]


def start(request, **slots):
    """The start of a group for a request, on so many slots of each node."""
    return Start(trial_id=f"t{request}", num_workers=sum(slots.values()), slots=slots)


def grant(request, name):
    return Grant(trial_id=f"t{request}", group_id=name)


def idle(name, num_workers, node="a", **more):
    return group(name, num_workers, "idle", {node: num_workers}, **more)


def busy(name, num_workers, node="a"):
    return group(name, num_workers, "busy", {node: num_workers})


def nodes(**slots):
    return [Node(node_id=name, slots=count) for name, count in slots.items()]


def taken(*slots):
    """Nodes a, b …, each with 4 slots, of which others hold so many."""
    return [Node(node_id=name, slots=4, taken=count) for name, count in zip("abcd", slots, strict=False)]


SPANNING = group("g", 4, "idle", {"a": 2, "b": 2})
ONES = [idle(f"g{number}", 1) for number in range(6)]
UNEVEN = nodes(a=8, b=2, c=8)
TYPES = [Node(node_id="t", slots=2, accelerator="T4"), Node(node_id="a", slots=4, accelerator="A100")]
UNKNOWN = nodes(u=2, v=2, w=2)
DECISIONS = [
    # story, nodes, groups, sizes asked for, whether trials are alone on their machines, actions, placement if not pack
    ("an empty cluster starts a group on one node", TWO_NODES, [], [2], False, [start(0, a=2)]),
    ("a group larger than any node is spread", TWO_NODES, [], [3], True, [start(0, a=2, b=1)]),
    ("an idle group of the size is granted", ONE_NODE, [idle("g", 2)], [2], True, [grant(0, "g")]),
    ("an idle group is granted once", ONE_NODE, [idle("g", 2)], [2, 2], False, [grant(0, "g")]),
    ("a group on the way is waited for", TWO_NODES, [group("g", 2, "starting")], [2], False, []),
    ("by one request each", TWO_NODES, [group("g", 2, "starting")], [2, 2], False, [start(1, b=2)]),
    (
        "idle groups of another size make room",
        ONE_NODE,
        [idle("g", 1), idle("h", 1)],
        [2],
        False,
        [Stop(group_id="g"), Stop(group_id="h")],
    ),
    ("no more of them end than must", nodes(a=3), [idle("g", 1), idle("h", 1)], [2], False, [Stop(group_id="g")]),
    (
        "what is there is granted while a group ends",
        ONE_NODE,
        [group("g", 1, "stopping"), idle("h", 1)],
        [1],
        True,
        [grant(0, "h")],
    ),
    (
        "room that is on its way is waited for",
        nodes(a=3),
        [group("g", 1, "stopping"), idle("h", 1), idle("i", 1)],
        [2],
        False,
        [Stop(group_id="h")],
    ),
    ("nothing ends when it would not be enough", ONE_NODE, [busy("g", 1), idle("h", 1)], [2], False, []),
    ("a large request holds back the small ones behind it", ONE_NODE, [busy("g", 1)], [2, 1], False, []),
    ("not those before it", ONE_NODE, [busy("g", 1)], [1, 2], False, [start(0, a=1)]),
    (
        "alone: a trial has its node to itself",
        TWO_NODES,
        [busy("g", 1), idle("h", 1), idle("i", 1, "b")],
        [1, 1],
        True,
        [grant(0, "i")],
    ),
    (
        "side by side",
        TWO_NODES,
        [busy("g", 1), idle("h", 1), idle("i", 1, "b")],
        [1, 1],
        False,
        [grant(0, "h"), grant(1, "i")],
    ),
    ("alone: no group starts beside a trial", ONE_NODE, [busy("g", 1)], [1], True, []),
    ("alone: a group starts elsewhere", TWO_NODES, [busy("g", 1)], [1], True, [start(0, b=1)]),
    ("side by side: one starts", ONE_NODE, [group("g", 1, "starting"), idle("h", 1)], [1], False, [grant(0, "h")]),
    ("alone: a start is not disturbed", ONE_NODE, [group("g", 1, "starting"), idle("h", 1)], [1], True, []),
    (
        "an exhausted group ends and its room is waited for",
        TWO_NODES,
        [idle("g", 2, exhausted=True), idle("h", 2, "b")],
        [2, 1],
        False,
        [Stop(group_id="g"), grant(0, "h")],
    ),
    (
        "alone: a quiet machine is freed rather than waited for",
        TWO_NODES,
        [busy("g", 1), idle("h", 2, "b")],
        [1],
        True,
        [Stop(group_id="h")],
    ),
    # --- on which nodes
    ("a trial gets the fullest node that holds it", EIGHTS, [busy("g", 5, "b")], [2], False, [start(0, b=2)]),
    ("or an empty one", EIGHTS, [busy("g", 5, "b")], [4], False, [start(0, a=4)]),
    (
        "one node is freed and not a sum over nodes: six on one node are only to be had on b",
        EIGHTS,
        [idle("g", 4), idle("h", 2, "b"), busy("i", 2, "b"), busy("j", 4)],
        [6],
        False,
        [Stop(group_id="h")],
    ),
    ("the node that needs the fewest ends", EIGHTS, [*ONES, idle("h", 5, "b")], [6], False, [Stop(group_id="h")]),
    ("also of small groups", EIGHTS, [*ONES[1:], idle("h", 5, "b")], [4], False, [Stop(group_id="g1")]),
    ("a trial waits for one node", EIGHTS, [busy("g", 5), busy("h", 5, "b")], [6, 1], False, []),
    ("rather than span two", EIGHTS, [busy("g", 5)], [6], False, [start(0, b=6)]),
    ("no group that spans for what a node holds", EIGHTS, [SPANNING], [4], False, [start(0, a=4)]),
    ("nor one on the way", EIGHTS, [replace(SPANNING, state="starting")], [4], False, [start(0, a=4)]),
    (
        "of two idle groups the one on the fuller node is granted",
        EIGHTS,
        [idle("g", 1), idle("h", 1, "b"), busy("i", 2, "b")],
        [1],
        False,
        [grant(0, "h")],
    ),
    ("a trial larger than any node gets the fewest", FOURS_AND_EIGHTS, [], [12], False, [start(0, y=8, a=4)]),
    ("and waits where it would be more", FOURS_AND_EIGHTS, [busy("g", 8, "y")], [16], False, []),
    ("spread: over all nodes with room", UNEVEN, [], [7], False, [start(0, a=3, b=2, c=2)], "spread"),
    ("spread: beside a full one", UNEVEN, [busy("g", 8)], [3], False, [start(0, b=1, c=2)], "spread"),
    # --- types of GPUs
    *(
        (f"{placement}: {size} on the type with the most room", TYPES, [], [size], False, [start(0, a=size)], placement)
        for placement in ("pack", "spread")
        for size in (1, 2, 4)
    ),
    ("pack: a trial waits for that type", TYPES, [busy("g", 4)], [1], False, []),
    ("spread: a trial waits for that type", TYPES, [busy("g", 4)], [1], False, [], "spread"),
    ("a group on that type makes room", TYPES, [idle("g", 4)], [1], False, [Stop(group_id="g")]),
    ("an unknown type counts as one more", [*TYPES, *UNKNOWN], [], [6], False, [start(0, u=2, v=2, w=2)]),
    # --- other work on the cluster
    ("room that others hold is not given away", taken(3), [], [2], False, []),
    ("room beside others is", taken(3, 0), [], [2], False, [start(0, b=2)]),
    ("a group of ours is granted beside others", taken(4), [idle("g", 2)], [2], False, [grant(0, "g")]),
    ("pack: a trial that one node can hold waits for others", taken(2, 2), [], [4], False, []),
    ("spread: it does not", taken(2, 2), [], [4], False, [start(0, a=2, b=2)], "spread"),
    ("no idle group ends for room that others hold", taken(2), [idle("g", 2)], [4], False, []),
    ("one ends for its own room", taken(1), [idle("g", 2)], [3], False, [Stop(group_id="g")]),
]


@pytest.mark.parametrize("row", DECISIONS, ids=lambda row: row[0])
def test_who_gets_what(row):
    _, cluster, groups, sizes, exclusive, actions, *placement = row
    assert decide(cluster, groups, ask(*sizes), exclusive=exclusive, placement=(placement or ["pack"])[0]) == actions


# --- whatever the situation ------------------------------------------------------------------------------------------

NODES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
SITUATION = st.tuples(
    NODES,
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["starting", "idle", "busy", "stopping"]), st.booleans())),
    st.lists(st.integers(1, 4), max_size=6),
    st.booleans(),
)
PLACEMENT = st.sampled_from(["pack", "spread"])


def situation(sizes, groups, wanted, exclusive):
    """Groups placed where there is room; with `exclusive`, one that is busy a node; requests that can be met."""
    nodes = [Node(node_id=str(number), slots=size) for number, size in enumerate(sizes)]
    free = {node.node_id: node.slots for node in nodes}
    busy: set[str] = set()
    views = []
    for number, (size, state, exhausted) in enumerate(groups):
        slots = {}
        for node_id in free:
            count = min(free[node_id], size - sum(slots.values()))
            if count:
                slots[node_id] = count
        occupies = exclusive and state in ("busy", "starting")
        if sum(slots.values()) < size or (occupies and busy & slots.keys()):
            continue
        busy |= slots.keys() if occupies else set()
        for node_id, count in slots.items():
            free[node_id] -= count
        views.append(group(f"g{number}", size, state, slots, exhausted=exhausted))
    return nodes, views, ask(*[size for size in wanted if size <= sum(sizes)])


@given(SITUATION, PLACEMENT)
def test_actions_never_conflict(case, placement):
    nodes, views, requests = situation(*case)
    exclusive = case[3]
    actions = decide(nodes, views, requests, exclusive=exclusive, placement=placement)
    by_id = {view.group_id: view for view in views}
    used = [action.group_id for action in actions if isinstance(action, Grant | Stop)]
    served = [action.trial_id for action in actions if isinstance(action, Grant | Start)]
    assert max(Counter(used + served).values(), default=1) == 1
    held = Counter()
    for view in views:
        held.update(view.slots)
    running = Counter({node: 1 for view in views if view.state in ("busy", "starting") for node in view.slots})
    sizes = {request.trial_id: request.num_workers for request in requests}
    for action in actions:
        if isinstance(action, Stop):
            assert by_id[action.group_id].state == "idle"
            continue
        slots = by_id[action.group_id].slots if isinstance(action, Grant) else action.slots
        assert sum(slots.values()) == sizes[action.trial_id]
        running.update(slots.keys())
        if isinstance(action, Grant):
            assert by_id[action.group_id].state == "idle"
            assert not by_id[action.group_id].exhausted
        else:
            held.update(slots)
    assert all(held[node.node_id] <= node.slots for node in nodes)
    assert not exclusive or all(count <= 1 for count in running.values())


@given(SITUATION, PLACEMENT)
def test_something_happens_whenever_nothing_is_under_way(case, placement):
    """No deadlock: idle groups alone never keep a request that the cluster can meet waiting."""
    nodes, views, requests = situation(*case)
    views = [view for view in views if view.state == "idle"]
    actions = decide(nodes, views, requests, exclusive=case[3], placement=placement)
    assert bool(actions) == bool(requests or any(view.exhausted for view in views))


@given(SITUATION, PLACEMENT)
def test_the_oldest_request_is_answered_as_if_it_were_alone(case, placement):
    """No starvation: what comes later changes nothing for the first."""
    nodes, views, requests = situation(*case)
    if not requests:
        return
    alone = decide(nodes, views, requests[:1], exclusive=case[3], placement=placement)
    assert decide(nodes, views, requests, exclusive=case[3], placement=placement)[: len(alone)] == alone


@given(SITUATION, PLACEMENT)
def test_held_back_requests_do_not_overtake(case, placement):
    """A later request is only served before an earlier one whose group is on the way, never from room it waits for."""
    nodes, views, requests = situation(*case)
    actions = decide(nodes, views, requests, exclusive=case[3], placement=placement)
    served = {action.trial_id for action in actions if isinstance(action, Grant | Start)}
    waited_for = on_the_way(views, nodes, placement)
    for position, request in enumerate(requests):
        if request.trial_id in served:
            continue
        if waited_for[request.num_workers]:
            waited_for[request.num_workers] -= 1
            continue
        assert not served & {later.trial_id for later in requests[position:]}


def fewest(size, nodes):
    """The fewest nodes that hold so many workers when they are empty, counted from the largest on."""
    slots = sorted((node.slots for node in nodes), reverse=True)
    return next(count for count in range(1, len(slots) + 1) if sum(slots[:count]) >= size)


def on_the_way(views, nodes, placement):
    """How many groups that start are for requests, by size: one on more nodes than its size needs is for none."""
    starting = [view for view in views if view.state == "starting"]
    if placement == "pack":
        starting = [view for view in starting if len(view.slots) <= fewest(view.num_workers, nodes)]
    return Counter(view.num_workers for view in starting)


@given(SITUATION)
def test_no_trial_gets_more_nodes_than_it_needs(case):
    """None spans while a node could hold it, whether what is there is idle or busy."""
    nodes, views, requests = situation(*case)
    slots = {view.group_id: view.slots for view in views}
    sizes = {request.trial_id: request.num_workers for request in requests}
    for action in decide(nodes, views, requests, exclusive=case[3]):
        if not isinstance(action, Stop):
            given_nodes = action.slots if isinstance(action, Start) else slots[action.group_id]
            assert len(given_nodes) <= fewest(sizes[action.trial_id], nodes)


@example(([1, 2, 4], [(1, "starting", False), (3, "starting", False), (1, "idle", False)], [3, 4], False))
@given(SITUATION)
def test_what_ends_makes_room_on_few_nodes_and_no_group_ends_in_vain(case):
    nodes, views, requests = situation(*case)
    views = [view for view in views if not view.exhausted]
    actions = decide(nodes, views, requests, exclusive=False)
    ending = {action.group_id for action in actions if isinstance(action, Stop)}
    if not ending:
        return
    served = {action.trial_id for action in actions if isinstance(action, Grant | Start)}
    waited_for = on_the_way(views, nodes, "pack")
    for request in requests:  # the first that is not served and has no group on the way
        if request.trial_id not in served and not waited_for[request.num_workers]:
            break
        waited_for[request.num_workers] -= request.trial_id not in served
    free = {node.node_id: node.slots for node in nodes}
    starts = [action.slots for action in actions if isinstance(action, Start)]
    stay = [view.slots for view in views if view.state != "stopping" and view.group_id not in ending]
    for held in (*starts, *stay):
        for node_id, count in held.items():
            free[node_id] -= count

    def holds(free):
        return sum(sorted(free.values(), reverse=True)[: fewest(request.num_workers, nodes)]) >= request.num_workers

    assert holds(free)
    for view in views:
        if view.group_id in ending:
            assert not holds({node_id: count - view.slots.get(node_id, 0) for node_id, count in free.items()})


@pytest.mark.parametrize("placement", ["pack", "spread"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_every_trial_that_fits_is_served(placement, exclusive, seed):
    """Neither starvation nor a standstill, in whatever order groups start and end."""
    chance = random.Random(seed)
    nodes = [Node(node_id=f"n{number}", slots=chance.choice([1, 2, 4, 8])) for number in range(chance.randint(1, 4))]
    room = sum(node.slots for node in nodes)
    waiting = ask(*(min(chance.choice([1, 2, 4, 8, 16]), room) for _ in range(30)))
    views, trained = {}, []

    names = (f"g{number}" for number in range(10_000))

    def start(action):
        name = next(names)
        views[name] = group(name, action.num_workers, "starting", action.slots)

    sizes = {request.trial_id: request.num_workers for request in waiting}
    to_come = waiting[6:]
    waiting = waiting[:6]
    for _ in range(3_000):
        for action in decide(nodes, [*views.values()], waiting, exclusive=exclusive, placement=placement):
            if isinstance(action, Start):
                start(action)
            elif isinstance(action, Stop):
                views[action.group_id] = replace(views[action.group_id], state="stopping")
            else:
                view = views[action.group_id]
                views[action.group_id] = replace(view, state="busy")
                waiting = [request for request in waiting if request.trial_id != action.trial_id]
                trained.append(action.trial_id)
                if placement == "pack":
                    assert len(view.slots) == fewest(sizes[action.trial_id], nodes)
        sizes_ahead = [request.num_workers for request in to_come]
        if not waiting and (
            more := ahead(nodes, [*views.values()], sizes_ahead, exclusive=exclusive, placement=placement)
        ):
            start(more)
        under_way = [view for view in views.values() if view.state != "idle"]
        if not under_way:
            break
        view = chance.choice(under_way)
        if view.state == "stopping":
            del views[view.group_id]
            continue
        if view.state == "busy" and to_come:
            waiting.append(to_come.pop(0))
        views[view.group_id] = replace(view, state="idle", exhausted=view.state == "busy" and chance.random() < 0.1)
    assert sorted(trained) == sorted(sizes)


# --- ahead of need -----------------------------------------------------------------------------------------------


AHEAD = [
    # story, nodes, groups, sizes to come, where a group starts, placement if not pack
    ("the next size starts where there is room", TWO_NODES, [busy("g", 1)], [1, 2], {"b": 2}),
    ("none without room", ONE_NODE, [busy("g", 1)], [1, 2], None),
    ("never two at once", TWO_NODES, [group("g", 1, "starting")], [1, 2], None),
    ("none if all sizes are there", TWO_NODES, [idle("g", 1), busy("h", 2, "b")], [1, 2], None),
    ("none if no size is to come", TWO_NODES, [], [], None),
    ("a size that does not fit yet keeps its room", TWO_NODES, [busy("g", 1)], [1, 4, 2], None),
    ("none in room that others hold", taken(3), [], [2], None),
    ("spread", UNEVEN, [], [2], {"a": 1, "c": 1}, "spread"),
    *((f"{size} on the type with the most room", TYPES, [], [size], {"a": size}) for size in (1, 2, 4)),
    *((f"spread: {size} on that type", TYPES, [], [size], {"a": size}, "spread") for size in (1, 2, 4)),
]


@pytest.mark.parametrize("row", AHEAD, ids=lambda row: row[0])
def test_what_starts_ahead_of_need(row):
    _, cluster, groups, sizes, slots, *placement = row
    found = ahead(cluster, groups, sizes, exclusive=False, placement=(placement or ["pack"])[0])
    assert found == (slots and Start(trial_id="", num_workers=sum(slots.values()), slots=slots))


@given(SITUATION)
def test_a_start_ahead_disturbs_nobody(case):
    """It takes room that is free, and with `exclusive` only on nodes without a group."""
    nodes, views, requests = situation(*case)
    start = ahead(nodes, views, [request.num_workers for request in requests], exclusive=case[3])
    if start is None:
        return
    held = Counter(start.slots)
    for view in views:
        held.update(view.slots)
        assert not case[3] or not view.slots.keys() & start.slots.keys()
    assert all(held[node.node_id] <= node.slots for node in nodes)
    assert not any(view.state == "starting" for view in views)
    assert sum(start.slots.values()) == start.num_workers
