"""One trial, a process a worker: `torchrun … -m tests.bench.peers.torchrun_train FOLDER CONFIG`, the config as JSON.

Goes on from the checkpoint that it finds in the folder.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.bench.peers.plain_loop import train_epoch
from tests.bench.peers.workload import digits, lenet


def train(folder, config):
    """Leaves the epochs' records in `epochs.json`."""
    data, bare = digits(), lenet(config["seed"])
    optimizer = torch.optim.SGD(bare.parameters(), lr=config["learning_rate"])
    epochs, checkpoint = [], folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epochs = state["epochs"]
    model = DistributedDataParallel(bare) if dist.get_world_size() > 1 else bare
    while len(epochs) < config["epochs"]:
        epochs.append(train_epoch(model, optimizer, data, config, len(epochs) + 1))
        if dist.get_rank() == 0:
            save(checkpoint, {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs})
            (folder / "epochs.json").write_text(json.dumps({"config": config, "epochs": epochs}))


def save(file, state):
    """Written aside and renamed, so that a kill leaves a whole one."""
    aside = file.with_suffix(".new")
    torch.save(state, aside)
    aside.replace(file)


if __name__ == "__main__":
    # sooner than the default of half an hour: after a restart, processes may wait for an address of the attempt before
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
    dist.destroy_process_group()
