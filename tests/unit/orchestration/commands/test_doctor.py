"""`scalestudy doctor`: what it finds, given facts, and as a whole."""

import io
import shutil
import socket
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from scalestudy.experiments.spec.reading import SpecError
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import doctor, show
from scalestudy.orchestration.commands.doctor import Finding
from tests.support.approved import approved
from tests.support.studies import scalestudy, write_spec
from tests.support.synthetic_studies import spec_of

GB = 1_000_000_000
PAIRS = [
    ("2.13.0+cpu", "2.13.0", ""),
    ("2.13.0", "", ""),
    ("2.12.1", "2.13.0", ""),
    ("2.12.1", "2.13.0", "no nms"),
    ("2.13.0", "2.13.0", "no nms"),
    ("", "2.13.0", "No module named 'torch'"),
]
FREE = [5 * GB, GB // 2, GB // 100, 0]
FILES = [(1024, 65_536), (65_536, 65_536), (-1, -1), (256, -1), (1024, 2048), (256, 512)]
"""Ray raises a low soft limit to the hard one."""
TOKENS = [
    ({}, None, False),
    ({}, None, True),
    ({"RAY_AUTH_MODE": "token"}, 0o600, True),
    ({"RAY_AUTH_TOKEN": "secret-token"}, None, True),
    ({}, 0o644, True),
    ({"RAY_AUTH_MODE": "disabled"}, 0o600, True),
]
HOSTS = [
    ("10.0.0.5", False, True),
    ("127.0.1.1", False, False),
    ("127.0.1.1", False, True),
    (None, False, False),
    (None, False, True),
    (None, True, True),
]


def test_what_is_found_of_machines(monkeypatch):
    found = {"pair": [each for torch, *facts in PAIRS for each in doctor.pair(torch, "0.28.0", *facts)]}
    found["disk"] = []
    for free in FREE:
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        found["disk"].append(doctor.disk("Ray's disk", Path("/"), doctor.OTHER_DISK))
    found["shared memory"] = [doctor.shared_memory(size) for size in (64_000_000, 2 * GB)]
    found["files"] = [doctor.files(*limits) for limits in FILES]
    found["token"] = [doctor.token(facts[0], facts[1], "/srv/token", facts[2]) for facts in TOKENS]
    found["host name"] = [doctor.host_name("box", *facts) for facts in HOSTS]
    for finding in (each for findings in found.values() for each in findings):
        assert bool(finding.remedy) == (finding.state != "ok"), finding
    console = Console(file=io.StringIO(), width=60)
    for findings in found.values():
        show.findings(console, findings)
    text = console.file.getvalue()
    assert "secret-token" not in text
    approved(text, Path(__file__).parent / "doctor.txt")


def test_what_torchvision_is_made_for_is_in_its_metadata():
    assert doctor._wanted_torch() == "2.13.0"


def test_a_name_that_stands_for_nothing():
    assert doctor._address_of("no-such-host.invalid") is None
    assert doctor._address_of("localhost") in ("127.0.0.1", "::1")


def test_every_check_has_a_name_and_most_ask_nothing_of_a_study(tmp_path, monkeypatch):
    from scalestudy.orchestration.study.folders import read_spec

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "meeting", lambda backend: Finding(backend, "ok", "met"))
    checks = dict(doctor.checks_of(read_spec(str(write_spec(tmp_path))), None))
    del checks["workers"]  # starts Ray
    found = [finding for name, check in checks.items() for finding in doctor.safely(name, check)]
    assert {"python", "ray", "torch", "torchvision", "mlflow", "disk", "Ray's disk", "open files"} <= {
        finding.name for finding in found
    }
    assert {"Ray token", "gloo", "data", "storage", "tracking"} <= {finding.name for finding in found}


@pytest.mark.slow
def test_two_processes_meet():
    finding = doctor.meeting("gloo")
    assert (finding.name, finding.state) == ("gloo", "ok")


def test_two_processes_that_hang():
    finding = doctor.meeting("gloo", seconds=0.01)
    assert finding.broken
    assert "no result after" in finding.text


def test_a_refusal_is_a_finding_after_those_before_it():
    def check():
        yield Finding("Ray", "ok", "2 nodes")
        raise RequestError("too many workers", "add machines")

    assert doctor.safely("workers", check) == [
        Finding("Ray", "ok", "2 nodes"),
        Finding("workers", "broken", "too many workers", "add machines"),
    ]


def test_a_wrong_spec_is_an_error_as_everywhere():
    with pytest.raises(SpecError):
        doctor.examine("no-such-study", None)


@pytest.mark.slow
def test_a_sick_machine(tmp_path):
    """One real run: no data, no interface, no server, no cluster, no folder; each with a remedy."""
    (tmp_path / "runs").write_text("is a file, not a folder")
    workload, tracking = {"model": "lenet", "data": "mnist"}, {"uri": "http://ann:s3cr3t@127.0.0.1:9"}
    spec = write_spec(tmp_path, workload=workload, tracking=tracking)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        done = scalestudy(
            "doctor",
            spec,
            "--address",
            address,
            cwd=tmp_path,
            GLOO_SOCKET_IFNAME="none0",
            RAY_AUTH_TOKEN_PATH=str(tmp_path / "no-token"),
            RAY_AUTH_MODE="token",
            SCALESTUDY_DATA=str(tmp_path),
        )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    broken = [number for number, line in enumerate(lines) if line.startswith("BROKEN")]
    names = [lines[number].removeprefix("BROKEN").split("  ")[1].strip() for number in broken]
    assert names == ["Ray token", "gloo", "data", "storage", "tracking", "workers"]
    assert all("→" in lines[number + 1] for number in broken)
    assert "scalestudy data fetch mnist" in done.stdout
    _, gloo, *_ = (" ".join(lines[begin:end]) for begin, end in pairwise(broken))
    assert "none0" in gloo, "gloo's own words are shown"
    assert "GLOO_SOCKET_IFNAME" in gloo
    assert "s3cr3t" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_data_of_a_loop_are_not_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALESTUDY_DATA", str(tmp_path / "nothing"))
    (finding,) = doctor.data(spec_of("{name: x, workload: {loop: 'my:loop'}}"))
    assert (finding.state, "my:loop reads its data itself" in finding.text) == ("note", True)
