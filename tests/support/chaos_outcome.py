"""What a study came to, and how it differs from what the same study comes to in peace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.study.folder import MODEL_FILE, StudyFolder
from tests.support.gloo import gloo_pool

COMPUTED = ("epoch", "steps", "samples", "train_loss", "test_loss", "test_accuracy")
"""What an epoch's record holds that must not depend on what befell the study."""

Epochs = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Outcome:
    """trials: status, kind of the error, and the computed values of each epoch, by trial. lines: times each is told."""

    trials: dict[str, tuple[str, str | None, Epochs]]
    lines: Counter[str]


def outcome_of(folder: StudyFolder) -> Outcome:
    """What stands in a folder's trials.jsonl, line by line."""
    text = folder.trials_file.read_text("utf-8") if folder.trials_file.exists() else ""
    records = [json.loads(line) for line in text.splitlines()]
    trials = {
        record["trial_id"]: (record["status"], (record["error"] or {}).get("kind"), _computed(record["epochs"]))
        for record in reversed(records)
    }
    return Outcome(trials, Counter(record["trial_id"] for record in records))


def _computed(epochs: list[dict[str, Any]]) -> Epochs:
    return [tuple(epoch[key] for key in COMPUTED) for epoch in epochs]


def in_peace(spec_file: Path) -> Outcome:
    """The outcome of trials of two workers by the training loop alone: no engine, no Ray, and no sleep in steps."""
    from scalestudy.orchestration.study.folders import read_spec
    from scalestudy.orchestration.study.ready import check_data
    from scalestudy.orchestration.study.trials import train_config

    spec = read_spec(spec_file)
    found = {}
    with gloo_pool(2) as ranks:
        for trial in make_plan(spec).trials:
            config = train_config(trial, check_data(spec))
            quick = config.replace(model_args={**config.model_args, "seconds": 0.0})
            found[trial.trial_id] = ("finished", None, ranks.run(2, _trained, quick)[0])
    return Outcome(found, Counter(found.keys()))


def _trained(worker: Any, config: Any) -> Epochs:
    from scalestudy.training.loop.train import train

    return _computed([record.to_dict() for record in train(config, worker).records])


def differences(expected: Outcome, found: Outcome, raised: int) -> list[str]:
    """What is wrong with a disturbed study's outcome. raised: exceptions that were raised by order."""
    return list(_differences(expected, found, raised))


def _differences(expected: Outcome, found: Outcome, raised: int) -> Iterator[str]:
    for trial_id, times in found.lines.items():
        if times > 1:
            yield f"{trial_id} stands in trials.jsonl {times} times"
    for trial_id in found.trials.keys() - expected.trials.keys():
        yield f"{trial_id} is no trial of the study"
    failed = 0
    for trial_id, (status, _, epochs) in expected.trials.items():
        if trial_id not in found.trials:
            yield f"{trial_id} was lost"
            continue
        now, kind, computed = found.trials[trial_id]
        by_order = (now, kind) == ("failed", "exception")
        failed += by_order
        if now != status and not by_order:
            yield f"{trial_id} is {now} ({kind}), not {status}"
        if computed != (epochs[: len(computed)] if by_order else epochs):
            yield f"{trial_id} has other epochs: {computed} for {epochs}"
    if failed > raised:
        yield f"{failed} trials failed by an exception, and {raised} were raised by order"


def model_differences(expected: StudyFolder, found: StudyFolder) -> list[str]:
    """Says if the model that both have kept has other parameters. Each keeps its best trial's; it may be another."""
    import torch

    kept = [
        {file.parent.name: file for file in folder.path.glob(f"checkpoints/*/{MODEL_FILE}")}
        for folder in (expected, found)
    ]
    problems = []
    for trial_id in kept[0].keys() & kept[1].keys():
        one, other = (torch.load(files[trial_id], weights_only=True) for files in kept)
        if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
            problems.append(f"{trial_id}: the kept model has other parameters")
    return problems


def tracking_differences(store: str, folder: StudyFolder) -> list[str]:
    """How MLflow's runs of a study differ from its trials.jsonl: one run a trial, one point an epoch, equal values."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`scalestudy.study_id` = '{folder.study_id}'", max_results=1_000)
    trials = {trial["trial_id"]: trial for trial in folder.read_trials()}
    counted = Counter(run.data.tags.get("scalestudy.trial_id") for run in runs)
    expected = Counter([None, *trials])
    found = [
        f"{trial_id or 'the study'}: {counted[trial_id]} runs in MLflow, not {expected[trial_id]}"
        for trial_id in counted.keys() | expected.keys()
        if counted[trial_id] != expected[trial_id]
    ]
    for run in runs:
        trial_id = run.data.tags.get("scalestudy.trial_id")
        if trial_id in trials:
            found += _run_differences(client, run, trials[trial_id])
        elif trial_id is None and run.info.status != "FINISHED":
            found.append(f"the study: MLflow says {run.info.status}, not FINISHED")
    return found


def _run_differences(client: Any, run: Any, trial: dict[str, Any]) -> Iterator[str]:
    name = trial["trial_id"]
    for metric in ("test_accuracy", "train_loss"):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, metric)]
        recorded = [(epoch["epoch"], epoch[metric]) for epoch in trial["epochs"]]
        if points != recorded:
            yield f"{name}: MLflow has {metric} {points}, trials.jsonl {recorded}"
    told, status = (run.data.tags.get("scalestudy.status"), run.info.status), trial["status"]
    if told != (status, "FINISHED" if status == "finished" else "FAILED"):  # a study of this kind has no other
        yield f"{name}: MLflow says {told}, trials.jsonl {status}"
