"""`scalestudy doctor`: looks for what would stop a study on this machine, and says what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.plan import make_plan
from experiments.spec import StudySpec
from orchestration.environment import base_folder, prepare_environment
from orchestration.errors import StudyError

LEAST_FREE_BYTES = 1_000_000_000
LEAST_SHARED_MEMORY_BYTES = 200_000_000
SUPPORTED = ("ray", "torch", "torchvision", "mlflow")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: how it is, and what to do if it is not well."""

    name: str
    state: Literal["ok", "note", "broken"]
    text: str
    remedy: str = ""

    @property
    def broken(self) -> bool:
        """Whether a study can't run like this."""
        return self.state == "broken"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)


def examine(source: str, address: str | None) -> list[Finding]:
    """Every finding. Raises SpecError for a spec that is wrong, as every command does."""
    from orchestration.preflight import read_spec

    prepare_environment()
    spec = read_spec(source)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "packages": _packages,
        "torchvision": _torch,
        "disk": _disk,
        "/dev/shm": _shared_memory,
        "Ray token": _token,
        "data": lambda: _data(spec),
        "storage": lambda: _storage(spec),
        "tracking": lambda: _tracking(spec),
        "workers": lambda: _workers(spec, address),
    }
    return [finding for name, check in checks.items() for finding in _safely(name, check)]


def _safely(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of one check; what a study would be refused for is a finding too."""
    try:
        return list(check())
    except StudyError as error:
        return [Finding(name, "broken", error.problem, error.remedy)]


def _packages() -> Iterator[Finding]:
    yield Finding("python", "ok", ".".join(map(str, sys.version_info[:3])))
    for name in SUPPORTED:
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "broken", "is not installed", "pip install -c constraints.txt -e .")


def _torch() -> Iterator[Finding]:
    """torchvision must be able to import beside this torch; then the devices."""
    try:
        import torch

        from training.torchvision_compat import import_torchvision

        import_torchvision()
    except (ImportError, RuntimeError, OSError) as error:
        remedy = "install the pair that constraints.txt names"
        yield Finding("torchvision", "broken", str(error).splitlines()[0], remedy)
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Finding("devices", "ok", f"{len(names)} GPUs: {', '.join(sorted(set(names)))}")
    else:
        yield Finding("devices", "note", f"no GPU: a worker is a CPU process; {os.cpu_count()} cores")


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(base_folder() if base_folder().exists() else Path.home()).free
    state: Literal["ok", "note"] = "ok" if free >= LEAST_FREE_BYTES else "note"
    yield Finding("disk", state, f"{free / 1e9:.1f} GB free", "" if state == "ok" else "free at least 1 GB")


def _shared_memory() -> Iterator[Finding]:
    """Ray keeps its objects there; a container often has 64 MB."""
    place = Path("/dev/shm")
    if place.exists():
        size = shutil.disk_usage(place).total
        small = size < LEAST_SHARED_MEMORY_BYTES
        remedy = "give the container more, such as docker run --shm-size=2g" if small else ""
        yield Finding("/dev/shm", "note" if small else "ok", f"{size / 1e6:.0f} MB", remedy)


def _token() -> Iterator[Finding]:
    """Ray's authentication: off only where the user has said so."""
    mode = os.environ.get("RAY_AUTH_MODE")
    files = [Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")]
    found = bool(os.environ.get("RAY_AUTH_TOKEN")) or any(file.exists() for file in files)
    if mode == "disabled":
        yield Finding("Ray token", "note", "authentication is off (RAY_AUTH_MODE=disabled)", "unset RAY_AUTH_MODE")
    elif found:
        yield Finding("Ray token", "ok", "there is one")
    else:
        remedy = "before `ray start` or `ray job submit`: ray get-auth-token --generate"
        yield Finding("Ray token", "note", "none yet; `run` makes one for its own cluster", remedy)


def _data(spec: StudySpec) -> Iterator[Finding]:
    from orchestration.preflight import check_data

    root = check_data(spec)
    yield Finding("data", "ok", f"{spec.workload.data} (data folder {root})")


def _storage(spec: StudySpec) -> Iterator[Finding]:
    from orchestration.preflight import new_folder, new_study_id

    yield Finding("storage", "ok", f"{new_folder(spec, new_study_id(spec)).path.parent} can be written")


def _tracking(spec: StudySpec) -> Iterator[Finding]:
    from orchestration.mlflow_store import check_reachable, resolve_address

    address = resolve_address(spec.tracking.uri)
    check_reachable(address)
    yield Finding("tracking", "ok", address.shown)


def _workers(spec: StudySpec, address: str | None) -> Iterator[Finding]:
    """The cluster, and whether it has the cores or GPUs that the largest trial asks for."""
    from orchestration import cluster as clusters
    from orchestration.environment import Output
    from orchestration.preflight import logical_cpus

    planned = make_plan(spec)
    with Output():
        cluster = clusters.connect(address, num_cpus=logical_cpus(planned, spec))
        cluster.disconnect()
    cores = sum(node.cpus for node in cluster.nodes)
    gpus = sum(node.gpus for node in cluster.nodes)
    where = "started here for a look" if cluster.started_here else cluster.address
    yield Finding("Ray", "ok", f"{len(cluster.nodes)} nodes, {cores:g} CPUs, {gpus:g} GPUs ({where})")
    sizes = [trial.num_gpus for trial in planned.trials]
    device, room = clusters.place(spec.resources, sizes, cluster.nodes)
    total = sum(node.slots for node in room)
    yield Finding("workers", "ok", f"{spec.name} wants up to {max(sizes)} {device} workers, there is room for {total}")
