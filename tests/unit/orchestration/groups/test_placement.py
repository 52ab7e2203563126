"""The pure decision who gets which group."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.placement import Grant, GroupView, Request, Start, Stop, ahead, decide

ONE_NODE = [Node(node_id="a", slots=2)]
TWO_NODES = [Node(node_id="a", slots=2), Node(node_id="b", slots=2)]


def group(name, num_workers, state, slots=None, *, exhausted=False):
    return GroupView(
        group_id=name, num_workers=num_workers, state=state, slots=slots or {"a": num_workers}, exhausted=exhausted
    )


def ask(*sizes):
    return [Request(trial_id=f"t{number}", num_workers=size) for number, size in enumerate(sizes)]


def test_an_empty_cluster_starts_a_group_on_one_node():
    assert decide(TWO_NODES, [], ask(2), exclusive=False) == [Start(trial_id="t0", num_workers=2, slots={"a": 2})]


def test_a_group_larger_than_any_node_is_spread():
    (start,) = decide(TWO_NODES, [], ask(3), exclusive=True)
    assert start == Start(trial_id="t0", num_workers=3, slots={"a": 2, "b": 1})


def test_an_idle_group_of_the_size_is_granted():
    actions = decide(ONE_NODE, [group("g", 2, "idle")], ask(2), exclusive=True)
    assert actions == [Grant(trial_id="t0", group_id="g")]


def test_an_idle_group_is_granted_once():
    actions = decide(ONE_NODE, [group("g", 2, "idle")], ask(2, 2), exclusive=False)
    assert actions == [Grant(trial_id="t0", group_id="g")]


def test_a_group_on_the_way_is_waited_for_by_one_request_each():
    assert decide(TWO_NODES, [group("g", 2, "starting")], ask(2), exclusive=False) == []
    actions = decide(TWO_NODES, [group("g", 2, "starting")], ask(2, 2), exclusive=False)
    assert actions == [Start(trial_id="t1", num_workers=2, slots={"b": 2})]


def test_idle_groups_of_another_size_make_room():
    actions = decide(ONE_NODE, [group("g", 1, "idle"), group("h", 1, "idle")], ask(2), exclusive=False)
    assert actions == [Stop(group_id="g"), Stop(group_id="h")]


def test_no_more_idle_groups_end_than_must():
    groups = [group("g", 1, "idle"), group("h", 1, "idle")]
    assert len(decide([Node(node_id="a", slots=3)], groups, ask(2), exclusive=False)) == 1


def test_room_that_is_on_its_way_is_waited_for():
    groups = [group("g", 1, "stopping"), group("h", 1, "idle")]
    assert decide([Node(node_id="a", slots=2)], groups, ask(1), exclusive=True) == [Grant(trial_id="t0", group_id="h")]
    assert decide([Node(node_id="a", slots=3)], [*groups, group("i", 1, "idle")], ask(2), exclusive=False) == [
        Stop(group_id="h")
    ]


def test_nothing_ends_when_it_would_not_be_enough():
    groups = [group("g", 1, "busy"), group("h", 1, "idle")]
    assert decide(ONE_NODE, groups, ask(2), exclusive=False) == []


def test_a_large_request_holds_back_the_small_ones_behind_it():
    groups = [group("g", 1, "busy")]
    assert decide(ONE_NODE, groups, ask(2, 1), exclusive=False) == []
    assert decide(ONE_NODE, groups, ask(1, 2), exclusive=False) == [Start(trial_id="t0", num_workers=1, slots={"a": 1})]


def test_exclusive_trials_have_their_node_to_themselves():
    groups = [group("g", 1, "busy", {"a": 1}), group("h", 1, "idle", {"a": 1}), group("i", 1, "idle", {"b": 1})]
    assert decide(TWO_NODES, groups, ask(1, 1), exclusive=True) == [Grant(trial_id="t0", group_id="i")]
    assert decide(TWO_NODES, groups, ask(1, 1), exclusive=False) == [
        Grant(trial_id="t0", group_id="h"),
        Grant(trial_id="t1", group_id="i"),
    ]


def test_exclusive_no_group_starts_beside_a_trial():
    busy = group("g", 1, "busy", {"a": 1})
    assert decide(ONE_NODE, [busy], ask(1), exclusive=True) == []
    assert decide(TWO_NODES, [busy], ask(1), exclusive=True) == [Start(trial_id="t0", num_workers=1, slots={"b": 1})]


def test_exclusive_a_group_that_starts_is_not_disturbed_by_a_trial():
    groups = [group("g", 1, "starting"), group("h", 1, "idle")]
    assert decide(ONE_NODE, groups, [*ask(1)], exclusive=False) == [Grant(trial_id="t0", group_id="h")]
    assert decide(ONE_NODE, groups, [*ask(1)], exclusive=True) == []


def test_an_exhausted_group_ends_and_its_room_is_waited_for():
    groups = [group("g", 2, "idle", exhausted=True), group("h", 2, "idle", {"b": 2})]
    assert decide(TWO_NODES, groups, ask(2, 1), exclusive=False) == [
        Stop(group_id="g"),
        Grant(trial_id="t0", group_id="h"),
    ]


NODES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
SITUATION = st.tuples(
    NODES,
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["starting", "idle", "busy", "stopping"]), st.booleans())),
    st.lists(st.integers(1, 4), max_size=6),
    st.booleans(),
)


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


@given(SITUATION)
def test_actions_never_conflict(case):
    nodes, views, requests = situation(*case)
    exclusive = case[3]
    actions = decide(nodes, views, requests, exclusive=exclusive)
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


@given(SITUATION)
def test_something_happens_whenever_nothing_is_under_way(case):
    """No deadlock: idle groups alone never keep a request that the cluster can meet waiting."""
    nodes, views, requests = situation(*case)
    views = [view for view in views if view.state == "idle"]
    actions = decide(nodes, views, requests, exclusive=case[3])
    assert bool(actions) == bool(requests or any(view.exhausted for view in views))


@given(SITUATION)
def test_the_oldest_request_is_answered_as_if_it_were_alone(case):
    """No starvation: what comes later changes nothing for the first."""
    nodes, views, requests = situation(*case)
    if not requests:
        return
    alone = decide(nodes, views, requests[:1], exclusive=case[3])
    assert decide(nodes, views, requests, exclusive=case[3])[: len(alone)] == alone


@given(SITUATION)
def test_held_back_requests_do_not_overtake(case):
    """A later request is only served before an earlier one whose group is on the way, never from room it waits for."""
    nodes, views, requests = situation(*case)
    actions = decide(nodes, views, requests, exclusive=case[3])
    served = {action.trial_id for action in actions if isinstance(action, Grant | Start)}
    starting = Counter(view.num_workers for view in views if view.state == "starting")
    for position, request in enumerate(requests):
        if request.trial_id in served:
            continue
        if starting[request.num_workers]:
            starting[request.num_workers] -= 1
            continue
        assert not served & {later.trial_id for later in requests[position:]}


# --- ahead of need -----------------------------------------------------------------------------------------------


def test_the_next_size_is_started_where_there_is_room():
    groups = [group("g", 1, "busy")]
    assert ahead(TWO_NODES, groups, [1, 2], exclusive=False) == Start(trial_id="", num_workers=2, slots={"b": 2})
    assert ahead(ONE_NODE, groups, [1, 2], exclusive=False) is None


def test_never_two_at_once():
    assert ahead(TWO_NODES, [group("g", 1, "starting")], [1, 2], exclusive=False) is None


def test_nothing_is_left_to_start():
    assert ahead(TWO_NODES, [group("g", 1, "idle"), group("h", 2, "busy", {"b": 2})], [1, 2], exclusive=False) is None
    assert ahead(TWO_NODES, [], [], exclusive=False) is None


def test_a_size_that_does_not_fit_yet_does_not_let_later_ones_take_its_room():
    assert ahead(TWO_NODES, [group("g", 1, "busy")], [1, 4, 2], exclusive=False) is None


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
