"""What the tests of this folder share."""

import sys

import pytest

from scalestudy.orchestration.cluster.connection import connect
from tests.support.preloaded import preloaded_workers


@pytest.fixture(scope="package")
def ray_session(_own_environment):
    """One Ray with four logical CPUs, whose workers are forks, started for the first test that needs it."""
    with preloaded_workers() as python:
        with pytest.MonkeyPatch.context() as start:
            start.setattr(sys, "executable", python)
            cluster = connect("local", num_cpus=4)
        yield cluster
        cluster.disconnect()
