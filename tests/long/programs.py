"""Programs of `tests.support` that have a Ray of their own: a process can be connected to one Ray only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.studies import REPOSITORY, ran


def told_by(program: str, *arguments: str | Path, seconds: float) -> Any:
    """Runs a module of `tests.support`; what the line of JSON at its end says."""
    done = ran(
        [sys.executable, "-m", f"tests.support.{program}", *map(str, arguments)], cwd=REPOSITORY, seconds=seconds
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
