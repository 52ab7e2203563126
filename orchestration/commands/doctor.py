"""`scalestudy doctor`: finds what would stop a study on this machine, and says how to fix it.

A check yields findings. A check that decides by facts of the machine takes them as arguments, so that a test can pass
others; `checks_of` reads them.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.child import run_child
from scalestudy.orchestration.base.errors import StudyError, first_line
from scalestudy.orchestration.base.places import base_folder, nearest
from scalestudy.orchestration.cluster.connection import folder_of_clusters, token_file

if TYPE_CHECKING:
    from scalestudy.training.distributed import Worker


@dataclass(frozen=True)
class Finding:
    """The result of one check: the state of a thing, and what to do if it is bad."""

    name: str
    state: Literal["ok", "note", "broken"]  # a note stops nothing; broken would stop a study
    text: str
    remedy: str = ""

    @property
    def broken(self) -> bool:
        """Whether a study can't run like this."""
        return self.state == "broken"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        return asdict(self)


Check = Callable[[], Iterable[Finding]]
PACKAGES = ("ray", "torch", "torchvision", "mlflow")
LEAST_FREE_BYTES, NO_ROOM_BYTES = 1_000_000_000, 50_000_000
"""Below the second not even Ray's logs of a short study have room."""
SHM = Path("/dev/shm")
LEAST_SHARED_MEMORY_BYTES = 200_000_000
FEW_FILES, TOO_FEW_FILES = 4_096, 1_024
"""Ray raises a soft limit below the first to the hard one, and warns where that is not enough."""
OTHER_DISK = "free some space, or name another disk by RAY_TMPDIR"
INTERFACE = "GLOO_SOCKET_IFNAME"
MEETING_SECONDS = 120.0
"""Limit for two processes to meet; most of it is for two imports of PyTorch."""
MEETING = """
import sys
from scalestudy.orchestration.commands.doctor import sum_of_ranks
from scalestudy.training.distributed import on_ranks
print(on_ranks(2, sum_of_ranks, backend=sys.argv[1]))
"""


def examine(source: str, address: str | None) -> list[Finding]:
    """Return every finding. Raise SpecError for an invalid spec, as every command does."""
    from scalestudy.orchestration.study.folders import read_trained_spec

    return [finding for name, check in checks_of(read_trained_spec(source), address) for finding in safely(name, check)]


def checks_of(spec: StudySpec, address: str | None) -> list[tuple[str, Check]]:
    """Return the checks in the order of their findings, each with the name under which a refused study is reported.

    address: of the cluster to check; None: this machine.
    """
    from scalestudy.orchestration.study.opening import storage_of

    environment, file, host = os.environ, token_file(), socket.gethostname()
    elsewhere = (address or environment.get("RAY_ADDRESS") or "local") != "local"
    study_disk = base_folder() if is_uri(spec.storage) else Path(storage_of(spec))
    mode = stat.S_IMODE(file.stat().st_mode) if file.is_file() else None
    return [
        ("packages", packages),
        ("torchvision", torch_and_torchvision),
        ("disk", lambda: [disk("disk", study_disk, "free at least 1 GB")]),
        ("Ray's disk", lambda: [disk("Ray's disk", folder_of_clusters(), OTHER_DISK)]),
        ("/dev/shm", lambda: [shared_memory(shutil.disk_usage(SHM).total)] if SHM.exists() else []),
        ("open files", lambda: [files(*resource.getrlimit(resource.RLIMIT_NOFILE))]),
        ("Ray token", lambda: [token(environment, mode, str(file), elsewhere)]),
        ("network", lambda: [host_name(host, _address_of(host), bool(environment.get(INTERFACE)), elsewhere)]),
        ("network", meetings),
        ("data", lambda: data(spec)),
        ("storage", lambda: storage(spec)),
        ("tracking", lambda: tracking(spec)),
        ("workers", lambda: workers(spec, address)),
    ]


def safely(name: str, check: Check) -> list[Finding]:
    """Return the findings of one check, and an error that would refuse the study as the last of them."""
    findings: list[Finding] = []
    try:
        for finding in check():
            findings.append(finding)  # noqa: PERF402 - what was found before an error is kept
    except StudyError as error:
        findings.append(Finding(name, "broken", error.problem, error.remedy))
    except OSError as error:
        findings.append(Finding(name, "broken", str(error), "make it readable and writable for this user"))
    return findings


# --- the machine ------------------------------------------------------------------------------------------------------


def packages() -> Iterator[Finding]:
    """Report the installed versions."""
    yield Finding("python", "ok", ".".join(map(str, sys.version_info[:3])))
    for name in PACKAGES:
        if version := _version(name):
            yield Finding(name, "ok", version)
        else:
            yield Finding(name, "broken", "is not installed", "pip install -c constraints.txt -e .")


def torch_and_torchvision() -> Iterator[Finding]:
    """Check that torchvision was made for this torch and can be imported beside it; report the devices."""
    try:
        import torch

        from scalestudy.training.torchvision_compat import import_torchvision

        import_torchvision()
        problem = ""
    except (ImportError, RuntimeError, OSError) as error:
        problem = first_line(error)
    yield from pair(_version("torch"), _version("torchvision"), _wanted_torch(), problem)
    if not problem and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Finding("devices", "ok", f"{len(names)} GPUs: {', '.join(sorted(set(names)))}")
    elif not problem:
        yield Finding("devices", "note", f"no GPU: a worker is a CPU process; {os.cpu_count()} cores")


def pair(torch: str, torchvision: str, wanted: str, problem: str) -> Iterator[Finding]:
    """Check that torchvision goes with torch.

    torch, torchvision: their versions, "": not installed. wanted: the version of torch that torchvision requires, "":
    any. problem: why torchvision can't be imported, or "".
    """
    remedy = "install the pair that constraints.txt names: pip install -c constraints.txt torch torchvision"
    if torch and wanted and torch.partition("+")[0] != wanted.partition("+")[0]:  # 2.13.0 of 2.13.0+cpu
        text = f"{torchvision} is made for torch {wanted}, and torch is {torch}"
        yield Finding("torchvision", "broken", f"{text} ({problem})" if problem else text, remedy)
    elif problem:
        yield Finding("torchvision", "broken", f"can't be imported beside torch {torch or '(none)'}: {problem}", remedy)


def disk(name: str, place: Path, remedy: str) -> Finding:
    """Check that the disk of a place has room."""
    folder = nearest(place)
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free at {folder}"
    return enough(name, free, text, LEAST_FREE_BYTES, NO_ROOM_BYTES, remedy=remedy)


def shared_memory(size: int) -> Finding:
    """Check that Ray can keep its objects in /dev/shm, of `size` bytes; a container often has 64 MB."""
    few = "too small, so Ray keeps its objects on the disk, which is slow"
    remedy = "give the container more, such as docker run --shm-size=2g"
    return enough("/dev/shm", size, f"{size / 1e6:.0f} MB", LEAST_SHARED_MEMORY_BYTES, few=few, remedy=remedy)


def files(soft: int, hard: int) -> Finding:
    """Check the limits of open files of a process; -1 (RLIM_INFINITY): no limit."""
    count = hard if 0 <= soft < FEW_FILES else soft
    few = "few for Ray's processes and their connections"
    remedy = "raise the limit: ulimit -n 65536, LimitNOFILE of a service, or docker run --ulimit nofile=65536"
    if count < 0:
        return Finding("open files", "ok", "no limit")
    return enough("open files", count, f"up to {count}", FEW_FILES, TOO_FEW_FILES, few=few, remedy=remedy)


def enough(name: str, amount: int, text: str, least: int, needed: int = 0, *, few: str = "", remedy: str) -> Finding:
    """Judge an amount: a note below `least`, broken below `needed`. few: what to say of too little."""
    if amount >= least:
        return Finding(name, "ok", text)
    return Finding(name, "broken" if amount < needed else "note", f"{text}: {few}" if few else text, remedy)


def token(environment: Mapping[str, str], mode: int | None, file: str, elsewhere: bool) -> Finding:
    """Check that there is the token of a running cluster, and that others can't read it.

    environment: its RAY_AUTH_* variables. mode: of the token's file; None: there is none. elsewhere: the study uses a
    running cluster; one that it starts needs no token before.
    """
    name, authentication = "Ray token", environment.get("RAY_AUTH_MODE")
    if authentication == "disabled":
        text = "authentication is off (RAY_AUTH_MODE=disabled): whoever reaches Ray's ports can run code"
        return Finding(name, "note", text, "unset RAY_AUTH_MODE")
    if not elsewhere:
        return Finding(name, "ok", "each cluster that `run` starts gets a new one")
    if environment.get("RAY_AUTH_TOKEN"):
        return Finding(name, "ok", "there is one, in RAY_AUTH_TOKEN")
    if mode is not None and mode & 0o077:
        return Finding(name, "note", f"others on this machine can read {file}", f"chmod 600 {file}")
    if mode is not None:
        return Finding(name, "ok", f"there is one, in {file}")
    remedy = f"put the cluster's token into {file} (chmod 600) or RAY_AUTH_TOKEN"
    return Finding(name, "broken", f"there is none, neither in RAY_AUTH_TOKEN nor in {file}", remedy)


def host_name(name: str, address: str | None, interface_named: bool, elsewhere: bool) -> Finding:
    """Check that other machines can find this one by the name that gloo tells them.

    address: which the machine's name resolves to; None: to nothing. interface_named: GLOO_SOCKET_IFNAME is set, and the
    name does not matter. elsewhere: the study uses a cluster that may have other machines.
    """
    if interface_named:
        return Finding("host name", "ok", f"{name}; workers use the interface of {INTERFACE}")
    is_loopback = address is not None and (address.startswith("127.") or address == "::1")
    if address is not None and not (elsewhere and is_loopback):
        return Finding("host name", "ok", f"{name} is {address}")
    text = f"{name} {f'is {address}' if address else 'resolves to no address'}: workers on other machines can't join"
    remedy = f"set {INTERFACE} on every node to the interface that joins them, or correct /etc/hosts"
    return Finding("host name", "broken" if elsewhere and address is None else "note", text, remedy)


def meetings() -> Iterator[Finding]:
    """Let processes meet by each backend that a study here would use. Without PyTorch there is none."""
    with suppress(ImportError, OSError):
        import torch

        for backend in ("gloo", "nccl") if torch.cuda.device_count() > 1 else ("gloo",):
            yield meeting(backend)


def meeting(backend: str, seconds: float = MEETING_SECONDS) -> Finding:
    """Let two processes of this machine meet and sum a number, as a trial's workers do at every step."""
    done = run_child(("-c", MEETING, backend), None, seconds)
    if done.answers[-1:] == ["[3.0, 3.0]"]:
        return Finding(backend, "ok", "two processes on this machine sum a number")
    why = f"no result after {seconds:.0f} s" if done.status is None else done.said
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    remedy = f"set {variable} to an interface that is up (lo on one machine), and look for a firewall"
    return Finding(backend, "broken", f"two processes on this machine can't sum a number: {why}", remedy)


def sum_of_ranks(worker: Worker) -> float:
    """Sum 1 from rank 0 and 2 from rank 1, in both processes."""
    import torch
    import torch.distributed

    number = torch.tensor(worker.rank + 1.0, device=worker.device)
    torch.distributed.all_reduce(number)
    return number.item()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _wanted_torch() -> str:
    """Return the version of torch that torchvision's metadata asks for, "": none."""
    wants = importlib.metadata.requires("torchvision") or () if _version("torchvision") else ()
    matches = (re.match(r"torch\s*\(?==\s*([\w.+]+)", each) for each in wants)
    return next((match[1] for match in matches if match), "")


def _address_of(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


# --- the study --------------------------------------------------------------------------------------------------------


def data(spec: StudySpec) -> Iterator[Finding]:
    """Check that the study's data set is here."""
    from scalestudy.orchestration.study.ready import check_data
    from scalestudy.training.registry import DATASETS

    root, name = check_data(spec), spec.workload.data
    if spec.workload.loop:
        yield Finding("data", "note", f"{spec.workload.loop} reads its data itself, which is not tried here")
    elif name in DATASETS:
        yield Finding("data", "ok", f"{name} (data folder {root})")
    else:
        yield Finding("data", "note", f"{name} is not called here", "call it with scalestudy plan SPEC --rehearse")


def storage(spec: StudySpec) -> Iterator[Finding]:
    """Check that the study's folder could be made."""
    from scalestudy.orchestration.study.opening import new_folder, new_study_id, storage_of

    new_folder(spec, new_study_id(spec))
    yield Finding("storage", "ok", f"{storage_of(spec)} can be written")


def tracking(spec: StudySpec) -> Iterator[Finding]:
    """Check that MLflow's store answers."""
    from scalestudy.orchestration.tracking.server import check_reachable, resolve_address

    address = resolve_address(spec.tracking.uri)
    check_reachable(address)
    yield Finding("tracking", "ok", address.shown)


def workers(spec: StudySpec, address: str | None) -> Iterator[Finding]:
    """Check the cluster, whether its nodes have our packages, and the room that the largest trial needs."""
    from scalestudy.orchestration.base.environment import Output
    from scalestudy.orchestration.cluster import connection, nodes
    from scalestudy.orchestration.cluster.node_checks import check_versions
    from scalestudy.orchestration.study.ready import logical_cpus

    planned = make_plan(spec)
    with Output():
        cluster = connection.connect(address, num_cpus=logical_cpus(planned, spec))
        try:
            cores, gpus = (sum(getattr(node, kind) for node in cluster.nodes) for kind in ("cpus", "gpus"))
            where = "started here for this check" if cluster.started_here else cluster.address
            yield Finding("Ray", "ok", f"{len(cluster.nodes)} nodes, {cores:g} CPUs, {gpus:g} GPUs ({where})")
            if not cluster.started_here:
                check_versions(cluster.nodes)
                yield Finding("versions", "ok", f"the same on {len(cluster.nodes)} nodes and here")
        finally:
            cluster.disconnect()
    device, room = nodes.place(spec.resources, planned.sizes, cluster.nodes, cluster.growth)
    wants = f"{spec.name} wants up to {max(planned.sizes)} {device} workers"
    yield Finding("workers", "ok", f"{wants}, there is room for {nodes.largest_group(room)}{nodes.types_words(room)}")
