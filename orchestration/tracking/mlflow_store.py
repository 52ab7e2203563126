"""A study in MLflow: one run for the study, and under it one run a trial, written from the journal's entries.

The experiment has the study's name. The study's run carries the answer as metrics, parameters and its note, and the
report as an artifact. A trial's run carries the spec's parameters, and one point an epoch for each metric; a failed
trial's run carries its traceback. All runs have the data set as their input, and name who ran them and from what.
`run_content` makes all that. The experiment has a view that lists the study's cells (`runs_view`). The journal is
enough: any process can later write from it what MLflow missed.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import SUMMARY_VERSION, present
from scalestudy.experiments.analysis.text.sentences import ranked_cells
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.search_space import cell_key
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.mlflow_filters import STUDY_ID, study_filter
from scalestudy.experiments.study.mlflow_limits import LONGEST_NAME, LONGEST_TAG, artifact_folder, fitted_text
from scalestudy.orchestration.base.places import UI_HOST, UI_PORT
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Origin,
    Reopened,
    Running,
    StudyAnswer,
    StudyBegan,
    StudyFinished,
    StudyStopped,
)
from scalestudy.orchestration.tracking.database import open_database
from scalestudy.orchestration.tracking.entries import Recorded, StudyJournal, fingerprint_after
from scalestudy.orchestration.tracking.run_content import (
    ORIGIN_TAGS,
    DataSet,
    answer_params,
    experiment_of,
    final_metrics,
    flat_params,
    mlflow_name,
    note,
    origin_tags,
    short_label,
    trial_note,
    trial_params,
    trial_tags,
)
from scalestudy.orchestration.tracking.runs_view import CELL, cell_text, view_of, view_tag
from scalestudy.orchestration.tracking.sending import NoRunError, Sender
from scalestudy.orchestration.tracking.server import TrackingAddress
from scalestudy.orchestration.tracking.writer import Wrote, ignore
from scalestudy.training.config import TrainConfig
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.own_code import named_modules
from scalestudy.training.records import CELL_PLACE, RECOMMENDED, epoch_metrics, utc_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


logger = logging.getLogger(__name__)

ROLE, TRIAL_ID, STATUS, KIND = (f"scalestudy.{key}" for key in ("role", "trial_id", "status", "kind"))
ANSWER = "scalestudy.recommended"
NOTE = "mlflow.note.content"
RUN_STATUS = {"finished": "FINISHED", "at_target": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED"}
"""MLflow's status for ours; every other status is FAILED."""
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
"""Makes MLflow's pages open an experiment as model training, not as generative AI."""
SECTIONS = ("workload", "train", "sweep", "search", "resources", "targets")
NOTE_LIMIT = 7_900
LONGEST_TRACEBACK = 1_000_000
TRACEBACK = "traceback.txt"
RUNS_A_PAGE = 1_000


@dataclass(frozen=True, kw_only=True)
class TrackedStudy:
    """What MLflow gets of a study beside its journal."""

    spec: StudySpec
    folder: StudyFolder
    trials: Mapping[str, TrialPlan]  # by trial id; a search adds some later
    config_of: Callable[[TrialPlan], TrainConfig]  # a trial's training configuration
    imported: Fingerprint | None = None  # of the code that this process has imported; None: that of the files now


def open_experiment(address: TrackingAddress, name: str) -> tuple[MlflowClient, str]:
    """Open the store, and make or restore the experiment; return a client and the id of the experiment.

    Raises what MLflow raises.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    if address.database:
        open_database(address.database)
    client = MlflowClient(tracking_uri=address.uri)
    found = client.get_experiment_by_name(name)
    if found is None:
        location = f"{address.artifacts}/{quote(artifact_folder(name), safe='')}" if address.artifacts else None
        try:
            return client, str(client.create_experiment(name, artifact_location=location, tags=KIND_TAG))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or not (found := client.get_experiment_by_name(name)):
                raise  # else another study has made it in the meantime
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return client, str(found.experiment_id)


def runs_page(address: TrackingAddress, experiment_id: str) -> str:
    """Return the page of an experiment's runs: on its server, or where `scalestudy ui` shows a database."""
    server = address.uri.rstrip("/") if address.is_server else f"http://{UI_HOST}:{UI_PORT}"
    return f"{server}/#/experiments/{experiment_id}/runs"


class MlflowStore:
    """One study's runs in MLflow."""

    def __init__(
        self, address: TrackingAddress, study: TrackedStudy, say: Callable[[str], None] = logger.warning
    ) -> None:
        """Open the store, and find or make the experiment. Raises what MLflow raises.

        say: takes a line about what MLflow has otherwise than the study, or refuses; each is said once.
        """
        self.client, self.experiment_id = open_experiment(address, experiment_of(study.spec))
        self._say, self._sender = say, Sender(self.client, say)
        self._study = study
        self._study_id = study.folder.study_id
        folder, page = study.folder, runs_page(address, self.experiment_id)
        if folder.runs_page() != page:
            folder.write_json(folder.pages_file, {"experiment": page})
        self._runs: dict[str, str] | None = None
        self._bare: set[str] = set()  # trials whose runs lack parameters and input, because MLflow went away in between
        self._origin: dict[str, str] | None = None  # tags of the study's last beginning; None: not read yet
        self._fingerprint: Fingerprint | None = None  # of the study's run in progress; None: nothing is written yet

    @property
    def has_begun(self) -> bool:
        """Whether MLflow has the study's own run, which its first entry makes."""
        return self._study_id in self.runs

    def write(self, entries: Sequence[Recorded], wrote: Wrote = ignore) -> None:
        """Write entries in order, neighbouring epochs of a trial in one call; writing twice changes nothing.

        wrote: called, again and again, with the number of the last entry that MLflow has.

        Says and skips what MLflow refuses as wrong, and a file that has gone: either would hold up the rest for ever.
        Raises what MLflow raises if the store is out of reach.
        """
        if self._fingerprint is None and entries:  # this process may not have seen the study begin
            first, journal = entries[0].number, StudyJournal(self._study.folder)
            earlier = takewhile(lambda entry: entry.number < first, journal.entries())
            self._fingerprint = fingerprint_after(earlier, Fingerprint())
        try:
            for (kind, trial_id), group in groupby(entries, key=lambda entry: (type(entry.event), entry.trial_id)):
                neighbours = list(group)
                if not trial_id:
                    for entry in neighbours:
                        self._write_study(entry)
                elif trial_id in self._study.trials:
                    with self._sender.apart(f"{kind.__name__} of a trial", f" ({trial_id})"):
                        self._write_trial(self._study.trials[trial_id], neighbours)
                wrote(neighbours[-1].number)
        except Exception:
            self._runs = None  # a run may have been made though the answer was lost
            raise

    def _write_study(self, entry: Recorded) -> None:
        event, at, apart = entry.event, utc_text(entry.at), self._sender.apart
        match event:
            case StudyBegan():
                self._fingerprint = fingerprint_after([entry], self._fingerprint or Fingerprint())
                with apart("the study's start"):
                    self._start_study(event.origin, at)
            case StudyStopped():
                for trial_id in event.open:
                    if trial_id in self._study.trials:
                        with apart("the interruption of a trial", f" ({trial_id})"):
                            self._end(self._trial_run(self._study.trials[trial_id], at), "interrupted", at)
                with apart("the study's end"):
                    self._end_study("interrupted", event.wall_seconds, event.answer, at)
            case StudyFinished():
                with apart("the study's end"):
                    self._end_study("finished", event.wall_seconds, event.answer, at)
                if event.best:  # last, since it takes longest
                    with apart("the best model"):
                        self._write_model(event.best)

    def _start_study(self, origin: Origin | None, at: str) -> None:
        spec, send = self._study.spec, self._sender
        if self._study_id not in self.runs:
            note = (spec.description or spec.name)[:NOTE_LIMIT]
            self._make_run(self._study_id, self._study_id, at, {ROLE: "study", NOTE: note})
        run = self.runs[self._study_id]
        known, plain = self.client.get_run(run).data, spec.to_dict()
        if origin is not None:
            self._origin = origin_tags(origin)
            send.log(run, tags=self._origin)
            for key in [key for key in ORIGIN_TAGS if key in known.tags and key not in self._origin]:
                self.client.delete_tag(run, key)  # of an earlier beginning, such as its job
        with send.apart("the study's data set"):
            self._log_input(run, plain["workload"])
        send.log(run, params=flat_params(plain, SECTIONS), known=known.params)  # an extended study adds some
        self._set_running(run)
        self._log_file(run, self._study.folder.spec_file)
        self._show(at)

    def _end_study(self, status: str, wall_seconds: float, answer: StudyAnswer | None, at: str) -> None:
        """Write the answer as metrics, parameters and the run's note, and the report's files as artifacts."""
        spec, folder, run = self._study.spec, self._study.folder, self._known_run(self._study_id)
        metrics, tags = {"wall_seconds": wall_seconds}, {STATUS: status}
        if answer is not None:
            known = self.client.get_run(run).data
            gone = self._figures_gone(run, set(known.metrics) - set(answer.figures), at)
            metrics |= {**gone, **answer.figures}
            tags[ANSWER] = short_label(answer.cell) or "none"
            if status == "finished":  # the answer of a study that goes on may change
                self._sender.log(run, params=answer_params(answer.cell, known.params).items())
        text, summary = f"**{spec.description or spec.name}**", {}
        with suppress(OSError, ValueError):
            summary = json.loads(folder.summary_file.read_text(encoding="utf-8"))
            text = note(spec, summary)
        self._sender.log(run, _points(at, 0, metrics), tags={**tags, NOTE: text[:NOTE_LIMIT]})
        for file in (folder.report_file, folder.summary_file, folder.spec_file, folder.trials_file, folder.plan_file):
            if file.exists():
                self._log_file(run, file)
        self.client.set_terminated(run, RUN_STATUS[status], milliseconds(at))
        if answer is not None and summary.get("version") == SUMMARY_VERSION:
            with self._sender.apart("the places of cells"):
                self._place(summary, at)

    def _place(self, summary: Mapping[str, Any], at: str) -> None:
        """Give each training's run its cell's place, and the recommended ones a mark; show them in that order."""
        ranked = [summary["cells"][position]["params"] for position in ranked_cells(summary)]
        places = {cell_key(cell): place for place, cell in enumerate(ranked, start=1)}
        recommended = summary["recommendation"]["recommended"]
        best = recommended["params"] if present(recommended) else None
        for trial_id, run in self.runs.items():
            trial = self._study.trials.get(trial_id)
            if trial and trial.kind == "training" and (place := places.get(cell_key(trial.cell))):
                points = _points(at, 0, {CELL_PLACE: place})
                self._sender.log(run, points, tags={CELL: cell_text(trial.cell, best)})
        self._show(at, [cell_text(cell, best) for cell in ranked])

    def _show(self, at: str, cells: Sequence[str] | None = None) -> None:
        """Let MLflow's pages show the study as `view_of` says."""
        with self._sender.apart("the study's view"):
            view = view_of(self._study.spec, self._study_id, self._study.trials.values(), milliseconds(at), cells)
            self.client.set_experiment_tag(self.experiment_id, view_tag(self._study_id), view)

    def _figures_gone(self, run: str, names: Iterable[str], at: str) -> dict[str, float]:
        """Return NaN for figures of an earlier answer that the present one lacks. MLflow forgets no metric."""
        candidates = [name for name in names if name.startswith(RECOMMENDED)]
        return {
            name: math.nan
            for name in candidates
            if any(point.timestamp < milliseconds(at) for point in self.client.get_metric_history(run, name))
        }

    def _write_model(self, trial_id: str) -> None:
        from scalestudy.orchestration.tracking.mlflow_model import log_best_model

        folder, trial, run = self._study.folder, self._study.trials[trial_id], self._known_run(trial_id)
        imported = self._study.imported or Fingerprint.of_code(named_modules(trial.workload, trial.train))
        here = replace(imported, data={}).digests(trial.workload, trial.train)
        lines = {line["trial_id"]: line for line in folder.read_trials()}
        then = lines.get(trial_id, {}).get("fingerprint", {})
        changed = [name for name, digest in here.items() if then.get(name, [digest]) != [digest]]
        path = folder.place_of(folder.model_file(trial_id))
        said = log_best_model(self.client, run, self._study.config_of(trial), path, changed)
        if changed and said:
            self._say(f"the best model in MLflow: {said}")

    def _write_trial(self, trial: TrialPlan, entries: Sequence[Recorded]) -> None:
        """Write neighbouring entries with events of one type: beginnings, epochs, an end, or a reopening."""
        epochs = [entry.event.record for entry in entries if isinstance(entry.event, EpochDone)]
        if epochs:
            points = [point for each in epochs for point in _points(each.at, each.epoch, epoch_metrics(each))]
            self._sender.log(self._trial_run(trial, epochs[0].at), points)
        for entry in entries:
            match entry.event:
                case Running():
                    known = trial.trial_id in self.runs
                    run = self._trial_run(trial, utc_text(entry.at))
                    if known:  # an interruption, or a lost attempt, may have ended it
                        self._set_running(run)
                case Ended() as ended:
                    assert entry.line is not None
                    self._end_trial(trial, ended, entry.line)
                case Reopened() if trial.trial_id in self.runs:
                    self.client.delete_run(self.runs.pop(trial.trial_id))  # MLflow forgets no metric: it gets a new run

    def _end_trial(self, trial: TrialPlan, ended: Ended, line: Mapping[str, Any]) -> None:
        spec, at = self._study.spec, ended.ended_at
        targets, metric = spec.targets.accuracy, StudyMetric.of(spec.workload)
        metrics = final_metrics(line, targets, metric)
        tags = trial_tags(ended)
        if trial.kind == "training":
            tags[NOTE] = trial_note(ended, metrics, targets, metric, trial.period_word)
        points = _points(at, ended.epochs[-1].epoch if ended.epochs else 0, metrics)
        run = self._trial_run(trial, at)
        if ended.error and ended.error.traceback:
            with self._sender.apart(f"the artifact {TRACEBACK}"):
                self.client.log_text(run, fitted_text(ended.error.traceback, LONGEST_TRACEBACK), TRACEBACK)
        self._end(run, ended.status, at, points, tags)

    def _end(
        self, run: str, status: str, at: str, points: Sequence[Metric] = (), tags: Mapping[str, str] | None = None
    ) -> None:
        self._sender.log(run, points, tags={STATUS: status, **(tags or {})})
        self.client.set_terminated(run, RUN_STATUS.get(status, "FAILED"), milliseconds(at))

    @property
    def runs(self) -> dict[str, str]:
        """The study's runs by trial id, and its own by the study's id. Read once: no other process writes them."""
        if self._runs is None:
            clause = study_filter(self._study_id)
            found: dict[str, str] = {}
            self._bare = set()
            token = None
            while token is None or token:
                page = self.client.search_runs([self.experiment_id], clause, max_results=RUNS_A_PAGE, page_token=token)
                found |= {run.data.tags.get(TRIAL_ID, self._study_id): run.info.run_id for run in page}
                self._bare |= {run.data.tags[TRIAL_ID] for run in page if is_bare(run.data.tags)}
                token = page.token or ""
            self._runs = found
        return self._runs

    def _known_run(self, key: str) -> str:
        if key not in self.runs:
            raise NoRunError(f"no MLflow run of {key} in experiment {self.experiment_id}")
        return self.runs[key]

    def _trial_run(self, trial: TrialPlan, at: str) -> str:
        """Return the run of a trial; make it at its first event.

        Set its status once it has its parameters and its input.
        """
        trial_id = trial.trial_id
        if trial_id not in self.runs:
            parent = {"mlflow.parentRunId": self._known_run(self._study_id)}
            cell = {CELL: cell_text(trial.cell)} if trial.kind == "training" else {}
            tags = {ROLE: "trial", TRIAL_ID: trial_id, KIND: trial.kind, **cell, **parent, **self._origin_of_runs()}
            self._make_run(trial_id, mlflow_name(trial.kind, trial.params), at, tags)
            self._bare.add(trial_id)
        run = self.runs[trial_id]
        if trial_id in self._bare:
            with self._sender.apart("a trial's data set", f" ({trial_id})"):
                self._log_input(run, trial.workload)
            self._sender.log(run, params=trial_params(trial))
            self._sender.log(run, tags={STATUS: "running"})
            self._bare.discard(trial_id)
        return run

    def _origin_of_runs(self) -> dict[str, str]:
        """Return the tags of the study's own run that say where it comes from.

        A process that did not see it begin asks MLflow.
        """
        if self._origin is None:
            tags = self.client.get_run(self._known_run(self._study_id)).data.tags
            self._origin = {key: tags[key] for key in ORIGIN_TAGS if key in tags}
        return self._origin

    def _log_input(self, run: str, workload: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        given = [
            DatasetInput(
                Dataset(name=data.name, digest=data.digest, source_type=data.source_type, source=data.source),
                [InputTag("mlflow.data.context", "training")],
            )
            for data in DataSet.all_of(workload, self._fingerprint)
        ]
        if not given:  # of a loop that reads its data itself
            return
        try:
            self.client.log_inputs(run, given)
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST":
                raise
            self.client.log_inputs(run, given)  # another study made the same data set in the meantime

    def _make_run(self, key: str, name: str, at: str, tags: Mapping[str, str]) -> None:
        fitted = {key: fitted_text(value, LONGEST_TAG) for key, value in {STUDY_ID: self._study_id, **tags}.items()}
        name = fitted_text(name, LONGEST_NAME)
        made = self.client.create_run(self.experiment_id, start_time=milliseconds(at), tags=fitted, run_name=name)
        self.runs[key] = made.info.run_id

    def _set_running(self, run: str) -> None:
        self.client.update_run(run, status="RUNNING")
        self.client.set_tag(run, STATUS, "running")

    def _log_file(self, run: str, file: Path) -> None:
        with self._sender.apart(f"the artifact {file.name}"):
            self.client.log_artifact(run, str(file))


def is_bare(tags: Mapping[str, str]) -> bool:
    """Return whether a trial's run was made, but lacks something that it begins with."""
    return TRIAL_ID in tags and STATUS not in tags


def _points(at: str, step: int, metrics: Mapping[str, float]) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(name, value, milliseconds(at), step) for name, value in metrics.items()]


def milliseconds(at: str) -> int:
    """Return an ISO time in UTC as MLflow's milliseconds since 1970."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)
