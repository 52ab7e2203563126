"""What the tests of this folder share."""

import pytest

from tests.support.preloaded import preloaded_cluster
from tests.support.telling_models import SECRETS


@pytest.fixture(scope="package")
def ray_session(_own_environment):
    """One Ray with four logical CPUs, whose workers are forks, started for the first test that needs it.

    Its workers know the secrets of `Telling`.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        with preloaded_cluster(4) as cluster:
            yield cluster
