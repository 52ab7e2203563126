"""Commands on a study's folder: status, report, open, recommend, and what `ui --sync` sends."""

from __future__ import annotations

import json
import os
import sys
import time
import webbrowser
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from scalestudy.experiments.analysis.measures.units import plural, seconds_text
from scalestudy.experiments.spec.reading import new_spec, new_spec_from
from scalestudy.orchestration.base.errors import RequestError, StudyError, UnreachableError, request_error
from scalestudy.orchestration.commands.studies import is_running
from scalestudy.orchestration.commands.watch import WatchedStudy, watch
from scalestudy.orchestration.storage.lock import lock_of
from scalestudy.orchestration.study.advice import WISHES, Advice
from scalestudy.orchestration.study.advice import advise as advise_by_records
from scalestudy.orchestration.study.folders import open_folder, readable, refuse_judged, spec_of
from scalestudy.orchestration.study.ready import data_root
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.entries import StudyJournal
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.orchestration.tracking.server import check_reachable, reason_of, resolve_address, same_address
from scalestudy.orchestration.tracking.writer import Cursor, catch_up
from scalestudy.training.process import Terminated


@dataclass(frozen=True, kw_only=True)
class RunningNow:
    """A trial that has begun and has not ended."""

    name: str
    trial_id: str
    attempt: int
    epoch: int  # number of epochs done, or of evaluations if `period` says so
    epochs: int  # number that it makes in all
    period: str
    metric: float | None  # its last value; null before the first evaluation


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a study stands."""

    study: str
    state: str  # running, finished, stopped (cleanly), interrupted (its process died) or judged (others made its runs)
    trials: dict[str, int]  # by status, with the number planned
    running: tuple[RunningNow, ...]
    best: dict[str, Any] | None  # the best value so far with its trial
    wall_seconds: float  # over all its runs; once it has ended, as its report says
    holder: str | None
    silent_seconds: float | None  # since the last sign of life of the process that runs it; null: none does
    unsent: int  # journal entries that MLflow does not have
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        return asdict(self)


def status_of(path: str | Path) -> Status:
    """Return how the study in a folder stands. Raises as `WatchedStudy`."""
    study = WatchedStudy(path)
    alive, history, progress = study.holder(), study.history, study.progress
    left = history.state if history.state in ("finished", "stopped") else "interrupted"
    ends = list(progress.statuses.values())
    if study.folder.judged_file.exists():  # it has no journal
        left, ends = "judged", [line["status"] for line in study.folder.read_trials()]
    begun = progress.running if alive else progress.resting | progress.running
    return Status(
        study=study.folder.study_id,
        state="running" if alive else left,
        trials={"planned": progress.total, **{status: ends.count(status) for status in sorted(set(ends))}},
        running=tuple(
            RunningNow(
                name=each.trial.name,
                trial_id=trial_id,
                attempt=each.attempt,
                epoch=len(each.epochs),
                epochs=each.trial.evaluations,
                period=each.trial.period_word,
                metric=each.values[-1] if each.epochs else None,
            )
            for trial_id, each in begun.items()
        ),
        best={"value": progress.best[0], "trial": progress.best[1].name} if progress.best else None,
        wall_seconds=history.wall_seconds_at(time.time()) if alive else history.study_seconds,
        holder=f"process {alive.pid} on {alive.host}" if alive else None,
        silent_seconds=alive.silent_seconds if alive else None,
        unsent=max(0, study.journal.last_number - Cursor(study.folder.cursor_file).read()),
        folder=study.folder.address,
    )


def status_lines(current: Status) -> list[str]:
    """Return the status in words."""
    trials = dict(current.trials)
    planned = trials.pop("planned")
    ended = sum(trials.values())
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in trials.items())
    if current.state == "judged":
        return [f"{current.study}: judged: {plural(ended, 'run')} that others made ({counts})"]
    by = f" by {current.holder}, seen {current.silent_seconds:.0f} s ago" if current.holder else ""
    took = f"{'has taken' if current.holder else 'took'} {seconds_text(current.wall_seconds)} over all its runs"
    lines = [
        f"{current.study}: {current.state}{by}",
        f"{ended}/{planned} trials ended{f' ({counts})' if counts else ''}; the study {took}",
    ]
    word = "running" if current.holder else "to go on"
    for trial in current.running:
        value = "" if trial.metric is None else f", last {trial.metric:.4g}"
        lines.append(
            f"{word}: {trial.name}: {trial.period} {trial.epoch}/{trial.epochs}, attempt {trial.attempt}{value}"
        )
    if current.best:
        lines.append(f"best so far: {current.best['value']:.4g} ({current.best['trial']})")
    if not current.holder and current.state not in ("finished", "judged"):
        lines.append(f"to go on: scalestudy resume {quote(current.folder)}")
    if not current.holder and current.unsent:
        lines.append(f"MLflow lacks {current.unsent} journal entries: scalestudy ui {quote(current.folder)} --sync")
    return lines


def rebuild_report(path: str | Path, *, include_flagged: bool = False) -> Path:
    """Write `summary.json` and `report.html` of a study anew, from its records alone; return the report's path.

    include_flagged: fit laws to disturbed timings too.
    """
    from scalestudy.experiments.report import write_report

    folder = open_folder(path)
    with readable(folder):
        spec_of(folder)
        fresh_workers = History.of(StudyJournal(folder).entries()).fresh_workers or None  # None: see `write_report`
        return write_report(folder, fresh_workers=fresh_workers, include_flagged=include_flagged)


def draw_pictures(path: str | Path) -> list[Path]:
    """Write the figures of a study's report as PNG; return their paths. Raises RequestError without a browser."""
    from scalestudy.experiments.report.pictures import BrowserError, write_pictures

    folder = open_folder(path)
    try:
        with readable(folder):
            return write_pictures(folder)
    except BrowserError as error:
        remedy = f"install Debian's chromium, or Chrome; or press PNG beside the figures of {folder.report_file}"
        raise RequestError(f"--png: {error}", remedy) from error


def open_report(path: str | Path, *, as_json: bool = False) -> None:
    """Print the path of a study's report on this machine, and show it in the browser.

    Raises RequestError if there is no report, or for a folder that is not a study's.
    """
    folder = open_folder(path)
    runs = is_running(folder)
    look = f"scalestudy open {quote(folder.address)} --watch"
    if not folder.report_file.exists():
        remedy = f"scalestudy report {quote(folder.address)} writes it now"
        if runs:
            remedy = f"it is written when the study ends; {look} shows how far it is"
        raise RequestError(f"DIR: {folder.address}: has no report.html", remedy)
    if runs:
        print(f"the study still runs; {look} shows how far it is", file=sys.stderr)
    _show(folder.report_file.absolute(), as_json=as_json)


def watch_report(path: str | Path, *, as_json: bool = False) -> None:
    """Show the page of a running study, and rewrite it until the study ends or Ctrl-C stops this.

    Show the report instead if the study does not run. Raises as `open_report`, and as `WatchedStudy`.
    """
    study = WatchedStudy(path)
    if study.holder() is None:
        open_report(path, as_json=as_json)
        return
    print("Ctrl-C ends the watching, not the study", file=sys.stderr)
    os.nice(19)  # the study may train on this machine
    try:
        watch(study, lambda page: _show(page, as_json=as_json))
    except Terminated:
        raise
    except KeyboardInterrupt:
        return
    if study.ended:
        print(f"the study has ended; its report: {study.folder.report_file.absolute()}", file=sys.stderr)
    else:
        again = f"scalestudy resume {quote(study.folder.address)}"
        print(f"the process that ran the study has ended before the study; to go on: {again}", file=sys.stderr)


def _show(page: Path, *, as_json: bool) -> None:
    if not as_json:
        print(page, flush=True)
    shown = show_in_browser(page.as_uri())
    if as_json:
        print(json.dumps({"report": str(page), "shown": shown}), flush=True)


def show_in_browser(page: str) -> bool:
    """Open an address in the user's browser; return whether there was one.

    Where there is no screen, Python would take a browser for terminals, which would cover the user's.
    """
    elsewhere = sys.platform.startswith("linux") and not {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys()
    if elsewhere:
        return False
    try:
        return webbrowser.open(page)
    except (webbrowser.Error, OSError):
        return False


def sync_tracking(path: str | Path) -> tuple[int, str]:
    """Send MLflow the events of a study that it missed; return their number and the store's address.

    Raises UnreachableError if the store is out of reach, RequestError while the study runs.
    """
    folder = open_folder(path)
    with readable(folder):
        spec, plan, journal = spec_of(folder), folder.read_plan(), StudyJournal(folder)
        refuse_judged(spec, f"DIR: {folder.address}")
        history = History.of(journal.entries())
    trials = plan.with_trials(history.suggested.values()).by_id()
    study = TrackedStudy(
        spec=spec, folder=folder, trials=trials, config_of=lambda trial: train_config(trial, data_root())
    )
    address = same_address(folder, resolve_address(spec.tracking.uri))
    cursor = Cursor(folder.cursor_file)
    check_reachable(address)
    try:
        with lock_of(folder):
            sent = catch_up(MlflowStore(address, study), journal, cursor)
            folder.share(cursor.file, folder.address_file)
            return sent, address.shown
    except StudyError:
        raise
    except Exception as error:  # MLflow raises its own, SQLAlchemy's and the HTTP client's
        remedy = "start the server, then type this command again; nothing is lost"
        raise UnreachableError(f"tracking.uri: {address.shown}: {reason_of(error)}", remedy) from error


OPTIONS = {"target": "--accuracy", **{wish: f"--{wish.replace('_', '-')}" for wish in WISHES if wish != "target"}}
"""The name that an error gives each argument of `recommend`."""


def advise(
    path: str | Path,
    *,
    accuracy: float | None = None,
    max_gpus: int | None = None,
    price: float | None = None,
    tolerance: float | None = None,
    by: str | None = None,
    next_count: int | None = None,
) -> Advice:
    """Return what `recommend` chooses by a study's records.

    accuracy: the target, of whatever metric the study has. next_count: of `--next`. Raises RequestError for a request
    that can't be met, or a folder that is not a study's.
    """
    return advise_by_records(
        open_folder(path),
        target=accuracy,
        max_gpus=max_gpus,
        price=price,
        tolerance=tolerance,
        by=by,
        next_count=next_count,
        names=OPTIONS,
    )


def write_new_spec(name: str, study: str | None = None) -> Path:
    """Write `NAME.yaml`, a study by that name: a copy of the catalogue's study, or every key with its default.

    name: of the study; a folder before it, or `.yaml` behind it, says where the file goes. Raises SpecError for a name
    that can't be a folder's or is not in the catalogue, RequestError as `write_spec_file`.
    """
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")  # a dot in a name begins no suffix
    text = new_spec(file.stem, str(file)) if study is None else new_spec_from(study, file.stem, str(file))
    return write_spec_file(file, text, "NAME")


def write_spec_file(file: Path, text: str, field: str) -> Path:
    """Write a new spec. field: what an error calls it. Raises RequestError if it exists or can't be written."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RequestError(f"{field}: {file}: is there already", "choose another name, or move the file") from None
    except OSError as error:
        raise request_error(error, "name a folder that is there and may be written", f"{field}: {file}") from error
    return file


def fetch_data(name: str, source: Path | None) -> tuple[list[Path], Path]:
    """Put a data set's files into the data folder; return the new ones, and the folder. Raises RequestError."""
    from scalestudy.training.data import fetch
    from scalestudy.training.data.downloads import DataError

    root = data_root()
    try:
        return fetch(name, root, source), root
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {name} --from DIR") from error
