"""Stage 5, training loop: all that one training works with, made anew for each trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from training.batches import batch_bounds, shard_bounds, steps_per_epoch
from training.config import OptimizerConfig, TrainConfig
from training.data import Splits
from training.data.loading import load_splits
from training.distributed import Worker, check_process_group
from training.gradient_sync import LOSS_SUMS, GradientSync, LossSum, ShardLoss, make_gradient_sync
from training.models import build_model
from training.seeding import epoch_order, seed_parameters, seed_steps


@dataclass(frozen=True)
class Trial:
    """A trial in progress on one worker."""

    config: TrainConfig
    worker: Worker
    splits: Splits
    model: nn.Module
    parameters: list[nn.Parameter]  # those that are trained
    loss_sum: LossSum
    sync: GradientSync
    optimizer: torch.optim.Optimizer

    @property
    def samples(self) -> int:
        """Training examples an epoch."""
        return len(self.splits.train_inputs)

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return steps_per_epoch(self.samples, self.config.batch_size)


def start_trial(config: TrainConfig, worker: Worker) -> Trial:
    """Load the data, build model, strategy and optimizer, all seeded from the config.

    Raises ValueError for what does not fit together: data, model, batch, shards or process group.
    """
    check_process_group(worker)
    config.weights(worker.world_size)
    torch.set_num_threads(worker.threads)
    splits = load_splits(config, worker.device)
    _check_batch(config, splits)
    seed_parameters(config.seed)
    model = build_model(config.model, splits.num_classes, splits.in_channels, dict(config.model_args))
    model.to(worker.device).train()
    shard_loss = ShardLoss(model, LOSS_SUMS[config.loss])
    parameters = shard_loss.trained_parameters()
    if not parameters:
        raise ValueError(f"model: {config.model!r} has no parameters that need gradients; there is nothing to train")
    sync = make_gradient_sync(config.gradient_sync, shard_loss, worker)
    optimizer = make_optimizer(config.optimizer, config.learning_rate, parameters)
    seed_steps(config.seed, worker.rank)
    return Trial(config, worker, splits, model, parameters, shard_loss.loss_sum, sync, optimizer)


def make_optimizer(
    config: OptimizerConfig, learning_rate: float, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """PyTorch's optimizer of that name, updating all parameters in one fused kernel where it can."""
    fused = all(parameter.is_floating_point() for parameter in parameters)
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(
            parameters, learning_rate, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused
        ),
        "adam": lambda: torch.optim.Adam(parameters, learning_rate, weight_decay=config.weight_decay, fused=fused),
        "adamw": lambda: torch.optim.AdamW(parameters, learning_rate, weight_decay=config.weight_decay, fused=fused),
    }
    return makers[config.name]()


class ShardFetcher:
    """This worker's shards of one epoch, by step, gathered on the device."""

    def __init__(self, trial: Trial, epoch: int) -> None:
        self._trial = trial
        self._weights = trial.config.weights(trial.worker.world_size)
        self._order = epoch_order(trial.samples, trial.config.seed, epoch).to(trial.worker.device)

    def fetch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """(inputs (b_i, C, …), targets (b_i,), B): this rank's examples, and the global batch's size, at `step`."""
        trial = self._trial
        first, end = batch_bounds(trial.samples, trial.config.batch_size, step)
        start, stop = shard_bounds(end - first, self._weights, trial.worker.rank)
        chosen = self._order[first + start : first + stop]
        splits = trial.splits
        return splits.train_inputs.index_select(0, chosen), splits.train_targets.index_select(0, chosen), end - first


def _check_batch(config: TrainConfig, splits: Splits) -> None:
    samples = len(splits.train_inputs)
    if config.batch_size > samples:
        raise ValueError(f"batch_size: {config.batch_size} is more than the {samples} training examples of "
                         f"{config.data!r}; choose at most {samples}")  # fmt: skip
