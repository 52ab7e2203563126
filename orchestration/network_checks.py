"""`scalestudy doctor`, the network: whether workers would find each other, and whether two of them do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestration.findings import Finding

if TYPE_CHECKING:
    from training.distributed import Worker

MEETING_SECONDS = 120.0
"""Most of it is two imports of PyTorch."""
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
PROGRAM = """
import sys
from orchestration.network_checks import sum_of_ranks
from training.execution.local_ranks import on_ranks
print(on_ranks(2, sum_of_ranks, backend=sys.argv[1]))
"""


def look_at_network(address: str | None) -> Iterator[Finding]:
    """Interfaces, the name of this machine, and two processes that sum a number. address: as for `token`."""
    interfaces = [name for _, name in socket.if_nameindex()]
    named = list(named_interfaces(os.environ, interfaces))
    yield from named
    named_address = address or os.environ.get("RAY_ADDRESS")
    yield host(socket.gethostname(), _address_of(socket.gethostname()), bool(os.environ.get(VARIABLES[0])),
               bool(named_address) and named_address != "local")  # fmt: skip
    for backend in () if named else _backends():
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
        missing = [name for name in wanted if not any(_fits(name, each, exact) for each in interfaces)]
        if missing and mark != "^" and (exact or len(missing) == len(wanted)):
            text = f"{variable} names {', '.join(missing)}, and this machine has {', '.join(interfaces)}"
            yield Finding("network", "broken", text, f"unset {variable}, or name an interface that every node has")


def _fits(name: str, interface: str, exact: bool) -> bool:
    return interface == name if exact else interface.startswith(name)


def host(name: str, address: str | None, interface_named: bool, elsewhere: bool) -> Finding:
    """Whether other machines would find this one by what gloo tells them.

    address: that the machine's name stands for; None: nothing. interface_named: GLOO_SOCKET_IFNAME is set, and the name
    does not matter. elsewhere: a cluster is to be used that may have other machines.
    """
    remedy = "set GLOO_SOCKET_IFNAME on every node to the interface that joins them, or correct /etc/hosts"
    if interface_named:
        return Finding("host name", "ok", f"{name}; workers use the interface of GLOO_SOCKET_IFNAME")
    if address is None:
        text = f"{name} stands for no address: workers of other machines can't join those here"
        return Finding("host name", "broken" if elsewhere else "note", text, remedy)
    if address.startswith("127.") or address == "::1":
        text = f"{name} is {address}: enough on one machine, workers of other machines could not join"
        return Finding("host name", "note" if elsewhere else "ok", text, remedy if elsewhere else "")
    return Finding("host name", "ok", f"{name} is {address}")


def _address_of(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


def _backends() -> list[str]:
    """gloo, and NCCL where two GPUs are there to meet."""
    try:
        import torch
    except (ImportError, OSError):
        return []  # said already
    return ["gloo", "nccl"] if torch.cuda.device_count() > 1 else ["gloo"]


def meeting(backend: str, seconds: float = MEETING_SECONDS) -> Finding:
    """Two processes of this machine that meet and sum a number, as a trial's workers do at every step."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, backend],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        said, errors = "", f"nothing came of it in {seconds:.0f} s"
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
