"""Stage 8, analysis: `scalestudy recommend` – the study's folder and the user's wishes, to advice in words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, cast

from experiments.analysis import predict, recommend, recommendation_lines
from experiments.analysis.metric import StudyMetric
from experiments.analysis.predictions import MOST_WORKERS
from experiments.spec import StudySpec
from orchestration.errors import RequestError
from orchestration.folders import open_folder, readable, spec_of

BY = ("time", "cost")


def advise(
    path: str | Path, *, accuracy: float | None, max_gpus: int | None, price: float | None, by: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The recommendation as data, and in words. accuracy: the target, of whatever metric the study has.

    To what `recommend` gives are added `predictions` (the summary's, for the target that is asked for and up to
    max_gpus), `study` (num_gpus that were measured, device) and `max_gpus`.

    Raises RequestError for a wish that can't be, or a folder that is not a study's.
    """
    _check(max_gpus, price, by)
    folder = open_folder(path)
    with readable(folder):
        spec: StudySpec = spec_of(folder)
        plan, trials = folder.read_plan(), folder.read_trials()
    metric = StudyMetric.of(spec.workload)
    _check_target(accuracy, metric)
    price = spec.targets.price_per_gpu_hour if price is None else price
    advice = recommend(
        plan,
        trials,
        metric=metric,
        targets=spec.targets.accuracy,
        accuracy=accuracy,
        max_gpus=max_gpus,
        price=price,
        by=cast(Literal["time", "cost"], by or "time"),
    )
    advice["predictions"] = predict(
        _with_target(spec, accuracy), plan, trials, advice, price=price, most_workers=max_gpus or MOST_WORKERS
    )
    advice["study"] = {
        "num_gpus": sorted({cell["num_gpus"] for cell in plan.cells}),
        "device": advice["choice"].get("device"),
    }
    advice["max_gpus"] = max_gpus
    return advice, _lines(advice, by)


def _with_target(spec: StudySpec, target: float | None) -> StudySpec:
    """The spec with the one target that the user asks for in the place of its own."""
    if target is None:
        return spec
    return spec.model_copy(update={"targets": spec.targets.model_copy(update={"accuracy": (target,)})})


def _lines(advice: dict[str, Any], by: str | None) -> list[str]:
    lines = recommendation_lines(advice)
    if by is None or advice["target"] is None or not advice["choice"].get("label"):
        return lines  # without a target that was reached the choice is the best by the metric, and least of nothing
    return [f"Choose {advice['choice']['label']} (least {by}).", *lines]


def _check_target(target: float | None, metric: StudyMetric) -> None:
    if target is None:
        return
    if metric.share and not 0 < target <= 1:
        raise RequestError(f"--accuracy: {target}: is not a share", "give one above 0 and up to 1, such as 0.95")
    if not math.isfinite(target):
        raise RequestError(f"--accuracy: {target}: is not a number", f"give a {metric.title} to reach")


def _check(max_gpus: int | None, price: float | None, by: str | None) -> None:
    if max_gpus is not None and max_gpus < 1:
        raise RequestError(f"--max-gpus: {max_gpus}: is not a number of workers", "give 1 or more")
    if price is not None and not 0 <= price < float("inf"):
        raise RequestError(f"--price: {price}: is not a price", "give the price of a GPU-hour, 0 or more")
    if by is not None and by not in BY:
        raise RequestError(f"--by: {by}: is not known", f"choose {' or '.join(BY)}")
