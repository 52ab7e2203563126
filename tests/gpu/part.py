"""One part, in a process of its own: `python -m tests.gpu.part NAME TITLE FUNCTION SETTINGS FOLDER`."""

from __future__ import annotations

import json
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests.gpu.report import LacksError, PartResult, Report, Settings


def run(name: str, title: str, function: str, settings: Settings) -> PartResult:
    """Call the part; whatever it raises is in the result."""
    started, report, failure = time.perf_counter(), Report(settings), ""
    try:
        module, _, attribute = function.partition(":")
        getattr(import_module(module), attribute)(settings, report)
    except LacksError as missing:
        report.lacks.append(str(missing))
    except Exception as error:
        traceback.print_exc()  # to the part's log
        failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return PartResult(
        part=name,
        title=title,
        status="failed" if failure else report.status,
        seconds=time.perf_counter() - started,
        settings=settings,
        checks=tuple(report.checks),
        figures=tuple(report.figures),
        lacks=tuple(report.lacks),
        details=report.details,
        message=failure,
    )


if __name__ == "__main__":
    name, title, function, settings, folder = sys.argv[1:]
    run(name, title, function, Settings(**json.loads(settings))).write(Path(folder))
