"""Parts with a process group: two workers on one device, and NCCL with one worker."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker, on_ranks, stop_process_group
from scalestudy.training.gradient_sync.base import StepPlan, SyncOptions
from scalestudy.training.loop.train import train
from scalestudy.training.losses import make_loss, make_metric
from scalestudy.training.models import seeded_model
from scalestudy.training.registry import GRADIENT_SYNCS, INEXACT_SYNCS, resolve
from scalestudy.training.task import ExamplesTask, ShardLoss
from tests.gpu.report import Report, Settings
from tests.gpu.trainings import (
    GREY_CLASSES,
    alone,
    be_deterministic,
    parameters_of,
    pixels,
    relative,
    some_steps,
)

STRATEGIES = ("ddp", "flat")
STEPS = 16


def gloo_on_one_device(settings: Settings, report: Report) -> None:
    """Two workers on `cuda:0`, gloo between them, make the parameters of one worker at the same global batch."""
    be_deterministic()
    single = parameters_of(train(_config(settings), alone(settings)).model)
    found = on_ranks(2, _shared, settings, backend="gloo")
    for strategy in STRATEGIES:
        ranks = [each[strategy] for each in found]
        apart = relative(torch.from_numpy(ranks[0].parameters), single)
        report.at_most(f"{strategy}: relative difference from one worker", apart, 1e-5)
        report.at_most(f"{strategy}: largest difference of the replicas", max(each.apart for each in ranks), 0.0)
    if settings.device == "cpu":
        report.need_cuda("two processes on one GPU; here they share a CPU")


def _config(settings: Settings, **changes: Any) -> TrainConfig:
    return some_steps(settings, STEPS, **changes)


class Trained(NamedTuple):
    """What a rank tells of a training."""

    parameters: Any  # an array
    apart: float  # the largest recorded difference of the replicas


def _shared(worker: Worker, settings: Settings) -> dict[str, Trained]:
    """One rank's part, by strategy."""
    be_deterministic()
    mine = replace(worker, device=alone(settings).device)
    found = {}
    for strategy in STRATEGIES:
        result = train(_config(settings, gradient_sync=strategy), mine)
        found[strategy] = Trained(parameters_of(result.model).numpy(), result.records[-1].replica_max_diff)
    return found


def nccl_alone(settings: Settings, report: Report) -> None:
    """On a group of one worker, each strategy's sum is the worker's own gradient. On a CPU by gloo."""
    backend = "nccl" if settings.device == "cuda" else "gloo"
    worker = alone(settings)
    folder = tempfile.TemporaryDirectory(prefix="gpu-suite-")
    dist.init_process_group(
        backend,
        init_method=f"file://{folder.name}/store",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
        device_id=worker.device if backend == "nccl" else None,
    )
    try:
        number = torch.ones(3, device=worker.device)
        dist.all_reduce(number)
        report.equal(f"{backend}: the sum over one worker", number.tolist(), [1.0, 1.0, 1.0])
        alone_gradient = _gradient(settings, worker, None)
        for strategy in GRADIENT_SYNCS:
            apart = relative(_gradient(settings, worker, strategy), alone_gradient)
            report.at_most(
                f"{strategy}: relative difference of its gradient", apart, 1e-2 if strategy in INEXACT_SYNCS else 1e-6
            )
    finally:
        stop_process_group()
        folder.cleanup()
    report.equal("the group is left", dist.is_initialized(), False)
    if settings.device == "cpu":
        report.need_cuda("NCCL; gloo took its place")


def _gradient(settings: Settings, worker: Worker, strategy: str | None) -> torch.Tensor:
    """The gradient of LeNet's mean loss over 32 drawn images, as the strategy sums it; None: without one."""
    generator = torch.Generator().manual_seed(0)
    side = pixels(settings)
    batch = torch.rand(32, 1, side, side, generator=generator), torch.randint(10, (32,), generator=generator)
    task = ExamplesTask(make_loss("cross_entropy", 10), make_metric("accuracy"))
    shard_loss = ShardLoss(seeded_model(_config(settings), GREY_CLASSES), task).to(worker.device)
    plan = StepPlan(shard=32, batch=32)
    module: Any = shard_loss
    factor, sync = 1 / 32, None
    if strategy is not None:
        sync = resolve(strategy, GRADIENT_SYNCS)(shard_loss, worker, SyncOptions(total_steps=100))
        module, factor = sync.module, sync.factor(plan)
        sync.step_starts(plan)
    loss, _ = module(tuple(each.to(worker.device) for each in batch))
    (loss * factor).backward()
    if sync is not None:
        sync.synchronise()
        sync.divide_by_weight()
        sync.step_ends()
    gradients = [each.grad for each in shard_loss.trained_parameters() if each.grad is not None]
    return torch.cat([each.flatten().cpu().double() for each in gradients])
