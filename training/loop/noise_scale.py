"""The gradient noise scale (docs/formulas.md §3), and AdaScale's gain, which rests on it.

Symbols: g_i, worker i's mean gradient over its b_i examples; ḡ, the mean gradient of the batch, B = Σ b_i; G and Σ,
mean and covariance of one example's gradient. A "part" is one worker's shard. If fewer than two workers have examples,
two halves of the one shard are the parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from scalestudy.training.batches import micro_batch_sizes, shard_sizes
from scalestudy.training.distributed import gather_rows
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.hooks import Hook

if TYPE_CHECKING:
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.loop.trial import Trial


SAMPLING_INTERVAL = 8  # one step in so many is measured
SAMPLED_OFFSET = 1  # of the interval; not a trial's cold first step, nor one whose phases are timed (loop.measures)


class NoiseEstimate(NamedTuple):
    """Unbiased estimates, which may be negative. Average them over steps before any other use."""

    sq_norm: float  # of |G|²
    trace_cov: float  # of tr Σ


def estimate_noise(part_sq_norms: Sequence[float], part_sizes: Sequence[int], batch_sq_norm: float) -> NoiseEstimate:
    """Estimate as McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1), for parts of any sizes.

    `part_sq_norms`: |g_i|² of each part; `part_sizes`: its b_i; `batch_sq_norm`: |ḡ|². Over the parts with examples, L
    is the mean of |g_i|² and 1/h the mean of 1/b_i: tr Σ = (L - |ḡ|²) / (1/h - 1/B), |G|² = |ḡ|² - tr Σ / B. It is
    linear: means over steps of the same parts give the mean estimate. Raises ValueError for fewer than two parts.
    """
    filled = [(square, size) for square, size in zip(part_sq_norms, part_sizes, strict=True) if size]
    if len(filled) < 2:
        raise InputError(f"part_sizes: {list(part_sizes)} has fewer than two parts with examples", "split the batch")
    mean_square = math.fsum(square for square, _ in filled) / len(filled)
    mean_inverse = math.fsum(1 / size for _, size in filled) / len(filled)
    batch = sum(size for _, size in filled)
    trace_cov = (mean_square - batch_sq_norm) / (mean_inverse - 1 / batch)
    return NoiseEstimate(batch_sq_norm - trace_cov / batch, trace_cov)


class Parts(NamedTuple):
    """The parts of a whole batch whose gradients are compared."""

    sizes: tuple[tuple[int, int], ...] = ()  # by rank: b_i and 0, or the sizes of the two halves; empty: not at all
    halved: bool = False


def parts_of(trial: Trial) -> Parts:
    """Return the parts by which this trial is measured; equal on every rank.

    None if the strategy's sum is only approximate, or if the task's loss is a mean over something else than examples.
    Halves need a second example. They are not made for the measurement alone if batch normalisation would see them.
    """
    shards = shard_sizes(trial.config.batch_size, trial.choices.weights)
    if not trial.sync.exact or trial.sync.weight is not None:
        return Parts()
    if sum(map(bool, shards)) > 1:
        return Parts(tuple((size, 0) for size in shards), halved=False)
    normalises = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in trial.model.modules())
    if max(shards) < 2 or (trial.config.accumulation < 2 and normalises):
        return Parts()
    sizes = [micro_batch_sizes(size, max(trial.config.accumulation, 2)) for size in shards]
    halves = [(sum(each[: first_half(each)]), sum(each[first_half(each) :])) for each in sizes]
    return Parts(tuple(halves), halved=True)


def first_half(micro_batches: Sequence[int]) -> int:
    """Return how many of the first micro-batches hold at least half of the examples."""
    totals = list(itertools.accumulate(micro_batches))
    return next(count for count, total in enumerate(totals, start=1) if 2 * total >= totals[-1])


class NoiseScale(Hook):
    """|G|² and tr Σ, averaged over sampled steps, for each period's record.

    With several workers the strategy measures each worker's gradient before it is summed. Alone, a sampled step is made
    in two halves. Only whole batches are sampled, so all sampled steps have the same parts. Sums stay on the device and
    need no collective until the period ends. Halves change a training only by rounding, and by the random numbers of
    dropout. Put this hook behind the one that restores a checkpoint. A period that resumes in its middle is measured
    from there on.
    """

    def __init__(self, interval: int = SAMPLING_INTERVAL) -> None:
        """Measure every `interval` steps. Each epoch has at least one measured step, a shorter period maybe none."""
        if interval < 1:
            raise InputError(f"interval: {interval} is not valid", "choose a whole number, at least 1")
        self.interval = interval
        self.parts = Parts()
        self.steps = 0  # measured in the period
        self._first_gradients: list[torch.Tensor | None] = []

    def train_starts(self, trial: Trial) -> None:
        """Find the trial's parts, and request a measurement if the first step is sampled."""
        self.parts = parts_of(trial)
        self._whole_batches = trial.samples // trial.config.batch_size
        self._reset(trial)
        self._request(trial, trial.progress.tally.steps)

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        """Keep the gradients of the first half."""
        halved = self.parts.halved and self._samples(trial, step)
        if halved and trial.plan.shard and micro_batch + 1 == first_half(trial.micro_batches):
            gradients = [parameter.grad for parameter in trial.parameters]
            self._first_gradients = [None if each is None else each.detach().clone() for each in gradients]

    def gradients_ready(self, trial: Trial, step: int) -> None:
        """Add the squared norms of a sampled step to the sums."""
        if self._samples(trial, step):
            squares = self._squares(trial)
            if squares is not None:
                self._sums += squares
                self.steps += 1
                self.step_measured(trial, squares)
        trial.sync.measures_local = False

    def step_ends(self, trial: Trial, step: int) -> None:
        """Request a measurement if the next step is sampled."""
        self._request(trial, step + 1)

    def epoch_measured(self, trial: Trial) -> Mapping[str, float | None]:
        """Return the period's means of `estimate_noise`, by a collective; None if no step was measured."""
        estimate = self.reduce(trial, self._sums / self.steps) if self.steps else None
        self._reset(trial)
        return {
            "grad_sq_norm": estimate.sq_norm if estimate else None,
            "grad_trace_cov": estimate.trace_cov if estimate else None,
        }

    def step_measured(self, trial: Trial, squares: torch.Tensor) -> None:
        """Do nothing; override it to use a step's squares at once."""

    def reduce(self, trial: Trial, squares: torch.Tensor) -> NoiseEstimate:
        """Estimate from every rank's squares, by one collective; equal to the bit on every rank."""
        rows = gather_rows(squares, trial.worker)
        sizes = [size for pair in self.parts.sizes for size in pair]
        batch_sq_norm = rows[0][2]  # a norm may differ by a bit on another kind of device
        return estimate_noise([square for row in rows for square in row[:2]], sizes, batch_sq_norm)

    def _samples(self, trial: Trial, step: int) -> bool:
        step = trial.step_of_epoch(step)
        offset = min(SAMPLED_OFFSET, self.interval - 1, self._whole_batches - 1)
        return bool(self.parts.sizes) and step < self._whole_batches and step % self.interval == offset

    def _request(self, trial: Trial, step: int) -> None:
        if self._samples(trial, step):
            trial.halves_next |= self.parts.halved
            trial.sync.measures_local |= not self.parts.halved

    def _reset(self, trial: Trial) -> None:
        self.steps = 0
        self._sums = torch.zeros(3, dtype=torch.float64, device=trial.worker.device)

    def _squares(self, trial: Trial) -> torch.Tensor | None:
        """Return (3,) float64 on the device: |g_i|² and 0, or |g|² of each half, and |ḡ|²; zeros for an empty shard.

        None if the strategy does not measure.
        """
        local = trial.sync.local_sq_norm
        if not self.parts.halved and local is None:
            return None
        whole = get_total_norm([each.grad for each in trial.parameters if each.grad is not None]).double().square()
        first = second = torch.zeros_like(whole)
        if trial.plan.shard:
            if self.parts.halved or local is None:
                first, second = self._half_squares(trial)
            else:
                first = local.double() * trial.sync.local_factor(trial.plan) ** 2
        return torch.stack([first, second, whole])

    def _half_squares(self, trial: Trial) -> tuple[torch.Tensor, torch.Tensor]:
        """Return |g_1|² and |g_2|² of this worker's halves, which hold all examples of the batch."""
        batch = trial.plan.batch
        share = 1 / (trial.sync.factor(trial.plan) * batch)  # of the first gradients, as their loss scaled them, in ḡ
        first = [gradient for gradient in self._first_gradients if gradient is not None]
        second = [
            parameter.grad if gradient is None else torch.sub(parameter.grad, gradient, alpha=share)
            for parameter, gradient in zip(trial.parameters, self._first_gradients, strict=True)
            if parameter.grad is not None
        ]
        self._first_gradients = []
        sizes = self.parts.sizes[trial.worker.rank]
        norms = get_total_norm(first) * share, get_total_norm(second)
        squares = [(norm.double() * batch / size).square() for norm, size in zip(norms, sizes, strict=True)]
        return squares[0], squares[1]


class AdaScale(NoiseScale):
    """The noise of every whole batch, from which the learning rate takes the step's gain.

    An epoch's last, smaller batch takes the gain of the batch before it.
    """

    def __init__(self) -> None:
        super().__init__(interval=1)

    def train_starts(self, trial: Trial) -> None:
        """Do as NoiseScale. Raises InputError if the gain can't be measured."""
        super().train_starts(trial)
        if self.parts.sizes:
            return
        if not trial.sync.exact:
            raise InputError(
                "lr_rule: adascale needs the gradient of the whole batch in each step, which "
                f"{trial.config.gradient_sync} only approximates",
                "choose another rule or strategy",
            )
        if trial.sync.weight is not None:
            raise InputError(
                "lr_rule: adascale needs a loss that is a mean over examples, and the task has weights of its own",
                "choose another rule",
            )
        if trial.config.batch_size < 2:
            raise InputError(
                "lr_rule: adascale compares parts of a batch, and batch_size 1 has none", "choose a larger batch"
            )
        raise InputError(
            "lr_rule: adascale splits one worker's batch in halves, which changes batch normalisation",
            "train with two or more workers, with accumulation of at least 2, or by another rule",
        )

    def gradients_ready(self, trial: Trial, step: int) -> None:
        """Do as NoiseScale. Raises InputError if the strategy did not measure."""
        before = self.steps
        super().gradients_ready(trial, step)
        if self._samples(trial, step) and self.steps == before:
            raise InputError(
                f"gradient_sync: {trial.config.gradient_sync} does not measure local_sq_norm, which adascale needs",
                "choose another strategy or lr_rule",
            )

    def step_measured(self, trial: Trial, squares: torch.Tensor) -> None:
        """Update the gain; with two or more workers this takes one collective a step."""
        if trial.rate.estimator is not None:
            trial.rate.estimator.update(*self.reduce(trial, squares))


def with_required(config: TrainConfig, hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    """Return the hooks, and behind them AdaScale if the config's rule needs it, in place of NoiseScale.

    At the base batch size AdaScale's gain is 1, and needs no hook.
    """
    needed = config.lr_rule == "adascale" and config.batch_size != config.base_batch_size
    if not needed or any(isinstance(hook, AdaScale) for hook in hooks):
        return tuple(hooks)
    return (*(hook for hook in hooks if type(hook) is not NoiseScale), AdaScale())
