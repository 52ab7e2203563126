"""MLflow's runs as runs to be judged, and its stores that are files: a folder `mlruns`, and an SQLite database.

MLflow 3.17 refuses such folders, and databases of other versions; it also writes to a store that it opens. These files
are read as they are: nothing is written, and MLflow is not needed.
"""

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml

from scalestudy.experiments.judging.cells import value_of
from scalestudy.experiments.judging.runs import Ended, Recorded, SourceError

Progress = Callable[[int, int], None]
"""Called with how many runs were read, and how many there are."""
ENDED: Mapping[str, Ended] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "cut"}
"""How a run of each of MLflow's statuses ended; of all others it runs."""
_STATUSES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""As numbers, in `meta.yaml`."""
COMMIT = "mlflow.source.git.commit"
"""The one of MLflow's own tags that says how a run trained. Others name its user, or paths on its machine."""
SYSTEM = "system/"
"""How the names of metrics begin that MLflow samples from the machine."""
LARGEST = 1.7976931348623157e308
"""What MLflow's databases keep in place of infinity."""
LEAST_DATABASE = {"experiments", "runs", "params", "tags", "metrics"}


class Point(NamedTuple):
    """A value of a metric."""

    step: int
    milliseconds: int  # since 1970
    value: float


@dataclass(frozen=True, kw_only=True)
class MlflowRun:
    """A run as MLflow has it."""

    run_id: str
    name: str
    status: str
    started: int | None  # milliseconds since 1970; likewise stopped
    stopped: int | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Mapping[str, Sequence[Point]]  # by metric, in the order of time

    def recorded(self, metric: str | None = None) -> Recorded:
        """Return the run to be judged: a row for each step, with all metrics of that step.

        A step that has several values of a metric gets several rows. A row's `timestamp` is that of `metric`, where it
        has that, else the latest. A run that never named a step has no `step`.
        """
        rows: dict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
        times: dict[tuple[int, int], int] = {}
        for name, points in self.points.items():
            seen = Counter[int]()
            for point in points:
                key = (point.step, seen[point.step])
                seen[point.step] += 1
                rows[key][name] = point.value
                if name == metric or metric not in rows[key]:
                    times[key] = point.milliseconds if name == metric else max(point.milliseconds, times.get(key, 0))
        named = any(step for step, _ in rows) or len(rows) == 1
        in_time = sorted(rows, key=lambda key: (key[0], key[1]))
        history = [
            {"timestamp": times[key] / 1000} | ({"step": key[0]} if named else {}) | rows[key] for key in in_time
        ]
        tags = {key: text for key, text in self.tags.items() if not key.startswith("mlflow.") or key == COMMIT}
        return Recorded(
            where=f"MLflow run {self.run_id}",
            name=self.name or self.run_id,
            values={key: value_of(text) for key, text in {**tags, **self.params}.items()},
            history=history,
            ended=ENDED.get(self.status, "running"),
            started=None if self.started is None else self.started / 1000,
            stopped=None if self.stopped is None else self.stopped / 1000,
        )


def ignore(done: int, total: int) -> None:
    """Show no progress."""


def read_folder(folder: Path, experiment: str, progress: Progress = ignore) -> list[MlflowRun]:
    """Return the runs of an experiment, by its name or id, in a folder as MLflow's file store keeps it.

    Deleted runs are left out. Raises SourceError for a folder that is no such store, or lacks the experiment.
    """
    experiments = {}
    for place in _folders(folder):
        if meta := _meta(place):
            experiments[place] = (str(meta.get("experiment_id", place.name)), str(meta.get("name", "")))
    if not experiments:
        raise SourceError(f"{folder}: is no store of MLflow", "name the folder with its experiments, often `mlruns`")
    number = _chosen(experiments.values(), experiment, str(folder))
    home = next(place for place, (each, _) in experiments.items() if each == number)
    metas = [(place, meta) for place in _folders(home) if (meta := _meta(place)) and "run_id" in meta | _old(meta)]
    active = [(place, meta) for place, meta in metas if meta.get("lifecycle_stage", "active") == "active"]
    found = []
    for place, meta in active:
        tags = _texts(place / "tags")
        found.append(
            MlflowRun(
                run_id=place.name,
                name=tags.get("mlflow.runName") or str(meta.get("run_name") or ""),
                status=_STATUSES.get(meta.get("status", 1), "RUNNING"),
                started=meta.get("start_time"),
                stopped=meta.get("end_time"),
                params=_texts(place / "params"),
                tags=tags,
                points={name: list(_points(text)) for name, text in _texts(place / "metrics", SYSTEM).items()},
            )
        )
        progress(len(found), len(active))
    return found


def read_database(file: Path, experiment: str, progress: Progress = ignore) -> list[MlflowRun]:
    """Return the runs of an experiment, by its name or id, in an SQLite database of MLflow's. See `read_folder`."""
    if not file.is_file():
        raise SourceError(f"{file}: is not there", "correct --tracking-uri or MLFLOW_TRACKING_URI")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables >= LEAST_DATABASE:
                raise SourceError(f"{file}: is no database of MLflow", "correct --tracking-uri or MLFLOW_TRACKING_URI")
            return _of_database(database, experiment, str(file), progress)
    except sqlite3.Error as error:
        raise SourceError(
            f"{file}: can't be read ({error})", "name an SQLite database of MLflow that is whole"
        ) from error


def _of_database(database: sqlite3.Connection, experiment: str, source: str, progress: Progress) -> list[MlflowRun]:
    known = database.execute("SELECT experiment_id, name FROM experiments WHERE lifecycle_stage = 'active'")
    number = _chosen([(str(each), str(name)) for each, name in known], experiment, source)
    asked = "FROM runs WHERE experiment_id = ? AND lifecycle_stage = 'active'"
    rows = database.execute(f"SELECT run_uuid, name, status, start_time, end_time {asked}", [number]).fetchall()
    found = []
    for run_id, name, status, started, stopped in rows:
        tags = dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", [run_id]))
        points: dict[str, list[Point]] = defaultdict(list)
        asked = "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step"
        for key, step, milliseconds, value, is_nan in database.execute(asked, [run_id]):
            if not key.startswith(SYSTEM):
                points[key].append(Point(step, milliseconds, math.nan if is_nan else finite_again(value)))
        found.append(
            MlflowRun(
                run_id=run_id,
                name=tags.get("mlflow.runName") or name or "",
                status=status,
                started=started,
                stopped=stopped,
                params=dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", [run_id])),
                tags=tags,
                points=points,
            )
        )
        progress(len(found), len(rows))
    return found


def finite_again(value: float) -> float:
    """Return infinity for what MLflow's databases keep in its place."""
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


def _chosen(experiments: Iterable[tuple[str, str]], wanted: str, source: str) -> str:
    """Return the id of the experiment of that name, else of that id. Raises SourceError."""
    known = list(experiments)
    for number, name in known:
        if name == wanted:
            return number
    if wanted in (number for number, _ in known):
        return wanted
    raise no_experiment(source, wanted, [name for _, name in known])


def no_experiment(source: str, wanted: str, names: Sequence[str]) -> SourceError:
    """Return the error for an experiment that a store lacks. names: of those that it has."""
    listed = ", ".join(sorted(names)[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return SourceError(
        f"{source}: has no experiment {wanted!r}", f"name one of {listed}" if names else "log runs first"
    )


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(place for place in parent.iterdir() if place.is_dir() and not place.name.startswith("."))
    except OSError as error:
        raise SourceError(f"{parent}: can't be read ({error.strerror})", "name a folder that is there") from error


def _meta(place: Path) -> dict[str, Any] | None:
    """Return what an experiment's or a run's `meta.yaml` says; None: it has none."""
    try:
        found = yaml.safe_load((place / "meta.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None


def _old(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name that old versions had for a run's id, as the one that it has now."""
    return {"run_id": meta["run_uuid"]} if "run_uuid" in meta else {}


def _texts(folder: Path, but: str = "\0") -> dict[str, str]:
    """Return the files of a folder and those within, by their paths there. but: how paths begin that are left out."""
    files = sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []
    named = {file.relative_to(folder).as_posix(): file for file in files}
    return {
        name: file.read_text(encoding="utf-8", errors="replace")
        for name, file in named.items()
        if not name.startswith(but)
    }


def _points(text: str) -> Iterator[Point]:
    """Yield the points in a metric's file: milliseconds, value and step a line. A torn last line is no point."""
    for line in text.split("\n")[:-1]:
        parts = line.split(" ")
        try:
            yield Point(int(parts[2]) if len(parts) > 2 else 0, int(parts[0]), float(parts[1]))
        except (ValueError, IndexError):
            continue
