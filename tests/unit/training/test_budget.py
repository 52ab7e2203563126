"""How long a training is and when it is evaluated."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.budget import Budget, budget_of
from scalestudy.training.config import TrainConfig
from scalestudy.training.records import EpochRecord
from tests.support.epochs import epoch_of

STEPS_PER_EPOCH = 8


def config_of(**keys: Any) -> TrainConfig:
    """Batches of 32; a task counts tokens."""
    plain = {"model": "mlp", "data": "synthetic", "batch_size": 32, "learning_rate": 0.1, **keys}
    return TrainConfig.from_dict({**plain, **({"task": "a:Task", "metric": "f1"} if "tokens" in keys else {})})


@pytest.mark.parametrize(
    ("keys", "steps", "every", "evaluations"),
    [
        ({}, 80, 8, 10),
        ({"epochs": 3}, 24, 8, 3),
        ({"epochs": 5, "eval_every": {"epochs": 2}}, 40, 16, 3),
        ({"steps": 25}, 25, 3, 9),  # a tenth, rounded up
        ({"steps": 7}, 7, 1, 7),
        ({"steps": 100, "eval_every": {"steps": 30}}, 100, 30, 4),
        ({"steps": 5, "eval_every": {"steps": 30}}, 5, 30, 1),
    ],
)
def test_a_budget(keys: dict[str, Any], steps: int, every: int, evaluations: int) -> None:
    config = config_of(**keys)
    assert budget_of(config, STEPS_PER_EPOCH) == Budget(steps=steps, every=every)
    assert config.evaluations == evaluations


@pytest.mark.parametrize(
    ("most", "made"), [(1, [1, 0, 0]), (8, [8, 0, 0]), (11, [8, 3, 0]), (24, [8, 8, 8]), (None, [8, 8, 8])]
)
def test_the_steps_of_each_period(most: int | None, made: list[int]) -> None:
    budget = Budget(steps=24, every=8).cut(most)
    assert [budget.steps_of(period) for period in (1, 2, 3)] == made


def test_further_steps_are_periods_of_their_own_after_the_others() -> None:
    budget = Budget(steps=20, every=8).with_more(100).with_more(7)
    assert (budget.steps, budget.planned) == (127, 20)
    assert [budget.steps_of(period) for period in range(1, 8)] == [8, 8, 4, 100, 7, 0, 0]
    assert [budget.begin(period) for period in range(1, 8)] == [0, 8, 16, 20, 120, 127, 127]


@given(st.integers(1, 300), st.fractions(1, 60), st.lists(st.integers(1, 500), max_size=3))
def test_further_steps_change_no_period_before_them(steps: int, every: Fraction, more: list[int]) -> None:
    before = budget = Budget(steps=steps, every=every)
    for further in more:
        budget = budget.with_more(further)
    periods = math.ceil(steps / every)
    assert [budget.begin(period) for period in range(1, periods + 2)] == [
        before.begin(period) for period in range(1, periods + 2)
    ]
    made = [budget.steps_of(period) for period in range(periods + 1, periods + len(more) + 2)]
    assert made == [*more, 0]


def period_of(steps: int, step_seconds: float | None) -> EpochRecord:
    """A period's record; None: too few of its steps were timed."""
    rate = None if step_seconds is None else 32 / step_seconds
    return epoch_of(1, steps=steps, samples=32 * steps, samples_per_second=rate)


def test_timed_seconds_leave_out_each_warm_up() -> None:
    """Warm-ups of 5: periods of 8, 8, 4, then 100 and 7. Timed: 3 · 0.5 + 8 · 0.1 + 4 · 0.1 + 95 · 0.01 + 0 s."""
    budget = Budget(steps=20, every=8).with_more(100).with_more(7)
    records = [period_of(8, 0.5), period_of(8, 0.1), period_of(4, 0.1), period_of(100, 0.01), period_of(7, None)]
    assert budget.timed_seconds(records, 5) == pytest.approx(3 * 0.5 + 8 * 0.1 + 4 * 0.1 + 95 * 0.01)
    assert budget.timed_seconds(records[:1], 5) == pytest.approx(1.5)


def test_a_timed_training_gets_the_steps_that_it_lacks() -> None:
    """65 steps, 5 of them warm-up: 60 of 1 ms are 0.06 s; 1.94 s are 1,940 steps, 5 % more of them, and a warm-up."""
    budget = Budget(steps=65, every=100)
    assert budget.further_steps([period_of(65, 0.001)], 5, 2.0) == 5 + 2_037
    assert budget.further_steps([period_of(65, 0.04)], 5, 2.0) == 0  # 60 steps of 40 ms are 2.4 s
    assert budget.further_steps([period_of(65, 0.033)], 5, 2.0) == 5 + 10  # 1.98 s: one step more would have no rate
    assert budget.further_steps([period_of(65, 0.001)], 5, 0.0) == 0


def test_further_steps_that_were_faster_are_followed_by_more() -> None:
    budget = Budget(steps=65, every=100).with_more(2_042)
    records = [period_of(65, 0.001), period_of(2_042, 0.0005)]  # 0.06 + 1.0185 s
    assert budget.further_steps(records, 5, 2.0) == 5 + math.ceil(1.05 * 0.9215 / 0.0005)


def test_further_steps_are_bounded() -> None:
    """Also where a clock has jumped, or no step was timed."""
    budget = Budget(steps=65, every=100)
    assert budget.further_steps([period_of(65, 1e-12)], 5, 2.0) == 65_000
    assert budget.further_steps([period_of(65, None)], 5, 2.0) == 0
    for _ in range(3):
        budget = budget.with_more(10)
    assert budget.further_steps([period_of(65, 0.001), *[period_of(10, 0.001)] * 3], 5, 2.0) == 0


@given(st.integers(1, 500), st.integers(1, 60))
def test_periods_are_the_whole_training(steps: int, every: int) -> None:
    """Their steps sum to the training's, and its last evaluation follows its last step."""
    config = config_of(steps=steps, eval_every={"steps": every})
    budget = budget_of(config, STEPS_PER_EPOCH)
    made = [budget.steps_of(period) for period in range(1, config.evaluations + 2)]
    assert sum(made) == steps
    assert made[-1] == 0
    assert all(0 < count <= every for count in made[:-1])


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.floats(0.5, 40))
def test_a_length_in_tokens_becomes_steps(tokens: int, every: int, an_example: float) -> None:
    """As few as have the tokens on average; every evaluation is there, and each is after a step."""
    config = config_of(tokens=tokens, eval_every={"tokens": every})
    if every < 32 * an_example:
        with pytest.raises(ValueError, match=r"tokens are fewer than the \d+ of a step"):
            budget_of(config, STEPS_PER_EPOCH, an_example)
        return
    budget = budget_of(config, STEPS_PER_EPOCH, an_example)
    assert (budget.steps - 1) * 32 * an_example < tokens * (1 + 1e-9)
    assert tokens * (1 - 1e-9) <= budget.steps * 32 * an_example
    made = [budget.steps_of(period) for period in range(1, config.evaluations + 2)]
    assert sum(made) == budget.steps
    assert made[-1] == 0
    assert min(made[:-1]) > 0


def test_evaluations_of_tokens_fall_on_exact_steps() -> None:
    """15 steps in 11 periods: rounded, 11 · (15 / 11) would be 14, and a twelfth evaluation would follow."""
    budget = budget_of(config_of(tokens=4488, eval_every={"tokens": 408}), STEPS_PER_EPOCH, tokens_an_example=10.0)
    assert [budget.steps_of(period) for period in range(1, 13)] == [1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 2, 0]
