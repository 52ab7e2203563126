"""NVIDIA's management library as a machine with one GPU would answer: a module in place of `pynvml`."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

PCI = "00000000:1b:00.0"


UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 1, 2, 3, 6


class NVMLError(Exception):
    """As the library raises for whatever it does not tell. value: NVML's number of the reason."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass(frozen=True)
class Sample:
    """What a process computed. timeStamp: microseconds. smUtil: percent."""

    pid: int
    timeStamp: int  # noqa: N815
    smUtil: int = 90  # noqa: N815


class FakeNvml(ModuleType):
    """answers: by the name of a function, what it returns; a function without one raises."""

    NVMLError, NVML_ERROR_NOT_FOUND = NVMLError, NOT_FOUND
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, **answers: Any) -> None:
        super().__init__("pynvml")
        self.answers = {
            "nvmlSystemGetDriverVersion": "570.86.15",
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetClockInfo": 1815,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetPowerUsage": 412_345,  # milliwatts
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
            "nvmlDeviceGetProcessUtilization": [Sample(pid=1, timeStamp=1_000_000)],
            **answers,
        }
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:  # noqa: N802
        if address.decode() != PCI:
            raise NVMLError(NOT_FOUND)
        return PCI

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[Sample]:  # noqa: N802
        """The samples that are newer."""
        samples = self._answer("nvmlDeviceGetProcessUtilization", handle)
        newer = [sample for sample in samples if sample.timeStamp > since]
        if not newer:
            raise NVMLError(NOT_FOUND)
        return newer

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        return functools.partial(self._answer, name)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if not self.open:
            raise NVMLError(UNINITIALIZED)
        if arguments and arguments[0] != PCI:
            raise NVMLError(INVALID_ARGUMENT)
        if self.answers.get(name) is None:
            raise NVMLError(NOT_SUPPORTED)
        return self.answers[name]


def install(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> FakeNvml:
    """Makes `import pynvml` give the fake."""
    fake = FakeNvml(**answers)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
