"""A model's memory: counted, and the largest batch tried."""

from __future__ import annotations

import dataclasses
import functools
import gc
import multiprocessing
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data.loading import open_data
from scalestudy.training.device import peak_memory_bytes, start_memory_count
from scalestudy.training.distributed import Worker, synchronise_device
from scalestudy.training.exceptions import is_out_of_memory
from scalestudy.training.gradient_sync.base import StepPlan
from scalestudy.training.loop.measures import PhaseTimer
from scalestudy.training.loop.train import forward_and_backward
from scalestudy.training.loop.trial import Trial, start_trial
from scalestudy.training.models import seeded_model

ADAM_STEP_BYTES = 4  # Adam counts each parameter's steps in a float32 of its own


@dataclass(frozen=True)
class ParameterRow:
    """One tensor that the model learns."""

    name: str  # the first of its names
    shape: tuple[int, ...]
    count: int  # numbers in it
    mean: float | None  # of its numbers as the trial's seed draws them; None: it has none
    std: float | None  # over the count, not the count - 1
    trained: bool  # whether it needs a gradient
    shared_with: tuple[str, ...]  # the other places where the model uses the same tensor


@dataclass(frozen=True)
class Memory:
    """Bytes on each worker, whatever the batch; activations come on top and grow with the worker's share of it."""

    parameters: int
    gradients: int  # of the trained parameters
    optimizer: int  # what it keeps between steps
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
        """Plain data, for JSON."""
        return {**dataclasses.asdict(self), "trained_numbers": self.trained_numbers,
                "frozen_numbers": self.frozen_numbers}  # fmt: skip


def inspect_config(config: TrainConfig) -> Inspection:
    """The model that a trial of this config starts from, on any rank: same data, same seed, same code.

    Raises DataError for missing data, ValueError for a model that can't be built; what a user's code raises passes.
    """
    data = open_data(config, Worker(0, 1, torch.device("cpu")))
    return inspect_model(seeded_model(config, data.num_classes, data.in_channels), config.optimizer)


def inspect_model(model: nn.Module, optimizer: OptimizerConfig) -> Inspection:
    """The parameters of the model in its order, each tensor once, and the memory of training it."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    buffers = list(model.buffers())
    trained = [parameter for parameter in names if parameter.requires_grad]
    return Inspection(
        parameters=tuple(_row(parameter, *its_names) for parameter, its_names in names.items()),
        buffer_tensors=len(buffers),
        buffer_numbers=sum(buffer.numel() for buffer in buffers),
        memory=Memory(
            parameters=_bytes(names),
            gradients=_bytes(trained),
            optimizer=optimizer_bytes(optimizer, trained),
            buffers=_bytes(buffers),
        ),
    )


def optimizer_bytes(config: OptimizerConfig, trained: Iterable[torch.Tensor]) -> int:
    """What PyTorch's optimizer keeps from its first step on: SGD momentum, Adam and AdamW two moments and a count."""
    parameters = list(trained)
    if config.name == "sgd":
        return _bytes(parameters) if config.momentum else 0
    return 2 * _bytes(parameters) + ADAM_STEP_BYTES * len(parameters)


def _row(parameter: nn.Parameter, name: str, *others: str) -> ParameterRow:
    values = parameter.detach().double()
    some = values.numel() > 0
    return ParameterRow(
        name=name,
        shape=tuple(parameter.shape),
        count=parameter.numel(),
        mean=values.mean().item() if some else None,
        std=values.std(correction=0).item() if some else None,
        trained=parameter.requires_grad,
        shared_with=others,
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


RESOLUTION = 64  # the answer is this exact: 1/64 of it
LARGEST = 2**20  # examples; nobody asks for more, and a search must end

Example = Sequence[torch.Tensor]  # one input and its target, each with a first dimension of 1


@dataclass(frozen=True)
class Try:
    """One batch that was tried."""

    batch: int  # examples on one worker
    fits: bool
    peak_memory_bytes: int  # CUDA: allocated in this try; CPU: largest resident set of the process


Attempt = Callable[[Trial, Example, int], Try]  # a trial, an example, how often it is repeated


@dataclass(frozen=True, kw_only=True)
class MaxBatch:
    """The answer, with every step that led to it."""

    batch: int  # largest that was seen to fit, to within 1/RESOLUTION; 0: not even one example
    at_least: bool  # whether the search ended at `most`, so that more may fit
    device: str
    limit_bytes: int | None  # CPU: the stated limit; CUDA: the device's memory
    tries: tuple[Try, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def largest_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """A whole number up to `most` for which `fits` is true, if it is true up to some number and then false.

    That number itself if it is below 2 · RESOLUTION, else one that is less than 1/RESOLUTION smaller: `fits` may be a
    training step. Doubles from 2 (a batch of one is refused by batch normalisation) until something does not fit, then
    halves the gap. 0: not even 1 fits.
    """
    good, bad = 0, min(2, most)
    while bad <= most and fits(bad):
        good, bad = bad, bad * 2
    bad = min(bad, most + 1)
    while bad - good > max(good // RESOLUTION, 1):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def find_max_batch(
    config: TrainConfig, worker: Worker, *, limit_bytes: int | None = None, most: int = LARGEST
) -> MaxBatch:
    """The largest batch on one worker, whole steps of the config's training tried: forward, backward, update.

    On CUDA the device's memory is the limit. On a CPU `limit_bytes` must be given: a process of its own gets so much
    for its data (RLIMIT_DATA: Linux refuses more), interpreter, libraries' data and data set included. The gradients'
    buckets of several workers come on top: once more the parameters' size. The steps in which one worker measures the
    noise scale keep as much, with half the activations. Raises ValueError for a missing limit.
    """
    if worker.device.type == "cuda":
        total = torch.cuda.get_device_properties(worker.device).total_memory
        return _search(config, worker, total, most, _try_here)
    if limit_bytes is None or limit_bytes < 1:
        raise ValueError("memory: on a CPU the limit has to be stated; give the bytes that a worker may use")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_search_limited, args=(theirs, config, worker, limit_bytes, most))
    process.start()
    theirs.close()
    return _answer(ours, limit_bytes)


def _answer(pipe: Any, limit_bytes: int) -> MaxBatch:
    try:
        answer = pipe.recv()
    except EOFError:
        raise _too_little(limit_bytes) from None
    if isinstance(answer, MaxBatch):
        return answer
    raise answer


def _too_little(limit_bytes: int) -> ValueError:
    return ValueError(f"memory: {limit_bytes / 2**30:.2f} GiB are too little to load the data set and the model; give "
                      "more")  # fmt: skip


def _search_limited(pipe: Any, config: TrainConfig, worker: Worker, limit_bytes: int, most: int) -> None:
    """In a process of its own: the limit holds for all that it does from now on."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked child of a process with an OpenMP pool would wait for threads it doesn't have
    try:
        pipe.send(_search(config, worker, limit_bytes, most, functools.partial(_try_in_child, threads)))
    except Exception as error:
        pipe.send(_too_little(limit_bytes) if is_out_of_memory(error) else ValueError(str(error)))


def _search(config: TrainConfig, worker: Worker, limit_bytes: int, most: int, attempt: Attempt) -> MaxBatch:
    trial = start_trial(dataclasses.replace(config, batch_size=2, shards="even"), worker)
    example = tuple(tensor[:1] for tensor in next(iter(trial.shards(epoch=1))))
    tries: list[Try] = []

    def fits(batch: int) -> bool:
        tries.append(attempt(trial, example, batch))
        return tries[-1].fits

    batch = largest_that_fits(fits, most)
    return MaxBatch(
        batch=batch, at_least=batch == most, device=str(worker.device), limit_bytes=limit_bytes, tries=tuple(tries)
    )


def _try_here(trial: Trial, example: Example, batch: int) -> Try:
    start_memory_count(trial.worker.device)
    fits = _step_fits(trial, example, batch)
    return Try(batch, fits, peak_memory_bytes(trial.worker.device))


def _try_in_child(threads: int, trial: Trial, example: Example, batch: int) -> Try:
    """Forked for each try: what an earlier one left in the heap, freed but not given back, takes no room here."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_try, args=(theirs, threads, trial, example, batch))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:  # ended without a word, as where no thread could be started for want of memory
        answer = Try(batch, fits=False, peak_memory_bytes=0)
    process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _send_try(pipe: Any, threads: int, trial: Trial, example: Example, batch: int) -> None:
    torch.set_num_threads(threads)
    try:
        pipe.send(_try_here(trial, example, batch))
    except Exception as error:
        pipe.send(ValueError(str(error)))


def _step_fits(trial: Trial, example: Example, batch: int) -> bool:
    """Whether a whole step over so many copies of the example can be made."""
    try:
        inputs, targets = (tensor.repeat(batch, *[1] * (tensor.dim() - 1)) for tensor in example)
        trial.plan = StepPlan(shard=batch, batch=batch)
        forward_and_backward(trial, (inputs, targets), PhaseTimer(trial.worker.device, (), 1), ())
        trial.optimizer.step()
        synchronise_device(trial.worker.device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        trial.optimizer.zero_grad(set_to_none=True)
        gc.collect()
    return True
