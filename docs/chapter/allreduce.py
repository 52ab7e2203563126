"""How do gradients of several devices become one sum, and what is wrong with the book's allreduce?

The book's "Training on Multiple GPUs": python docs/chapter/allreduce.py [--device cpu] [--quick]

`get_params`, `allreduce` over a list with a tensor a device, and `split_batch`. The devices are the machine's GPUs;
with fewer than two, the CPU stands for each. `scalestudy bench allreduce` measures how fast real processes sum.
"""

from collections.abc import Callable, Sequence

import torch
from lesson import begin, show

LEARNING_RATE = 0.1


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


def main() -> None:
    """Print the book's examples, then the mistake beside its cure."""
    device, _ = begin(__doc__)
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


if __name__ == "__main__":
    main()
