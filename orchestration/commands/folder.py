"""Commands on a folder: status, report, sync, recommend, compare."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal, cast

from scalestudy.experiments.analysis.answers.comparison import compare
from scalestudy.experiments.analysis.answers.predictions import MOST_WORKERS
from scalestudy.experiments.analysis.answers.recommendation import recommend
from scalestudy.experiments.analysis.answers.summary import predict, summarise
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.text.advice import recommendation_lines
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.reading import new_spec
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.base.errors import RequestError, StudyError, UnreachableError, request_error
from scalestudy.orchestration.progress.progress import Board, clock
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.storage.lock import Holder, lock_of
from scalestudy.orchestration.study.folders import open_folder, readable, spec_of
from scalestudy.orchestration.study.ready import data_root, storage_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, Operations
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.orchestration.tracking.server import check_reachable, reason_of, resolve_address, same_address
from scalestudy.orchestration.tracking.writer import Cursor, Numbered, replay


def write_new_spec(name: str) -> Path:
    """Writes `NAME.yaml`, a study by that name with every key and its default.

    Args:
        name: of the study; with a folder before it or `.yaml` behind it, where the file is to lie.

    Raises SpecError for a name that can't be a folder's, RequestError where the file is there or can't be written.
    """
    file = _spec_file(name)
    text = new_spec(file.stem, str(file))
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RequestError(f"NAME: {file}: is there already", "choose another name, or move the file") from None
    except OSError as error:
        raise request_error(error, "name a folder that is there and may be written", f"NAME: {file}") from error
    return file


def _spec_file(name: str) -> Path:
    """The file of a new study; a dot in a name is no suffix of a file."""
    return Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")


def rebuild_report(path: str | Path, *, include_flagged: bool = False) -> Path:
    """Writes `summary.json` and `report.html` of a study's folder anew, from its records alone.

    include_flagged: laws are fitted to timings too that were disturbed.
    """
    from scalestudy.experiments.report import write_report

    folder = open_folder(path)
    with readable(folder):
        spec_of(folder)
        return write_report(folder, include_flagged=include_flagged)


def sync_tracking(path: str | Path) -> tuple[int, str]:
    """Sends MLflow what it has missed of a study; the number of operations and the store's address.

    Raises UnreachableError where the store is out of reach, RequestError while the study runs.
    """
    prepare_environment()
    folder = open_folder(path)
    with readable(folder):
        spec, plan, journal = spec_of(folder), folder.read_plan(), Journal(folder.journal_folder)
        history = History.of(journal.entries())
    trials = plan.with_trials(history.suggested.values()).by_id()
    operations = Operations(spec, folder, trials, lambda trial: train_config(trial, data_root()))
    address = same_address(folder.address_file, resolve_address(spec.tracking.uri))
    cursor = Cursor(folder.cursor_file)
    check_reachable(address)
    missed = (Numbered(entry.number, operations.of(entry)) for entry in journal.entries(after=cursor.read()))
    try:
        with lock_of(folder):
            store = MlflowStore(address, spec.tracking.experiment or spec.name, folder.study_id)
            sent = replay(store, missed, cursor)
            folder.share(cursor.file, folder.address_file)
            return sent, address.shown
    except StudyError:
        raise
    except Exception as error:
        remedy = "start the server, then type this command again; nothing is lost"
        raise UnreachableError(f"tracking.uri: {address.shown}: {reason_of(error)}", remedy) from error


def earlier_trials(spec: StudySpec) -> list[dict[str, Any]]:
    """Trials of earlier studies in the spec's storage, for `plan`'s estimate; broken folders are passed over."""
    found: list[dict[str, Any]] = []
    storage = storage_of(spec)
    if is_uri(storage):
        folders = mirror.plans_and_trials(storage)
    else:
        folders = [StudyFolder(plan_file.parent) for plan_file in sorted(Path(storage).glob("*/plan.json"))]
    for folder in folders:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.extend(folder.measured_trials())
    return found


def fetch_data(name: str, source: Path | None) -> tuple[list[Path], Path]:
    """Puts a data set's files under the data folder: those that are new, and the folder. Raises RequestError."""
    from scalestudy.training.data import fetch
    from scalestudy.training.data.files import DataError, default_root

    root = default_root().expanduser().absolute()
    try:
        return fetch(name, root, source), root
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {name} --from DIR") from error


BY = ("time", "cost")


def advise(
    path: str | Path, *, accuracy: float | None, max_gpus: int | None, price: float | None, by: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The recommendation as data, and in words. accuracy: the target, of whatever metric the study has.

    To what `recommend` gives are added `predictions` (the summary's, for the target that is asked for and up to
    max_gpus), `study` (num_gpus that were measured, device) and `max_gpus`.

    Raises RequestError for a wish that can't be, or a folder that is not a study's.
    """
    _check(max_gpus, price, by)
    folder = open_folder(path)
    with readable(folder):
        spec: StudySpec = spec_of(folder)
        plan, trials = folder.read_plan(), folder.read_trials()
    metric = StudyMetric.of(spec.workload)
    _check_target(accuracy, metric)
    price = spec.targets.price_per_gpu_hour if price is None else price
    advice = recommend(
        plan,
        trials,
        metric=metric,
        targets=spec.targets.accuracy,
        accuracy=accuracy,
        max_gpus=max_gpus,
        price=price,
        by=cast(Literal["time", "cost"], by or "time"),
    )
    advice["predictions"] = predict(
        _with_target(spec, accuracy), plan, trials, advice, price=price, most_workers=max_gpus or MOST_WORKERS
    )
    advice["study"] = {
        "num_gpus": sorted({cell["num_gpus"] for cell in plan.cells}),
        "device": advice["choice"].get("device"),
    }
    advice["max_gpus"] = max_gpus
    return advice, _lines(advice, by)


def _with_target(spec: StudySpec, target: float | None) -> StudySpec:
    """The spec with the one target that the user asks for in the place of its own."""
    if target is None:
        return spec
    return spec.model_copy(update={"targets": spec.targets.model_copy(update={"accuracy": (target,)})})


def _lines(advice: dict[str, Any], by: str | None) -> list[str]:
    lines = recommendation_lines(advice)
    if by is None or advice["target"] is None or not advice["choice"].get("label"):
        return lines  # without a target that was reached the choice is the best by the metric, and least of nothing
    return [f"Choose {advice['choice']['label']} (least {by}).", *lines]


def _check_target(target: float | None, metric: StudyMetric) -> None:
    if target is None:
        return
    if metric.share and not 0 < target <= 1:
        raise RequestError(f"--accuracy: {target}: is not a share", "give one above 0 and up to 1, such as 0.95")
    if not math.isfinite(target):
        raise RequestError(f"--accuracy: {target}: is not a number", f"give a {metric.title} to reach")


def _check(max_gpus: int | None, price: float | None, by: str | None) -> None:
    if max_gpus is not None and max_gpus < 1:
        raise RequestError(f"--max-gpus: {max_gpus}: is not a number of workers", "give 1 or more")
    if price is not None and not 0 <= price < float("inf"):
        raise RequestError(f"--price: {price}: is not a price", "give the price of a GPU-hour, 0 or more")
    if by is not None and by not in BY:
        raise RequestError(f"--by: {by}: is not known", f"choose {' or '.join(BY)}")


def compare_studies(paths: Sequence[str | Path]) -> dict[str, Any]:
    """What `compare` finds between two or more studies, named by their ids; the first is the base.

    Raises RequestError for fewer than two, the same one twice, or a folder that is not a study's.
    """
    if len(paths) < 2:
        raise RequestError("DIR: one study has nothing to be compared with", "name two or more")
    summaries: dict[str, Any] = {}
    for path in paths:
        folder = open_folder(path)
        if folder.study_id in summaries:
            raise RequestError(f"DIR: {path}: is the study {folder.study_id} again", "name each study once")
        with readable(folder):
            summaries[folder.study_id] = summarise(spec_of(folder), folder.read_plan(), folder.read_trials())
    return compare(summaries)


@dataclass(frozen=True, kw_only=True)
class RunningNow:
    """A trial that has begun and has not ended. metric: its last value, null before the first epoch."""

    name: str
    trial_id: str
    attempt: int
    epoch: int
    epochs: int
    metric: float | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a study stands.

    state: running, finished, stopped (cleanly) or interrupted (its process died). trials: by status, with the number
    planned. wall_seconds: of all of its runs. silent_seconds: since the last sign of life of the process that runs it;
    null when none does. best: the best value so far with its trial. unsent: journal entries that MLflow has not got.
    """

    study: str
    state: str
    trials: dict[str, int]
    running: tuple[RunningNow, ...]
    best: dict[str, Any] | None
    wall_seconds: float
    holder: str | None
    silent_seconds: float | None
    unsent: int
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)


def status_of(path: str | Path) -> Status:
    """How the study in a folder stands. Raises RequestError where it is not a study's."""
    folder = open_folder(path)
    with readable(folder):
        spec, plan, journal = spec_of(folder), folder.read_plan(), Journal(folder.journal_folder)
        history = History.of(journal.entries())
    holder = lock_of(folder).holder()
    alive = holder if holder and holder.is_alive else None
    trials = plan.with_trials(history.suggested.values()).by_id()
    board = Board(trials, StudyMetric.of(spec.workload), expected=plan.expected_trials)
    board.catch_up(history.past)
    counts = {status: list(board.statuses.values()).count(status) for status in sorted(set(board.statuses.values()))}
    return Status(
        study=folder.study_id,
        state=_state(history, alive),
        trials={"planned": board.total, **counts},
        running=tuple(
            RunningNow(
                name=each.trial.run_name,
                trial_id=trial_id,
                attempt=each.attempt,
                epoch=len(each.epochs),
                epochs=each.trial.train["epochs"],
                metric=each.values[-1] if each.epochs else None,
            )
            for trial_id, each in board.resting.items()
        ),
        best={"value": board.best[0], "trial": board.best[1].run_name} if board.best else None,
        wall_seconds=history.wall_seconds_at(time.time()) if alive else history.wall_seconds,
        holder=f"process {alive.pid} on {alive.host}" if alive else None,
        silent_seconds=alive.silent_seconds if alive else None,
        unsent=max(0, journal.last_number - Cursor(folder.cursor_file).read()),
        folder=folder.address,
    )


def _state(history: History, alive: Holder | None) -> str:
    if alive:
        return "running"
    return history.state if history.state in ("finished", "stopped") else "interrupted"


def status_lines(found: Status) -> list[str]:
    """The status in words."""
    trials = dict(found.trials)
    planned = trials.pop("planned")
    ended = sum(trials.values())
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in trials.items())
    by = f" by {found.holder}, seen {found.silent_seconds:.0f} s ago" if found.holder else ""
    lines = [
        f"{found.study}: {found.state}{by}",
        f"{ended}/{planned} trials ended{f' ({counts})' if counts else ''}, {clock(found.wall_seconds)} of running",
    ]
    word = "running" if found.holder else "to go on"
    for trial in found.running:
        value = "" if trial.metric is None else f", last {trial.metric:.4g}"
        lines.append(f"{word}: {trial.name}: epoch {trial.epoch}/{trial.epochs}, attempt {trial.attempt}{value}")
    if found.best:
        lines.append(f"best so far: {found.best['value']:.4g} ({found.best['trial']})")
    if not found.holder and found.state != "finished":
        lines.append(f"to go on: scalestudy resume {quote(found.folder)}")
    if not found.holder and found.unsent:
        lines.append(f"MLflow has not got {found.unsent} entries of the journal: scalestudy sync {quote(found.folder)}")
    return lines
