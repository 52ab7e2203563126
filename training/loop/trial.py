"""All that one training works with, made anew for each trial."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.batches import batch_bounds, fewest_in_a_shard, shard_bounds, steps_per_epoch
from scalestudy.training.budget import Budget, budget_of
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data.loading import TrainingData, load_splits, open_data
from scalestudy.training.device import allow_tf32, make_precision
from scalestudy.training.distributed import Worker, check_process_group
from scalestudy.training.exceptions import InputError
from scalestudy.training.gradient_sync import make_gradient_sync
from scalestudy.training.gradient_sync.base import GradientSync, StepPlan, SyncOptions
from scalestudy.training.loop.compiling import compile_model
from scalestudy.training.loop.guard import Guard
from scalestudy.training.loop.learning_rate import LearningRate, make_rate
from scalestudy.training.loop.measures import PhaseTimer, Stopwatch, UsageMeter
from scalestudy.training.loop.probe import Choices, choose
from scalestudy.training.models import seeded_model
from scalestudy.training.models.sync_batch_norm import convert_sync_batch_norm, sync_batch_norm_class
from scalestudy.training.pulse import Pulse
from scalestudy.training.records import EpochRecord
from scalestudy.training.registry import OPTIMIZERS, call_with, resolve_field
from scalestudy.training.seeding import epoch_order, generators_kept, seed_steps
from scalestudy.training.task import Number, ShardLoss, Task, counts_tokens, make_task, tokens_of
from scalestudy.training.trees import Tree, count

TOKEN_EXAMPLES = 512  # of which the mean tokens are taken


@dataclass
class Tally:
    """What this rank has done so far in the steps of a period."""

    loss_sum: torch.Tensor  # scalar, float64, on the device
    weight_sum: torch.Tensor | float = 0.0  # what divides it: examples, or as the task says; on the device
    samples: int = 0  # of this rank
    steps: int = 0  # updates made
    tokens: torch.Tensor | float = 0.0  # that the task has counted in this rank's batches; on the device
    learning_rate: float = math.nan  # of the last of them
    seconds_before: float = 0.0  # in steps of this period, before this process resumed it
    bytes_before: int = 0  # sent in those steps
    diverged: bool = False

    def add(
        self, loss_sum: torch.Tensor, weight: Number, tokens: Number, *, samples: int, learning_rate: float
    ) -> None:
        """Count a step over so many examples of this rank."""
        self.loss_sum += loss_sum
        self.weight_sum += weight
        self.tokens += tokens
        self.samples += samples
        self.steps += 1
        self.learning_rate = learning_rate


@dataclass
class Progress:
    """The place of a trial in its training."""

    tally: Tally  # of the period in progress
    period: int = 1  # in progress
    records: list[EpochRecord] = field(default_factory=list)  # of whole periods
    began_at: int = 0  # steps that were made before this process began


def never() -> bool:
    """Return False: the default of `Trial.should_stop` and `Trial.should_preempt`."""
    return False


@dataclass
class Trial:
    """A trial in progress on one worker."""

    config: TrainConfig
    worker: Worker
    data: TrainingData
    model: nn.Module
    parameters: list[nn.Parameter]  # those that are trained
    shard_loss: ShardLoss
    metric: str  # name of the target metric, one of the task's
    sync: GradientSync
    optimizer: torch.optim.Optimizer
    rate: LearningRate
    choices: Choices
    progress: Progress
    budget: Budget
    samples: int  # training examples an epoch; a stream is one epoch, as long as the whole training
    counts_tokens: bool = field(init=False)  # whether the task does
    group_rates: list[float] = field(init=False)  # each parameter group's rate, as a share of the training's
    plan: StepPlan = field(default_factory=lambda: StepPlan(shard=0, batch=1))  # of the step in progress
    micro_batches: tuple[int, ...] = ()  # examples of each micro-batch of the step in progress, on this worker
    halves_next: bool = False  # set by a hook: the next step is made in at least two micro-batches
    stopwatch: Stopwatch | None = None  # of the period in progress; None between periods
    phases: PhaseTimer = field(init=False)  # of the period in progress; times nothing before the first
    usage: UsageMeter = field(init=False)
    guard: Guard = field(init=False)
    bytes_at_start: int = 0  # what the strategy had sent when the period in progress began
    all_used: bool = False  # whether every parameter was seen to take part in the loss
    should_stop: Callable[[], bool] = never  # asked before each step's backward; set by a hook, on any rank
    stopping: bool = False  # whether this rank has asked for the training's end
    should_preempt: Callable[[], bool] = never  # asked on rank 0, now and then, by preemptible checkpoints
    preempted: bool = False  # all ranks end the training here, and its checkpoint is written
    pulse: Pulse = field(default_factory=Pulse)  # what it does now, for another thread to read
    complete: bool = False  # set by a hook, on all ranks after the same period: the training has ended with it

    def __post_init__(self) -> None:
        self.usage = UsageMeter(self.worker.device)
        self.phases = PhaseTimer(self.worker.device, (), steps=0)
        self.guard = Guard(self.optimizer, self.worker)
        self.counts_tokens = counts_tokens(self.shard_loss.task)
        self.group_rates = [group["lr"] / self.config.learning_rate for group in self.optimizer.param_groups]
        self._summed = self.shard_loss.summed_parameters()

    @property
    def is_stream(self) -> bool:
        """Whether the data set is a stream, treated as one epoch of `steps` steps."""
        return self.data.is_stream

    @property
    def prepares_shapes(self) -> bool:
        """Whether the first step of each shape of batch is long: the model is compiled, or algorithms are timed."""
        return bool(self.config.compile) or (self.config.cudnn_benchmark and self.worker.device.type == "cuda")

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return steps_per_epoch(self.samples, self.config.batch_size)

    @property
    def period_steps(self) -> int:
        """Steps to make in the period in progress; 0: the training has ended before it."""
        return 0 if self.complete else self.budget.steps_of(self.progress.period)

    @property
    def made(self) -> int:
        """Steps that the training has made."""
        return self.budget.begin(self.progress.period) + self.progress.tally.steps

    def step_of_epoch(self, step: int) -> int:
        """Return the place in its epoch of a step of the period, or of the step after its last; both from 0."""
        return (self.budget.begin(self.progress.period) + step) % self.steps

    @cached_property
    def plans(self) -> list[StepPlan]:
        """What this worker does in each step of an epoch, equal in all epochs; of a stream, the one of all steps."""
        plans = []
        for step in range(1 if self.is_stream else self.steps):
            first, end = batch_bounds(self.samples, self.config.batch_size, step)
            start, stop = shard_bounds(end - first, self.choices.weights, self.worker.rank)
            plans.append(StepPlan(shard=stop - start, batch=end - first, first=first + start))
        return plans

    def plan_step(self, step: int, steps: int) -> None:
        """Make `step` of the period the one in progress; the last of its `steps` is followed by an evaluation."""
        plan = self.plans[0 if self.is_stream else self.step_of_epoch(step)]
        self.plan = replace(plan, is_last=True) if step == steps - 1 else plan

    def shards(self, step: int = 0) -> Generator[Tree]:
        """Yield this worker's batch, on its device, for each step from `step` on. Close it at the end."""
        while step < self.budget.steps:  # which `prolong` may raise meanwhile
            if self.is_stream:
                plan, steps = self.plans[0], range(step, self.budget.steps)
                with closing(self.data.stream_shards(plan.first, plan.shard, plan.batch, steps)) as batches:
                    yield from batches
                step = steps.stop
                continue
            epoch, first = divmod(step, self.steps)
            plans = self.plans[first : first + self.budget.steps - step]
            order = epoch_order(self.samples, self.config.seed, epoch + 1)
            bounds = [(plan.first, plan.first + plan.shard) for plan in plans]
            with closing(self.data.shards(order, bounds, epoch + 1)) as batches:
                yield from batches
            step += len(plans)

    def prolong(self) -> None:
        """Plan further steps, in a new period, if all are made and too few seconds of them were timed.

        All ranks plan the same. The first of these steps are cold: their data are read anew.
        """
        config, records = self.config, self.progress.records
        if self.period_steps or not config.min_seconds:
            return
        if further := self.budget.further_steps(records, config.warm_up_steps, config.min_seconds):
            self.budget = self.budget.with_more(further)
            self.progress.began_at = self.made

    def factor(self) -> float:
        """Return what multiplies the step's loss sum before backward: NaN once this rank asks for the end."""
        self.stopping = self.stopping or self.should_stop()
        return math.nan if self.stopping else self.sync.factor(self.plan)

    def zero_gradients(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self._summed:
            parameter.grad = None

    def look(self) -> bool:
        """Return whether some step was not finite: the tally then says `diverged`, and counts only the steps before it.

        Wait for the device. All ranks call it after the same step, and learn the same. Raises ValueError if a task's
        weights were wrong.
        """
        tally = self.progress.tally
        if not tally.diverged and self.sync.at_rest:  # else ranks of local SGD know different things
            skipped = self.guard.look()
            tally.diverged = skipped > 0
            tally.steps -= skipped
            if skipped and (error := self.sync.wrong_weight()):
                raise error
        return tally.diverged

    def seconds_in_period(self) -> float:
        """Return the seconds in steps of the period in progress, also those that an earlier process made."""
        return self.progress.tally.seconds_before + (self.stopwatch.seconds() if self.stopwatch else 0.0)

    def bytes_in_period(self) -> int:
        """Return the bytes that this rank has sent in the period in progress, also from an earlier process."""
        return self.sync.bytes_sent - self.bytes_at_start

    def out_of_rate(self) -> AbstractContextManager[None]:
        """Leave the step made inside this context, and its examples, out of samples a second."""
        return self.stopwatch.out_of_timing(self.plan.shard) if self.stopwatch else nullcontext()

    def untimed(self) -> AbstractContextManager[None]:
        """Leave out of the period's seconds what a hook does inside this context."""
        return self.stopwatch.paused() if self.stopwatch else nullcontext()

    def details(self) -> dict[str, Any]:
        """Return plain data: what the training chose by itself, and what its strategy adds."""
        return {**self.choices.measured, **self.sync.details()}


def tokens_an_example(config: TrainConfig, worker: Worker, task: Task) -> float:
    """Return the mean over some examples, equal on all ranks. Raises InputError for a task that counts no tokens."""
    if not counts_tokens(task):
        raise InputError(
            f"tokens: the task {config.task!r} does not count them",
            "give it a method tokens(batch), or give lengths in steps",
        )
    with generators_kept():
        examples = load_splits(config, worker.device).train_examples(TOKEN_EXAMPLES)
        mean = float(tokens_of(task, examples)) / count(examples)
    if not (math.isfinite(mean) and mean > 0):
        raise InputError(f"task: tokens gave {mean:g} an example", "return how many tokens the batch has")
    return mean


def new_tally(worker: Worker) -> Tally:
    """Return the tally before a period's first step."""
    return Tally(loss_sum=torch.zeros((), dtype=torch.float64, device=worker.device))


def start_trial(config: TrainConfig, worker: Worker, choices: Choices | None = None) -> Trial:
    """Load the data and build model, strategy and optimizer, all seeded from the config.

    `choices`: an earlier attempt's, to be kept. Raises ValueError if data, model, batch, shards, precision or process
    group do not fit together.
    """
    check_process_group(worker)
    config.weights(worker.world_size)
    torch.set_num_threads(worker.threads)
    precision = make_precision(config.precision, worker.device)  # before the user's code, which a used process runs too
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    data = open_data(config, worker)

    model = seeded_model(config, data.for_model)
    task = make_task(config.task, config.loss, config.metric, data.num_classes, {**data.for_task, **config.task_args})
    an_example = tokens_an_example(config, worker, task) if config.counts_tokens else math.nan
    if data.samples is None:
        whole = budget_of(config, 1, an_example)
        samples = whole.steps * config.batch_size
    else:
        samples = data.samples
        check_batch_size(config.batch_size, samples, config.data)
        whole = budget_of(config, steps_per_epoch(samples, config.batch_size), an_example)
    choices = choices or choose(config, worker, data, ShardLoss(model, task, precision))
    shard_loss = ShardLoss(
        model, task, precision, channels_last=choices.channels_last, fills_unused=config.unused_parameters
    )
    if config.sync_batch_norm and worker.world_size > 1:
        parts = max(config.accumulation, 2)  # a hook may ask for two micro-batches: `Trial.halves_next`
        fewest = fewest_in_a_shard(samples, config.batch_size, choices.weights) // parts
        kind = sync_batch_norm_class(dist.get_backend(), fewest, is_compiled=bool(config.compile))
        shard_loss.runs_empty = convert_sync_batch_norm(model, worker, kind)
    shard_loss.to(worker.device).train()
    if choices.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.compile:
        shard_loss.is_compiled = True
        compile_model(model, mode=None if config.compile is True else config.compile)
    parameters = shard_loss.trained_parameters()
    if not parameters:
        raise InputError(
            f"model: {config.model!r} has no parameters that need gradients, so there is nothing to train",
            "give it a layer with parameters, or set their requires_grad to True",
        )

    budget = whole.cut(config.max_steps)
    chosen: Mapping[str, int | None] = {"powersgd_rank": config.powersgd_rank, "local_steps": config.local_steps}
    options = SyncOptions(
        total_steps=budget.steps,
        seed=config.seed,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    trial = Trial(
        config=config,
        worker=worker,
        data=data,
        model=model,
        parameters=parameters,
        shard_loss=shard_loss,
        metric=config.metric.rpartition(":")[2],
        sync=make_gradient_sync(config.gradient_sync, shard_loss, worker, options),
        optimizer=make_optimizer(config.optimizer, config.learning_rate, model),
        rate=make_rate(config, data.samples, whole.steps, an_example),
        choices=choices,
        progress=Progress(new_tally(worker)),
        budget=budget,
        samples=samples,
    )
    allow_tf32(config.precision == "tf32")  # again: a module of the user's, imported meanwhile, may have changed it
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    seed_steps(config.seed, worker.rank, period=1)
    return trial


def check_batch_size(batch_size: int, samples: int, data: str) -> None:
    """Raise ValueError for a batch of more examples than the training set of that name has."""
    if batch_size > samples:
        raise InputError(
            f"batch_size: {batch_size} is more than the {samples} training examples of {data!r}",
            f"choose at most {samples}",
        )


def make_optimizer(config: OptimizerConfig, learning_rate: float, model: nn.Module) -> torch.optim.Optimizer:
    """Make PyTorch's optimizer of that name, which updates all parameters in one fused kernel if it can, or the user's.

    A user's is a subclass of torch.optim.Optimizer, made of the trained parameters, or a callable(model, learning_rate,
    **args) that returns one; its groups may have different rates, which keep their ratio to the training's. Raises
    ValueError for another result, and for one that leaves out a trained parameter.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    parameters = list(trained.values())
    builder = resolve_field("optimizer.name", config.name, OPTIMIZERS)
    if config.name in OPTIMIZERS:
        arguments: dict[str, Any] = {"weight_decay": config.weight_decay}
        if config.name == "sgd":
            arguments |= {"momentum": config.momentum, "dampening": config.dampening, "nesterov": config.nesterov}
        else:
            chosen = {"betas": config.betas, "eps": config.eps, "amsgrad": config.amsgrad or None}
            arguments |= {key: value for key, value in chosen.items() if value is not None}
        fused = all(parameter.is_floating_point() for parameter in parameters)
        made: torch.optim.Optimizer = builder(parameters, lr=learning_rate, fused=fused, **arguments)
        return made
    what = f"optimizer.args: {config.name!r}"
    if isinstance(builder, type) and issubclass(builder, torch.optim.Optimizer):
        made = call_with(builder, what, parameters, lr=learning_rate, **config.args)
    else:
        made = call_with(builder, what, model, learning_rate, **config.args)
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"optimizer.name: {config.name!r} gave a {type(made).__name__}", "return a torch optimizer")
    if any("lr" not in group for group in made.param_groups):
        raise InputError(
            f"optimizer.name: {config.name!r} has groups without a rate, lr", "choose one that has a learning rate"
        )
    if inspect.signature(made.step).parameters["closure"].default is inspect.Parameter.empty:
        raise InputError(
            f"optimizer.name: {config.name!r} evaluates the loss within a step", "choose one that needs no closure"
        )
    updated = {id(each) for group in made.param_groups for each in group["params"]}
    missing = [name for name, each in trained.items() if id(each) not in updated]
    if missing:
        raise InputError(
            f"optimizer.name: {config.name!r} leaves out {', '.join(missing)}",
            "put them into a group, or set their requires_grad to False",
        )
    return made
