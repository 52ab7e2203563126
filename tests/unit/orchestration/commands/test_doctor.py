"""`scalestudy doctor` as a whole; on a cluster it is in tests/long/test_own_clusters.py."""

import socket

import pytest

from scalestudy.experiments.spec.reading import SpecError
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import doctor
from scalestudy.orchestration.commands.doctor_checks import Finding
from tests.support.studies import scalestudy, write_spec


def test_a_refusal_is_a_finding_after_those_before_it():
    def check():
        yield Finding("Ray", "ok", "2 nodes")
        raise RequestError("too many workers", "add machines")

    assert doctor._safely("workers", check) == [
        Finding("Ray", "ok", "2 nodes"),
        Finding("workers", "broken", "too many workers", "add machines"),
    ]


def test_a_wrong_spec_is_an_error_as_everywhere():
    with pytest.raises(SpecError):
        doctor.examine("no-such-study", None)


@pytest.mark.slow
def test_a_sick_machine(tmp_path):
    """One real run: no interface, no server, no cluster, no folder, too many threads; each with a remedy."""
    (tmp_path / "runs").write_text("is a file, not a folder")
    spec = write_spec(
        tmp_path,
        resources={"cpus_per_worker": 64, "oversubscribe": True},
        tracking={"uri": "http://ann:s3cr3t@127.0.0.1:9"},
    )
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
    assert names == ["Ray token", "network", "storage", "tracking", "workers"]
    assert all("→" in lines[number + 1] for number in broken)
    assert "s3cr3t" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
