"""A switch for tests: what Ray takes for a GPU is a CPU process.

With SCALESTUDY_GPUS_ON_CPU=1 in the study's own environment, Ray schedules the GPUs that its nodes say they have, while
the workers train on the CPU and sum with gloo. Records say `cpu`. So packing by GPU, shares of a GPU and types of GPUs
can be tested by whole studies on a machine without any.
"""

from __future__ import annotations

import os

VARIABLE = "SCALESTUDY_GPUS_ON_CPU"


def training_device(scheduled: str) -> str:
    """Return what workers train on, `cpu` or `cuda`, to whom Ray gives this kind of device."""
    return "cpu" if os.environ.get(VARIABLE) == "1" else scheduled
