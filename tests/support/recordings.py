"""A recorder of a synthetic study, its events, and what it tells MLflow."""

from __future__ import annotations

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    JournalEvent,
    Running,
    StudyBegan,
    study_event_to_plain,
    to_plain,
)
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.entries import Recorded, StudyJournal
from scalestudy.orchestration.tracking.mlflow_store import TrackedStudy
from scalestudy.orchestration.tracking.recorder import History, Recorder
from scalestudy.orchestration.tracking.writer import Cursor
from scalestudy.training.records import EpochRecord
from tests.support.synthetic_studies import study_of

SPEC = """
name: tiny
description: A small one
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [1], batch_size: [32], learning_rate: [0.1, 0.2]}
targets: {accuracy: [0.3, 0.99]}
"""
BEGAN = 1_769_860_800.125  # 2026-01-31T12:00:00.125Z


class FakeWriter:
    """Keeps the journal's entries that it is told."""

    def __init__(self):
        self.entries = []

    def tell(self, entry):
        self.entries.append(entry)

    @property
    def told(self):
        """The types of the entries; a study's own by its state."""
        return [plain["state"] if plain["type"] == "study" else plain["type"] for plain in map(plain_of, self.entries)]

    @property
    def numbers(self):
        return [entry.number for entry in self.entries]


def recorded(tmp_path, text):
    """A recorder with nothing recorded, its folder and writer, and the trials to record."""
    spec, plan, trials = study_of(text)
    folder = StudyFolder(tmp_path / "tiny-20260131")
    folder.create()
    folder.write_plan(plan, "tiny-20260131", spec.to_yaml())
    study = TrackedStudy(
        spec=spec, folder=folder, trials=plan.by_id(), config_of=lambda trial: train_config(trial, "data")
    )
    writer = FakeWriter()
    return Recorder(study, writer, History()), folder, writer, [whole(trial) for trial in trials]


def whole(trial):
    """A synthetic trial with every key that a training's epochs have."""
    return {**trial, "epochs": [EpochRecord.from_dict(epoch).to_dict() for epoch in trial["epochs"]]}


def again(recorder, folder):
    """What a driver that was killed leaves to the next one: a new recorder and writer, from the folder alone."""
    writer, history = FakeWriter(), History.of(StudyJournal(folder).entries())
    return Recorder(recorder._study, writer, history), writer


def begin(recorder, folder, how="started"):
    recorder.begin(StudyBegan(how=how), Cursor(folder.cursor_file))


def events_of(trial):
    """A synthetic trial as the engine tells it."""
    ended = Ended.from_facts(trial)
    return [Running(attempt=1, world=ended.world), *(EpochDone(record=record) for record in ended.epochs), ended]


def play(recorder, trial):
    model = recorder._folder.checkpoints(trial["trial_id"]) / "model.pt"
    model.parent.mkdir(parents=True)
    model.touch()
    for event in events_of(trial):
        assert recorder.take(trial["trial_id"], event) == event


def entries_of(trials, *, last="finished", origin=None, **facts):
    """The journal of a study with these trials, an entry a second."""
    ended = {"type": "study", "state": last, "wall_seconds": 12.5, "best": None, "open": [], **facts}
    told = [("", {"type": "study", "state": "started", **({"origin": origin} if origin else {})})]
    for trial in trials:
        *others, _ = events_of(trial)
        plain = [*(to_plain(event) for event in others), {"type": "ended", **trial}]
        told += [(trial["trial_id"], event) for event in plain]
    return numbered([*told, ("", ended)])


def numbered(told):
    """Entries with these (trial id, event as plain data), a second apart."""
    return [
        Recorded.of(Entry(number=number, at=BEGAN + number - 1, trial_id=trial_id, event=event))
        for number, (trial_id, event) in enumerate(told, start=1)
    ]


class Kept:
    """A study's journal that has these entries."""

    def __init__(self, entries):
        self._entries = entries

    def entries(self, after=0):
        return iter(self._entries[after:])


def plain_of(entry):
    """The plain data of an entry's event, as the journal has it; an end without the plan's keys."""
    event = entry.event
    return to_plain(event) if isinstance(event, JournalEvent) else study_event_to_plain(event)


def with_keys(entry, **keys):
    """The entry with other values of keys of its plain data."""
    plain = {"type": "ended", **entry.line} if entry.line else plain_of(entry)
    event = {**plain, **keys}
    return Recorded.of(Entry(number=entry.number, at=entry.at, trial_id=entry.trial_id, event=event))
