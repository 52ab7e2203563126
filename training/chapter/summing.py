"""`bench allreduce`: how do gradients of several devices become one sum, and how fast?

The book's "Training on Multiple GPUs": `get_params`, `allreduce` over a list with a tensor a device, `split_batch`, and
the bug in the book's allreduce. The devices are the machine's GPUs. With fewer than two, the CPU stands for each device
and holds a copy for each. Then the bandwidth of real ranks, as nccl-tests' PERFORMANCE.md defines it: algbw = bytes ÷
seconds; for all_reduce over k ranks busbw = algbw · 2(k - 1)/k.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from scalestudy.training.chapter.measuring import (
    MEBIBYTE,
    Cell,
    Experiment,
    Table,
    median_seconds,
    milliseconds,
    peak_bytes,
    usable_cores,
)
from scalestudy.training.distributed import Worker, on_ranks, synchronise_device
from scalestudy.training.models import build_model
from scalestudy.training.seeding import seed_parameters

QUESTION = "How do gradients of several devices become one sum, and how fast?"
LEARNING_RATE = 0.1
WORLD_SIZES = (2, 4)
MESSAGE_BYTES = tuple(4**power for power in range(5, 13))  # 1 KiB … 16 MiB
QUICK_BYTES = (4**5, 4**8)
FLOAT_BYTES = 4
MEGABYTE = 1e6
Allreduce = Callable[[list[torch.Tensor]], None]


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Shows the list version and its bug, then bandwidth over gloo (and NCCL with two GPUs); on a CPU some 20 s."""
    has_gpus = device.type == "cuda" and torch.cuda.device_count() > 1
    devices = [torch.device("cpu")] * 2
    if has_gpus:
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    beside, differences = beside_each_other([devices, devices * 2])
    bandwidths = measure_bandwidth(device, quick)
    tables = [params_table(devices), sums_table(devices), split_table(devices), beside, bandwidth_table(bandwidths)]
    metrics = {**differences, **bandwidth_metrics(bandwidths)}
    if has_gpus:
        table, seconds = data_parallel_table(devices, 256, 10)
        tables.append(table)
        metrics |= {f"data_parallel_{name}_seconds": value for name, value in seconds.items()}
    notes = [
        "The rebinding allreduce looks right wherever the list is printed, and its first replica is right too: its "
        "gradient was summed in place. The others step with their own gradients, and drift apart without an error; "
        "`replica_max_diff` of a study's records is there to find it.",
        "Algorithm bandwidth: message ÷ time. Bus bandwidth, as nccl-tests define it: × 2(k - 1)/k, what a ring has to "
        "move for each byte, so that numbers of different k compare. All ranks share this machine's cores and memory.",
    ]
    if usable_cores() < max(WORLD_SIZES):
        notes.append(
            f"This machine has {usable_cores()} cores: more ranks than that wait for a core, and their times say more "
            "about the scheduler than about the network."
        )
    if not has_gpus:
        notes.append(
            "Fewer than two GPUs: the list version's devices are all the CPU, and nn.DataParallel, which splits a "
            "batch over the GPUs of one process, has nothing to split over."
        )
    return Experiment("allreduce", QUESTION, tuple(tables), tuple(notes), metrics)


def get_params(params: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copies each parameter to the device, as a leaf that gathers its own gradient."""
    return [param.detach().to(device, copy=True).requires_grad_() for param in params]


def allreduce(data: list[torch.Tensor]) -> None:
    """Writes the sum of all entries into every entry's tensor, in place."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for other in data[1:]:
        other.copy_(data[0])


def rebinding_allreduce(data: list[torch.Tensor]) -> None:
    """Puts the sum into the *list*: the bug. Only the first replica's tensor gets the sum.

    Kept as an example of what looks right when the list is printed.
    """
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for number in range(1, len(data)):
        data[number] = data[0].to(data[number].device)


def split_batch(
    images: torch.Tensor, labels: torch.Tensor, devices: Sequence[torch.device]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Splits the rows of images (N, …) and labels (N,) into a part for each device, k parts in all.

    The first N mod k parts have one row more. Raises ValueError if images and labels differ in length.
    """
    if len(images) != len(labels):
        raise ValueError(f"labels: {len(labels)} for {len(images)} images; give as many of both")
    parts = [batch.tensor_split(len(devices)) for batch in (images, labels)]
    images_by_device, labels_by_device = (
        [part.to(device) for part, device in zip(split, devices, strict=True)] for split in parts
    )
    return images_by_device, labels_by_device


def params_table(devices: Sequence[torch.device]) -> Table:
    """Prints the book's `get_params`: each device's first bias of LeNet, which has no gradient yet."""
    seed_parameters(0)
    params = list(build_model("lenet", (10, 1), {"init": "default"}).parameters())
    rows: list[tuple[Cell, ...]] = []
    for number, device in enumerate(devices):
        bias = get_params(params, device)[1]
        memory = "shared" if bias.data_ptr() == params[1].data_ptr() else "own copy"
        rows.append((number, str(bias.device), _shown(bias[:3]), str(bias.grad), memory))
    header = ("replica", "device", "b1, first three", "b1.grad", "the original's memory?")
    return Table("get_params: LeNet's parameters on each device", header, tuple(rows))


def sums_table(devices: Sequence[torch.device]) -> Table:
    """Prints the book's `allreduce`: ones × 1, 2, … before and after."""
    data = [torch.ones(1, 2, device=device) * (number + 1) for number, device in enumerate(devices)]
    before = [_shown(tensor) for tensor in data]
    allreduce(data)
    rows: list[tuple[Cell, ...]] = [
        (number, str(tensor.device), before[number], _shown(tensor)) for number, tensor in enumerate(data)
    ]
    return Table("allreduce over a list", ("entry", "device", "before", "after"), tuple(rows))


def split_table(devices: Sequence[torch.device]) -> Table:
    """Prints the book's `split_batch`: twenty numbers in four rows, and a batch that does not divide."""
    rows: list[tuple[Cell, ...]] = []
    for examples in (4, 5):
        images = torch.arange(examples * 5).reshape(examples, 5)
        parts, labels = split_batch(images, torch.arange(examples), devices)
        rows += [
            (examples, number, str(part.device), _shown(part), _shown(label))
            for number, (part, label) in enumerate(zip(parts, labels, strict=True))
        ]
    header = ("rows before", "part", "device", "rows after", "labels after")
    return Table("split_batch: the batch is arange(rows × 5), the labels arange(rows)", header, tuple(rows))


def beside_each_other(groups: Sequence[Sequence[torch.device]]) -> tuple[Table, dict[str, float]]:
    """Compares the bug and its cure on each group of devices: what the list shows, and what the replicas hold."""
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    versions: dict[str, tuple[str, Allreduce]] = {
        "rebinds data[i]": ("rebinding", rebinding_allreduce),
        "writes into data[i]": ("in_place", allreduce),
    }
    for devices in groups:
        for name, (word, version) in versions.items():
            entries, gradients, difference = one_step(version, devices)
            equal = "no" if difference else "yes"
            rows.append((len(devices), name, _shown(entries), _shown(gradients), difference, equal))
            metrics[f"{word}_{len(devices)}_replicas_difference"] = difference
    header = (
        *("replicas", "allreduce", "the list, by entry", "w.grad, by replica"),
        *("w differs after a step by", "replicas equal?"),
    )
    return Table("The rebinding bug and its cure: gradients 1, 2, … summed, then a step", header, tuple(rows)), metrics


def one_step(version: Allreduce, devices: Sequence[torch.device]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Sums and steps; returns (list entries, replicas' gradients, largest difference of a weight).

    Replica i has a weight 0 and gradient i + 1, so that the right sum over k is k·(k + 1)/2 everywhere.
    """
    weights = [get_params([torch.zeros(1)], device)[0] for device in devices]
    for number, weight in enumerate(weights):
        (weight * (number + 1)).sum().backward()
    data = [_gradient(weight) for weight in weights]
    version(data)
    with torch.no_grad():
        for weight in weights:
            weight -= LEARNING_RATE * _gradient(weight)
    entries, gradients, after = (
        torch.cat([tensor.detach().cpu() for tensor in tensors])
        for tensors in (data, [_gradient(weight) for weight in weights], weights)
    )
    return entries, gradients, (after - after[0]).abs().max().item()


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    if weight.grad is None:
        raise RuntimeError("a replica has no gradient after backward")
    return weight.grad


def _shown(tensor: torch.Tensor) -> str:
    """Prints the numbers of a small tensor as a list; fractions have four digits."""

    def rounded(values: Any) -> Any:
        return [rounded(value) for value in values] if isinstance(values, list) else round(values, 4)

    values = tensor.detach().cpu().tolist()
    return str(rounded(values) if tensor.is_floating_point() else values)


def data_parallel_table(devices: Sequence[torch.device], batch: int, repeats: int) -> tuple[Table, dict[str, float]]:
    """Times nn.DataParallel beside one device: forward and backward of ResNet-18, without the update."""
    seed_parameters(0)
    model = build_model("resnet18", (10, 1), {}).to(devices[0])
    images = torch.randn(batch, 1, 28, 28, device=devices[0])
    labels = torch.arange(batch, device=devices[0]) % 10

    def step(network: nn.Module) -> None:
        network.zero_grad()
        F.cross_entropy(network(images), labels).backward()

    on_all = nn.DataParallel(model, device_ids=[device.index for device in devices])
    steps = {"one": functools.partial(step, model), "all": functools.partial(step, on_all)}
    seconds = median_seconds(steps, devices[0], repeats)
    rows: list[tuple[Cell, ...]] = []
    for name, count in (("one", 1), ("all", len(devices))):
        memory = peak_bytes(steps[name], devices[0]) / MEBIBYTE
        rows.append((count, milliseconds(seconds[name]), seconds["one"] / seconds[name], memory))
    title = f"nn.DataParallel: forward and backward of ResNet-18, batch {batch}"
    return Table(title, ("GPUs", "a step (ms)", "speed-up", "memory on the first (MiB)"), tuple(rows)), seconds


@dataclass(frozen=True)
class Bandwidth:
    """The all_reduce of one message size over so many ranks."""

    backend: str
    world_size: int
    message_bytes: int
    seconds: float  # of one all_reduce, on the slowest rank

    @property
    def algorithm(self) -> float:
        """Bytes a second as the caller sees them."""
        return self.message_bytes / self.seconds

    @property
    def bus(self) -> float:
        """Bytes a second that each rank of a ring sends, 2(k - 1)/k of the algorithm's."""
        return self.algorithm * 2 * (self.world_size - 1) / self.world_size


def measure_bandwidth(device: torch.device, quick: bool) -> list[Bandwidth]:
    """Measures gloo on the CPU with 2 and (unless `quick`) 4 ranks. With two GPUs or more, NCCL on 2, 4, … of them."""
    sizes, repeats = (QUICK_BYTES, 3) if quick else (MESSAGE_BYTES, 15)
    settings = [("gloo", world_size) for world_size in (WORLD_SIZES[:1] if quick else WORLD_SIZES)]
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    settings += [("nccl", world_size) for world_size in range(2, gpus + 1, 2)]
    found: list[Bandwidth] = []
    for backend, world_size in settings:
        ranks = on_ranks(world_size, time_sums, sizes, repeats, backend=backend)
        slowest = [max(times) for times in zip(*ranks, strict=True)]
        found += [Bandwidth(backend, world_size, size, seconds) for size, seconds in zip(sizes, slowest, strict=True)]
    return found


def time_sums(worker: Worker, sizes: Sequence[int], repeats: int) -> list[float]:
    """Measures on each rank the median seconds of an all_reduce, for each message size in bytes, after one warm-up.

    Raises RuntimeError if a sum is wrong.
    """
    medians: list[float] = []
    for size in sizes:
        tensor = torch.empty(size // FLOAT_BYTES, device=worker.device)
        times: list[float] = []
        for _ in range(repeats + 1):
            tensor.fill_(worker.rank + 1.0)
            synchronise_device(worker.device)
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(tensor)
            synchronise_device(worker.device)
            times.append(time.perf_counter() - started)
        expected = worker.world_size * (worker.world_size + 1) / 2
        if not bool((tensor == expected).all()):
            raise RuntimeError(f"all_reduce of 1 … {worker.world_size} gave {tensor.unique().tolist()}, not {expected}")
        medians.append(statistics.median(times[1:]))
    return medians


def bandwidth_table(found: Sequence[Bandwidth]) -> Table:
    """Shows a row for each message size and number of ranks."""
    rows: list[tuple[Cell, ...]] = [
        (
            *(each.backend, each.world_size, each.message_bytes / 1024, milliseconds(each.seconds)),
            *(each.algorithm / MEGABYTE, each.bus / MEGABYTE),
        )
        for each in found
    ]
    header = ("backend", "ranks", "message (KiB)", "time (ms)", "algorithm bandwidth (MB/s)", "bus bandwidth (MB/s)")
    return Table("all_reduce over real ranks, by the size of the message", header, tuple(rows))


def bandwidth_metrics(found: Sequence[Bandwidth]) -> dict[str, float]:
    """Names the largest message's bandwidths, for each backend and number of ranks."""
    last = {(each.backend, each.world_size): each for each in found}
    metrics: dict[str, float] = {}
    for (backend, world_size), each in last.items():
        metrics[f"{backend}_{world_size}_algorithm_bytes_per_second"] = each.algorithm
        metrics[f"{backend}_{world_size}_bus_bytes_per_second"] = each.bus
    return metrics
