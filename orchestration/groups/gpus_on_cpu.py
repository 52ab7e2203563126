"""A switch for tests: workers train on the CPU where Ray schedules GPUs.

With SCALESTUDY_GPUS_ON_CPU=1 in the study's environment, Ray schedules the GPUs that its nodes declare, while the
workers train on the CPU and sum with gloo. Records say `cpu`. So whole studies can test packing by GPU, shares of a GPU
and types of GPUs on a machine without any.
"""

from __future__ import annotations

import os

VARIABLE = "SCALESTUDY_GPUS_ON_CPU"


def training_device(scheduled: str) -> str:
    """Return the device, `cpu` or `cuda`, on which workers train that Ray schedules on this kind of device."""
    return "cpu" if os.environ.get(VARIABLE) == "1" else scheduled
