"""Stage 7, tracking: an entry of the journal as the operations that MLflow needs for it. Pure but for the files named.

The journal is all that tracking needs: what MLflow missed, whoever was to write it, is made again from its entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.analysis import answer_lines
from experiments.analysis.metric import StudyMetric
from experiments.analysis.trial_measures import best_value, curve, time_to_target
from experiments.journal import Entry
from experiments.plan import TrialPlan
from experiments.spec import StudySpec
from experiments.study_folder import StudyFolder
from orchestration.outcomes import utc_text
from training.records import epoch_metrics, noise_scale_of

Operation = dict[str, Any]

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
