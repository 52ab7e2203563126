"""The points that a random search draws, and the plan that they make."""

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.plan.estimate import LastTimings, estimate
from scalestudy.experiments.plan.plan import Plan, cell_trial, corner_trials, make_plan, point_trials
from scalestudy.experiments.spec.search_space import Space, ToSuggest, cell_key, stated_places
from scalestudy.experiments.spec.sections import Range
from tests.support.synthetic_studies import spec_of

GRID = "name: x\nsweep: {num_gpus: [2, 1], batch_size: [64, 32, 16], learning_rate: [0.2, 0.1], seed: [1, 0]}\n"
RANDOM = "name: x\nsweep: {num_gpus: [1, 2], learning_rate: {log_uniform: [0.001, 1]}, seed: [0, 1]}\n"


def drawn(text, samples, seed=0):
    spec = spec_of(f"{text}search: {{method: random, samples: {samples}, seed: {seed}}}")
    return Space.of(spec.sweep).sample(samples, seed)


def test_the_same_seed_draws_the_same_points_and_another_others():
    assert drawn(RANDOM, 20) == drawn(RANDOM, 20)
    assert not {cell_key(cell) for cell in drawn(RANDOM, 20)} & {cell_key(cell) for cell in drawn(RANDOM, 20, seed=1)}


def test_points_once_drawn_stay():
    """Guards resume and `--extend` over versions of Python: another first point would be another study."""
    assert [(cell["num_gpus"], cell["learning_rate"]) for cell in drawn(RANDOM, 2)] == [(2, 0.005981), (1, 0.008127)]
    assert [(cell["batch_size"], cell["learning_rate"]) for cell in drawn(GRID, 2)] == [(16, 0.2), (32, 0.1)]


@pytest.mark.parametrize("text", [GRID, RANDOM])
def test_more_samples_begin_with_the_same_points(text):
    assert drawn(text, 5) == drawn(text, 9)[:5]


def test_no_point_is_drawn_twice_and_all_when_there_are_no_more():
    every = [{key: value for key, value in trial.params.items() if key != "seed"} for trial in planned(GRID, "grid")]
    for samples in (1, 5, 12, 20):
        found = [cell_key(cell) for cell in drawn(GRID, samples)]
        assert len(found) == len(set(found)) == min(samples, 12)
        assert set(found) <= {cell_key(cell) for cell in every}


def planned(text, method, **search):
    return make_plan(
        spec_of(f"{text}search: {{method: {method}}}", *(f"search.{k}={v}" for k, v in search.items()))
    ).trials


def test_each_point_of_a_list_is_drawn_as_often_as_another():
    """3 of 12 points with 2,000 seeds: 500 ± 19.4 each (binomial, p = 1/4); four deviations."""
    counts, space = {}, Space.of(spec_of(GRID).sweep)
    assert space.sample(3, 0) == drawn(GRID, 3, 0)
    for seed in range(2_000):
        for cell in space.sample(3, seed):
            counts[cell_key(cell)] = counts.get(cell_key(cell), 0) + 1
    assert len(counts) == 12
    assert all(abs(count - 500) < 78 for count in counts.values()), counts


def test_a_logarithmic_range_has_as_many_in_each_magnitude():
    rates = [cell["learning_rate"] for cell in drawn(RANDOM, 3_000)]
    decades = [sum(low <= rate < 10 * low for rate in rates) for low in (0.001, 0.01, 0.1)]
    assert sum(decades) == 3_000
    assert all(abs(count - 1_000) < 104 for count in decades)  # binomial, p = 1/3: four deviations of 25.8
    assert 0.0295 < math.exp(statistics.fmean(map(math.log, rates))) < 0.0339  # 0.0316 ± 4 · 0.0364 in the logarithm


def test_a_uniform_range_of_whole_numbers_has_each_as_often_both_ends_included():
    values = [Range(kind="uniform", low=3, high=6).at((n + 0.5) / 400) for n in range(400)]
    assert {value: values.count(value) for value in set(values)} == {3: 100, 4: 100, 5: 100, 6: 100}
    assert all(type(value) is int for value in values)


@given(
    st.sampled_from(["uniform", "log_uniform"]),
    st.floats(1e-6, 1e3),
    st.floats(1.0001, 1e6),
    st.floats(0, 1, exclude_max=True),
)
def test_what_is_drawn_lies_within_the_bounds_and_is_short(kind, low, factor, share):
    values = Range(kind=kind, low=low, high=low * factor)
    number = values.at(share)
    assert values.low <= number <= values.high
    assert number in (values.low, values.high) or len(f"{number:e}".rstrip("0")) <= 16
    assert values.tidy(number) == number


@given(st.sampled_from(["uniform", "log_uniform"]), st.integers(1, 50), st.integers(1, 500), st.floats(0, 1))
def test_whole_ranges_draw_whole_numbers_within_the_bounds(kind, low, width, share):
    number = Range(kind=kind, low=low, high=low + width).at(share)
    assert isinstance(number, int)
    assert low <= number <= low + width


def test_a_narrow_range_keeps_the_digits_that_tell_its_numbers_apart():
    values = Range(kind="uniform", low=0.1, high=0.1001)
    assert len({values.at(n / 100) for n in range(100)}) == 100


def test_a_range_of_few_numbers_gives_as_many_points():
    text = "name: x\nsweep: {batch_size: {uniform: [32, 35]}}\n"
    assert sorted(cell["batch_size"] for cell in drawn(text, 20)) == [32, 33, 34, 35]


def test_random_points_are_planned_with_all_their_seeds_by_num_gpus():
    trials = planned(RANDOM, "random", samples=7)
    assert len(trials) == 14
    assert [trial.num_gpus for trial in trials] == sorted(trial.num_gpus for trial in trials)
    assert [trial.seed for trial in trials] == [0, 1] * 7
    assert list(trials[0].params) == ["num_gpus", "batch_size", "learning_rate", "seed"]
    assert trials == planned(RANDOM, "random", samples=7)


def test_chosen_points_are_a_choice_for_random():
    text = "name: x\nsweep: {points: [{num_gpus: 1, batch_size: 8}, {num_gpus: 2, batch_size: 16}], seed: [0, 1],"
    trials = planned(f"{text} learning_rate: {{uniform: [0.1, 1]}}}}\n", "random", samples=30)
    assert {(trial.num_gpus, trial.batch_size) for trial in trials} == {(1, 8), (2, 16)}
    assert len(trials) == 60
    with_seeds = "name: x\nsweep: {points: [{num_gpus: 1, seed: 3}, {num_gpus: 2, seed: 4}]}\n"
    assert {(each.num_gpus, each.seed) for each in planned(with_seeds, "random")} == {(1, 3), (2, 4)}


TPE = "search: {method: tpe, samples: 6}"


def test_the_plan_of_a_search_says_what_is_to_come():
    spec = spec_of(f"{RANDOM}{TPE}", "train.epochs=3")
    plan = make_plan(spec)
    assert (plan.trials, plan.expected_trials, plan.sizes) == ((), 12, (1, 2))
    assert plan.to_suggest == ToSuggest(
        method="tpe",
        points=6,
        seeds=2,
        epochs=3,
        sizes=(1, 2),
        space={"num_gpus": "1 or 2", "batch_size": "256", "learning_rate": "0.001 to 1, log_uniform"},
    )
    assert Plan.from_dict(plan.to_dict()) == plan
    cost = estimate(plan, LastTimings([]), corners=corner_trials(spec))
    assert (len(cost.trials), cost.epochs, cost.worker_epochs, cost.seconds) == (12, 36, 72, None)


def test_a_plan_takes_in_what_was_suggested_once():
    spec = spec_of(f"{RANDOM}{TPE}")
    trials = point_trials(spec, {"num_gpus": 2, "batch_size": 256, "learning_rate": 0.5})
    plan = make_plan(spec).with_trials(trials).with_trials(trials)
    assert plan.trials == tuple(trials)
    assert (plan.expected_trials, plan.sizes) == (12, (1, 2))
    assert Plan.from_dict(plan.to_dict()) == plan
    assert [trial.name for trial in trials] == [
        "workers=2 batch=256 lr=0.5 seed=0",
        "workers=2 batch=256 lr=0.5 seed=1",
    ]


def test_a_suggested_trial_is_the_trial_of_the_grid():
    grid = make_plan(spec_of(GRID))
    spec = spec_of(f"{GRID}{TPE}")
    assert {trial for cell in Space.of(spec.sweep).corners() for trial in ids(point_trials(spec, cell))} == set(
        ids(grid.trials)
    )
    assert len(corner_trials(spec)) == 12
    assert len(corner_trials(spec, most=5)) == 5


def ids(trials):
    return [trial.trial_id for trial in trials]


def test_a_plan_without_a_search_is_written_as_before():
    plan = make_plan(spec_of(GRID))
    assert set(plan.to_dict()) == {"version", "study", "trials"}
    assert (plan.expected_trials, plan.sizes) == (24, (1, 2))


def test_sizes_of_a_range_are_all_its_numbers():
    text = f"name: x\nsweep: {{num_gpus: {{uniform: [2, 5]}}}}\n{TPE}"
    assert make_plan(spec_of(text)).sizes == (2, 3, 4, 5)


# --- the places of an adaptive search -----------------------------------------------------------------------------


ADAPTIVE = "search: {method: adaptive}\nbudget: {minutes: 30}\ntargets: {accuracy: [0.9]}\n"


def places(sweep):
    cells = stated_places(spec_of(f"name: x\n{ADAPTIVE}sweep: {{{sweep}}}"))
    return [tuple(cell.values()) for cell in cells]


@pytest.mark.parametrize(
    ("kind", "low", "high", "points"),
    [
        ("log_uniform", 1, 8, (1, 2, 4, 8)),
        ("uniform", 1, 8, (1, 2, 4, 8)),
        ("log_uniform", 3, 20, (3, 6, 12, 20)),
        ("log_uniform", 2, 3, (2, 3)),
        ("log_uniform", 1, 2**31 - 1, (*(2**n for n in range(31)), 2**31 - 1)),
        # log2(0.8 / 0.1) = 3 steps, each by 8^(1/3) = 2
        ("log_uniform", 0.1, 0.8, (0.1, 0.2, 0.4, 0.8)),
        # log2(10) = 3.3, so 3 steps, each by 10^(1/3) = 2.154
        ("uniform", 0.1, 1.0, (0.1, 0.2154, 0.4642, 1.0)),
        # log2(1.3) = 0.4: one step at least
        ("log_uniform", 0.1, 0.13, (0.1, 0.13)),
    ],
)
def test_a_range_states_points_an_octave_apart(kind, low, high, points):
    assert Range(kind=kind, low=low, high=high).octaves == points


@given(st.sampled_from(["uniform", "log_uniform"]), st.floats(1e-9, 1e9), st.floats(1.0001, 1e9))
def test_the_points_of_a_range_begin_and_end_at_its_bounds_and_are_octaves_as_near_as_these_allow(kind, low, factor):
    values = Range(kind=kind, low=low, high=low * factor)
    points = values.octaves
    assert (points[0], points[-1]) == (values.low, values.high)
    ratios = [second / first for first, second in itertools.pairwise(points)]
    assert all(1 < ratio < 2**1.51 for ratio in ratios)
    assert len(points) == 2 or all(ratio > 2**0.74 for ratio in ratios)  # two steps for 1.5 octaves are the shortest


@given(st.sampled_from(["uniform", "log_uniform"]), st.integers(1, 10_000), st.integers(1, 10_000_000))
def test_whole_points_double_up_to_the_upper_bound(kind, low, width):
    points = Range(kind=kind, low=low, high=low + width).octaves
    assert points == tuple(sorted({low * 2**n for n in range(40) if low * 2**n < low + width} | {low + width}))
    assert all(type(point) is int for point in points)


def test_places_are_every_combination_with_lists_as_they_are():
    assert places("num_gpus: [2, 1], batch_size: [8], learning_rate: [0.2, 0.1]") == [
        (2, 8, 0.2),
        (2, 8, 0.1),
        (1, 8, 0.2),
        (1, 8, 0.1),
    ]


def test_places_with_fewer_examples_than_workers_are_left_out():
    assert places("num_gpus: {log_uniform: [1, 8]}, batch_size: [2, 4]") == [
        (1, 2, 0.1),
        (1, 4, 0.1),
        (2, 2, 0.1),
        (2, 4, 0.1),
        (4, 4, 0.1),
    ]


def test_a_place_has_the_one_value_of_other_swept_keys_and_no_seed():
    spec = spec_of(f"name: x\n{ADAPTIVE}sweep: {{train.optimizer.momentum: [0.9], seed: [7], num_gpus: [1, 2]}}")
    for num_gpus, cell in zip((1, 2), stated_places(spec), strict=True):
        assert list(cell.items()) == [
            ("num_gpus", num_gpus),
            ("batch_size", 256),
            ("learning_rate", 0.1),
            ("train.optimizer.momentum", 0.9),
        ]


def test_the_plan_of_an_adaptive_search_says_what_it_chooses_among():
    spec = spec_of(f"{RANDOM.replace(', seed: [0, 1]', '')}{ADAPTIVE}", "train.epochs=3")
    plan = make_plan(spec)
    assert (plan.trials, plan.expected_trials, plan.sizes) == ((), 0, (1, 2))
    assert plan.to_suggest == ToSuggest(
        method="adaptive",
        points=22,  # 2 numbers of workers, and 10 octaves of rates
        seeds=1,
        epochs=3,
        sizes=(1, 2),
        space={
            "num_gpus": "1 or 2",
            "batch_size": "256",
            "learning_rate": "0.001, 0.001995, 0.003981, 0.007943, 0.01585, "
            "0.03162, 0.0631, 0.1259, 0.2512, 0.5012 or 1.0",
        },
    )
    assert Plan.from_dict(plan.to_dict()) == plan
    assert len(corner_trials(spec)) == 22
    assert estimate(plan, LastTimings([]), corners=corner_trials(spec)) is None


def test_the_trials_of_an_adaptive_search_are_those_known_so_far_and_at_most_those_of_its_budget():
    spec = spec_of(f"{GRID.replace('[1, 0]', '[1]')}{ADAPTIVE}")
    more = [cell_trial(spec, cell, 1) for cell in stated_places(spec)[:3]]
    assert make_plan(spec).with_trials(more).expected_trials == 3
    limited = spec_of(f"{GRID.replace('[1, 0]', '[1]')}{ADAPTIVE.replace('minutes', 'trials')}")
    assert make_plan(limited).with_trials(more).expected_trials == 30


def test_the_training_of_a_place_is_the_trial_of_the_grid_whatever_the_budget():
    spec = spec_of(f"{GRID.replace('[1, 0]', '[1]')}{ADAPTIVE}")
    other = spec_of(f"{GRID.replace('[1, 0]', '[1]')}{ADAPTIVE}", "budget={worker_hours: 2, uses: 5}")
    made = [cell_trial(spec, cell, seed) for cell in stated_places(spec) for seed in (1, 0)]
    assert {trial.trial_id: trial for trial in made} == make_plan(spec_of(GRID)).by_id()
    assert [cell_trial(other, cell, 1) for cell in stated_places(other)] == made[::2]
    assert cell_trial(spec, stated_places(spec)[0], 99).name == "workers=2 batch=64 lr=0.2 seed=99"
