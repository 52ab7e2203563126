"""What no schedule can be shorter than."""

from __future__ import annotations

from collections.abc import Sequence

from scalestudy.orchestration.study.schedule import Room, Work


def lower_bound(works: Sequence[Work], room: Room) -> float:
    """Return the longest of: the longest trial, the work over the room, the trials that exclude one another."""
    if not works:
        return 0.0
    longest = max(work.duration for work in works)
    shared = sum(work.duration * work.num_workers for work in works) / room.slots
    alone = sum(work.duration for work in works if 2 * work.num_workers > room.slots)
    machines = len({node.machine for node in room.nodes if node.slots})
    one_a_machine = sum(work.duration for work in works) / machines if room.exclusive else 0.0
    return max(longest, shared, alone, one_a_machine)
