"""Runs parts one after another, each in processes of its own with its own time limit. Loads no torch.

A process a part costs seconds of imports. In return an error that spoils the device, a hang or a crash ends one part.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.gpu.parts import Part
from tests.gpu.report import PartResult, Settings, Status

ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 3  # of a part's log, if its process ended without a result


def run_parts(
    parts: Mapping[str, Part],
    settings: Settings,
    folder: Path,
    *,
    deadline: float,
    say: Callable[[PartResult], None] = lambda result: None,
) -> list[PartResult]:
    """Run all parts in order; each result is in its file before the next part begins.

    A part has its own limit, and no more than is left before `deadline`, which is a `time.monotonic()`. `say` is called
    after each part.
    """
    results: list[PartResult] = []
    for name, part in parts.items():
        left = deadline - time.monotonic()
        if left <= 0:
            result = _without_result(name, part, settings, "not run", 0.0, "the suite's time was over")
        else:
            result = run_part(name, part, settings, folder, limit_seconds=min(part.limit_seconds, left))
        result.write(folder)
        results.append(result)
        say(result)
    return results


def run_part(name: str, part: Part, settings: Settings, folder: Path, *, limit_seconds: float) -> PartResult:
    """Run one part and read what it wrote; past the limit, kill its processes. What it prints goes to `NAME.log`."""
    written, log = folder / f"{name}.json", folder / f"{name}.log"
    written.unlink(missing_ok=True)  # of an earlier run
    arguments = [name, part.title, part.function, settings.to_json(), str(folder)]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.part", *arguments],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, with the ranks that it starts
        )
        try:
            code = process.wait(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill_group(process)
    seconds = time.monotonic() - started
    if written.exists():
        return replace(PartResult.read(written), seconds=seconds)
    if code is None:
        return _without_result(name, part, settings, "time limit", seconds, f"ended after its {limit_seconds:.0f} s")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LAST_LINES:]
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return _without_result(name, part, settings, "failed", seconds, f"{ended}: {' / '.join(lines)}")


def environment() -> dict[str, str]:
    """The environment of a part, in which this clone is the package."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a part."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _without_result(
    name: str, part: Part, settings: Settings, status: Status, seconds: float, message: str
) -> PartResult:
    """Of a part that wrote none."""
    return PartResult(part=name, title=part.title, status=status, seconds=seconds, settings=settings, message=message)
