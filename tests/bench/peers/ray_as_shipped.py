"""The study by Ray Tune and Ray Train, nothing tuned: `python -m tests.bench.peers.ray_as_shipped grid.yaml`."""

import sys
from pathlib import Path

import ray
import yaml
from ray import tune

from tests.bench.peers.ray_training import run_trial


def main():
    """Tune leaves a `result.json` a trial; one trial at a time, as timings ask."""
    settings = yaml.safe_load(Path(sys.argv[1]).read_text())
    grid = {name: tune.grid_search(values) for name, values in settings["sweep"].items()}
    ray.init(num_cpus=4)  # two for the workers, and the Tune function needs one beside them
    tune.Tuner(
        run_trial,
        param_space={**grid, "epochs": settings["epochs"], "storage": str(Path.cwd())},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="study", storage_path=str(Path.cwd()), failure_config=tune.FailureConfig(max_failures=2)
        ),
    ).fit()


if __name__ == "__main__":
    main()
