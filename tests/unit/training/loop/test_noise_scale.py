"""The gradient noise scale: exact small cases, a linear problem whose gradients are known, what the hook measures;
AdaScale, which goes by it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from torch import nn

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data.builtin import linear_truth
from scalestudy.training.data.loading import load_splits
from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync.explicit import FlatSync
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.learning_rate import gain
from scalestudy.training.loop.noise_scale import AdaScale, NoiseScale, estimate_noise, first_half, with_required
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.seeding import epoch_order
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, EachStep, make_config, outcome, run_training, same_bits

Measured = tuple[float | None, float | None]  # an epoch's |G|² and tr Σ
Gradients = NDArray[np.float64]  # (examples, parameters): one gradient an example


def test_the_estimate_of_even_shards() -> None:
    # N = 2, b = 3: |G|² = (2·5 - 8)/(2 - 1) = 2, tr Σ = 3·2·(8 - 5)/(2 - 1) = 18
    assert estimate_noise([7.0, 9.0], [3, 3], 5.0) == pytest.approx((2.0, 18.0))


def test_the_estimate_of_uneven_shards() -> None:
    # L = (6 + 10 + 2)/3 = 6, 1/h = (1/1 + 1/2 + 1/6)/3 = 5/9, B = 9: tr Σ = (6 - 2)/(5/9 - 1/9) = 9, |G|² = 2 - 9/9
    assert estimate_noise([6.0, 10.0, 2.0], [1, 2, 6], 2.0) == pytest.approx((1.0, 9.0))
    assert estimate_noise([6.0, 0.0, 10.0, 2.0], [1, 0, 2, 6], 2.0) == pytest.approx((1.0, 9.0))  # 0 examples


@pytest.mark.parametrize("sizes", [[4, 0], [0, 0], [1]])
def test_one_part_is_not_enough(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"part_sizes: .* fewer than two parts"):
        estimate_noise([1.0] * len(sizes), sizes, 1.0)


def mean_estimate(batches: Sequence[Gradients], sizes: Sequence[int]) -> tuple[float, float]:
    """The mean of the estimates from batches that are split into parts of these sizes."""
    ends = np.cumsum(sizes)[:-1]
    found = []
    for batch in batches:
        parts = [part.mean(axis=0) for part in np.split(batch, ends)]
        whole = batch.mean(axis=0)
        found.append(estimate_noise([float(part @ part) for part in parts], sizes, float(whole @ whole)))
    return float(np.mean([each.sq_norm for each in found])), float(np.mean([each.trace_cov for each in found]))


populations = arrays(np.float64, (4, 2), elements=st.floats(-10, 10))
two_or_more_parts = st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 1, 1), (1, 2, 1), (3, 1)])


@given(populations, two_or_more_parts)
def test_it_is_unbiased_over_all_batches_drawn_with_replacement(examples: Gradients, sizes: tuple[int, ...]) -> None:
    """|G|² and tr Σ of the population itself, from every batch that can be drawn."""
    batches = [examples[list(chosen)] for chosen in itertools.product(range(4), repeat=sum(sizes))]
    mean = examples.mean(axis=0)
    expected = float(mean @ mean), float(((examples - mean) ** 2).sum() / 4)
    assert mean_estimate(batches, sizes) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(populations, two_or_more_parts)
def test_it_is_unbiased_over_all_batches_of_an_epoch(examples: Gradients, sizes: tuple[int, ...]) -> None:
    """Without replacement tr Σ is the sample variance S² (over n - 1), and |G|² that of what the examples stand for."""
    batches = [examples[list(chosen)] for chosen in itertools.permutations(range(4), sum(sizes))]
    mean = examples.mean(axis=0)
    variance = float(((examples - mean) ** 2).sum() / 3)
    expected = float(mean @ mean) - variance / 4, variance
    assert mean_estimate(batches, sizes) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("sizes", "count"), [((5,), 1), ((3, 2), 1), ((2, 2, 1), 2), ((1, 1, 1, 1), 2), ((1, 1, 0, 0), 1), ((1, 0), 1)]
)
def test_first_half(sizes: tuple[int, ...], count: int) -> None:
    assert first_half(sizes) == count


# A linear problem: x ~ N(0, D), the error of an example r = u·x + c + e with e ~ N(0, s²), its loss r². The gradient
# is ±2r(x, 1), so with t = tr D, q = u·Du:
#   G = ±2(Du, c), and |G|² = 4(|Du|² + c²);
#   E r² = q + c² + s², and for a Gaussian E (u·x)²|x|² = q·t + 2|Du|², so E r²|x|² = (q + c² + s²)t + 2|Du|²;
#   tr Σ = 4(E r²|x|² + E r²) - |G|² = 4((q + c² + s²)(t + 1) + |Du|² - c²).
FEATURES, NOISE = 96, 1.0
LINEAR = {  # at a rate that leaves the model where it is
    "model": "linear_regression",
    "model_args": {},
    "loss": "mse",
    "metric": "mse",
    "data": "synthetic_linear",
    "learning_rate": 1e-12,
}
DATA_ARGS = {"features": FEATURES, "noise": NOISE, "variances": [0.5] * 48 + [1.5] * 48, "test_samples": 1}


def known(weights: torch.Tensor, bias: float) -> tuple[float, float]:
    """|G|² and tr Σ of the linear problem for a model with these parameters."""
    truth = linear_truth(FEATURES, NOISE, DATA_ARGS["variances"])  # type: ignore[arg-type]
    u, c = weights - truth.weights, bias - truth.bias
    du = truth.variances * u
    error = (u @ du).item() + c**2 + truth.noise**2
    square = du.square().sum().item()
    return 4 * (square + c**2), 4 * (error * (truth.variances.sum().item() + 1) + square - c**2)


def run(ranks: GlooPool, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(worker, *arguments) on each rank; alone in this process."""
    return ranks.run(world_size, function, *arguments) if world_size > 1 else [function(ALONE, *arguments)]


class Start(Hook):
    """Puts the model where a batch's noise is about as large as its gradient."""

    def train_starts(self, trial: Trial) -> None:
        truth = linear_truth(FEATURES, NOISE, DATA_ARGS["variances"])  # type: ignore[arg-type]
        linear = next(module for module in trial.model.modules() if isinstance(module, nn.Linear))
        with torch.no_grad():
            linear.weight.copy_(truth.weights * 0.4)
            linear.bias.fill_(truth.bias - 0.5)
        self.known = known(linear.weight.detach().flatten(), linear.bias.item())


def measure(worker: Worker, config: TrainConfig, *hooks: Hook) -> Measured:
    """|G|² and tr Σ in the record of a training's last epoch."""
    record = train(config, worker, hooks=[*hooks]).records[-1]
    return record.grad_sq_norm, record.grad_trace_cov


def measured_and_known(worker: Worker, changes: dict[str, Any]) -> tuple[Measured, tuple[float, float]]:
    """What the hook finds in some hundred steps that do not move the model, and the analytic values."""
    steps = {1: 500, 2: 400}[worker.world_size]
    data = {"batch_size": 64, "data_args": {**DATA_ARGS, "train_samples": steps * 64}}
    config = make_config(**{**LINEAR, **data, **changes})
    start = Start()
    return measure(worker, config, start, NoiseScale(interval=1)), start.known


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (1, {}),
        (1, {"batch_size": 63}),
        (1, {"accumulation": 3}),
        (2, {"gradient_sync": "flat"}),
    ],
)
def test_a_linear_problem_is_measured_within_five_percent(
    ranks: GlooPool, world_size: int, changes: dict[str, Any]
) -> None:
    for found, expected in run(ranks, world_size, measured_and_known, changes):
        assert found == pytest.approx(expected, rel=0.05)


class Expected(Hook):
    """The estimate of the first step from gradients that are computed part by part, without any strategy."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def train_starts(self, trial: Trial) -> None:
        splits = load_splits(trial.config, trial.worker.device)
        order = epoch_order(trial.samples, trial.config.seed, epoch=1)[: trial.config.batch_size]
        squares = [self._square(trial, splits, part) for part in (*order.split(list(self.sizes)), order) if len(part)]
        self.estimate = estimate_noise(squares[:-1], [size for size in self.sizes if size], squares[-1])

    def _square(self, trial: Trial, splits: Any, part: torch.Tensor) -> float:
        """|mean gradient|² over a part's examples."""
        loss = nn.functional.cross_entropy(trial.model(splits.train_inputs[part]), splits.train_targets[part])
        gradients = torch.autograd.grad(loss, trial.parameters)
        return sum(gradient.double().square().sum().item() for gradient in gradients)


def measured_and_expected(
    worker: Worker, changes: dict[str, Any], sizes: Sequence[int]
) -> tuple[Measured, tuple[float, float]]:
    """The record's and the computed estimate of an epoch's only whole batch."""
    expected = Expected(sizes)
    config = make_config(**({"data_args": {"train_samples": 30, "test_samples": 8}, "batch_size": 30} | changes))
    return measure(worker, config, expected, NoiseScale()), tuple(expected.estimate)


@pytest.mark.parametrize(
    ("world_size", "changes", "sizes"),
    [
        (1, {}, (15, 15)),
        (1, {"batch_size": 23}, (12, 11)),  # the second step, of 7 examples, is not measured
        (1, {"accumulation": 3}, (20, 10)),  # micro-batches of 10: the first two hold at least half
        (1, {"gradient_clip": 1e-3}, (15, 15)),  # measured before it is clipped
        (2, {}, (15, 15)),
        (2, {"gradient_sync": "flat"}, (15, 15)),
        (2, {"gradient_sync": "naive", "shards": (4.0, 1.0)}, (24, 6)),
        (2, {"shards": (4.0, 1.0), "accumulation": 2}, (24, 6)),
        (2, {"shards": (0.0, 1.0)}, (15, 15)),  # only rank 1 has examples: its halves
        (2, {"shards": (0.0, 1.0), "gradient_sync": "flat", "accumulation": 3}, (20, 10)),
        (4, {"shards": (3.0, 2.0, 0.0, 1.0)}, (15, 10, 0, 5)),
        (4, {"gradient_sync": "ring"}, (8, 8, 7, 7)),
    ],
)
def test_the_hook_measures_what_a_plain_computation_gives(
    ranks: GlooPool, world_size: int, changes: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    outcomes = run(ranks, world_size, measured_and_expected, changes, sizes)
    for found, expected in outcomes:
        assert found == pytest.approx(expected, rel=1e-4)
        assert found == outcomes[0][0]  # the same bits on every rank


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (1, {"model_args": {"hidden": [16], "batch_norm": True}}),  # halves would change the training
        (1, {"batch_size": 1}),
        (2, {"gradient_sync": "powersgd"}),
        (2, {"gradient_sync": "local_sgd"}),
    ],
)
def test_what_can_not_be_measured_is_none(ranks: GlooPool, world_size: int, changes: dict[str, Any]) -> None:
    assert run(ranks, world_size, measure, make_config(**changes), NoiseScale()) == [(None, None)] * world_size


@pytest.mark.parametrize(
    ("world_size", "changes"), [(1, {"accumulation": 2}), (2, {})], ids=["micro-batches are there", "two workers"]
)
def test_batch_normalisation_that_sees_nothing_new_is_measured(
    ranks: GlooPool, world_size: int, changes: dict[str, Any]
) -> None:
    config = make_config(model_args={"hidden": [16], "batch_norm": True}, **changes)
    for sq_norm, trace_cov in run(ranks, world_size, measure, config, NoiseScale()):
        assert sq_norm is not None
        assert trace_cov > 0


class Counting(NoiseScale):
    """Notes the steps that are made in halves or of which the strategy measures, and how many an epoch had."""

    def __init__(self, interval: int) -> None:
        super().__init__(interval)
        self.asked: list[tuple[int, int]] = []  # epoch, step
        self.measured: list[int] = []

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        super().backward_ends(trial, step, micro_batch)
        if micro_batch == 1 or trial.sync.measures_local:
            self.asked.append((trial.progress.period, step))

    def epoch_measured(self, trial: Trial) -> Mapping[str, float | None]:
        self.measured.append(self.steps)
        return super().epoch_measured(trial)


def counted(worker: Worker, interval: int, batch: int) -> tuple[list[tuple[int, int]], list[int]]:
    """What `Counting` notes in two epochs of 256 examples."""
    hook = Counting(interval)
    train(make_config(batch_size=batch, epochs=2), worker, hooks=[hook])
    return hook.asked, hook.measured


@pytest.mark.parametrize(
    ("world_size", "interval", "batch", "steps"),
    [
        (1, 8, 32, [1]),  # of eight
        (1, 2, 32, [1, 3, 5, 7]),
        (2, 2, 32, [1, 3, 5, 7]),
        (1, 1, 100, [0, 1]),  # the third, of 56, is not whole
        (1, 8, 256, [0]),  # the only one
        (1, 8, 200, [0]),
    ],
)
def test_sampled_steps_are_whole_batches_of_every_epoch(
    ranks: GlooPool, world_size: int, interval: int, batch: int, steps: list[int]
) -> None:
    expected = [(epoch, step) for epoch in (1, 2) for step in steps], [len(steps)] * 2
    assert run(ranks, world_size, counted, interval, batch) == [expected] * world_size


def test_measuring_two_workers_changes_nothing(ranks: GlooPool) -> None:
    config = make_config(epochs=2)
    plain, watched = ranks.run(2, run_training, config), ranks.run(2, run_watched, config)
    assert all(same_bits(one["state"], other["state"]) for one, other in zip(plain, watched, strict=True))


def run_watched(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The outcome of a training in which every step is measured."""
    return outcome(train(config, worker, hooks=[NoiseScale(interval=1)]))


@pytest.mark.parametrize("interval", [0, -1])
def test_an_impossible_interval_is_refused(interval: int) -> None:
    with pytest.raises(ValueError, match="interval: "):
        NoiseScale(interval)


# --- AdaScale inside the training loop: its gain in each step, its limits, and where it is refused --------------------


SCALE = 4.0  # 32 examples a batch, 8 at the base


def adascale(**changes: Any) -> TrainConfig:
    """A training with S = 4 over two epochs of seven whole batches and one of 16."""
    values: dict[str, Any] = {
        "lr_rule": "adascale",
        "base_batch_size": 8,
        "data_args": {"train_samples": 240, "test_samples": 16},
        "epochs": 2,
        "learning_rate": 0.05,
    }
    return make_config(**(values | changes))


def steps_of(worker: Worker, config: TrainConfig) -> list[tuple[float, float, float]]:
    """The gain, the rate and the progress after each step of a training."""
    steps = EachStep(lambda trial: (trial.rate.gain, trial.optimizer.param_groups[0]["lr"], trial.rate.progress))
    result = train(config, worker, hooks=[steps])
    assert result.status == "finished"
    assert [record.replica_max_diff for record in result.records] == [0.0] * config.epochs
    assert all(record.grad_trace_cov is not None for record in result.records)
    return steps.seen


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (1, {}),
        (1, {"accumulation": 2, "model_args": {"hidden": [16], "batch_norm": True}}),
        (2, {"optimizer": OptimizerConfig(momentum=0.9)}),
        (2, {"shards": (3.0, 1.0), "gradient_sync": "flat"}),
        (2, {"shards": (1.0, 0.0)}),
        (3, {"gradient_sync": "ring"}),
    ],
)
def test_each_steps_gain_lies_between_one_and_the_scale_on_all_ranks(
    ranks: GlooPool, world_size: int, changes: dict[str, Any]
) -> None:
    all_steps = run(ranks, world_size, steps_of, adascale(**changes))
    assert all(steps == all_steps[0] for steps in all_steps)  # to the bit
    gains, rates, progress = zip(*all_steps[0], strict=True)
    assert len(gains) == 16
    assert all(1 <= each <= SCALE for each in gains)
    assert len(set(gains)) > 8  # early averages may lie at an end of the range
    assert gains[6::8] == gains[7::8]  # an epoch's last, smaller batch keeps the gain before it
    assert list(rates) == [0.05 * each for each in gains]
    assert progress[-1] == pytest.approx(sum(gains))


class SilentSync(FlatSync):
    """A user's strategy that does not know of local norms."""

    def measure_local(self) -> None:
        pass


class RoundedSync(FlatSync):
    """A user's strategy that only approximates the sum."""

    exact = False


def test_the_gain_is_that_of_the_averaged_estimates(ranks: GlooPool) -> None:
    """With S = 4 the averages remember some 250 steps, so that after one epoch of 100 they are nearly its means."""
    config = adascale(**LINEAR, data_args={"train_samples": 3200, "test_samples": 8, "features": 8}, epochs=1)
    for last, sq_norm, trace_cov in ranks.run(2, gain_and_record, config):
        assert last == pytest.approx(gain(sq_norm, trace_cov, 8, SCALE), rel=0.02)


def gain_and_record(worker: Worker, config: TrainConfig) -> tuple[float, float | None, float | None]:
    """The last step's gain, and what the epoch's record says of the noise."""
    gains = EachStep(lambda trial: trial.rate.gain)
    record = train(config, worker, hooks=[gains]).records[-1]
    return gains.seen[-1], record.grad_sq_norm, record.grad_trace_cov


def test_the_hook_is_added_where_the_rule_needs_it() -> None:
    ours, measuring = Hook(), NoiseScale()
    assert with_required(adascale(lr_rule="none"), [ours, measuring]) == (ours, measuring)
    assert with_required(adascale(base_batch_size=32), [measuring]) == (measuring,)
    first, added = with_required(adascale(), [ours, measuring])
    assert first is ours
    assert isinstance(added, AdaScale)
    assert with_required(adascale(), [added, ours]) == (added, ours)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_args": {"hidden": [16], "batch_norm": True}}, "halves, which changes batch normalisation; train"),
        ({"batch_size": 1}, "batch_size 1 has none; choose a larger batch"),
    ],
)
def test_what_one_worker_can_not_measure_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^lr_rule: adascale .*{text}"):
        train(adascale(**changes), ALONE)


def test_an_approximate_sum_is_refused_on_every_rank(ranks: GlooPool) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)rank 0:.*which tests.+:RoundedSync only approximates; choose.*rank 1:.*choose",
    ):
        ranks.run(2, steps_of, adascale(gradient_sync="tests.unit.training.loop.test_noise_scale:RoundedSync"))
    with pytest.raises(ValueError, match="does not go with gradient_sync bf16: adascale needs the exact gradient of"):
        adascale(gradient_sync="bf16")


def test_a_strategy_that_does_not_measure_is_refused_on_every_rank(ranks: GlooPool) -> None:
    config = adascale(gradient_sync="tests.unit.training.loop.test_noise_scale:SilentSync")
    with pytest.raises(RuntimeError, match=r"(?s)rank 0:.*SilentSync does not measure local_sq_norm.*rank 1:.*choose"):
        ranks.run(2, steps_of, config)


def test_adascale_whose_first_gradient_is_not_finite_diverges() -> None:
    options = {"data": "tests.support.training.workloads:splits_with_a_nan", "data_args": {"position": 128}}
    config = make_config(**options, lr_rule="adascale", base_batch_size=32, batch_size=256)
    result = train(config, ALONE)
    assert (result.status, result.message) == ("diverged", "loss or gradient is not finite in epoch 1, step 1 of 1")
