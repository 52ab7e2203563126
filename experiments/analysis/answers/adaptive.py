"""What an adaptive search looked at and why, what it chose, and whether fresh seeds confirm the choice."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.beliefs import Beliefs, Place, Size
from scalestudy.experiments.analysis.answers.evidence import Evidence, number_of
from scalestudy.experiments.analysis.answers.next_look import CONFIRMATIONS, WITHIN, Over, Room, chosen_and_next, decide
from scalestudy.experiments.analysis.measures.endings import UNCHOSEN
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, finite
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.analysis.measures.usable import COUNTED, TIMED, time_to_target
from scalestudy.experiments.plan.plan import name_of

PREDICTIVE = (0.01, 0.5, 0.99)
"""Quantiles of the predicted median of fresh seeds: outside the outer ones, 98 %, a choice is not confirmed."""


def adaptive_part(analysis: Analysis, wall_seconds: float | None = None) -> Figure | None:
    """Return the `adaptive` of `summary.json`; None if no adaptive search made the study's trials.

    wall_seconds: of all runs of the study; None if they are unknown, as they are while it runs.

    Returns:
        minimises: `time` or `cost`. ended: why looking ended (`Over.why`), null if it has not. why: of what is missing:
        a choice, further looks, or the confirmation; null if nothing is. chosen, beside: labels of the cell
        believed best, and of the second. probability: that the chosen cell is within `within` of the best of all
        possible cells, by the looks alone. leans_on: `{steps, seconds}`, each `looks` if the chosen cell's were looked
        at, else `law`. looks: `{trainings, timings, confirmations}`. untried: `{cells, of, steps, of_steps, sizes,
        of_sizes}`: how many of the stated cells, of their pairs of batch size and rate, and of num_gpus and batch
        size, were not looked at. possible: how many cells may still be the answer. budget: `{unit, amount}`.
        confirmation: a row for the chosen cell and the second: `label`, `seeds`, `reached`, `fresh_seconds` (median
        over the seeds, after the warm-up), the predicted `seconds`, `low` and `high` (98 %) of such a median, and
        `confirmed`. steps: a row for each look, with `number`, `kind`, `name`, `status`, `took` (worker-seconds), and
        what `Look` says of why.
    """
    evidence = analysis.evidence
    if evidence is None:
        return None
    spec, beliefs = analysis.spec, evidence.beliefs
    looked = [trial for trial in evidence.trials if trial.look is not None]
    trainings = [trial for trial in looked if not trial.is_timing]
    timings = [trial for trial in looked if trial.is_timing]
    ended = _ended(evidence, wall_seconds)
    pair = [] if beliefs is None else chosen_and_next(beliefs)
    places = [] if beliefs is None else [beliefs.places[index] for index in pair]
    names = [evidence.label_of(place) for place in places]
    fresh = [[trial for trial in evidence.confirmations if Place.of(trial) == place] for place in places]
    [(unit, amount)] = spec.budget.limits.items()
    return {
        "minimises": spec.minimises,
        "ended": ended,
        "why": _why(fresh, ended) if fresh else UNCHOSEN[ended],
        "chosen": names[0] if names else None,
        "beside": names[1] if len(names) > 1 else None,
        "probability": beliefs.chance(pair[0], WITHIN) if beliefs is not None else None,
        "within": WITHIN,
        "leans_on": _leans_on(places[0], trainings, timings) if places else None,
        "looks": {
            "trainings": len(trainings),
            "timings": len(timings),
            "confirmations": len(evidence.confirmations),
        },
        "untried": _untried(evidence.stated, trainings, timings),
        "possible": len(evidence.possible),
        "budget": {"unit": unit, "amount": amount},
        "confirmation": [
            _confirmed(evidence, beliefs, index, name, seeds, analysis.metric)
            for index, name, seeds in zip(pair, names, fresh, strict=True)
            if beliefs is not None and seeds
        ],
        "steps": [_step(trial) for trial in sorted([*looked, *evidence.confirmations], key=number_of)],
    }


def _ended(evidence: Evidence, wall_seconds: float | None) -> str | None:
    """Return why looking ended: the search itself says so of what has ended. None: it would go on."""
    decision = decide(evidence, (), Room(workers=1, minutes=(wall_seconds or 0.0) / 60))
    return decision.why if isinstance(decision, Over) else None


def _why(fresh: Sequence[Sequence[Trial]], ended: str | None) -> str | None:
    """Return why something is missing. fresh: trials of fresh seeds, of the chosen cell and of the second."""
    if ended is None:
        return "its looks, or its confirmation, were cut short"
    trials = [trial for seeds in fresh for trial in seeds]
    if len(trials) < len(fresh) * CONFIRMATIONS:
        return "the budget had no room for the whole confirmation"
    failed = sum(trial.status not in COUNTED for trial in trials)
    return f"{failed} of {plural(len(trials), 'fresh seed')} failed" if failed else None


def _leans_on(chosen: Place, trainings: Sequence[Trial], timings: Sequence[Trial]) -> dict[str, str]:
    recipes = {Place.of(trial).recipe(pooled=True) for trial in trainings if trial.status in TIMED}
    sizes = {Size.of(trial) for trial in timings if trial.status in TIMED}
    return {
        "steps": "looks" if chosen.recipe(pooled=True) in recipes else "law",
        "seconds": "looks" if chosen.size in sizes else "law",
    }


def _untried(places: Sequence[Place], trainings: Sequence[Trial], timings: Sequence[Trial]) -> dict[str, int]:
    tried = {Place.of(trial) for trial in trainings}
    recipes, seen = ({place.recipe(pooled=True) for place in each} for each in (places, tried))
    sizes, timed = {place.size for place in places}, {Size.of(trial) for trial in timings}
    return {
        "cells": len(set(places) - tried),
        "of": len(places),
        "steps": len(recipes - seen),
        "of_steps": len(recipes),
        "sizes": len(sizes - timed),
        "of_sizes": len(sizes),
    }


def _confirmed(
    evidence: Evidence, beliefs: Beliefs, index: int, name: str, fresh: Sequence[Trial], metric: StudyMetric
) -> dict[str, Any]:
    """Return a row of the confirmation. index, name: of a cell; fresh: its trials, one or more."""
    ended = [trial for trial in fresh if trial.status in COUNTED] or fresh
    seconds = [_seconds(trial, evidence.target, metric) for trial in ended]
    middle = statistics.median(seconds)
    low, value, high = _predicted(beliefs, index, len(ended))
    return {
        "label": name,
        "seeds": len(ended),
        "reached": sum(map(math.isfinite, seconds)),
        "fresh_seconds": finite(middle),
        "seconds": value,
        "low": low,
        "high": high,
        "confirmed": low <= middle <= high,
    }


def _seconds(trial: Trial, target: float, metric: StudyMetric) -> float:
    """Return the seconds to the target at the rate after the warm-up, which predictions are of."""
    elapsed = np.cumsum([trial.seconds_of(epoch) or epoch.train_seconds or 0.0 for epoch in trial.epochs]).tolist()
    tested = [epoch.tested.get(metric.key) for epoch in trial.epochs]
    points = [(at, value) for at, value in zip(elapsed, tested, strict=True) if value is not None]
    return time_to_target(points, target, metric)


def _predicted(beliefs: Beliefs, index: int, seeds: int) -> tuple[float, float, float]:
    """Return the predicted median over so many fresh seeds, each in a run of its own, with its interval (98 %).

    It is that of seeds that reach the target: how many do is told beside it.
    """
    draws = beliefs.reaching[:, index]
    scatter = math.hypot(beliefs.scatter, beliefs.noise)
    each = draws[:, None] + scatter * np.random.default_rng(0).standard_normal((len(draws), seeds))
    low, value, high = np.exp(np.quantile(np.median(each, axis=1), PREDICTIVE)).tolist()
    return low, value, high


def _step(trial: Trial) -> dict[str, Any]:
    assert trial.look is not None
    return {
        **trial.look.to_dict(),
        "name": name_of(trial.kind, trial.params),
        "status": trial.status,
        "took": trial.wall_seconds * trial.num_gpus,
    }
