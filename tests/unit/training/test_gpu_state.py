"""What NVML tells of a GPU, what it does not, and which of it puts timings in doubt."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.backend import Gpu
from scalestudy.training.gpu_state import REASONS, GpuState, others_on, read_gpu
from tests.support.fake_nvml import NOT_FOUND, PCI, FakeNvml, NVMLError, Sample, install

GPU = Gpu(uuid="GPU-1", pci=PCI)
VERSIONS = {"nccl": "2.27.7", "cudnn": "9.10.2"}
THERMAL, POWER, IDLE = 0x20, 0x4, 0x1


def test_every_fact_is_in_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=THERMAL | IDLE)
    assert read_gpu(1, GPU, VERSIONS, since=0.0) == GpuState(
        rank=1,
        name="NVIDIA H200",
        sm_mhz=1815,
        sm_most_mhz=1980,
        power_watts=412.3,
        power_limit_watts=700.0,
        power_default_watts=700.0,
        celsius=61,
        reasons=("gpu_idle", "sw_thermal_slowdown"),
        processes=1,
        others=None,
        driver="570.86.15",
        nccl="2.27.7",
        cudnn="9.10.2",
    )
    assert fake.open == 0


@pytest.mark.parametrize("name", sorted(FakeNvml().answers))
def test_what_the_driver_does_not_tell_is_unknown_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    whole = read_gpu(0, GPU, VERSIONS, since=0.0).to_plain()
    install(monkeypatch, **{name: None})
    plain = read_gpu(0, GPU, VERSIONS, since=0.0).to_plain()
    assert [plain[key] for key in whole if plain[key] != whole[key]] == [None]


@pytest.mark.parametrize("what", ["no library", "no driver", "another machine's GPU"])
def test_without_nvml_all_but_the_libraries_is_unknown(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = None
    if what == "no library":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        fake = install(monkeypatch)
        driver = fake.answers["nvmlSystemGetDriverVersion"]
        if what == "no driver":
            monkeypatch.setattr(fake, "nvmlInit", lambda: fake.nvmlDeviceGetName("fails"), raising=False)
            driver = None
    gpu = Gpu(uuid="", pci="00000000:ff:00.0")
    assert read_gpu(0, gpu, VERSIONS, since=0.0) == GpuState(rank=0, nccl="2.27.7", cudnn="9.10.2", driver=driver)


def processes(monkeypatch: pytest.MonkeyPatch, gpu: Gpu = GPU, **answers: Any) -> int | None:
    install(monkeypatch, **answers)
    return read_gpu(0, gpu, {}, since=2.0).processes


@pytest.mark.parametrize(
    ("samples", "count"),
    [
        ([Sample(pid=1, timeStamp=2_100_000), Sample(pid=2, timeStamp=2_200_000)], 2),
        ([Sample(pid=1, timeStamp=2_100_000), Sample(pid=1, timeStamp=2_200_000)], 1),
        ([Sample(pid=1, timeStamp=2_100_000), Sample(pid=2, timeStamp=2_100_000, smUtil=0)], 1),  # idle, but warm
        ([Sample(pid=1, timeStamp=2_100_000), Sample(pid=2, timeStamp=2_000_000)], 1),  # computed before
        ([Sample(pid=1, timeStamp=1_900_000)], 0),  # NVML says that there is nothing
    ],
)
def test_a_process_counts_if_it_has_computed_since_then(
    samples: list[Sample], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert processes(monkeypatch, nvmlDeviceGetProcessUtilization=samples) == count


@pytest.mark.parametrize(("code", "count"), [(0, 0), (NOT_FOUND, 0), (999, None)])
def test_only_an_error_that_says_so_means_that_nobody_computed(
    code: int, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch)

    def fails(*arguments: Any) -> None:
        raise NVMLError(code)

    monkeypatch.setattr(fake, "nvmlDeviceGetProcessUtilization", fails, raising=False)
    assert read_gpu(0, GPU, {}, since=0.0).processes == count


def test_samples_that_nvml_should_have_left_out_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch)
    given = [Sample(pid=1, timeStamp=2_100_000), Sample(pid=2, timeStamp=1_900_000), Sample(pid=0, timeStamp=0)]
    monkeypatch.setattr(fake, "nvmlDeviceGetProcessUtilization", lambda *_: given, raising=False)
    assert read_gpu(0, GPU, {}, since=2.0).processes == 1


def test_who_computed_on_a_mig_slice_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [Sample(pid=1, timeStamp=3_000_000), Sample(pid=2, timeStamp=3_000_000)]
    asked = {"nvmlDeviceGetProcessUtilization": two}
    assert processes(monkeypatch, Gpu(uuid="MIG-1", pci=PCI), **asked) is None
    assert processes(monkeypatch, nvmlDeviceGetMigMode=[1, 1], **asked) is None, "PyTorch's UUID does not say MIG"
    assert processes(monkeypatch, nvmlDeviceGetMigMode=[0, 1], **asked) == 2


def test_a_library_that_does_not_close_leaves_what_it_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch)

    def fails() -> None:
        raise NVMLError(999)

    monkeypatch.setattr(fake, "nvmlShutdown", fails, raising=False)
    assert read_gpu(0, GPU, {}, since=0.0).sm_mhz == 1815


STATE = GpuState(rank=0, reasons=(), power_limit_watts=700.0, power_default_watts=700.0, others=0)


@pytest.mark.parametrize(
    ("facts", "throttled"),
    [
        ({}, False),
        ({"reasons": None}, False),
        ({"reasons": ("gpu_idle", "applications_clocks_setting")}, False),
        ({"reasons": ("hw_slowdown",)}, True),
        ({"reasons": ("sw_thermal_slowdown", "sw_power_cap")}, True),
        ({"reasons": ("hw_power_brake_slowdown",)}, True),
        ({"reasons": ("sw_power_cap",)}, False),  # at its own limit, as every large model runs
        ({"reasons": ("sw_power_cap",), "power_limit_watts": 450.0}, True),
        ({"reasons": ("sw_power_cap",), "power_default_watts": None}, False),
        ({"power_limit_watts": 450.0}, False),  # a limit that was not met
    ],
)
def test_what_holds_a_gpus_clocks_down(facts: dict[str, Any], throttled: bool) -> None:
    assert dataclasses.replace(STATE, **facts).is_throttled == throttled


@pytest.mark.parametrize(
    ("processes", "workers", "others"),
    [(1, 1, 0), (3, 1, 2), (2, 2, 0), (0, 1, None), (None, 1, None)],  # a container may show no process at all
)
def test_other_processes_are_those_beyond_the_workers(processes: int | None, workers: int, others: int | None) -> None:
    assert others_on(processes, workers) == others


def test_what_was_once_seen_stays_seen() -> None:
    hot = dataclasses.replace(STATE, reasons=("hw_slowdown",), others=1, celsius=90)
    cool = dataclasses.replace(STATE, reasons=("gpu_idle",), others=None, celsius=50)
    assert cool.after(hot) == dataclasses.replace(cool, reasons=("gpu_idle", "hw_slowdown"), others=1)
    assert STATE.after(STATE) == STATE
    unknown = GpuState(rank=0)
    assert unknown.after(unknown) == unknown


@given(st.builds(GpuState, rank=st.integers(0, 9), reasons=st.none() | st.just(tuple(REASONS.values()))))
def test_a_state_comes_back_from_its_data(state: GpuState) -> None:
    assert GpuState.from_plain({**json.loads(json.dumps(state.to_plain())), "newer": 1}) == state
