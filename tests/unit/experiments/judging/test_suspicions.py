"""What is likely unfair in runs and can't be known: found where it is, and not where the runs can't tell."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from scalestudy.experiments.judging import suspicions
from scalestudy.experiments.judging.facts import Finding, facts_of
from scalestudy.experiments.judging.runs import Evaluation, Run
from scalestudy.experiments.judging.suspicions import suspicions_of
from tests.support.suspicious_worlds import THRESHOLDS, suspected

STEP = 0.1
START = 1.7e9


def usual(number):
    """Of each run: steps between evaluations, what a step takes longer, seconds before the first and an evaluation."""
    return {"interval": 100, "slower": 1.0, "start_up": 0.0, "evaluating": 0.0}


def runs_of(own=usual, *, count=24, evaluations=10, noise=0.05, more=None):
    """Runs of two places by turns, one after another. own: as `usual`; more: further fields of each run."""
    generator = np.random.default_rng(4)
    runs, clock = [], START
    for number in range(count):
        said = usual(number) | own(number)
        step = STEP * said["slower"] * math.exp(generator.normal(0, noise))
        periods = said["interval"] * step * np.exp(generator.normal(0, 0.02, evaluations)) + said["evaluating"]
        seconds = (said["start_up"] + np.cumsum(periods)).tolist()
        runs.append(
            Run(
                where=f"runs.csv, run {number}",
                name=f"r{number}",
                num_gpus=1 + number % 2,
                batch_size=64,
                learning_rate=0.1,
                seed=number,
                settings={},
                evaluations=tuple(
                    Evaluation(value=0.5, seconds=each, steps=said["interval"] * place, epochs=place * 0.5)
                    for place, each in enumerate(seconds, start=1)
                ),
                seconds=seconds[-1],
                ended="finished",
                started=clock,
                machine=None,
                accelerator=None,
            )
        )
        clock += seconds[-1] + 10
    return [replace(run, **(more(number) if more else {})) for number, run in enumerate(runs)]


def odd(number):
    """Whether a run is of every other of its place."""
    return number // 2 % 2 == 1


def slow_ones(number):
    return {"slower": 1.5 if odd(number) else 1.0}


def two_intervals(number):
    return {"interval": 200 if odd(number) else 100, "evaluating": 3.0}


def side_by_side(runs, slower=1.0):
    """The later half of the runs two at a time, so much slower."""
    half = len(runs) // 2
    return [
        run
        if number < half
        else replace(
            run,
            started=START + 1e6 + 1000 * ((number - half) // 2),
            seconds=run.seconds * slower,
            evaluations=tuple(replace(each, seconds=each.seconds * slower) for each in run.evaluations),
        )
        for number, run in enumerate(runs)
    ]


def kinds(runs, facts=(), **said):
    return [each.kind for each in suspicions_of(runs, facts, **{"evaluation": "excluded", **said})]


def test_nothing_is_suspected_of_fair_runs():
    assert kinds(runs_of()) == []
    assert kinds(side_by_side(runs_of())) == []
    assert kinds(runs_of(lambda number: two_intervals(number) | {"evaluating": 0.0})) == []


def test_the_start_up_counted_in_the_time():
    [found] = suspicions_of(runs_of(lambda number: {"start_up": 20.0}), [], evaluation="excluded")
    assert (found.kind, found.certainty, len(found.runs)) == ("start_up", "suspicion", 24)
    assert found.words == "Start-up may be counted in the time: some 20 s, 17% of it: 24 runs (r0, r1, r2 and 21 more)."


def test_the_start_up_of_some_runs():
    [found] = suspicions_of(runs_of(lambda number: {"start_up": 40.0 * odd(number)}), [])
    assert set(found.runs) == {f"r{number}" for number in range(24) if odd(number)}


def test_a_start_up_beside_evaluations_in_each_period():
    """A first period of fewer steps is no shorter for its one evaluation than those of a whole interval."""
    runs = runs_of(lambda number: {"evaluating": 10.0}, evaluations=4, noise=0.0)
    first = [replace(run.evaluations[0], steps=50, seconds=15.0) for run in runs]
    early = [
        replace(run, evaluations=(one, *run.evaluations[1:])) for run, one in zip(runs, first, strict=True)
    ]  # 50 steps and an evaluation
    assert kinds(early, evaluation="included") == []


def test_evaluation_counted_in_the_time():
    [found] = suspicions_of(runs_of(two_intervals), [], evaluation="excluded")
    assert found.kind == "evaluation"
    assert set(found.runs) == {f"r{number}" for number in range(24) if not odd(number)}
    assert found.words.startswith("Evaluation may be counted in the time: some ")
    assert 2 < float(found.words.split("some ")[1].split(" s")[0]) < 4.5


@pytest.mark.parametrize("said", ["included", None])
def test_evaluation_that_is_known_to_be_counted_is_no_suspicion(said):
    """Nor do its two intervals look like two machines."""
    runs = runs_of(lambda number: two_intervals(number) | {"evaluating": 9.0}, noise=0.02)
    assert kinds(runs, evaluation=said) == []
    assert kinds(runs) == ["evaluation"]


def test_one_interval_tells_nothing_of_evaluation():
    assert kinds(runs_of(lambda number: {"evaluating": 5.0})) == []


@pytest.mark.parametrize("count", [24, 200])
def test_runs_that_evaluate_by_the_clock_do_so_more_often_a_step_where_they_are_slow(count):
    generator = np.random.default_rng(1)
    slower = np.exp(generator.normal(0, 0.2, count))
    assert kinds(runs_of(lambda number: {"slower": slower[number], "interval": round(100 / slower[number])})) == []
    long = {"slower": 100 * slower, "interval": np.maximum(1, np.round(5 / slower))}
    assert kinds(runs_of(lambda number: {key: each[number] for key, each in long.items()}, count=count)) == []


def test_two_speeds_of_unnamed_machines():
    [found] = suspicions_of(runs_of(slow_ones), [])
    assert (found.kind, found.certainty) == ("speeds", "suspicion")
    assert set(found.runs) == {f"r{number}" for number in range(24) if odd(number)}
    assert "two speeds, 1.5" in found.words


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda number: {"machine": f"node{odd(number)}"}, {}),
        (lambda number: {"machine": "node1"}, {}),
        (lambda number: {"accelerator": "H100" if odd(number) else "V100"}, {}),
        (lambda number: {"settings": {"amp": odd(number)}}, {"apart": ["amp"]}),
    ],
)
def test_speeds_that_something_explains_are_no_suspicion(more, said):
    assert kinds(runs_of(slow_ones, more=more), **said) == []


def test_mixed_machines_are_not_said_twice():
    """One run names no machine, others do, and the facts say that they are mixed."""
    runs = runs_of(slow_ones, count=36, more=lambda number: {"machine": f"node{number % 3}" if number < 6 else None})
    facts = [fact for fact in facts_of(runs, 0.9, "max") if fact.kind == "machines"]
    assert kinds(runs, facts) == []
    assert kinds(runs) == ["speeds"]


def test_runs_slowed_by_others_at_the_same_time():
    [found] = suspicions_of(side_by_side(runs_of(count=48), 1.25), [])
    assert (found.kind, set(found.runs)) == ("slowed", {f"r{number}" for number in range(24, 48)})
    assert found.words.startswith("Runs may be slowed by others at the same time: a step takes 1.2")


def test_runs_that_the_facts_say_overlap_are_not_said_twice():
    runs = [replace(run, machine="node1") for run in side_by_side(runs_of(count=48), 1.25)]
    facts = facts_of(runs, 0.9, "max")
    assert "overlap" in [fact.kind for fact in facts]
    assert kinds(runs, facts) == []


@pytest.mark.parametrize("distance", [60, 80, 95, 100, 105, 130])
def test_slow_runs_that_meet_the_next_for_lasting_longer_are_not_taken_for_slowed(distance):
    """They start by the clock, and nothing slows them."""
    runs = runs_of(count=200, noise=0.2, more=lambda number: {"started": START + distance * number})
    assert kinds(runs) == []


def steps_unknown(run):
    return replace(run, evaluations=tuple(replace(each, steps=None) for each in run.evaluations))


def test_epochs_do_as_well_as_steps():
    runs = runs_of(lambda number: slow_ones(number) | {"start_up": 20.0})
    assert kinds(list(map(steps_unknown, runs))) == kinds(runs) == ["start_up", "speeds"]


UNFAIR = [*runs_of(lambda number: slow_ones(number) | two_intervals(number) | {"start_up": 50.0})]


@pytest.mark.parametrize(
    "make",
    [
        lambda runs: [],
        lambda runs: runs[:1],
        lambda runs: runs[:2],
        lambda runs: [replace(run, evaluations=run.evaluations[-1:]) for run in runs],  # a row a run
        lambda runs: [replace(run, evaluations=()) for run in runs],
        lambda runs: [  # nothing but times
            replace(run, evaluations=tuple(replace(each, epochs=None) for each in steps_unknown(run).evaluations))
            for run in runs
        ],
        lambda runs: [
            replace(run, evaluations=tuple(replace(each, seconds=None) for each in run.evaluations)) for run in runs
        ],
        lambda runs: [  # equal times
            replace(run, evaluations=tuple(replace(each, seconds=7.0) for each in run.evaluations)) for run in runs
        ],
        lambda runs: [
            replace(run, evaluations=tuple(replace(each, seconds=math.nan) for each in run.evaluations)) for run in runs
        ],
        lambda runs: runs_of(noise=0.0),
    ],
)
def test_runs_that_can_tell_nothing(make):
    assert kinds(make(UNFAIR)) == []


def test_values_that_are_no_numbers_and_large_numbers_change_nothing():
    runs = runs_of(lambda number: {"start_up": 20.0})
    changed = [
        replace(
            run,
            evaluations=tuple(
                Evaluation(value=math.nan, seconds=each.seconds * 1e9, steps=each.steps * 1e12, epochs=None)
                for each in run.evaluations
            ),
        )
        for run in runs
    ]
    assert kinds(changed) == kinds(runs) == ["start_up"]


def test_equal_runs_of_two_speeds():
    """Without any scatter a parting explains all of it."""
    assert kinds(runs_of(slow_ones, noise=0.0)) == ["speeds"]


def test_a_clock_that_the_facts_doubt_is_left_out():
    runs = runs_of(lambda number: {"start_up": 20.0}, count=4)
    facts = [Finding(kind="clock", words="The clock runs backwards: 2 runs (r0, r1).", runs=("r0", "r1"))]
    assert kinds(runs, facts) == []
    assert kinds(runs) == ["start_up"]


def test_a_thousand_runs_of_a_hundred_evaluations_take_little_time():
    runs = side_by_side(runs_of(two_intervals, count=1000, evaluations=100))
    began = time.process_time()
    suspicions_of(runs, [], evaluation="excluded")
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(
    ("chances", "rejected"),
    [
        ([0.01, 0.04, 0.03, 0.005], 2),  # 0.005 < 0.05 / 4, 0.01 < 0.05 / 3, 0.03 > 0.05 / 2
        ([0.04], 1),
        ([0.04, 0.04], 0),  # 0.04 > 0.05 / 2
        ([0.02, 0.04], 2),
        ([], 0),
    ],
)
def test_holm(chances, rejected):
    [example] = suspicions_of(runs_of(slow_ones), [])
    tests = [None, *(suspicions._Test(p=p, told=example) for p in chances), suspicions._Test(p=1.0, told=None)][:-1]
    assert len(suspicions._told(tests)) == rejected


def test_the_best_parting():
    """Of 0, 0, 0, 3, 3, 6: sums of squares 30 about 2 and 0 + 6 about 0 and 4."""
    found = suspicions._parted(np.array([[0.0, 0, 0, 3, 3, 6]]))
    assert (found.below.tolist(), found.gap.tolist()) == ([3], [4.0])
    assert found.gain[0] == pytest.approx(6 * math.log(30 / 6))


def test_a_common_slope_is_that_of_least_squares():
    """Against a mean a place and one slope, fitted at once."""
    generator = np.random.default_rng(2)
    places = np.repeat([0, 1, 2], [4, 6, 8])
    along, values = generator.normal(size=(2, 18))
    design = np.column_stack([places[:, None] == [0, 1, 2], along])
    fitted, [rest], *_ = np.linalg.lstsq(design, values, rcond=None)
    error = math.sqrt(rest / (18 - 4) * np.linalg.inv(design.T @ design)[3, 3])
    slope, p = suspicions._slope(values, along, places)
    assert slope == pytest.approx(fitted[3])
    assert p == pytest.approx(suspicions._chance_of(fitted[3], error, 14))


def test_student_s_distribution():
    """With 2 degrees of freedom, t = 2.919986 has 5 % above it."""
    assert suspicions._chance_of(2.919986, 1.0, 2) == pytest.approx(0.05, rel=1e-5)
    assert [suspicions._chance_of(value, 0.0, 2) for value in (1.0, 0.0)] == [0.0, 1.0]


@pytest.mark.chaos
def test_fair_worlds_have_no_suspicion():
    found = suspected(None, range(100), noises=(0.05, 0.2), seed=7)
    assert sum(map(bool, found)) <= 5


@pytest.mark.chaos
@pytest.mark.parametrize("kind", THRESHOLDS)
def test_twice_the_threshold_is_found_and_half_of_it_is_not(kind):
    found, small = (suspected(kind, range(25), noises=(0.1, 0.1), seed=8, times=times) for times in (2.0, 0.5))
    assert sum(kind in each for each in found) >= 20
    assert sum(kind in each for each in small) <= 3
