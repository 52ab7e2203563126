"""What the tests of this folder share."""

import pytest

from tests.support.preloaded import preloaded_cluster


@pytest.fixture(scope="package")
def ray_session(_own_environment):
    """One Ray with four logical CPUs, started for the first test that needs it, and ended before the next folder's
    tests: what Ray prints of its own accord is not theirs."""
    with preloaded_cluster(4) as cluster:
        yield cluster
