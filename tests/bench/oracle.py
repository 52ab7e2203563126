"""An oracle for `worlds`: it has the records, the form of the laws and every variance, and not the constants.

It fits the constants by generalised least squares, and each cell is its law plus what its measurements say of its
deviation. Nobody can be asked to choose better.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.usable import time_to_target
from tests.support.worlds import DEVIATION, TARGET, Place, World, place_of

Vector = NDArray[np.float64]
LEAST_PART = 1e-3
KNOWN = 1e-4
"""Standard deviation of what does not vary."""
RANGES = ((-30.0, 30.0), (-10.0, 15.0), (-12.0, 8.0), (-1.0, 1.5), (-4.0, 0.5))
"""Of the logarithms of steps and of B_crit, of log2 of the rate, of the exponent, of the curvature's logarithm."""


def fastest(world: World, trials: Sequence[dict[str, Any]]) -> Place | None:
    """What the oracle chooses among the cells that ran; None where none mostly reached the target."""
    arrived: dict[tuple[int, float, int], list[float]] = defaultdict(list)
    seeds: dict[tuple[int, float], set[int]] = defaultdict(set)
    timed: list[tuple[tuple[int, int], float]] = []
    for trial in trials:
        num_gpus, batch_size, rate = place_of(trial["params"])
        seeds[batch_size, rate].add(trial["params"]["seed"])
        epochs = trial["epochs"]
        each = [epoch["train_seconds"] / epoch["steps"] for epoch in epochs[1:]]
        timed.append(((num_gpus, batch_size), math.log(float(np.median(each)))))
        curve = [(epoch["epoch"] * epoch["steps"], epoch["test_accuracy"]) for epoch in epochs]
        steps = math.inf if trial["status"] == "diverged" else time_to_target(curve, TARGET, ACCURACY)
        if math.isfinite(steps):
            arrived[batch_size, rate, trial["params"]["seed"]].append(math.log(steps))
    learnt, timings = list(world.steps_off), list(world.step_off)
    mostly = {key for key, all_ in seeds.items() if 2 * sum((*key, seed) in arrived for seed in all_) > len(all_)}
    ran = {place_of(trial["params"]) for trial in trials}
    places = [place for place in world.places if place in ran and place[1:] in mostly]
    if not places:
        return None
    off = KNOWN if not any(world.step_off.values()) else DEVIATION / math.sqrt(2)
    own, shared = world.noise * math.sqrt(1 - world.common), world.noise * math.sqrt(world.common)

    def law_of_steps(theta: Vector) -> Vector:
        level, critical, rate, exponent, curvature = theta
        other = replace(
            world,
            b_crit=math.exp(critical),
            rate=2.0**rate,
            exponent=exponent,
            curvature=math.exp(curvature),
            steps_off=dict.fromkeys(learnt, 0.0),
        )
        return level + np.array([math.log(other.shape_of_steps(*key)) for key in learnt])

    level = math.log(world.steps(*learnt[0]) / world.shape_of_steps(*learnt[0]))
    truth = [level, math.log(world.b_crit), math.log2(world.rate), world.exponent, math.log(world.curvature)]
    steps = _fit(
        np.array([float(np.median(values)) for values in arrived.values()]),
        np.array([learnt.index(key[:2]) for key in arrived]),
        np.array([key[2] for key in arrived]),
        law_of_steps,
        np.array(truth),
        np.array(RANGES).T,
        (own, shared, off),
    )
    features = np.array([world.step.features(*key) for key in timings])
    jumps = np.array([world.jump(*key) for key in timings])
    used = features.any(axis=0)
    seconds_by_law = np.array([world.step.seconds(*key) for key in timings])
    coefficients = np.linalg.lstsq(features[:, used], seconds_by_law, rcond=None)[0]
    begin = np.log(np.maximum(coefficients, LEAST_PART * seconds_by_law.min() / features[:, used].max(axis=0)))

    def law_of_seconds(theta: Vector) -> Vector:
        return np.asarray(np.log(features[:, used] @ np.exp(theta)) + np.log(jumps))

    seconds = _fit(
        np.array([value for _, value in timed]),
        np.array([timings.index(key) for key, _ in timed]),
        np.zeros(len(timed), dtype=int),
        law_of_seconds,
        begin,
        np.array([begin - 10, begin + 10]),
        (world.noise, KNOWN, off),
    )
    first, second = (
        np.array([learnt.index(place[1:]) for place in places]),
        np.array([timings.index(place[:2]) for place in places]),
    )
    epochs = np.array([math.ceil(world.samples / batch_size) for _, batch_size, _ in places])
    times = np.exp(seconds[second]) * (np.exp(steps[first]) + world.warm_up * epochs)
    return places[int(np.argmin(times))]


def _fit(
    values: Vector,
    cells: NDArray[np.int64],
    seeds: NDArray[np.int64],
    law: Callable[[Vector], Vector],
    begin: Vector,
    bounds: Vector,
    spreads: tuple[float, float, float],
) -> Vector:
    """Means of the cells. spreads: standard deviations of a measurement, of a seed, of a cell."""
    noise, of_seed, of_cell = spreads
    of_values = np.equal.outer(cells, np.arange(len(law(begin)))).astype(float)
    covariance = of_cell**2 * of_values @ of_values.T + of_seed**2 * np.equal.outer(seeds, seeds)
    inverse = np.linalg.inv(covariance + noise**2 * np.eye(len(values)))
    root = np.linalg.cholesky(inverse).T
    low, high = bounds
    begin = np.clip(begin, low + KNOWN, high - KNOWN)
    best = optimize.least_squares(lambda theta: root @ (values - law(theta)[cells]), begin, bounds=(low, high)).x
    gain = of_cell**2 * of_values.T @ inverse
    return law(best) + gain @ (values - law(best)[cells])
