"""The studies of a place: `scalestudy list`, and `latest` where a command takes a study's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import SUMMARY_VERSION, Figure, missing, present
from scalestudy.experiments.analysis.measures.units import marked_seconds, metric_of
from scalestudy.experiments.spec.addresses import is_uri, parent_and_name
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import RequestError, first_line
from scalestudy.orchestration.base.places import base_folder, expanded, home
from scalestudy.orchestration.commands.parameters import LATEST
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.storage.lock import lock_of

USUAL = "runs"
"""The folder of studies without `storage`: in the current folder, or in `$SCALESTUDY_HOME` if a job ran them."""
STAMP = re.compile(r"-(\d{8}T\d{6}Z)(?:-\d+)?$")
"""The end of a study's id: when it began, as `opening.new_study_id` writes it."""
AT_ONCE = 16  # folders that are read at a time


@dataclass(frozen=True, kw_only=True)
class ListedStudy:
    """A study as `list` shows it."""

    study: str
    name: str
    folder: str  # the path or URI that commands take
    state: str  # running, finished, stopped, interrupted, judged (others made its runs) or unreadable
    ended: int | None  # trials that have ended; null: unreadable
    planned: int | None  # trials that the study is to have; null: unreadable
    started: float | None  # seconds since 1970; null: unknown
    answer: Figure
    """`{label, target, seconds, value, words}` of the recommended cell, where value is its metric after the last epoch;
    or null with a why."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        return {**asdict(self), "started": None if self.started is None else _utc(self.started).isoformat()}

    def to_row(self) -> list[str]:
        """Return the texts of its row, under HEADER."""
        when = "–" if self.started is None else f"{_utc(self.started):%Y-%m-%d %H:%M}"
        trials = "–" if self.ended is None else f"{self.ended}/{self.planned}"
        words = self.answer["words"] if present(self.answer) else f"none: {self.answer['why']}"
        return [self.folder, self.state, trials, when, words]


HEADER = ["folder", "state", "trials", "started (UTC)", "recommended"]


def list_studies(storage: str | None = None) -> tuple[list[ListedStudy], list[str]]:
    """Return the studies of a place, the latest first, and the places searched.

    storage: a folder or a URI that holds studies' folders; None: `places()`. Raises RequestError for a place that can't
    be right, UnreachableError if the URI can't be read.
    """
    looked = places() if storage is None else [checked_place(storage)]
    found = [folder for place in looked for folder in folders_in(place)]
    with ThreadPoolExecutor(AT_ONCE) as threads:  # in a bucket each lock costs a request
        listed = list(threads.map(_listed, found))
    return sorted(listed, key=lambda each: (each.started or 0.0, each.folder), reverse=True), looked


def places() -> list[str]:
    """Return where studies without `storage` are: `./runs`, and `$SCALESTUDY_HOME/runs`, where jobs put them."""
    here, jobs = base_folder() / USUAL, home() / USUAL
    shown = USUAL if here == Path.cwd() / USUAL else str(here)
    return [shown] if here.resolve() == jobs.resolve() else [shown, str(jobs)]


def named_study(where: str, *, acts: bool = False) -> tuple[str, str]:
    """Return the study's folder that a DIR names; for `latest` also a sentence about it and the other running studies.

    `latest` and PLACE/latest are the study there that began last, unless a study's folder has that name.

    Args:
        where: a study's folder or URI, or `latest`.
        acts: the command changes or uploads the study, so an ambiguous `latest` is refused.

    Raises RequestError if there is no study, or if it is unclear which one to change.
    """
    place, name = parent_and_name(where) if is_uri(where) else (str(Path(where).parent), Path(where).name)
    if name != LATEST or (is_uri(where) and not is_uri(place)) or _is_study(where):
        return where, ""
    looked = [place] if is_uri(where) or place != "." else places()
    found = [folder for place in looked for folder in folders_in(place)]
    if not found:
        remedy = "run one with scalestudy run SPEC, or name a study's folder"
        raise RequestError(f"DIR: {where}: there is no study in {' or '.join(looked)}", remedy)
    first, *others = sorted(found, key=lambda folder: (began(folder), folder.address), reverse=True)
    running = [folder.address for folder in others if is_running(folder)] if is_running(first) else []
    if running and acts:
        problem = f"DIR: {where}: {1 + len(running)} studies run now ({', '.join([first.address, *running])})"
        raise RequestError(problem, "name the folder of the one that you mean")
    besides = f"; running too: {', '.join(running)}" if running else ""
    return first.address, f"{LATEST}: {first.address}{besides}"


def _is_study(where: str) -> bool:
    if not is_uri(where):
        return StudyFolder(Path(where)).plan_file.exists()
    with suppress(RequestError):
        mirror.check_study(mirror.mirrored(where, "read"))
        return True
    return False


def checked_place(storage: str) -> str:
    """Return the place that --storage names. Raises RequestError for a folder that does not exist, or is a study's."""
    if is_uri(storage):
        mirror.open_store(storage, "--storage")
        return storage
    path = expanded(storage)
    if not path.is_dir():
        raise RequestError(f"--storage: {storage}: there is no such folder", "name one that holds studies' folders")
    if StudyFolder(path).plan_file.exists():
        raise RequestError(f"--storage: {storage}: is itself a study's folder", "name the folder that contains it")
    return str(path)


def folders_in(place: str) -> list[StudyFolder]:
    """Return the studies of a folder or URI. Raises UnreachableError if the URI can't be read."""
    if is_uri(place):
        return mirror.glimpses(place)
    return [StudyFolder(file.parent) for file in sorted(Path(place).glob("*/plan.json"))]


def _listed(folder: StudyFolder) -> ListedStudy:
    """Return a study's row. One that can't be read is a row too, so that the others are shown."""
    study, state, ended, planned = _name(folder), "unreadable", None, None
    try:
        plan = folder.read_plan()
        planned, name, study = plan.expected_trials, plan.study, folder.study_id
        ended = sum(trial.get("kind") != "timing" for trial in folder.read_trials())
        state = _state(folder)
        answer = _answer(folder, state)
    except (OSError, ValueError, KeyError, TypeError) as error:
        name, answer = STAMP.sub("", study), missing(f"can't be read: {first_line(error)}")
    return ListedStudy(
        study=study,
        name=name,
        folder=folder.address,
        state=state,
        ended=ended,
        planned=planned,
        started=began(folder) or None,
        answer=answer,
    )


def _name(folder: StudyFolder) -> str:
    return parent_and_name(folder.address)[1]


def began(folder: StudyFolder) -> float:
    """Return when a study began, in seconds since 1970: by its first event, else by its folder's name; 0: unknown."""
    try:
        for entry in Journal(folder.journal_folder).entries():
            return entry.at
    except OSError:
        pass
    stamp = STAMP.search(_name(folder))
    try:
        return datetime.strptime(stamp[1], "%Y%m%dT%H%M%S%z").timestamp() if stamp else 0.0
    except ValueError:  # such as a 13th month
        return 0.0


def _state(folder: StudyFolder) -> str:
    """Return the state as `status` does, from the journal's end alone: what ends a run is its last entry."""
    if folder.judged_file.exists():
        return "judged"
    if is_running(folder):
        return "running"
    journal = Journal(folder.journal_folder)
    *_, last = (None, *journal.entries(after=journal.last_number - 2))  # the last may be torn
    left = last.event.get("state") if last is not None and last.type == "study" else None
    return left if left in ("finished", "stopped") else "interrupted"


def is_running(folder: StudyFolder) -> bool:
    """Whether a process runs the study now; False where its lock can't be read."""
    holder = lock_of(folder).holder()
    return holder is not None and holder.is_alive


def _answer(folder: StudyFolder, state: str) -> Figure:
    """Return the recommended cell of a study's summary, or why there is none."""
    again = f"scalestudy report {quote(folder.address)}"
    if not folder.summary_file.exists():
        return missing("it has not ended" if state == "running" else f"it has no report; {again} writes one")
    summary: Mapping[str, Any] = json.loads(folder.summary_file.read_text("utf-8"))
    if (version := summary.get("version")) != SUMMARY_VERSION:
        return missing(f"its summary.json has version {version}, not {SUMMARY_VERSION}; {again} rewrites it")
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    chosen = recommendation["recommended"]
    if not present(chosen):
        return missing(str(chosen["why"]).partition(": ")[0])  # `recommend` says how to mend it
    value = chosen[metric.key]["value"]
    return {
        "label": chosen["label"],
        "target": recommendation["target"],
        "seconds": chosen["seconds"],
        "value": value,
        "words": f"{chosen['label']}, {_reached(chosen, recommendation['target'], metric)}",
    }


def _reached(chosen: Figure, target: float | None, metric: StudyMetric) -> str:
    if chosen["seconds"] is not None and target is not None:
        return f"{marked_seconds(chosen)} of training to {metric.named(f'{target:g}')}"
    return f"{metric.text(chosen[metric.key]['value'])} {metric.title}"


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
