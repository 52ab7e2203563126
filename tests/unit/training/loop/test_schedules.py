"""Schedules: the built-in ones, PyTorch's own classes as a training by hand uses them, and functions of the user's."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.learning_rate import LearningRate, Outline, make_rate, outline
from scalestudy.training.loop.schedules import cosine, linear, one_cycle
from scalestudy.training.registry import NO_SCHEDULES, TORCH_SCHEDULERS

HERE = "tests.unit.training.loop.test_schedules"
SAMPLES, STEPS = 1000, 4  # an epoch is three whole batches of 256, and one of 232


def rate_of(schedule: Any, **changes: Any) -> LearningRate:
    values: dict[str, Any] = {"model": "mlp", "data": "synthetic", "batch_size": 256, "learning_rate": 0.1}
    config = TrainConfig(**{**values, "epochs": 4, "schedule": schedule, **changes})
    return make_rate(config, SAMPLES, config.length * STEPS)


def rates(schedule: Any, updates: int = 16, **changes: Any) -> list[float]:
    """The rates of the first updates of a training of 16."""
    rate, found = rate_of(schedule, **changes), []
    for _ in range(updates):
        found.append(rate.rate())
        rate.advance()
    return found


def by_hand(kind: Any, arguments: dict[str, Any], updates: int = 16, per: int = 1, rate: float = 0.1) -> list[float]:
    """The rates of a loop as people write it: a scheduler of PyTorch's, which steps every `per` updates."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler, found = kind(optimizer, **arguments), []
    for update in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (update + 1) % per == 0:
            scheduler.step()
    return found


# --- PyTorch's schedulers --------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {
    "ConstantLR": {"factor": 0.5, "total_iters": 3},
    "CosineAnnealingLR": {"T_max": 16, "eta_min": 0.001},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3, "cycle_momentum": False},
    "ExponentialLR": {"gamma": 0.7},
    "LinearLR": {"start_factor": 0.2, "total_iters": 5},
    "MultiStepLR": {"milestones": [3, 7], "gamma": 0.1},
    "OneCycleLR": {"max_lr": 0.3, "total_steps": 17, "cycle_momentum": False},
    "PolynomialLR": {"total_iters": 12, "power": 2.0},
    "StepLR": {"step_size": 2, "gamma": 0.7},
}


def test_every_scheduler_of_pytorchs_is_taken_or_refused_with_a_reason() -> None:
    known = set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"}
    assert known == {*TORCH_SCHEDULERS, *NO_SCHEDULES}
    assert ARGUMENTS.keys() == TORCH_SCHEDULERS.keys()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("per", ["step", "epoch"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_its_rates_are_those_of_a_loop_by_hand_to_the_bit(name: str, per: str) -> None:
    kind, arguments = getattr(torch.optim.lr_scheduler, name), ARGUMENTS[name]
    found = rates({"name": name, "args": arguments, "per": per})
    assert found == by_hand(kind, arguments, per=1 if per == "step" else STEPS)
    by_path = {"name": f"torch.optim.lr_scheduler:{name}", "args": arguments, "per": per}
    assert rates(by_path) == found


class Halving(LRScheduler):
    """A user's scheduler, whose next rate follows from the last one."""

    def __init__(self, optimizer: torch.optim.Optimizer, every: int = 1) -> None:
        self.every = every
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        halve = self.last_epoch and self.last_epoch % self.every == 0
        return [group["lr"] * (0.5 if halve else 1.0) for group in self.optimizer.param_groups]


def test_a_scheduler_class_of_the_users() -> None:
    own = {"name": f"{HERE}:Halving", "args": {"every": 3}}
    assert rates(own) == by_hand(Halving, {"every": 3})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_training_that_resumes_at_any_step_has_the_same_rates(name: str) -> None:
    schedule = {"name": name, "args": ARGUMENTS[name]}
    whole = rates(schedule)
    for step in range(16):
        rate = rate_of(schedule)
        rate.rate()
        rate.load_state(json.loads(json.dumps({"progress": float(step), "estimator": None})))
        assert rate.rate() == whole[step]


def test_a_scheduler_follows_the_warm_up_and_the_rules_rate() -> None:
    found = rates(
        {"name": "StepLR", "args": {"step_size": 4, "gamma": 0.1}},
        warmup_steps=4,
        lr_rule="linear",
        base_batch_size=128,  # S = 2
    )
    assert found[:4] == pytest.approx([0.1, 0.125, 0.15, 0.175])
    assert found[4:] == by_hand(StepLR, {"step_size": 4, "gamma": 0.1}, updates=12, rate=0.2)


def test_epochs_are_counted_as_the_data_have_them() -> None:
    """A warm-up of one and a half epochs: what is left of the second is the schedule's first."""
    found = rates({"name": "StepLR", "args": {"step_size": 1, "gamma": 0.1}, "per": "epoch"}, warmup_steps=6)
    assert found[6:] == pytest.approx(2 * [0.1] + 4 * [0.01] + 4 * [0.001])


# --- the built-in ones -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 11, 100])
def test_one_cycle_of_any_length_equals_pytorchs(steps: int) -> None:
    arguments = {"max_lr": 1.0, "total_steps": steps + 1, "cycle_momentum": False}
    expected = by_hand(OneCycleLR, arguments, updates=steps, rate=1.0)
    assert [one_cycle(step, steps + 1) for step in range(steps)] == pytest.approx(expected, rel=1e-9)
    assert one_cycle(0, 1) == pytest.approx(4e-6)  # one update: PyTorch's last rate as well


@given(st.floats(0, 1e4), st.integers(1, 10**4), st.floats(0, 1e3), st.floats(0, 1))
def test_schedules_stay_in_their_range(step: float, steps: int, later: float, floor: float) -> None:
    for falling in (cosine, linear):
        assert floor <= falling(step + later, steps, floor) <= falling(step, steps, floor) <= 1
    assert 3.99e-6 < one_cycle(step, steps) <= 1


def test_a_floor_is_where_a_schedule_ends() -> None:
    # cosine: 0.1 + 0.9 · (1 + cos(pi · i/16))/2; half way 0.55
    found = rates({"name": "cosine", "args": {"floor": 0.1}}, updates=17)
    assert [found[0], found[8], found[16]] == pytest.approx([0.1, 0.055, 0.01])
    line = rates({"name": "linear", "args": {"floor": 0.5}}, updates=17)
    assert [line[0], line[8], line[16]] == pytest.approx([0.1, 0.075, 0.05])


def test_a_built_in_schedule_may_change_from_epoch_to_epoch() -> None:
    found = rates({"name": "linear", "per": "epoch"})
    assert found == pytest.approx([*4 * [0.1], *4 * [0.075], *4 * [0.05], *4 * [0.025]])


# --- functions of the user's -----------------------------------------------------------------------------------------


def of_progress(progress: float, gamma: float = 0.5) -> float:
    return 1.0 if progress < 0.5 else gamma


def of_steps(step: int, steps: int, table: Any = None) -> float:
    assert isinstance(step, int)
    return (table or [1.0, 0.5])[step * 2 // steps]


def test_a_function_gets_the_progress_as_a_share_or_the_step() -> None:
    own = rates({"name": f"{HERE}:of_progress", "args": {"gamma": 0.25}}, warmup_steps=4)
    assert own == pytest.approx([0.025, 0.05, 0.075, 0.1, *6 * [0.1], *6 * [0.025]])
    assert rates(f"{HERE}:of_steps", warmup_steps=4) == rates(f"{HERE}:of_progress", warmup_steps=4)
    assert rates(f"{HERE}:of_steps", updates=99)[-1] == 0.05, "beyond its end there is no further step"


def test_a_function_may_count_epochs() -> None:
    found = rates({"name": f"{HERE}:of_steps", "args": {"table": [1, 0.1]}, "per": "epoch"})
    assert found == pytest.approx([*8 * [0.1], *8 * [0.01]])


def test_a_function_may_give_a_number_of_numpys_or_pytorchs() -> None:
    assert rates(f"{HERE}:of_numpy")[0] == rates(f"{HERE}:of_torch")[0] == pytest.approx(0.05)


def of_numpy(progress: float) -> Any:
    return np.float32(0.5)


def of_torch(progress: float) -> Any:
    return torch.tensor(0.5)


# --- what is refused -------------------------------------------------------------------------------------------------


def until_now(progress: float, steps: float) -> float:
    return 1.0


def of_x(x: float) -> float:
    return 1.0


def with_gamma(progress: float, gamma: float) -> float:
    return gamma**progress


def text(progress: float) -> Any:
    return "0.1"


def nothing(progress: float) -> Any:
    return None


def not_a_number(progress: float) -> float:
    return math.nan if progress > 0.5 else 1.0


def negative(progress: float) -> float:
    return 0.5 - progress


def a_pair(progress: float) -> Any:
    return torch.ones(2)


def zero(progress: float) -> float:
    return 0.0


class Plateau(ReduceLROnPlateau):
    pass


class ByMetric(LRScheduler):
    def step(self, metric: float) -> None:  # type: ignore[override]
        super().step()


BOTH = r"factor\(progress\), a share of the training from 0 to 1, or factor\(step, steps\)"
REFUSED: dict[str, tuple[Any, str]] = {
    "the form until now": (f"{HERE}:until_now", rf"takes \(progress, steps\), .*; write {BOTH}"),
    "another name": (f"{HERE}:of_x", rf"takes \(x\), .*; write {BOTH}"),
    "another argument": (
        f"{HERE}:with_gamma",
        r"with_gamma\(progress: .*\) is called with \(0.0\): missing .*'gamma'; it takes progress, gamma",
    ),
    "an unknown argument": (
        {"name": f"{HERE}:of_progress", "args": {"gama": 1}},
        "unexpected keyword.*'gama'; it takes",
    ),
    "text": (f"{HERE}:text", r"gave '0.1' at step 0; return a finite number, 0 or above"),
    "None": (f"{HERE}:nothing", "gave a NoneType at step 0"),
    "NaN": (f"{HERE}:not_a_number", "gave nan at step 9"),
    "a negative rate": (f"{HERE}:negative", r"gave -0.0625 at step 9"),
    "two numbers": (f"{HERE}:a_pair", "gave a Tensor at step 0"),
    "zero throughout": (f"{HERE}:zero", "every rate of the training is 0"),
    "a scheduler without its arguments": ("StepLR", r"StepLR\(optimizer: .*step_size: .*missing .*'step_size'"),
    "an argument of another type": (
        {"name": "MultiStepLR", "args": {"milestones": 3}},
        r"does not take schedule.args \{'milestones': 3\} \(TypeError: ",
    ),
    "a momentum": (
        {"name": "OneCycleLR", "args": {"max_lr": 0.1, "total_steps": 16}},
        "cycle_momentum.*the rate alone can be scheduled",
    ),
    "a plateau": (f"{HERE}:Plateau", "waits for the metric.*choose StepLR"),
    "a scheduler of a metric": (f"{HERE}:ByMetric", "waits for the metric"),
    "too few steps": (
        {"name": "OneCycleLR", "args": {"max_lr": 0.1, "total_steps": 9, "cycle_momentum": False}},
        r"OneCycleLR.*Tried to step 1\d times",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_schedule_is_refused_before_the_training(case: str) -> None:
    schedule, said = REFUSED[case]
    with pytest.raises(InputError, match=said):
        outline(rate_of(schedule).plan)


def test_a_stream_has_no_epochs() -> None:
    config = TrainConfig(batch_size=8, learning_rate=0.1, steps=9, schedule={"name": "cosine", "per": "epoch"})
    with pytest.raises(InputError, match=r"which has no epochs; set schedule\.per to step"):
        make_rate(config, None, 9)


# --- the outline -----------------------------------------------------------------------------------------------------


def test_the_outline_of_a_training() -> None:
    found = outline(rate_of("linear", warmup_steps=4).plan)
    assert found == Outline(
        rates={  # of updates 0, 4, 4, 8, 12 and 15
            "the start": 0.025,
            "the warm-up's end": 0.1,
            "1/4": 0.1,
            "1/2": pytest.approx(0.1 * 8 / 12),
            "3/4": pytest.approx(0.1 * 4 / 12),
            "the end": pytest.approx(0.1 / 12),
        },
        peak=0.1,
        low_share=0.0,
    )
    assert "the warm-up's end" not in outline(rate_of("linear").plan).rates


def test_a_rate_that_falls_to_nothing_is_seen() -> None:
    falls = {"name": "ExponentialLR", "args": {"gamma": 0.2}}  # 0.2⁵ = 0.00032: from update 5 on
    assert outline(rate_of(falls).plan).low_share == pytest.approx(11 / 16)


def test_of_a_long_training_some_rates_are_looked_at() -> None:
    long = outline(rate_of("cosine", epochs=100_000).plan)
    assert (long.peak, long.rates["1/2"]) == (0.1, pytest.approx(0.05))
    assert long.low_share == pytest.approx(0.0201, abs=1e-3)  # acos(0.998)/pi from the end
