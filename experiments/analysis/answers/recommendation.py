"""The choice: the fastest cell, the cheapest, and the one to recommend, with caveats.

Times are estimates from all cells together (`posterior`). The fastest cell has the least time. The recommended cell is
the cheapest that is more likely than not within a tolerance of whichever cell is the fastest (docs/formulas.md §6).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scalestudy.experiments.analysis.answers.caveats import batch_edges, caveats_of, rate_edges
from scalestudy.experiments.analysis.answers.refusals import why_none
from scalestudy.experiments.analysis.answers.target_times import SETTLED, Compared, Option, TargetTimes, pareto
from scalestudy.experiments.analysis.measures.cells import (
    Cell,
    Combination,
    learnt_label,
    settings_of,
)
from scalestudy.experiments.analysis.measures.intervals import (
    ENOUGH_SEEDS,
    SHOWN_TIES,
    Contender,
    indistinguishable,
    over_seeds,
)
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, Row, missing, present
from scalestudy.experiments.analysis.measures.scaling import STRONG
from scalestudy.experiments.analysis.measures.trainings import learns_alike
from scalestudy.experiments.analysis.measures.usable import final_value
from scalestudy.experiments.plan.plan import cell_of
from scalestudy.experiments.plan.plan import label as label_of
from scalestudy.experiments.spec.study_spec import StudySpec

By = Literal["time", "cost"] | None
ROLE_BY: Mapping[By, str] = {None: "recommended", "time": "fastest", "cost": "cheapest"}
"""The choice's role, by what the reader asks for."""
ROLES = tuple(ROLE_BY.values())


def choose(
    spec: StudySpec,
    cells: Sequence[Cell],
    cell_rows: Sequence[Row],
    timings: Sequence[Row],
    by_target: Mapping[float, TargetTimes],
    *,
    max_gpus: int | None = None,
    by: By = None,
    searched: str | None = None,
) -> Figure:
    """Choose as `analysis.recommend` does, which says what it returns, from figures that were made before.

    timings: `timing_rows`. by_target: `times_to`. searched: the label of the cell that an adaptive search has chosen,
    which is recommended if a training of it has ended: it was chosen among all stated cells.
    """
    metric = StudyMetric.of(spec.workload)
    tolerance = spec.targets.tolerance
    within = [cell for cell in cells if max_gpus is None or cell.num_gpus <= max_gpus]
    allowed = {cell.label for cell in within}
    rows = {target: [row for row in each.rows if row["label"] in allowed] for target, each in by_target.items()}
    reached = {target: [row for row in each if row["seconds"] is not None] for target, each in rows.items()}
    hardest_first = metric.hardest_first(by_target)
    target = next((target for target in hardest_first if reached[target]), None)
    options = reached[target] if target is not None else []
    missed = [each for each in hardest_first[::-1] if all(row["measured_seconds"] is None for row in rows[each])]
    undecided = (
        sum(bool(row["seconds"] is None and row["met_last"]) for row in rows[target]) if target is not None else 0
    )
    choosing = _Choosing(spec, within, cells, cell_rows, timings, undecided)
    found: dict[str, Figure] = {}
    settle = None
    too_easy = bool(options) and all(option["upper_bound"] for option in options)
    if target is not None and choosing.compared and not too_easy:
        times = by_target[target].times
        compared = Compared.of(options, times, tolerance=tolerance, confidence=spec.targets.confidence)
        chosen: dict[str, Option] = {
            "recommended": compared.recommended,
            "fastest": compared.fastest,
            "cheapest": min(options, key=lambda option: (option["worker_seconds"], option["seconds"])),
        }
        chosen["recommended"] = next((row for row in options if row["label"] == searched), chosen["recommended"])
        for role, option in chosen.items():
            same = (
                role == "fastest" and option is chosen["recommended"]
            )  # the same times distinguish both from the others
            found[role] = dict(found["recommended"]) if same else choosing.choice(option, compared, role)
        settle = choosing.settle(compared)
    else:
        why = why_none(metric, within, cells, cell_rows, by_target, reached=target, max_gpus=max_gpus)
        found = dict.fromkeys(ROLES, missing(why))
    best = choosing.best()
    if target is None and not hardest_first and present(best):
        found["recommended"] = choosing.cheapest_as_good()
    choice = next((part for part in (found[ROLE_BY[by]], best) if present(part)), found["recommended"])
    used = [part for part in (*found.values(), best) if present(part)]
    return {
        "metric": metric.to_dict(),
        "target": target,
        "missed_targets": [each for each in missed if target is None or metric.better(each, target)],
        "max_gpus": max_gpus,
        "tolerance": tolerance,
        "confidence": spec.targets.confidence,
        "choice": choice,
        **found,
        metric.choice_key: best,
        "pareto": [option["label"] for option in pareto(options)],
        "settle": settle,
        **({"untrained": searched} if searched and searched not in choosing.tried else {}),
        "provisional": any(part["n_seeds"] < ENOUGH_SEEDS for part in used) or not used,
    }


class _Choosing:
    """The maker of the recommendation's rows from options, with their evidence, ties and caveats.

    cells: those that may be chosen. every: all cells of the study. undecided: how many cells met the target at their
    last evaluation alone.
    """

    def __init__(
        self,
        spec: StudySpec,
        cells: Sequence[Cell],
        every: Sequence[Cell],
        cell_rows: Sequence[Row],
        timings: Sequence[Row],
        undecided: int,
    ) -> None:
        self._spec, self._metric = spec, StudyMetric.of(spec.workload)
        self._cells = {cell.label: cell for cell in cells}
        self._rows = {row["label"]: row for row in cell_rows if row["label"] in self._cells}
        self._rate_edges, self._batch_edges = rate_edges(every), batch_edges(every)
        self._timings = {label: row for row in timings for label in row["cells"]}
        self._undecided = undecided
        self.tried = {cell.label for cell in every if cell.counted}

    @property
    def compared(self) -> bool:
        """Whether there was anything to choose from."""
        return len(self.tried) > 1

    def choice(self, option: Option, compared: Compared, role: str) -> Figure:
        """Return an option in its role."""
        return {
            **self._row(option, compared.ties(option, role)),
            "ratio": {"value": compared.ratio(option)},
            "probability": compared.probability[option["label"]],
        }

    def settle(self, compared: Compared) -> Figure | None:
        """Return the seeds that should show whether a cell is near enough to the fastest.

        The recommended cell, if that is in doubt and seeds would show it; else the likeliest of the cheaper ones. None
        if no seeds would: cells of the same trainings differ by timings alone.
        """
        chosen, probability = compared.recommended, compared.probability
        cheaper = [option for option in compared.options if option["worker_seconds"] < chosen["worker_seconds"]]
        likeliest = sorted(cheaper, key=lambda option: -probability[option["label"]])[:1]
        for option in (chosen, *likeliest):
            chance, rival = probability[option["label"]], compared.rival(option)
            if rival is None or not 1 - SETTLED < chance < SETTLED:
                continue
            both = [self._cells[each["label"]] for each in (option, rival)]
            more = compared.seeds_to_settle(option, rival, steps_alone=any(cell.timings for cell in both))
            if more is not None:
                spent = math.fsum(
                    statistics.median(trial.train_seconds * trial.num_gpus for trial in cell.counted) for cell in both
                )
                return {
                    "label": option["label"],
                    "probability": chance,
                    "beside": rival["label"],
                    "seeds": more,
                    "worker_seconds": more * spent,
                }
        return None

    def best(self) -> Figure:
        """Return the cell of the best median after the last epoch.

        Of equal ones it takes fewest worker-seconds an epoch. None if a training stopped at a target, whichever target
        is asked for now.
        """
        if any(cell.with_status(("at_target",)) for cell in self._cells.values()):
            return missing("trainings stopped at the target: how far they would have come is not known")
        ranked = self._ranked()
        if ranked and not self.compared:
            return missing("only one cell was run")
        if not ranked:
            return missing("no trial finished")
        named = self._named(ranked[0]["label"])
        return self._row(ranked[0], [label for label in self._as_good(ranked) if self._named(label) != named])

    def cheapest_as_good(self) -> Figure:
        """Return the cell of fewest worker-seconds an epoch whose metric can't be told apart from the best."""
        ranked = self._ranked()
        alike = {ranked[0]["label"], *self._as_good(ranked)}
        row = min((row for row in ranked if row["label"] in alike), key=_worker_seconds_an_epoch)
        return self._row(
            row, [label for label in (each["label"] for each in ranked) if label in alike - {row["label"]}]
        )

    def _ranked(self) -> list[dict[str, Any]]:
        """Return the cells with a metric, the best first."""
        key = self._metric.key
        known = [{**row, "n_seeds": row[key]["n"]} for row in self._rows.values() if present(row[key])]
        return sorted(known, key=lambda row: (self._metric.order(row[key]["value"]), _worker_seconds_an_epoch(row)))

    def _as_good(self, ranked: Sequence[Mapping[str, Any]]) -> list[str]:
        return indistinguishable(self._by_metric(ranked[0]), [self._by_metric(row) for row in ranked])

    def _by_metric(self, row: Mapping[str, Any]) -> Contender:
        values = [final_value(trial, self._metric) for trial in self._cells[row["label"]].timed]
        known = [value for value in values if value is not None]
        figure = self._metric.order(row[self._metric.key]["value"])
        interval = over_seeds(known, logarithms=False)
        return Contender(label=row["label"], figure=figure, interval=interval, n_seeds=len(known))

    def _named(self, label: str) -> str:
        """Return the cell without its num_gpus, if what it learns does not depend on them."""
        cell = self._cells[label]
        alike = learns_alike(self._spec, Combination(settings=settings_of(cell.params), cells=(cell,)))
        return learnt_label(cell.params) if alike else label

    def _row(self, option: Option, ties: Sequence[str]) -> Figure:
        label, row, params = option["label"], self._rows[option["label"]], option["params"]
        times = ("seconds", "worker_seconds", "cost", "interval", "measured_seconds")
        known = (*times, "n_seeds", "reached", "censored", "cut", "upper_bound", "unseen")
        cell, timing = self._cells[label], self._timings[label]
        trained = {"cells": [label], "kind": "measured"}
        if cell.lent:
            names = dict.fromkeys(label_of(cell_of(trial.params)) for trial in cell.trials)
            trained = {"cells": list(names), "kind": "lent"}
        choice = {
            "label": label,
            "named": self._named(label),
            "params": params,
            **{key: params[key] for key in ("num_gpus", "batch_size", "learning_rate")},
            **{key: option.get(key) for key in known},
            self._metric.key: row[self._metric.key],
            "device": row["device"],
            **({"nodes": row["nodes"]} if "nodes" in row else {}),
            "flags": row["flags"],
            "stopped_after": row["stopped_after"],
            "undecided": self._undecided if option.get("seconds") is not None else 0,
            "evidence": {**trained, "seeds": option["n_seeds"]},
            "ties": list(ties[:SHOWN_TIES]),
            "tie_count": len(ties),
            "strong_speedup": timing["speedup"] if timing["scaling"] == STRONG else None,
        }
        caveats = caveats_of(choice, self._rate_edges.get(label), ties, self._batch_edges.get(label))
        return {**choice, "caveats": caveats}


def _worker_seconds_an_epoch(row: Mapping[str, Any]) -> float:
    return float((row["epoch_seconds"]["value"] or math.inf) * row["params"]["num_gpus"])
