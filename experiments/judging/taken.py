"""Runs that others made, as an ordinary study: its spec, its plan, and a line of `trials.jsonl` for each run."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from scalestudy.experiments.analysis.measures.progress import STEPS_A_SECOND
from scalestudy.experiments.judging.columns import Columns
from scalestudy.experiments.judging.facts import repeats
from scalestudy.experiments.judging.reading import LeftOut, settings_apart, settings_of
from scalestudy.experiments.judging.runs import Evaluation, Run
from scalestudy.experiments.plan.plan import Plan, TrialPlan
from scalestudy.experiments.spec.reaching import Mode
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.training.config import JUDGED
from scalestudy.training.exceptions import InputError

Progress = Literal["steps", "epochs", "seconds"]
JUDGED_VERSION = 1
LONGEST_NAME = 40
UNKNOWN_SET = 1000
"""Where the size of the training set is not known, it counts as so many of the largest batches. Steps are then off by
one factor in all runs, and seconds a step by its inverse: their product is the time, whatever the factor."""


@dataclass(frozen=True, kw_only=True)
class JudgedStudy:
    """A study of runs that others made."""

    spec: StudySpec
    plan: Plan
    lines: list[dict[str, Any]]  # of trials.jsonl
    runs: list[Run]  # what they come from, in their order
    left_out: list[LeftOut]
    apart: list[str]  # settings that cells differ in
    aside: list[str]  # settings that differ between runs and play no part


def study_of(
    runs: Sequence[Run], left_out: Sequence[LeftOut], columns: Columns, target: float, sources: Sequence[str]
) -> JudgedStudy:
    """Return the study of some runs. sources: their names, for words. Raises InputError where no run is left."""
    progress = _progress_of(runs)
    kept, gone = _distinct([run for run in runs if _has(run, progress)])
    gone += [
        LeftOut(where=run.where, why=f"it does not say its {progress}, and other runs do")
        for run in runs
        if not _has(run, progress)
    ]
    left_out = [*left_out, *gone]
    if not kept:
        why = f": {left_out[0].where}: {left_out[0].why}" if left_out else ""
        raise InputError(
            f"SOURCE: {', '.join(sources)}: no run can be read{why}", "say with --column and --set what is what"
        )
    known_set = columns.given.get("train_samples")
    if progress == "epochs" and known_set is not None:
        progress = "steps"
    apart, aside = settings_apart(kept, columns)
    spec = StudySpec.model_validate(
        {
            "name": name_of(sources),
            "description": f"Runs of {', '.join(sources)}",
            "workload": {"metric": f"{JUDGED}{columns.metric}", "metric_mode": columns.mode},
            "targets": {"accuracy": [target]},
            "judged": {
                "sources": list(sources),
                "columns": {"metric": columns.metric, **columns.names},
                "given": dict(columns.given),
                "progress": progress,
                "evaluations": max(len(run.evaluations) for run in kept),
            },
        }
    )
    writer = _Writer(
        metric=f"test_{columns.metric}",
        mode=columns.mode,
        target=target,
        progress=progress,
        training_set=UNKNOWN_SET * max(run.batch_size for run in kept) if progress == "epochs" else known_set,
        stops=columns.stops,
    )
    params = _params(kept, apart)
    lines = [writer.line(run, found) for run, found in zip(kept, params, strict=True)]
    trials = tuple(TrialPlan(trial_id=line["trial_id"], params=line["params"], workload={}, train={}) for line in lines)
    return JudgedStudy(
        spec=spec,
        plan=Plan(spec.name, trials),
        lines=lines,
        runs=kept,
        left_out=left_out,
        apart=apart,
        aside=aside,
    )


def check_scale(runs: Sequence[Run], columns: Columns, target: float) -> None:
    """Raise InputError where one of a target and a share is a percentage, and the other is not."""
    values = [each.value for run in runs for each in run.evaluations if math.isfinite(each.value)]
    least, most = min(values, default=0.0), max(values, default=0.0)
    is_too_high, is_too_low = most <= 1 < target, target <= 1 < least and most <= 100
    meant = target / 100 if is_too_high else target * 100
    if columns.mode == "max" and (is_too_high or is_too_low) and least <= meant <= most:
        problem = f"--target: {columns.metric}={target:g}: its values are from {least:.3g} to {most:.3g}"
        raise InputError(problem, f"write --target {columns.metric}={meant:g}")


def name_of(sources: Sequence[str]) -> str:
    """Return a name for a study, from its first source: `judged-sweep` of logs/sweep.csv."""
    stem = re.split(r"[/\\:]", sources[0].rstrip("/\\"))[-1].partition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:LONGEST_NAME].strip("-")
    return f"judged-{plain or 'runs'}"


def judged_record(study: JudgedStudy, columns: Columns, unfair: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of judged.json: what was taken as what, what is left out and why, and what is unfair."""
    judged = study.spec.judged
    return {
        "version": JUDGED_VERSION,
        "sources": list(judged.sources) if judged else [],
        "progress": judged.progress if judged else None,
        "runs": len(study.runs),
        "columns": [{"role": role, "name": name, "note": note} for role, name, note in columns.rows()],
        "evaluation": columns.evaluation,
        "apart": study.apart,
        "aside": study.aside,
        "left_out": [asdict(each) for each in study.left_out],
        "unfair": list(unfair),
    }


def _progress_of(runs: Sequence[Run]) -> Progress:
    """Return by what at least half of the runs say how far they were, the finest first."""
    for progress in ("steps", "epochs"):
        if 2 * sum(_has(run, progress) for run in runs) >= max(len(runs), 1):
            return progress
    return "seconds"


def _has(run: Run, progress: Progress) -> bool:
    return all(getattr(each, progress) is not None for each in run.evaluations)


def _distinct(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """Return runs without those that repeat another (`repeats`)."""
    first = {place: places[0] for places in repeats(runs) for place in places[1:]}
    again = [LeftOut(where=runs[place].where, why=f"it is {runs[first[place]].where} again") for place in sorted(first)]
    return [run for place, run in enumerate(runs) if place not in first], again


def _params(runs: Sequence[Run], apart: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parameters of each run's trial. Runs of a cell that name no seed get the free ones, from 0."""
    cells = [
        {"num_gpus": run.num_gpus, "batch_size": run.batch_size, "learning_rate": run.learning_rate} for run in runs
    ]
    settings = [settings_of(run, apart) for run in runs]
    keys = [json.dumps([cell, each], sort_keys=True) for cell, each in zip(cells, settings, strict=True)]
    used: dict[str, set[int]] = {key: set() for key in keys}
    for key, run in zip(keys, runs, strict=True):
        if run.seed is not None:
            used[key].add(run.seed)
    params = []
    for key, run, cell, each in zip(keys, runs, cells, settings, strict=True):
        seed = run.seed
        if seed is None:
            seed = next(number for number in range(len(runs) + 1) if number not in used[key])
            used[key].add(seed)
        params.append({**cell, "seed": seed, **each})
    return params


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """Lines of `trials.jsonl`, of runs."""

    metric: str  # key of an epoch
    mode: Mode
    target: float
    progress: Progress
    training_set: float | None  # its examples; None: they are not needed, or not known
    stops: bool  # whether a run of which its result alone is known ended where it met the target

    def line(self, run: Run, params: dict[str, Any]) -> dict[str, Any]:
        """Return the line of a run."""
        epochs = self._epochs(run)
        last = run.evaluations[-1].value
        took = math.fsum(epoch["train_seconds"] or 0.0 for epoch in epochs)
        stopped = run.started is not None and run.seconds is not None
        return {
            "trial_id": hashlib.sha256(json.dumps([params, run.where], sort_keys=True).encode()).hexdigest()[:12],
            "kind": "training",
            "params": params,
            "status": self._status(run, last),
            "where": run.where,
            "name": run.name,
            "started_at": _utc(run.started) if run.started is not None else None,
            "ended_at": _utc((run.started or 0.0) + (run.seconds or 0.0)) if stopped else None,
            "train_seconds": took,
            "wall_seconds": run.seconds,
            "flags": [],
            "world": {"accelerator": run.accelerator, "nodes": 1},
            "error": {"kind": "others", "message": "its source says that it failed"} if run.ended == "failed" else None,
            **({"result": {"stopped_at": self.target if self.stops else None}} if run.result_alone else {}),
            "epochs": epochs,
        }

    def _status(self, run: Run, last: float) -> str:
        if not math.isfinite(last):
            return "diverged"
        if run.ended in ("failed", "cut"):
            return "failed" if run.ended == "failed" else "stopped"
        return "finished"

    def _epochs(self, run: Run) -> list[dict[str, Any]]:
        """Return an entry for each evaluation: what was done since the one before. Of several at one place the last."""
        entries: list[dict[str, Any]] = []
        seconds = made = seen = 0.0
        for each in run.evaluations:
            now, steps, examples = each.seconds or 0.0, *self._made(run, each)
            value = each.value if math.isfinite(each.value) else None
            if entries and (steps <= made or now == seconds):
                entries[-1][self.metric] = value
                continue
            entries.append(
                {
                    "epoch": len(entries) + 1,
                    "steps": steps - made,
                    "samples": None if examples is None else examples - seen,
                    "train_seconds": now - seconds if now > seconds else None,
                    self.metric: value,
                }
            )
            seconds, made, seen = now, steps, examples or 0.0
        return entries

    def _made(self, run: Run, each: Evaluation) -> tuple[float, float | None]:
        """Return updates and examples so far."""
        if self.progress == "seconds":
            return (each.seconds or 0.0) * STEPS_A_SECOND, None
        known = each.epochs is not None and self.training_set is not None
        examples = (each.epochs or 0.0) * (self.training_set or 0.0) if known else None
        if each.steps is None or self.progress == "epochs":
            return (examples or 0.0) / run.batch_size, examples
        whole = each.steps * run.batch_size
        return each.steps, whole if examples is None else min(examples, whole)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
