"""What is known of a trial, folded from its events: the same in the pool and in the journal."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Failure,
    Lost,
    Member,
    Retried,
    Running,
    TrainingEnded,
    TrialError,
    World,
    from_plain,
    to_plain,
)
from scalestudy.orchestration.groups.trial_record import TrialRecord, epoch_flags, worker_flags
from scalestudy.orchestration.tracking.entries import Recorded
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.training.gpu_state import GpuState
from tests.support.epochs import epoch_of

ENDED = TrainingEnded(status="finished", score=0.5, lost_seconds=0.5, message=None)
DIED = TrialError(kind="worker_lost", message="died")
INTERRUPTED = TrialError(kind="interrupted", message="again")
ON_CPU = World(device="cpu", nodes=1)


def member(rank, host="h", threads=1, cores=2, device="cpu", node=None):
    return Member(rank=rank, node=node or host, host=host, pid=7, cores=cores, device=device, threads=threads)


def end(record, **changes):
    """The end of a trial, at second 110.5."""
    facts = {"status": "finished", "attempts": 1, "error": None, "at": 110.5, **changes}
    return record.end(facts.pop("status"), **facts)


def test_workers_are_oversubscribed_when_a_host_has_fewer_cores_than_threads():
    assert worker_flags([member(0), member(1)]) == set()
    assert worker_flags([member(0), member(1, threads=2)]) == {"oversubscribed"}
    assert worker_flags([member(0), member(1), member(2, host="other")]) == set()
    assert worker_flags([member(rank, device="cuda:0", cores=1) for rank in range(3)]) == set()


def test_two_raylets_on_one_machine_share_its_cores():
    assert worker_flags([member(0, node="n1", threads=2), member(1, node="n2")]) == {"oversubscribed"}


def test_the_line_of_a_trial():
    record = TrialRecord()
    record.begin(100.0)
    record.apply(Running(attempt=1, world=World.of([member(0), member(1)])), 101.0)
    record.flags.add("oversubscribed")
    record.training_started(101.25, resumed=False)
    record.training_started(105.0, resumed=True)  # a later attempt
    for number in (2, 1):
        record.apply(EpochDone(record=epoch_of(number, seconds=2.0)), 103.0)
    record.training_ended(replace(ENDED, status="diverged"))
    facts = end(record).to_facts()
    assert facts == {
        "status": "finished",
        "attempts": 1,
        "started_at": "1970-01-01T00:01:40.000Z",
        "ended_at": "1970-01-01T00:01:50.500Z",
        "wall_seconds": 10.5,
        "train_seconds": 4.5,  # 2 epochs of 2.0 and the half second before it diverged
        "startup_seconds": 1.25,
        "world": {
            "device": "cpu",
            "nodes": 1,
            "workers": [
                {"rank": 0, "node": "h", "device": "cpu", "threads": 1},
                {"rank": 1, "node": "h", "device": "cpu", "threads": 1},
            ],
        },
        "flags": ["oversubscribed", "resumed"],
        "epochs": [epoch_of(1, seconds=2.0).to_dict(), epoch_of(2, seconds=2.0).to_dict()],
        "error": None,
    }
    json.dumps(facts, allow_nan=False)


def test_what_training_picked_by_itself_is_in_the_line():
    record = TrialRecord()
    record.training_ended(replace(ENDED, details={"fused": True}))
    facts = end(record).to_facts()
    assert facts["details"] == {"fused": True}
    assert list(facts)[list(facts).index("flags") + 1] == "details"
    assert facts["train_seconds"] == 0.0  # no epoch was lost


def test_the_code_that_the_worker_has_is_in_the_line():
    record = TrialRecord()
    record.training_ended(replace(ENDED, code={"mine": "1"}))
    facts = end(record).to_facts()
    assert facts["fingerprint"] == {"mine": ["1"]}
    assert Ended.from_facts(facts) == end(record)


def test_what_the_gpus_did_is_in_the_line_and_flags_the_trial():
    record = TrialRecord()
    record.training_ended(replace(ENDED, gpus=(GpuState(rank=0, reasons=("gpu_idle",), others=0),)))
    assert end(record).flags == ()
    gpus = (GpuState(rank=0, sm_mhz=1200, reasons=("hw_thermal_slowdown",)), GpuState(rank=1, others=1))
    record.training_ended(replace(ENDED, gpus=gpus))
    ended = end(record)
    assert ended.flags == ("shared_gpu", "throttled")
    facts = json.loads(json.dumps(ended.to_facts(), allow_nan=False))
    assert list(facts)[list(facts).index("flags") + 1] == "gpus"
    assert (facts["gpus"][0]["sm_mhz"], facts["gpus"][0]["reasons"]) == (1200, ["hw_thermal_slowdown"])
    assert Ended.from_facts(facts) == ended


def test_without_gpus_the_line_says_nothing_of_them():
    record = TrialRecord()
    record.training_ended(ENDED)
    assert "gpus" not in end(record).to_facts()


def test_a_trial_that_never_got_workers_has_a_line_too():
    ended = end(TrialRecord(), error=TrialError(kind="group_start", message="no"))
    assert ended.wall_seconds == 0
    assert ended.startup_seconds is None
    assert ended.world == World()


@pytest.mark.parametrize(
    ("shares", "flags"),
    [
        ([0.21], {"starved"}),
        ([0.2], set()),
        ([0.9, 0.1, 0.1], set()),  # others began or ended meanwhile
        ([0.0, 0.3, 0.5], {"starved"}),
        ([None, None], set()),  # on GPUs, or the system does not count it
        ([None, 0.3], {"starved"}),
        ([], set()),
    ],
)
def test_a_trial_is_starved_in_its_median_epoch(shares, flags):
    epochs = [epoch_of(number, starved_share=share) for number, share in enumerate(shares, 1)]
    assert epoch_flags(epochs) == flags


def test_more_threads_than_cores_starve_themselves():
    assert epoch_flags([epoch_of(1, starved_share=0.6)], {"oversubscribed"}) == set()
    record = TrialRecord(flags={"oversubscribed"})
    record.apply(EpochDone(record=epoch_of(1, starved_share=0.6)), 1.0)
    assert end(record).flags == ("oversubscribed",)
    other = TrialRecord(flags={"shared_node"})
    other.apply(EpochDone(record=epoch_of(1, starved_share=0.6)), 1.0)
    assert end(other).flags == ("shared_node", "starved")


def test_a_rate_that_no_epoch_has_is_flagged():
    record = TrialRecord()
    record.apply(EpochDone(record=epoch_of(1, samples_per_second=None)), 1.0)
    assert end(record).flags == ("warm_up_included",)
    record.ended = None
    record.apply(EpochDone(record=epoch_of(2)), 2.0)
    assert end(record).flags == ()


def test_what_earlier_engines_have_left():
    failure = Failure(attempt=1, kind="node_lost", message="m")
    record = TrialRecord(
        epochs={1: epoch_of(1, seconds=2.0)},
        attempts=1,
        started_at=50.0,
        earlier_seconds=30.0,
        startup_seconds=3.0,
        flags={"resumed"},
        failures=[failure],
        world=ON_CPU,
    )
    assert not record.is_news(EpochDone(record=epoch_of(1, seconds=9.0)))
    record.begin(100.0)
    record.training_started(101.0, resumed=False)
    ended = end(record, attempts=2)
    assert ended.started_at == "1970-01-01T00:00:50.000Z"
    assert ended.wall_seconds == 40.5  # 30 before, and 10.5 since 100
    assert (ended.startup_seconds, ended.train_seconds) == (3.0, 2.0)
    assert (ended.flags, ended.failures) == (("resumed",), (failure,))
    facts = ended.to_facts()
    assert list(facts)[list(facts).index("flags") + 1] == "failures"
    json.dumps(facts, allow_nan=False)


def test_the_world_is_the_last_that_was_told():
    record, worlds = TrialRecord(), []
    for attempt, world in enumerate((ON_CPU, World(), World.of([member(0)])), start=1):
        record.apply(Running(attempt=attempt, world=world), 1.0)
        worlds.append(record.world)
    assert worlds == [ON_CPU, ON_CPU, World.of([member(0)])]


def test_what_comes_after_the_rung_is_forgotten():
    record = TrialRecord()
    for number in (1, 2, 3):
        record.apply(EpochDone(record=epoch_of(number, seconds=2.0)), 1.0)
    record.training_ended(replace(ENDED, status="diverged"))
    end(record)
    record.forget_after(2)
    assert record.ended is None
    ended = end(record, status="stopped")
    assert [epoch.epoch for epoch in ended.epochs] == [1, 2]
    assert ended.train_seconds == 4.0


# --- a trial that can't tell its end ------------------------------------------------------------------------------


def test_a_trial_that_was_to_stop_keeps_all_that_is_known_of_it():
    record = TrialRecord(
        epochs={number: epoch_of(number) for number in (1, 2, 3)},
        attempts=2,
        started_at=100.0,
        earlier_seconds=7.0,
        flags={"shared_node"},
        failures=[Failure(attempt=1, kind="worker_lost", message="died")],
        world=ON_CPU,
    )
    ended = record.end_of_lost(Lost(status="stopped", last_epoch=2), 200.0)
    assert (ended.status, ended.attempts, [epoch.epoch for epoch in ended.epochs]) == ("stopped", 2, [1, 2])
    assert (ended.flags, ended.world.device) == (("shared_node",), "cpu")
    assert [failure.kind for failure in ended.failures] == ["worker_lost"]
    assert ended.wall_seconds == 7.0
    assert (ended.started_at, ended.error) == ("1970-01-01T00:01:40.000Z", None)
    assert (len(record.epochs), record.ended) == (3, None), "the record itself stays as it is"


def test_the_end_of_a_trial_without_epochs():
    gone = TrialError(kind="tune_trial", message="gone")
    ended = TrialRecord().end_of_lost(Lost(error=gone), 5.0)
    assert (ended.status, ended.attempts, ended.epochs, ended.train_seconds) == ("failed", 1, (), 0)
    assert ended.error == gone


# --- one fold -----------------------------------------------------------------------------------------------------

epochs = st.builds(
    lambda number, seconds, flags: EpochDone(record=epoch_of(number, seconds=seconds), flags=flags),
    st.integers(1, 5),
    st.floats(0, 100),
    st.lists(st.sampled_from(["resumed", "shared_node"]), max_size=2).map(tuple),
)
worlds = st.sampled_from([World(), ON_CPU, World.of([member(0), member(1, "other")])])
attempts = st.builds(Running, attempt=st.integers(1, 4), world=worlds)
retries = st.builds(Retried, attempt=st.integers(1, 4), error=st.just(DIED))
stories = st.lists(st.one_of(epochs, attempts, retries), max_size=25)


def told(record, events, began=0.0):
    """A record after these events, each as it comes out of the journal; those that are no news are dropped."""
    written = []
    for moment, event in enumerate(events):
        if record.is_news(event):
            written.append((event, began + moment))
            record.apply(event, began + moment)
    return written


@given(stories, st.data())
def test_the_fold_of_the_journal_is_the_pool_s_record(events, data):
    """Whatever is repeated, and in whatever order: the journal's text tells what the events told."""
    repeated = [event for event in events for _ in range(data.draw(st.integers(1, 2)))]
    pool, study = TrialRecord(), History()
    written = told(pool, repeated)
    for number, (event, at) in enumerate(written, start=1):
        plain = json.loads(json.dumps(to_plain(event), allow_nan=False))
        assert study.is_news("t", event)
        study.take(Recorded.of(Entry(number=number, at=at, trial_id="t", event=plain)))
        assert not study.is_news("t", event)
    assert study.record_of("t") == pool
    assert study.past == [("t", event) for event, _ in written]
    assert [from_plain(to_plain(event)) for event, _ in written] == [event for event, _ in written]


@given(stories)
def test_the_first_record_of_an_epoch_wins_and_an_attempt_begins_and_is_lost_once(events):
    record = TrialRecord()
    told(record, events)
    first = {}
    for event in events:
        if isinstance(event, EpochDone):
            first.setdefault(event.record.epoch, event.record)
    assert record.epochs == first
    assert record.attempts == max(
        (event.attempt for event in events if isinstance(event, Running | Retried)), default=0
    )
    lost = [failure.attempt for failure in record.failures]
    assert len(lost) == len(set(lost))
    assert set(lost) == {event.attempt for event in events if isinstance(event, Retried)}
    ended = end(record)
    assert [epoch.epoch for epoch in ended.epochs] == sorted(first)
    assert abs(ended.train_seconds - sum(epoch.train_seconds for epoch in first.values())) < 1e-5
    assert not any(record.is_news(event) for event in events), "nothing is news of a trial that has ended"


@given(stories, stories)
def test_a_trial_that_is_cut_goes_on_where_it_stood(before, after):
    record = TrialRecord()
    told(record, before, began=100.0)
    stood = (dict(record.epochs), record.attempts, record.world, set(record.flags), record.started_at)
    spent = 0.0 if record.begun_at is None else record.last_seen - record.begun_at
    record.cut(INTERRUPTED)
    record.cut(INTERRUPTED)  # noted once
    assert (dict(record.epochs), record.attempts, record.world, set(record.flags), record.started_at) == stood
    assert (record.earlier_seconds, record.begun_at) == (spent, None)
    told(record, after, began=1_000.0)
    assert record.earlier_seconds == spent, "the time between two engines counts for nothing"
    assert record.epochs.keys() >= stood[0].keys()
