"""What is likely unfair in runs that are compared, and can't be known: tests of their times (docs/formulas.md §9).

A test compares runs of one place: the same workers, batch and, where they are named, machine and GPUs. Each has a size
from which it matters; Holm's step-down keeps the chance of any suspicion in fair runs below 5 %. Every time here begins
at a run's first evaluation, but for the start-up's own.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special  # `scipy.stats` has the same distributions, and takes half a second to import

from scalestudy.experiments.judging.facts import OTHER_BUDGET, ROUNDING_SECONDS, Finding, finding, span_of
from scalestudy.experiments.judging.reading import settings_of
from scalestudy.experiments.judging.runs import Run

LEVEL = 0.05
"""Chance of any suspicion in runs in which nothing is unfair."""
LEAST_RUNS = 3
"""Fewest runs of a group that is compared."""
COUNTED_SHARE = 0.05
"""From this share of the time on, start-up and evaluation matter: half of what a cell may be slower than the fastest
and still be recommended."""
SLOWED_RATIO = 1.1
"""From this ratio on, being slowed by other runs matters: as much as a recommended cell may be slower."""
SPEEDS_RATIO = 1.25
"""From this ratio on, two speeds are told. Types of machines differ by more, and runs on one machine scatter by up to
20 %."""
NEXT = 10
"""Periods after the first that it is compared with: a machine's speed may drift later."""
OVERLAPPED_SHARE = 0.5
"""A run overlaps with others if they run for at least this share of the time that is looked at."""
DRAWS = 999
"""Of the distribution of two speeds where there is one: p-values from 0.001 on."""


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """How fast a run was after its first evaluation. Progress is in updates, or in epochs where these are known."""

    run: Run
    rate: float  # seconds of a unit of progress
    interval: float  # progress from one evaluation to the next
    first: float  # seconds until the first evaluation
    usual: float  # mean seconds that later periods took for as much progress
    whole: float  # seconds until the last evaluation


@dataclass(frozen=True, kw_only=True)
class _Test:
    """A test that was made. told: the suspicion, if the test rejects; None: it is too small to matter."""

    p: float
    told: Finding | None


def suspicions_of(
    runs: Sequence[Run],
    facts: Sequence[Finding],
    *,
    apart: Sequence[str] = (),
    evaluation: Literal["included", "excluded", None] = None,
) -> list[Finding]:
    """Return what is likely unfair and not in the facts.

    apart: settings by which runs are compared apart. evaluation: whether the times are said to include it.
    """
    named = {fact.kind: set(fact.runs) for fact in facts}
    paces = _paces([run for run in runs if run.name not in named.get("clock", ())])
    counted = _evaluation(paces) if evaluation == "excluded" else None
    differs = evaluation != "excluded" or _shows(counted)
    groups = _interval_groups(paces) if differs else dict.fromkeys(map(id, paces), 0)

    def place(pace: _Pace) -> tuple[Hashable, ...]:
        settings = tuple(map(repr, settings_of(pace.run, apart).values()))
        return (*_place(pace.run), settings, groups[id(pace)])

    overlapped = _overlapped([pace for pace in paces if pace.run.name not in named.get("overlap", ())], runs, place)
    slowed = _slowed(overlapped)
    speeds = None
    if not {"machines", "accelerators"} & named.keys():
        of_others = {id(pace): others for _, pace, others in overlapped} if _shows(slowed) else {}
        strata: dict[Hashable, list[_Pace]] = defaultdict(list)
        for pace in paces:
            if pace.run.machine is None:
                strata[place(pace), of_others.get(id(pace))].append(pace)
        speeds = _speeds(list(strata.values()))
    return _told([_start_up(paces), counted, slowed, speeds])


def _told(tests: Sequence[_Test | None]) -> list[Finding]:
    """Return the suspicions of the tests that reject, of those that were made: Holm 1979."""
    made = [test for test in tests if test is not None]
    least = 0.0  # p-value that the first test that does not reject has
    for left, test in zip(range(len(made), 0, -1), sorted(made, key=lambda test: test.p), strict=True):
        least = test.p
        if test.p > LEVEL / left:
            break
    else:
        least = math.inf
    return [test.told for test in made if test.p < least and test.told is not None]


def _shows(test: _Test | None) -> bool:
    """Whether an effect has to be left out of what other tests compare."""
    return test is not None and test.p <= LEVEL


# --- what is known of the runs ----------------------------------------------------------------------------------------


def _paces(runs: Sequence[Run]) -> list[_Pace]:
    """Return the paces of the runs that have one, by the unit of progress that most runs know, the finest first."""
    by_steps = [pace for run in runs if (pace := _pace(run, "steps")) is not None]
    if len(by_steps) == len(runs):
        return by_steps
    return max(by_steps, [pace for run in runs if (pace := _pace(run, "epochs")) is not None], key=len)


def _pace(run: Run, unit: Literal["steps", "epochs"]) -> _Pace | None:
    """Return a run's pace; None with fewer than two evaluations whose time and progress are known."""
    known = [(0.0, 0.0)]
    for each in run.evaluations:
        made, seconds = getattr(each, unit), each.seconds
        if (
            made is not None
            and seconds is not None
            and known[-1][0] < made < math.inf
            and known[-1][1] < seconds < math.inf
        ):
            known.append((made, seconds))
    if len(known) < 3:
        return None
    (_, (start, first), *_, (end, whole)) = known
    periods = [(later - made, after - before) for (made, before), (later, after) in pairwise(known[1 : NEXT + 2])]
    apart = [abs(math.log(made / start)) for made, _ in periods]
    alike = [period for period, off in zip(periods, apart, strict=True) if off <= min(apart) + math.log(OTHER_BUDGET)]
    return _Pace(
        run=run,
        rate=(whole - first) / (end - start),
        interval=statistics.median(made for made, _ in periods),
        first=first,
        usual=statistics.fmean(seconds * max(1.0, start / made) for made, seconds in alike),
        whole=whole,
    )


def _place(run: Run) -> tuple[Hashable, ...]:
    return run.num_gpus, run.batch_size, run.machine, run.accelerator


def _interval_groups(paces: Sequence[_Pace]) -> dict[int, int]:
    """Return a number for each pace, by its id: runs of one size that evaluate at one interval have one."""
    sizes: dict[Hashable, list[_Pace]] = defaultdict(list)
    for pace in paces:
        sizes[pace.run.num_gpus, pace.run.batch_size].append(pace)
    groups: dict[int, int] = {}
    for those in sizes.values():
        number, before = 0, None
        for pace in sorted(those, key=lambda pace: pace.interval):
            number += before is not None and pace.interval > OTHER_BUDGET * before
            groups[id(pace)], before = number, pace.interval
    return groups


# --- tests ------------------------------------------------------------------------------------------------------------


def _start_up(paces: Sequence[_Pace]) -> _Test | None:
    """Test whether first periods are longer than later ones for as much progress: a t test of their logarithms.

    In fair runs the ratio to a mean has a mean logarithm of 0 or less (Jensen's inequality), however periods scatter.
    An evaluation may be in each period, so a first one of less progress is compared with no less than a later one.
    """
    if len(paces) < LEAST_RUNS:
        return None
    ratios = np.log([pace.first / pace.usual for pace in paces])
    p = _chance_of(float(ratios.mean()), float(ratios.std(ddof=1)) / math.sqrt(len(paces)), len(paces) - 1)
    extra = [pace.first - pace.usual for pace in paces]
    shares = [more / pace.whole for more, pace in zip(extra, paces, strict=True)]
    share = statistics.fmean(shares)
    those = [place for place, each in enumerate(shares) if each >= COUNTED_SHARE]
    if share < COUNTED_SHARE:
        return _Test(p=p, told=None)
    seconds = statistics.median(extra[place] for place in those)
    words = f"Start-up may be counted in the time: some {_seconds(seconds)}, {share:.0%} of it"
    return _Test(p=p, told=finding("start_up", words, [paces[place].run for place in those]))


def _evaluation(paces: Sequence[_Pace]) -> _Test | None:
    """Test whether seconds of a step grow with evaluations a step, within places: a slope, in seconds an evaluation.

    At a place most runs share an interval with two others, and there are two such intervals or more. Otherwise runs
    may evaluate by the clock, so that the slower evaluate more often; so they may if a longer interval takes no longer.
    """
    groups = _interval_groups(paces)
    places: dict[Hashable, dict[int, list[_Pace]]] = defaultdict(lambda: defaultdict(list))
    for pace in paces:
        places[_place(pace.run)][groups[id(pace)]].append(pace)
    tested: list[list[_Pace]] = []
    often: list[Run] = []
    for by_interval in places.values():
        shared = [those for _, those in sorted(by_interval.items()) if len(those) >= LEAST_RUNS]
        periods = [statistics.median(pace.rate * pace.interval for pace in those) for those in shared]
        by_clock = any(longer <= OTHER_BUDGET * shorter for shorter, longer in pairwise(periods))
        if len(shared) > 1 and 2 * sum(map(len, shared)) >= sum(map(len, by_interval.values())) and not by_clock:
            tested.append([pace for those in shared for pace in those])
            often += [pace.run for those in shared[:-1] for pace in those]
    if not tested:
        return None
    numbers = np.repeat(np.arange(len(tested)), [len(those) for those in tested])
    usual = np.array([statistics.median(pace.rate for pace in those) for those in tested])[numbers]
    rates = np.array([pace.rate for those in tested for pace in those])
    evaluations = np.array([1 / pace.interval for those in tested for pace in those])
    seconds, p = _slope(rates / usual, evaluations / usual, numbers)
    share = float((seconds * evaluations / rates).mean())
    if share < COUNTED_SHARE:
        return _Test(p=p, told=None)
    words = (
        f"Evaluation may be counted in the time: some {_seconds(seconds)} each, {share:.0%} of it; evaluated more often"
    )
    return _Test(p=p, told=finding("evaluation", words, often))


def _overlapped(
    paces: Sequence[_Pace], runs: Sequence[Run], place: Callable[[_Pace], Hashable]
) -> list[tuple[Hashable, _Pace, bool]]:
    """Return paces with their place and whether other runs were there at the same time; neither nor is left out.

    At a place the same time from each run's start on is looked at: a run that is slow for another reason lasts longer,
    and so meets more others. That time is the shortest run's; those that last less than half the median are left out.
    """
    spans = np.array([span for run in runs if (span := span_of(run)) is not None and span[0] < span[1]])
    if not len(spans):
        return []
    times = spans.T.ravel()
    order = np.argsort(times)
    at_once = np.cumsum(np.repeat([1, -1], len(spans))[order])
    times = times[order]
    shared = np.concatenate([[0.0], np.cumsum(np.diff(times) * (at_once[:-1] > 1))])
    places: dict[Hashable, list[tuple[_Pace, float, float]]] = defaultdict(list)
    for pace in paces:
        span = span_of(pace.run)
        if span is not None and span[0] < span[1]:
            places[place(pace)].append((pace, span[0], span[1] - span[0]))
    found = []
    for key, those in places.items():
        enough = statistics.median(length for *_, length in those) / 2
        long = [(pace, began) for pace, began, length in those if length >= enough]
        window = min(length for *_, length in those if length >= enough)
        begins = np.array([began for _, began in long])
        others = np.interp(begins + window, times, shared) - np.interp(begins, times, shared)
        for (pace, _), seconds in zip(long, others, strict=True):
            if seconds <= max(ROUNDING_SECONDS, (OTHER_BUDGET - 1) * window):
                found.append((key, pace, False))
            elif seconds >= OVERLAPPED_SHARE * window:
                found.append((key, pace, True))
    return found


def _slowed(overlapped: Sequence[tuple[Hashable, _Pace, bool]]) -> _Test | None:
    """Test whether steps of runs that overlap with others take longer than lone ones', within places that have both."""
    places: dict[Hashable, list[tuple[_Pace, bool]]] = defaultdict(list)
    for key, pace, others in overlapped:
        places[key].append((pace, others))
    tested = [those for those in places.values() if len({others for _, others in those}) == 2]
    beside = [pace.run for those in tested for pace, others in those if others]
    if not LEAST_RUNS <= len(beside) <= sum(map(len, tested)) - LEAST_RUNS:
        return None
    numbers = np.repeat(np.arange(len(tested)), [len(those) for those in tested])
    flat = [each for those in tested for each in those]
    log_ratio, p = _slope(
        np.log([pace.rate for pace, _ in flat]), np.array([float(others) for _, others in flat]), numbers
    )
    if log_ratio < math.log(SLOWED_RATIO):
        return _Test(p=p, told=None)
    ratio = math.exp(log_ratio)
    words = f"Runs may be slowed by others at the same time: a step takes {ratio:.2f}× as long as in lone runs"
    return _Test(p=p, told=finding("slowed", words, beside))


def _speeds(strata: Sequence[Sequence[_Pace]]) -> _Test | None:
    """Test whether runs of a place fall into two speeds: the logarithms' best parting against that of normal values.

    Left out are places whose runs scatter less than two groups so far apart would. This says nothing beforehand of how
    well they part: of normal values, the standard deviation is independent of all ratios of distances (Basu 1955).
    """
    tested: list[tuple[list[_Pace], _Parting]] = []
    for those in strata:
        count = len(those)
        if count < 2 * LEAST_RUNS:
            continue
        ordered = sorted(those, key=lambda pace: pace.rate)
        values = np.log([pace.rate for pace in ordered])
        least = math.log(SPEEDS_RATIO) * math.sqrt(LEAST_RUNS * (count - LEAST_RUNS)) / count
        if values.std() >= least:
            tested.append((ordered, _parted(values[None])))
    if not tested:
        return None
    generator = np.random.default_rng(0)
    drawn = sum(_parted(np.sort(generator.standard_normal((DRAWS, len(those))))).gain for those, _ in tested)
    gain = sum(float(parting.gain[0]) for _, parting in tested)
    p = (1 + int(np.count_nonzero(drawn >= gain))) / (1 + DRAWS)
    apart = [(those[int(parting.below[0]) :], float(parting.gap[0])) for those, parting in tested]
    far = [(slower, gap) for slower, gap in apart if gap >= math.log(SPEEDS_RATIO)]
    if not far:
        return _Test(p=p, told=None)
    ratio = math.exp(statistics.median(gap for _, gap in far))
    words = (
        f"Unnamed machines may be mixed: runs of the same workers and batch have two speeds, {ratio:.2f}× apart; slower"
    )
    return _Test(p=p, told=finding("speeds", words, [pace.run for slower, _ in far for pace in slower]))


@dataclass(frozen=True)
class _Parting:
    """The best partings of some values in two, an entry for each row of values."""

    gain: NDArray[np.float64]  # n log(sum of squares about the mean / sum about both groups' means)
    gap: NDArray[np.float64]  # between the means
    below: NDArray[np.int64]  # values in the lower group


def _parted(ordered: NDArray[np.float64]) -> _Parting:
    """Part each row of ascending values (rows, n) with the least sum of squares: Engelman and Hartigan 1969."""
    n = ordered.shape[1]
    centred = ordered - ordered.mean(axis=1, keepdims=True)
    below = np.arange(LEAST_RUNS, n - LEAST_RUNS + 1)
    sums = np.cumsum(centred, axis=1)[:, below - 1]
    between = sums**2 * (1 / below + 1 / (n - below))
    best = between.argmax(axis=1)
    rows = np.arange(len(ordered))
    share = between[rows, best] / (centred**2).sum(axis=1)
    gap = -sums[rows, best] * (1 / below + 1 / (n - below))[best]
    with np.errstate(divide="ignore"):  # two speeds without any scatter
        gain = -n * np.log1p(-np.minimum(share, 1.0))
    return _Parting(gain, gap, below[best])


def _slope(values: NDArray[np.float64], along: NDArray[np.float64], places: NDArray[np.int64]) -> tuple[float, float]:
    """Return the common slope of values within places, and the chance of one so steep if there is none.

    All are (n,); places are numbers from 0. Analysis of covariance: a mean a place, and normal values about them.
    """
    counts = np.bincount(places)
    x, y = (each - (np.bincount(places, each) / counts)[places] for each in (along, values))
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    freedom = len(values) - len(counts) - 1
    return slope, _chance_of(slope, math.sqrt(float(rest @ rest) / freedom / float(x @ x)), freedom)


def _chance_of(value: float, error: float, freedom: int) -> float:
    """Return the chance of such a value or a larger one if the true one is 0, by its standard error: Student 1908."""
    if error == 0:
        return 0.0 if value > 0 else 1.0
    return float(special.stdtr(freedom, -value / error))


# --- words ------------------------------------------------------------------------------------------------------------


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
