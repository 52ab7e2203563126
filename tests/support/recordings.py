"""A recorder of a synthetic study, its events, and what it tells MLflow."""

from __future__ import annotations

import json

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_store import Operations
from scalestudy.orchestration.tracking.recorder import History, Recorder
from scalestudy.orchestration.tracking.writer import Cursor
from tests.support.synthetic_studies import study_of

SPEC = """
name: tiny
description: A small one
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [1], batch_size: [32], learning_rate: [0.1, 0.2]}
targets: {accuracy: [0.3, 0.99]}
"""


class FakeTracker:
    """Keeps what it is told."""

    def __init__(self):
        self.told, self.numbers = [], []

    def tell(self, number, operations):
        self.numbers.append(number)
        for each in operations:
            facts = json.loads(json.dumps(each, allow_nan=False))
            self.told.append((facts.pop("op"), facts))

    def of(self, operation):
        return [facts for name, facts in self.told if name == operation]


def recorded(tmp_path, text):
    """A recorder with nothing recorded, its folder and tracker, and the trials to record."""
    spec, plan, trials = study_of(text)
    folder = StudyFolder(tmp_path / "tiny-20260131")
    folder.create()
    folder.write_plan(plan, "tiny-20260131", spec.to_yaml())
    tracker = FakeTracker()
    return recorder_of(spec, plan, folder, tracker, History()), folder, tracker, trials


def recorder_of(spec, plan, folder, tracker, history):
    planned = {trial.trial_id: trial for trial in plan.trials}
    operations = Operations(spec, folder, planned, lambda trial: train_config(trial, "data"))
    return Recorder(folder, operations, tracker, history)


def again(recorder, folder):
    """What a driver that was killed leaves to the next one: a new recorder and tracker, from the folder alone."""
    tracker, history = FakeTracker(), History.of(Journal(folder.journal_folder).entries())
    return Recorder(folder, recorder._operations, tracker, history), tracker


def begin(recorder, folder, state="started"):
    recorder.begin(state, Cursor(folder.cursor_file))


def events_of(trial):
    """A synthetic trial as the engine tells it."""
    facts = {key: value for key, value in trial.items() if key not in ("trial_id", "kind", "params")}
    return [
        {"type": "running", "attempt": 1, "world": trial["world"]},
        *({"type": "epoch", "epoch": epoch} for epoch in trial["epochs"]),
        {"type": "ended", **facts},
    ]


def play(recorder, trial):
    model = recorder._folder.checkpoints(trial["trial_id"]) / "model.pt"
    model.parent.mkdir(parents=True)
    model.touch()
    for event in events_of(trial):
        assert recorder.take(trial["trial_id"], event) == [event]
