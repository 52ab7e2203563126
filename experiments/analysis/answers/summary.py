"""The whole of `summary.json`, from a study's spec, plan and trials."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.adaptive import adaptive_part
from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.efficiency import statistical_efficiency
from scalestudy.experiments.analysis.answers.judged import LOOP_TIMES, known_alone
from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.analysis.answers.remedies import Steps
from scalestudy.experiments.analysis.answers.verdicts import Case, verdicts
from scalestudy.experiments.analysis.measures.cells import (
    count_statuses,
    flag_caveats,
    seed_caveat,
)
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import SUMMARY_VERSION, Row, missing, present
from scalestudy.experiments.analysis.measures.scaling import scaling_answer
from scalestudy.experiments.analysis.measures.targets import study_cost
from scalestudy.experiments.analysis.measures.trial import Line, Trial
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.analysis.measures.usable import (
    TIMED,
    accelerator_caveat,
    cut_caveats,
    spanning_caveats,
    timed_alone_caveat,
    timing_counts,
    unusable_caveat,
    versions_caveat,
    without_timing_runs,
)
from scalestudy.experiments.plan.plan import Plan, name_of
from scalestudy.experiments.spec.study_spec import StudySpec

SHOWN_FAILURES = 20


def summarise(
    spec: StudySpec,
    plan: Plan,
    trials: Sequence[Line],
    wall_seconds: float | None = None,
    *,
    include_flagged: bool = False,
) -> dict[str, Any]:
    """Summarise the trials as strict JSON data: no NaN, no infinity. What is missing is null with a why.

    trials: lines of `trials.jsonl`, any number of them, ended in any way. wall_seconds: of the whole study, None if it
    is unknown. include_flagged: fit laws also to timings whose flags say that they were disturbed.
    """
    return summary_of(Analysis(spec, plan, trials, include_flagged=include_flagged), wall_seconds)


def summary_of(analysis: Analysis, wall_seconds: float | None = None) -> dict[str, Any]:
    """Summarise a study that is analysed, as `summarise` does."""
    spec, plan, trials, metric = analysis.spec, analysis.plan, analysis.trials, analysis.metric
    rows, timings = analysis.rows, analysis.timings
    targets, recommendation = dict.fromkeys(spec.targets.accuracy), analysis.recommendation
    adaptive = adaptive_part(analysis, wall_seconds)
    throughput, tuned = analysis.throughput(recommendation), analysis.tunings(recommendation)
    efficiency = statistical_efficiency(spec, tuned)
    steps = {each.combination.of: known for each in tuned if (known := Steps.of(analysis.posterior, each)) is not None}
    not_run = sum(trial.trial_id not in analysis.usable.ended for trial in plan.trials)
    counts = {"planned": len(plan.trials), **count_statuses(without_timing_runs(trials)), "not_run": not_run}
    scaling = scaling_answer(timings)
    timed = [row for row in timings if present(row["epoch_seconds"])]
    trial = "run" if spec.judged else "training" if plan.is_adaptive else "planned trial"
    found = {
        "version": SUMMARY_VERSION,
        "study": _study(spec, rows, metric),
        "trials": counts,
        "timing_runs": timing_counts(trials),
        "cost": study_cost(trials, wall_seconds, spec.targets.price_per_gpu_hour),
        "cells": rows,
        "timings": timings,
        "scaling": scaling.to_dict() if scaling is not None else missing(_why_no_scaling(rows)),
        "throughput_model": throughput,
        "statistical_efficiency": efficiency,
        "lr_rule": lr_rule(spec, tuned),
        "predictions": analysis.predictions(throughput, efficiency),
        "time_to_target": [row for target in metric.easiest_first(targets) for row in analysis.times(target).rows],
        **({"adaptive": adaptive} if adaptive else {}),
        "verdicts": verdicts(
            Case.of(timed, recommendation, analysis.posterior, steps, in_steps=spec.train.unit == "steps")
        ),
        "recommendation": recommendation,
        "failures": failures(trials),
        "caveats": [
            {"kind": kind, "words": words}
            for kind, words in (
                ("unusable", unusable_caveat(analysis.usable.left_out)),
                ("evaluation", LOOP_TIMES if spec.workload.loop else None),
                *(("cut", words) for words in cut_caveats(trials)),
                ("versions", versions_caveat(trials)),
                ("accelerators", accelerator_caveat(trials)),
                *(("several_nodes", words) for words in spanning_caveats(rows, trials)),
                *caveats(rows, counts, metric, trial=trial),
            )
            if words
        ],
    }
    return known_alone(spec, analysis.progress, found)


def _study(spec: StudySpec, rows: Sequence[Row], metric: StudyMetric) -> dict[str, Any]:
    train = spec.train
    swept = any(len(spec.sweep.values_of(f"train.{key}")) > 1 for key in (train.unit, "eval_every"))
    length = None if swept else train.length
    devices = sorted({row["device"] for row in rows if row["device"]})
    types = sorted({kind for row in rows for kind in row.get("accelerator", "").split("/") if kind})
    return {
        "name": spec.name,
        "description": spec.description,
        "model": None if spec.judged or spec.workload.loop else spec.workload.model,
        "data": None if spec.judged or spec.workload.loop else spec.workload.data,
        **({"loop": spec.workload.loop} if spec.workload.loop else {}),
        "metric": metric.to_dict(),
        "epochs": spec.evaluations,
        **({} if train.period_word == "epoch" else {"every": [train.unit, train.period], "length": length}),
        **({"every": ["reports", 1], "length": None} if spec.workload.loop else {}),
        **({"every": ["evaluations", 1], "length": None, "sources": list(spec.judged.sources)} if spec.judged else {}),
        "device": "/".join(devices) or None,
        **({"accelerator": "/".join(types)} if types else {}),
        "threads": max((row["threads"] for row in rows if row["threads"]), default=None),
        "num_gpus": sorted({row["params"]["num_gpus"] for row in rows}),
        "targets": metric.easiest_first(spec.targets.accuracy),
    }


def _why_no_scaling(rows: Sequence[Row]) -> str:
    if {row["params"]["num_gpus"] for row in rows} == {1}:
        return "the study has one number of workers only"
    return "no cell with several workers has a timed cell of one worker at the same batch beside it"


def failures(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Group the trials that did not finish by how they ended and the message: status, kind, message, rank, trials.

    The most frequent group stands first. There are at most `SHOWN_FAILURES`.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    for trial in trials:
        if trial.status not in TIMED:
            key = (trial.status, trial.failure.kind, trial.failure.message, trial.failure.rank)
            groups.setdefault(key, []).append(name_of(trial.kind, trial.params))
    names = ("status", "kind", "message", "rank")
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))[:SHOWN_FAILURES]
    return [{**dict(zip(names, key, strict=True)), "trials": members} for key, members in ranked]


def caveats(
    rows: Sequence[Row], counts: Mapping[str, int], metric: StudyMetric, trial: str = "planned trial"
) -> list[tuple[str, str | None]]:
    """Return what a reader must know before believing the figures: kinds, and sentences or None.

    The kind of a flag's caveat is the flag. trial: what a trial is called.
    """
    device = None
    if any(row["device"] == "cpu" for row in rows):
        threads = {row["threads"] for row in rows if row["device"] == "cpu" and row["threads"]}
        each = f" with {plural(max(threads), 'thread')}" if threads else ""
        device = f"No GPU took part: workers are CPU processes{each} each."
    bad = [
        f"{counts[status]} {status.replace('_', ' ')}"
        for status in ("diverged", "out_of_memory", "failed", "skipped", "not_run")
        if counts[status]
    ]
    return [
        ("device", device),
        ("seeds", seed_caveat(rows, metric)),
        ("endings", f"Of {plural(counts['planned'], trial)}, {', '.join(bad)}." if bad else None),
        ("timed_alone", timed_alone_caveat(rows)),
        *flag_caveats(rows).items(),
    ]
