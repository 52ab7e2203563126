"""The points that a random search draws, and the plan that they make."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.plan.estimate import LastTimings, estimate
from scalestudy.experiments.plan.plan import Plan, corner_trials, make_plan, point_trials
from scalestudy.experiments.spec.search_space import Space, ToSuggest, cell_key
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
    assert (len(cost.trials), cost.epochs, cost.worker_epochs, cost.spans) == (12, 36, 72, None)


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
