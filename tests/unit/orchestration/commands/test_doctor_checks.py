"""What the checks of the doctor find, given facts; the meeting of two processes."""

import pytest

from scalestudy.orchestration.commands import doctor_checks

GB = 1_000_000_000
NEEDS_REMEDY = ("note", "broken")


def state_of(finding):
    """The state, of a finding that says what to do where something is to be done."""
    assert finding.text
    assert bool(finding.remedy) == (finding.state in NEEDS_REMEDY)
    return finding.state


@pytest.mark.parametrize(
    ("torch", "wanted", "problem", "said"),
    [
        ("2.13.0+cpu", "2.13.0", "", []),
        ("2.13.0", "", "", []),
        ("2.12.1", "2.13.0", "", ["0.28.0 is made for torch 2.13.0, and torch is 2.12.1"]),
        ("2.12.1", "2.13.0", "no nms", ["0.28.0 is made for torch 2.13.0, and torch is 2.12.1 (no nms)"]),
        ("2.13.0", "2.13.0", "no nms", ["can't be imported beside torch 2.13.0: no nms"]),
        ("", "2.13.0", "No module named 'torch'", ["can't be imported beside torch (none): No module named 'torch'"]),
    ],
)
def test_torch_and_torchvision_are_a_pair(torch, wanted, problem, said):
    found = list(doctor_checks.pair(torch, "0.28.0", wanted, problem))
    assert [finding.text for finding in found] == said
    assert all(state_of(finding) == "broken" for finding in found)


def test_what_torchvision_is_made_for_is_in_its_metadata():
    assert doctor_checks._wanted_torch() == "2.13.0"


@pytest.mark.parametrize(
    ("name", "free", "total", "state"),
    [
        ("disk", 5 * GB, 1000 * GB, "ok"),
        ("Ray's disk", 5 * GB, 1000 * GB, "note"),
        ("Ray's disk", 60 * GB, 1000 * GB, "ok"),
        ("disk", GB // 2, 10 * GB, "note"),
        ("disk", GB // 100, 10 * GB, "broken"),
        ("disk", 0, 0, "broken"),
    ],
)
def test_room_on_the_disks(name, free, total, state):
    assert state_of(doctor_checks.disk(name, "/srv", free, total)) == state


@pytest.mark.parametrize(("size", "state"), [(64_000_000, "note"), (2 * GB, "ok")])
def test_shared_memory(size, state):
    assert state_of(doctor_checks.shared_memory(size)) == state


@pytest.mark.parametrize(
    ("soft", "hard", "state"),
    [
        (1024, 65_536, "ok"),
        (65_536, 65_536, "ok"),
        (-1, -1, "ok"),
        (256, -1, "ok"),
        (1024, 2048, "note"),
        (256, 512, "broken"),
    ],
)
def test_open_files(soft, hard, state):
    """Ray raises a low soft limit to the hard one."""
    assert state_of(doctor_checks.files(soft, hard)) == state


@pytest.mark.parametrize(
    ("environment", "mode", "elsewhere", "state"),
    [
        ({}, None, False, "note"),
        ({}, None, True, "broken"),
        ({"RAY_AUTH_MODE": "token"}, None, False, "broken"),
        ({"RAY_AUTH_MODE": "token"}, 0o600, False, "ok"),
        ({"RAY_AUTH_TOKEN": "secret-token"}, None, True, "ok"),
        ({}, 0o644, True, "note"),
        ({"RAY_AUTH_MODE": "disabled"}, 0o600, True, "note"),
    ],
)
def test_the_token(environment, mode, elsewhere, state):
    finding = doctor_checks.token(environment, mode, "/srv/token", elsewhere)
    assert state_of(finding) == state
    assert "secret-token" not in str(finding)


@pytest.mark.parametrize(
    ("environment", "workers", "each", "state"),
    [
        ({}, 2, 2, "ok"),
        ({}, 3, 2, "note"),
        ({"OMP_NUM_THREADS": "2"}, 2, 1, "ok"),
        ({"OMP_NUM_THREADS": "4"}, 2, 1, "note"),
        ({"MKL_NUM_THREADS": "4"}, 2, 1, "note"),
        ({"OMP_NUM_THREADS": "4,2"}, 2, 1, "ok"),
    ],
)
def test_threads_have_a_core_each(environment, workers, each, state):
    assert state_of(doctor_checks.threads(environment, 4, workers, each, True)) == state


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({}, []),
        ({"GLOO_SOCKET_IFNAME": "lo"}, []),
        ({"GLOO_SOCKET_IFNAME": "lo,eth0"}, []),
        ({"GLOO_SOCKET_IFNAME": "eth"}, ["eth"]),
        ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, ["ib0"]),
        ({"NCCL_SOCKET_IFNAME": "eth"}, []),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, ["eth"]),
        ({"NCCL_SOCKET_IFNAME": "ib,eth"}, []),
        ({"NCCL_SOCKET_IFNAME": "ib,mlx"}, ["ib, mlx"]),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, []),
    ],
)
def test_interfaces_that_are_named_are_there(environment, missing):
    found = list(doctor_checks.named_interfaces(environment, ["lo", "eth0"]))
    assert all(state_of(finding) == "broken" for finding in found)
    assert [finding.text for finding in found] == [
        f"{next(iter(environment))} names {name}, and this machine has lo, eth0" for name in missing
    ]


@pytest.mark.parametrize(
    ("address", "named", "elsewhere", "state"),
    [
        ("10.0.0.5", False, True, "ok"),
        ("127.0.1.1", False, False, "ok"),
        ("127.0.1.1", False, True, "note"),
        (None, False, False, "note"),
        (None, False, True, "broken"),
        (None, True, True, "ok"),
    ],
)
def test_the_host_name_leads_here(address, named, elsewhere, state):
    assert state_of(doctor_checks.host("box", address, named, elsewhere)) == state


def test_a_name_that_stands_for_nothing():
    assert doctor_checks._address_of("no-such-host.invalid") is None
    assert doctor_checks._address_of("localhost") in ("127.0.0.1", "::1")


@pytest.mark.slow
def test_two_processes_that_can_not_meet(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    finding = doctor_checks.meeting("gloo")
    assert state_of(finding) == "broken"
    assert "none0" in finding.text, "gloo's own words are shown"
    assert "GLOO_SOCKET_IFNAME" in finding.remedy


def test_two_processes_that_hang():
    finding = doctor_checks.meeting("gloo", seconds=0.01)
    assert (state_of(finding), "no result after" in finding.text) == ("broken", True)
