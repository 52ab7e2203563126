"""How long a training is and when it is evaluated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.budget import Budget, budget_of
from scalestudy.training.config import KnobError, TrainConfig
from tests.support.training.helpers import make_config

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


@given(st.integers(1, 500), st.integers(1, 60))
def test_periods_are_the_whole_training(steps: int, every: int) -> None:
    """Their steps sum to the training's, and its last evaluation follows its last step."""
    config = config_of(steps=steps, eval_every={"steps": every})
    budget = budget_of(config, STEPS_PER_EPOCH)
    made = [budget.steps_of(period) for period in range(1, config.evaluations + 2)]
    assert sum(made) == steps
    assert made[-1] == 0
    assert all(0 < count <= every for count in made[:-1])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"epochs": 2, "steps": 10}, "steps: 10 does not go with epochs 2: both say how long a training is"),
        ({"epochs": 2, "eval_every": {"steps": 5}}, "does not go with epochs 2: a training of epochs is evaluated by"),
        ({"steps": 9, "eval_every": {"epochs": 1}}, "does not go with steps 9: a training of steps is evaluated by"),
        ({"epochs": 1, "eval_every": {"minutes": 1}}, "is not one of epochs, steps and tokens with a number"),
        ({"epochs": 1, "eval_every": {"steps": 0}}, "has no whole number above 0"),
        ({"epochs": 1, "eval_every": 5}, "is not one of epochs, steps and tokens with a number"),
        ({"steps": 0}, "steps: 0 is too small"),
        ({"steps": 5, "tokens": 5}, "tokens: 5 does not go with steps 5: both say how long a training is"),
        ({"tokens": 5}, "tokens: 5 does not go with task null: only a task counts tokens"),
        ({}, "epochs: None is no length, and steps and tokens give none"),
    ],
)
def test_a_wrong_budget_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(KnobError, match=said):
        make_config(**({"epochs": None} | keys))


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
