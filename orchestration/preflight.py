"""Stages 1 and 2, before anything starts: what may refuse a study, each with one clear error and nothing written."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from experiments.plan import Plan
from experiments.spec import StudySpec, find_study, load_study
from experiments.study_folder import StudyFolder
from orchestration.environment import base_folder
from orchestration.errors import RequestError, UnreachableError
from orchestration.failures import describe
from orchestration.trials import train_config


def read_spec(source: str | Path, overrides: Sequence[str] = ()) -> StudySpec:
    """The spec of a path or a catalogue name. Raises SpecError with every problem."""
    from training.registry import DATASETS, MODELS

    return load_study(find_study(str(source)), overrides, models=MODELS, datasets=DATASETS)


def check_data(spec: StudySpec) -> Path:
    """The folder of data sets. Raises RequestError when the study's data set is not in it."""
    from training.data import DataError, default_root, require

    root = default_root().expanduser().absolute()
    try:
        require(spec.workload.data, root)
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {spec.workload.data}") from error
    return root


def request_error(error: Exception, remedy: str, where: str = "") -> RequestError:
    """An error of the other packages, whose text is "problem; remedy", as one of ours.

    remedy: for a text that has none. where: what the problem is about, put before it.
    """
    problem, _, given = str(error).rpartition("; ")
    about = f"{where}: " if where else ""
    return RequestError(about + (problem or given), given if problem else remedy)


def check_callables(spec: StudySpec) -> None:
    """Raises RequestError when something that the spec names as `package.module:callable` is not there."""
    from training.registry import DATASETS, GRADIENT_SYNCS, LOSSES, METRICS, MODELS

    workload = spec.workload
    _check_callable("workload.model", workload.model, MODELS)
    _check_callable("workload.data", workload.data, DATASETS)
    _check_callable("workload.loss", workload.loss, LOSSES)
    _check_callable("workload.metric", workload.metric, METRICS)
    for name in spec.sweep.values_of("train.gradient_sync") or (spec.train.gradient_sync,):
        _check_callable("train.gradient_sync", name, GRADIENT_SYNCS)


def _check_callable(field: str, name: str, table: Mapping[str, str]) -> None:
    from training.registry import resolve

    if name in table:
        return
    try:
        resolve(name, table)
    except ValueError as error:
        raise request_error(error, "correct the name", field) from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise RequestError(f"{field}: {name}: {describe(error)}", "correct the module") from error


def check_configs(plan: Plan, data_root: Path) -> None:
    """Raises RequestError for a trial that the training loop would refuse, before any resource is asked for."""
    from training.config import TrainConfig

    for trial in plan.trials:
        try:
            TrainConfig.from_dict(train_config(trial, data_root)).weights(trial.num_gpus)
        except ValueError as error:
            raise request_error(error, "correct the spec", trial.run_name) from error


def logical_cpus(plan: Plan, spec: StudySpec) -> int | None:
    """CPUs of a cluster that is started here: one a core, more only if the spec allows it."""
    if not spec.resources.oversubscribe:
        return None
    needed = max(trial.num_gpus for trial in plan.trials) * spec.resources.cpus_per_worker
    return max(needed, os.cpu_count() or 1)


def new_study_id(spec: StudySpec) -> str:
    """The study's name and the time in UTC: what its folder is called, and what MLflow knows it by."""
    stamp = f"{spec.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 1_000)))  # two studies may begin in one second
    return next(name for name in names if not (storage_of(spec) / name).exists())


def storage_of(spec: StudySpec) -> Path:
    """The folder that holds the studies' folders."""
    return base_folder() / Path(spec.storage).expanduser()


def new_folder(spec: StudySpec, study_id: str, out: str | Path | None = None) -> StudyFolder:
    """The folder of a new study: `out`, else `<storage>/<study_id>`. Raises UnreachableError if it can't be."""
    path = storage_of(spec) / study_id if out is None else Path(out).expanduser().absolute()
    if path.exists() and any(path.iterdir()) if path.is_dir() else path.exists():
        raise RequestError(f"--out: {path}: is there already", "name a folder that is new or empty")
    _check_writable(path)
    return StudyFolder(path)


def _check_writable(path: Path) -> None:
    """Finds the nearest folder that exists and tries to write there, leaving nothing behind."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    probe = existing / f".scalestudy-probe-{time.time_ns()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreachableError(
            f"storage: {path}: can't be written ({reason})", "name a folder that you may write, or free some space"
        ) from error
