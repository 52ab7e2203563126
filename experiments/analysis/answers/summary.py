"""The whole of `summary.json` from a study's spec, plan and trials."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.efficiency import statistical_efficiency, tunings
from scalestudy.experiments.analysis.answers.factorised import caveats as factorised_caveats
from scalestudy.experiments.analysis.answers.factorised import factorised_part
from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.analysis.answers.predictions import MOST_WORKERS, predictions_part
from scalestudy.experiments.analysis.answers.recommendation import choose
from scalestudy.experiments.analysis.answers.scaling_laws import usl_part
from scalestudy.experiments.analysis.answers.throughput import throughput_part, timed_steps
from scalestudy.experiments.analysis.answers.verdicts import scaling_answer, verdicts
from scalestudy.experiments.analysis.measures.cells import Cell, cell_row, count_statuses, gather
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Part, missing, present
from scalestudy.experiments.analysis.measures.records import (
    Trial,
    stopped_caveat,
    timing_caveat,
    timing_counts,
    usable,
    without,
)
from scalestudy.experiments.analysis.measures.records import caveat as records_caveat
from scalestudy.experiments.analysis.measures.scaling import Bases, scaling_part, timing_rows
from scalestudy.experiments.analysis.measures.targets import study_cost, target_row
from scalestudy.experiments.plan.plan import Plan, name_of
from scalestudy.experiments.spec.study_spec import StudySpec

SUMMARY_VERSION = 1
SHOWN_FAILURES = 20


def summarise(
    spec: StudySpec,
    plan: Plan,
    trials: Sequence[Trial],
    wall_seconds: float | None = None,
    *,
    include_flagged: bool = False,
) -> dict[str, Any]:
    """Everything the trials say, as strict JSON data: no NaN, no infinity, what can't be had null with a why.

    trials: lines of `trials.jsonl`, any number of them, ended in any way. wall_seconds: of the whole study, None where
    it is not known. include_flagged: fit laws to timings too that were disturbed, by their flags.
    """
    cells = gather(plan, trials, StudyMetric.of(spec.workload))
    return summarise_cells(spec, plan, trials, cells, wall_seconds, include_flagged=include_flagged)


def summarise_cells(
    spec: StudySpec,
    plan: Plan,
    trials: Sequence[Trial],
    cells: Sequence[Cell],
    wall_seconds: float | None = None,
    *,
    include_flagged: bool = False,
) -> dict[str, Any]:
    """`summarise`, for who has the cells already. cells: of `gather`."""
    lines, trials = trials, usable(trials)
    metric = StudyMetric.of(spec.workload)
    rows = _cell_rows(cells)
    timings = timing_rows(cells, {row["label"]: row["epoch_seconds"] for row in rows})
    price = spec.targets.price_per_gpu_hour
    by_target = {target: [target_row(cell, target, price) for cell in cells] for target in spec.targets.accuracy}
    factorised = factorised_part(plan, trials, cells, spec.targets.accuracy)
    recommendation = choose(cells, rows, by_target, metric)
    steps = timed_steps(cells, include_flagged=include_flagged, recommendation=recommendation)
    throughput = throughput_part(steps)
    found = tunings(spec, cells, recommendation)
    efficiency = statistical_efficiency(spec, found)
    counts = {"planned": len(plan.trials), **count_statuses(without(trials)), "not_run": _not_run(plan, lines)}
    return {
        "version": SUMMARY_VERSION,
        "study": _study(spec, rows, metric),
        "trials": counts,
        "timing_runs": timing_counts(trials),
        "cost": study_cost(trials, wall_seconds, price),
        "cells": rows,
        "timings": timings,
        "scaling": scaling_answer(timings) or missing(_why_no_scaling(rows)),
        "throughput_model": throughput,
        "usl": usl_part(steps),
        "statistical_efficiency": efficiency,
        "lr_rule": lr_rule(spec, found),
        "predictions": predictions_part(throughput, efficiency, price),
        "time_to_target": [row for target in metric.easiest_first(by_target) for row in by_target[target]],
        "factorised": factorised,
        "verdicts": verdicts([row for row in timings if present(row["epoch_seconds"])], throughput, efficiency),
        "recommendation": recommendation,
        "failures": failures(trials),
        "caveats": [
            *(sentence for sentence in (records_caveat(lines, trials), stopped_caveat(trials)) if sentence),
            *caveats(rows, counts, metric),
            *factorised_caveats(spec, plan, rows, factorised),
        ],
    }


def predict(
    spec: StudySpec,
    plan: Plan,
    trials: Sequence[Trial],
    recommendation: Part,
    *,
    price: float | None = None,
    most_workers: int = MOST_WORKERS,
) -> Part:
    """The `predictions` of a study alone, as `predictions.predictions_part` gives them.

    recommendation: of `recommend`; the settings of its choice are those that are predicted, for its target where
    nothing harder of the spec's is known well enough. price: of a GPU-hour. most_workers: up to which to predict.
    """
    cells = gather(plan, trials, StudyMetric.of(spec.workload))
    throughput = throughput_part(timed_steps(cells, recommendation=recommendation))
    efficiency = statistical_efficiency(spec, tunings(spec, cells, recommendation))
    return predictions_part(throughput, efficiency, price, most_workers=most_workers)


def _cell_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    rows = [cell_row(cell) for cell in cells]
    bases = Bases(rows)
    return [{**row, **scaling_part(row, bases)} for row in rows]


def _study(spec: StudySpec, rows: Sequence[Mapping[str, Any]], metric: StudyMetric) -> dict[str, Any]:
    devices = sorted({row["device"] for row in rows if row["device"]})
    return {
        "name": spec.name,
        "description": spec.description,
        "model": spec.workload.model,
        "data": spec.workload.data,
        "metric": metric.to_dict(),
        "epochs": spec.train.epochs,
        "device": "/".join(devices) or None,
        "threads": max((row["threads"] for row in rows if row["threads"]), default=None),
        "num_gpus": sorted({row["params"]["num_gpus"] for row in rows}),
        "targets": metric.easiest_first(spec.targets.accuracy),
    }


def _not_run(plan: Plan, trials: Sequence[Trial]) -> int:
    ended = {trial.get("trial_id") for trial in trials if isinstance(trial, Mapping)}
    return sum(trial.trial_id not in ended for trial in plan.trials)


def _why_no_scaling(rows: Sequence[Mapping[str, Any]]) -> str:
    if {row["params"]["num_gpus"] for row in rows} == {1}:
        return "the study has one num_gpus only"
    return "no cell with several workers has a timed 1-GPU cell of the same batch beside it"


def failures(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Trials that did not finish, grouped by how they ended and the message: status, kind, message, rank, trials.

    The most frequent first, at most `SHOWN_FAILURES` groups.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    for trial in trials:
        if trial["status"] not in ("finished", "stopped"):
            error: Mapping[str, Any] = trial.get("error") or {}
            key = (trial["status"], error.get("kind"), error.get("message"), error.get("rank"))
            groups.setdefault(key, []).append(name_of(trial.get("kind", "training"), trial["params"]))
    names = ("status", "kind", "message", "rank")
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))[:SHOWN_FAILURES]
    return [{**dict(zip(names, key, strict=True)), "trials": members} for key, members in ranked]


def caveats(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int], metric: StudyMetric) -> list[str]:
    """What a reader must know before believing the figures, as sentences."""
    found = [_device_caveat(rows), _seed_caveat(rows, metric), _ending_caveat(counts), timing_caveat(rows)]
    found.extend(_flag_caveats(rows))
    return [caveat for caveat in found if caveat]


def _device_caveat(rows: Sequence[Mapping[str, Any]]) -> str | None:
    threads = {row["threads"] for row in rows if row["device"] == "cpu" and row["threads"]}
    if not any(row["device"] == "cpu" for row in rows):
        return None
    each = f" with {_plural(max(threads), 'thread')}" if threads else ""
    return f"No GPU took part: num_gpus counts CPU processes{each} each."


def _seed_caveat(rows: Sequence[Mapping[str, Any]], metric: StudyMetric) -> str | None:
    seeds = [row[metric.key]["n"] for row in rows if present(row[metric.key])]
    if not seeds or min(seeds) >= ENOUGH_SEEDS:
        return None
    count = _plural(min(seeds), "seed") if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)} seeds"
    return (
        f"Provisional: {count} a cell. Below five, differences in {metric.name} and in time to target are not "
        "established; ranges over seeds are shown."
    )


def _ending_caveat(counts: Mapping[str, int]) -> str | None:
    bad = [
        f"{counts[status]} {status.replace('_', ' ')}"
        for status in ("diverged", "out_of_memory", "failed", "skipped", "not_run")
        if counts[status]
    ]
    return f"Of {_plural(counts['planned'], 'planned trial')}, {', '.join(bad)}." if bad else None


FLAG_WORDS: Mapping[str, str] = {
    "oversubscribed": "more threads than cores",
    "shared_node": "other trials ran on the same node",
    "resumed": "resumed from a checkpoint",
    "warm_up_included": "too few steps to leave the warm-up out",
}


def _flag_caveats(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    flagged = Counter(flag for row in rows for flag in row["flags"])
    return [
        f"Marked {flag} ({FLAG_WORDS.get(flag, 'see the trials')}): {_plural(count, 'cell')} of {len(rows)}."
        for flag, count in sorted(flagged.items())
    ]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
