"""Stage 8, analysis: the time of a step as a law of workers and batch: the `throughput_model` (docs/formulas.md §4)."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.analysis.estimates import estimate_part
from experiments.analysis.laws.least_squares import NoLawError
from experiments.analysis.laws.step_time import (
    MEASURE,
    Constants,
    StepTimeLaw,
    StepTimes,
    fit_step_time,
    held_out_errors,
)
from experiments.analysis.parts import Part, missing, present
from experiments.analysis.timed_steps import TimedSize, TimedSteps

ACROSS_NODES = ("alpha_n", "beta_n")
NO_PHASES = "phases were not measured: waiting for data is part of the other constants"


def throughput_part(steps: Sequence[TimedSteps]) -> Part:
    """The `throughput_model` of `summary.json`, from the steps of `timed_steps.timed_steps`, whose first combination
    stands first.

    Returns:
        `{of, alpha_c, beta_c, alpha_r, beta_r, gamma, data_seconds, alpha_n, beta_n, median_error, held_out, misfit,
        points, covariance, flagged, others}`, or missing with a why; in `others` a part of the same form for each other
        combination of swept keys. Estimates in seconds, of beta_c per example, of the other betas per further worker;
        alpha_n and beta_n null unless workers spanned nodes. data_seconds: median over the sizes with their range;
        the law's other constants are fitted beside each size's own. median_error: relative, of the law at sizes that
        it was not fitted to, null where none of the `held_out` could be; misfit: sizes differ from the law by more
        than their repeats explain, so that intervals are those of the sizes. A point: `num_gpus`, `batch_size`,
        `per_worker_batch` (as timed: the last step of an epoch may be smaller), `across_nodes`, measured_seconds
        (geometric mean of n repeats), fitted_seconds with low and high. covariance: what `times_of` needs.
    """
    if not steps:
        return missing("the study has no cells")
    parts = [_part(each) for each in steps]
    return {**parts[0], "others": parts[1:]}


def _part(steps: TimedSteps) -> Part:
    try:
        law = fit_step_time(steps.places)
    except NoLawError as error:
        return {"of": steps.of, **missing(f"{error}{steps.why_left_out}"), "flagged": steps.flagged}
    spans = any(size.across_nodes for size in steps.sizes)
    errors = held_out_errors(steps.places, law)
    return {
        "of": steps.of,
        **{name: _constant(law, name) for name in MEASURE if spans or name not in ACROSS_NODES},
        **({} if spans else dict.fromkeys(ACROSS_NODES)),
        "data_seconds": _data_seconds(steps),
        "median_error": statistics.median(errors) if errors else None,
        "held_out": len(errors),
        "misfit": law.fit.misfit,
        "points": [_point(size, law, with_data=steps.phases_measured) for size in steps.sizes],
        "covariance": _covariance(law.times),
        "flagged": steps.flagged,
    }


def _constant(law: StepTimeLaw, name: str) -> Part:
    estimate = law.estimate(name)
    if estimate is not None:
        return estimate_part(estimate)
    return {**missing(f"{law.absent[name]}; {MEASURE[name]}"), "low": None, "high": None, "identified": False}


def _data_seconds(steps: TimedSteps) -> Part:
    waits = [size.data_seconds for size in steps.sizes if size.data_seconds is not None]
    if not steps.phases_measured:
        return {**missing(NO_PHASES), "low": None, "high": None, "identified": False}
    return {"value": statistics.median(waits), "low": min(waits), "high": max(waits)}


def _point(size: TimedSize, law: StepTimeLaw, *, with_data: bool) -> dict[str, Any]:
    place = size.place(with_data=with_data)
    fitted = law.times.seconds(
        place.num_gpus, place.per_worker_batch, data_seconds=place.data_seconds, across_nodes=place.across_nodes
    )
    return {
        "num_gpus": size.num_gpus,
        "batch_size": size.batch_size,
        "per_worker_batch": place.per_worker_batch,
        "across_nodes": size.across_nodes,
        "measured_seconds": place.typical_seconds,
        "fitted_seconds": fitted.value,
        "low": fitted.low,
        "high": fitted.high,
        "n": len(place.seconds),
    }


def _covariance(times: StepTimes) -> dict[str, Any] | None:
    """Names, matrix and quantile of t; None where there is no error to be had."""
    if times.t is None:
        return None
    return {"names": list(times.names), "matrix": times.covariance.tolist(), "t": times.t}


def times_of(part: Mapping[str, Any]) -> StepTimes:
    """The law of a part that is there, for the time of any other step."""
    values = {name: part[name]["value"] for name in MEASURE if part[name] is not None and present(part[name])}
    covariance = part["covariance"] or {"names": (), "matrix": np.zeros((0, 0)), "t": None}
    return StepTimes(
        constants=Constants(**values),
        names=tuple(covariance["names"]),
        covariance=np.array(covariance["matrix"]),
        t=covariance["t"],
    )


def part_of(part: Mapping[str, Any], of: str) -> Mapping[str, Any] | None:
    """The part of one combination of swept keys, itself or one of the others; None where it could not be had."""
    alike = [each for each in (part, *(part.get("others") or ())) if each.get("of") == of and present(each)]
    return alike[0] if alike else None
