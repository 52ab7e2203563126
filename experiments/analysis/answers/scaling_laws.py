"""Throughput over numbers of workers as laws: the `usl` of the summary (docs/formulas.md §5).

Along a line only the workers change, at a constant batch size (strong scaling) or a constant batch a worker (weak
scaling).
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.answers.throughput import TimedSize, TimedSteps
from scalestudy.experiments.analysis.laws.least_squares import Estimate, NoLawError
from scalestudy.experiments.analysis.laws.speedup import (
    LEAST_USL_SIZES,
    MEASURE,
    Usl,
    fit_amdahl,
    fit_gustafson,
    fit_usl,
    is_retrograde,
    karp_flatt,
    karp_flatt_words,
)
from scalestudy.experiments.analysis.measures.parts import Figure, estimate_part, missing
from scalestudy.experiments.analysis.measures.scaling import STRONG, WEAK

LAW = ("scale", "sigma", "kappa", "peak_gpus")
CURVE_POINTS_PER_DOUBLING = 4


@dataclass(frozen=True, kw_only=True)
class Line:
    """Sizes that differ only in the number of workers."""

    scaling: str  # strong or weak
    constant: float  # the batch size, or the batch a worker
    sizes: tuple[TimedSize, ...]

    @property
    def workers(self) -> list[int]:
        """Numbers of workers, fewest first."""
        return [size.num_gpus for size in self.sizes]

    @property
    def rates(self) -> list[tuple[float, ...]]:
        """Examples a second of each size, a value a repeat."""
        return [size.samples_per_second for size in self.sizes]

    @property
    def speed_ups(self) -> dict[float, float]:
        """Speed-up over one worker by number of workers, medians of repeats. Empty if one worker was not timed."""
        medians = {float(size.num_gpus): statistics.median(size.samples_per_second) for size in self.sizes}
        return {count: rate / medians[1.0] for count, rate in medians.items()} if 1.0 in medians else {}


def usl_part(steps: Sequence[TimedSteps]) -> Figure:
    """Return the `usl` of `summary.json`, from `throughput.timed_steps`, whose first combination stands first.

    Returns:
        `{of, fits, scale, sigma, kappa, peak_gpus, flagged, others}`, or missing with a why. The top level repeats the
        law of the first strong line.

        A fit belongs to one line. Those with most numbers of workers stand first, strong before weak. It has `scaling`
        (strong, weak), `batch_size` or `per_worker_batch`, `sizes`, `points` (num_gpus, samples_per_second, n);
        `scale` (examples a second of one worker), `sigma`, `kappa`, `peak_gpus`, `amdahl_serial` (strong) and
        `gustafson_serial` (weak) as estimates, or missing with a why; `karp_flatt` (num_gpus, value),
        `karp_flatt_words`, `retrograde` (some number of workers is slower than a smaller one), `extrapolates` (four
        sizes or more), `curve` of the law with its band, and `why` it lacks a law.
    """
    if not steps:
        return missing("the study has no cells")
    parts = [_part(each) for each in steps]
    return {**parts[0], "others": parts[1:]}


def _part(steps: TimedSteps) -> Figure:
    lines = lines_of(steps.sizes)
    if not lines:
        counts = {size.num_gpus for size in steps.sizes}
        why = "no two numbers of workers share a batch size, or a batch a worker"
        if len(counts) < 2:
            why = f"steps were timed with one num_gpus only ({min(counts)})" if counts else "no steps were timed"
        return {"of": steps.of, **missing(f"{why}{steps.why_left_out}"), "flagged": steps.flagged}
    fits = [_fit(line) for line in lines]
    nothing = missing("no batch size was timed with several numbers of workers")
    strong = next((fit for fit in fits if fit["scaling"] == STRONG), dict.fromkeys(LAW, nothing))
    return {"of": steps.of, "fits": fits, **{key: strong[key] for key in LAW}, "flagged": steps.flagged}


def lines_of(sizes: Sequence[TimedSize]) -> list[Line]:
    """Return every line of two or more numbers of workers: the longest first, strong before weak, large before small.

    If a size was timed within a node and across nodes, the timing within a node counts.
    """
    groups: dict[tuple[str, float], dict[int, TimedSize]] = {}
    for size in sorted(sizes, key=lambda size: (size.num_gpus, size.across_nodes)):
        groups.setdefault((STRONG, float(size.batch_size)), {}).setdefault(size.num_gpus, size)
        groups.setdefault((WEAK, size.batch_size / size.num_gpus), {}).setdefault(size.num_gpus, size)
    lines = [
        Line(scaling=scaling, constant=constant, sizes=tuple(group.values()))
        for (scaling, constant), group in groups.items()
        if len(group) > 1
    ]
    return sorted(lines, key=lambda line: (-len(set(line.workers)), line.scaling != STRONG, -line.constant))


def _fit(line: Line) -> dict[str, Any]:
    workers, rates = line.workers, line.rates
    law, why = None, None
    try:
        law = fit_usl(workers, rates)
    except NoLawError as error:
        why = str(error)
    speed_ups = line.speed_ups
    serial = {count: karp_flatt(gain, count) for count, gain in speed_ups.items() if count > 1}
    words = karp_flatt_words(serial) if serial else "one worker was not timed, and speed-ups are over one worker"
    key = "batch_size" if line.scaling == STRONG else "per_worker_batch"
    other = f"the line is of {line.scaling} scaling"
    return {
        "scaling": line.scaling,
        key: int(line.constant) if line.constant.is_integer() else line.constant,
        "sizes": workers,
        "points": [
            {"num_gpus": size.num_gpus, "samples_per_second": statistics.median(repeats), "n": len(repeats)}
            for size, repeats in zip(line.sizes, rates, strict=True)
        ],
        **_law(law, why),
        "amdahl_serial": _serial(lambda: fit_amdahl(workers, rates), None if line.scaling == STRONG else other),
        "gustafson_serial": _serial(lambda: fit_gustafson(workers, rates), None if line.scaling == WEAK else other),
        "karp_flatt": [{"num_gpus": int(count), "value": value} for count, value in serial.items()],
        "karp_flatt_words": words,
        "retrograde": is_retrograde(speed_ups or dict(zip(workers, map(statistics.median, rates), strict=True))),
        "extrapolates": len(workers) >= LEAST_USL_SIZES,
        "curve": _curve(law, max(workers)) if law is not None else [],
        "why": why,
    }


def _law(law: Usl | None, why: str | None) -> dict[str, Figure]:
    if law is None:
        return dict.fromkeys(LAW, missing(why or ""))
    *others, peak = LAW
    constants = zip(others, (law.scale, law.sigma, law.kappa), strict=True)
    return {**{name: estimate_part(each, MEASURE) for name, each in constants}, peak: estimate_part(law.peak)}


def _serial(fitted: Callable[[], Estimate], why: str | None) -> Figure:
    if why is not None:
        return missing(why)
    try:
        return estimate_part(fitted(), "time more numbers of workers")
    except NoLawError as error:
        return missing(str(error))


def _curve(law: Usl, most: int) -> list[dict[str, Any]]:
    """Return the law's throughput with its band, from one worker to twice the most that were timed, evenly in
    logarithms.

    A law that the timings reject ends where they do.
    """
    furthest = most if law.fit.misfit else 2 * most
    count = math.ceil(math.log2(furthest) * CURVE_POINTS_PER_DOUBLING)
    places = [furthest ** (index / count) for index in range(count + 1)]
    points = [(place, law.throughput(place)) for place in places]
    return [
        {"num_gpus": place, "samples_per_second": each.value, "low": each.low, "high": each.high}
        for place, each in points
    ]
