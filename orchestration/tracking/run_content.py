"""The content of a study's runs in MLflow: names, parameters, metrics, tags, data sets. Pure.

MLflow sorts columns, charts and comparisons by name. So a trial's run has its time to the target as `at_0.85_seconds`
too, which sorts before `best_test_accuracy`, which sorts before the rest. A run's page begins with the description.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import SUMMARY_VERSION, present
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.units import plural, seconds_text
from scalestudy.experiments.analysis.measures.usable import best_value, curve, time_to_target
from scalestudy.experiments.analysis.text.answer import answer_lines
from scalestudy.experiments.plan.plan import TrialPlan, short_name, step_params, value_text
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.mlflow_limits import (
    LONGEST_DATA_NAME,
    LONGEST_DATA_SOURCE,
    experiment_name,
    fitted_params,
    fitted_text,
)
from scalestudy.orchestration.groups.events import Ended, Origin, StudyAnswer
from scalestudy.training.data import SOURCES
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.records import AT_TARGET, RECOMMENDED, noise_scale_of
from scalestudy.training.registry import DATASETS

LONGEST_TAG = 1_000
"""Characters; MLflow cuts tags at 8,000, and a table of runs shows far fewer."""
LETTERS: Mapping[str, str] = {"num_gpus": "w", "batch_size": "b", "learning_rate": "lr", "seed": "s"}
"""Short names of parameters in a run's name: the columns of MLflow's tables cut a longer one."""
DIGEST_DIGITS = 12


def experiment_of(spec: StudySpec) -> str:
    """Return the name of the experiment that has a study's runs."""
    return experiment_name(spec.tracking.experiment or spec.name)


# --- a study's run ------------------------------------------------------------------------------------------------
def answer_of(summary: Mapping[str, Any]) -> StudyAnswer:
    """Return the answer for the study's run, from `summary.json`: the recommended cell, and figures of METRICS."""
    metric = StudyMetric(**summary["study"]["metric"])
    end = "high" if metric.mode == "max" else "low"
    best = metric.best(row[metric.best_key][end] for row in summary["cells"] if present(row[metric.best_key]))
    counts, recommendation = summary["trials"], summary["recommendation"]
    chosen = recommendation["recommended"] if present(recommendation["recommended"]) else {}
    found = {
        "trials_planned": counts["planned"],
        "trials_ended": counts["planned"] - counts["not_run"],
        "trials_failed": counts["failed"],
        metric.best_key: best,
        f"{RECOMMENDED}workers": chosen.get("num_gpus"),
        f"{RECOMMENDED}batch_size": chosen.get("batch_size"),
        f"{RECOMMENDED}learning_rate": chosen.get("learning_rate"),
    }
    if chosen.get("seconds") is not None:
        found |= {
            f"{RECOMMENDED}target": recommendation["target"],
            f"{RECOMMENDED}seconds": chosen["seconds"],
            f"{RECOMMENDED}worker_seconds": chosen["worker_seconds"],
            f"{RECOMMENDED}cost": chosen["cost"],
        }
    figures = {name: float(value) for name, value in found.items() if value is not None}
    return StudyAnswer(cell=dict(chosen.get("params") or {}), figures=figures)


def answer_params(cell: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an answer that the study's run lacks: `recommended.num_gpus` and so on.

    MLflow lets no parameter change. After an extension the study may give another answer: that is
    `recommended.2.num_gpus`. The metrics and the tag are those of the last answer.
    """
    number = 1
    while cell:
        begin = "recommended." if number == 1 else f"recommended.{number}."
        wanted, _ = fitted_params((f"{begin}{key}", value) for key, value in cell.items())
        there = {name: known[name] for name in wanted if name in known}
        if there == wanted:
            return {}
        if not there:
            return wanted
        number += 1
    return {}


def note(spec: StudySpec, summary: Mapping[str, Any]) -> str:
    """Return the study's note: the question, and the answer as a list, in Markdown.

    A summary of another version has no such list; `report` writes it anew.
    """
    lines = [f"**{spec.description or spec.name}**", ""]
    if summary.get("version") == SUMMARY_VERSION:
        lines.extend([*(f"- {line}" for line in answer_lines(summary)), ""])
    return "\n".join([*lines, "The whole answer, with figures, is the artifact `report.html`."])


def origin_tags(origin: Origin) -> dict[str, str]:
    """Return the tags that say who ran the study, from what, at which commit and in which job."""
    tags = {
        "mlflow.user": origin.user,
        "mlflow.source.name": origin.source,
        "mlflow.source.type": "JOB" if origin.job else "LOCAL",
        "mlflow.source.git.commit": origin.commit,
        "scalestudy.job_id": origin.job,
    }
    return {key: value for key, value in tags.items() if value is not None}


ORIGIN_TAGS = tuple(origin_tags(Origin(user="", source="", commit="", job="")))


# --- a trial's run ------------------------------------------------------------------------------------------------
def mlflow_name(kind: str, params: Mapping[str, Any]) -> str:
    """Return `w2 b256 lr.2 s0` of a training, then other swept parameters as `momentum=0.9`; or `timing w2 b256`."""
    if kind == "timing":
        return f"timing {short_label(step_params(params))}"
    return short_label(params)


def short_label(params: Mapping[str, Any]) -> str:
    """Return the parameters of a trial or a cell in few characters."""
    words = []
    for key, value in params.items():
        text = value_text(value)
        if key == "learning_rate" and text.startswith("0."):
            text = text[1:]
        words.append(f"{LETTERS[key]}{text}" if key in LETTERS else f"{short_name(key)}={text}")
    return " ".join(words)


def trial_params(trial: TrialPlan) -> list[tuple[str, Any]]:
    """Return a trial's parameters for MLflow: the swept ones as they are, then the spec's others, by dotted name."""
    others = flat_params({"workload": trial.workload, "train": trial.train}, ("workload", "train"))
    return [*trial.params.items(), *(each for each in others if each[0] not in trial.params)]


def flat_params(tree: Mapping[str, Any], sections: Sequence[str]) -> list[tuple[str, Any]]:
    """Return nested sections as dotted names and values. Keys that hold dots may give a name twice."""

    def flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from flat(f"{prefix}.{key}", inner)
        else:
            yield prefix, value

    return [pair for section in sections for pair in flat(section, tree[section])]


def final_metrics(line: Mapping[str, Any], targets: Sequence[float], metric: StudyMetric) -> dict[str, float]:
    """Return the last metrics of a trial's run: best value, times, and the time to each target that it reached.

    line: of trials.jsonl. The result has the time to a target twice, once under a name that sorts first.
    """
    trial = Trial.of(line)
    found = {key: line[key] for key in ("train_seconds", "wall_seconds", "startup_seconds")}
    found[metric.best_key] = best_value(trial, metric)
    found["noise_scale"] = noise_scale_of(line["epochs"])
    for target in metric.easiest_first(targets):
        seconds = time_to_target(curve(trial, metric), target, metric)
        known = seconds if seconds < float("inf") else None
        found[metric.time_key(target)] = found[AT_TARGET.format(target)] = known
    return {name: float(value) for name, value in found.items() if value is not None}


def trial_note(
    ended: Ended, metrics: Mapping[str, float], targets: Sequence[float], metric: StudyMetric, period: str
) -> str:
    """Return how a trial ended, in a line: the description of its run.

    metrics: from `final_metrics`. period: its name.
    """
    words = []
    for target in metric.hardest_first(targets)[:1]:
        seconds, goal = metrics.get(AT_TARGET.format(target)), f"{target:g} {metric.title}"
        words.append(f"{goal} not reached" if seconds is None else f"**{seconds_text(seconds)}** to {goal}")
    if metric.best_key in metrics:
        words.append(f"best {metric.text(metrics[metric.best_key])} in {plural(len(ended.epochs), period)}")
    if ended.error:
        words.insert(0, f"{ended.status.replace('_', ' ')}: {ended.error.message[:LONGEST_TAG]}")
    return "; ".join(words)


def trial_tags(ended: Ended) -> dict[str, str]:
    """Return the tags of an ended trial's run beside its status, among them what training chose by itself."""
    tags = {}
    for name, value in ended.details.items():
        tags[f"scalestudy.{name}"] = (value if isinstance(value, str) else json.dumps(value))[:LONGEST_TAG]
    tags["scalestudy.attempts"] = str(ended.attempts)
    for name, value in (("accelerator", ended.world.accelerator), ("backend", ended.world.backend)):
        if value:
            tags[f"scalestudy.{name}"] = value
    if ended.world.nodes > 1:
        tags["scalestudy.nodes"] = str(ended.world.nodes)
    if ended.flags:
        tags["scalestudy.flags"] = ", ".join(ended.flags)
    if ended.error:
        tags["scalestudy.error"] = ended.error.message[:LONGEST_TAG]
    return tags


# --- the data -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set as MLflow's input."""

    name: str
    digest: str  # the same for the same name, arguments, files, and code and examples of the user's
    source_type: str
    source: str  # JSON

    @classmethod
    def all_of(cls, workload: Mapping[str, Any], fingerprint: Fingerprint | None = None) -> list[DataSet]:
        """Return the data sets of a spec's workload: its one, or those that a Ray Train loop gets."""
        if "data" in workload:
            return [cls.of(workload, fingerprint)]
        names = dict.fromkeys(workload.get("datasets", {}).values())
        return [cls.of({"data": name, "data_args": {}}, fingerprint) for name in names]

    @classmethod
    def of(cls, workload: Mapping[str, Any], fingerprint: Fingerprint | None = None) -> DataSet:
        """Return the data set that a workload names as `data`.

        Nothing is loaded: for files, the digest holds their published checksums; for a user's callable, what the
        study's fingerprint says of its code and its data.
        """
        name, arguments = workload["data"], workload["data_args"]
        files = SOURCES.get(name)
        facts = {"data": name, "data_args": arguments, "md5": dict(files.md5) if files else {}}
        if fingerprint and (made_of := fingerprint.digests({"data": name, "data_args": arguments})):
            facts["fingerprint"] = made_of
        canonical = json.dumps(facts, sort_keys=True, default=str)
        source: dict[str, Any] = {"tags": {"mlflow.source.name": DATASETS.get(name, name), "data_args": arguments}}
        if files:
            source = {"url": files.mirrors[0]}
        if len(json.dumps(source, default=str)) > LONGEST_DATA_SOURCE:  # cut, it would be no JSON
            source["tags"]["data_args"] = "too long for MLflow: see spec.yaml"
        return cls(
            name=fitted_text(name, LONGEST_DATA_NAME),
            digest=hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_DIGITS],
            source_type="http" if files else "code",
            source=json.dumps(source, default=str),
        )
