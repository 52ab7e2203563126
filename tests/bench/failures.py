"""`make bench BENCH="recovery points"`: what a lost worker costs, and what MLflow costs the driver."""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.groups.events import EpochDone, Running, StudyBegan
from scalestudy.orchestration.tracking.entries import Recorded, StudyJournal
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy
from scalestudy.orchestration.tracking.recorder import History, Recorder
from scalestudy.orchestration.tracking.server import resolve_address
from scalestudy.orchestration.tracking.writer import Cursor, TrackingWriter
from scalestudy.training.records import EpochRecord, epoch_metrics
from tests.bench.engine import MODELS, local_ray
from tests.bench.tables import Part, Rows
from tests.support.groups import Pool, group_pool, wait_until
from tests.support.synthetic_studies import study_of

RECOVERY_EPOCHS, RECOVERY_STEPS, STEP_SECONDS = 6, 20, 0.1


def recovery(folder: Path, *, small: bool = False) -> Rows:
    """One row: a two-worker trial whose worker is killed in the middle of an epoch; medians."""
    with local_ray(4), group_pool(folder) as pool:
        found = [killed(pool, folder / f"try-{number}") for number in range(1 if small else 5)]
    medians = [statistics.median(values) for values in zip(*found, strict=True)]
    return [[str(len(found)), f"{medians[0]:.1f}", f"{medians[1]:.1f}", f"{medians[2]:.0f}", str(RECOVERY_STEPS)]]


def killed(pool: Pool, place: Path) -> tuple[float, float, int]:
    """Seconds from SIGKILL to the next step, to the next epoch's record, and the steps executed beyond the needed."""
    notes = place / "notes"
    notes.mkdir(parents=True)
    trial_id = pool.request(
        2,
        place / "checkpoints",
        model=f"{MODELS}:Sleeps",
        model_args={"seconds": STEP_SECONDS, "notes": str(notes)},
        data="synthetic",
        data_args={"train_samples": 8 * RECOVERY_STEPS, "test_samples": 8, "image_size": 1},
        batch_size=8,
        epochs=RECOVERY_EPOCHS,
    )
    pool.events(trial_id, lambda event: isinstance(event, EpochDone) and event.record.epoch == 2)
    at_kill = len(_steps(notes)) + RECOVERY_STEPS // 2
    wait_until(lambda: len(_steps(notes)) >= at_kill)
    when = time.time()
    os.kill(int((notes / "pid-1").read_text("utf-8")), signal.SIGKILL)
    pool.events(trial_id, lambda event: isinstance(event, EpochDone) and event.record.epoch == 3)
    recorded = time.time()
    ended = pool.end_of(trial_id)
    assert ended.status == "finished", ended
    steps = _steps(notes)
    following = min(step for step in steps if step > when + 1.5 * STEP_SECONDS)
    return following - when, recorded - when, len(steps) - RECOVERY_EPOCHS * RECOVERY_STEPS


def _steps(notes: Path) -> list[float]:
    file = notes / "steps"
    return [float(line) for line in file.read_text("utf-8").split()] if file.exists() else []


# --- metrics to MLflow --------------------------------------------------------------------------------------------

POINTS = 1_000
POINTS_STUDY = """
name: points
train: {epochs: 10}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2], seed: [0, 1, 2, 3]}
"""


def points(folder: Path, *, small: bool = False) -> Rows:
    """One row: what the driver's main thread, and the writer's, take to hand 1,000 metric points to MLflow; medians."""
    found = [points_to_mlflow(folder / f"points-{number}") for number in range(1 if small else 5)]
    medians = [statistics.median(values) for values in zip(*found, strict=True)]
    return [[f"{POINTS:,}", f"{1000 * medians[0]:.1f}", f"{1000 * medians[1]:.0f}", f"{medians[2]:.1f}", "0"]]


def points_to_mlflow(path: Path) -> tuple[float, float, float]:
    """Seconds of the main thread in `tell`, with the journal in `Recorder.take`, and until all is in sqlite."""
    spec, plan, trials = study_of(POINTS_STUDY)
    study = StudyFolder(path)
    study.create()
    study.write_plan(plan, path.name, spec.to_yaml())
    address = resolve_address(f"sqlite:///{path / 'mlflow.db'}")
    tracked = TrackedStudy(spec=spec, folder=study, trials=plan.by_id(), config_of=lambda trial: {})
    writer = TimedWriter(lambda: MlflowStore(address, tracked), Cursor(study.cursor_file), StudyJournal(study))
    recorder = Recorder(tracked, writer, History())
    recorder.take_study(StudyBegan(how="started"))
    for trial in plan.trials:
        recorder.take(trial.trial_id, Running(attempt=1))
    records = [(trial["trial_id"], EpochRecord.from_dict(epoch)) for trial in trials for epoch in trial["epochs"]]
    wanted = -(-POINTS // len(epoch_metrics(records[0][1])))
    assert len(records) >= wanted
    writer.spent, began = 0.0, time.perf_counter()
    for trial_id, record in records[:wanted]:
        recorder.take(trial_id, EpochDone(record=record))
    taken = time.perf_counter() - began
    assert writer.close() == 0
    return writer.spent, taken, time.perf_counter() - began


class TimedWriter(TrackingWriter):
    """Adds up the seconds that its caller spends in `tell`."""

    spent = 0.0

    def tell(self, entry: Recorded) -> None:
        began = time.perf_counter()
        super().tell(entry)
        self.spent += time.perf_counter() - began


PARTS = {
    "points": Part(
        "Metrics to MLflow on sqlite",
        ["points", "the driver's main thread, ms", "with the journal, ms", "until all are stored, s", "workers, s"],
        points,
    ),
    "recovery": Part(
        "A worker killed",
        ["kills", "to the next step, s", "to the next epoch's record, s", "wasted steps", "steps a checkpoint"],
        recovery,
    ),
}
