"""The study by Ray Tune and Ray Train, as fast as their settings make it.

`python -m tests.bench.peers.ray_tuned grid.yaml [TRIALS AT A TIME]`.

Train's controller looks at its workers ten times a second and not every two seconds; Tune keeps the process that runs
the Tune function; what is not needed on one machine is off: the watcher for pre-emption, metrics, the dashboard, CSV
and TensorBoard files, and snapshots of the study every few seconds.
"""

import os
import sys
from pathlib import Path

os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "60"

import ray
import yaml
from ray import tune

from tests.bench.peers.ray_training import run_trial


def main():
    """Tune leaves a `result.json` a trial; one trial at a time, as timings ask, unless the command says otherwise."""
    settings = yaml.safe_load(Path(sys.argv[1]).read_text())
    grid = {name: tune.grid_search(values) for name, values in settings["sweep"].items()}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        tune.with_resources(run_trial, {"CPU": 0.1}),
        param_space={**grid, "epochs": settings["epochs"], "storage": str(Path.cwd())},
        tune_config=tune.TuneConfig(max_concurrent_trials=int(sys.argv[2]) if sys.argv[2:] else 1, reuse_actors=True),
        run_config=tune.RunConfig(
            name="study",
            storage_path=str(Path.cwd()),
            failure_config=tune.FailureConfig(max_failures=2),
            callbacks=[tune.logger.JsonLoggerCallback()],
            verbose=0,
        ),
    ).fit()


if __name__ == "__main__":
    main()
