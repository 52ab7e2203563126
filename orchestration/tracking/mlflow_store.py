"""A study in MLflow: one run for the study, and under it one run a trial, written from the journal's entries.

The experiment has the study's name. The study's run carries the answer as its note, and the report as an artifact. A
trial's run carries the spec's parameters, and one point an epoch for each metric. The journal is all that is needed:
what MLflow has missed is written from it later, by whichever process that is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import SUMMARY_VERSION
from scalestudy.experiments.analysis.measures.records import best_value, curve, time_to_target
from scalestudy.experiments.analysis.text.answer import answer_lines
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    JournalEvent,
    Running,
    StudyBegan,
    StudyEvent,
    StudyFinished,
    StudyStopped,
    UnknownEventError,
    from_plain,
    study_event_from_plain,
)
from scalestudy.orchestration.tracking.server import PASSING, REFUSED, SQLITE, TrackingAddress
from scalestudy.training.config import TrainConfig
from scalestudy.training.records import epoch_metrics, noise_scale_of, utc_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


logger = logging.getLogger(__name__)

ROLE, STUDY_ID, TRIAL_ID, STATUS, KIND = (
    f"scalestudy.{key}" for key in ("role", "study_id", "trial_id", "status", "kind")
)
NOTE = "mlflow.note.content"
RUN_STATUS = {"finished": "FINISHED", "at_target": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED"}
"""MLflow's word for ours; every other status is FAILED."""
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
"""Makes MLflow's pages open an experiment as model training, not as generative AI."""
SECTIONS = ("workload", "train", "sweep", "search", "resources", "targets")
UI = "http://127.0.0.1:5000"
"""Where `scalestudy ui` listens unless told otherwise."""
NOTE_LIMIT = 7_900
LONGEST_TAG = 1_000
"""Characters; MLflow cuts tags at 8,000, and a table of runs shows far fewer."""
METRICS_A_BATCH = 1_000  # MLflow's limit
PARAMS_A_BATCH = 100
RUNS_A_PAGE = 1_000


@dataclass(frozen=True, kw_only=True)
class TrackedStudy:
    """What MLflow is told of a study beside its journal.

    trials: by trial id; a search adds some later. config_of: a trial's training configuration.
    """

    spec: StudySpec
    folder: StudyFolder
    trials: Mapping[str, TrialPlan]
    config_of: Callable[[TrialPlan], TrainConfig]


def open_experiment(address: TrackingAddress, name: str) -> tuple[MlflowClient, str]:
    """A client of the store, and the id of the experiment; makes or restores it. Raises what MLflow raises."""
    from mlflow import MlflowClient

    if address.uri.startswith(SQLITE):
        Path(address.uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=address.uri)
    found = client.get_experiment_by_name(name)
    if found is None:
        location = f"{address.artifacts}/{quote(name, safe='')}" if address.artifacts else None
        return client, str(client.create_experiment(name, artifact_location=location, tags=KIND_TAG))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return client, str(found.experiment_id)


def runs_page(address: TrackingAddress, experiment_id: str) -> str:
    """The page of an experiment's runs: on its server, or where `scalestudy ui` shows a database."""
    server = address.uri.rstrip("/") if address.uri.startswith(("http://", "https://")) else UI
    return f"{server}/#/experiments/{experiment_id}/runs"


class NoRunError(Exception):
    """MLflow has not got the run that an entry belongs to, and no later try will find it."""


class MlflowStore:
    """One study's runs in MLflow."""

    def __init__(self, address: TrackingAddress, study: TrackedStudy) -> None:
        """Opens the store, and finds or makes the experiment. Raises what MLflow raises."""
        self.client, self.experiment_id = open_experiment(address, study.spec.tracking.experiment or study.spec.name)
        self._study = study
        self._study_id = study.folder.study_id
        folder, page = study.folder, runs_page(address, self.experiment_id)
        if folder.runs_page() != page:
            folder.write_json(folder.pages_file, {"experiment": page})
        self._runs: dict[str, str] | None = None

    def write(self, entries: Sequence[Entry]) -> None:
        """Writes entries in order, neighbouring epochs of a trial in one call; writing twice changes nothing.

        Logs and skips what MLflow refuses as wrong, and a file that has gone: either would hold up the rest for ever.
        Raises what MLflow raises if the store is out of reach.
        """
        for (kind, trial_id), neighbours in groupby(entries, key=lambda entry: (entry.type, entry.trial_id)):
            if kind == "study":
                for entry in neighbours:
                    with _unknown_skipped():
                        self._write_study(study_event_from_plain(entry.event), utc_text(entry.at))
            elif trial_id in self._study.trials:
                with _unknown_skipped(), self._refusals_logged(f"{kind} of {trial_id}"):
                    events = [(from_plain(entry.event), utc_text(entry.at)) for entry in neighbours]
                    self._write_trial(self._study.trials[trial_id], events)

    @contextmanager
    def _refusals_logged(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not _is_refused(error):
                self._runs = None  # a run may have been made though the answer was lost
                raise
            logger.error("MLflow refused %s: %s", what, error)

    def _write_study(self, event: StudyEvent, at: str) -> None:
        match event:
            case StudyBegan():
                with self._refusals_logged("the study's start"):
                    self._start_study(at)
            case StudyStopped():
                for trial_id in event.open:
                    if trial_id in self._study.trials:
                        with self._refusals_logged(f"the interruption of {trial_id}"):
                            self._end(self._trial_run(self._study.trials[trial_id], at), "interrupted", at)
                with self._refusals_logged("the study's end"):
                    self._end_study("interrupted", event.wall_seconds, at)
            case StudyFinished():
                with self._refusals_logged("the study's end"):
                    self._end_study("finished", event.wall_seconds, at)
                if event.best:  # last, since it takes longest
                    with self._refusals_logged("the best model"):
                        self._write_model(event.best)

    def _start_study(self, at: str) -> None:
        spec = self._study.spec
        if self._study_id not in self.runs:
            note = (spec.description or spec.name)[:NOTE_LIMIT]
            self._make_run(self._study_id, self._study_id, at, {ROLE: "study", NOTE: note})
        run = self.runs[self._study_id]
        known = self.client.get_run(run).data.params  # MLflow lets no parameter change: an extended study adds some
        params = flat_params(spec.to_dict(), SECTIONS)
        self._log_params(run, {key: value for key, value in params.items() if key not in known})
        self._set_running(run)
        self.client.log_artifact(run, str(self._study.folder.spec_file))

    def _end_study(self, status: str, wall_seconds: float, at: str) -> None:
        """Writes the answer as the run's note, and the report's files as artifacts."""
        spec, folder, run = self._study.spec, self._study.folder, self._known_run(self._study_id)
        try:
            text = note(spec, json.loads(folder.summary_file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            text = f"**{spec.description or spec.name}**"
        self._log(run, _points(at, 0, {"wall_seconds": wall_seconds}), {NOTE: text[:NOTE_LIMIT], STATUS: status})
        for file in (folder.report_file, folder.summary_file, folder.spec_file, folder.trials_file, folder.plan_file):
            if file.exists():
                self.client.log_artifact(run, str(file))
        self.client.log_artifacts(run, str(folder.figures), "figures")
        self.client.set_terminated(run, RUN_STATUS[status], milliseconds(at))

    def _write_model(self, trial_id: str) -> None:
        from scalestudy.orchestration.tracking.mlflow_model import log_best_model

        folder = self._study.folder
        config = self._study.config_of(self._study.trials[trial_id])
        log_best_model(self.client, self._known_run(trial_id), config, folder.place_of(folder.model_file(trial_id)))

    def _write_trial(self, trial: TrialPlan, events: Sequence[tuple[JournalEvent, str]]) -> None:
        """Writes events of one kind, (event, moment) each: a begin, epochs or an end. MLflow needs no others."""
        epochs = [event.record for event, _ in events if isinstance(event, EpochDone)]
        if epochs:
            points = [point for each in epochs for point in _points(each.at, each.epoch, epoch_metrics(each.to_dict()))]
            self._log(self._trial_run(trial, epochs[0].at), points)
        for event, at in events:
            if isinstance(event, Running):
                known = trial.trial_id in self.runs
                run = self._trial_run(trial, at)
                if known:  # an interruption, or a lost attempt, may have ended it
                    self._set_running(run)
            elif isinstance(event, Ended):
                self._end_trial(trial, event)

    def _end_trial(self, trial: TrialPlan, ended: Ended) -> None:
        spec, at = self._study.spec, ended.ended_at
        metrics = final_metrics(ended.to_line(trial), spec.targets.accuracy, StudyMetric.of(spec.workload))
        points = _points(at, ended.epochs[-1].epoch if ended.epochs else 0, metrics)
        self._end(self._trial_run(trial, at), ended.status, at, points, trial_tags(ended))

    def _end(
        self, run: str, status: str, at: str, points: Sequence[Metric] = (), tags: Mapping[str, str] | None = None
    ) -> None:
        self._log(run, points, {STATUS: status, **(tags or {})})
        self.client.set_terminated(run, RUN_STATUS.get(status, "FAILED"), milliseconds(at))

    @property
    def runs(self) -> dict[str, str]:
        """The study's runs by trial id, and its own by the study's id. Asked for once: no other process writes them."""
        if self._runs is None:
            clause = f"tags.`{STUDY_ID}` = {_quoted(self._study_id)}"
            found: dict[str, str] = {}
            token = None
            while token is None or token:
                page = self.client.search_runs([self.experiment_id], clause, max_results=RUNS_A_PAGE, page_token=token)
                found |= {run.data.tags.get(TRIAL_ID, self._study_id): run.info.run_id for run in page}
                token = page.token or ""
            self._runs = found
        return self._runs

    def _known_run(self, key: str) -> str:
        if key not in self.runs:
            raise NoRunError(f"no MLflow run of {key} in experiment {self.experiment_id}")
        return self.runs[key]

    def _trial_run(self, trial: TrialPlan, at: str) -> str:
        """The run of a trial, made at its first event."""
        trial_id = trial.trial_id
        if trial_id not in self.runs:
            parent = {"mlflow.parentRunId": self._known_run(self._study_id)}
            self._make_run(
                trial_id,
                trial.run_name,
                at,
                {ROLE: "trial", TRIAL_ID: trial_id, **parent, STATUS: "running", KIND: trial.kind},
            )
            self._log_params(self.runs[trial_id], trial_params(trial))
        return self.runs[trial_id]

    def _make_run(self, key: str, name: str, at: str, tags: Mapping[str, str]) -> None:
        tags = {STUDY_ID: self._study_id, **tags}
        made = self.client.create_run(self.experiment_id, start_time=milliseconds(at), tags=tags, run_name=name)
        self.runs[key] = made.info.run_id

    def _set_running(self, run: str) -> None:
        self.client.update_run(run, status="RUNNING")
        self.client.set_tag(run, STATUS, "running")

    def _log_params(self, run: str, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, str(value)) for key, value in params.items()]
        for start in range(0, len(entries), PARAMS_A_BATCH):
            self.client.log_batch(run, params=entries[start : start + PARAMS_A_BATCH])

    def _log(self, run: str, points: Sequence[Metric], tags: Mapping[str, str] | None = None) -> None:
        """Writes points and tags in as few requests as MLflow takes them."""
        from mlflow.entities import RunTag

        marks = [RunTag(key, value) for key, value in (tags or {}).items()]
        for start in range(0, max(len(points), len(marks)), METRICS_A_BATCH):
            some = slice(start, start + METRICS_A_BATCH)
            self.client.log_batch(run, metrics=points[some], tags=marks[some])


@contextmanager
def _unknown_skipped() -> Iterator[None]:
    """Leaves out an event of a newer version; those after it are written."""
    try:
        yield
    except UnknownEventError as error:
        logger.warning("skipping it for MLflow: %s", error)


def _points(at: str, step: int, metrics: Mapping[str, float]) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(name, value, milliseconds(at), step) for name, value in metrics.items()]


def _is_refused(error: Exception) -> bool:
    """Whether MLflow will refuse the same at every later try."""
    if getattr(error, "error_code", None) == "BAD_REQUEST" and any(word in str(error) for word in PASSING):
        return False
    return isinstance(error, FileNotFoundError | NoRunError) or getattr(error, "error_code", None) in REFUSED


def milliseconds(at: str) -> int:
    """An ISO time in UTC as MLflow's milliseconds since 1970."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _quoted(text: str) -> str:
    """A text in a filter of MLflow, which knows two quotation marks and no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def final_metrics(line: Mapping[str, Any], targets: Sequence[float], metric: StudyMetric) -> dict[str, float]:
    """What a trial's run gets at its end: best value, times, and the time to each target that it reached.

    line: of trials.jsonl.
    """
    found = {key: line[key] for key in ("train_seconds", "wall_seconds", "startup_seconds")}
    found[metric.best_key] = best_value(line, metric)
    found["noise_scale"] = noise_scale_of(line["epochs"])
    for target in targets:
        seconds = time_to_target(curve(line, metric), target, metric)
        found[metric.time_key(target)] = seconds if seconds < float("inf") else None
    return {name: float(value) for name, value in found.items() if value is not None}


def trial_tags(ended: Ended) -> dict[str, str]:
    """The tags of an ended trial's run beside its status, among them what training has chosen by itself."""
    tags = {}
    for name, value in ended.details.items():
        tags[f"scalestudy.{name}"] = (value if isinstance(value, str) else json.dumps(value))[:LONGEST_TAG]
    tags["scalestudy.attempts"] = str(ended.attempts)
    if ended.flags:
        tags["scalestudy.flags"] = ", ".join(ended.flags)
    if ended.error:
        tags["scalestudy.error"] = ended.error.message[:LONGEST_TAG]
    return tags


def trial_params(trial: TrialPlan) -> dict[str, Any]:
    """A trial's parameters for MLflow: the swept ones as they are, then the spec's, by dotted name."""
    return {**trial.params, **flat_params({"workload": trial.workload, "train": trial.train}, ("workload", "train"))}


def flat_params(tree: Mapping[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    """Nested sections as dotted names and values."""

    def flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from flat(f"{prefix}.{key}", inner)
        else:
            yield prefix, value

    return {name: value for section in sections for name, value in flat(section, tree[section])}


def note(spec: StudySpec, summary: dict[str, Any]) -> str:
    """The study's note: the question, and the answer as a list, in Markdown.

    A summary of another version has no such list; `report` writes it anew.
    """
    lines = [f"**{spec.description or spec.name}**", ""]
    if summary.get("version") == SUMMARY_VERSION:
        lines.extend([*(f"- {line}" for line in answer_lines(summary)), ""])
    return "\n".join([*lines, "The whole answer, with figures, is the artifact `report.html`."])
