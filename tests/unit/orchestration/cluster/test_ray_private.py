"""How Ray names this machine's GPUs. What is asked of a cluster is tested in tests/ray/test_sharing.py."""

import pytest
import ray._private.thirdparty.pynvml as nvml

from scalestudy.orchestration.cluster.ray_private import gpu_type_here


@pytest.mark.parametrize(
    ("driver_says", "kind"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("Tesla T4", "T4"), ("NVIDIA GeForce RTX 5090", "GeForce-RTX-5090")],
)
def test_the_type_of_this_machine_s_gpus_is_named_as_ray_labels_its_nodes(monkeypatch, driver_says, kind):
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(nvml, name, lambda: None)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(nvml, "nvmlDeviceGetName", lambda handle: driver_says)
    assert gpu_type_here() == kind


def test_a_driver_that_does_not_tell_the_type_is_no_error(monkeypatch):
    def raises():
        raise nvml.NVMLError(nvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(nvml, "nvmlInit", raises)
    assert gpu_type_here() == ""
    monkeypatch.setattr(nvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", raises)
    assert gpu_type_here() == ""
