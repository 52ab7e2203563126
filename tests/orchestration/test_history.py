"""What a journal comes to."""

from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.tracking.recorder import History
from tests.support.synthetic_studies import study_of

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 3}
sweep: {num_gpus: [1], batch_size: [32], learning_rate: [0.1, 0.2]}
"""


def study(state, **facts):
    return "", {"type": "study", "state": state, **facts}


def running(trial_id, attempt=1):
    return trial_id, {"type": "running", "attempt": attempt, "world": {}}


def epoch(trial_id, number, **facts):
    return trial_id, {"type": "epoch", "epoch": {"epoch": number, **facts}}


def told(*events, start=0, at=None):
    """Entries with these events, ten seconds apart."""
    times = at or [100.0 + 10 * (start + index) for index in range(len(events))]
    numbered = enumerate(zip(events, times, strict=True), start=start + 1)
    return [Entry(number=n, at=moment, trial_id=trial, event=event) for n, ((trial, event), moment) in numbered]


def test_of_a_study_that_was_killed_the_open_trials_are_known():
    entries = told(study("started"), running("a"), epoch("a", 1, loss=1.0), running("b"), epoch("a", 2),
                   ("a", {"type": "ended", "trial_id": "a", "status": "finished"}))  # fmt: skip
    history = History.of(entries)
    assert history.ended == {"a": {"trial_id": "a", "status": "finished"}}
    assert list(history.open) == ["b"]
    assert history.order_of("a") is None
    assert history.order_of("never begun") is None
    assert history.wall_seconds == 50.0


def test_a_trial_that_goes_on_has_its_epochs_attempts_time_and_failures():
    retry = {"type": "retry", "attempt": 1, "error": {"kind": "worker_lost", "message": "died", "rank": None}}
    entries = told(study("started"), running("a"), epoch("a", 1), ("a", retry), running("a", 2), epoch("a", 2))
    entries += told(study("resumed"), start=100)
    order = History.of(entries).order_of("a")
    assert order["epochs"] == [{"epoch": 1}, {"epoch": 2}]
    assert order["attempts"] == 2
    assert order["started_at"] == 110.0
    assert order["wall_seconds"] == 40.0  # from its first running to its last event; not the time between the runs
    assert [(failure["attempt"], failure["kind"]) for failure in order["failures"]] == [
        (1, "worker_lost"), (2, "interrupted")]  # fmt: skip


def test_time_between_two_runs_of_the_study_counts_for_nothing():
    entries = told(study("started"), running("a"), study("stopped"), study("resumed"), running("a", 2), epoch("a", 1),
                   at=[100.0, 110.0, 120.0, 1000.0, 1010.0, 1025.0])  # fmt: skip
    history = History.of(entries)
    assert history.wall_seconds == 20.0 + 25.0
    trial = history.open["a"]
    trial.cut("interrupted", "again")
    assert trial.wall_seconds == 0.0 + 15.0  # nothing was seen of it in the first run after its start
    assert len(trial.failures) == 2


def test_an_attempt_is_lost_once():
    retry = {"type": "retry", "attempt": 1, "error": {"kind": "worker_lost", "message": "died", "rank": None}}
    history = History.of(told(study("started"), running("a"), ("a", retry), study("resumed")))
    assert [failure["kind"] for failure in history.order_of("a")["failures"]] == ["worker_lost"]
    assert not history.is_news("a", retry)
    assert not history.is_news(*running("a"))
    assert history.is_news(*running("a", 2))


def test_flags_and_world_outlive_a_driver():
    shared = ("a", {"type": "epoch", "epoch": {"epoch": 1}, "flags": ["shared_node"]})
    begun = ("a", {"type": "running", "attempt": 1, "world": {"device": "cuda"}})
    order = History.of(told(study("started"), begun, shared, study("resumed"))).order_of("a")
    assert (order["flags"], order["world"]) == (["shared_node"], {"device": "cuda"})


def test_a_lost_engine_is_a_failure_of_the_trials_that_ran():
    entries = told(study("started"), running("a"), study("engine_lost", message="the books died"))
    assert History.of(entries).order_of("a")["failures"] == [
        {"attempt": 1, "kind": "engine_lost", "message": "the books died", "rank": None}]  # fmt: skip


def test_an_interruption_is_noted_once():
    history = History.of(told(study("started"), running("a"), study("stopped"), study("resumed"), study("resumed")))
    assert len(history.order_of("a")["failures"]) == 1


def test_what_is_news():
    history = History.of(told(study("started"), running("a"), epoch("a", 1)))
    assert not history.is_news(*epoch("a", 1, loss=0.5))  # the first record of an epoch wins
    assert history.is_news(*epoch("a", 2))
    assert history.is_news(*running("b"))
    for entry in told(("a", {"type": "ended", "trial_id": "a"}), start=3):
        history.take(entry)
    assert not history.is_news(*epoch("a", 2))
    assert not history.is_news("a", {"type": "ended"})


def test_suggested_trials_are_known_and_suggested_once():
    _, plan, _ = study_of(SPEC)
    trial = plan.trials[0]
    suggested = (trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": 1})
    history = History()
    assert history.is_news(*suggested)
    for entry in told(study("started"), suggested):
        history.take(entry)
    assert history.suggested == {trial.trial_id: trial}
    assert not history.is_news(*suggested)
    assert history.past == [suggested]
    assert history.order_of(trial.trial_id) is None  # it has not begun


def test_the_state_is_what_the_study_last_said():
    assert History().state == "new"
    assert History.of(told(study("started"))).state == "started"
    assert History.of(told(study("started"), study("stopped"))).state == "stopped"
