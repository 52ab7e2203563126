"""`make bench`: short trials through our engine, through stock Ray, and through a loop over torchrun, in one run.

The digits, LeNet, 1 and 2 workers, 2 epochs, about a second of training a trial, one trial at a time, each way as a
command of its own. `python -m tests.bench_peers [--small]` runs this part alone.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.studies import REPOSITORY, command, environment, write_spec
from tests.support.tables import Part, print_parts

SIZES = (1, 2)
BATCH_SIZE, EPOCHS = 32, 2
TRIALS, PEER_TRIALS = 24, 6
HEADER = ["way", "trials run", "wall of 24, s", "s a trial, median", "times ours"]


def rates(count: int) -> list[float]:
    """Learning rates that make so many trials of the two sizes."""
    return [round(0.02 + 0.01 * index, 3) for index in range(count // len(SIZES))]


def points(count: int) -> list[dict[str, Any]]:
    """The same grid for every way, by size as our plan has it."""
    return [{"num_gpus": size, "learning_rate": rate} for size in SIZES for rate in rates(count)]


def ours(folder: Path, count: int) -> tuple[float, list[float]]:
    """Wall seconds of the whole command, and the seconds between the ends of its trials."""
    spec = write_spec(
        folder,
        "short.yaml",
        train={"epochs": EPOCHS},
        sweep={"num_gpus": list(SIZES), "batch_size": [BATCH_SIZE], "learning_rate": rates(count), "seed": [0]},
        tracking={"uri": f"sqlite:///{folder}/mlflow.db"},
    )
    began = time.time()
    run(command("run", spec, "--address", "local", "--out", folder / "study"), folder)
    wall = time.time() - began
    trials = [json.loads(line) for line in (folder / "study" / "trials.jsonl").read_text("utf-8").splitlines()]
    assert len(trials) == count
    assert all(trial["status"] == "finished" for trial in trials)
    return wall, between([seconds_of(trial["ended_at"]) for trial in trials])


def stock(folder: Path, count: int) -> tuple[float, list[float]]:
    """The same of a Tune function that builds a `TorchTrainer` for each trial."""
    began = time.time()
    run([sys.executable, "-m", "tests.bench_peers", "stock-study", str(folder), str(count)], folder)
    wall = time.time() - began
    ends = [float(line) for line in (folder / "ends").read_text("utf-8").split()]
    assert len(ends) == count
    return wall, between(ends)


def torchrun(folder: Path, count: int) -> tuple[float, list[float]]:
    """The same of a shell's loop over torchrun."""
    ends = [time.time()]
    for point in points(count):
        run(torchrun_command(point), folder)
        ends.append(time.time())
    return ends[-1] - ends[0], between(ends)


def torchrun_command(point: dict[str, Any]) -> list[str]:
    """One trial."""
    script = REPOSITORY / "tests" / "support" / "peer_training.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={point['num_gpus']}"]
    options = {"--learning-rate": point["learning_rate"], "--batch-size": BATCH_SIZE, "--epochs": EPOCHS}
    return [*launcher, str(script), *(str(part) for option in options.items() for part in option)]


def run(arguments: list[str], folder: Path) -> None:
    """Runs a command in a folder with one thread a process; shows what it said when it fails."""
    variables = {"OMP_NUM_THREADS": "1", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"}
    done = subprocess.run(
        arguments, cwd=folder, env=environment(**variables), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}")


def between(ends: list[float]) -> list[float]:
    """Seconds from each end to the next."""
    return [later - earlier for earlier, later in itertools.pairwise(sorted(ends))]


def seconds_of(text: str) -> float:
    """A record's time stamp as seconds."""
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def scaled(wall: float, gaps: list[float], count: int) -> float:
    """The wall of all 24 from that of fewer: what is missing, at the median seconds between two ends."""
    return wall + (TRIALS - count) * statistics.median(gaps)


def short_trials(folder: Path, *, small: bool = False) -> list[list[str]]:
    """A row a way."""
    counts = {"scalestudy": 6 if small else TRIALS, "stock Ray": 2 if small else PEER_TRIALS}
    counts["torchrun loop"] = counts["stock Ray"]
    found: dict[str, tuple[float, float]] = {}
    for (name, count), way in zip(counts.items(), (ours, stock, torchrun), strict=True):
        place = folder / name.split()[0]
        place.mkdir()
        wall, gaps = way(place, count)
        found[name] = scaled(wall, gaps, count), statistics.median(gaps)
    mine = found["scalestudy"][0]
    return [
        [name, str(counts[name]), f"{wall:.0f}", f"{gap:.2f}", f"{wall / mine:.1f}"]
        for name, (wall, gap) in found.items()
    ]


def stock_study(folder: Path, count: int) -> None:
    """What a user of Ray alone writes; runs in a process of its own."""
    import ray
    from ray import tune

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)

    def trial(space: dict[str, Any]) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
        from ray.tune.integration.ray_train import TuneReportCallback

        config = space["point"]
        name = f"{config['num_gpus']}-{config['learning_rate']}"
        TorchTrainer(
            stock_worker,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=config["num_gpus"]),
            run_config=RunConfig(name=name, storage_path=str(folder / "train"), callbacks=[TuneReportCallback()]),
        ).fit()
        with (folder / "ends").open("a", encoding="utf-8") as file:
            print(time.time(), file=file)

    tune.Tuner(
        tune.with_resources(trial, {"CPU": 0.1}),
        param_space={"point": tune.grid_search(points(count))},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="tune", storage_path=str(folder), verbose=0),
    ).fit()


def stock_worker(config: dict[str, Any]) -> None:
    """The train function of every worker."""
    import ray.train

    from tests.support.peer_training import train

    accuracy = train(config["learning_rate"], BATCH_SIZE, EPOCHS)
    ray.train.report({"accuracy": accuracy})


PARTS = {"peers": Part("Short trials, against stock Ray and torchrun", HEADER, short_trials)}

if __name__ == "__main__":
    if sys.argv[1:2] == ["stock-study"]:
        stock_study(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        print_parts(PARTS, sys.argv[1:])
