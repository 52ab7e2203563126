"""Typed events and the journal's plain data, which are read and written again to the byte."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Failure,
    Member,
    Retried,
    Running,
    Suggested,
    TrialError,
    UnknownEventError,
    WorkerPlace,
    World,
    from_plain,
    study_event_from_plain,
    study_event_to_plain,
    to_plain,
)
from scalestudy.training.records import EpochRecord
from tests.support.epochs import epoch_of
from tests.support.old_studies import STUDIES, entries_of

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def journal_lines():
    """Trials' events in the recorded journals, each with its study and number."""
    for name in (*STUDIES, "pieces"):
        for entry in entries_of(name):
            if entry.type != "study":
                yield f"{name}, entry {entry.number}", entry.event


def written_again(event):
    """What is written of the event that a journal holds."""
    read = from_plain(event)
    if not isinstance(read, Ended):
        return to_plain(read)
    trial = TrialPlan(trial_id=event["trial_id"], kind=event["kind"], params=event["params"], workload={}, train={})
    return {"type": "ended", **read.to_line(trial)}


def test_recorded_journals_are_read_and_written_byte_for_byte():
    lines = list(journal_lines())
    for where, event in lines:
        assert json.dumps(written_again(event)) == json.dumps(event), where
    assert {event["type"] for _, event in lines} == {"running", "epoch", "retry", "ended", "suggested"}
    assert any("flags" in event for _, event in lines if event["type"] == "epoch")
    assert any("failures" in event for _, event in lines if event["type"] == "ended")


def test_the_studys_own_events_are_read_and_written_byte_for_byte():
    kept = [entry.event for name in (*STUDIES, "pieces") for entry in entries_of(name) if entry.type == "study"]
    others = [
        {"type": "study", "state": "engine_lost", "message": "the pool died"},
        {"type": "study", "state": "stopped", "open": ["a", "b"], "wall_seconds": 1.5},
        {"type": "study", "state": "fresh_workers", "why": "the model was trained by an earlier trial"},
    ]
    answer = {"cell": {"num_gpus": 2}, "figures": {"recommended_workers": 2.0}}
    facts = {"train": 600, "test": None, "formats": "f", "shapes": "s", "examples": None}
    others += [
        {"type": "study", "state": "started", "origin": {"user": "ann", "source": "a.yaml", "commit": "c", "job": "j"}},
        {"type": "study", "state": "resumed", "origin": {}},
        {
            "type": "study",
            "state": "started",
            "fingerprint": {"code": {"mine": {"mine.py": "1"}}, "data": {"d": facts}},
        },
        {**others[1], "answer": answer},
        {"type": "study", "state": "finished", "best": None, "wall_seconds": 1.5, "answer": answer},
    ]
    for event in (*kept, *others):
        assert json.dumps(study_event_to_plain(study_event_from_plain(event))) == json.dumps(event)
    states = {event["state"] for event in (*kept, *others)}
    assert states == {"started", "resumed", "extended", "engine_lost", "fresh_workers", "stopped", "finished"}
    with pytest.raises(UnknownEventError, match="state 'paused' of a study"):
        study_event_from_plain({"type": "study", "state": "paused"})


def test_an_unknown_type_is_refused():
    with pytest.raises(ValueError, match="event type 'paused'"):
        from_plain({"type": "paused"})


def test_a_record_whose_metric_is_the_loss_keeps_it():
    record = epoch_of(1, 0.25, metric="loss")
    assert from_plain(to_plain(EpochDone(record=record))) == EpochDone(record=record)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_null_in_the_journal(value):
    plain = to_plain(EpochDone(record=epoch_of(1, value)))
    assert plain["epoch"]["test_accuracy"] is None
    json.dumps(plain, allow_nan=False)
    assert math.isnan(from_plain(plain).record.test_metric)


def test_a_world_is_that_of_its_members():
    def member(rank, node, device="cpu"):
        return Member(rank=rank, node=node, host=node, pid=7, cores=2, device=device, threads=1, backend="nccl")

    world = World.of([member(1, "b", "cuda:0"), member(0, "a", "cuda:0")])
    assert (world.device, world.nodes, world.backend) == ("cuda", 2, "nccl")
    assert world.workers[0] == WorkerPlace(rank=0, node="a", device="cuda:0", threads=1)
    assert World.from_plain(world.to_plain()) == world
    typed = World.of([replace(member(0, "a"), gpus=("0", "1"))], accelerator="A100")
    assert typed.to_plain() == {
        "device": "cpu",
        "nodes": 1,
        "backend": "nccl",
        "accelerator": "A100",
        "workers": [{"rank": 0, "node": "a", "device": "cpu", "threads": 1, "gpus": ["0", "1"]}],
    }
    assert World().to_plain() == {"device": None, "nodes": 0, "workers": []}
    assert World.from_plain(World().to_plain()) == World()


TEXT = st.text(max_size=6)
places = st.builds(
    WorkerPlace,
    rank=st.integers(0, 9),
    node=TEXT,
    device=st.sampled_from(["cpu", "cuda:0"]),
    threads=st.just(1),
    gpus=st.lists(st.sampled_from("01"), max_size=2).map(tuple),
)
worlds = st.builds(
    World,
    device=st.sampled_from([None, "cpu", "cuda"]),
    backend=st.sampled_from([None, "gloo", "nccl"]),
    accelerator=st.sampled_from([None, "A100"]),
    workers=st.lists(places, max_size=2).map(tuple),
)
errors = st.builds(TrialError, kind=TEXT, message=TEXT, rank=st.none() | st.integers(0, 9), traceback=TEXT)
failures = st.builds(Failure, attempt=st.integers(1, 9), kind=TEXT, message=TEXT)
flags = st.lists(TEXT, max_size=2).map(tuple)
records = st.builds(
    EpochRecord,
    epoch=st.integers(1, 9),
    at=TEXT,
    steps=st.integers(1, 9),
    train_loss=FINITE,
    test_loss=FINITE,
    metric=st.sampled_from(["accuracy", "mse", "loss_scaled"]),
    test_metric=FINITE,
    train_seconds=FINITE,
    eval_seconds=FINITE,
    samples=st.integers(1, 9),
    samples_per_second=st.none() | FINITE,
    phases=st.dictionaries(TEXT, st.none() | FINITE, max_size=2),
    peak_memory_bytes=st.integers(0, 2**40),
    replica_max_diff=FINITE,
    sync_bytes=st.integers(0, 2**40),
    learning_rate=FINITE,
    **{
        name: st.none() | FINITE
        for name in ("grad_sq_norm", "grad_trace_cov", "straggler_ratio", "starved_share", "gpu_share")
    },
)
plans = st.builds(
    TrialPlan, trial_id=TEXT, params=st.dictionaries(TEXT, FINITE, max_size=2), workload=st.just({}), train=st.just({})
)
events = st.one_of(
    st.builds(Suggested, trial=plans, point=st.none() | st.integers(1, 9)),
    st.builds(Running, attempt=st.integers(1, 9), world=worlds),
    st.builds(EpochDone, record=records, flags=flags),
    st.builds(Retried, attempt=st.integers(1, 9), error=errors),
    st.builds(
        Ended,
        status=st.sampled_from(["finished", "failed"]),
        attempts=st.integers(1, 9),
        started_at=TEXT,
        ended_at=TEXT,
        wall_seconds=FINITE,
        train_seconds=FINITE,
        startup_seconds=st.none() | FINITE,
        world=worlds,
        flags=flags,
        details=st.dictionaries(TEXT, st.none() | st.booleans() | FINITE, max_size=2),
        fingerprint=st.dictionaries(TEXT, st.lists(TEXT, min_size=1, max_size=2), max_size=2),
        failures=st.lists(failures, max_size=2).map(tuple),
        epochs=st.lists(records, max_size=2).map(tuple),
        error=st.none() | errors,
    ),
)


@given(events)
def test_every_event_survives_its_text(event):
    text = json.dumps(to_plain(event), allow_nan=False)
    assert from_plain(json.loads(text)) == event
    assert json.dumps(to_plain(from_plain(json.loads(text)))) == text
