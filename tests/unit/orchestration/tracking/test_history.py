"""A study's journal, folded: what a killed or lost engine leaves, and what the next one goes on from."""

from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.events import (
    EpochDone,
    Failure,
    Lost,
    Retried,
    Running,
    TrialError,
    WorkerPlace,
    World,
    to_plain,
)
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.tracking.recorder import History
from tests.support.epochs import epoch_of

DIED = TrialError(kind="worker_lost", message="died")
INTERRUPTED = TrialError(kind="interrupted", message="again")
ON_CPU = World(device="cpu", nodes=1)
END = TrialRecord().end("finished", attempts=1, error=None, at=110.5)


def study(state, **facts):
    return "", {"type": "study", "state": state, **facts}


def running(trial_id, attempt=1, world=ON_CPU):
    return trial_id, to_plain(Running(attempt=attempt, world=world))


def epoch(trial_id, number, *flags):
    return trial_id, to_plain(EpochDone(record=epoch_of(number), flags=flags))


def retry(trial_id, attempt=1):
    return trial_id, to_plain(Retried(attempt=attempt, error=DIED))


def ended(trial_id):
    return trial_id, {"type": "ended", "trial_id": trial_id, **END.to_facts()}


def entries(*events, start=0, at=None):
    """Entries with these events, ten seconds apart."""
    times = at or [100.0 + 10 * (start + index) for index in range(len(events))]
    numbered = enumerate(zip(events, times, strict=True), start=start + 1)
    return [Entry(number=n, at=moment, trial_id=trial, event=event) for n, ((trial, event), moment) in numbered]


def test_of_a_study_that_was_killed_the_open_trials_are_known():
    history = History.of(
        entries(study("started"), running("a"), epoch("a", 1), running("b"), epoch("a", 2), ended("a"))
    )
    assert history.ended == {"a": {key: value for key, value in ended("a")[1].items() if key != "type"}}
    assert list(history.open) == ["b"]
    assert history.record_of("a") == history.record_of("never begun") == TrialRecord()
    assert history.wall_seconds == 50.0


def test_a_trial_that_goes_on_has_its_epochs_attempts_time_and_failures():
    told = entries(study("started"), running("a"), epoch("a", 1), retry("a"), running("a", 2), epoch("a", 2))
    record = History.of(told + entries(study("resumed"), start=100)).record_of("a")
    assert record.epochs == {number: epoch_of(number) for number in (1, 2)}
    assert record.attempts == 2
    assert record.started_at == 110.0
    assert record.earlier_seconds == 40.0  # from its first running to its last event; not the time between the runs
    assert [(failure.attempt, failure.kind) for failure in record.failures] == [(1, "worker_lost"), (2, "interrupted")]


def test_time_between_two_runs_of_the_study_counts_for_nothing():
    history = History.of(
        entries(
            study("started"),
            running("a"),
            study("stopped", open=["a"], wall_seconds=20.0),
            study("resumed"),
            running("a", 2),
            epoch("a", 1),
            at=[100.0, 110.0, 120.0, 1000.0, 1010.0, 1025.0],
        )
    )
    assert history.wall_seconds == 20.0 + 25.0
    record = history.open["a"]
    record.cut(INTERRUPTED)
    assert record.earlier_seconds == 0.0 + 15.0  # nothing was seen of it in the first run after its start
    assert len(record.failures) == 2


def test_an_attempt_is_lost_once():
    history = History.of(entries(study("started"), running("a"), retry("a"), study("resumed")))
    assert [failure.kind for failure in history.record_of("a").failures] == ["worker_lost"]
    assert not history.is_news("a", Retried(attempt=1, error=DIED))
    assert not history.is_news("a", Running(attempt=1))
    assert history.is_news("a", Running(attempt=2))


def test_flags_and_world_outlive_a_driver():
    told = entries(study("started"), running("a"), epoch("a", 1, "shared_node"), study("resumed"))
    record = History.of(told).record_of("a")
    assert (record.flags, record.world) == ({"shared_node"}, ON_CPU)


def test_a_lost_engine_is_a_failure_of_the_trials_that_ran():
    history = History.of(entries(study("started"), running("a"), study("engine_lost", message="the pool died")))
    assert history.record_of("a").failures == [Failure(attempt=1, kind="engine_lost", message="the pool died")]


def test_an_interruption_is_noted_once():
    told = entries(
        study("started"),
        running("a"),
        study("stopped", open=["a"], wall_seconds=1.0),
        study("resumed"),
        study("resumed"),
    )
    assert len(History.of(told).record_of("a").failures) == 1


def test_an_event_that_a_newer_version_wrote_is_passed_over(caplog):
    history = History.of(entries(study("started"), running("a"), ("a", {"type": "paused"}), epoch("a", 1)))
    assert list(history.open["a"].epochs) == [1]
    assert "skipping entry 3 of the journal: event type 'paused'" in caplog.text


def test_what_is_news():
    history = History.of(entries(study("started"), running("a"), epoch("a", 1)))
    assert not history.is_news("a", EpochDone(record=epoch_of(1, 0.9)))  # the first record of an epoch wins
    assert history.is_news("a", EpochDone(record=epoch_of(2)))
    assert history.is_news("b", Running(attempt=1))
    for entry in entries(ended("a"), start=3):
        history.take(entry)
    assert not history.is_news("a", EpochDone(record=epoch_of(2)))
    assert not history.is_news("a", END)
    assert not history.is_news("a", Lost())


def test_what_is_taken_for_a_trial_does_not_change_the_history():
    history = History.of(entries(study("started"), running("a"), epoch("a", 1)))
    history.record_of("a").apply(EpochDone(record=epoch_of(2)), 1.0)
    assert list(history.record_of("a").epochs) == [1]


def test_the_world_of_a_record_is_the_last_that_was_told():
    record = TrialRecord()
    record.apply(Running(attempt=1, world=ON_CPU), 1.0)
    record.apply(Running(attempt=2), 2.0)
    assert record.world == ON_CPU
    other = World(device="cpu", nodes=1, workers=(WorkerPlace(rank=0, node="b", device="cpu", threads=1),))
    record.apply(Running(attempt=3, world=other), 3.0)
    assert record.world == other


def test_the_state_is_what_the_study_last_said():
    assert History().state == "new"
    assert History.of(entries(study("started"))).state == "running"
    stopped = study("stopped", open=[], wall_seconds=1.0)
    assert History.of(entries(study("started"), stopped)).state == "stopped"
    assert History.of(entries(study("started"), stopped, study("resumed"))).state == "running"
    finished = study("finished", best=None, wall_seconds=1.0)
    assert History.of(entries(study("started"), finished, study("a newer version's"))).state == "finished"
