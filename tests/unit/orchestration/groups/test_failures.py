"""What broke an attempt, and what follows from it; the kernel's count of kills."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.groups import failures
from scalestudy.orchestration.groups.events import Failure, KillCount, TrialError
from scalestudy.orchestration.groups.failures import (
    CAUSE_TEXT,
    KERNEL_KILL,
    OUTSIDE,
    UNCOUNTED,
    RankReport,
    classify,
    count_files,
    describe,
    judge,
    killed_by_kernel,
    kills_in,
    kills_so_far,
    over_budget,
)
from scalestudy.training.exceptions import InputError, StoreError


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class DistBackendError(RuntimeError):
    """As torch names its own."""


DEVICE_LOST = (
    "unspecified launch failure",  # Xid 13, 31, 43
    "uncorrectable ECC error encountered",  # Xid 48, 94, 95
    "uncorrectable NVLink error detected during the execution",  # Xid 74
    "unknown error",  # Xid 79, the GPU has fallen off the bus
    "the launch timed out and was terminated",
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "hardware stack error",
    "invalid program counter",
    "Invalid access of peer GPU memory over nvlink or a hardware error",
    "no CUDA-capable device is detected",
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad shape"), "exception"),
        (StoreError("checkpoints: s3://bucket: no answer"), "storage"),
        (UnreachableError("storage: s3://bucket: no answer", "check the network"), "storage"),
        (RequestError("storage: s4://bucket: is no address", "give a folder"), "exception"),
        (InputError("checkpoints: of another training"), "exception"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "exception"),
        (OutOfMemoryError("whatever"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes"), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9"), "collective"),
        (RuntimeError("Broken pipe"), "collective"),
        (DistBackendError("timeout"), "collective"),
        (ValueError("gloo is a nice word"), "exception"),
        (DistBackendError("NCCL error: remote process exited or there was a network error"), "collective"),
        (RuntimeError("CUDA error: device-side assert triggered"), "exception"),  # a check in the user's own code
        (RuntimeError("HTTP 500: unknown error"), "exception"),
        (ValueError("CUDA error: unknown error"), "exception"),
        *[
            (RuntimeError(f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported"), "device_lost")
            for text in DEVICE_LOST
        ],
        (RuntimeError("CUDA driver error: unspecified launch failure"), "device_lost"),
        (
            DistBackendError("NCCL error: unhandled cuda error. Cuda failure 719 'unspecified launch failure'"),
            "device_lost",
        ),
        (RuntimeError("NVML: GPU is lost"), "device_lost"),
        (ConnectionResetError("Connection reset by peer"), "exception"),  # the user's own socket
    ],
)
def test_classify(error, kind):
    assert classify(error) == kind


@pytest.mark.parametrize(
    ("context", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be", "device_lost"),
        ("CUDA error: device-side assert triggered", "exception"),
        (None, "exception"),  # the GPU is well
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb)`",
        "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_a_library_s_error_is_of_a_lost_gpu_if_cuda_says_so(text, context, kind, monkeypatch):
    asked = []

    def synchronize():
        asked.append(text)
        if context is not None:
            raise RuntimeError(context)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 10))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert (classify(RuntimeError(text)), asked) == ("exception", []), "no CUDA in this process"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert (classify(RuntimeError(text)), asked) == (kind, [text])
    classify(RuntimeError("shapes do not fit"))
    assert asked == [text], "nothing else makes it wait for the GPU"


@pytest.mark.parametrize("what", ["DEVICE", "HOST"])
def test_an_allocation_of_cudnn_fails_for_want_of_memory_or_of_a_gpu(what, monkeypatch):
    contexts = iter(["CUDA error: an illegal memory access was encountered"] * 2 + [None] * 2)

    def synchronize():
        if context := next(contexts):
            raise RuntimeError(context)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    error = RuntimeError(f"cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_{what}_ALLOCATION_FAILED")
    assert [classify(error), classify(error)] == ["device_lost", "out_of_memory"]


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


def earlier(**counts):
    """Lost attempts, so many of each kind."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    return [Failure(attempt=number, kind=kind, message="m") for number, kind in enumerate(kinds, start=1)]


def verdict(said, cause="reported", allowed=2, logs="", **lost):
    before = earlier(**lost)
    return judge(said, cause=cause, attempt=len(before) + 1, earlier=before, failures_per_trial=allowed, logs=logs)


def test_an_exception_is_final_with_rank_and_message():
    found = verdict(reports(r1=("exception", "ValueError: bad")))
    assert found.status == "failed"
    assert found.error == TrialError(kind="exception", message="ValueError: bad", rank=1)


def test_ranks_that_said_the_same_are_named_together():
    said = reports(
        r2=("exception", "ValueError: bad"), r0=("exception", "ValueError: bad"), r1=("exception", "KeyError: 1")
    )
    assert verdict(said).error == TrialError(kind="exception", message="ValueError: bad (ranks 0, 2)", rank=0)


def test_the_traceback_is_that_of_the_rank_whose_error_it_is():
    said = {
        rank: RankReport(rank=rank, kind="exception", message="bad", traceback=f"Traceback of {rank}")
        for rank in (2, 1)
    }
    assert verdict(said).error.traceback == "Traceback of 1"
    assert verdict(reports(r0=("exception", "bad"))).error.traceback == ""


def test_out_of_memory_is_the_reason_whatever_else_was_said():
    said = reports(r0=("collective", "lost"), r1=("exception", "bad"), r2=("out_of_memory", "no memory"))
    found = verdict(said)
    assert (found.status, found.error.kind, found.error.rank) == ("out_of_memory", "out_of_memory", 2)


def test_an_exception_that_a_stall_made_visible_is_final():
    assert verdict(reports(r0=("exception", "bad")), cause="stalled").status == "failed"


LOST = ["worker_lost", "stalled", "controller_lost", "tune_trial"]


@pytest.mark.parametrize("cause", [*LOST, "reported"])
def test_a_lost_attempt_is_tried_again_within_the_budget_of_its_cause(cause):
    said = reports(r0=("collective", "Connection closed by peer"))
    kind = "worker_lost" if cause == "reported" else cause
    others = {other: 9 for other in LOST if other != kind}
    statuses = [verdict(said, cause, allowed=2, **{kind: lost}, **others).status for lost in range(3)]
    assert statuses == ["retry", "retry", "failed"]
    assert verdict(said, cause, allowed=0).status == "failed"
    found = verdict(said, cause, **{kind: 2})
    assert (found.error.kind, found.error.rank) == (kind, None)
    assert CAUSE_TEXT[kind] in found.error.message
    assert "attempt 3" in found.error.message
    assert "rank 0: Connection closed by peer" in found.error.message
    assert found.failure == Failure(attempt=3, kind=kind, message=found.error.message)


def test_a_time_limit_is_final_and_no_lost_attempt():
    found = verdict({}, "time_limit", allowed=9)
    assert (found.status, found.error.kind, found.failure) == ("failed", "time_limit", None)
    assert "limits.trial_minutes" in found.error.message


@pytest.mark.parametrize("kind", sorted(UNCOUNTED))
def test_what_is_nobodys_fault_is_on_no_budget(kind):
    lost = [Failure(attempt=number, kind=kind, message="x") for number in range(1, 6)]
    assert over_budget(lost, 0) is None


@pytest.mark.parametrize(("said", "cause"), [({}, "node_lost"), (reports(r1=("storage", "no answer")), "reported")])
def test_what_lies_outside_a_trial_never_fails_it(said, cause):
    found = verdict(said, cause, allowed=0, node_lost=9, storage=9)
    assert (found.status, found.error.kind) == ("retry", "storage" if said else "node_lost")
    assert found.error.kind in OUTSIDE


def test_a_gpu_that_failed_is_a_cause_of_its_own_with_a_budget():
    said = reports(r0=("collective", "NCCL error"), r1=("device_lost", "CUDA error: unspecified launch failure"))
    statuses = [verdict(said, allowed=2, worker_lost=9, device_lost=lost).status for lost in range(3)]
    assert statuses == ["retry", "retry", "failed"]
    found = verdict(said)
    assert found.error.kind == "device_lost"
    assert found.error.message.startswith(
        "the GPU of a worker failed (attempt 1); rank 0: NCCL error; rank 1: CUDA error"
    )
    assert verdict(reports(r0=("device_lost", "m"), r1=("out_of_memory", "none left"))).status == "out_of_memory"


def test_an_attempt_that_left_a_node_is_followed_by_another_and_says_how_far_it_was():
    found = verdict(
        reports(r0=("left", "3 epochs and 2 steps of the next are made")), "preempted", allowed=0, preempted=9
    )
    assert (found.status, found.error.kind) == ("retry", "preempted")
    assert found.failure is not None
    assert found.failure.message.endswith("(attempt 10); rank 0: 3 epochs and 2 steps of the next are made")


def test_what_used_workers_give_back_is_told_in_their_words_alone():
    found = judge({}, cause="used_workers", attempt=1, earlier=[], failures_per_trial=0, logs="x", told="it was kept")
    assert (found.status, found.error.kind, found.error.message) == ("retry", "used_workers", "it was kept")


def test_a_message_ends_with_the_place_of_the_logs():
    assert verdict({}, "stalled", logs="x/driver.log").error.message.endswith("; logs: x/driver.log")
    assert verdict({}, "stalled").error.message.endswith("(attempt 1)")
    said = {1: RankReport(rank=1, kind="exception", message="ValueError: bad", log="x/t-rank-1.log")}
    assert verdict(said, logs="x/driver.log").error.message == "ValueError: bad; logs: x/t-rank-1.log"


@given(st.lists(st.sampled_from(LOST)), st.integers(0, 3))
def test_a_budget_is_spent_by_one_cause_alone(kinds, allowed):
    lost = [Failure(attempt=number, kind=kind, message="m") for number, kind in enumerate(kinds, start=1)]
    spent = over_budget(lost, allowed)
    assert (spent is not None) == any(kinds.count(kind) > allowed for kind in kinds)
    assert spent is None or kinds.count(spent.kind) > allowed


# --- the kernel's kills -------------------------------------------------------------------------------------------

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("text", "kills"), [(V1, 3), (V2, 3), ("oom 4\n", None), ("oom_kill many\n", None), ("", None)]
)
def test_the_count_is_read_from_both_versions(tmp_path, text, kills):
    (tmp_path / "events").write_text(text)
    assert kills_in(tmp_path / "events") == kills


@pytest.mark.parametrize(
    ("membership", "there"),
    [
        ("4:memory:/jobs/1\n0::/\n", ["memory/jobs/1/memory.oom_control", "memory/memory.oom_control"]),
        ("4:cpu,memory:/jobs/1\n", ["memory/jobs/1/memory.oom_control"]),
        ("0::/jobs/1\n", ["jobs/1/memory.events", "memory.events"]),
        ("0::/of/the/host\n", ["memory.events"]),  # in a container, which sees its own group as the root
        ("4:memory:/of/the/host\n", ["memory/memory.oom_control"]),
    ],
)
def test_the_closest_file_is_taken(tmp_path, monkeypatch, membership, there):
    monkeypatch.setattr(failures, "CGROUPS", tmp_path)
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(V2)
    (tmp_path / "self").write_text(membership)
    readable = [file for file in count_files(tmp_path / "self") if kills_in(file) is not None]
    assert readable[0] == tmp_path / there[0]


def test_this_process_has_a_count():
    counted = kills_so_far("n1")
    assert counted.node == "n1"
    assert counted.kills >= 0


def test_a_count_that_has_risen_is_evidence(tmp_path):
    (tmp_path / "events").write_text(V2)
    counts = {
        rank: KillCount(node="n1", file=str(tmp_path / "events"), kills=kills) for rank, kills in enumerate((2, 3))
    }
    assert killed_by_kernel(counts, here="n1") == {0: KERNEL_KILL}
    (tmp_path / "events").unlink()
    assert killed_by_kernel(counts, here="n1") == {}
