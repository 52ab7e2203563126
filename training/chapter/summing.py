"""`bench allreduce`: sums by hand and by bandwidth.

Algorithm and bus bandwidth as in nccl-tests' PERFORMANCE.md: algbw = bytes ÷ seconds; for all_reduce over k ranks
busbw = algbw · 2(k - 1)/k.

The book's "Training on Multiple GPUs": `get_params`, `allreduce` over a list with a tensor a device, `split_batch`.
Devices are the machine's GPUs; where there are fewer than two, the CPU stands for each, with a copy of its own.
"""

from __future__ import annotations

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

WORLD_SIZES = (2, 4)
MESSAGE_BYTES = tuple(4**power for power in range(5, 13))  # 1 KiB … 16 MiB
QUICK_BYTES = (4**5, 4**8)
FLOAT_BYTES = 4
MEGABYTE = 1e6


@dataclass(frozen=True)
class Bandwidth:
    """One message size over so many ranks."""

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
    """Gloo on the CPU with 2 and (unless `quick`) 4 ranks; with two or more GPUs NCCL as well, on 2, 4, … of them."""
    sizes, repeats = (QUICK_BYTES, 3) if quick else (MESSAGE_BYTES, 15)
    settings = [("gloo", world_size) for world_size in (WORLD_SIZES[:1] if quick else WORLD_SIZES)]
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    settings += [("nccl", world_size) for world_size in range(2, gpus + 1, 2)]
    found = []
    for backend, world_size in settings:
        ranks = on_ranks(world_size, time_sums, sizes, repeats, backend=backend)
        found += [
            Bandwidth(backend, world_size, size, max(rank[number] for rank in ranks))
            for number, size in enumerate(sizes)
        ]
    return found


def time_sums(worker: Worker, sizes: Sequence[int], repeats: int) -> list[float]:
    """On each rank: median seconds of an all_reduce for each message size in bytes, after one of warm-up.

    Raises RuntimeError if a sum is wrong.
    """
    return [_time_size(worker, size, repeats) for size in sizes]


def _time_size(worker: Worker, size: int, repeats: int) -> float:
    tensor = torch.empty(size // FLOAT_BYTES, device=worker.device)
    times = []
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
    return statistics.median(times[1:])


def bandwidth_table(found: Sequence[Bandwidth]) -> Table:
    """A row a message size and number of ranks."""
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
    """The largest message's, of each backend and number of ranks."""
    last = {(each.backend, each.world_size): each for each in found}
    metrics = {}
    for (backend, world_size), each in last.items():
        metrics[f"{backend}_{world_size}_algorithm_bytes_per_second"] = each.algorithm
        metrics[f"{backend}_{world_size}_bus_bytes_per_second"] = each.bus
    return metrics


QUESTION = "How do gradients of several devices become one sum, and how fast?"
LEARNING_RATE = 0.1
Allreduce = Callable[[list[torch.Tensor]], None]


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """The list version and its bug, then bandwidth over gloo (and NCCL with two GPUs); on a CPU some 20 s."""
    devices = list_devices(device)
    beside, differences = beside_each_other([devices, devices * 2])
    bandwidths = measure_bandwidth(device, quick)
    tables = [
        params_table(devices),
        sums_table(devices),
        split_table(devices),
        beside,
        bandwidth_table(bandwidths),
    ]
    metrics = {**differences, **bandwidth_metrics(bandwidths)}
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        table, seconds = data_parallel_table(devices, 256, 10)
        tables.append(table)
        metrics |= {f"data_parallel_{name}_seconds": value for name, value in seconds.items()}
    return Experiment("allreduce", QUESTION, tuple(tables), _notes(devices), metrics)


def list_devices(device: torch.device) -> list[torch.device]:
    """All GPUs if there are two or more; else the CPU twice."""
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [torch.device("cpu")] * 2


def get_params(params: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """A copy of each parameter on the device, a leaf that gathers its own gradient."""
    return [param.detach().to(device, copy=True).requires_grad_() for param in params]


def allreduce(data: list[torch.Tensor]) -> None:
    """Every entry becomes the sum of all, in place: the tensors themselves are written to."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for other in data[1:]:
        other.copy_(data[0])


def rebinding_allreduce(data: list[torch.Tensor]) -> None:
    """The bug: the sum is put into the *list*; the tensors that the replicas hold never see it, the first one's aside.

    Kept as an example of what looks right when the list is printed.
    """
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for number in range(1, len(data)):
        data[number] = data[0].to(data[number].device)


def split_batch(
    images: torch.Tensor, labels: torch.Tensor, devices: Sequence[torch.device]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The rows of images (N, …) and labels (N,) in as many parts as devices, each on its own.

    The first N mod k parts have one row more. Raises ValueError if images and labels are not of one length.
    """
    if len(images) != len(labels):
        raise ValueError(f"labels: {len(labels)} for {len(images)} images; give as many of both")
    parts = [batch.tensor_split(len(devices)) for batch in (images, labels)]
    images_by_device, labels_by_device = ([part.to(device) for part, device in zip(split, devices, strict=True)]
                                          for split in parts)  # fmt: skip
    return images_by_device, labels_by_device


def params_table(devices: Sequence[torch.device]) -> Table:
    """The book's `get_params` printed: the second device's first bias of LeNet, which has no gradient yet."""
    seed_parameters(0)
    params = list(build_model("lenet", 10, 1, {"init": "default"}).parameters())
    copies = [get_params(params, device) for device in devices]
    rows: list[tuple[Cell, ...]] = [
        (number, str(copy[1].device), _shown(copy[1][:3]), str(copy[1].grad), _shares_memory(copy[1], params[1]))
        for number, copy in enumerate(copies)
    ]
    header = ("replica", "device", "b1, first three", "b1.grad", "the original's memory?")
    return Table("get_params: LeNet's parameters on each device", header, tuple(rows))


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> str:
    return "shared" if one.data_ptr() == other.data_ptr() else "own copy"


def sums_table(devices: Sequence[torch.device]) -> Table:
    """The book's `allreduce` printed: ones × 1, 2, … before and after."""
    data = [torch.ones(1, 2, device=device) * (number + 1) for number, device in enumerate(devices)]
    before = [_shown(tensor) for tensor in data]
    allreduce(data)
    rows: list[tuple[Cell, ...]] = [
        (number, str(tensor.device), before[number], _shown(tensor)) for number, tensor in enumerate(data)
    ]
    return Table("allreduce over a list", ("entry", "device", "before", "after"), tuple(rows))


def split_table(devices: Sequence[torch.device]) -> Table:
    """The book's `split_batch` printed: twenty numbers in four rows, and a batch that does not divide."""
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
    """The bug and its cure, on each group of devices: what the list shows, and what the replicas hold."""
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    versions: dict[str, Allreduce] = {"rebinds data[i]": rebinding_allreduce, "writes into data[i]": allreduce}
    for devices in groups:
        for name, version in versions.items():
            entries, gradients, difference = one_step(version, devices)
            rows.append(
                (len(devices), name, _shown(entries), _shown(gradients), difference, "no" if difference else "yes")
            )
            word = "rebinding" if version is rebinding_allreduce else "in_place"
            metrics[f"{word}_{len(devices)}_replicas_difference"] = difference
    header = ("replicas", "allreduce", "the list, by entry", "w.grad, by replica", "w differs after a step by",
              "replicas equal?")  # fmt: skip
    return Table("The rebinding bug and its cure: gradients 1, 2, … summed, then a step", header, tuple(rows)), metrics


def one_step(version: Allreduce, devices: Sequence[torch.device]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(list entries, replicas' gradients, largest difference of a weight) after a sum and a step.

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
    entries, gradients, after = (torch.cat([tensor.detach().cpu() for tensor in tensors])
                                 for tensors in (data, [_gradient(weight) for weight in weights], weights))  # fmt: skip
    return entries, gradients, (after - after[0]).abs().max().item()


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    if weight.grad is None:
        raise RuntimeError("a replica has no gradient after backward")
    return weight.grad


def data_parallel_table(devices: Sequence[torch.device], batch: int, repeats: int) -> tuple[Table, dict[str, float]]:
    """nn.DataParallel beside one device: a step of ResNet-18 without update, forward and backward."""
    seed_parameters(0)
    model = build_model("resnet18", 10, 1, {}).to(devices[0])
    images = torch.randn(batch, 1, 28, 28, device=devices[0])
    labels = torch.arange(batch, device=devices[0]) % 10
    models = {"one": model, "all": nn.DataParallel(model, device_ids=[device.index for device in devices])}

    def step(network: nn.Module) -> None:
        network.zero_grad()
        F.cross_entropy(network(images), labels).backward()

    steps = {name: _bind(step, network) for name, network in models.items()}
    seconds = median_seconds(steps, devices[0], repeats)
    rows: list[tuple[Cell, ...]] = [
        (count, milliseconds(seconds[name]), seconds["one"] / seconds[name],
         peak_bytes(steps[name], devices[0]) / MEBIBYTE)
        for name, count in (("one", 1), ("all", len(devices)))
    ]  # fmt: skip
    title = f"nn.DataParallel: forward and backward of ResNet-18, batch {batch}"
    return Table(title, ("GPUs", "a step (ms)", "speed-up", "memory on the first (MiB)"), tuple(rows)), seconds


def _bind(step: Callable[[nn.Module], None], network: nn.Module) -> Callable[[], None]:
    return lambda: step(network)


def _notes(devices: Sequence[torch.device]) -> tuple[str, ...]:
    notes = [
        "The rebinding allreduce looks right wherever the list is printed, and its first replica is right too: its "
        "gradient was summed in place. The others step with their own gradients, and drift apart without an error; "
        "`replica_max_diff` of a study's records is there to find it.",
        "Algorithm bandwidth: message ÷ time. Bus bandwidth, as nccl-tests define it: × 2(k - 1)/k, what a ring has to "
        "move for each byte, so that numbers of different k compare. All ranks share this machine's cores and memory.",
    ]
    if usable_cores() < max(WORLD_SIZES):
        notes.append(f"This machine has {usable_cores()} cores: more ranks than that wait for a core, and their times "
                     "say more about the scheduler than about the network.")  # fmt: skip
    if len(set(devices)) == 1:
        notes.append("Fewer than two GPUs: the list version's devices are all the CPU, and nn.DataParallel, which "
                     "splits a batch over the GPUs of one process, has nothing to split over.")  # fmt: skip
    return tuple(notes)


def _shown(tensor: torch.Tensor) -> str:
    """The numbers of a small tensor, as a list."""
    values = tensor.detach().cpu().tolist()
    return str(values) if not tensor.is_floating_point() else str(_rounded(values))


def _rounded(values: Any) -> Any:
    return [_rounded(value) for value in values] if isinstance(values, list) else round(values, 4)
