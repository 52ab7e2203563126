"""Stage 5, training loop: the number format of forward and backward; parameters and updates stay as the model has them.

bf16 is PyTorch's autocast: matrix products and convolutions in bfloat16, the rest where it is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

Precision = Callable[[], AbstractContextManager[object]]
"""Makes the context that a forward pass runs in."""


def make_precision(name: str, device: torch.device) -> Precision:
    """The context of `fp32` or `bf16` on the device. Raises ValueError if the device has no bfloat16."""
    if name == "fp32":
        return nullcontext
    if not has_bfloat16(device):
        raise ValueError(f"precision: bf16 is not there on this device ({device}); choose fp32")
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 (a CPU: with AVX-512 or AMX, else oneDNN has no kernels for it)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
