"""`make bench BENCH=tracking`: what a tracking server with a database, a bucket and passwords costs, beside a file.

It needs Debian's PostgreSQL. The same small study runs against sqlite and a folder, against PostgreSQL and an S3 server
by MLflow's server, and with the study's own folder in the bucket too, by turns. All share this machine, so that what
the servers compute is part of the ratio.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from scalestudy.experiments.study.folder import StudyFolder
from tests.bench.tables import Part, Rows
from tests.support.mlflow_stack import MlflowStack, mlflow_stack
from tests.support.studies import scalestudy, write_spec

RUNS, EPOCHS = 5, 20
HEADER = ["store", "studies", "trials × epochs", "study's wall, s", "ratio", "command, s", "ratio"]


def tracking(folder: Path, *, small: bool = False) -> Rows:
    """A row for each store: medians of the study's own wall seconds, and of the whole command's."""
    with mlflow_stack() as stack:
        stack.start()
        return _rows(folder, stack, small)


def _rows(folder: Path, stack: MlflowStack, small: bool) -> Rows:
    storage, keys = stack.storage
    stores = {
        "sqlite; storage on a disk": ("runs", {"MLFLOW_TRACKING_URI": ""}),
        "PostgreSQL and S3; storage on a disk": ("runs", stack.login),
        "PostgreSQL and S3; storage in S3": (storage, {**stack.login, **keys}),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
    for number in range(1 if small else RUNS):
        for position, (name, (where, variables)) in enumerate(stores.items()):
            place = folder / f"{position}-{number}"
            place.mkdir()
            found[name].append(_study(place, where, 2 if small else EPOCHS, variables))
    medians = {name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in found.items()}
    base, rows = next(iter(medians.values())), list[list[str]]()
    for name, (wall, whole) in medians.items():
        size = [str(len(found[name])), f"4 × {2 if small else EPOCHS}"]
        rows.append([name, *size, f"{wall:.1f}", f"{wall / base[0]:.2f}", f"{whole:.1f}", f"{whole / base[1]:.2f}"])
    return rows


def _study(place: Path, storage: str, epochs: int, variables: dict[str, str]) -> tuple[float, float]:
    """Runs the small study; seconds of the study, and of the command with its starts and MLflow's last artifacts."""
    spec = write_spec(place, train={"epochs": epochs}, storage=storage)
    begun = time.perf_counter()
    done = scalestudy("run", spec, "--address", "local", "--json", cwd=place, seconds=600, **variables)
    whole = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    folder = StudyFolder(Path(json.loads(done.stdout)["folder"]))
    summary: dict[str, Any] = json.loads(folder.summary_file.read_text(encoding="utf-8"))
    return summary["cost"]["wall_seconds"], whole


PARTS = {"tracking": Part("A study against PostgreSQL and S3", HEADER, tracking)}
