"""A rehearsal: the first steps of a training, alone on the CPU, to find mistakes before a study starts.

It is the training itself: its first step, an evaluation of a few examples, two more steps, and its state packed and
loaded again. What it adds are checks that no training makes: that a task's sums are sums, since a training with another
loss runs, and is wrong; and that the model takes the smallest part of a batch that any step gives any worker, which a
training meets in its last step.

The second half of the file tells whose mistake an exception is.

Shapes: N examples of a batch.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scalestudy.training import data, models
from scalestudy.training.batches import batch_bounds, even_weights, micro_batch_sizes, shard_sizes, steps_per_epoch
from scalestudy.training.budget import budget_of
from scalestudy.training.checkpoint.trial_state import own_state, restore, shared_state
from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import EVALUATION_BATCH, TrainingData
from scalestudy.training.data.readers import ResidentReader
from scalestudy.training.distributed import Worker, stop_process_group
from scalestudy.training.exceptions import InputError, is_out_of_memory, wants_gpu, what_happened
from scalestudy.training.loop import evaluation, schedules
from scalestudy.training.loop.evaluation import Sums, evaluate, metrics_of, summed
from scalestudy.training.loop.exactness import outputs_of
from scalestudy.training.loop.guard import Guard
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.learning_rate import LOW, Outline, make_rate, outline
from scalestudy.training.loop.step import forward_and_backward
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial, check_batch_size, make_optimizer, tokens_an_example
from scalestudy.training.losses import make_loss, make_metric
from scalestudy.training.own_code import own_place
from scalestudy.training.seeding import generators_kept
from scalestudy.training.state import pack, unpack
from scalestudy.training.task import ExamplesTask, ShardLoss, checked_loss, make_task, tokens_of
from scalestudy.training.trees import Tree, count, mapped, part, split

STEPS = 3  # an evaluation, and then a step, come between two of them
EXAMPLES = 8  # of the test set
FEWEST = 2  # examples of each micro-batch of the rehearsed steps; smaller ones are tried apart
TRIES = 4  # sizes above the smallest part, to find how many examples are enough
MOST_NAMES = 3  # batches that a message lists
RATE_SECONDS = 5.0  # in which the rates of several trainings are looked at; the first one's always are
MOST_STEPS = 500_000  # of a scheduler of PyTorch's, which reaches a step by all before it, some 8 µs each
MOST_LOW = 0.5  # share of a training's steps whose rate may be under LOW of the peak
MOST_DRAWN = 20_000  # divisions between the bounds of a search that are looked at: half a second
TOLERANCE = 1e-2  # of a sum: in half precision sums of a few numbers round to some 1e-3; a mean is wrong by half
HERE: Mapping[str, Any] = {  # what costs time, or may be missing on this machine, and changes no mistake
    "precision": "fp32",
    "compile": False,
    "channels_last": False,
    "shards": "even",
    "warm_up_steps": 0,
}


@dataclass(frozen=True)
class Division:
    """How one trial divides its batches."""

    batch_size: int
    weights: tuple[float, ...]  # each worker's share
    accumulation: int  # micro-batches of a shard
    normalised_together: bool  # whether batch normalisation sees what all workers train at once
    steps: int | None = None  # of the whole training; None: at least an epoch

    @classmethod
    def of(cls, config: TrainConfig, world_size: int) -> Division:
        """Return the division of a trial. Shares by measured speed are taken as even."""
        return cls(
            batch_size=config.batch_size,
            weights=tuple(config.weights(world_size)),
            accumulation=config.accumulation,
            normalised_together=config.sync_batch_norm and world_size > 1,
            steps=config.length if config.unit == "steps" else None,
        )

    def smallest(self, samples: int | None, *, together: bool = False, halved: bool = False) -> int:
        """Return the fewest examples that a worker trains at once, in any step of an epoch; 0 is not one of them.

        samples: of an epoch, whose last batch may be smaller; None: a stream, whose batches are equal. together: what
        all workers train at once, in place of one. halved: whether a single worker also trains its whole batches in two
        halves, by which the gradient's noise is measured.
        """
        batches = {self.batch_size}
        last = steps_per_epoch(samples, self.batch_size) - 1 if samples is not None else None
        if samples is not None and last is not None and (self.steps is None or self.steps > last):
            start, stop = batch_bounds(samples, self.batch_size, last)
            batches.add(stop - start)
        found: list[int] = []
        for batch in batches:
            shards = shard_sizes(batch, self.weights)
            is_halved = halved and batch == self.batch_size and sum(map(bool, shards)) == 1
            pieces = max(self.accumulation, 2) if is_halved else self.accumulation
            parts = [micro_batch_sizes(shard, pieces, keep_empty=True) for shard in shards]
            found += map(sum, zip(*parts, strict=True)) if together else [size for each in parts for size in each]
        return min(filter(None, found))

    def smallest_tested(self, samples: int) -> int:
        """Return the fewest of the test set's examples that a worker evaluates at once."""
        shards = filter(None, shard_sizes(samples, self.weights))
        return min(shard % EVALUATION_BATCH or EVALUATION_BATCH for shard in shards)

    def words(self) -> str:
        """Return it by the names of a study's settings."""
        more = f", accumulation {self.accumulation}" if self.accumulation > 1 else ""
        return f"{self.batch_size} (num_gpus {len(self.weights)}{more})"


@dataclass(frozen=True)
class Ranges:
    """The whole numbers from which a search draws how a trial divides its batches; None: it draws none."""

    batch_size: range | None = None
    num_gpus: range | None = None
    accumulation: range | None = None

    def drawn(self, corners: Sequence[Division]) -> Iterator[Division]:
        """Yield every division that may be drawn, at most MOST_DRAWN. corners: those of the bounds."""
        for corner in corners:
            gpus = len(corner.weights)
            known = (corner.accumulation, gpus, corner.batch_size)
            ranges = (self.accumulation, self.num_gpus, self.batch_size)
            if any(each and value != each[-1] for each, value in zip(ranges, known, strict=True)):
                continue  # the corner of the upper bounds stands for all
            drawn = itertools.product(*(each or (value,) for each, value in zip(ranges, known, strict=True)))
            for accumulation, size, batch_size in itertools.islice(drawn, MOST_DRAWN // len(corners)):
                weights = corner.weights if size == gpus else even_weights(size)
                yield replace(corner, batch_size=batch_size, accumulation=accumulation, weights=weights)


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal that found no mistake."""

    loss: float  # mean of the first step's batch; if it is not finite, a trial ends as diverged
    seconds: float
    digest: str  # of losses, metrics, parameters and buffers: equal wherever the same training began the same; "": none
    rates: Mapping[str, Outline]  # of the trainings that were asked for, by name
    doubt: str = ""  # which trials that a search may draw would fail, and why; which rates fall to nothing


def rehearse(
    config: TrainConfig,
    worker: Worker,
    divisions: Sequence[Division],
    ranges: Ranges | None = None,
    *,
    in_group: bool = False,
    rated: Mapping[str, TrainConfig] | None = None,
    stepped: Callable[[Rehearsed], None] = lambda rehearsed: None,
) -> Rehearsed:
    """Make the config's first steps, and evaluate the first test examples.

    worker: alone, on the CPU. divisions: of all trials that this training stands for; of a search, at the bounds of
    these ranges. What only may be drawn is no mistake, but a doubt. in_group: make a process group of
    one meanwhile, for code that is only ever run by several workers, and may ask for its rank. rated: trainings whose
    rates are looked at, by name; None: this one. stepped: takes what is known after the first step and the evaluation,
    since the rest may take longer than there is time.

    Raises InputError for what does not fit together, a sum of a task's that is none, a metric that is not there, a
    state that a checkpoint can't hold, and a part of a batch that the model does not take. Exceptions of a user's code
    pass; `fault_of` tells whose they are.
    """
    began = time.perf_counter()
    rated = {"": config} if rated is None else rated
    batch_size = max(config.batch_size, FEWEST * config.accumulation)
    config = config.replace(max_steps=STEPS, batch_size=batch_size, **HERE)
    if in_group:
        config = config.replace(lr_rule="none")  # AdaScale measures several workers in another way than one
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with generators_kept():
            checks = _Checks(config, divisions, rated, lambda: stepped(checks.found(began)))
            model = train(config, worker, hooks=[checks]).model
            checks.reload()
            digest = _digest(model, checks.seen)
            checks.train_small_parts(divisions)
            if ranges:
                checks.train_drawn_parts(ranges)
    finally:
        if in_group:
            stop_process_group()
    return checks.found(began, digest)


class _Checks(Hook):
    """What a rehearsal does between a training's steps and after them."""

    def __init__(
        self,
        config: TrainConfig,
        divisions: Sequence[Division],
        rated: Mapping[str, TrainConfig],
        stepped: Callable[[], None],
    ) -> None:
        self._config, self._divisions, self._rated, self._stepped = config, divisions, rated, stepped
        self.loss = math.nan  # mean of the first step's batch
        self.seen: dict[str, float] = {}  # the same, and what the evaluation has given
        self._rates: dict[str, Outline] = {}
        self._doubts: list[str] = []

    def found(self, began: float, digest: str = "") -> Rehearsed:
        """Return what is known by now. began: when the rehearsal did."""
        return Rehearsed(self.loss, time.perf_counter() - began, digest, self._rates, "; ".join(self._doubts))

    def train_starts(self, trial: Trial) -> None:
        """Check that no batch exceeds the data."""
        self._trial, self._samples = trial, trial.data.samples
        if self._samples is not None:
            largest = max(division.batch_size for division in self._divisions)
            check_batch_size(largest, self._samples, self._config.data)
            # an epoch's last, smaller batch is tried apart
            trial.budget = trial.budget.cut(max(self._samples // self._config.batch_size, 1))
        self._look_at_rates()

    def _look_at_rates(self) -> None:
        """Outline the rates of whole trainings, without training them. Raises InputError for what is no rate."""
        began, an_example = time.perf_counter(), math.nan
        for name, config in self._rated.items():
            if self._rates and time.perf_counter() - began > RATE_SECONDS:
                break
            if config.counts_tokens and math.isnan(an_example):
                an_example = tokens_an_example(config, self._trial.worker, self._trial.shard_loss.task)
            an_epoch = 1 if self._samples is None else steps_per_epoch(self._samples, config.batch_size)
            steps = budget_of(config, an_epoch, an_example).steps
            plan = make_rate(config, self._samples, steps, an_example).plan
            if steps <= MOST_STEPS or plan.epoch or not isinstance(plan.schedule, schedules.TorchSchedule):
                self._rates[name] = outline(plan)
        if low := {name: each for name, each in self._rates.items() if each.low_share > MOST_LOW}:
            (name, worst), *_ = low.items()
            which = f" with {name}" * bool(name) + f" and {len(low) - 1} more" * (len(low) > 1)
            self._doubts.append(
                f"the rates fall to nothing{which}: in {worst.low_share:.0%} of the steps they are under {LOW:g} of "
                f"their peak, {worst.peak:g}, and end at {worst.rates['the end']:.3g}; correct train.schedule"
            )

    def step_ends(self, trial: Trial, step: int) -> None:
        """Evaluate after the first step: what the model keeps of an evaluation meets the second one."""
        if trial.made > 1:
            return
        tally = trial.progress.tally
        weight = float(tally.weight_sum)
        self.loss = tally.loss_sum.item() / weight if weight else math.nan
        with generators_kept():
            batch = _test_batch(trial.data, trial.worker)
            if self._config.task is not None:
                _check_sums(trial.shard_loss, batch)
            tested = _check_metrics(trial, batch, self._smallest_tested())
        self.seen = {"train_loss": self.loss, **tested}
        self._stepped()

    def reload(self) -> None:
        """Pack the training's state as a checkpoint does, and load it again."""
        shared, own = (unpack(pack(state(self._trial))) for state in (shared_state, own_state))
        try:
            restore(self._trial, shared, [own], self._trial.progress.period)
        except InputError as error:  # its own model does not take its state
            raise error.__context__ or error from None

    def train_drawn_parts(self, ranges: Ranges) -> None:
        """Train the smallest part of a batch that any draw of a search gives; keep what fails as a doubt.

        That is for the trial itself to meet: a search may never draw it, and a range can't leave out a number.
        """
        try:
            self.train_small_parts([*ranges.drawn(self._divisions)])
        except InputError as error:
            self._doubts.append(f"a search may draw {error.what}; list values in place of a range to leave it out")

    def train_small_parts(self, divisions: Sequence[Division]) -> None:
        """Train the smallest part of a batch that any step gives any worker. Raises InputError if that fails.

        Batch normalisation that sees all workers' examples is tried with these; the rest of the model with a worker's.
        """
        norms = [module for module in self._trial.model.modules() if isinstance(module, _BatchNorm)]
        joined = [each for each in divisions if norms and each.normalised_together]
        apart = [each for each in divisions if not (norms and each.normalised_together)]

        def smallest(division: Division) -> int:
            return division.smallest(self._samples, halved=not norms or division.accumulation > 1)

        def smallest_together(division: Division) -> int:
            return division.smallest(self._samples, together=True)

        self._train_smallest(apart, smallest)
        self._train_smallest(joined, smallest, asleep=norms)
        self._train_smallest(joined, smallest_together)

    def _train_smallest(
        self, divisions: Sequence[Division], size_of: Callable[[Division], int], asleep: Sequence[nn.Module] = ()
    ) -> None:
        """Train as many examples as the smallest of these divisions gives. asleep: modules that do not train."""
        size = min(map(size_of, divisions), default=None)
        if size is None or (error := self._why_not(size, asleep)) is None:
            return
        known = self._config.batch_size // self._config.accumulation  # that the steps have trained
        more = (*range(size + 1, min(size + TRIES, known)), max(known, size + 1))
        enough = next((each for each in more if self._why_not(each, asleep) is None), None)
        if enough is None:
            raise error  # for a whole batch too, so it is not the size
        small = [division for division in divisions if size_of(division) < enough]
        first = small[0]
        near = _neighbours(first.batch_size, self._samples)
        same = [division for division in divisions if division.batch_size == first.batch_size]
        others = [n for n in near if all(size_of(replace(each, batch_size=n)) >= enough for each in same)]
        part, listed = fault_of(error).part or "the training", ", ".join(each.words() for each in small[:MOST_NAMES])
        listed += f" and {len(small) - MOST_NAMES} more" * (len(small) > MOST_NAMES)
        raise InputError(
            f"batch_size: {listed}: in some step a worker trains {size} example{'s' * (size > 1)} at once, with which "
            f"{part} fails ({type(error).__name__}: {what_happened(str(error))})",
            f"choose {' or '.join(map(str, others[:2])) or 'another batch_size'}, or remove that one",
        ) from error

    def _why_not(self, size: int, asleep: Sequence[nn.Module]) -> Exception | None:
        """Return what the model raises when it trains so many examples; None: nothing."""
        shard_loss = self._trial.shard_loss.train()
        for module in asleep:
            module.eval()
        try:
            loss_sum, _ = shard_loss(self._trial.data.first_shard(size))
            loss_sum.backward()
        except Exception as error:  # a user's code may raise anything
            if is_out_of_memory(error) or wants_gpu(error):
                raise
            return error
        finally:
            self._trial.zero_gradients()
            shard_loss.train()
        return None

    def _smallest_tested(self) -> int:
        samples = self._trial.data.test_samples
        return 1 if samples is None else min(division.smallest_tested(samples) for division in self._divisions)


def _neighbours(batch_size: int, samples: int | None) -> list[int]:
    """Return batch sizes near this one, the nearest first."""
    near = [size for step in range(1, batch_size + 1) for size in (batch_size - step, batch_size + step)]
    return [size for size in near if 0 < size <= (samples or size)]


def _digest(model: nn.Module, seen: Mapping[str, float]) -> str:
    """Return a digest of the model's numbers and of what was seen of it."""
    digest = hashlib.sha256(repr(sorted(seen.items())).encode())
    for name, tensor in sorted({**dict(model.named_parameters()), **dict(model.named_buffers())}.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(pack(tensor.detach().clone()))
    return digest.hexdigest()


def _test_batch(data: TrainingData, worker: Worker) -> Tree:
    """The first test examples, at most EXAMPLES."""
    if data.test_samples is not None:
        return next(data.test_batches(0, min(EXAMPLES, data.test_samples)))
    with closing(data.test_part(worker, even_weights(1))) as batches:
        batch = next(batches)
    return part(batch, 0, min(EXAMPLES, count(batch)))


def _check_sums(shard_loss: ShardLoss, batch: Tree) -> None:
    """Raise InputError unless the same examples twice have twice the sum and twice the weight.

    Rejected: to compare a batch with its halves, whose sums also differ if the model mixes examples. Twice the same
    examples have the same mean, variance and padding. A model that draws random numbers in an evaluation is not asked.
    """
    twice = mapped(lambda tensor: torch.cat([tensor, tensor]), batch)
    shard_loss.model.eval()
    with torch.no_grad():
        first, again, doubled = (
            _sum_and_weight(shard_loss, examples, seed) for seed, examples in ((0, batch), (1, batch), (0, twice))
        )
    shard_loss.model.train()
    if not _alike(first[0], again[0]):
        return
    for what, one, two, remedy in zip(
        ("sum", "weight"),
        first,
        doubled,
        (
            "return the sum over the batch, not its mean; multiply by the weight what counts once a batch",
            "return what the sum is divided by to be a mean, such as the number of examples or of words",
        ),
        strict=True,
    ):
        if not _alike(two, 2 * one):
            n = count(batch)
            raise InputError(
                f"task: loss gave {one:.4g} as the {what} of {n} examples, and {two:.4g}, not {2 * one:.4g}, of the "
                "same ones twice",
                remedy,
            )


def _sum_and_weight(shard_loss: ShardLoss, batch: Tree, seed: int) -> tuple[float, float]:
    torch.manual_seed(seed)
    total, weight = checked_loss(shard_loss.task, shard_loss.predict(batch), batch)
    return float(total), float(weight)


def _alike(found: float, wanted: float) -> bool:
    """Whether two sums are equal, up to rounding; what is not finite is judged elsewhere."""
    if not (math.isfinite(found) and math.isfinite(wanted)):
        return True
    return abs(found - wanted) <= TOLERANCE * max(abs(found), abs(wanted))


def _check_metrics(trial: Trial, batch: Tree, fewest: int) -> dict[str, float]:
    """Evaluate the batch in two parts, one of them of `fewest` examples; return the loss and the metrics.

    Raises InputError for what a task may not return, or if the metric is missing. Some metrics have no value for a few
    examples, such as a share of a class that none of them has. Where `finish` fails in a way that may come from that,
    the whole test set decides.
    """
    n, sums = count(batch), Sums()
    fewest = min(fewest, n // 2)
    for piece in split(batch, [n - fewest, fewest] if fewest else [n]):
        tested = _evaluated(trial, replace(trial.data, test=ResidentReader(piece)))
        sums.add(tested.loss, tested.named, trial.worker.device)
    user_task = trial.shard_loss.task
    try:
        loss, metrics = metrics_of(user_task, summed(sums, trial.worker), trial.metric)
    except InputError:
        raise
    except (ArithmeticError, ValueError):
        whole = _evaluated(trial, trial.data)
        loss, metrics = metrics_of(user_task, summed(whole, trial.worker), trial.metric)
    return {"test_loss": loss, **metrics}


def _evaluated(trial: Trial, data: TrainingData) -> Sums:
    sums = evaluate(trial.shard_loss, data, trial.worker)
    if sums.problem:
        raise sums.problem
    return sums


# --- whose mistake an exception is --------------------------------------------------------------------------------
# Each part of a training is called from a few places of this package. So the innermost frame of ours tells which part
# was being called, however late its code runs: a data set that is read only when a batch is made is still the data.
# Rejected: a note made around every call, which would stand in the training step.
Part = Literal[
    "workload",
    "workload.data",
    "workload.model",
    "workload.task",
    "workload.loss",
    "workload.metric",
    "train.optimizer.name",
    "train.schedule",
]
"""The key of a spec that names the part; `workload`: of the model or the loss, in their backward."""
_CALLERS: Mapping[Callable[..., Any], Part] = {
    make_task: "workload.task",
    ShardLoss.predict: "workload.task",  # of a user's task; the default one's `forward` lies within
    checked_loss: "workload.task",
    tokens_of: "workload.task",
    outputs_of: "workload.task",
    ShardLoss.forward: "workload.model",
    ExamplesTask.forward: "workload.model",
    ExamplesTask.loss: "workload.loss",
    ExamplesTask.evaluate: "workload.metric",
    make_loss: "workload.loss",
    make_metric: "workload.metric",
    make_optimizer: "train.optimizer.name",
    forward_and_backward: "workload",
    Guard.update: "train.optimizer.name",
    shared_state: "workload.model",
    restore: "workload.model",
    _Checks._why_not: "workload",
}
_CODE: Mapping[CodeType, Part] = {inspect.unwrap(each).__code__: part for each, part in _CALLERS.items()}
_ROOMS: Mapping[str, Part] = {
    data.__name__: "workload.data",
    models.__name__: "workload.model",
    evaluation.__name__: "workload.task",
    schedules.__name__: "train.schedule",
}
"""Modules, and packages with all that is in them, that call one part."""
_CALLS_A_FORWARD = frozenset({ShardLoss.predict.__code__, outputs_of.__code__})
"""What calls a task's `forward`, which calls the model."""


@dataclass(frozen=True)
class Fault:
    """Where an exception comes from."""

    part: Part | None  # None: none of the user's parts was being called
    place: str  # file, line and function that raised it, of the user's own if there is one: `mine.py:12, in load`


def fault_of(error: BaseException) -> Fault:
    """Return the part that an exception came from, by its traceback."""
    frames: list[tuple[FrameType, int]] = []
    trace = error.__traceback__
    while trace:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    found: Part | None = None
    for index in range(len(frames) - 1, -1, -1):
        frame = frames[index][0]
        found = _CODE.get(frame.f_code) or _part_of_room(_module(frame))
        if found is None:
            continue
        within = (frame for frame, _ in frames[index + 1 :])
        if frame.f_code in _CALLS_A_FORWARD and any(_module(each) == nn.modules.module.__name__ for each in within):
            found = "workload.model"
        break
    return Fault(found, own_place(error))


def _part_of_room(module: str) -> Part | None:
    return next((part for room, part in _ROOMS.items() if f"{module}.".startswith(f"{room}.")), None)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
