"""The law of a step's time, as the summary has it (docs/formulas.md §4)."""

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import Posterior, Timed
from scalestudy.experiments.analysis.laws.estimate import ENDS
from scalestudy.experiments.analysis.laws.step_figures import MEASURE, StepFigures, why_no_law
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Figure, estimate_part, missing, present

ACROSS_NODES = ("alpha_n", "beta_n")
NO_PHASES = "phases were not measured: waiting for data is part of the other constants"


def throughput_part(posterior: Posterior, recommendation: Figure | None = None) -> Figure:
    """Return the `throughput_model` of `summary.json`.

    The combination of swept keys of the recommended cell (`Analysis.recommend`) stands first, then the one of most
    timings.

    Returns:
        `{of, alpha_c, beta_c, alpha_r, beta_r, gamma, data_seconds, alpha_n, beta_n, median_error, cross_validated,
        misfit, points, flagged, others}`, or missing with a why. `others` has a part of the same form for each other
        combination of swept keys.

        Estimates are in seconds: beta_c per example, beta_r per further worker, beta_n per further node. alpha_n and
        beta_n are null unless workers spanned nodes. data_seconds is the median over the sizes with their range; the
        other constants are fitted beside each size's own. median_error is the law's relative error at sizes that it was
        not fitted to, `cross_validated` of them; null if there are none. misfit: sizes differ from the law by more than
        their repeats explain.

        A point has `num_gpus`, `batch_size`, `per_worker_batch` (as timed, since the last step of an epoch may be
        smaller), `nodes` and `across_nodes`, `data_seconds`, measured_seconds (geometric mean of n repeats, one that is
        far off moved nearer), and its estimate with low and high, `fitted_seconds`: what was measured, drawn towards
        the law.
    """
    choice = (recommendation or {}).get("choice")
    wanted = combination_of(choice["params"]) if choice is not None and present(choice) else None
    timed = {of: posterior.timed(of) for of in posterior.combinations}
    order = sorted(timed, key=lambda of: (of != wanted, -_timings(timed[of])))
    parts = [_part(posterior, of, timed[of]) for of in order]
    return {**parts[0], "others": parts[1:]} if parts else missing("the study has no cells")


def _timings(timed: Timed | None) -> int:
    return sum(len(size.timings) for size in timed.steps.lawful) if timed is not None else 0


def _part(posterior: Posterior, of: str, timed: Timed | None) -> Figure:
    steps = posterior.timed_steps(of)
    why = why_no_law(timed.found.lawful if timed is not None and steps.lawful else [])
    if timed is None or why is not None:
        return {"of": of, **missing(f"{why}{steps.why_left_out}"), "flagged": steps.flagged}
    figures, errors = StepFigures(timed.found), timed.found.cross_validated_errors()
    spans = any(size.across_nodes for size in steps.lawful)
    waits = [size.data_seconds for size in steps.lawful if size.data_seconds is not None]
    data_seconds: Figure = {**missing(NO_PHASES), "low": None, "high": None, "identified": False}
    if steps.phases_measured:
        data_seconds = {"value": statistics.median(waits), "low": min(waits), "high": max(waits)}
    return {
        "of": of,
        **{name: _constant(figures, name) for name in MEASURE if spans or name not in ACROSS_NODES},
        **({} if spans else dict.fromkeys(ACROSS_NODES)),
        "data_seconds": data_seconds,
        "median_error": statistics.median(errors) if errors else None,
        "cross_validated": len(errors),
        "misfit": timed.found.misfit,
        "points": list(_points(timed)),
        "flagged": steps.flagged,
    }


def _constant(figures: StepFigures, name: str) -> Figure:
    estimate = figures.estimate(name)
    if estimate is not None:
        return estimate_part(estimate)
    return {**missing(figures.why_absent(name)), "low": None, "high": None, "identified": False}


def _points(timed: Timed) -> Iterator[dict[str, Any]]:
    found = timed.found
    lows, highs = np.exp(np.quantile(found.draws, ENDS, axis=0)).tolist()
    for index, (size, place) in enumerate(zip(timed.steps.sizes, found.places, strict=True)):
        if not size.doubtful:
            yield {
                "num_gpus": size.num_gpus,
                "batch_size": size.batch_size,
                "per_worker_batch": place.per_worker_batch,
                "nodes": size.nodes,
                "across_nodes": size.across_nodes,
                "data_seconds": place.data_seconds,
                "measured_seconds": math.exp(found.means[index]),
                "fitted_seconds": math.exp(found.mean[index]),
                "low": lows[index],
                "high": highs[index],
                "n": int(found.counts[index]),
            }


def part_of_combination(part: Mapping[str, Any], of: str) -> Mapping[str, Any] | None:
    """Return the part of one combination of swept keys, from the part or its `others`. None if it is missing."""
    alike = [each for each in (part, *(part.get("others") or ())) if each.get("of") == of and present(each)]
    return alike[0] if alike else None
