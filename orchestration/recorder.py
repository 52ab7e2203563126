"""Stage 7, tracking: writes down what trials report – `trials.jsonl`, MLflow – and closes the study with its report."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.analysis import answer_lines
from experiments.analysis.metric import StudyMetric
from experiments.analysis.trial_measures import best_value, curve, time_to_target
from experiments.plan import Plan, TrialPlan
from experiments.spec import StudySpec
from experiments.study_folder import StudyFolder
from orchestration.engine import Engine
from orchestration.outcomes import Outcome, utc_text
from orchestration.tracking import Tracker
from training.records import epoch_metrics, noise_scale_of

Event = dict[str, Any]

LONGEST_TAG = 1_000
"""Characters; MLflow cuts tags at 8,000, and a table of runs shows far fewer."""


class Recorder:
    """Takes the trials' events, each once, in order."""

    def __init__(self, spec: StudySpec, plan: Plan, folder: StudyFolder, tracker: Tracker, engine: Engine) -> None:
        self._spec, self._folder, self._tracker, self._engine = spec, folder, tracker, engine
        self._metric = StudyMetric.of(spec.workload)
        self._trials = {trial.trial_id: trial for trial in plan.trials}
        self._epochs: dict[str, list[dict[str, Any]]] = {}
        self._ended: set[str] = set()
        self._best: tuple[float, str] | None = None

    def study_started(self) -> None:
        """Opens the parent run."""
        spec = self._spec
        self._tracker.tell(
            "study_started",
            at=utc_text(time.time()),
            note=spec.description or spec.name,
            params=flat_params(spec.to_dict(), ("workload", "train", "sweep", "search", "resources", "targets")),
            files=[str(self._folder.spec_file)],
        )

    def take(self, trial_id: str, event: Event) -> list[Event]:
        """Writes down one event; returns the events that it means for those who watch."""
        if trial_id in self._ended:
            return []
        if event["type"] == "lost":
            event = lost_event(event["error"], self._epochs.get(trial_id, []))
        trial = self._trials[trial_id]
        if event["type"] == "running":
            self._running(trial, event)
        elif event["type"] == "epoch":
            self._epoch(trial, event["epoch"])
        elif event["type"] == "ended":
            if (event["error"] or {}).get("kind") == "stopped":
                return []  # the study was stopped under it: it has not ended, and a later run may take it up
            self._end(trial, event)
        return [event]

    def finish(self, wall_seconds: float, *, interrupted: bool) -> dict[str, Any]:
        """Writes summary and report, closes the parent run, logs the best model last; returns the summary."""
        from experiments.report import write_report

        write_report(self._folder, wall_seconds=wall_seconds)
        summary: dict[str, Any] = json.loads(self._folder.summary_file.read_text(encoding="utf-8"))
        self._interrupt_open_trials()
        self._tracker.tell(
            "study_ended",
            at=utc_text(time.time()),
            status="interrupted" if interrupted else "finished",
            note=note(self._spec, summary),
            point={"at": utc_text(time.time()), "step": 0, "metrics": {"wall_seconds": wall_seconds}},
            files=[str(file) for file in self._artifacts() if file.exists()],
            folders=[(str(self._folder.figures), "figures")],
        )
        if self._best and not interrupted:
            self._log_model(self._best[1])  # last, for it takes longest
        return summary

    def _artifacts(self) -> list[Path]:
        folder = self._folder
        return [folder.report_file, folder.summary_file, folder.spec_file, folder.trials_file, folder.plan_file]

    def _running(self, trial: TrialPlan, event: Event) -> None:
        if event["attempt"] == 1:
            self._epochs[trial.trial_id] = []
            self._tracker.tell(
                "trial_started",
                trial_id=trial.trial_id,
                name=trial.run_name,
                at=utc_text(time.time()),
                params=trial_params(trial),
            )

    def _epoch(self, trial: TrialPlan, epoch: dict[str, Any]) -> None:
        self._epochs[trial.trial_id].append(epoch)
        point = {"at": epoch["at"], "step": epoch["epoch"], "metrics": epoch_metrics(epoch)}
        self._tracker.tell("epochs", trial_id=trial.trial_id, points=[point])

    def _end(self, trial: TrialPlan, event: Event) -> None:
        self._ended.add(trial.trial_id)
        record = trial_record(trial, event)
        self._folder.append_trial(record)
        if trial.trial_id not in self._epochs:
            self._running(trial, {"attempt": 1})  # it never got workers, and still has a run
        last = record["epochs"][-1] if record["epochs"] else None
        self._tracker.tell(
            "trial_ended",
            trial_id=trial.trial_id,
            status=record["status"],
            at=record["ended_at"],
            point={
                "at": record["ended_at"],
                "step": last["epoch"] if last else 0,
                "metrics": final_metrics(record, self._spec.targets.accuracy, self._metric),
            },
            tags=trial_tags(record),
        )
        self._keep_best(record)
        self._forget_checkpoints(record["trial_id"])

    def _forget_checkpoints(self, trial_id: str) -> None:
        """An ended trial does not go on; of what its training left, the model may be wanted."""
        folder = self._folder.checkpoints(trial_id)
        for left in folder.glob("*/"):
            shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()  # unless the model is in it

    def _keep_best(self, record: dict[str, Any]) -> None:
        """Remembers the best finished trial; the models of those before it are no longer needed."""
        value = record["epochs"][-1].get(self._metric.key) if record["epochs"] else None
        saved = (self._folder.checkpoints(record["trial_id"]) / "model.pt").exists()
        if record["status"] != "finished" or value is None or not saved:
            return
        beaten = record["trial_id"]
        if self._best is None or self._metric.better(value, self._best[0]):
            beaten = self._best[1] if self._best else ""
            self._best = (value, record["trial_id"])
        if beaten:
            shutil.rmtree(self._folder.checkpoints(beaten), ignore_errors=True)

    def _interrupt_open_trials(self) -> None:
        for trial_id in self._epochs.keys() - self._ended:
            point = {"at": utc_text(time.time()), "step": 0, "metrics": {}}
            self._tracker.tell(
                "trial_ended", trial_id=trial_id, status="interrupted", at=point["at"], point=point, tags={}
            )

    def _log_model(self, trial_id: str) -> None:
        model_file = self._folder.checkpoints(trial_id) / "model.pt"
        if model_file.exists():
            config = self._engine.config_of(trial_id)
            self._tracker.tell("model", trial_id=trial_id, config=config, model_path=str(model_file))


def trial_record(trial: TrialPlan, ended: Event) -> dict[str, Any]:
    """A trial's line of `trials.jsonl` from its plan and its `ended` event, keys in the order of the design."""
    facts = {key: value for key, value in ended.items() if key != "type"}
    return {"trial_id": trial.trial_id, "kind": trial.kind, "params": dict(trial.params), **facts}


def lost_event(error: dict[str, Any], epochs: list[dict[str, Any]]) -> Event:
    """The `ended` event of a trial that can't report any more; its recorded epochs are kept."""
    outcome = Outcome(epochs={epoch["epoch"]: epoch for epoch in epochs})
    facts = outcome.to_dict(status="failed", attempts=1, started_at=None, now=time.time(), error=error)
    return {"type": "ended", **facts}


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
