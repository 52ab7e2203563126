"""Stage 4: what is known of a trial while it runs, and the record that it ends as."""

import json

from hypothesis import given
from hypothesis import strategies as st

from scalestudy.orchestration.groups.trial_record import Outcome, error_of, utc_text, worker_flags

END = {"status": "finished", "attempts": 1, "started_at": 100.0, "now": 110.5, "error": None}


def worker(rank, host="h", threads=1, cores=2, device="cpu", node=None):
    return {
        "rank": rank, "node": node or host, "host": host, "pid": 7, "cores": cores, "device": device, "threads": threads
    }  # fmt: skip


def epoch(number, seconds=2.0, rate=10.0):
    return {"epoch": number, "train_seconds": seconds, "samples_per_second": rate}


def test_utc_text():
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert utc_text(1_700_000_000.1234) == "2023-11-14T22:13:20.123Z"


def test_error_of():
    assert error_of("group_start", "why") == {"kind": "group_start", "message": "why", "rank": None}


def test_workers_are_oversubscribed_when_a_host_has_fewer_cores_than_threads():
    assert worker_flags([worker(0), worker(1)]) == set()
    assert worker_flags([worker(0), worker(1, threads=2)]) == {"oversubscribed"}
    assert worker_flags([worker(0), worker(1), worker(2, host="other")]) == set()
    assert worker_flags([worker(rank, device="cuda:0", cores=1) for rank in range(3)]) == set()


def test_two_raylets_on_one_machine_share_its_cores():
    assert worker_flags([worker(0, node="n1", threads=2), worker(1, node="n2")]) == {"oversubscribed"}


def test_the_record_of_a_trial():
    outcome = Outcome()
    outcome.granted(101.0, [worker(0), worker(1)], {"oversubscribed"})
    outcome.training_started(101.25, 100.0, resumed=False)
    outcome.training_started(105.0, 100.0, resumed=True)  # a later attempt
    assert outcome.new_epoch(epoch(2))
    assert outcome.new_epoch(epoch(1))
    outcome.training_ended({"status": "diverged", "lost_seconds": 0.5})
    record = outcome.to_dict(**END)
    assert record == {
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
        "epochs": [epoch(1), epoch(2)],
        "error": None,
    }
    json.dumps(record, allow_nan=False)


def test_what_training_picked_by_itself_is_in_the_record():
    outcome = Outcome()
    outcome.training_ended({"status": "finished", "lost_seconds": 0.5, "details": {"fused": True}})
    record = outcome.to_dict(**END)
    assert record["details"] == {"fused": True}
    assert list(record)[list(record).index("flags") + 1] == "details"
    assert record["train_seconds"] == 0.0  # no epoch was lost


def test_a_trial_that_never_got_workers_has_a_record_too():
    record = Outcome().to_dict(**{**END, "started_at": None, "error": error_of("group_start", "no")})
    assert record["wall_seconds"] == 0
    assert record["startup_seconds"] is None
    assert record["world"] == {"device": None, "nodes": 0, "workers": []}


def test_a_rate_that_no_epoch_has_is_flagged():
    outcome = Outcome()
    outcome.new_epoch(epoch(1, rate=None))
    assert outcome.to_dict(**END)["flags"] == ["warm_up_included"]
    outcome.new_epoch(epoch(2))
    assert outcome.to_dict(**END)["flags"] == []


def test_devices_and_nodes_of_the_world():
    outcome = Outcome()
    outcome.granted(0.0, [worker(0, "a", device="cuda:0"), worker(1, "b", device="cuda:0")], set())
    assert (outcome.world["device"], outcome.world["nodes"]) == ("cuda", 2)


def test_time_counts_from_the_present_attempt():
    outcome = Outcome()
    assert not outcome.over_time(1e9, 60)
    outcome.granted(100.0, [], set())
    assert not outcome.over_time(160.0, 60)
    assert outcome.over_time(160.1, 60)
    outcome.granted(150.0, [], set())
    assert not outcome.over_time(160.1, 60)


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 100))))
def test_the_first_record_of_an_epoch_wins(told):
    outcome, first = Outcome(), {}
    for number, seconds in told:
        kept = outcome.new_epoch(epoch(number, seconds))
        assert kept == (number not in first)
        first.setdefault(number, seconds)
    record = outcome.to_dict(**END)
    assert [(e["epoch"], e["train_seconds"]) for e in record["epochs"]] == sorted(first.items())
    assert abs(record["train_seconds"] - sum(first.values())) < 1e-5


def test_what_earlier_engines_have_left():
    failure = {"attempt": 1, "kind": "node_lost", "message": "m", "rank": None}
    history = {
        "epochs": [epoch(1)], "started_at": 50.0, "wall_seconds": 30.0, "startup_seconds": 3.0, "flags": ["resumed"],
        "failures": [failure], "world": {"device": "cpu", "nodes": 1, "workers": []}, "attempts": 1,
    }  # fmt: skip
    outcome = Outcome.of_history(history)
    assert not outcome.new_epoch(epoch(1, seconds=9.0))
    outcome.training_started(101.0, 100.0, resumed=False)
    record = outcome.to_dict(**{**END, "attempts": 2})
    assert record["started_at"] == "1970-01-01T00:00:50.000Z"
    assert record["wall_seconds"] == 40.5  # 30 before, and 10.5 since 100
    assert (record["startup_seconds"], record["train_seconds"]) == (3.0, 2.0)
    assert (record["flags"], record["failures"]) == (["resumed"], [failure])
    assert list(record)[list(record).index("flags") + 1] == "failures"
    json.dumps(record, allow_nan=False)


def test_an_empty_history_changes_nothing():
    assert Outcome.of_history({}) == Outcome()
    assert Outcome.of_history(dict.fromkeys(["epochs", "flags", "failures", "world", "wall_seconds"])) == Outcome()


def test_what_comes_after_the_rung_is_forgotten():
    outcome = Outcome()
    for number in (1, 2, 3):
        outcome.new_epoch(epoch(number))
    outcome.training_ended({"status": "diverged", "lost_seconds": 0.5})
    outcome.forget_after(2)
    record = outcome.to_dict(**END)
    assert [each["epoch"] for each in record["epochs"]] == [1, 2]
    assert record["train_seconds"] == 4.0
