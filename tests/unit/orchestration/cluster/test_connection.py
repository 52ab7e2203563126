"""Addresses of a cluster that are refused, and where a cluster that is started here keeps its files."""

import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from scalestudy.orchestration.base.errors import ExitCode, RequestError, UnreachableError
from scalestudy.orchestration.cluster import connection
from scalestudy.orchestration.cluster.connection import connect, folder_of_clusters
from scalestudy.training.process import Terminated, terminate


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


@pytest.mark.parametrize("before", [signal.SIG_DFL, terminate])
def test_ray_s_handler_of_sigterm_takes_no_other_s_place(monkeypatch, before):
    """It would end a command with status 15."""

    def init(address, **options):
        signal.signal(signal.SIGTERM, rays)
        if address == "signalled":
            signal.raise_signal(signal.SIGTERM)
        raise ConnectionError

    def rays(number, frame):
        sys.exit(number)

    kept = signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(connection, "_refuse_unreachable", lambda address: None)
    try:
        with pytest.raises(UnreachableError):
            connect("auto")
        assert signal.getsignal(signal.SIGTERM) is (terminate if before is terminate else rays)
        signal.signal(signal.SIGTERM, before)
        with pytest.raises(Terminated if before is terminate else SystemExit):
            connect("signalled")
    finally:
        signal.signal(signal.SIGTERM, kept)


@pytest.fixture
def places(monkeypatch, tmp_path):
    """Sets where temporary files are, and which short folders there are."""

    def set_places(temporary, *short):
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        monkeypatch.setattr(connection, "SHORT_FOLDERS", tuple(map(str, short)))

    return set_places


LONG = "/" + "j" * 40
MAC = "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"


@pytest.mark.parametrize(
    ("temporary", "short", "taken"),
    [
        ("/scratch/ann", ("/tmp",), "/scratch/ann"),
        (LONG, ("/tmp",), "/tmp"),
        (MAC, ("/none", "/tmp"), "/tmp"),
        ("/" + "ü" * 12, ("/tmp",), "/tmp"),  # 25 bytes
        (LONG, (LONG, "/dev/shm"), "/dev/shm"),
    ],
)
def test_ray_s_files_are_where_its_sockets_have_room(places, temporary, short, taken):
    places(temporary, *short)
    assert folder_of_clusters() == Path(taken)


def test_no_short_folder(places, monkeypatch):
    places(LONG, "/none")
    with pytest.raises(UnreachableError, match=f"TMPDIR: {LONG}: is too long .*; set it to a folder .* of at most 2"):
        folder_of_clusters()
    monkeypatch.setenv("RAY_TMPDIR", MAC)
    with pytest.raises(UnreachableError, match=f"RAY_TMPDIR: {MAC}: is too long"):
        folder_of_clusters()
    monkeypatch.setenv("RAY_TMPDIR", "/scratch/new")
    assert folder_of_clusters() == Path("/scratch/new")


def test_a_folder_for_ray_that_cannot_be_made(monkeypatch, tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        file = Path(folder, "f")
        file.touch()
        monkeypatch.setenv("RAY_TMPDIR", str(file))
        with pytest.raises(UnreachableError, match=f"RAY_TMPDIR: Ray can't keep its files in {file} "):
            connect("local")
