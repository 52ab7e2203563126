"""A cluster that a study starts for itself, with a group that has trained: none of its ports is open to others."""

import os
import socket

import pytest

from tests.support.groups import group_pool
from tests.support.listening import family_of, listening

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture(scope="module")
def ports(ray_session, tmp_path_factory):
    """Where everything listens that this process has started, while a group of two workers is there."""
    with group_pool(tmp_path_factory.mktemp("groups")) as pool:
        assert pool.train(2, epochs=1).status == "finished"
        return listening(family_of(os.getpid()))


def test_every_port_is_on_the_loopback_interface(ports):
    open_to_others = {place: process for place, process in ports.items() if place[0] not in LOOPBACK}
    assert not open_to_others
    assert len(set(ports.values())) >= 4, "Ray's head, its raylet, its agents, its workers"


def test_a_port_that_is_open_to_others_is_seen():
    with socket.create_server(("0.0.0.0", 0)) as server, socket.create_server(("::", 0), family=socket.AF_INET6) as six:
        places = listening({os.getpid()})
        assert ("0.0.0.0", server.getsockname()[1]) in places
        assert ("::", six.getsockname()[1]) in places
