"""What the tests of this folder share."""

import pytest

from scalestudy.orchestration.cluster.connection import connect


@pytest.fixture(scope="package")
def ray_session(_own_environment):
    """One Ray with four logical CPUs, started for the first test that needs it, and ended before the next folder's
    tests: what Ray prints of its own accord is not theirs."""
    cluster = connect("local", num_cpus=4)
    yield cluster
    cluster.disconnect()
