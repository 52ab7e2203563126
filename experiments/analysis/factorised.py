"""Stage 8, analysis: what a factorised study infers, how far that is off, and what it saved (docs/formulas.md §7).

Seconds to a target = epochs to it, from a training with one num_gpus, times undisturbed seconds an epoch, from a timing
run; `cells.gather` makes such cells. Here they are held against the cells that were run in full as well, and the
study's cost against that of the whole grid.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.analysis.cells import NO_TIMING_RUN, Cell, infer
from experiments.analysis.parts import positive
from experiments.analysis.targets import target_row
from experiments.analysis.timing_runs import by_step, step_seconds, without
from experiments.analysis.trial_measures import Trial, epochs_of, train_seconds
from experiments.plan import Plan
from experiments.search_space import Factorised
from experiments.spec import StudySpec
from experiments.timing_runs import step_key

NO_GRID = "a kind of step has no timing run that ended well, so that the grid's cost is not known"


@dataclass(frozen=True, kw_only=True)
class _Study:
    """A factorised study's trials, sorted. trained: its trainings. timings: by what they have timed. epochs: that a
    trial was to have, by its id."""

    parts: Factorised
    trials: Sequence[Trial]
    trained: Sequence[Trial]
    timings: Mapping[str, Trial]
    epochs: Mapping[str, int]

    @classmethod
    def of(cls, plan: Plan, parts: Factorised, trials: Sequence[Trial]) -> "_Study":
        return cls(
            parts=parts,
            trials=trials,
            trained=[trial for trial in without(trials) if trial["params"]["num_gpus"] == parts.train_on],
            timings=by_step(trials),
            epochs={trial.trial_id: int(trial.train["epochs"]) for trial in plan.trials},
        )

    def epochs_to_end(self, trial: Trial) -> int:
        """Epochs that a training has where no scheduler stops it: those it was to have, or those up to its failure."""
        trained = len(epochs_of(trial))
        return (
            trained if trial["status"] in ("diverged", "out_of_memory") else self.epochs.get(trial["trial_id"], trained)
        )

    def cut_off(self, trial: Trial) -> float:
        """What a scheduler has cut off a training, as a share of what it has trained."""
        trained = len(epochs_of(trial))
        return self.epochs_to_end(trial) / trained - 1 if trial["status"] == "stopped" and trained else 0.0


def factorised_part(
    plan: Plan, trials: Sequence[Trial], cells: Sequence[Cell], targets: Sequence[float]
) -> dict[str, Any] | None:
    """The summary's part; None where the study is not factorised.

    cells: trainings that ran; timings: timing runs that gave figures. held_out: a row a cell that was run in full:
    label, target, predicted_seconds and measured_seconds to it, error = predicted ÷ measured - 1, why; median_error: of
    the errors' sizes. gpu_seconds: of all that ran, held-out cells and timing runs included; grid_gpu_seconds: of the
    grid of what was trained, each trial to its end, by the study's own figures, null with a why. saved_by_factorising:
    the share of the grid's GPU-seconds that is saved where no trial is stopped early; saved_by_asha: the share of the
    rest that stopping saves, null where nothing was stopped. So gpu_seconds = grid · (1 - one) · (1 - other).

    Args:
        plan: the study's.
        trials: lines of `trials.jsonl`.
        cells: as `cells.gather` makes them.
        targets: the spec's.
    """
    if plan.factorised is None:
        return None
    study = _Study.of(plan, plan.factorised, trials)
    measured = [cell for cell in cells if not cell.inferred and cell.num_gpus != study.parts.train_on and cell.counted]
    held_out = [_held_out_row(cell, _inferred(cell, cells, study), targets) for cell in measured]
    errors = [abs(row["error"]) for row in held_out if row["error"] is not None]
    return {
        "cells": len(study.trained),
        "timings": len(study.timings),
        "held_out": held_out,
        "median_error": statistics.median(errors) if errors else None,
        **_costs(study),
    }


def _inferred(cell: Cell, cells: Sequence[Cell], study: _Study) -> Cell:
    """A held-out cell as the study would have inferred it."""
    lender = {**cell.params, "num_gpus": study.parts.train_on}
    trainings = next((other.trials for other in cells if other.params == lender), ())
    return replace(infer(cell, trainings), timing=study.timings.get(step_key(cell.params)))


def _held_out_row(measured: Cell, inferred: Cell, targets: Sequence[float]) -> dict[str, Any]:
    """The two at the hardest target that they both reach; where there is none, over the epochs of the training."""
    row: dict[str, Any] = {"label": measured.label, "target": None, "why": None}
    if not inferred.is_timed:
        return {**row, **_compared(None, None), "why": NO_TIMING_RUN}
    for target in measured.metric.hardest_first(targets):
        pair = [target_row(cell, target)["seconds"] for cell in (inferred, measured)]
        if None not in pair:
            return {**row, "target": target, **_compared(*pair)}
    none = "it was not both inferred and measured to reach a target: this is the whole of its training"
    return {**row, **_compared(*_whole(measured, inferred)), "why": none if targets else None}


def _whole(measured: Cell, inferred: Cell) -> tuple[float | None, float | None]:
    """Training seconds of all epochs, median over seeds: inferred, measured."""
    seconds = inferred.undisturbed_epoch_seconds
    ended = [(len(epochs_of(trial)), train_seconds(trial)) for trial in measured.timed if epochs_of(trial)]
    if not ended or seconds is None:
        return None, None
    return statistics.median(count for count, _ in ended) * seconds, statistics.median(spent for _, spent in ended)


def _compared(predicted: float | None, measured: float | None) -> dict[str, float | None]:
    known = predicted is not None and measured is not None and measured > 0
    error = predicted / measured - 1 if known and predicted is not None and measured is not None else None
    return {"predicted_seconds": predicted, "measured_seconds": measured, "error": error}


def _costs(study: _Study) -> dict[str, Any]:
    spent = math.fsum(_gpu_seconds(trial) for trial in study.trials)
    extra = math.fsum(_gpu_seconds(trial) * study.cut_off(trial) for trial in study.trained)
    grid = _grid_gpu_seconds(study)
    stopped = any(trial["status"] == "stopped" for trial in study.trained)
    return {
        "gpu_seconds": spent,
        "grid_gpu_seconds": grid,
        "saved_by_factorising": 1 - (spent + extra) / grid if grid else None,
        "saved_by_asha": 1 - spent / (spent + extra) if stopped and spent + extra > 0 else None,
        "why": None if grid else NO_GRID,
    }


def _gpu_seconds(trial: Trial) -> float:
    return train_seconds(trial) * int(trial["params"]["num_gpus"])


def _grid_gpu_seconds(study: _Study) -> float | None:
    """GPU-seconds of every training with every num_gpus; None where a kind of step was not timed."""
    steps: dict[int, float] = {}
    for trial in study.trained:
        counts = [count for epoch in epochs_of(trial) if (count := positive(epoch.get("steps")))]
        batch_size = int(trial["params"]["batch_size"])
        steps[batch_size] = max([steps.get(batch_size, 0.0), *counts])
    parts = []
    for trial in study.trained:
        for size in study.parts.sizes:
            params = {**trial["params"], "num_gpus": size}
            timing = study.timings.get(step_key(params))
            seconds = step_seconds(timing) if timing is not None else None
            if seconds is None:
                return None
            parts.append(study.epochs_to_end(trial) * steps[int(params["batch_size"])] * seconds * size)
    return math.fsum(parts) or None


def _check_words(part: Mapping[str, Any], them: str) -> str:
    """How far the products were off in the cells run in full, or why that is not known. them: the inferred cells."""
    if not part["held_out"]:
        return "No cell was run in full to check these products."
    told = sum(row["error"] is not None for row in part["held_out"])
    count = told or len(part["held_out"])
    if told == 0:
        cells = "One cell was" if count == 1 else f"{count} cells were"
        reasons = sorted({row["why"] or "it has no times" for row in part["held_out"]})
        return f"{cells} run in full to check {them}, but can't be compared with a product: {'; '.join(reasons)}."
    cells = "the one cell" if count == 1 else f"{count} cells"
    return f"In {cells} run in full to check {them} the product was off by {part['median_error']:.1%} (median)."


def caveats(
    spec: StudySpec, plan: Plan, rows: Sequence[Mapping[str, Any]], part: Mapping[str, Any] | None
) -> list[str]:
    """What a reader must know of inferred cells. rows: `cells.cell_row`s. part: `factorised_part`."""
    if plan.factorised is None or part is None:
        return []
    inferred = sum(row["kind"] == "factorised" for row in rows)
    found = []
    if inferred:
        found.append(
            f"{inferred} of {len(rows)} cells {'is' if inferred == 1 else 'are'} inferred: their times are products of "
            f"the epochs of the same training with num_gpus {plan.factorised.train_on} and of undisturbed seconds an "
            "epoch."
        )
    if inferred or part["held_out"]:
        found.append(_check_words(part, "them" if inferred else "what would be inferred"))
    if spec.search.allow_inexact:
        found.append("search.allow_inexact is on: what is trained may depend on num_gpus, and then no product holds.")
    return found
