"""A trial of Ray Train, and the Tune function that runs it, as Ray's guide to both together says."""

import tempfile
from pathlib import Path

import ray.train
import ray.train.torch
import torch
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from tests.bench.peers.plain_loop import train_epoch
from tests.bench.peers.workload import digits, lenet


def train_worker(config):
    """On every worker; reports each epoch with a checkpoint, and goes on from the last after a failure."""
    data, bare, done = digits(), lenet(config["seed"]), 0
    optimizer = torch.optim.SGD(bare.parameters(), lr=config["learning_rate"])
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    model = ray.train.torch.prepare_model(bare)
    for epoch in range(done + 1, config["epochs"] + 1):
        record = train_epoch(model, optimizer, data, config, epoch)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(folder) / "state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(record, checkpoint=checkpoint)


def run_trial(config):
    """The Tune function."""
    run_config = ray.train.RunConfig(
        name=f"train-{tune.get_context().get_trial_id()}",
        storage_path=config["storage"],
        failure_config=ray.train.FailureConfig(max_failures=2),
        checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        callbacks=[TuneReportCallback()],
    )
    ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=config["num_gpus"]),
        run_config=run_config,
    ).fit()
