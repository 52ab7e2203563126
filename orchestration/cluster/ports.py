"""TCP ports: whether one answers, and one that is free."""

from __future__ import annotations

import random
import socket

CONNECT_SECONDS = 3.0
QUIET_PORTS = range(20_000, 30_000)
"""Above the ports that Ray gives its workers, below those that the system gives away."""
HTTP2_SETTINGS = b"\x04"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + HTTP2_SETTINGS + b"\x00" + b"\x00" * 4


def can_connect(host: str, port: int, seconds: float = CONNECT_SECONDS) -> bool:
    """Whether something listens on a TCP port."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=seconds):
            return True
    except OSError:
        return False


def speaks_grpc(host: str, port: int, seconds: float = CONNECT_SECONDS) -> bool:
    """Whether an HTTP/2 server answers on a port, as Ray's head does; `ray.init` would wait for another for ever.

    Sends HTTP/2's preface and an empty SETTINGS frame (RFC 9113, section 3.4), and expects a SETTINGS frame back.
    """
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(HTTP2_PREFACE)
            return connection.recv(9)[3:4] == HTTP2_SETTINGS
    except OSError:
        return False


def quiet_port() -> int:
    """Return a random port of 127.0.0.1 that nobody listens on and nobody will be given; 0 if there is none."""
    some = random.SystemRandom().sample(QUIET_PORTS, 100)
    return next((port for port in some if _is_free(port)), 0)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
