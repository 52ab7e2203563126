"""The pool's clocks: what a step of the wall clock and a late look at the limits change."""

import pytest

from scalestudy.orchestration.groups.clock import LONGEST_TICK_SECONDS, PoolClock


class Machine:
    """Both clocks of a machine."""

    def __init__(self):
        self.wall, self.monotonic = 1.7e9, 5_000.0
        self.clock = PoolClock(wall=lambda: self.wall, monotonic=lambda: self.monotonic)

    def passes(self, seconds):
        self.wall, self.monotonic = self.wall + seconds, self.monotonic + seconds

    def ticks(self, seconds, every=0.5):
        """So much passes, with a tick in time."""
        for _ in range(round(seconds / every)):
            self.passes(every)
            self.clock.tick()


@pytest.fixture
def machine():
    return Machine()


def test_the_seconds_of_limits_pass_as_they_do(machine):
    machine.ticks(100)
    assert machine.clock() == 100.0
    machine.passes(0.25)
    assert machine.clock() == 100.25, "between two ticks too"


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_step_of_the_wall_clock_is_in_records_alone(machine, step):
    machine.ticks(10)
    machine.wall += step
    machine.ticks(10)
    assert machine.clock() == 20.0
    assert machine.clock.wall() == 1.7e9 + 20.0 + step


def test_of_the_time_to_a_late_tick_little_counts(machine):
    machine.ticks(10)
    machine.passes(600.0)
    assert machine.clock() == 10.0 + LONGEST_TICK_SECONDS, "whoever asks before the tick learns the same"
    machine.clock.tick()
    assert machine.clock() == 10.0 + LONGEST_TICK_SECONDS
    machine.ticks(10)
    assert machine.clock() == 20.0 + LONGEST_TICK_SECONDS


def test_it_never_goes_back(machine):
    seen = []
    for seconds in (0.1, 0.9, 5.0, 0.0, 0.5, 100.0, 0.2):
        machine.passes(seconds)
        seen.append(machine.clock())
        machine.clock.tick()
        seen.append(machine.clock())
    assert seen == sorted(seen)
