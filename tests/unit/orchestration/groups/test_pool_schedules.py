"""Two hundred random schedules of stops, delays, reordered and lost messages, around the pool's leases."""

import pytest

from tests.support.lease_schedules import broken
from tests.support.pool_study import Study, no_waiting

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


def test_no_schedule_loses_or_doubles_a_trial():
    assert broken(range(200)) == {}


class Forgetful(set):
    """Forgets at once."""

    def __contains__(self, trial_id):
        return False


def test_without_the_fence_a_late_request_takes_workers_for_ever():
    """Some 4 of 100 schedules show it: two hundred miss it once in four thousand times."""

    def unfenced(**settings):
        study = Study(**settings)
        study.pool._over = Forgetful()
        return study

    found = broken(range(30, 50), study=unfenced)
    assert found
    assert all("leases are left" in problem for problem in found.values())
