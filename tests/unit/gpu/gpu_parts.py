"""Parts that fail in every way, for the tests of the suite's runner. They load no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.report import LacksError, Report, Settings


def passes(settings: Settings, report: Report) -> None:
    report.at_most("a number", 1.0, 2.0)


def fails_a_check(settings: Settings, report: Report) -> None:
    report.at_most("a number", 1.0, 2.0)
    report.at_most("another", float("nan"), 2.0)


def raises(settings: Settings, report: Report) -> None:
    report.at_most("a number", 1.0, 2.0)
    raise RuntimeError("no kernel image\nis available")


def lacks(settings: Settings, report: Report) -> None:
    raise LacksError("needs CUDA: all of it")


def dies(settings: Settings, report: Report) -> None:
    print("the driver is gone", flush=True)
    os.abort()


def hangs(settings: Settings, report: Report) -> None:
    """With a child of its own, whose number it leaves in the folder `data_root`."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(str(settings.data_root), "child").write_text(str(child.pid), encoding="utf-8")
    time.sleep(600)
