"""After how many moments all ranks look again."""

from __future__ import annotations

import itertools

from scalestudy.training.loop.pace import MOST_BETWEEN, Pace


def looks(seconds: list[float], apart: float = 0.5, takes: float = 0.0) -> list[int]:
    """The moments, from 1, at which ranks look that are told to look every half second. `seconds`: of each moment;
    `takes`: of a look."""
    now = 0.0
    pace = Pace(apart, lambda: now)
    found = []
    for moment, took in enumerate(seconds, start=1):
        now += took
        if pace.is_due():
            found.append(moment)
            between = pace.measured()
            now += takes
            pace.looked(between)
    return found


def test_the_distance_doubles_until_looks_are_as_far_apart_as_asked() -> None:
    """Moments of 1/32 s: 16 of them are half a second."""
    assert looks([0.03125] * 64) == [1, 3, 7, 15, 31, 47, 63]


def test_looks_that_take_long_take_a_hundredth_of_the_time() -> None:
    """Moments of 1/32 s: looks of 1/128 s are 25 of them apart, and not 16."""
    found = looks([0.03125] * 2_000, takes=0.0078125)
    assert {after - before for before, after in itertools.pairwise(found[30:])} <= {24, 25}
    quick = looks([0.03125] * 1_000, takes=0.004)
    assert {after - before for before, after in itertools.pairwise(quick[10:])} <= {15, 16}


def test_looks_that_take_seconds_are_not_put_off_for_minutes() -> None:
    found = looks([0.125] * 400, takes=1.0)
    assert max(after - before for before, after in itertools.pairwise(found)) <= 8


def test_slow_moments_are_all_looked_at() -> None:
    assert looks([2.0] * 5) == [1, 2, 3, 4, 5]


def test_moments_that_become_slow_are_not_missed_for_long() -> None:
    found = looks([0.0001] * 1_000 + [2.0] * 100)
    assert max(after - before for before, after in itertools.pairwise(found)) == MOST_BETWEEN
    assert found[-30:] == list(range(1_071, 1_101))


def test_a_look_out_of_turn_begins_the_count_anew() -> None:
    now = 0.0
    pace = Pace(0.5, lambda: now)
    pace.looked(4)
    assert [pace.is_due() for _ in range(2)] == [False, False]
    pace.looked(3)
    assert [pace.is_due() for _ in range(3)] == [False, False, True]
