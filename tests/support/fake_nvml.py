"""NVIDIA's management library as a machine with one GPU would answer: a module in place of `pynvml`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

PCI = "00000000:1b:00.0"


class NVMLError(Exception):
    """As the library raises for whatever it does not tell."""


class FakeNvml(ModuleType):
    """answers: by the name of a function, what it returns; a function without one raises."""

    NVMLError = NVMLError
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
            "nvmlDeviceGetComputeRunningProcesses": [object()],
            **answers,
        }
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:  # noqa: N802
        if address.decode() != PCI:
            raise NVMLError("Not Found")
        return PCI

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            if not self.open:
                raise NVMLError("Uninitialized")
            if arguments and arguments[0] != PCI:
                raise NVMLError("Invalid Argument")
            if self.answers.get(name) is None:
                raise NVMLError("Not Supported")
            return self.answers[name]

        return answer


def install(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> FakeNvml:
    """Makes `import pynvml` give the fake."""
    fake = FakeNvml(**answers)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
