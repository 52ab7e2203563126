"""Stage 2, plan: the cells that a factorised study holds out and runs in full, to check its products by. Pure.

They are chosen when the trainings have ended: in a cell whose training missed every target, or was stopped early, there
is little to compare, and a cell picked before the start may well be one.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.analysis.trial_measures import COUNTED, Trial, best_value
from experiments.plan import Plan, TrialPlan, at_size, trial_id
from experiments.search_space import Cell, cell_key


def held_out_trials(spec: Any, plan: Plan, known: Iterable[TrialPlan], records: Mapping[str, Trial]) -> list[TrialPlan]:
    """The trials of the cells that are held out, all seeds of each, by num_gpus; none where the plan isn't factorised.

    Each cell has another num_gpus than the trainings. First come cells in which every seed reached most targets, or,
    where the spec has none, trained longest; of these a (num_gpus, batch_size) of which fewest are held out; of these
    chance decides, by the search's seed. Cells with a training that failed are left out.

    Args:
        spec: the study's (`experiments.spec.StudySpec`).
        plan: the study's, its trainings ended.
        known: trials of the study so far; cells that are held out already stay.
        records: lines of `trials.jsonl`, by trial id.
    """
    if plan.factorised is None:
        return []
    trainings = _by_cell(plan.swept)
    told = {key: _told(spec, trials, records) for key, trials in trainings.items()}
    others = [trial for trial in known if trial.kind == "training" and not plan.is_swept(trial)]
    held = {cell_key(trial.cell): trial.cell for trial in others}
    left = {
        key: cell
        for cell in plan.cells
        if cell["num_gpus"] != plan.factorised.train_on and (key := cell_key(cell)) not in held
        and told[_trained(plan, cell)] is not None
    }  # fmt: skip
    used = Counter(_step(cell) for cell in held.values())
    while left and len(held) < plan.factorised.held_out:
        key = min(left, key=lambda key: _rank(left[key], told[_trained(plan, left[key])] or 0, used, spec.search.seed))
        held[key] = left.pop(key)
        used[_step(held[key])] += 1
    found = [trial for cell in held.values() for trial in _trials(spec, cell, trainings.get(_trained(plan, cell), ()))]
    return sorted(found, key=lambda trial: trial.num_gpus)


def _by_cell(trials: Iterable[TrialPlan]) -> dict[str, list[TrialPlan]]:
    found: dict[str, list[TrialPlan]] = {}
    for trial in trials:
        found.setdefault(cell_key(trial.cell), []).append(trial)
    return found


def _trained(plan: Plan, cell: Cell) -> str:
    """The key of the cell whose training stands for this one."""
    assert plan.factorised is not None
    return cell_key({**cell, "num_gpus": plan.factorised.train_on})


def _told(spec: Any, trials: Sequence[TrialPlan], records: Mapping[str, Trial]) -> int | None:
    """How much a cell's trainings say: the least of its seeds. None: not every seed came to an end that counts."""
    ended = [records.get(trial.trial_id) for trial in trials]
    counted = [record for record in ended if record is not None and record["status"] in COUNTED]
    if len(counted) < len(trials):
        return None
    metric, targets = StudyMetric.of(spec.workload), spec.targets.accuracy
    return min(_reached(record, metric, targets) if targets else len(record["epochs"]) for record in counted)


def _reached(record: Trial, metric: StudyMetric, targets: Sequence[float]) -> int:
    best = best_value(record, metric)
    return 0 if best is None else sum(metric.reached(best, target) for target in targets)


def _step(cell: Cell) -> tuple[int, int]:
    return cell["num_gpus"], cell["batch_size"]


def _rank(cell: Cell, told: int, used: Mapping[tuple[int, int], int], seed: int) -> tuple[int, int, str]:
    """The least is held out first. The last part is drawn by chance, and the same however the grid grows."""
    drawn = hashlib.sha256(f"{seed} {cell_key(cell)}".encode()).hexdigest()
    return -told, used[_step(cell)], drawn


def _trials(spec: Any, cell: Cell, trainings: Iterable[TrialPlan]) -> list[TrialPlan]:
    """The trials of a cell, with the ids that they have in a grid."""
    resources = spec.to_dict()["resources"]
    found = [at_size(trial, cell["num_gpus"]) for trial in trainings]
    return [replace(each, trial_id=trial_id(each.params, each.workload, each.train, resources)) for each in found]
