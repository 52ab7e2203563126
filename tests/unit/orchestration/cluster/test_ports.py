"""Ports on which somebody listens, and quiet ones."""

import socket

from scalestudy.orchestration.cluster.ports import can_connect, quiet_port


def test_whether_something_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert can_connect("127.0.0.1", port)
    assert not can_connect("127.0.0.1", port)
    assert not can_connect("no.such.host.invalid", 1)


def test_a_quiet_port_is_free_and_another_each_time():
    ports = {quiet_port() for _ in range(20)}
    assert len(ports) > 1
    assert not any(can_connect("127.0.0.1", port) for port in ports)
