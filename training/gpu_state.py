"""A GPU's clocks, heat, power and processes while a training is timed, as its driver reports them through NVML.

It needs `nvidia-ml-py` (`scalestudy[gpu]`). Without it, a fact is None, and so is one that the driver does not report.
For a MIG slice the clocks, heat and power are the whole GPU's, and `processes` is None. The driver of a study reads
these records too, so this file loads no torch.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from scalestudy.training.backend import Gpu

REASONS: Mapping[int, str] = {
    0x0000000000000001: "gpu_idle",
    0x0000000000000002: "applications_clocks_setting",
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
    0x0000000000000100: "display_clock_setting",
}
"""NVML's bits for the reasons that hold the clocks below their maximum."""
THROTTLED = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Reasons that are faults of the machine.

A power cap counts only if it was set below the GPU's default: every large model runs at the default.
"""
POWER_CAP = "sw_power_cap"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One rank's GPU right after a training's last step. None: not known."""

    rank: int
    name: str | None = None
    sm_mhz: int | None = None
    sm_most_mhz: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    celsius: int | None = None
    reasons: tuple[str, ...] | None = None  # why the clocks were not higher, after any of the training's periods
    processes: int | None = None  # that computed on the GPU in the last period
    others: int | None = None  # how many of them are not workers of this training, most in any period
    driver: str | None = None  # version, as the next two
    nccl: str | None = None
    cudnn: str | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read `to_plain`'s data; keys of a newer version are left out."""
        known: dict[str, Any] = {field.name: plain.get(field.name) for field in dataclasses.fields(cls)}
        return cls(**{**known, "reasons": None if known["reasons"] is None else tuple(known["reasons"])})

    def to_plain(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "reasons": None if self.reasons is None else list(self.reasons)}

    def after(self, earlier: GpuState) -> GpuState:
        """Return this state with the reasons and the others of an earlier one."""
        told = [each.reasons for each in (earlier, self) if each.reasons is not None]
        reasons = tuple(name for name in REASONS.values() if any(name in each for each in told)) if told else None
        others = [each.others for each in (earlier, self) if each.others is not None]
        return dataclasses.replace(self, reasons=reasons, others=max(others, default=None))

    @property
    def is_throttled(self) -> bool:
        """Whether heat, the power supply or a lowered limit of power holds the clocks down."""
        reasons, limit, default = set(self.reasons or ()), self.power_limit_watts, self.power_default_watts
        is_lowered = limit is not None and default is not None and limit < default
        return bool(reasons & THROTTLED) or (is_lowered and POWER_CAP in reasons)


def others_on(processes: int | None, workers: int) -> int | None:
    """Return how many processes that computed on a GPU are not its workers; None if it has more workers than processes.

    Only their number is compared: in a container a process has another id than for the GPU's driver.
    """
    return None if processes is None or processes < workers else processes - workers


def read_gpu(rank: int, gpu: Gpu, versions: Mapping[str, str | None], *, since: float) -> GpuState:
    """Ask NVML about a GPU; for a MIG slice, about the whole GPU, but not who computed on it. Raises nothing.

    `versions`: of nccl and cudnn. `since`: the moment from which processes count, by `time.time`.
    """
    state = GpuState(rank=rank, nccl=versions.get("nccl"), cudnn=versions.get("cudnn"))
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no nvidia-ml-py, no driver
        return state
    try:
        return _asked(nvml, state, gpu, since)
    finally:
        with suppress(Exception):  # of a GPU that is lost
            nvml.nvmlShutdown()


def _asked(nvml: Any, state: GpuState, gpu: Gpu, since: float) -> GpuState:
    def known(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception:  # NVML's own errors, and a function that an older nvidia-ml-py lacks
            return None

    driver = known(lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    handle = known(lambda: nvml.nvmlDeviceGetHandleByPciBusId(gpu.pci.encode()))
    if handle is None:
        return dataclasses.replace(state, driver=driver)

    def watts(ask: str) -> float | None:
        return known(lambda: round(getattr(nvml, ask)(handle) / 1000, 1))  # NVML has milliwatts

    has_slices = known(lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == 1)  # then every worker on it has one
    is_slice = has_slices or gpu.uuid.startswith("MIG-")  # PyTorch's text of a UUID lacks these letters
    bits = known(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    return dataclasses.replace(
        state,
        driver=driver,
        name=known(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        sm_mhz=known(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        sm_most_mhz=known(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        power_watts=watts("nvmlDeviceGetPowerUsage"),
        power_limit_watts=watts("nvmlDeviceGetEnforcedPowerLimit"),
        power_default_watts=watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        celsius=known(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        reasons=None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit),
        processes=None if is_slice else known(lambda: _computed(nvml, handle, int(since * 1e6))),
    )


def _computed(nvml: Any, handle: Any, since: int) -> int:
    """Count the processes that computed since that time in microseconds, not those that only hold memory."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
    except nvml.NVMLError as error:
        if error.value in (0, nvml.NVML_ERROR_NOT_FOUND):  # there are no samples; older drivers call that a success
            return 0
        raise
    newer = [each for each in samples if each.timeStamp > since]  # its array may hold entries that it did not fill
    return len({each.pid for each in newer if each.smUtil})


def _text(value: str | bytes) -> str:
    """Decode what older versions of nvidia-ml-py give as bytes."""
    return value.decode() if isinstance(value, bytes) else value
