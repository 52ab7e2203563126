"""An epoch in plain PyTorch, as the users of every other tool write it; on all ranks of the process group."""

import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from tests.bench.peers.workload import batches


def train_epoch(model, optimizer, data, config, epoch):
    """Trains and evaluates; what is recorded of the epoch."""
    model.train()
    loss_sum, began = torch.zeros(()), time.perf_counter()
    for inputs, targets in batches(data, config["batch_size"], config["seed"], epoch):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(inputs)
    seconds = time.perf_counter() - began
    sums = torch.stack([loss_sum, hits(model, data)])
    dist.all_reduce(sums)
    loss, accuracy = (sums / torch.tensor([len(data.train_inputs), len(data.test_inputs)])).tolist()
    record = {"epoch": epoch, "train_loss": loss, "test_accuracy": accuracy, "train_seconds": seconds}
    return {**record, "at": time.time()}


@torch.inference_mode()
def hits(model, data):
    """How many of this rank's share of the test set are right."""
    model.eval()
    share = slice(dist.get_rank(), None, dist.get_world_size())
    return (model(data.test_inputs[share]).argmax(dim=1) == data.test_targets[share]).sum().float()
