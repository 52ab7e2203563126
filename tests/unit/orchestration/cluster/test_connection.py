"""Addresses of a cluster that are refused."""

import socket

import pytest

from scalestudy.orchestration.base.errors import ExitCode, RequestError, UnreachableError
from scalestudy.orchestration.cluster.connection import connect


def test_an_address_where_nobody_listens_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnreachableError, match="nobody listens") as caught:
        connect(f"127.0.0.1:{port}")
    assert caught.value.exit_code == ExitCode.UNREACHABLE


def test_ray_client_is_refused(monkeypatch):
    with pytest.raises(RequestError, match="Ray Client"):
        connect("ray://head:10001")
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(RequestError, match="Ray Client"):
        connect(None)
