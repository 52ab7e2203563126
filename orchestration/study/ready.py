"""What may refuse a study, each with one clear error and nothing written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalestudy.experiments.plan.plan import Plan, TrialPlan, corner_trials
from scalestudy.experiments.spec.addresses import child, is_uri, parent_and_name
from scalestudy.experiments.spec.reading import find_study, load_study
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError, UnreachableError, request_error
from scalestudy.orchestration.base.places import base_folder, is_there, nearest
from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.study.trials import train_config

PROBE_BYTES = 200_000
"""Room that a study must find at its start: less would not take its first records."""


def read_spec(source: str | Path, overrides: Sequence[str] = ()) -> StudySpec:
    """The spec of a path or a catalogue name. Raises SpecError with every problem."""
    from scalestudy.training.registry import DATASETS, MODELS

    return load_study(find_study(str(source)), overrides, models=MODELS, datasets=DATASETS)


def check_data(spec: StudySpec) -> Path:
    """The folder of data sets. Raises RequestError when the study's data set is not in it."""
    from scalestudy.training.data import require
    from scalestudy.training.data.files import DataError

    root = data_root()
    try:
        require(spec.workload.data, root)
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {spec.workload.data}") from error
    return root


def data_root() -> Path:
    """The folder of data sets: `$SCALESTUDY_DATA`, or the default one."""
    from scalestudy.training.data.files import default_root

    return default_root().expanduser().absolute()


def check_callables(spec: StudySpec) -> None:
    """Raises RequestError when something that the spec names as `package.module:callable` is not there."""
    from scalestudy.training.registry import DATASETS, GRADIENT_SYNCS, LOSSES, METRICS, MODELS

    workload = spec.workload
    _check_callable("workload.model", workload.model, MODELS)
    _check_callable("workload.data", workload.data, DATASETS)
    _check_callable("workload.loss", workload.loss, LOSSES)
    _check_callable("workload.metric", workload.metric, METRICS)
    for name in spec.sweep.values_of("train.gradient_sync") or (spec.train.gradient_sync,):
        _check_callable("train.gradient_sync", name, GRADIENT_SYNCS)


def _check_callable(field: str, name: str, table: Mapping[str, str]) -> None:
    from scalestudy.training.registry import resolve

    if name in table:
        return
    try:
        resolve(name, table)
    except ValueError as error:
        raise request_error(error, "correct the name", field) from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise RequestError(f"{field}: {name}: {describe(error)}", "correct the module") from error


def known_trials(spec: StudySpec, plan: Plan) -> Sequence[TrialPlan]:
    """The plan's trials; of a search, which makes them later, those at the corners of its space."""
    return corner_trials(spec) if plan.to_suggest else plan.trials


def check_configs(trials: Iterable[TrialPlan], data_root: Path) -> None:
    """Raises RequestError for a trial that the training loop would refuse, before any resource is asked for."""
    from scalestudy.training.config import TrainConfig

    for trial in trials:
        try:
            TrainConfig.from_dict(train_config(trial, data_root)).weights(trial.num_gpus)
        except ValueError as error:
            raise request_error(error, "correct the spec", trial.run_name) from error


def check_exact(spec: StudySpec, plan: Plan, data_root: Path) -> None:
    """Raises RequestError for a factorised study whose model does not train alike at every num_gpus.

    A user's model can't be known by its name: it is built and tried here, on a few examples.
    """
    if plan.factorised is None or spec.search.allow_inexact:
        return
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.loop.exactness import why_inexact

    told = "search.allow_inexact: true to run it all the same"
    kinds = {(trial.train["sync_batch_norm"], trial.train["accumulation"]): trial for trial in plan.swept}
    for trial in kinds.values():
        where = f"workload.model: {spec.workload.model}"
        try:
            why = why_inexact(TrainConfig.from_dict(train_config(trial, data_root)))
        except Exception as error:  # the user's callables may raise anything
            said = " ".join(describe(error).split())
            raise RequestError(f"{where}: can't be tried here: {said}", f"correct it, or set {told}") from error
        if why:
            remedy = f"{why.remedy}; or set search.method: grid, or {told}"
            raise RequestError(f"{where}: {why.what}", remedy)


def logical_cpus(plan: Plan, spec: StudySpec) -> int | None:
    """CPUs of a cluster that is started here: one a core, more only if the spec allows it."""
    if not spec.resources.oversubscribe:
        return None
    needed = max(plan.sizes) * spec.resources.cpus_per_worker
    return max(needed, os.cpu_count() or 1)


def new_study_id(spec: StudySpec) -> str:
    """The study's name and the time in UTC: what its folder is called, and what MLflow knows it by."""
    stamp = f"{spec.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 1_000)))  # two studies may begin in one second
    storage = storage_of(spec)
    if is_uri(storage):
        mirror.check_writable(storage)  # before it is asked for names: a bucket that is not there has none
        return next(name for name in names if mirror.is_free(child(storage, name)))
    return next(name for name in names if not is_there(Path(storage) / name))


def storage_of(spec: StudySpec) -> str:
    """The folder, or the URI, that holds the studies' folders."""
    return spec.storage if is_uri(spec.storage) else str(base_folder() / Path(spec.storage).expanduser())


def new_folder(spec: StudySpec, study_id: str, out: str | Path | None = None) -> StudyFolder:
    """The folder of a new study: `out`, else `<storage>/<study_id>`. Raises UnreachableError if it can't be."""
    place = child(storage_of(spec), study_id) if out is None else str(out)
    if is_uri(place):
        return _new_mirrored(place, given=out is not None)
    path = Path(place).expanduser().absolute()
    if is_there(path) and (not path.is_dir() or any(path.iterdir())):
        raise RequestError(f"--out: {path}: is there already", "name a folder that is new or empty")
    check_writable(path)
    return StudyFolder(path)


def _new_mirrored(address: str, *, given: bool) -> StudyFolder:
    """given: by `--out`; a place in `storage` has been asked when the study got its name."""
    if given:
        mirror.check_writable(parent_and_name(address)[0])
        if not mirror.is_free(address):
            raise RequestError(f"--out: {address}: is there already", "name a place that is new or empty")
    return mirror.mirrored(address, "work")


def check_writable(path: Path) -> None:
    """Raises UnreachableError where a study could not be written: its nearest folder is tried, nothing is left."""
    probe = nearest(path) / f".scalestudy-probe-{time.time_ns()}"
    try:
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreachableError(
            f"storage: {path}: can't be written ({reason})", "name a folder that you may write, or free some space"
        ) from error
