"""Stage 8: Pareto front, knee, what to choose."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.analysis import recommend
from experiments.analysis.recommendation import knee, pareto
from experiments.analysis.targets import cost_of, typical_time
from tests.experiments.support import study_of, summary_of
from tests.support.trials import Law


def option(seconds, gpu_seconds):
    return {"seconds": seconds, "gpu_seconds": gpu_seconds}


def test_the_front_leaves_out_what_is_beaten():
    options = [option(4, 4), option(2, 5), option(3, 6), option(5, 4), option(1, 9)]
    assert pareto(options) == [option(1, 9), option(2, 5), option(4, 4)]


POINTS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


@given(POINTS)
def test_the_front_dominates_everything_and_nothing_in_itself(points):
    options = [option(*point) for point in points]
    front = pareto(options)
    assert front[0]["seconds"] == min(point[0] for point in points)
    assert front[-1]["gpu_seconds"] == min(point[1] for point in points)
    for each in options:
        assert any(f["seconds"] <= each["seconds"] and f["gpu_seconds"] <= each["gpu_seconds"] for f in front)
    for before, after in itertools.pairwise(front):
        assert before["seconds"] < after["seconds"]
        assert before["gpu_seconds"] > after["gpu_seconds"]


def test_the_knee_is_farthest_below_the_line_on_log_axes():
    # in log10: (0, 2), (0.301, 0.602), (1, 0.301), (2, 0); the line from (0, 2) to (2, 0) is y = 2 - x;
    # below it by 2 - 0.301 - 0.602 = 1.097 and 2 - 1 - 0.301 = 0.699
    front = [option(1, 100), option(2, 4), option(10, 2), option(100, 1)]
    assert knee(front) == option(2, 4)
    assert knee(front[:2]) is None
    assert knee([option(1, 100), option(2, 99), option(100, 1)]) is None  # above the line


@given(POINTS)
def test_the_knee_is_a_point_between_the_ends(points):
    front = pareto([option(*point) for point in points])
    bend = knee(front)
    assert bend is None or bend in front[1:-1]


def test_typical_times():
    assert typical_time([3.0, 1.0, 2.0]) == 2.0
    assert typical_time([1.0, math.inf]) is None
    assert typical_time([1.0, 2.0, math.inf]) == 2.0
    # five: without the fastest and the slowest, mean of 2, 3, 4
    assert typical_time([1.0, 2.0, 3.0, 4.0, 100.0]) == 3.0
    assert typical_time([1.0, 2.0, 3.0, 4.0, math.inf]) == 3.0
    assert typical_time([1.0, 2.0, 3.0, math.inf, math.inf]) is None
    assert typical_time([]) is None


def test_cost():
    # 1800 GPU-seconds are half an hour, at 2.5 an hour
    assert cost_of(1800.0, 2.5) == 1.25
    assert cost_of(None, 2.5) is None
    assert cost_of(1.0, None) is None


TEXT = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.5, 0.8]}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)


def test_the_true_optimum_is_found():
    law = Law(noise=0, learning=130)
    _, plan, trials = study_of(TEXT, law)
    found = recommend(plan, trials, targets=(0.5, 0.8), price=3.6)

    def seconds(workers, batch, rate):
        """Time to 0.8, interpolated between the epochs around it."""
        before = (0.0, 0.0)
        for epoch in range(1, 9):
            after = (epoch * law.epoch_seconds(workers, batch), law.accuracy(epoch, batch, rate))
            if after[1] >= 0.8:
                return before[0] + (0.8 - before[1]) / (after[1] - before[1]) * (after[0] - before[0])
            before = after
        return math.inf

    grid = [(workers, batch, rate) for workers in (1, 2, 4) for batch in (32, 128) for rate in (0.1, 0.2)]
    fastest = min(grid, key=lambda cell: seconds(*cell))
    cheapest = min(grid, key=lambda cell: seconds(*cell) * cell[0])
    keys = ("num_gpus", "batch_size", "learning_rate")
    assert found["target"] == 0.8
    assert tuple(found["fastest"][key] for key in keys) == fastest
    assert tuple(found["cheapest"][key] for key in keys) == cheapest
    assert found["fastest"]["seconds"] == pytest.approx(seconds(*fastest))
    # 3.6 an hour is 0.001 a GPU-second
    assert found["cheapest"]["cost"] == pytest.approx(seconds(*cheapest) * cheapest[0] / 1000)
    assert found["provisional"]


def test_choices_follow_what_is_asked():
    _, plan, trials = study_of(TEXT, Law(learning=130))
    assert recommend(plan, trials, accuracy=0.5)["target"] == 0.5
    assert recommend(plan, trials, targets=(0.8,), max_gpus=1)["fastest"]["num_gpus"] == 1
    by_cost = recommend(plan, trials, targets=(0.8,), by="cost")
    assert by_cost["choice"] == by_cost["cheapest"]
    none = recommend(plan, trials, accuracy=0.999)
    assert "no cell reached a test accuracy of 0.999" in none["fastest"]["why"]
    assert none["choice"] == none["best_accuracy"]
    assert recommend(plan, [], targets=(0.8,), max_gpus=0)["choice"]["value"] is None


def test_a_lower_target_is_used_where_the_highest_is_missed():
    recommendation = summary_of(TEXT.replace("0.8]", "0.999]"), Law(learning=130))["recommendation"]
    assert (recommendation["target"], recommendation["missed_targets"]) == (0.5, [0.999])


def test_five_seeds_are_no_longer_provisional():
    text = TEXT.replace("seed: [0, 1]", "seed: [0, 1, 2, 3, 4]")
    assert not summary_of(text, Law(learning=130))["recommendation"]["provisional"]
