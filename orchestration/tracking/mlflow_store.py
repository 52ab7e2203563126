"""A journal entry as MLflow calls.

Layout: experiment = study name; the parent carries the answer as its note and the report as an
artifact; a child carries the spec's parameters and one point an epoch for each metric.

The journal is all that tracking needs: what MLflow missed, whoever was to write it, is made again from its entries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.records import best_value, curve, time_to_target
from scalestudy.experiments.analysis.text.answer import answer_lines
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.trial_record import utc_text
from scalestudy.orchestration.tracking.server import (
    PASSING,
    REFUSED,
    SQLITE,
    TrackingAddress,
)
from scalestudy.orchestration.tracking.writer import Operation
from scalestudy.training.records import epoch_metrics, noise_scale_of

if TYPE_CHECKING:
    from mlflow.entities import Run


logger = logging.getLogger(__name__)

ROLE, STUDY_ID, TRIAL_ID, STATUS, KIND = (
    f"scalestudy.{key}" for key in ("role", "study_id", "trial_id", "status", "kind")
)
RUN_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED"}
"""MLflow's word for ours; every other status is FAILED."""
NOTE_LIMIT = 7_900
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
"""Has MLflow's pages open an experiment as model training, not as generative AI."""
METRICS_A_BATCH = 1_000  # MLflow's limit
PARAMS_A_BATCH = 100
RUNS_A_PAGE = 1_000


class MlflowStore:
    """Carries out operations on one study's runs."""

    def __init__(self, address: TrackingAddress, experiment: str, study_id: str) -> None:
        """Opens the store and finds or makes the experiment. Raises what MLflow raises."""
        from mlflow import MlflowClient

        if address.uri.startswith(SQLITE):
            Path(address.uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(tracking_uri=address.uri)
        self.study_id = study_id
        self.experiment_id = self._experiment(experiment, address.artifacts)
        self._runs: dict[str, str] | None = None

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carries out operations in order; neighbouring epochs of one trial are written together.

        What MLflow refuses as wrong, and a file that is gone, is logged and passed over: it would hold up the rest
        for ever. Raises what MLflow raises when the store is out of reach.
        """
        for group in _neighbours(operations):
            try:
                self._carry_out(group)
            except Exception as error:
                if not _is_refused(error):
                    self._runs = None  # a run may have been made though the answer was lost
                    raise
                logger.error("MLflow refused %s: %s", group[0]["op"], error)

    def _carry_out(self, group: Sequence[Operation]) -> None:
        if group[0]["op"] == "epochs":
            self._epochs(group)
        else:
            getattr(self, f"_{group[0]['op']}")(group[0])

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = f"{artifacts}/{quote(name, safe='')}" if artifacts else None
            return str(self.client.create_experiment(name, artifact_location=location, tags=KIND_TAG))
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    @property
    def runs(self) -> dict[str, str]:
        """The study's runs by trial id, its own by the study's id. Asked for once: no other process writes them."""
        if self._runs is None:
            self._runs = {run.data.tags.get(TRIAL_ID, self.study_id): run.info.run_id for run in self._search()}
        return self._runs

    def _search(self) -> list[Run]:
        clause, found, token = f"tags.`{STUDY_ID}` = {_quoted(self.study_id)}", list[Any](), None
        while True:
            page = self.client.search_runs([self.experiment_id], clause, max_results=RUNS_A_PAGE, page_token=token)
            found, token = [*found, *page], page.token
            if not token:
                return found

    def _known(self, role: str, key: str) -> str:
        if key not in self.runs:
            raise LookupError(f"no MLflow run of {role} {key} in experiment {self.experiment_id}")
        return self.runs[key]

    def _make(self, role: str, key: str, name: str, at: str, tags: dict[str, str]) -> str:
        """The run of the study, or of a trial, made where there is none."""
        if key not in self.runs:
            tags = {ROLE: role, STUDY_ID: self.study_id, **tags}
            made = self.client.create_run(self.experiment_id, start_time=milliseconds(at), tags=tags, run_name=name)
            self.runs[key] = made.info.run_id
        return self.runs[key]

    def _study_started(self, op: Operation) -> None:
        run = self._make(
            "study", self.study_id, self.study_id, op["at"], {"mlflow.note.content": op["note"][:NOTE_LIMIT]}
        )
        known = self.client.get_run(run).data.params  # MLflow lets no parameter change: an extended study adds some
        self._params(run, {key: value for key, value in op["params"].items() if key not in known})
        self._goes_on(run)
        for file in op["files"]:
            self.client.log_artifact(run, file)

    def _trial_started(self, op: Operation) -> None:
        self._trial_run(op)

    def _trial_run(self, op: Operation) -> str:
        """The run of a trial, made at its first event; one that was ended by an interruption goes on."""
        trial_id = op["trial_id"]
        if trial_id in self.runs:
            if op["op"] == "trial_started":
                self._goes_on(self.runs[trial_id])
            return self.runs[trial_id]
        parent = self._known("study", self.study_id)
        tags = {TRIAL_ID: trial_id, "mlflow.parentRunId": parent, STATUS: "running", KIND: op.get("kind", "training")}
        run = self._make("trial", trial_id, op["name"], op["at"], tags)
        self._params(run, op["params"])
        return run

    def _goes_on(self, run: str) -> None:
        self.client.update_run(run, status="RUNNING")
        self.client.set_tag(run, STATUS, "running")

    def _params(self, run: str, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, str(value)) for key, value in params.items()]
        for start in range(0, len(entries), PARAMS_A_BATCH):
            self.client.log_batch(run, params=entries[start : start + PARAMS_A_BATCH])

    def _epochs(self, group: Sequence[Operation]) -> None:
        points = [point for op in group for point in op["points"]]
        self._metrics(self._trial_run(group[0]), points)

    def _metrics(self, run: str, points: Iterable[dict[str, Any]], tags: Mapping[str, str] | None = None) -> None:
        """Points, and tags, in as few requests as MLflow takes them."""
        from mlflow.entities import Metric, RunTag

        entries = [
            Metric(name, value, milliseconds(point["at"]), point["step"])
            for point in points
            for name, value in point["metrics"].items()
        ]
        marks = [RunTag(key, value) for key, value in (tags or {}).items()]
        for start in range(0, max(len(entries), len(marks)), METRICS_A_BATCH):
            some = slice(start, start + METRICS_A_BATCH)
            self.client.log_batch(run, metrics=entries[some], tags=marks[some])

    def _trial_ended(self, op: Operation) -> None:
        run = self._trial_run(op)
        self._metrics(run, [op["point"]], {STATUS: op["status"], **op["tags"]})
        self._end(run, op["status"], op["at"])

    def _study_ended(self, op: Operation) -> None:
        run = self._known("study", self.study_id)
        self._metrics(run, [op["point"]], {"mlflow.note.content": op["note"][:NOTE_LIMIT], STATUS: op["status"]})
        for file in op["files"]:
            self.client.log_artifact(run, file)
        for folder, place in op["folders"]:
            self.client.log_artifacts(run, folder, place)
        self._end(run, op["status"], op["at"])

    def _model(self, op: Operation) -> None:
        from scalestudy.orchestration.tracking.mlflow_model import log_best_model

        log_best_model(self.client, self._known("trial", op["trial_id"]), op)

    def _end(self, run: str, status: str, at: str) -> None:
        self.client.set_terminated(run, RUN_STATUS.get(status, "FAILED"), milliseconds(at))


def _is_refused(error: Exception) -> bool:
    if getattr(error, "error_code", None) == "BAD_REQUEST" and any(word in str(error) for word in PASSING):
        return False
    return isinstance(error, FileNotFoundError | LookupError) or getattr(error, "error_code", None) in REFUSED


def milliseconds(at: str) -> int:
    """An ISO time in UTC as MLflow's milliseconds since 1970."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _quoted(text: str) -> str:
    """A text in a filter of MLflow, which knows two quotation marks and no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _neighbours(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations in order, neighbouring `epochs` of one trial together."""
    groups: list[list[Operation]] = []
    for op in operations:
        last = groups[-1][0] if groups else {}
        if op["op"] == "epochs" and last.get("op") == "epochs" and last["trial_id"] == op["trial_id"]:
            groups[-1].append(op)
        else:
            groups.append([op])
    return groups


LONGEST_TAG = 1_000
"""Characters; MLflow cuts tags at 8,000, and a table of runs shows far fewer."""
SECTIONS = ("workload", "train", "sweep", "search", "resources", "targets")


@dataclass(frozen=True)
class Operations:
    """What MLflow is to be told of a study.

    trials: by trial id; those that a search makes may come later. config_of: a trial's training configuration.
    """

    spec: StudySpec
    folder: StudyFolder
    trials: Mapping[str, TrialPlan]
    config_of: Callable[[TrialPlan], dict[str, Any]]

    def of(self, entry: Entry) -> list[Operation]:
        """The operations that an entry means, in order."""
        at = utc_text(entry.at)
        if entry.type == "study":
            return self._study(entry.event, at)
        if entry.trial_id not in self.trials:
            return []
        trial = self.trials[entry.trial_id]
        if entry.type == "running":
            return [{"op": "trial_started", **_run_of(trial), "at": at}]
        if entry.type == "epoch":
            epoch = entry.event["epoch"]
            point = {"at": epoch["at"], "step": epoch["epoch"], "metrics": epoch_metrics(epoch)}
            return [{"op": "epochs", **_run_of(trial), "at": epoch["at"], "points": [point]}]
        return [self._ended(trial, entry.event)] if entry.type == "ended" else []

    def _study(self, event: dict[str, Any], at: str) -> list[Operation]:
        state = event["state"]
        if state in ("started", "resumed", "extended"):
            return [self._started(at)]
        if state == "stopped":
            known = [self.trials[trial_id] for trial_id in event["open"] if trial_id in self.trials]
            cut = [self._interrupted(trial, at) for trial in known]
            return [*cut, self._study_ended("interrupted", event["wall_seconds"], at)]
        if state == "finished":
            ended = self._study_ended("finished", event["wall_seconds"], at)
            return [ended, *([self._model(event["best"])] if event["best"] else [])]  # last, for it takes longest
        return []

    def _started(self, at: str) -> Operation:
        spec = self.spec
        params = flat_params(spec.to_dict(), SECTIONS)
        files, name = [str(self.folder.spec_file)], spec.description or spec.name
        return {"op": "study_started", "at": at, "note": name, "params": params, "files": files}

    def _study_ended(self, status: str, wall_seconds: float, at: str) -> Operation:
        folder = self.folder
        files = [folder.report_file, folder.summary_file, folder.spec_file, folder.trials_file, folder.plan_file]
        return {
            "op": "study_ended",
            "at": at,
            "status": status,
            "note": self._note(),
            "point": {"at": at, "step": 0, "metrics": {"wall_seconds": wall_seconds}},
            "files": [str(file) for file in files if file.exists()],
            "folders": [(str(folder.figures), "figures")],
        }

    def _note(self) -> str:
        try:
            return note(self.spec, json.loads(self.folder.summary_file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return f"**{self.spec.description or self.spec.name}**"

    def _interrupted(self, trial: TrialPlan, at: str) -> Operation:
        point = {"at": at, "step": 0, "metrics": {}}
        return {"op": "trial_ended", **_run_of(trial), "status": "interrupted", "at": at, "point": point, "tags": {}}

    def _ended(self, trial: TrialPlan, record: dict[str, Any]) -> Operation:
        at = record["ended_at"]
        last = record["epochs"][-1] if record["epochs"] else None
        metrics = final_metrics(record, self.spec.targets.accuracy, StudyMetric.of(self.spec.workload))
        point = {"at": at, "step": last["epoch"] if last else 0, "metrics": metrics}
        facts = {"status": record["status"], "at": at, "point": point, "tags": trial_tags(record)}
        return {"op": "trial_ended", **_run_of(trial), **facts}

    def _model(self, trial_id: str) -> Operation:
        path = self.folder.place_of(self.folder.model_file(trial_id))
        config = self.config_of(self.trials[trial_id])
        return {"op": "model", "trial_id": trial_id, "config": config, "model_path": path}


def _run_of(trial: TrialPlan) -> dict[str, Any]:
    """What finds a trial's run, or makes it."""
    return {"trial_id": trial.trial_id, "kind": trial.kind, "name": trial.run_name, "params": trial_params(trial)}


def final_metrics(record: dict[str, Any], targets: tuple[float, ...], metric: StudyMetric) -> dict[str, float]:
    """What a trial's run gets at its end: best value, times, and the time to each target that it reached."""
    found = {key: record[key] for key in ("train_seconds", "wall_seconds", "startup_seconds")}
    found[metric.best_key] = best_value(record, metric)
    found["noise_scale"] = noise_scale_of(record["epochs"])
    for target in targets:
        seconds = time_to_target(curve(record, metric), target, metric)
        found[metric.time_key(target)] = seconds if seconds < float("inf") else None
    return {name: float(value) for name, value in found.items() if value is not None}


def trial_tags(record: dict[str, Any]) -> dict[str, str]:
    """The tags of an ended trial's run beyond its status, among them what training picked by itself."""
    tags = {f"scalestudy.{name}": _tag_text(value) for name, value in (record.get("details") or {}).items()}
    tags["scalestudy.attempts"] = str(record["attempts"])
    if record["flags"]:
        tags["scalestudy.flags"] = ", ".join(record["flags"])
    if record["error"]:
        tags["scalestudy.error"] = str(record["error"]["message"])[:LONGEST_TAG]
    return tags


def _tag_text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST_TAG]


def trial_params(trial: TrialPlan) -> dict[str, Any]:
    """A trial's parameters for MLflow: the swept ones as they are, then the spec's, by dotted name."""
    return {**trial.params, **flat_params({"workload": trial.workload, "train": trial.train}, ("workload", "train"))}


def flat_params(tree: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    """Nested sections as dotted names and values."""
    return {name: value for section in sections for name, value in _flat(section, tree[section]).items()}


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {name: each for key, inner in value.items() for name, each in _flat(f"{prefix}.{key}", inner).items()}
    return {prefix: value}


def note(spec: StudySpec, summary: dict[str, Any]) -> str:
    """The parent run's note: the question, and the answer as a list, in Markdown."""
    lines = [f"**{spec.description or spec.name}**", ""]
    lines.extend(f"- {line}" for line in answer_lines(summary))
    lines.extend(["", "The whole answer, with figures, is the artifact `report.html`."])
    return "\n".join(lines)
