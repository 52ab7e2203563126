"""What the tests of this folder share."""

import pytest

from tests.support.preloaded import preloaded_cluster


@pytest.fixture(scope="package")
def ray_session(_own_environment):
    """One Ray with four logical CPUs, whose workers are forks, started for the first test that needs it."""
    with preloaded_cluster(4) as cluster:
        yield cluster
