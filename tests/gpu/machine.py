"""`python -m tests.gpu.machine` prints what this machine is, as one line of JSON. Loads torch, and takes the GPU."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SMI = {  # nvidia-smi's names; it comes with the driver, and nvidia-ml-py may be missing
    "driver": "driver_version",
    "power limit": "power.limit",
    "SM clock now": "clocks.sm",
    "SM clock at most": "clocks.max.sm",
    "temperature": "temperature.gpu",
    "MIG": "mig.mode.current",
}


def machine() -> dict[str, Any]:
    """Names to plain values; `gpu` is None without one, and `why_no_gpu` has what PyTorch says of it."""
    with warnings.catch_warnings(record=True) as said:  # such as a driver that is too old
        warnings.simplefilter("always")
        has_gpu = torch.cuda.is_available()
    facts: dict[str, Any] = {
        "gpu": None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }
    if not has_gpu:
        told = " ".join(str(each.message).partition("\n")[0] for each in said)
        none = "this PyTorch is built without CUDA" if torch.version.cuda is None else "no CUDA device is visible"
        return {**facts, "why_no_gpu": told or none}
    properties = torch.cuda.get_device_properties(0)
    return {
        **facts,
        "gpu": torch.cuda.get_device_name(0),
        "devices visible": torch.cuda.device_count(),
        "compute capability": f"{properties.major}.{properties.minor}",
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
        **_smi(),
    }


def _smi() -> dict[str, str]:
    """What nvidia-smi says of the first device; nothing without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(SMI.values())}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = done.stdout.strip().partition("\n")[0].split(", ")
    return dict(zip(SMI, values, strict=True)) if done.returncode == 0 and len(values) == len(SMI) else {}


def _cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


if __name__ == "__main__":
    print(json.dumps(machine()))
