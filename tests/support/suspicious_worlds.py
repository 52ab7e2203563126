"""Worlds as runs that others made, in which nothing is unfair, or one thing that can't be known for certain is."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import brentq

from scalestudy.experiments.judging import suspicions
from scalestudy.experiments.judging.facts import Suspicion
from scalestudy.experiments.judging.runs import Evaluation, Run
from scalestudy.experiments.judging.suspicions import suspicions_of
from tests.support.step_worlds import between
from tests.support.worlds import World

THRESHOLDS: Mapping[Suspicion, float] = {
    "start_up": suspicions.COUNTED_SHARE,
    "evaluation": suspicions.COUNTED_SHARE,
    "slowed": suspicions.SLOWED_RATIO - 1,
    "speeds": suspicions.SPEEDS_RATIO - 1,
}
INTERVALS = (1, 2, 4)
"""Epochs from one evaluation to the next."""
JITTER = (0.01, 0.1)
"""Standard deviation of the logarithm of an epoch's seconds within a run, from and to."""
RUN_SECONDS = (60.0, 20_000.0)
"""Length of the median run, from and to."""
HICCUP = 0.01
"""Share of the epochs that take twice as long."""
GAP = 5.0
"""Seconds from the end of a run to the start of the next."""
Schedule = Literal["unknown", "slots", "random", "clock"]
"""When runs start: nobody knows; one at a time, later two at a time; at any time; at equal distances."""


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """A run's own seconds of each period, evaluation and start-up left out."""

    params: Mapping[str, Any]
    values: Sequence[float]
    epochs: Sequence[int]  # at the evaluations
    steps: Sequence[int]
    seconds: Sequence[float]


def world_drawn(generator: np.random.Generator, noise: float) -> World:
    """A world of three to five seeds whose best rate is an inner one; without or with trials that never ran."""
    while True:
        seeds, missing = int(generator.integers(3, 6)), float(generator.choice([0.0, 0.4]))
        world = replace(World.draw(generator, noise=noise, seeds=seeds, missing=missing), warm_up=0.0)
        if world.rates[0] < world.best[2] < world.rates[-1]:
            return world


def runs_drawn(generator: np.random.Generator, noise: float, kind: Suspicion | None, times: float = 2.0) -> list[Run]:
    """The runs of a world. kind: what is at so many times its threshold; None: nothing is unfair."""
    timed = _timed(world_drawn(generator, noise), generator, several=kind == "evaluation" or generator.random() < 0.5)
    size = times * THRESHOLDS[kind] if kind else 0.0
    if kind == "speeds":
        slow = generator.random(len(timed)) < generator.uniform(0.3, 0.7)
        timed = [_slower(each, 1 + size * on) for each, on in zip(timed, slow, strict=True)]
    schedule: Schedule = "slots" if kind == "slowed" else _one_of(get_args(Schedule), generator)
    timed = [timed[place] for place in generator.permutation(len(timed))]
    starts, overlapping = _starts(timed, schedule, 1 + size if kind == "slowed" else 1.0, generator)
    if kind == "slowed":
        timed = [_slower(each, 1 + size * on) for each, on in zip(timed, overlapping, strict=True)]
    start_up = _solved(lambda more: _share(timed, lambda each: more), size) if kind == "start_up" else 0.0
    evaluating = (
        _solved(lambda more: _share(timed, lambda each: more * len(each.epochs)), size) if kind == "evaluation" else 0.0
    )
    return [
        _run(number, each, start, start_up, evaluating)
        for number, (each, start) in enumerate(zip(timed, starts, strict=True))
    ]


def suspected(
    kind: Suspicion | None, draws: Iterable[int], *, noises: tuple[float, float], seed: int, times: float = 2.0
) -> list[set[str]]:
    """What is suspected in each of these worlds. noises: between runs, from and to. kind, times: as in `runs_drawn`."""
    found = []
    for draw in draws:
        generator = np.random.default_rng([seed, draw])
        runs = runs_drawn(generator, float(generator.uniform(*noises)), kind, times)
        found.append({each.kind for each in suspicions_of(runs, [], evaluation="excluded")})
    return found


def _timed(world: World, generator: np.random.Generator, *, several: bool) -> list[_Timed]:
    """A world's trainings. several: whether they evaluate at several intervals."""
    jitter = generator.uniform(*JITTER)
    trials = world.trials()
    scale = between(generator, *RUN_SECONDS) / float(np.median([trial["train_seconds"] for trial in trials]))
    timed = []
    for trial in trials:
        epochs = trial["epochs"]
        interval = _one_of(INTERVALS, generator) if several else 1
        ends = [*range(interval, len(epochs) + 1, interval)] or [len(epochs)]
        off = np.exp(generator.normal(0, jitter, len(epochs))) * (1 + (generator.random(len(epochs)) < HICCUP))
        seconds = scale * np.cumsum([epoch["train_seconds"] for epoch in epochs] * off)[[end - 1 for end in ends]]
        steps = list(itertools.accumulate(epoch["steps"] for epoch in epochs))
        timed.append(
            _Timed(
                params=trial["params"],
                values=[math.nan if (value := epochs[end - 1]["test_accuracy"]) is None else value for end in ends],
                epochs=ends,
                steps=[steps[end - 1] for end in ends],
                seconds=seconds.tolist(),
            )
        )
    return timed


def _one_of(choices: Sequence[Any], generator: np.random.Generator) -> Any:
    return choices[int(generator.integers(len(choices)))]


def _slower(timed: _Timed, ratio: float) -> _Timed:
    return replace(timed, seconds=[seconds * ratio for seconds in timed.seconds])


def _starts(
    timed: Sequence[_Timed], schedule: Schedule, slower: float, generator: np.random.Generator
) -> tuple[list[float | None], list[bool]]:
    """When each run starts, and whether it runs beside another. slower: by how much such a one of two slots is."""
    lengths = [each.seconds[-1] for each in timed]
    if schedule == "unknown":
        return [None] * len(timed), [False] * len(timed)
    if schedule in ("random", "clock"):
        distance = generator.uniform(0.8, 2.0) * float(np.median(lengths))
        gaps = np.full(len(timed), distance) if schedule == "clock" else generator.exponential(distance, len(timed))
        return list(1.7e9 + np.cumsum(gaps)), [False] * len(timed)
    alone = len(timed) // 2
    free, starts = [1.7e9], list[float | None]()
    for number, length in enumerate(lengths):
        if number == alone:
            free = [free[0], free[0]]
        slot = free.index(min(free))
        starts.append(free[slot])
        free[slot] += length * (slower if number >= alone else 1.0) + GAP
    return starts, [number >= alone for number in range(len(timed))]


def _share(timed: Sequence[_Timed], more: Callable[[_Timed], float]) -> float:
    """The mean share of the time that so many more seconds of a run are."""
    return float(np.mean([more(each) / (more(each) + each.seconds[-1]) for each in timed]))


def _solved(share: Callable[[float], float], wanted: float) -> float:
    """The seconds at which a growing share is the wanted one."""
    log_seconds: float = brentq(lambda logarithm: share(math.exp(logarithm)) - wanted, math.log(1e-9), math.log(1e9))
    return math.exp(log_seconds)


def _run(number: int, timed: _Timed, start: float | None, start_up: float, evaluating: float) -> Run:
    seconds = [each + start_up + evaluating * place for place, each in enumerate(timed.seconds, start=1)]
    return Run(
        where=f"runs.csv, run {number}",
        name=f"r{number}",
        num_gpus=timed.params["num_gpus"],
        batch_size=timed.params["batch_size"],
        learning_rate=timed.params["learning_rate"],
        seed=timed.params["seed"],
        settings={},
        evaluations=tuple(
            Evaluation(value=value, seconds=each, steps=steps, epochs=float(epochs))
            for value, each, steps, epochs in zip(timed.values, seconds, timed.steps, timed.epochs, strict=True)
        ),
        seconds=seconds[-1],
        ended="finished",
        started=start,
        machine=None,
        accelerator=None,
    )
