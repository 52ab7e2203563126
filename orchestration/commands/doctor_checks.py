"""The doctor's checks of the machine and its network.

A function `check_…` reads the facts; a pure function makes a finding of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalestudy.orchestration.base.errors import first_line
from scalestudy.orchestration.base.places import base_folder, nearest
from scalestudy.orchestration.cluster.connection import token_file

if TYPE_CHECKING:
    from scalestudy.training.distributed import Worker


State = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at: how it is, and what to do if it is not well."""

    name: str
    state: State
    text: str
    remedy: str = ""

    @property
    def broken(self) -> bool:
        """Whether a study can't run like this."""
        return self.state == "broken"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)


SUPPORTED = ("ray", "torch", "torchvision", "mlflow")
LEAST_FREE_BYTES = 1_000_000_000
NO_ROOM_BYTES = 50_000_000
"""Below this not even Ray's logs of a short study have room."""
FULLEST = 0.95
"""Share of a disk beyond which Ray stores no objects on it (its local_fs_capacity_threshold)."""
LEAST_SHARED_MEMORY_BYTES = 200_000_000
FEW_FILES, TOO_FEW_FILES = 4_096, 1_024
"""Ray raises a soft limit below the first to the hard one, and warns where that is not enough."""


def check_packages() -> Iterator[Finding]:
    """What is installed."""
    yield Finding("python", "ok", ".".join(map(str, sys.version_info[:3])))
    for name in SUPPORTED:
        version = _version(name)
        yield (
            Finding(name, "ok", version)
            if version
            else Finding(name, "broken", "is not installed", "pip install -c constraints.txt -e .")
        )


def check_torch() -> Iterator[Finding]:
    """torchvision must be the one made for this torch, and able to import beside it; then the devices."""
    problem = ""
    try:
        import torch

        from scalestudy.training.torchvision_compat import import_torchvision

        import_torchvision()
    except (ImportError, RuntimeError, OSError) as error:
        problem = first_line(error)
    yield from pair(_version("torch"), _version("torchvision"), _wanted_torch(), problem)
    if problem:
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Finding("devices", "ok", f"{len(names)} GPUs: {', '.join(sorted(set(names)))}")
    else:
        yield Finding("devices", "note", f"no GPU: a worker is a CPU process; {os.cpu_count()} cores")


def pair(torch: str, torchvision: str, wanted: str, problem: str) -> Iterator[Finding]:
    """Whether torchvision goes with torch.

    torch, torchvision: their versions, "": not installed. wanted: the version of torch that torchvision says it is made
    for, "": any. problem: why torchvision can't be imported, or "".
    """
    remedy = "install the pair that constraints.txt names: pip install -c constraints.txt torch torchvision"
    if torch and torchvision and wanted and _public(torch) != _public(wanted):
        text = f"{torchvision} is made for torch {wanted}, and torch is {torch}"
        yield Finding("torchvision", "broken", f"{text} ({problem})" if problem else text, remedy)
    elif problem:
        yield Finding("torchvision", "broken", f"can't be imported beside torch {torch or '(none)'}: {problem}", remedy)


def check_disks(storage: Path | None) -> Iterator[Finding]:
    """Room for the study, and for Ray's own files. storage: the studies' folder; None: not on a disk."""
    places = {
        "disk": storage or base_folder(),
        "Ray's disk": Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()),
    }
    for name, place in places.items():
        folder = nearest(place)
        usage = shutil.disk_usage(folder)
        yield disk(name, str(folder), usage.free, usage.total)


def disk(name: str, place: str, free: int, total: int) -> Finding:
    """How full a disk is; sizes in bytes."""
    text = f"{free / 1e9:.1f} GB free at {place}"
    remedy = "free at least 1 GB" if name == "disk" else "free some space, or name another disk by RAY_TMPDIR"
    if free < NO_ROOM_BYTES:
        return Finding(name, "broken", f"full: {free / 1e6:.0f} MB free at {place}", remedy)
    if free < LEAST_FREE_BYTES:
        return Finding(name, "note", text, remedy)
    if name != "disk" and total and 1 - free / total > FULLEST:
        return Finding(name, "note", f"{text}: more than {FULLEST:.0%} full, where Ray stores no objects", remedy)
    return Finding(name, "ok", text)


def check_shared_memory() -> Iterator[Finding]:
    """Ray keeps its objects there; a container often has 64 MB."""
    place = Path("/dev/shm")
    if place.exists():
        yield shared_memory(shutil.disk_usage(place).total)


def shared_memory(size: int) -> Finding:
    """size: bytes of /dev/shm."""
    small = size < LEAST_SHARED_MEMORY_BYTES
    remedy = "give the container more, such as docker run --shm-size=2g" if small else ""
    text = f"{size / 1e6:.0f} MB" + (
        ": too small, so Ray keeps its objects on the disk, which is slow" if small else ""
    )
    return Finding("/dev/shm", "note" if small else "ok", text, remedy)


def check_files() -> Iterator[Finding]:
    """How many files a process may have open."""
    yield files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def files(soft: int, hard: int) -> Finding:
    """The limits of open files; -1 (RLIM_INFINITY): none."""
    count = hard if 0 <= soft < FEW_FILES else soft
    if count < 0 or count >= FEW_FILES:
        return Finding("open files", "ok", "no limit" if count < 0 else f"up to {count}")
    remedy = "raise the limit: ulimit -n 65536, LimitNOFILE of a service, or docker run --ulimit nofile=65536"
    state, what = ("broken", "too few") if count < TOO_FEW_FILES else ("note", "few")
    return Finding("open files", state, f"up to {count}: {what} for Ray's processes and their connections", remedy)  # type: ignore[arg-type]


def check_token(address: str | None) -> Iterator[Finding]:
    """Ray's authentication. address: of a cluster that is to be used; None: this machine."""
    file = token_file()
    mode = stat.S_IMODE(file.stat().st_mode) if file.is_file() else None
    named = address or os.environ.get("RAY_ADDRESS")
    yield token(os.environ, mode, str(file), bool(named) and named != "local")


def token(environment: Mapping[str, str], mode: int | None, file: str, elsewhere: bool) -> Finding:
    """Whether there is a token, and whether others can read it.

    environment: its RAY_AUTH_* variables. mode: of the token's file; None: there is none. elsewhere: a cluster that
    runs already is to be used, which has a token of its own.
    """
    name = "Ray token"
    if environment.get("RAY_AUTH_MODE") == "disabled":
        text = "authentication is off (RAY_AUTH_MODE=disabled): whoever reaches Ray's ports can run code"
        return Finding(name, "note", text, "unset RAY_AUTH_MODE")
    if environment.get("RAY_AUTH_TOKEN"):
        return Finding(name, "ok", "there is one, in RAY_AUTH_TOKEN")
    if mode is not None and mode & 0o077:
        return Finding(name, "note", f"others on this machine can read {file}", f"chmod 600 {file}")
    if mode is not None:
        return Finding(name, "ok", f"there is one, in {file}")
    if elsewhere or environment.get("RAY_AUTH_MODE") == "token":
        remedy = f"put the cluster's token into {file} (chmod 600) or RAY_AUTH_TOKEN"
        return Finding(name, "broken", f"there is none, neither in RAY_AUTH_TOKEN nor in {file}", remedy)
    remedy = "before `ray start` or `ray job submit`: ray get-auth-token --generate"
    return Finding(name, "note", "none yet; `run` makes one for its own cluster", remedy)


def threads(environment: Mapping[str, str], cores: int, workers: int, per_worker: int, exclusive: bool) -> Finding:
    """Whether workers and their threads have a core each.

    environment: its OMP_NUM_THREADS and MKL_NUM_THREADS. workers: of the largest trial, on this machine. per_worker:
    resources.cpus_per_worker, the threads that PyTorch computes with. exclusive: trials run one at a time.
    """
    name, wanted = "threads", workers * per_worker
    if wanted > cores:
        text = f"{workers} workers × {per_worker} threads on {cores} cores: their timings mean little, and are flagged"
        remedy = "lower resources.cpus_per_worker or sweep.num_gpus, or leave out resources.oversubscribe"
        return Finding(name, "note", text, remedy)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        value = environment.get(variable, "")
        if re.fullmatch(r"\d+", value) and int(value) * workers > cores:
            text = f"{variable}={value}: {workers} workers would have {int(value) * workers} threads on {cores} cores"
            return Finding(name, "note", f"{text} in NumPy and data loaders", f"unset {variable}, or set it to 1")
    kept = "one trial at a time" if exclusive else "trials side by side"
    return Finding(name, "ok", f"{wanted} threads of the largest trial on {cores} cores, {kept}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _wanted_torch() -> str:
    """The version of torch that torchvision's metadata asks for, "": none."""
    try:
        wants: Sequence[str] = importlib.metadata.requires("torchvision") or ()
    except importlib.metadata.PackageNotFoundError:
        return ""
    matches = (re.fullmatch(r"torch\s*\(?==\s*([\w.+]+)\)?", each.partition(";")[0].strip()) for each in wants)
    return next((match[1] for match in matches if match), "")


def _public(version: str) -> str:
    """A version without the part of its build: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


MEETING_SECONDS = 120.0
"""Most of it is two imports of PyTorch."""
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
PROGRAM = """
import sys
from scalestudy.orchestration.commands.doctor_checks import sum_of_ranks
from scalestudy.training.distributed import on_ranks
print(on_ranks(2, sum_of_ranks, backend=sys.argv[1]))
"""


def check_network(address: str | None) -> Iterator[Finding]:
    """Interfaces, the name of this machine, and two processes that sum a number. address: as for `token`."""
    interfaces = [name for _, name in socket.if_nameindex()]
    named = list(named_interfaces(os.environ, interfaces))
    yield from named
    named_address = address or os.environ.get("RAY_ADDRESS")
    elsewhere = bool(named_address) and named_address != "local"
    yield host(socket.gethostname(), _address_of(socket.gethostname()), bool(os.environ.get(VARIABLES[0])), elsewhere)
    if named:
        return
    try:
        import torch
    except (ImportError, OSError):
        return  # `check_torch` says so
    for backend in ("gloo", "nccl") if torch.cuda.device_count() > 1 else ("gloo",):
        yield meeting(backend)


def named_interfaces(environment: Mapping[str, str], interfaces: Sequence[str]) -> Iterator[Finding]:
    """Variables that name a network interface which this machine does not have.

    gloo takes names; NCCL takes beginnings of names, whole ones after `=`, and those not to take after `^`.
    """
    for variable in VARIABLES:
        value = environment.get(variable, "")
        mark, names = (value[0], value[1:]) if value[:1] in ("^", "=") else ("", value)
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        exact = variable.startswith("GLOO") or mark == "="
        missing = [
            name for name in wanted if not any(each == name if exact else each.startswith(name) for each in interfaces)
        ]
        if missing and mark != "^" and (exact or len(missing) == len(wanted)):
            text = f"{variable} names {', '.join(missing)}, and this machine has {', '.join(interfaces)}"
            yield Finding("network", "broken", text, f"unset {variable}, or name an interface that every node has")


def host(name: str, address: str | None, interface_named: bool, elsewhere: bool) -> Finding:
    """Whether other machines would find this one by what gloo tells them.

    address: that the machine's name stands for; None: nothing. interface_named: GLOO_SOCKET_IFNAME is set, and the name
    does not matter. elsewhere: a cluster is to be used that may have other machines.
    """
    remedy = "set GLOO_SOCKET_IFNAME on every node to the interface that joins them, or correct /etc/hosts"
    if interface_named:
        return Finding("host name", "ok", f"{name}; workers use the interface of GLOO_SOCKET_IFNAME")
    if address is None:
        text = f"{name} resolves to no address: workers on other machines can't join those here"
        return Finding("host name", "broken" if elsewhere else "note", text, remedy)
    if address.startswith("127.") or address == "::1":
        text = f"{name} is {address}: fine on one machine, but workers on other machines can't join"
        return Finding("host name", "note" if elsewhere else "ok", text, remedy if elsewhere else "")
    return Finding("host name", "ok", f"{name} is {address}")


def _address_of(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


def meeting(backend: str, seconds: float = MEETING_SECONDS) -> Finding:
    """Two processes of this machine that meet and sum a number, as a trial's workers do at every step."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, backend],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        said, errors = "", f"no result after {seconds:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if said.strip() == "[3.0, 3.0]":
        return Finding(backend, "ok", "two processes on this machine sum a number")
    why = next(iter(errors.strip().splitlines()[::-1]), "") or f"it said {said.strip()!r}"
    remedy = (
        f"set {backend.upper()}_SOCKET_IFNAME to an interface that is up (lo on one machine), and look for a firewall"
    )
    return Finding(backend, "broken", f"two processes on this machine can't sum a number: {why}", remedy)


def sum_of_ranks(worker: Worker) -> float:
    """Runs in both processes: 1 from rank 0 and 2 from rank 1."""
    import torch
    import torch.distributed

    number = torch.tensor(worker.rank + 1.0, device=worker.device)
    torch.distributed.all_reduce(number)
    return number.item()
