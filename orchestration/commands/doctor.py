"""`scalestudy doctor`: finds what would stop a study on this machine, and says what to do about it.

A check yields findings. `checks_of` lists the checks in the order in which their findings are shown. Those that ask
what a study asks are here; those of the machine and its network are in `doctor_checks`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.base.errors import StudyError
from scalestudy.orchestration.commands import doctor_checks as machine
from scalestudy.orchestration.commands.doctor_checks import Finding, check_network

__all__ = ["Finding", "examine"]

Check = Callable[[], Iterator[Finding]]


def examine(source: str, address: str | None) -> list[Finding]:
    """Every finding. Raises SpecError for a spec that is wrong, as every command does."""
    from scalestudy.orchestration.study.folders import read_spec

    prepare_environment()
    checks = checks_of(read_spec(source), address)
    return [finding for name, check in checks for finding in _safely(name, check)]


def checks_of(spec: StudySpec, address: str | None) -> list[tuple[str, Check]]:
    """The checks in the order of their findings, each with the name of its finding where it finds a study refused."""
    return [
        ("packages", machine.check_packages),
        ("torchvision", machine.check_torch),
        ("disk", lambda: machine.check_disks(_folder_of(spec))),
        ("/dev/shm", machine.check_shared_memory),
        ("open files", machine.check_files),
        ("Ray token", lambda: machine.check_token(address)),
        ("network", lambda: check_network(address)),
        ("data", lambda: _data(spec)),
        ("storage", lambda: _storage(spec)),
        ("tracking", lambda: _tracking(spec)),
        ("threads", lambda: _threads(spec, address)),
        ("workers", lambda: _workers(spec, address)),
    ]


def _safely(name: str, check: Check) -> list[Finding]:
    """The findings of one check; what a study would be refused for is a finding too, after those before it."""
    findings: list[Finding] = []
    try:
        for finding in check():
            findings.append(finding)  # noqa: PERF402 - what was found before an error is kept
    except StudyError as error:
        findings.append(Finding(name, "broken", error.problem, error.remedy))
    except OSError as error:
        findings.append(Finding(name, "broken", str(error), "make it readable and writable for this user"))
    return findings


def _folder_of(spec: StudySpec) -> Path | None:
    """Where the study's files would lie; None: not on a disk of this machine."""
    from scalestudy.orchestration.study.opening import storage_of

    return None if is_uri(spec.storage) else Path(storage_of(spec))


def _threads(spec: StudySpec, address: str | None) -> Iterator[Finding]:
    """On this machine alone: other machines have other cores."""
    resources = spec.resources
    if (address or os.environ.get("RAY_ADDRESS") or "local") == "local" and resources.device != "cuda":
        largest, cores = max(make_plan(spec).sizes), os.cpu_count() or 1
        exclusive = resources.exclusive is not False
        yield machine.threads(os.environ, cores, largest, resources.cpus_per_worker, exclusive)


def _data(spec: StudySpec) -> Iterator[Finding]:
    from scalestudy.orchestration.study.ready import check_data
    from scalestudy.training.registry import DATASETS

    root = check_data(spec)
    name = spec.workload.data
    if name in DATASETS:
        yield Finding("data", "ok", f"{name} (data folder {root})")
    else:
        yield Finding("data", "note", f"{name} is not called here", "call it with scalestudy inspect SPEC")


def _storage(spec: StudySpec) -> Iterator[Finding]:
    from scalestudy.orchestration.study.opening import new_folder, new_study_id, storage_of

    new_folder(spec, new_study_id(spec))
    yield Finding("storage", "ok", f"{storage_of(spec)} can be written")


def _tracking(spec: StudySpec) -> Iterator[Finding]:
    from scalestudy.orchestration.tracking.server import check_reachable, resolve_address

    address = resolve_address(spec.tracking.uri)
    check_reachable(address)
    yield Finding("tracking", "ok", address.shown)


def _workers(spec: StudySpec, address: str | None) -> Iterator[Finding]:
    """The cluster, whether its nodes have our packages, and the cores or GPUs that the largest trial asks for."""
    from scalestudy.orchestration.base.environment import Output
    from scalestudy.orchestration.cluster import connection, nodes
    from scalestudy.orchestration.cluster.checks import check_versions
    from scalestudy.orchestration.study.ready import logical_cpus

    planned = make_plan(spec)
    differing: StudyError | None = None
    with Output():
        cluster = connection.connect(address, num_cpus=logical_cpus(planned, spec))
        try:
            if not cluster.started_here:
                check_versions(cluster.nodes)
        except StudyError as error:
            differing = error
        finally:
            cluster.disconnect()
    cores = sum(node.cpus for node in cluster.nodes)
    gpus = sum(node.gpus for node in cluster.nodes)
    where = "started here for this check" if cluster.started_here else cluster.address
    yield Finding("Ray", "ok", f"{len(cluster.nodes)} nodes, {cores:g} CPUs, {gpus:g} GPUs ({where})")
    if differing:
        yield Finding("versions", "broken", differing.problem, differing.remedy)
    elif not cluster.started_here:
        yield Finding("versions", "ok", f"the same on {len(cluster.nodes)} nodes and here")
    device, room = nodes.place(spec.resources, planned.sizes, cluster.nodes, cluster.growth)
    wants = f"{spec.name} wants up to {max(planned.sizes)} {device} workers"
    yield Finding("workers", "ok", f"{wants}, there is room for {nodes.largest_group(room)}{nodes.types_words(room)}")
