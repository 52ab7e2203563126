"""A thousand random schedules of stops, delays, reordered and lost messages, around the pool's leases."""

import pytest

from tests.support.lease_schedules import broken
from tests.support.pool_study import Study, no_waiting

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("block", range(4))
def test_no_schedule_loses_or_doubles_a_trial(block):
    assert broken(range(250 * block, 250 * (block + 1))) == {}


class Forgetful(set):
    """Forgets at once."""

    def __contains__(self, trial_id):
        return False


def test_without_the_fence_a_late_request_takes_workers_for_ever():
    def unfenced(**settings):
        study = Study(**settings)
        study.pool._over = Forgetful()
        return study

    found = broken(range(120), study=unfenced)
    assert found
    assert all("leases are left" in problem for problem in found.values())
