"""A model's memory: what its parameters take, and the largest batch that fits, found by trying."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data.loading import TrainingData
from scalestudy.training.device import peak_memory_bytes, start_memory_count
from scalestudy.training.distributed import Worker, synchronise_device
from scalestudy.training.exceptions import InputError, is_out_of_memory
from scalestudy.training.gradient_sync.base import StepPlan, size_in_bytes
from scalestudy.training.loop.step import forward_and_backward
from scalestudy.training.loop.trial import Trial, make_optimizer, start_trial
from scalestudy.training.models import seeded_model
from scalestudy.training.process import leave
from scalestudy.training.registry import OPTIMIZERS
from scalestudy.training.trees import Tree, mapped, part, tensors

ADAM_STEP_BYTES = 4  # Adam counts each parameter's steps in a separate float32
RESOLUTION = 64  # the answer is exact to 1/64 of it
LARGEST = 2**20  # examples; where a search ends
Example = Tree  # a batch of one


@dataclass(frozen=True)
class ParameterRow:
    """One tensor that the model learns."""

    name: str  # the first of its names
    shape: tuple[int, ...]
    count: int  # numbers in it
    mean: float | None  # of its numbers as the trial's seed draws them; None: it has none
    std: float | None  # divided by the count, not by the count - 1
    trained: bool  # whether it needs a gradient
    shared_with: tuple[str, ...]  # the other places where the model uses the same tensor


@dataclass(frozen=True)
class Memory:
    """Bytes on each worker at any batch size. Activations come on top; they grow with the worker's shard."""

    parameters: int
    gradients: int  # of the trained parameters
    optimizer: int  # its state between steps
    buffers: int


@dataclass(frozen=True)
class Inspection:
    """A model as a trial starts from it."""

    parameters: tuple[ParameterRow, ...]
    buffer_tensors: int  # running statistics and the like: kept and saved, not learned
    buffer_numbers: int
    memory: Memory

    @property
    def trained_numbers(self) -> int:
        """Numbers that the optimizer updates, each shared one counted once."""
        return sum(row.count for row in self.parameters if row.trained)

    @property
    def frozen_numbers(self) -> int:
        """Numbers in parameters that need no gradient."""
        return sum(row.count for row in self.parameters if not row.trained)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        numbers = {"trained_numbers": self.trained_numbers, "frozen_numbers": self.frozen_numbers}
        return {**dataclasses.asdict(self), **numbers}


def inspect_config(config: TrainConfig, data: TrainingData) -> Inspection:
    """Inspect the model that a trial of this config starts from: the same seed and code as on any rank.

    data: the config's. Raises ValueError for a model that can't be built. A user's exceptions pass.
    """
    return inspect_model(seeded_model(config, data.for_model), config.optimizer)


def inspect_model(model: nn.Module, optimizer: OptimizerConfig) -> Inspection:
    """List the model's parameters in its order, each tensor once, and the memory of training it."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    rows = []
    for parameter, (name, *others) in names.items():
        values = parameter.detach().double()
        some = values.numel() > 0
        rows.append(
            ParameterRow(
                name=name,
                shape=tuple(parameter.shape),
                count=parameter.numel(),
                mean=values.mean().item() if some else None,
                std=values.std(correction=0).item() if some else None,
                trained=parameter.requires_grad,
                shared_with=tuple(others),
            )
        )
    buffers = list(model.buffers())
    trained = [parameter for parameter in names if parameter.requires_grad]
    return Inspection(
        parameters=tuple(rows),
        buffer_tensors=len(buffers),
        buffer_numbers=sum(buffer.numel() for buffer in buffers),
        memory=Memory(
            parameters=size_in_bytes(names),
            gradients=size_in_bytes(trained),
            optimizer=optimizer_bytes(optimizer, model),
            buffers=size_in_bytes(buffers),
        ),
    )


def optimizer_bytes(config: OptimizerConfig, model: nn.Module) -> int:
    """Return the bytes that the optimizer keeps between steps.

    SGD keeps momentum, Adam two or three moments and a count.

    For a user's optimizer: what it keeps after one step of a copy of the model.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.name == "sgd":
        return size_in_bytes(parameters) if config.momentum else 0
    if config.name in OPTIMIZERS:
        return (3 if config.amsgrad else 2) * size_in_bytes(parameters) + ADAM_STEP_BYTES * len(parameters)
    tried = copy.deepcopy(model)
    optimizer = make_optimizer(config, 1.0, tried)
    for parameter in tried.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return sum(tensor.nbytes for state in optimizer.state.values() for _, tensor in tensors(state))


@dataclass(frozen=True)
class Try:
    """One batch that was tried."""

    batch: int  # examples on one worker
    fits: bool
    peak_memory_bytes: int  # CUDA: allocated in the step; CPU: the largest resident set; 0: the process died


@dataclass(frozen=True, kw_only=True)
class MaxBatch:
    """The answer, and every step that led to it."""

    batch: int  # the largest that fits, to within 1/RESOLUTION; 0: not even one example
    at_least: bool  # whether the search ended at `most`; more may fit
    limit_bytes: int  # CPU: the stated limit; CUDA: the device's memory
    tries: tuple[Try, ...]


def find_max_batch(
    config: TrainConfig, worker: Worker, *, limit_bytes: int | None = None, most: int = LARGEST
) -> MaxBatch:
    """Find the largest batch on one worker by whole steps of the config's training: forward, backward, update.

    Each batch is tried in a fresh process, so that no earlier try has left memory in use. On CUDA the device's memory
    is the limit. On a CPU give `limit_bytes`: the process gets so much for its data (RLIMIT_DATA: Linux refuses more),
    with interpreter, libraries' data and data set. Several workers need the parameters' size once more, for the
    gradients' buckets. One worker's steps that measure the noise scale keep as much, with half the activations. Raises
    ValueError for a missing or too small limit.
    """
    if worker.device.type == "cuda":
        limit_bytes = None
    elif limit_bytes is None or limit_bytes < 1:
        raise InputError("memory: a CPU needs a limit", "give the bytes that a worker may use")
    tries: list[Try] = []
    limits: list[int] = []

    def fits(batch: int) -> bool:
        limit, tried = _try_in_fresh_process(config, worker, limit_bytes, batch)
        limits.append(limit)
        tries.append(tried)
        return tried.fits

    batch = largest_that_fits(fits, most)
    return MaxBatch(batch=batch, at_least=batch == most, limit_bytes=limits[0], tries=tuple(tries))


def largest_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest whole number up to `most` that fits. `fits` must be true up to some number, then false.

    From 2 · RESOLUTION on it may return a number that is smaller by less than 1/RESOLUTION, since `fits` may be a
    training step. It doubles from 2 until something does not fit, then halves the gap. (It does not start at 1, a batch
    that batch normalisation refuses.) 0: not even 1 fits.
    """
    good, bad = 0, min(2, most)
    while bad <= most and fits(bad):
        good, bad = bad, bad * 2
    bad = min(bad, most + 1)
    while bad - good > max(good // RESOLUTION, 1):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _try_in_fresh_process(config: TrainConfig, worker: Worker, limit_bytes: int | None, batch: int) -> tuple[int, Try]:
    """Try one batch in a process that has done nothing else. Return the limit that held there too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])  # one import of PyTorch, by the server that forks
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_try, args=(theirs, config, worker, limit_bytes, batch))
    process.start()
    theirs.close()
    said: list[Any] = []
    with suppress(EOFError):  # it has died
        while not said or isinstance(said[-1], int):  # not to the pipe's end: what the user's code started may hold it
            said.append(ours.recv())
    process.join()
    match said:
        case [int(limit), Try() as tried]:
            return limit, tried
        case [int(limit)]:  # it died in the step, for example because no thread could be started without memory
            return limit, Try(batch, fits=False, peak_memory_bytes=0)
        case [*_, Exception() as error]:
            raise error
    raise _too_little(limit_bytes)


def _try(pipe: Any, config: TrainConfig, worker: Worker, limit_bytes: int | None, batch: int) -> None:
    """Send the limit once the training is loaded, then the Try; or the error that a user has to see."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    answer: Any = None
    is_loaded = False
    try:
        if limit_bytes is None:
            limit_bytes = torch.cuda.get_device_properties(worker.device).total_memory
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
        trial = start_trial(config.replace(batch_size=2, shards="even"), worker)
        example = part(next(trial.shards()), 0, 1)
        pipe.send(limit_bytes)
        is_loaded = True
        start_memory_count(worker.device)
        fits = _step_fits(trial, example, batch)
        answer = Try(batch, fits, peak_memory_bytes(worker.device))
    except BaseException as error:
        lacks_memory = not is_loaded and is_out_of_memory(error)
        answer = _too_little(limit_bytes) if lacks_memory else ValueError(str(error))
    resource.setrlimit(resource.RLIMIT_DATA, (before, hard))  # what is sent needs memory too
    pipe.send(answer)
    leave(0, 0.0)


def _too_little(limit_bytes: int | None) -> InputError:
    limit = "the GPU's memory is" if limit_bytes is None else f"{limit_bytes / 2**30:.2f} GiB are"
    return InputError(f"memory: {limit} too little to load the data set and the model", "give more")


def _step_fits(trial: Trial, example: Example, batch: int) -> bool:
    """Whether a whole step over `batch` copies of the example fits into memory."""
    try:
        repeated = mapped(lambda tensor: tensor.repeat(batch, *[1] * (tensor.dim() - 1)), example)
        trial.plan = StepPlan(shard=batch, batch=batch)
        forward_and_backward(trial, repeated, ())
        trial.optimizer.step()
        synchronise_device(trial.worker.device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
