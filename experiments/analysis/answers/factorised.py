"""How well a factorised study infers cells, what it saves, and which cells are held out to check it.

Seconds to a target = epochs to it, from a training with one num_gpus, times undisturbed seconds an epoch, from a timing
run. `cells.gather` makes such inferred cells. Here they are compared with the held-out cells, which were run in full,
and the study's cost with the whole grid's.

Cells are held out when the trainings have ended. Chosen before the start, one might be a cell whose training missed
every target or was stopped early, which leaves little to compare.
"""

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.measures.cells import NO_TIMING_RUN, Cell, combination_of, infer
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.targets import target_row
from scalestudy.experiments.analysis.measures.trial import Line, Trial
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.analysis.measures.usable import (
    COUNTED,
    test_values,
    timings_by_step,
    undisturbed_step_seconds,
    without_timing_runs,
)
from scalestudy.experiments.plan.plan import Plan, TrialPlan, at_size, trial_id
from scalestudy.experiments.plan.timing_runs import step_key
from scalestudy.experiments.spec.search_space import Cell as CellKey
from scalestudy.experiments.spec.search_space import Factorised, cell_key
from scalestudy.experiments.spec.study_spec import StudySpec

NO_GRID = "one kind of step has no timing run that ended well, so the grid's cost is not known"


@dataclass(frozen=True, kw_only=True)
class _Study:
    """A factorised study's trials by kind."""

    parts: Factorised
    trials: Sequence[Trial]
    trained: Sequence[Trial]  # its trainings
    timings: Mapping[str, tuple[Trial, ...]]  # by the step that they timed
    epochs: Mapping[str, int]  # planned for a trial, by its id

    @classmethod
    def of(cls, plan: Plan, parts: Factorised, trials: Sequence[Trial]) -> "_Study":
        return cls(
            parts=parts,
            trials=trials,
            trained=[trial for trial in without_timing_runs(trials) if trial.num_gpus == parts.train_on],
            timings=timings_by_step(trials),
            epochs={trial.trial_id: trial.evaluations for trial in plan.trials},
        )

    def epochs_to_end(self, trial: Trial) -> int:
        """Return the epochs of a training that no scheduler stops: as planned, or up to its failure or target."""
        trained = len(trial.epochs)
        if trial.status in ("at_target", "diverged", "out_of_memory"):
            return trained
        return self.epochs.get(trial.trial_id, trained)

    def cut_off(self, trial: Trial) -> float:
        """Return what a scheduler cut off a training, as a share of what it trained."""
        trained = len(trial.epochs)
        return self.epochs_to_end(trial) / trained - 1 if trial.status == "stopped" and trained else 0.0


def factorised_part(
    plan: Plan, trials: Sequence[Trial], posterior: Posterior, targets: Sequence[float]
) -> dict[str, Any] | None:
    """Return the summary's part, or None if the study is not factorised.

    Args:
        plan: the study's.
        trials: the study's that are usable.
        posterior: of the study.
        targets: the spec's.

    Returns:
        cells: how many trainings ran. timings: how many timing runs gave figures.
        held_out: a row for each cell that was run in full: label, target, predicted_seconds and measured_seconds to it,
            error = predicted ÷ measured - 1, why. median_error: of the errors' sizes.
        worker_seconds: of all that ran. grid_worker_seconds: of the whole grid, each trial to its end, by the study's
            own figures; null with a why.
        saved_by_factorising: the share of the grid's worker-seconds that is saved if no trial is stopped early.
        saved_by_asha: the share of the rest that stopping saves, null if nothing was stopped.

        So worker_seconds = grid · (1 - saved_by_factorising) · (1 - saved_by_asha).
    """
    if plan.factorised is None:
        return None
    study = _Study.of(plan, plan.factorised, trials)
    cells = posterior.cells
    measured = [cell for cell in cells if not cell.inferred and cell.num_gpus != study.parts.train_on and cell.counted]
    held_out = []
    for cell in measured:
        lender = {**cell.params, "num_gpus": study.parts.train_on}
        trainings = next((other.trials for other in cells if other.params == lender), ())
        inferred = replace(infer(cell, trainings), timings=study.timings.get(step_key(cell.params), ()))
        of = combination_of(cell.params)
        confirmed = {target: posterior.confirmed(of, target) for target in targets}
        held_out.append(_held_out_row(cell, inferred, confirmed))
    errors = [abs(row["error"]) for row in held_out if row["error"] is not None]
    return {
        "cells": len(study.trained),
        "timings": sum(map(len, study.timings.values())),
        "held_out": held_out,
        "median_error": statistics.median(errors) if errors else None,
        **_costs(study),
    }


def _held_out_row(measured: Cell, inferred: Cell, confirmed: Mapping[float, float]) -> dict[str, Any]:
    """Compare predicted and measured seconds to the hardest target that both reach, else over the whole training.

    confirmed: as `target_row` takes it, for each target.
    """
    row: dict[str, Any] = {"label": measured.label, "target": None, "why": None}
    if not inferred.is_timed:
        return {**row, **_compared(None, None), "why": NO_TIMING_RUN}
    for target in measured.metric.hardest_first(confirmed):
        pair = [target_row(cell, target, confirmed[target])["seconds"] for cell in (inferred, measured)]
        if None not in pair:
            return {**row, "target": target, **_compared(*pair)}
    none = "it was not both inferred and measured to reach a target: this is the whole of its training"
    seconds = inferred.undisturbed_epoch_seconds
    ended = [(len(trial.epochs), trial.train_seconds) for trial in measured.timed if trial.epochs]
    whole: tuple[float | None, float | None] = (None, None)
    if ended and seconds is not None:
        whole = statistics.median(count for count, _ in ended) * seconds, statistics.median(spent for _, spent in ended)
    return {**row, **_compared(*whole), "why": none if confirmed else None}


def _compared(predicted: float | None, measured: float | None) -> dict[str, float | None]:
    error = predicted / measured - 1 if predicted is not None and measured is not None and measured > 0 else None
    return {"predicted_seconds": predicted, "measured_seconds": measured, "error": error}


def _costs(study: _Study) -> dict[str, Any]:
    spent = math.fsum(_worker_seconds(trial) for trial in study.trials)
    extra = math.fsum(_worker_seconds(trial) * study.cut_off(trial) for trial in study.trained)
    grid = _grid_worker_seconds(study)
    stopped = any(trial.status == "stopped" for trial in study.trained)
    return {
        "worker_seconds": spent,
        "grid_worker_seconds": grid,
        "saved_by_factorising": 1 - (spent + extra) / grid if grid else None,
        "saved_by_asha": 1 - spent / (spent + extra) if stopped and spent + extra > 0 else None,
        "why": None if grid else NO_GRID,
    }


def _worker_seconds(trial: Trial) -> float:
    return trial.train_seconds * trial.num_gpus


def _grid_worker_seconds(study: _Study) -> float | None:
    """Return worker-seconds of every training with every num_gpus, or None if a kind of step was not timed."""
    steps: dict[int, float] = {}
    for trial in study.trained:
        batch_size = trial.batch_size
        counts = [count for epoch in trial.epochs if (count := epoch.steps_at(batch_size))]
        steps[batch_size] = max([steps.get(batch_size, 0.0), *counts])
    parts = []
    for trial in study.trained:
        for size in study.parts.sizes:
            params = {**trial.params, "num_gpus": size}
            seconds = undisturbed_step_seconds(study.timings.get(step_key(params), ()))
            if not seconds:
                return None
            step = statistics.median(seconds)
            parts.append(study.epochs_to_end(trial) * steps[int(params["batch_size"])] * step * size)
    return math.fsum(parts) or None


def factorised_caveats(
    spec: StudySpec, plan: Plan, rows: Sequence[Mapping[str, Any]], part: Mapping[str, Any] | None
) -> list[str]:
    """Return what a reader must know about inferred cells.

    rows: from `cells.cell_row`. part: from `factorised_part`.
    """
    if plan.factorised is None or part is None:
        return []
    inferred = sum(row["kind"] == "factorised" for row in rows)
    caveats = []
    if inferred:
        caveats.append(
            f"{inferred} of {len(rows)} cells {'is' if inferred == 1 else 'are'} inferred: their times are products of "
            f"the steps of the same training with {plural(plan.factorised.train_on, 'worker')} and of undisturbed "
            "seconds a step."
        )
    if inferred or part["held_out"]:
        caveats.append(_check_words(part, "them" if inferred else "what would be inferred"))
    if spec.search.allow_inexact:
        caveats.append(
            "search.allow_inexact is on: what is trained may depend on the workers, and then no product holds."
        )
    return caveats


def _check_words(part: Mapping[str, Any], them: str) -> str:
    """Say how far the products were off in the cells run in full, or why that is unknown.

    them: the inferred cells.
    """
    if not part["held_out"]:
        return "No cell was run in full to check these products."
    count = sum(row["error"] is not None for row in part["held_out"])
    if count == 0:
        count = len(part["held_out"])
        cells = "One cell was" if count == 1 else f"{count} cells were"
        reasons = sorted({row["why"] or "it has no times" for row in part["held_out"]})
        return f"{cells} run in full to check {them}, but can't be compared with a product: {'; '.join(reasons)}."
    cells = "the one cell" if count == 1 else f"{count} cells"
    return f"In {cells} run in full to check {them} the product was off by {part['median_error']:.1%} (median)."


def held_out_trials(
    spec: StudySpec, plan: Plan, known: Iterable[TrialPlan], records: Mapping[str, Line]
) -> list[TrialPlan]:
    """Choose the cells that are held out; return all seeds of each, by num_gpus; none where the plan isn't factorised.

    Each cell has another num_gpus than the trainings. First come cells in which every seed reached most targets, or,
    where the spec has none, trained longest. Among equals comes the pair (num_gpus, batch_size) of which fewest cells
    are held out. Then the search's seed decides by chance. Cells with a training that failed are left out.

    Args:
        spec: the study's.
        plan: the study's, its trainings ended.
        known: trials of the study so far; cells that are held out already stay.
        records: lines of `trials.jsonl`, by trial id.
    """
    if plan.factorised is None:
        return []
    trainings: dict[str, list[TrialPlan]] = {}
    for trial in plan.swept:
        trainings.setdefault(cell_key(trial.cell), []).append(trial)
    told = {key: _told(spec, trials, records) for key, trials in trainings.items()}
    others = [trial for trial in known if trial.kind == "training" and not plan.is_swept(trial)]
    held = {cell_key(trial.cell): trial.cell for trial in others}
    left = {
        key: cell
        for cell in plan.cells
        if cell["num_gpus"] != plan.factorised.train_on
        and (key := cell_key(cell)) not in held
        and told[_trained(plan, cell)] is not None
    }
    used = Counter(_step(cell) for cell in held.values())
    while left and len(held) < plan.factorised.held_out:
        key = min(left, key=lambda key: _rank(left[key], told[_trained(plan, left[key])] or 0, used, spec.search.seed))
        held[key] = left.pop(key)
        used[_step(held[key])] += 1
    resources = spec.to_dict()["resources"]
    trials: list[TrialPlan] = []
    for cell in held.values():
        for training in trainings.get(_trained(plan, cell), ()):
            trial = at_size(training, cell["num_gpus"])
            in_a_grid = trial_id(trial.params, trial.workload, trial.train, resources)
            trials.append(replace(trial, trial_id=in_a_grid))
    return sorted(trials, key=lambda trial: trial.num_gpus)


def _trained(plan: Plan, cell: CellKey) -> str:
    """Return the key of the cell whose training stands for this one."""
    assert plan.factorised is not None
    return cell_key({**cell, "num_gpus": plan.factorised.train_on})


def _told(spec: StudySpec, trials: Sequence[TrialPlan], records: Mapping[str, Line]) -> int | None:
    """Return how much a cell's trainings say: the least of its seeds. None: some seed came to no end that counts."""
    ended = [records.get(trial.trial_id) for trial in trials]
    counted = [Trial.of(record) for record in ended if record is not None and record["status"] in COUNTED]
    if len(counted) < len(trials):
        return None
    return min(_reached(spec, trial) if spec.targets.accuracy else len(trial.epochs) for trial in counted)


def _reached(spec: StudySpec, trial: Trial) -> int:
    metric = StudyMetric.of(spec.workload)
    values = test_values(trial, metric)
    targets = spec.targets.accuracy
    return sum(metric.arrival(values, target) is not None for target in targets)


def _step(cell: CellKey) -> tuple[int, int]:
    return cell["num_gpus"], cell["batch_size"]


def _rank(cell: CellKey, told: int, used: Mapping[tuple[int, int], int], seed: int) -> tuple[int, int, str]:
    """Return the sort key of a cell: the least is held out first. Chance decides last, the same for any grid."""
    drawn = hashlib.sha256(f"{seed} {cell_key(cell)}".encode()).hexdigest()
    return -told, used[_step(cell)], drawn
