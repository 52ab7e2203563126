"""Make torchvision importable if its compiled library does not fit the installed torch.

PyPI's torchvision beside a CPU-only torch can't load its library. Its import then fails as it registers meta kernels
for operators that nobody has defined: `operator torchvision::nms does not exist` (and `qnms`). If the two schemas are
declared first, data sets, models and transforms work; calls of the operators still fail. Rejected: to catch the error
after the import, because half-imported modules stay in sys.modules. In programs of a user's own
`infra/venv/scalestudy_torchvision.py` does it.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"  # of both


@functools.cache
def define_missing_operators() -> None:
    """Declare torchvision's two operators if its compiled library is there but can't be loaded. Idempotent."""
    specification = importlib.util.find_spec("torchvision")
    if specification is None or specification.origin is None or _library_loads(Path(specification.origin).parent):
        return
    for name in _MISSING:
        if not hasattr(torch.ops.torchvision, name):  # the search above may have come here through a finder
            torch.library.define(f"torchvision::{name}", _SCHEMA)


def import_torchvision() -> ModuleType:
    """Import torchvision, with any build of torch. Raises ModuleNotFoundError if it is not installed."""
    define_missing_operators()
    import torchvision

    return torchvision


def _library_loads(folder: Path) -> bool:
    for library in (*folder.glob("_C*.so"), *folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(library))
        except (OSError, ImportError):
            continue
        return True
    return False
