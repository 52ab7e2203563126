"""Trainings of digits by code that knows nothing of scalestudy, recorded as its authors would.

Each training keeps its own figures too, as a line of JSON in a file that is in none of the sources: what the source
should give back. `python -m tests.long.trainings_of_others NAME FOLDER` makes the source of that name.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler
from torch import nn

from tests.support.preloaded import preloaded_cluster

KEPT = "kept.jsonl"
EPOCHS = 12
POLLS_SECONDS = "0.25"
"""How often Ray Train asks its workers for what they reported: as late does Tune hear of an epoch. 2 as shipped."""
Evaluation = tuple[int, int, float]
"""Epoch, updates so far, and the accuracy."""


def splits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels of the training set, then of the test set; float32 (n, 64) and int64 (n)."""
    images, labels = load_digits(return_X_y=True)
    scaler = StandardScaler().fit(images[:1280])
    data, classes = torch.tensor(scaler.transform(images), dtype=torch.float32), torch.tensor(labels)
    return data[:1280], classes[:1280], data[1280:], classes[1280:]


def train(
    model: nn.Module, rate: float, batch: int, seed: int, *, rank: int = 0, ranks: int = 1
) -> Iterator[Evaluation]:
    """Trains by SGD; yields after each epoch. batch: examples of one rank in an update."""
    images, labels, test_images, test_labels = splits()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    steps = 0
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(images), generator=generator)
        for chosen in order.split(batch * ranks):
            mine = chosen[rank::ranks]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            steps += 1
        with torch.no_grad():
            accuracy = float((model(test_images).argmax(1) == test_labels).float().mean())
        yield epoch, steps, accuracy


def network(seed: int) -> nn.Module:
    """The same one for each seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Kept:
    """What one training keeps of itself."""

    def __init__(self, file: Path, began: float | None = None, **cell: Any) -> None:
        self._file, self._cell, self._curve = file, cell, []
        self._began = time.time() if began is None else began

    def add(self, steps: int, accuracy: float) -> float:
        """Keeps an evaluation; the seconds since the training began."""
        seconds = time.time() - self._began
        self._curve.append([steps, seconds, accuracy])
        return seconds

    def write(self) -> None:
        line = json.dumps({**self._cell, "curve": self._curve})
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")


# --- by MLflow ------------------------------------------------------------------------------------------------------


def plain_loop(folder: Path, uri: str) -> None:
    """One process, `mlflow.autolog`, and what a loop logs by hand."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("digits, plain")
    mlflow.autolog(log_models=False, log_datasets=False, silent=True)
    for batch, rate, seed in itertools.product((32, 64, 128), (0.05, 0.1), (0, 1)):
        with mlflow.start_run() as run:
            began = run.info.start_time / 1000  # MLflow's clock starts with the run, which takes a while to be made
            kept = Kept(folder / KEPT, began, num_gpus=1, batch_size=batch, learning_rate=rate, seed=seed)
            mlflow.log_params({"lr": rate, "bs": batch, "seed": seed, "hidden": 32, "optimizer": "SGD"})
            for epoch, steps, accuracy in train(network(seed), rate, batch, seed):
                kept.add(steps, accuracy)
                mlflow.log_metrics({"val_acc": accuracy, "epoch": epoch}, step=steps)
        kept.write()


def sklearn_fits(folder: Path, uri: str) -> None:
    """scikit-learn's own fits, of which `mlflow.autolog` logs all there is: a row a run."""
    import mlflow
    from sklearn.neural_network import MLPClassifier

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("digits, fits")
    mlflow.autolog(log_models=False, log_datasets=False, silent=True)
    images, labels = load_digits(return_X_y=True)
    for batch, rate, seed in itertools.product((32, 64), (0.1, 0.3), (0, 1)):
        classifier = MLPClassifier(
            32, solver="sgd", batch_size=batch, learning_rate_init=rate, random_state=seed, max_iter=20
        )
        with mlflow.start_run():
            classifier.fit(images[:1280] / 16, labels[:1280])
            classifier.score(images[1280:] / 16, labels[1280:])


# --- by Ray -----------------------------------------------------------------------------------------------------------


def plain_function(config: Mapping[str, Any]) -> None:
    """A Tune function that trains by itself."""
    from ray import tune

    kept = Kept(
        Path(config["kept"]), num_gpus=1, batch_size=config["bs"], learning_rate=config["lr"], seed=config["seed"]
    )
    for epoch, steps, accuracy in train(network(config["seed"]), config["lr"], config["bs"], config["seed"]):
        kept.add(steps, accuracy)
        tune.report({"accuracy": accuracy, "epoch": epoch, "steps": steps})
    kept.write()


def tune_functions(folder: Path, _: str) -> None:
    """One Tuner of plain functions."""
    from ray import tune

    grid = {"lr": [0.05, 0.1], "bs": [32, 128], "seed": [0, 1]}
    tune.Tuner(
        plain_function,
        param_space={name: tune.grid_search(values) for name, values in grid.items()} | {"kept": str(folder / KEPT)},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="functions", storage_path=str(folder / "source")),
    ).fit()


def train_worker(config: Mapping[str, Any]) -> None:
    """On each worker of a TorchTrainer. It tells MLflow too, where a store is named."""
    import ray.train
    import ray.train.torch
    from ray.air.integrations.mlflow import setup_mlflow

    context = ray.train.get_context()
    rank, ranks, per_worker = context.get_world_rank(), context.get_world_size(), config["batch_size_per_worker"]
    cell = {"num_gpus": ranks, "batch_size": ranks * per_worker, "learning_rate": config["lr"], "seed": config["seed"]}
    kept = Kept(Path(config["kept"]), began=config.get("began"), **cell)
    if "tracking_uri" in config:
        logged = {name: config[name] for name in ("lr", "batch_size_per_worker", "seed")}
        mlflow = setup_mlflow(
            {**logged, "world_size": ranks},
            tracking_uri=config["tracking_uri"],
            experiment_name="digits, ray",
            create_experiment_if_not_exists=True,
        )
    model = ray.train.torch.prepare_model(network(config["seed"]))
    for epoch, steps, accuracy in train(model, config["lr"], per_worker, config["seed"], rank=rank, ranks=ranks):
        seconds = kept.add(steps, accuracy)
        told = {"accuracy": accuracy, "epoch": epoch, "steps": steps}
        if "tracking_uri" in config:
            mlflow.log_metrics({**told, "elapsed": seconds}, step=steps)  # does nothing on other ranks
        ray.train.report(told)
    if rank == 0:
        kept.write()
        if "tracking_uri" in config:
            mlflow.end_run()


def trainer(config: Mapping[str, Any], storage: Path, name: str, workers: int, callbacks: list[Any]) -> Any:
    import ray.train
    import ray.train.torch

    return ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config=dict(config),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(name=name, storage_path=str(storage), callbacks=callbacks),
    )


def run_trial(config: Mapping[str, Any]) -> None:
    """The Tune function, as Ray's guide to Train and Tune has it."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    began = {"began": time.time()}
    name = f"train-{tune.get_context().get_trial_id()}"
    trainer({**config["loop"], **began}, Path(config["storage"]), name, 2, [TuneReportCallback()]).fit()


def tune_trainers(folder: Path, _: str) -> None:
    """A TorchTrainer of two workers in a Tune function. No file says that there are two."""
    from ray import tune

    grid = {"lr": [0.05, 0.1], "batch_size_per_worker": [32], "seed": [0, 1]}
    loop = {name: tune.grid_search(values) for name, values in grid.items()} | {"kept": str(folder / KEPT)}
    tune.Tuner(
        run_trial,
        param_space={"loop": loop, "storage": str(folder / "train")},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="trainers", storage_path=str(folder / "source")),
    ).fit()


def ray_mlflow(folder: Path, uri: str) -> None:
    """TorchTrainers of one and of two workers that tell MLflow by Ray's `setup_mlflow`."""
    for workers, batch, seed in itertools.product((1, 2), (64, 128), (0, 1)):
        config = {"lr": 0.1, "batch_size_per_worker": batch // workers, "seed": seed}
        config |= {"tracking_uri": uri, "kept": str(folder / KEPT)}
        trainer(config, folder / "train", f"{workers}-{batch}-{seed}", workers, []).fit()


BY_MLFLOW = {"plain_loop": plain_loop, "sklearn_fits": sklearn_fits}
BY_RAY = {"ray_mlflow": ray_mlflow, "tune_functions": tune_functions, "tune_trainers": tune_trainers}
"""What makes each source."""


def main() -> None:
    """Makes the source that is named: NAME FOLDER [MLflow's address, else a database in the folder's `source`]."""
    name, folder = sys.argv[1], Path(sys.argv[2]).absolute()
    (folder / "source").mkdir(parents=True, exist_ok=True)
    uri = sys.argv[3] if len(sys.argv) > 3 else f"sqlite:///{folder / 'source' / 'mlflow.db'}"
    torch.set_num_threads(1)
    if name in BY_MLFLOW:
        BY_MLFLOW[name](folder, uri)
        return
    for setting in ("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "TUNE_GLOBAL_CHECKPOINT_S"):
        os.environ.pop(setting, None)  # ours, by which Tune writes no results
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = POLLS_SECONDS
    with preloaded_cluster(4):
        BY_RAY[name](folder, uri)


if __name__ == "__main__":
    main()
