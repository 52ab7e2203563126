"""Stage 4: what the reports of a broken attempt mean."""

import pytest

from orchestration.failures import RankReport, classify, describe, judge


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class DistBackendError(RuntimeError):
    """As torch names its own."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad shape"), "exception"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "exception"),
        (OutOfMemoryError("whatever"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes"), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9"), "collective"),
        (RuntimeError("Broken pipe"), "collective"),
        (DistBackendError("timeout"), "collective"),
        (ValueError("gloo is a nice word"), "exception"),
        (ConnectionResetError("Connection reset by peer"), "exception"),  # the user's own socket
    ],
)
def test_classify(error, kind):
    assert classify(error) == kind


def test_describe():
    assert describe(ValueError("bad")) == "ValueError: bad"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"
    long = describe(ValueError("x" * 10_000))
    assert len(long) == 2_000
    assert long.endswith("…")


def reports(**said):
    return {
        int(rank[1:]): RankReport(rank=int(rank[1:]), kind=kind, message=message)
        for rank, (kind, message) in said.items()
    }


def verdict(said, cause="reported", attempt=1, failures=2):
    return judge(said, cause=cause, attempt=attempt, failures_per_trial=failures)


def test_an_exception_is_final_with_rank_and_message():
    found = verdict(reports(r1=("exception", "ValueError: bad")))
    assert found.status == "failed"
    assert found.error == {"kind": "exception", "message": "ValueError: bad", "rank": 1}


def test_ranks_that_said_the_same_are_named_together():
    said = reports(
        r2=("exception", "ValueError: bad"), r0=("exception", "ValueError: bad"), r1=("exception", "KeyError: 1")
    )
    assert verdict(said).error == {"kind": "exception", "message": "ValueError: bad (ranks 0, 2)", "rank": 0}


def test_out_of_memory_is_the_reason_whatever_else_was_said():
    said = reports(r0=("collective", "lost"), r1=("exception", "bad"), r2=("out_of_memory", "no memory"))
    found = verdict(said)
    assert (found.status, found.error["kind"], found.error["rank"]) == ("out_of_memory", "out_of_memory", 2)


def test_an_exception_that_a_stall_made_visible_is_final():
    assert verdict(reports(r0=("exception", "bad")), cause="stalled").status == "failed"


@pytest.mark.parametrize("cause", ["worker_lost", "stalled", "reported"])
def test_a_lost_attempt_is_tried_again_within_the_budget(cause):
    said = reports(r0=("collective", "Connection closed by peer"))
    statuses = [verdict(said, cause, attempt, failures=2).status for attempt in (1, 2, 3)]
    assert statuses == ["retry", "retry", "failed"]
    assert verdict(said, cause, 1, failures=0).status == "failed"
    error = verdict(said, cause, 3).error
    assert error["kind"] == ("stalled" if cause == "stalled" else "worker_lost")
    assert error["rank"] is None
    assert "attempt 3" in error["message"]
    assert "rank 0: Connection closed by peer" in error["message"]


def test_a_time_limit_is_final():
    found = verdict({}, "time_limit", attempt=1, failures=9)
    assert (found.status, found.error["kind"]) == ("failed", "time_limit")
    assert "limits.trial_minutes" in found.error["message"]
