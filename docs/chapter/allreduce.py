"""How do gradients of several devices become one sum, and what is wrong with the book's allreduce?

The book's "Training on Multiple GPUs": python docs/chapter/allreduce.py [--device cpu] [--quick]

`get_params`, `allreduce` over a list with a tensor a device, and `split_batch`. The devices are the machine's GPUs;
with fewer than two, the CPU stands for each. Last, how fast real processes sum, by the size of the message: over gloo,
and over NCCL where there are two GPUs.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from lesson import begin, milliseconds, show

from scalestudy.training.device import usable_cores
from scalestudy.training.distributed import Worker, on_ranks, synchronise_device

LEARNING_RATE = 0.1
WORLD_SIZES = (2, 4)  # of gloo
MESSAGE_BYTES = tuple(4**power for power in range(5, 13))  # 1 KiB … 16 MiB
QUICK_BYTES = (4**5, 4**8)


def get_params(params: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy each parameter to the device, as a leaf that gathers its own gradient."""
    return [param.detach().to(device, copy=True).requires_grad_() for param in params]


def allreduce(data: list[torch.Tensor]) -> None:
    """Write the sum of all entries into every entry's tensor."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for other in data[1:]:
        other.copy_(data[0])


def rebinding_allreduce(data: list[torch.Tensor]) -> None:
    """Put the sum into the *list*: the mistake. Only the first replica's tensor gets it."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for number in range(1, len(data)):
        data[number] = data[0].to(data[number].device)


def split_batch(
    images: torch.Tensor, labels: torch.Tensor, devices: Sequence[torch.device]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Split (N, …) images and (N,) labels into a part for each device; the first N mod k parts have a row more."""
    if len(images) != len(labels):
        raise ValueError(f"labels: {len(labels)} for {len(images)} images; give as many of both")
    parts = zip(images.tensor_split(len(devices)), labels.tensor_split(len(devices)), strict=True)
    return [
        (part.to(device), part_labels.to(device)) for (part, part_labels), device in zip(parts, devices, strict=True)
    ]


def step(reduce: Callable[[list[torch.Tensor]], None], devices: Sequence[torch.device]) -> list[object]:
    """Sum the gradients of replicas and step. Returns the list, the replicas' gradients, and whether they stay equal.

    Replica i has a weight 0 and the gradient i + 1, so that the right sum over k replicas is k·(k + 1)/2 everywhere.
    """
    weights = [get_params([torch.zeros(1)], device)[0] for device in devices]
    for number, weight in enumerate(weights):
        (weight * (number + 1)).sum().backward()
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    entries = list(gradients)
    reduce(entries)
    after = [(weight - LEARNING_RATE * weight.grad).item() for weight in weights]
    is_equal = "yes" if len(set(after)) == 1 else "no"
    return [*([int(each.item()) for each in tensors] for tensors in (entries, gradients)), is_equal]


def time_sums(worker: Worker, sizes: Sequence[int], repeats: int) -> list[float]:
    """Measure on each rank the median seconds of an all_reduce, for each message size in bytes, after one warm-up.

    Raises RuntimeError if a sum is wrong.
    """
    medians: list[float] = []
    for size in sizes:
        tensor = torch.empty(size // 4, device=worker.device)
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


def bandwidths(size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Return the algorithm's and the bus's bytes a second, as nccl-tests' PERFORMANCE.md defines them.

    The second is what each rank of a ring sends, 2(k - 1)/k of the first.
    """
    return size / seconds, size / seconds * 2 * (ranks - 1) / ranks


def rows_of(backend: str, ranks: int, quick: bool) -> list[tuple[object, ...]]:
    """Measure the sum over so many ranks; a row for each size, with the time of the slowest rank."""
    sizes, repeats = (QUICK_BYTES, 3) if quick else (MESSAGE_BYTES, 15)
    times = zip(*on_ranks(ranks, time_sums, sizes, repeats, backend=backend), strict=True)
    rows: list[tuple[object, ...]] = []
    for size, seconds in zip(sizes, map(max, times), strict=True):
        speeds = (f"{speed / 1e6:.1f}" for speed in bandwidths(size, seconds, ranks))
        rows.append((backend, ranks, size // 1024, milliseconds(seconds), *speeds))
    return rows


def main() -> None:
    """Print the book's examples, the mistake beside its cure, and how fast processes sum."""
    device, quick = begin(__doc__)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    devices = [torch.device("cuda", number) for number in range(gpus)] if gpus > 1 else [torch.device("cpu")] * 2

    data = [torch.ones(1, 2, device=each) * (number + 1) for number, each in enumerate(devices)]
    before = [tensor.tolist() for tensor in data]
    allreduce(data)
    rows = [(tensor.device, old, tensor.tolist()) for tensor, old in zip(data, before, strict=True)]
    show("allreduce over a list", ("device", "before", "after"), rows)

    batch, labels = torch.arange(20).reshape(4, 5), torch.arange(4)
    rows = [(part.device, part.tolist(), several.tolist()) for part, several in split_batch(batch, labels, devices)]
    show("split_batch of arange(20), four rows", ("device", "rows", "labels"), rows)

    versions = {"rebinds data[i]": rebinding_allreduce, "writes into data[i]": allreduce}
    rows = [
        (len(several), name, *step(version, several))
        for several in (devices, devices * 2)
        for name, version in versions.items()
    ]
    header = (
        "replicas",
        "allreduce",
        "the list afterwards",
        "gradients that replicas step with",
        "replicas equal after it",
    )
    show("The mistake and its cure", header, rows)
    print("The list looks right, and so does the first replica, on which accuracy is measured.")

    settings = [("gloo", ranks) for ranks in (WORLD_SIZES[:1] if quick else WORLD_SIZES)]
    settings += [("nccl", ranks) for ranks in range(2, gpus + 1, 2)]
    rows = [row for backend, ranks in settings for row in rows_of(backend, ranks, quick)]
    header = ("backend", "ranks", "message (KiB)", "time (ms)", "algorithm (MB/s)", "bus (MB/s)")
    show("all_reduce over real processes of this machine", header, rows)
    print("algorithm: message ÷ time; bus: × 2(k - 1)/k, what a rank of a ring sends, so that numbers of ranks compare")
    cores = usable_cores()
    if cores < max(ranks for _, ranks in settings):
        print(f"With {cores} cores, times of more ranks than that say more about the scheduler than about sums.")


if __name__ == "__main__":
    main()
