"""Worlds of the benches, recorded as the tools of others record runs and judged: the summary of the study itself."""

import csv
import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from pydantic_core import to_jsonable_python

import tests.support
from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.analysis.answers import posterior, recommendation
from scalestudy.experiments.judging.columns import Said
from scalestudy.orchestration.judging.judge import Request, judge_runs
from tests.support.runs_of_others import STARTED, small, trainings, world_rows, write_csv
from tests.support.worlds import TARGET, World

NOT_HELD = {
    "what it was called": ("study/name", "study/description", "study/study_id", "study/sources/*"),
    "which model was trained on which data": ("study/model", "study/data"),
    "that an evaluation ends an epoch": ("study/every/*", "study/length", "cells/*/examples"),
    "that the metric is a share, and of the test set": (
        *("study/metric/share", "study/metric/named_by_others"),
        *("recommendation/metric/share", "recommendation/metric/named_by_others"),
        "lr_rule/target_or_metric",
    ),
    "which optimizer trained": ("statistical_efficiency/noise_scale/optimizer",),
    "when the study as a whole began and ended": ("cost/why",),
}
"""Paths in `summary.json` at which a study and its runs, judged, differ, by what no source of others holds.

Beside these: how gradients were summed, without which trainings of different workers are not pooled; `learns_alike`
says so here of the study too. That trials were planned: they are runs. And `at_target`: such a run finished.
"""
OF_JUDGED = ("unfair", "left_out", "evaluation")
"""Caveats of runs that others made, as such."""


@cache
def world_of(seed: int) -> World:
    """A world without a bend, and one in which runs diverge."""
    drawn = World.draw(np.random.default_rng(seed), noise=0.1, seeds=2, bend="divergence" if seed == 2 else False)
    return small(drawn)


@cache
def summary_of_study(seed: int) -> dict:
    """The summary of the study itself, of what a source can hold of each training."""
    world = world_of(seed)
    trials = [
        {**line, "status": "finished" if line["status"] == "at_target" else line["status"]} for line in world.trials()
    ]
    with ExitStack() as patches:
        for module in (posterior, recommendation):
            patches.enter_context(patch.object(module, "learns_alike", lambda *_: False))
        summary = to_jsonable_python(summarise(world.spec, world.plan, trials))
    return json.loads(json.dumps(summary).replace("planned trials", "runs"))


@dataclass(frozen=True)
class Source:
    """A world, recorded: what is judged, by which metric, and where its runs are kept."""

    name: str
    metric: str
    tracking_uri: str | None = None


def as_csv(folder: Path, world: World) -> Source:
    return Source(str(write_csv(folder / "runs.csv", world_rows(world))), "val/acc")


def as_tune(folder: Path, world: World) -> Source:
    return Source(str(write_tune(folder / "sweep", world)), "val_acc")


def as_database(folder: Path, world: World) -> Source:
    return _by_mlflow(f"sqlite:///{folder / 'mlflow.db'}", world)


def as_mlruns(folder: Path, world: World) -> Source:
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        return _by_mlflow((folder / "mlruns").as_uri(), world)


def _by_mlflow(uri: str, world: World) -> Source:
    write_mlflow(uri, "world", world)
    return Source("mlflow:world", "val_acc", uri)


def leaves(part, path=()):
    """Yields each value with its path; numbers to four digits, since sums differ in their last ones."""
    if isinstance(part, dict | list) and part:
        for key, each in part.items() if isinstance(part, dict) else enumerate(part):
            yield from leaves(each, (*path, str(key)))
    else:
        yield "/".join(path), float(f"{part:.4g}") if isinstance(part, float) else part


def differing(one, other):
    """The paths at which two summaries differ, with * for a place in a list."""
    told, known = dict(leaves(one)), dict(leaves(other))
    absent = object()
    paths = {path for path in told.keys() | known.keys() if told.get(path, absent) != known.get(path, absent)}
    return {re.sub(r"(?<=/)\d+(?=/|$)", "*", path) for path in paths}


@pytest.mark.parametrize(
    ("write", "seed"),
    [
        (as_csv, 1),
        (as_csv, 2),
        (as_tune, 2),  # in the second world runs diverge: NaN is what each source keeps in its own way
        *(pytest.param(each, 2, marks=pytest.mark.slow) for each in (as_database, as_mlruns)),
    ],
)
def test_a_source_gives_the_summary_of_the_study_but_for_what_it_can_t_hold(write, seed, tmp_path):
    world = world_of(seed)
    source = write(tmp_path, world)
    said = Said().with_given([f"train_samples={world.samples}"])
    request = Request(
        sources=[source.name],
        target=f"{source.metric}={TARGET}",
        said=said,
        tracking_uri=source.tracking_uri,
        out=tmp_path / "judged",
    )
    told = judge_runs(request).summary
    assert told.pop("judged")["left_out"] == []
    told["caveats"] = [caveat for caveat in told["caveats"] if caveat["kind"] not in OF_JUDGED]
    found = json.loads(json.dumps(told).replace(source.metric, "accuracy"))
    assert differing(found, summary_of_study(seed)) == {path for paths in NOT_HELD.values() for path in paths}


def write_mlflow(uri, experiment, world):
    """A run a training, by MLflow's client."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=uri)
    home = client.create_experiment(experiment)
    for training in trainings(world):
        run = client.create_run(home, start_time=round(training.started * 1000)).info.run_id
        params = {
            "num_gpus": training.params["num_gpus"],
            "global_batch_size": training.params["batch_size"],
            "lr": training.params["learning_rate"],
            "seed": training.params["seed"],
        }
        metrics = [
            Metric(name, value, round((training.started + row.seconds) * 1000), row.steps)
            for row in training.rows
            for name, value in (("val_acc", row.accuracy), ("epoch", row.epoch), ("train_time", row.seconds))
        ]
        client.log_batch(run, metrics, [Param(name, repr(value)) for name, value in params.items()])
        client.set_terminated(run, end_time=round(training.stopped * 1000))


def write_tune(folder, world):
    """The folder of an experiment of Ray 2.60's Tune: a function that reports each epoch, under no scheduler."""
    folder.mkdir(parents=True)
    states = []
    for number, training in enumerate(trainings(world)):
        config = {
            "global_batch_size": training.params["batch_size"],
            "lr": training.params["learning_rate"],
            "num_gpus": training.params["num_gpus"],
            "seed": training.params["seed"],
        }
        trial_id, began = f"5ca1e_{number:05}", _date(training.started)
        tag = f"{number}_lr={training.params['learning_rate']:.4f}"
        trial = folder / f"train_{trial_id}_{tag}_{began}"
        trial.mkdir()
        (trial / "params.json").write_text(json.dumps(config, indent=2, sort_keys=True))
        results = list(_results(training, trial_id, config))
        (trial / "result.json").write_text("".join(f"{json.dumps(result)}\n" for result in results))
        with (trial / "progress.csv").open("w", newline="") as stream:
            tables = [{key: value for key, value in result.items() if key != "config"} for result in results]
            writer = csv.DictWriter(stream, list(tables[0]))
            writer.writeheader()
            writer.writerows(tables)
        state = {"trainable_name": "train", "trial_id": trial_id, "config": config, "evaluated_params": config}
        state |= {"experiment_tag": tag, "stopping_criterion": {}, "max_failures": 0, "status": "TERMINATED"}
        states.append([json.dumps({**state, "relative_logdir": trial.name}), "{}"])
    whole = {"trial_data": states, "runner_data": {}, "stats": {}}
    (folder / f"experiment_state-{_date(STARTED)}.json").write_text(json.dumps(whole))
    return folder


def _results(training, trial_id, config):
    before = 0.0
    for row in training.rows:
        now = training.started + row.seconds
        yield {
            "val_acc": row.accuracy,
            "epoch": row.epoch,
            "steps": row.steps,
            "timestamp": int(now),
            "checkpoint_dir_name": None,
            "done": False,
            "training_iteration": row.epoch,
            "trial_id": trial_id,
            "date": _date(now),
            "time_this_iter_s": row.seconds - before,
            "time_total_s": row.seconds,
            "pid": 7,
            "hostname": "node1",
            "node_ip": "10.0.0.1",
            "config": config,
            "time_since_restore": row.seconds,
            "iterations_since_restore": row.epoch,
        }
        before = row.seconds


def _date(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d_%H-%M-%S")


REAL = Path(tests.support.__file__).parent / "tune_results" / "plain"


def shape(experiment: Path):
    """What the files of an experiment's folder say, without the values: of the first trial, and of the state."""
    trial = min(folder for folder in experiment.iterdir() if folder.is_dir())
    [state] = experiment.glob("experiment_state-*.json")
    result = json.loads((trial / "result.json").read_text().splitlines()[0])
    whole = json.loads(state.read_text())
    header = (trial / "progress.csv").read_text().splitlines()[0].split(",")
    metrics = {"val", "val/accuracy", "val_acc", "loss", "steps"}
    return {
        "files": sorted(file.name for file in trial.iterdir()),
        "name": re.sub(r"[0-9a-f]+_\d{5}_\d+_lr=[\d.]+_[\d-]+_[\d-]+", "…", trial.name.partition("_")[2]),
        "result": [(key, type(value)) for key, value in result.items() if key not in metrics],
        "table": [name for name in header if name not in metrics],
        "state": sorted(whole),
        "trial": sorted(json.loads(whole["trial_data"][0][0])),
    }


def test_the_tune_folder_of_a_world_is_as_ray_writes_one(tmp_path):
    assert shape(write_tune(tmp_path / "sweep", world_of(1))) == shape(REAL)
