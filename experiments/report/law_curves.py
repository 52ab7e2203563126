"""Stage 9, report: the fitted laws of throughput as curves of speed-up over num_gpus; pure, from the summary alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from experiments.analysis.laws.least_squares import WIDEST_RATIO
from experiments.analysis.parts import missing
from experiments.analysis.reading import identified, number_of, part_of
from experiments.analysis.scaling import STRONG
from experiments.analysis.throughput import times_of
from experiments.plan import label

Summary = Mapping[str, Any]
ENOUGH_SIZES = 3
"""Fewer numbers of workers than this are joined by any law."""
MOST_POINTS = 60
WIDEST_HALF = math.log(WIDEST_RATIO) / 2
"""Of the interval of a speed-up's logarithm: wider ones are not drawn, as figures that wide are not identified."""


@dataclass(frozen=True, kw_only=True)
class LawCurve:
    """Speed-up over one worker by a law, at the workers of x, with its band where there is one. measured: the largest
    number of workers measured; a law that may not be extrapolated ends there.
    """

    kind: Literal["usl", "step time"]
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None
    measured: float


def combination_of(params: Mapping[str, Any]) -> str:
    """The text by which a part names the swept keys, other than the usual three, that it was fitted for."""
    usual = ("num_gpus", "batch_size", "learning_rate", "seed")
    return label({key: value for key, value in params.items() if key not in usual})


def part_for(summary: Summary, key: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the summary as it is for the combination of swept keys that a row belongs to, there or missing."""
    part, of = part_of(summary, key), combination_of(params)
    parts = (part, *(part.get("others") or ()))
    return next((each for each in parts if each.get("of", of) == of), missing(f"nothing was fitted for {of}"))


def law_of(summary: Summary, rows: Sequence[Mapping[str, Any]]) -> LawCurve | None:
    """The law to draw through the speed-ups of one batch size; None where none is identified by the data.

    rows: its timings, which differ in num_gpus alone. Flagged ones count where the laws were fitted to such as well.
    """
    params = rows[0]["params"]
    used = [row for row in rows if not row["flags"] or rests_on_flagged(summary, params)]
    if not used:
        return None
    fit = usl_fit(summary, params)
    if fit is not None and drawable(fit):
        return _usl_curve(fit)
    return _step_time_curve(summary, params, [row["params"]["num_gpus"] for row in used])


def rests_on_flagged(summary: Summary, params: Mapping[str, Any]) -> bool:
    """Whether flagged timings were used in the laws for the combination of swept keys that a row belongs to."""
    return any(part_for(summary, key, params).get("flagged") for key in ("usl", "throughput_model"))


def usl_fit(summary: Summary, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fit of Gunther's law at constant batch size, with a law or the reason why it has none; None: no such line."""
    fits = part_for(summary, "usl", params).get("fits") or ()
    strong = (fit for fit in fits if fit["scaling"] == STRONG and fit["batch_size"] == params["batch_size"])
    return next(strong, None)


def drawable(fit: Mapping[str, Any]) -> bool:
    """Whether a fit has a curve of speed-ups, and sizes enough for it."""
    return bool(fit["extrapolates"] and fit.get("curve") and _one_worker(fit))


def _one_worker(fit: Mapping[str, Any]) -> float | None:
    """Examples a second of one worker, as measured."""
    alone = [point["samples_per_second"] for point in fit.get("points") or () if point["num_gpus"] == 1]
    return alone[0] if alone else None


def _usl_curve(fit: Mapping[str, Any]) -> LawCurve:
    """The fitted throughput over that of one worker; beyond the measured only where σ and κ are both identified."""
    alone, measured = _one_worker(fit) or 1.0, float(max(fit["sizes"]))
    everywhere = identified(fit["sigma"]) and identified(fit["kappa"])
    curve = [place for place in fit["curve"] if everywhere or place["num_gpus"] <= measured * (1 + 1e-9)]
    banded = all(place["low"] is not None and place["high"] is not None for place in curve)
    return LawCurve(
        kind="usl",
        x=[place["num_gpus"] for place in curve],
        y=[place["samples_per_second"] / alone for place in curve],
        low=[place["low"] / alone for place in curve] if banded else None,
        high=[place["high"] / alone for place in curve] if banded else None,
        measured=measured,
    )


def _step_time_curve(summary: Summary, params: Mapping[str, Any], sizes: Sequence[int]) -> LawCurve | None:
    """S(K) = T_iter(1, B)/T_iter(K, B/K), docs/formulas.md §4, between the sizes that were measured."""
    model = part_for(summary, "throughput_model", params)
    law = step_law(model)
    if law is None or len(set(sizes)) < ENOUGH_SIZES:
        return None
    x, batch = [float(size) for size in _whole(max(sizes))], float(params["batch_size"])
    y = [law(1.0, batch) / law(size, batch / size) for size in x]
    halves = [half for size in x if (half := _half(model, law, size, batch)) is not None]

    def end(sign: int) -> list[float] | None:
        banded = len(halves) == len(x)
        return [gain * math.exp(sign * half) for gain, half in zip(y, halves, strict=True)] if banded else None

    return LawCurve(kind="step time", x=x, y=y, low=end(-1), high=end(1), measured=max(sizes))


def _half(model: Mapping[str, Any], law: Callable[[float, float], float], size: float, batch: float) -> float | None:
    """Half the 90% interval of a speed-up's logarithm: by the delta method, of both times of a step together, for the
    same constants make them. None where no error of the constants is known, or it is so wide that it tells nothing.
    """
    times = times_of(model) if model.get("covariance") else None
    if times is None or times.t is None:
        return None
    slopes = np.zeros(len(times.names))
    for count, sign in ((1.0, 1), (size, -1)):
        by_name = times.constants.slopes(count, batch / count)
        slopes += sign * np.array([by_name[name] for name in times.names]) / law(count, batch / count)
    half = times.t * math.sqrt(max(float(slopes @ times.covariance @ slopes), 0.0))
    return half if half <= WIDEST_HALF else None


def step_law(model: Mapping[str, Any]) -> Callable[[float, float], float] | None:
    """T_iter(K, m) of the fitted model on one node, in seconds; None where a parameter that it needs is not identified,
    and where workers spanned nodes, which a number of workers alone does not tell.
    """
    numbers = {key: number_of(model.get(key)) for key in ("alpha_c", "beta_c", "alpha_r", "beta_r")}
    known = {key: value for key, value in numbers.items() if value is not None}
    sizes = {point["num_gpus"] for point in model.get("points") or ()}
    if len(known) < len(numbers) or len(sizes) < ENOUGH_SIZES or model.get("alpha_n") is not None:
        return None
    gamma = (model.get("gamma") or {}).get("value") or 1.0  # where the data do not identify it, the law hardly asks
    data = number_of(model.get("data_seconds")) or 0.0

    def seconds(num_gpus: float, per_worker_batch: float) -> float:
        gradient = known["alpha_c"] + known["beta_c"] * per_worker_batch
        sync = known["alpha_r"] + known["beta_r"] * max(num_gpus - 2, 0.0) if num_gpus > 1 else 0.0
        return float((gradient**gamma + sync**gamma) ** (1 / gamma)) + data

    return seconds


def _whole(most: int) -> list[int]:
    """Numbers of workers up to the most, all of them or about so many: between one and two the law has no meaning."""
    return sorted({round(most ** (step / MOST_POINTS)) for step in range(MOST_POINTS + 1)})
