"""The whole of `summary.json`, from a study's spec, plan and trials."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.efficiency import statistical_efficiency, tunings
from scalestudy.experiments.analysis.answers.factorised import factorised_caveats, factorised_part
from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.predictions import MOST_WORKERS, predictions_part
from scalestudy.experiments.analysis.answers.recommendation import choose
from scalestudy.experiments.analysis.answers.target_times import TargetTimes, times_to
from scalestudy.experiments.analysis.answers.throughput import throughput_part
from scalestudy.experiments.analysis.answers.verdicts import Case, verdicts
from scalestudy.experiments.analysis.measures.cells import (
    Cell,
    cell_row,
    count_statuses,
    examples_of,
    flag_caveats,
    gather,
    seed_caveat,
)
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import SUMMARY_VERSION, Figure, Row, missing, present
from scalestudy.experiments.analysis.measures.scaling import Bases, scaling_answer, scaling_part, timing_rows
from scalestudy.experiments.analysis.measures.targets import study_cost
from scalestudy.experiments.analysis.measures.trial import Line, Trial
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.analysis.measures.usable import (
    TIMED,
    Usable,
    accelerator_caveat,
    cut_caveats,
    spanning_caveats,
    timed_alone_caveat,
    timing_counts,
    unusable_caveat,
    usable,
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
    chosen = usable(trials)
    cells = gather(plan, chosen, StudyMetric.of(spec.workload))
    return summarise_cells(spec, plan, chosen, cells, wall_seconds, include_flagged=include_flagged)


def summarise_cells(
    spec: StudySpec,
    plan: Plan,
    chosen: Usable,
    cells: Sequence[Cell],
    wall_seconds: float | None = None,
    *,
    include_flagged: bool = False,
    posterior: Posterior | None = None,
    by_target: Mapping[float, TargetTimes] | None = None,
) -> dict[str, Any]:
    """Summarise cells that `gather` has made already. posterior, by_target: from `times_to`, if made already
    too.
    """
    trials = chosen.trials
    metric = StudyMetric.of(spec.workload)
    rows = [cell_row(cell) for cell in cells]
    if spec.train.unit != "epochs":
        rows = [{**row, "examples": examples_of([cell])} for row, cell in zip(rows, cells, strict=True)]
    bases = Bases(rows)
    rows = [{**row, **scaling_part(row, bases)} for row in rows]
    timings = timing_rows(cells, {row["label"]: row["epoch_seconds"] for row in rows})
    price = spec.targets.price_per_gpu_hour
    posterior = Posterior(spec, cells, include_flagged=include_flagged) if posterior is None else posterior
    by_target = times_to(posterior, spec.targets.accuracy, price) if by_target is None else by_target
    factorised = factorised_part(plan, trials, cells, spec.targets.accuracy)
    recommendation = choose(spec, cells, rows, timings, by_target)
    throughput = throughput_part(posterior, recommendation)
    tuned = tunings(posterior, recommendation)
    efficiency = statistical_efficiency(spec, tuned)
    not_run = sum(trial.trial_id not in chosen.ended for trial in plan.trials)
    counts = {"planned": len(plan.trials), **count_statuses(without_timing_runs(trials)), "not_run": not_run}
    scaling = scaling_answer(timings)
    timed = [row for row in timings if present(row["epoch_seconds"])]
    return {
        "version": SUMMARY_VERSION,
        "study": _study(spec, rows, metric),
        "trials": counts,
        "timing_runs": timing_counts(trials),
        "cost": study_cost(trials, wall_seconds, price),
        "cells": rows,
        "timings": timings,
        "scaling": scaling.to_dict() if scaling is not None else missing(_why_no_scaling(rows)),
        "throughput_model": throughput,
        "statistical_efficiency": efficiency,
        "lr_rule": lr_rule(spec, tuned),
        "predictions": predictions_part(
            posterior, throughput, efficiency, price, times=by_target.get(recommendation["target"])
        ),
        "time_to_target": [row for target in metric.easiest_first(by_target) for row in by_target[target].rows],
        "factorised": factorised,
        "verdicts": verdicts(
            Case.of(timed, recommendation, posterior, efficiency, in_steps=spec.train.unit == "steps")
        ),
        "recommendation": recommendation,
        "failures": failures(trials),
        "caveats": [
            {"kind": kind, "words": words}
            for kind, words in (
                ("unusable", unusable_caveat(chosen.left_out)),
                *(("cut", words) for words in cut_caveats(trials)),
                ("versions", versions_caveat(trials)),
                ("accelerators", accelerator_caveat(trials)),
                *(("several_nodes", words) for words in spanning_caveats(rows, trials)),
                *caveats(rows, counts, metric),
                *(("factorised", words) for words in factorised_caveats(spec, plan, rows, factorised)),
            )
            if words
        ],
    }


def predict(
    spec: StudySpec,
    posterior: Posterior,
    recommendation: Figure,
    *,
    price: float | None = None,
    most_workers: int = MOST_WORKERS,
) -> Figure:
    """Return the `predictions` of a study alone, as `predictions.predictions_part` gives them.

    posterior: of the study's trials. recommendation: from `recommend`. The settings of its choice are predicted, for
    its target. Without a choice, the target is the hardest that is known well enough. price: of a GPU-hour.
    most_workers: up to which to predict.
    """
    throughput = throughput_part(posterior, recommendation)
    efficiency = statistical_efficiency(spec, tunings(posterior, recommendation))
    target = efficiency.get("target")
    times = times_to(posterior, [target], price)[target] if target is not None else None
    return predictions_part(posterior, throughput, efficiency, price, times=times, most_workers=most_workers)


def _study(spec: StudySpec, rows: Sequence[Row], metric: StudyMetric) -> dict[str, Any]:
    train = spec.train
    swept = any(len(spec.sweep.values_of(f"train.{key}")) > 1 for key in (train.unit, "eval_every"))
    length = None if swept else train.length
    devices = sorted({row["device"] for row in rows if row["device"]})
    types = sorted({kind for row in rows for kind in row.get("accelerator", "").split("/") if kind})
    return {
        "name": spec.name,
        "description": spec.description,
        "model": spec.workload.model,
        "data": spec.workload.data,
        "metric": metric.to_dict(),
        "epochs": spec.evaluations,
        **({} if train.period_word == "epoch" else {"every": [train.unit, train.period], "length": length}),
        "device": "/".join(devices) or None,
        **({"accelerator": "/".join(types)} if types else {}),
        "threads": max((row["threads"] for row in rows if row["threads"]), default=None),
        "num_gpus": sorted({row["params"]["num_gpus"] for row in rows}),
        "targets": metric.easiest_first(spec.targets.accuracy),
    }


def _why_no_scaling(rows: Sequence[Row]) -> str:
    if {row["params"]["num_gpus"] for row in rows} == {1}:
        return "the study has one num_gpus only"
    return "no cell with several workers has a timed 1-GPU cell of the same batch beside it"


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


def caveats(rows: Sequence[Row], counts: Mapping[str, int], metric: StudyMetric) -> list[tuple[str, str | None]]:
    """Return what a reader must know before believing the figures: kinds, and sentences or None.

    The kind of a flag's caveat is the flag.
    """
    device = None
    if any(row["device"] == "cpu" for row in rows):
        threads = {row["threads"] for row in rows if row["device"] == "cpu" and row["threads"]}
        each = f" with {plural(max(threads), 'thread')}" if threads else ""
        device = f"No GPU took part: num_gpus counts CPU processes{each} each."
    bad = [
        f"{counts[status]} {status.replace('_', ' ')}"
        for status in ("diverged", "out_of_memory", "failed", "skipped", "not_run")
        if counts[status]
    ]
    return [
        ("device", device),
        ("seeds", seed_caveat(rows, metric)),
        ("endings", f"Of {plural(counts['planned'], 'planned trial')}, {', '.join(bad)}." if bad else None),
        ("timed_alone", timed_alone_caveat(rows)),
        *flag_caveats(rows).items(),
    ]
