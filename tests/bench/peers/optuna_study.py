"""The study by Optuna, each trial by torchrun: `python -m tests.bench.peers.optuna_study grid.yaml`.

Run again in the same folder it goes on: a trial whose study died is tried again once its heartbeats are stale.
"""

import subprocess
import sys
from pathlib import Path

import optuna
import yaml

from tests.bench.peers.torchrun_launch import launch


def main():
    """A trial that fails is recorded as such, and the others go on."""
    settings = yaml.safe_load(Path(sys.argv[1]).read_text())
    sweep = settings["sweep"]

    def objective(trial):
        point = {name: trial.suggest_categorical(name, values) for name, values in sweep.items()}
        epochs = launch({**point, "epochs": settings["epochs"]})
        trial.set_user_attr("epochs", epochs)
        for epoch in epochs:
            trial.report(epoch["test_accuracy"], epoch["epoch"])
        return epochs[-1]["test_accuracy"]

    retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=2)
    storage = optuna.storages.RDBStorage(
        "sqlite:///optuna.db", heartbeat_interval=30, heartbeat_stale_trial_callback=retry
    )
    sampler = optuna.samplers.GridSampler(sweep, seed=0)
    study = optuna.create_study(
        study_name="lenet", storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
    )
    study.optimize(objective, catch=(subprocess.CalledProcessError,))


if __name__ == "__main__":
    main()
