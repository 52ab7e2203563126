"""The connection to the Ray cluster that a study runs on: start it, join it, leave it."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.errors import RequestError, UnreachableError, first_line
from scalestudy.orchestration.base.places import expanded, temporary_folder
from scalestudy.orchestration.cluster.nodes import HEAD_DRAINS, ClusterNode, Growth, alive_nodes, head_drains
from scalestudy.orchestration.cluster.ports import can_connect, quiet_port, speaks_grpc
from scalestudy.orchestration.cluster.ray_private import (
    LOOPBACK_ONLY,
    cluster_limits,
    is_autoscaled,
    is_without_nodes,
    noted_cluster_address,
    read_variables,
    refusal_of,
    start_cluster,
)

START_SECONDS = 300.0
"""How long a cluster may take to start. On a quiet machine it takes two or three seconds."""
PATIENCE = {"RAY_gcs_server_port_wait_time_s": "300", "RAY_agent_register_timeout_ms": "300000"}
"""Ray's variables for the same time. Set while a cluster is started here alone: who joins one, and a process that this
one starts may, would wait as long for a cluster that refuses its token."""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
"""Bytes of a socket's path, which the system limits."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A connected cluster, with the nodes that a study may count on."""

    address: str
    nodes: tuple[ClusterNode, ...]
    home: Path | None = None  # its temporary folder, if this process started it and will end it
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """What it has changed in this process's environment, as it was before; None: not set."""
    connected_here: bool = True
    growth: Growth | None = None  # how far its autoscaler may let it grow; None: it has no autoscaler

    @property
    def started_here(self) -> bool:
        """Whether this process started it."""
        return self.home is not None

    def disconnect(self) -> None:
        """Leave the cluster, and end it if this process started it."""
        import ray

        if self.connected_here:
            with _garbage_collected():
                ray.shutdown()
        if self.home:
            _forget(self.home, self.variables)


@contextmanager
def _garbage_collected() -> Iterator[None]:
    """Leave no garbage to other threads: Ray ends a process that frees one of its references while it shuts down."""
    collects = gc.isenabled()
    gc.disable()
    try:
        gc.collect()
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _handler_kept() -> Iterator[None]:
    """Put back this process's handler of SIGTERM, if it has one, and let it handle what Ray's takes before that.

    Ray's own would end a command with status 15.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as end:
        if callable(before) and end.code == signal.SIGTERM:
            before(signal.SIGTERM, None)
        raise
    finally:
        if callable(before) and signal.getsignal(signal.SIGTERM) is not before:
            signal.signal(signal.SIGTERM, before)


@_handler_kept()
def connect(address: str | None, *, num_cpus: int | None = None) -> Cluster:
    """Connect to a cluster, or start one on this machine.

    Args:
        address: `local` starts one; `auto` joins a running one; host:port names one; None does as Ray by default: join
            the cluster that RAY_ADDRESS names or that runs on this machine, else start one.
        num_cpus: logical CPUs of a cluster that is started here; None: one a core.

    Raises:
        RequestError: a Ray Client address.
        UnreachableError: no cluster answers, it refuses the token, or none can be started here.
    """
    import ray

    if ray.is_initialized():
        return _cluster(connected_here=False)
    _refuse_unreachable(address)
    namespace = f"scalestudy-{uuid.uuid4().hex[:8]}"
    options: dict[str, Any] = {"namespace": namespace, "configure_logging": True, "log_to_driver": True}
    if address == "local" or (address is None and not _finds_cluster()):
        return _start(num_cpus, options)
    try:
        ray.init(address=address, **options)
    except Exception as error:
        named = address or os.environ.get("RAY_ADDRESS") or ""
        refused = isinstance(error, ray.exceptions.AuthenticationError)
        if refused or ":" in named:
            if not refused and is_without_nodes(named):  # asking without a token would end this process
                why = "its head was drained or has died; the rest of it answers but has no nodes"
                raise _no_cluster(named, why) from error
            raise _not_let_in(named or "auto", str(error)) from error  # something answered there
        raise _no_cluster(address, str(error)) from error
    return _cluster()


def _start(num_cpus: int | None, options: dict[str, Any]) -> Cluster:
    """Start a cluster on this machine, in a new temporary folder, with a token that nobody else can read.

    Ray Train's helpers find "the" cluster by a note in Ray's temporary folder. In the common folder the note may name
    another cluster. The helpers would ask that cluster whether our group lives, and take the group down.

    The dashboard is not started, but Ray notes a port for it. Another cluster's dashboard may answer at 8265, so our
    cluster notes a port that nobody uses.

    All ports are on 127.0.0.1, unless the user's environment sets Ray's variable otherwise.
    """

    place = folder_of_clusters()
    try:
        place.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        variables = {LOOPBACK_ONLY: os.environ.get(LOOPBACK_ONLY, "0"), "RAY_TMPDIR": str(home)}
        if not _has_token():
            (home / "token").write_text(secrets.token_hex(32), encoding="ascii")  # only we may enter its folder
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home / "token")}
    except OSError as error:
        problem = f"{_deciding()}: Ray can't keep its files in {place} ({error.strerror})"
        raise UnreachableError(problem, "free some space, or set it to another short folder") from error
    if len(os.fsencode(temporary_folder())) + len(_LOADERS_SOCKET) > LONGEST_SOCKET:
        variables["TMPDIR"] = str(home)
    before = {name: os.environ.get(name) for name in variables}
    patience = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(variables | patience)
    read_variables()
    try:
        start_cluster(START_SECONDS, num_cpus=num_cpus, include_dashboard=False, dashboard_port=quiet_port(), **options)
    except BaseException as error:
        _forget(home, before)
        if not isinstance(error, Exception):
            raise
        raise UnreachableError(
            f"Ray could not be started on this machine ({first_sentence(str(error))})",
            f"end other processes, or free memory or space in {place}, then try again",
        ) from error
    finally:
        for name in patience:
            del os.environ[name]
    cluster = _cluster(home=home, variables=before)
    (home / "ray" / "ray_current_cluster").write_text(cluster.address, encoding="utf-8")
    return cluster


def _forget(home: Path, variables: Mapping[str, str | None]) -> None:
    """Remove what a cluster of this machine left behind: its folder and its variables, which get their old values."""
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    read_variables()
    shutil.rmtree(home, ignore_errors=True)


_PREFIX = "scalestudy-"
_LOADERS_SOCKET = "/pymp-12345678/listener-12345678"
"""What Python's multiprocessing adds to the folder of temporary files; a data set's loaders send batches through it."""


def folder_of_clusters() -> Path:
    """Return where a cluster of this machine gets its folder: where RAY_TMPDIR says, else among the temporary files.

    Ray's sockets are in it. Where their paths would be too long, a short folder takes the place of the temporary
    files'. Raises UnreachableError where there is none.
    """
    session = f"session_2026-01-31_12-00-00_123456_{os.getpid()}"
    room = LONGEST_SOCKET - len(f"/{_PREFIX}12345678/ray/{session}/sockets/plasma_store")
    if named := os.environ.get("RAY_TMPDIR"):
        places = [Path(named).absolute()]
    else:
        places = [temporary_folder(), *(Path(each) for each in SHORT_FOLDERS if os.access(each, os.W_OK | os.X_OK))]
    for place in places:
        if len(os.fsencode(place)) <= room:
            return place
    problem = f"{_deciding()}: {places[0]}: is too long for the paths of Ray's sockets"
    raise UnreachableError(problem, f"set it to a folder that you may write, of at most {room} bytes")


def _deciding() -> str:
    """Return the variable that decides where a cluster's folder is."""
    return "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"


def _has_token() -> bool:
    """Whether the user has given a cluster that is started here a token, or wants none."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled" or os.environ.get("RAY_AUTH_TOKEN"):
        return True
    return bool(os.environ.get("RAY_AUTH_TOKEN_PATH")) and token_file().is_file()


def token_file() -> Path:
    """Return where Ray looks for the token of a cluster that runs already."""
    return expanded(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")


def _finds_cluster() -> bool:
    """Whether Ray would find a running cluster by itself.

    Ray goes by a note, which a killed cluster leaves behind. So the cluster that the note names must also answer.
    """
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"] != "local"
    host, _, port = (noted_cluster_address() or "").rpartition(":")
    return bool(host) and port.isdigit() and can_connect(host, int(port))


def _refuse_unreachable(address: str | None) -> None:
    """Raise at once for an address where nobody listens; Ray would try for half a minute."""
    named = address or os.environ.get("RAY_ADDRESS") or ""
    if named.startswith("ray://"):
        problem = f"--address: {named}: Ray Client is not supported"
        raise RequestError(problem, "submit the study as a job: ray job submit -- python -m scalestudy run SPEC")
    host, _, port = named.rpartition(":")
    if not host or not port.isdigit():
        return
    if not can_connect(host, int(port)):
        raise _no_cluster(named, "nobody listens there")
    if not speaks_grpc(host, int(port)):
        raise _no_cluster(named, "what listens there is not Ray")
    can_ask = _has_token() or os.environ.get("RAY_AUTH_MODE") != "token"
    if can_ask and (refusal := refusal_of(named)):
        raise _not_let_in(named, refusal)


TOKEN_REMEDY = "set RAY_AUTH_MODE=token, and put the cluster's token into RAY_AUTH_TOKEN or ~/.ray/auth_token"


def first_sentence(text: str) -> str:
    """Return the first sentence of a message of Ray, which may be long."""
    return (text.strip().splitlines() or ["no answer"])[0].partition(". ")[0][:300]


def _not_let_in(address: str, reason: str) -> UnreachableError:
    return UnreachableError(
        f"--address: {address}: Ray answers, but refuses this process ({first_sentence(reason)})",
        f"{TOKEN_REMEDY}; or install the cluster's version of Ray here",
    )


def _no_cluster(address: str | None, reason: str) -> UnreachableError:
    return UnreachableError(
        f"--address: {address or 'auto'}: no Ray cluster can be reached ({first_line(reason) or 'no answer'})",
        "start one (`ray start --head`), correct the address and the token, or use --address local",
    )


def _cluster(
    *, home: Path | None = None, variables: Mapping[str, str | None] | None = None, connected_here: bool = True
) -> Cluster:
    import ray

    address, alive = ray.get_runtime_context().gcs_address, alive_nodes()
    if head_drains(alive):
        raise UnreachableError(f"--address: {address}: {HEAD_DRAINS}", "name another cluster, or wait for a new head")
    nodes = tuple(node for node in alive if not node.draining)
    growth = None if home else _growth()  # a cluster that was started here has no autoscaler
    return Cluster(
        address=address, nodes=nodes, home=home, variables=variables or {}, connected_here=connected_here, growth=growth
    )


def _growth() -> Growth | None:
    limits = cluster_limits()
    return Growth(limits=limits) if limits or is_autoscaled() else None
