"""The digits as a user of plain PyTorch would train them: what the engine is measured against.

Nothing of ours is used but the file of images. Run by torchrun as a script, or called by a Ray Train worker.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DIGITS = Path(__file__).resolve().parents[2] / "training" / "data" / "digits.npz"


def lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def digits(part: str) -> TensorDataset:
    with np.load(DIGITS) as arrays:
        images = torch.from_numpy(arrays[f"{part}_images"].astype(np.float32) / 16).unsqueeze(1)
        labels = torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64))
    return TensorDataset(nn.functional.interpolate(images, size=(28, 28), mode="bilinear"), labels)


def train(learning_rate: float, batch_size: int, epochs: int) -> float:
    """Trains on every rank of the process group, or alone without one; returns the test accuracy."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    model = lenet()
    module = DistributedDataParallel(model) if size > 1 else model
    data = digits("train")
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size // size, sampler=sampler)
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    loss = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(module(inputs), targets).backward()
            optimizer.step()
        accuracy = evaluate(model)
    return accuracy


@torch.inference_mode()
def evaluate(model: nn.Module) -> float:
    inputs, targets = digits("test").tensors
    return (model(inputs).argmax(dim=1) == targets).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    accuracy = train(options.learning_rate, options.batch_size, options.epochs)
    if dist.get_rank() == 0:
        print(json.dumps({"accuracy": accuracy}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
