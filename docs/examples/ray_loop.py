"""A loop of Ray Train's as its documentation has them: plain PyTorch, a report and a checkpoint an epoch.

`scalestudy.step` is the only line for a study, and may go. See docs/ray-loops.md.
"""

import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import scalestudy

TRAIN, TEST = 1536, 512  # examples
INPUTS, PATTERNS, CLASSES = 64, 40, 10
STATE = "state.pt"


def pictures(count: int, seed: int) -> TensorDataset:
    """Noisy copies of forty patterns, (count, 64), and their classes; each class has four of the patterns."""
    patterns = torch.randn(PATTERNS, INPUTS, generator=torch.Generator().manual_seed(0))  # the same in both sets
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(PATTERNS, (count,), generator=generator)
    return TensorDataset(patterns[chosen] + torch.randn(count, INPUTS, generator=generator), chosen % CLASSES)


def train_loop_per_worker(config: dict[str, Any]) -> None:
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(INPUTS, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], CLASSES))
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"], momentum=0.9)

    rank = ray.train.get_context().get_world_rank()
    train_set = pictures(TRAIN, seed=1)
    # prepare_data_loader would bring a sampler, but one of seed 0: here each seed has an order of its own
    sampler = DistributedSampler(train_set, num_replicas=config["num_gpus"], rank=rank, seed=config["seed"])
    train_loader = ray.train.torch.prepare_data_loader(
        DataLoader(train_set, batch_size=config["batch_size_per_worker"], sampler=sampler)
    )
    test_inputs, test_labels = (each.to(ray.train.torch.get_device()) for each in pictures(TEST, seed=2).tensors)

    epochs_done = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, STATE), map_location="cpu", weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epochs_done = state["epoch"]

    for epoch in range(epochs_done + 1, config["epochs"] + 1):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            scalestudy.step(len(labels))

        model.eval()
        with torch.no_grad():
            accuracy = (net(test_inputs).argmax(dim=1) == test_labels).float().mean().item()
        metrics = {"eval_acc": accuracy, "seen": epoch * TRAIN, "epoch": epoch}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(folder, STATE))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)
