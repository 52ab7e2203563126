"""docs/chapter: each script runs on this machine, and prints what its page says of it. Sizes are small."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import re
import subprocess
import sys
from functools import cache

import pytest
import torch

from tests.support.studies import REPOSITORY

CHAPTER = REPOSITORY / "docs" / "chapter"
SCRIPTS = sorted(file.stem for file in CHAPTER.glob("*.py") if file.stem != "lesson")
OPTIONS = ("--device", "cpu", "--quick")


@cache
def printed(name: str) -> str:
    """What the script prints. It runs once, in this process, which has imported PyTorch: an import costs seconds."""
    out, errors, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(True):
        patch.syspath_prepend(str(CHAPTER))
        patch.setattr(sys, "argv", [f"{name}.py", *OPTIONS])
        patch.setenv("KINETO_LOG_LEVEL", "99")  # what scripts set goes with the context
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                importlib.import_module(name).main()
        finally:
            torch.set_num_threads(threads)
            logging.disable(logging.NOTSET)
    assert errors.getvalue() == ""
    return out.getvalue()


def rows(name: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first heading is this one."""
    lines = iter(printed(name).splitlines())
    next(line for line in lines if line.startswith(f"{heading}  "))
    found = []
    for line in lines:
        cells = re.split(r" {2,}", line)
        if len(cells) == 1:
            break
        found.append(cells)
    return found


def numbers(cells: list[str]) -> list[float]:
    return [float(cell) for cell in cells]


def test_a_script_is_a_command_of_its_own() -> None:
    command = [sys.executable, "docs/chapter/queue_depth.py", *OPTIONS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.partition("time (ms)")[0] == printed("queue_depth").partition("time (ms)")[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_its_question_and_tells_where_it_runs(name: str) -> None:
    question, where, *_ = printed(name).splitlines()
    assert question.endswith("?")
    assert re.fullmatch(r"on CPU, \d+ cores, \d+ threads, torch \S+, small sizes \(--quick\): .*", where)


def test_on_a_cpu_an_operation_has_ended_when_its_call_returns_and_a_thread_s_has_not() -> None:
    _numpy, eager, thread, _reduced = rows("asynchronous", "how")
    assert eager[0] == "eager on cpu"
    assert float(eager[-1]) > 0.9
    assert float(thread[-1]) < 0.5
    assert {answer for _, answer in rows("asynchronous", "call")} == {"there is nothing to wait for"}


def test_two_ranks_sum_asynchronously() -> None:
    queued, finished, _ = numbers(rows("asynchronous", "how")[-1][1:])
    assert 0 < queued < finished
    assert "the sum is right\n" in printed("asynchronous")


def test_one_wait_at_the_end_costs_less_than_one_after_each_operation() -> None:
    for each, once in zip(*[iter(rows("asynchronous", "operation"))] * 2, strict=True):
        assert (each[1], once[1]) == ("after each", "once")
        assert float(each[2]) > float(once[2])


def test_a_front_end_that_waits_holds_no_more_batches_than_its_lead() -> None:
    each, two, once = (float(peak) for _, _, peak in rows("queue_depth", "the front end waits"))
    assert each == 1  # MiB, of one batch
    assert 1 <= two <= 3  # the one that is made, and two before it
    assert 1 <= once <= 12


def test_a_program_as_text_is_slowest_where_nothing_of_it_is_done_before() -> None:
    """A hundred times; what is left of the others is too short to compare on a busy machine."""
    times, results = zip(*(cells[1:] for cells in rows("compile", "program")), strict=True)
    assert set(results) == {"10"}
    first, *others = numbers([*times])
    assert first > max(others)


def test_a_traced_model_gives_the_same() -> None:
    ((model, *_, difference),) = rows("compile", "model")
    assert model == "lenet"
    assert float(difference) < 1e-5


def test_what_depends_on_data_breaks_the_graph_and_what_depends_on_shapes_does_not() -> None:
    found = {name: (breaks, *ways) for name, breaks, *ways in rows("tracing", "in the function")}
    assert [name for name, (breaks, *_) in found.items() if breaks == "1"] == [
        *("print", ".item()", "if x.sum() > 0", "for: rounds by data")
    ]
    assert {compiled for _, compiled, *_ in found.values()} == {"same"}
    for name in ("print", "if x.sum() > 0", "for: rounds by data"):
        assert found[name][2].startswith("refused"), name  # fullgraph=True
    assert found["print"][3] == "same result, prints nothing"
    assert found["if x.shape[0] > 2"] == found["for: 3 rounds"] == ("0", "same", "same", "same")


def test_the_exported_model_is_the_same_one_elsewhere() -> None:
    compared = rows("export", "examples")
    assert [examples for examples, *_ in compared] == ["2", "5", "64"]  # traced with 2
    assert all(float(difference) < 1e-6 and same == "yes" for _, difference, same in compared)
    assert "loaded 0 modules of this project" in printed("export")


def test_the_exported_program_is_lenet_s() -> None:
    assert [operation.split(".")[1] for _, operation, _ in rows("export", "name")] == [
        *("conv2d", "relu", "avg_pool2d") * 2,
        *("flatten", "linear", "relu", "linear"),
    ]
    assert "504 are parameters" in printed("export")  # KiB of 129,068 numbers
    assert "both run the same operations: yes" in printed("export")


def test_operations_that_run_together_give_the_same_results() -> None:
    found = rows("parallel", "work")
    assert [cells[-1] for cells in found] == ["yes"] * 3
    for _, in_turn, _, together, gain, _, _ in found:
        assert float(gain) == pytest.approx(float(in_turn) / float(together), rel=2e-3)
    cores = int(re.search(r"on (\d+) threads of one core", printed("parallel"))[1])
    assert float(found[0][-2]) == pytest.approx(10 / -(-10 // cores), rel=1e-3)  # ten equal operations in rounds


def test_the_hidden_share_is_what_both_at_once_save_of_the_shorter_one() -> None:
    found = rows("overlap", "two things")
    assert len(found) == 3
    for _, *cells in found:
        first, second, in_turn, at_once, hidden = numbers(cells)
        rounding = 1e-3 * (in_turn + at_once) / min(first, second)  # of four digits
        assert hidden == pytest.approx((in_turn - at_once) / min(first, second), rel=1e-3, abs=rounding)
    assert "products and sums are right\n" in printed("overlap")


def test_processes_sum_and_their_speeds_follow_from_message_and_time() -> None:
    found = rows("allreduce", "backend")
    assert [cells[:3] for cells in found] == [["gloo", "2", "1"], ["gloo", "2", "64"]]  # ranks, KiB
    for _, *cells in found:
        _, size, taken, algorithm, bus = numbers(cells)
        assert algorithm == pytest.approx(size * 1024 / (taken / 1e3) / 1e6, rel=1e-3, abs=0.06)  # MB/s
        assert bus == algorithm  # 2(k - 1)/k = 1 of two ranks
