"""Packages of the driver against those of the nodes, as pure comparison; the real thing is in
tests/long/test_multi_node.py. Storage that all nodes share."""

import pickle
import sys
import time

import pytest
from ray import cloudpickle

from scalestudy.orchestration.base import child
from scalestudy.orchestration.base.errors import ExitCode, RequestError
from scalestudy.orchestration.cluster import node_checks
from scalestudy.orchestration.cluster.node_checks import (
    PACKAGES,
    Difference,
    check_devices,
    check_shared_storage,
    check_versions,
    differences,
)
from scalestudy.orchestration.cluster.nodes import ClusterNode, slots

HERE = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (HERE, []),
        (
            {**HERE, "torch": "2.12.1", "python": "3.12.1"},
            [("python", "3.12.1", "3.11.7"), ("torch", "2.12.1", "2.13.0+cpu")],
        ),
        ({"python": "3.11.7", "ray": "2.60.0"}, [("torch", "not installed", "2.13.0+cpu")]),
        ({**HERE, "torch": "2.13.0+cu126"}, []),  # another build
        ({**HERE, "python": "3.11.9"}, []),  # another patch release
        ({**HERE, "scalestudy": "9"}, []),  # the driver has no version of it
    ],
)
def test_the_versions_of_a_node_that_differ_from_the_driver_s(there, found):
    expected = [Difference(node="b", package=package, there=other, here=here) for package, other, here in found]
    assert differences(HERE, {"a": HERE, "b": there}) == expected


def test_the_error_names_node_package_versions_and_remedy(monkeypatch):
    there = {**node_checks._versions()(PACKAGES), "torch": "1.0"}
    monkeypatch.setattr(node_checks, "ask_nodes", lambda nodes, function, *arguments: [there] * len(nodes))
    with pytest.raises(RequestError, match=r"gpu-box: torch 1\.0, here 2\.") as caught:
        check_versions([ClusterNode(node_id="n", host="gpu-box", cpus=1, gpus=0)])
    assert caught.value.exit_code == ExitCode.BAD_REQUEST
    assert "constraints.txt" in caught.value.remedy


def cluster(device, *nodes):
    """The room on nodes of (host, CPUs, GPUs) or (host, CPUs, GPUs, type of GPUs)."""
    there = [
        ClusterNode(node_id=host, host=host, cpus=cpus, gpus=gpus, accelerator="".join(kind))
        for host, cpus, gpus, *kind in nodes
    ]
    return slots(there, device=device, cpus_per_worker=1, gpus_per_worker=1)


NODES = [("head", 2, 0), ("a", 8, 1), ("a", 8, 1), ("b", 8, 1), ("storage", 0, 0)]


def where_only_b_is_well(monkeypatch, fault):
    asked = []
    monkeypatch.setattr(
        node_checks,
        "ask_nodes",
        lambda nodes, function, *question: asked.append(question) or [None if n.host == "b" else fault for n in nodes],
    )
    return asked


@pytest.mark.parametrize(("device", "refused"), [("cpu", "cpu of a, head"), ("cuda", "cuda of a")])
def test_nodes_without_bfloat16_are_named_if_workers_would_run_on_them(monkeypatch, device, refused):
    asked = where_only_b_is_well(monkeypatch, ["", "", "bf16"])
    with pytest.raises(RequestError, match=rf"train\.precision: bf16: not available on the {refused};") as caught:
        check_devices(cluster(device, *NODES), device, ["fp32", "bf16"])
    assert "fp32" in caught.value.remedy
    assert asked == [(device, ["bf16"])]
    check_devices(cluster(device, ("b", 8, 1)), device, ["bf16"])


def test_nodes_where_cuda_does_not_work_are_named_before_the_first_trial(monkeypatch):
    fault = ["device: CUDA does not work: Torch not compiled with CUDA enabled", "install another", ""]
    asked = where_only_b_is_well(monkeypatch, fault)
    with pytest.raises(RequestError, match=r"^resources\.device: CUDA does .* enabled \(on a\); install another$"):
        check_devices(cluster("cuda", *NODES), "cuda", ["fp32"])
    assert asked == [("cuda", [])]
    check_devices(cluster("cpu", *NODES), "cpu", ["fp32"])
    assert len(asked) == 1  # of a CPU there is nothing to ask


def test_only_nodes_of_the_type_that_the_study_trains_on_are_asked(monkeypatch):
    where_only_b_is_well(monkeypatch, ["", "", "bf16"])
    old, new = ("a", 8, 1, "T4"), ("b", 8, 8, "A100")
    check_devices(cluster("cuda", old, new), "cuda", ["bf16"])
    with pytest.raises(RequestError, match=r"not available on the cuda of c;"):
        check_devices(cluster("cuda", old, new, ("c", 8, 1, "A100")), "cuda", ["bf16"])


def test_a_node_without_room_is_not_asked(monkeypatch):
    where_only_b_is_well(monkeypatch, ["device: CUDA does not work: no driver", "install one", ""])
    draining = ClusterNode(node_id="a", host="a", cpus=8, gpus=1, draining=True)
    well = ClusterNode(node_id="b", host="b", cpus=8, gpus=1)
    check_devices(slots([draining, well], device="cuda", cpus_per_worker=1, gpus_per_worker=1), "cuda", ["fp32"])


PRINTS = """
import atexit, sys
sys.stdout.write("welcome to this node ")
atexit.register(lambda: sys.stdout.buffer.write(b"good\\xffbye"))
"""


def test_a_node_says_what_its_device_lacks_whatever_it_prints_around_its_answer(monkeypatch, tmp_path):
    """By a real process; an old CPU is one that oneDNN is told to take for one."""
    (tmp_path / "sitecustomize.py").write_text(PRINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert node_checks._look_at_device("cpu", ["fp32", "bf16"]) == ["", "", "bf16"]


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("text", ["exit 1", "echo no such thing"])
def test_a_node_that_cannot_tell_is_not_refused(monkeypatch, tmp_path, text):
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", text))
    assert node_checks._look_at_device("cpu", ["bf16"]) is None


def test_a_node_whose_driver_hangs_is_not_refused_and_has_answered_before_ray_gives_up(monkeypatch, tmp_path):
    assert node_checks.LOOK_SECONDS + child.KILLED_SECONDS < node_checks.ANSWER_SECONDS
    monkeypatch.setattr(node_checks, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", "exec sleep 60"))
    began = time.monotonic()
    assert node_checks._look_at_device("cuda", []) is None
    assert time.monotonic() - began < 30


def test_this_process_has_all_packages():
    assert node_checks._versions()(PACKAGES).keys() == {"python", *PACKAGES}


def test_what_is_sent_to_the_nodes_does_not_need_this_package(monkeypatch):
    sent = cloudpickle.dumps(node_checks._versions())
    for name in ("scalestudy.orchestration", "scalestudy.orchestration.cluster.node_checks"):
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    assert pickle.loads(sent)(["no-such-package"]).keys() == {"python"}


def test_raylets_on_one_machine_are_told_apart(monkeypatch):
    nodes = [ClusterNode(node_id=name * 20, host=host, cpus=1, gpus=0) for name, host in ("ax", "bx", "cy")]
    there = {**node_checks._versions()(PACKAGES), "torch": "1.0"}
    monkeypatch.setattr(node_checks, "ask_nodes", lambda nodes, function, *arguments: [there] * len(nodes))
    with pytest.raises(RequestError, match=r"x \(aaaaaaaa\): torch .*x \(bbbbbbbb\): torch .*y: torch"):
        check_versions(nodes)


def test_one_node_needs_no_shared_storage(tmp_path):
    check_shared_storage(tmp_path, [ClusterNode(node_id="a", host="a", cpus=4.0, gpus=0.0)])
    assert not list(tmp_path.iterdir())
