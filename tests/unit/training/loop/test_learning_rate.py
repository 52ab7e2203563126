"""The learning rate of each update: exact numbers, PyTorch's own schedulers as witnesses, properties."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from scalestudy.training.config import TrainConfig
from scalestudy.training.loop.learning_rate import (
    GainEstimator,
    LearningRate,
    RatePlan,
    gain,
    make_rate,
    scaled_rate,
    warm_up_updates,
)

SAMPLES, STEPS = 1000, 4  # batches of 256: three whole ones and one of 232


def make_config(**changes: Any) -> TrainConfig:
    """A config of which only the rates are looked at."""
    values: dict[str, Any] = {"model": "mlp", "data": "synthetic", "learning_rate": 0.1, "epochs": 4}
    return TrainConfig(**(values | changes))


def made(config: TrainConfig) -> LearningRate:
    """The rates of a training of epochs."""
    return make_rate(config, SAMPLES, config.length * STEPS)


def rates(updates: int, **changes: Any) -> list[float]:
    """The rates of the first updates of a training with batches of 256 out of 1,000 examples."""
    rate = made(make_config(batch_size=256, **changes))
    return [_advanced(rate) for _ in range(updates)]


def _advanced(rate: LearningRate) -> float:
    value = rate.rate()
    rate.advance()
    return value


def test_a_line_after_a_warm_up() -> None:
    """16 updates, of which 4 are the warm-up, said in steps, epochs or as a share; then 12 along the schedule."""
    warm = [0.025, 0.05, 0.075, 0.1]
    line = [0.1 * (1 - step / 12) for step in range(12)]
    found = rates(16, warmup_steps=4, schedule="linear")
    assert found == pytest.approx(warm + line)
    assert rates(16, warmup_epochs=1, schedule="linear") == rates(16, warmup_share=0.25, schedule="linear") == found


def test_beyond_its_end_a_schedule_stays_where_it_ended() -> None:
    """A training that is timed may go on; a line of one's own would fall below zero."""
    plan = RatePlan(first=None, peak=0.5, warm_up=2, steps=10, schedule=lambda step, steps: 0.5 * (1 - step / steps))
    assert [plan.at(progress) for progress in (2, 6, 10, 11, 1000)] == [0.5, 0.25, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("none", 1024, 0.1),
        ("linear", 1024, 0.4),  # S = 4
        ("linear", 64, 0.025),  # S = 1/4
        ("sqrt", 1024, 0.2),
        ("sqrt", 64, 0.05),
        ("adascale", 1024, 0.1),  # before its gain
    ],
)
def test_the_rules_rate(rule: str, batch: int, expected: float) -> None:
    assert scaled_rate(rule, 0.1, batch / 256) == pytest.approx(expected, rel=1e-15)


def test_linear_warms_up_from_the_nominal_rate() -> None:
    # S = 256/64 = 4; W = 1.5 epochs · 4 = 6 updates; 0.1 + 3 · 0.1 · i/6
    found = rates(8, epochs=2, learning_rate=0.1, lr_rule="linear", base_batch_size=64, warmup_epochs=1.5)
    assert found == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4], rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "peak"),
    [
        ({"lr_rule": "none"}, 0.1),
        ({"lr_rule": "sqrt", "base_batch_size": 64}, 0.2),
        ({"lr_rule": "linear", "base_batch_size": 256}, 0.1),  # S = 1: there is nothing between 0.1 and 0.1
        ({"lr_rule": "linear", "base_batch_size": 1024}, 0.025),  # S = 1/4
    ],
)
def test_every_other_warm_up_rises_from_zero(changes: dict[str, Any], peak: float) -> None:
    found = rates(6, epochs=2, learning_rate=0.1, warmup_epochs=1, **changes)
    assert found == pytest.approx([peak / 4, peak / 2, peak * 3 / 4, peak, peak, peak], rel=1e-12)


@pytest.mark.parametrize(
    ("epochs", "updates"),
    [(0, 0), (1, 10), (0.25, 2), (0.7, 7), (0.01, 1), (5, 50)],  # 2.5 is rounded to the even 2
)
def test_warm_up_updates(epochs: float, updates: int) -> None:
    assert warm_up_updates(make_config(batch_size=256, warmup_epochs=epochs), 10, 50) == updates


def test_a_warm_up_in_tokens_or_as_a_share() -> None:
    of_tokens = make_config(batch_size=256, warmup_tokens=100_000, task="my:Task", metric="f1")
    assert warm_up_updates(of_tokens, 10, 50, tokens_an_example=64.0) == 6  # 100,000 / (256 · 64) = 6.1
    assert warm_up_updates(of_tokens, 10, 50, tokens_an_example=640_000.0) == 1
    assert [warm_up_updates(make_config(batch_size=256, warmup_share=share), 10, 50) for share in (0.001, 0.1, 1)] == [
        1,
        5,
        50,
    ]


def test_a_warm_up_longer_than_the_training_only_rises() -> None:
    found = rates(4, epochs=1, learning_rate=1.0, warmup_epochs=2, schedule="cosine")
    assert found == [0.125, 0.25, 0.375, 0.5]


def test_the_cosine_falls_to_zero_after_the_warm_up() -> None:
    # W = 4, then (1 + cos(pi · i/8))/2 over the eight updates that are left
    found = rates(13, epochs=3, learning_rate=1.0, schedule="cosine", warmup_epochs=1)
    falling = [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(9)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, *falling], abs=1e-12)
    assert found[12] == 0.0  # one update more than there are


def pytorchs(scheduler: type[LRScheduler], updates: int, peak: float, **arguments: Any) -> list[float]:
    """The rates that a scheduler of PyTorch gives SGD."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak, momentum=0.9)
    schedule = scheduler(optimizer, **arguments)
    found = []
    for _ in range(updates):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("epochs", [1, 2, 3, 25])
def test_schedules_equal_pytorchs(epochs: int) -> None:
    updates = epochs * STEPS
    one_cycle = pytorchs(OneCycleLR, updates - 1, 0.3, max_lr=0.3, total_steps=updates)
    found = rates(updates, epochs=epochs, learning_rate=0.3, schedule="one_cycle")
    assert found[:-1] == pytest.approx(one_cycle, rel=1e-9)
    assert found[-1] == pytest.approx(0.3 / 25 / 1e4, rel=1e-9)
    cosine = pytorchs(CosineAnnealingLR, updates, 0.3, T_max=updates)
    assert rates(updates, epochs=epochs, learning_rate=0.3, schedule="cosine") == pytest.approx(cosine, rel=1e-9)


def test_one_cycle_peaks_at_the_rules_rate() -> None:
    found = rates(40, epochs=10, learning_rate=0.1, schedule="one_cycle", lr_rule="linear", base_batch_size=64)
    assert max(found) == found[11] == pytest.approx(0.4)  # 0.3 · 40 - 1


settings = st.fixed_dictionaries(
    {
        "lr_rule": st.sampled_from(["none", "linear", "sqrt"]),
        "schedule": st.sampled_from(["constant", "cosine"]),
        "warmup_epochs": st.floats(0, 3),
        "base_batch_size": st.integers(1, 2000),
        "epochs": st.integers(1, 4),
        "learning_rate": st.floats(1e-6, 10),
    }
)


@given(settings, st.integers(0, 15))
def test_a_rate_taken_up_at_any_step_goes_on_as_before(changes: dict[str, Any], step: int) -> None:
    config = make_config(batch_size=256, **changes)
    whole, resumed = made(config), made(config)
    for _ in range(step):
        whole.advance()
    resumed.load_state(json.loads(json.dumps(whole.state())))
    assert [_advanced(whole) for _ in range(3)] == [_advanced(resumed) for _ in range(3)]


@given(settings)
def test_rates_rise_to_the_rules_rate_or_fall_to_it_and_never_pass_it(changes: dict[str, Any]) -> None:
    scale = 256 / changes["base_batch_size"]
    peak = scaled_rate(changes["lr_rule"], changes["learning_rate"], scale)
    found = rates(4 * changes["epochs"], **changes)
    warm_up = warm_up_updates(make_config(batch_size=256, **changes), STEPS, 4 * changes["epochs"])
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in found)
    assert found[:warm_up] == sorted(found[:warm_up])
    assert found[warm_up:] == sorted(found[warm_up:], reverse=True)


@pytest.mark.parametrize(
    ("sq_norm", "trace_cov", "base", "scale", "expected"),
    [
        (1.0, 8.0, 8, 4, 1.6),  # σ² = 1, μ² = 1: 2 / (1/4 + 1)
        (2.0, 64.0, 16, 8, 2.4),  # σ² = 4, μ² = 2: 6 / (4/8 + 2)
        (1.0, 8.0, 8, 0.5, 2 / 3),  # 2 / (2 + 1)
        (0.0, 8.0, 8, 4, 4.0),  # only noise: S
        (-5.0, 8.0, 8, 4, 4.0),  # an average below 0 counts as 0
        (1e6, 8.0, 8, 4, 1.0),  # hardly any noise: 1
        (1.0, -3.0, 8, 4, 1.0),  # below 1e-6 counts as 1e-6
        (0.0, 0.0, 8, 4, 4.0),  # nothing at all: what is left of the noise wins
    ],
)
def test_the_gain(sq_norm: float, trace_cov: float, base: int, scale: float, expected: float) -> None:
    assert gain(sq_norm, trace_cov, base, scale) == pytest.approx(expected, rel=1e-5)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.integers(1, 10**5), st.floats(1e-4, 1e4))
def test_the_gain_lies_between_one_and_the_scale(sq_norm: float, trace_cov: float, base: int, scale: float) -> None:
    assert min(1.0, scale) <= gain(sq_norm, trace_cov, base, scale) <= max(1.0, scale)


def test_the_averages_forget_a_share_of_the_scale() -> None:
    estimator = GainEstimator(base_batch_size=1, scale=500)
    estimator.update(1.0, 100.0)
    estimator.update(4.0, 400.0)
    # weights 0.5 and 1: |G|² = (0.5 · 1 + 4) / 1.5 = 3, tr Σ = 300; r = 303 / (300/500 + 3)
    assert estimator.gain == pytest.approx(303 / 3.6)
    for _ in range(100):
        estimator.update(2.0, 0.0)
    assert estimator.gain == pytest.approx(1.0)


def test_the_averages_are_clipped_as_means_and_not_as_sums() -> None:
    estimator = GainEstimator(base_batch_size=1, scale=4)
    for _ in range(3):
        estimator.update(1e-7, 1e-7)
    # tr Σ counts as 1e-6: r = (1e-6 + 1e-7) / (1e-6/4 + 1e-7) = 1.1 / 0.35
    assert estimator.gain == pytest.approx(1.1 / 0.35)


def test_above_a_thousand_only_the_last_estimate_counts() -> None:
    estimator = GainEstimator(base_batch_size=1, scale=2000)
    estimator.update(1.0, 1e9)
    estimator.update(1.0, 0.0)
    assert estimator.gain == pytest.approx(1.0, rel=1e-5)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=20), st.floats(1e-3, 2e3))
def test_smoothed_gains_lie_between_one_and_the_scale(estimates: list[tuple[float, float]], scale: float) -> None:
    estimator = GainEstimator(base_batch_size=32, scale=scale)
    for sq_norm, trace_cov in estimates:
        estimator.update(sq_norm, trace_cov)
        assert min(1.0, scale) <= estimator.gain <= max(1.0, scale)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_left_out(bad: float) -> None:
    estimator = GainEstimator(base_batch_size=8, scale=4)
    estimator.update(1.0, 8.0)
    estimator.update(bad, 8.0)
    estimator.update(1.0, bad)
    assert estimator.gain == pytest.approx(1.6)


def adascale(**changes: Any) -> LearningRate:
    """S = 4, so that an epoch of four updates counts for at most sixteen at the base batch size."""
    values = {"learning_rate": 0.1, "lr_rule": "adascale", "base_batch_size": 64, "epochs": 2}
    return made(make_config(batch_size=256, **(values | changes)))


def test_adascale_multiplies_by_its_gain_and_counts_it_as_progress() -> None:
    rate = adascale()
    assert rate.estimator is not None
    rate.estimator.update(1.0, 64.0)  # σ² = μ² = 1: r = 2 / (1/4 + 1) = 1.6
    assert _advanced(rate) == pytest.approx(0.16)
    assert rate.progress == pytest.approx(1.6)


def test_adascales_schedule_follows_its_progress() -> None:
    rate = adascale(schedule="cosine")  # horizon: 2 epochs · ⌈1000/64⌉ = 32
    assert rate.estimator is not None
    rate.estimator.update(0.0, 1.0)  # r = S = 4
    found = [_advanced(rate) for _ in range(9)]
    # τ = 0, 4, 8, …: 4 · 0.1 · (1 + cos(pi · τ/32))/2; at 32 and beyond 0
    assert found == pytest.approx([0.2 * (1 + math.cos(math.pi * 4 * i / 32)) for i in range(9)], abs=1e-15)
    assert rate.rate() == 0.0


def test_adascale_goes_on_as_before() -> None:
    rate, resumed = adascale(), adascale()
    assert rate.estimator is not None
    assert resumed.estimator is not None
    rate.estimator.update(1.0, 64.0)
    rate.advance()
    resumed.load_state(json.loads(json.dumps(rate.state())))
    for each in (rate, resumed):
        assert each.estimator is not None
        each.estimator.update(2.0, 10.0)
    assert (resumed.rate(), resumed.progress) == (rate.rate(), rate.progress)


def test_at_the_base_batch_size_adascale_is_no_rule() -> None:
    rate = adascale(base_batch_size=256)
    assert [_advanced(rate) for _ in range(8)] == [0.1] * 8


def test_adascale_without_its_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lr_rule: adascale has no estimate .*; train with the hook "):
        adascale().rate()
