"""`bench async`: who waits, and an asynchronous sum."""

from __future__ import annotations

import pytest
import torch

from scalestudy.training.chapter.asynchronous import did_wait, reduce_asynchronously, run
from scalestudy.training.chapter.measuring import Experiment
from tests.support.gloo import GlooPool

CPU = torch.device("cpu")


def test_spans_tell_who_waited() -> None:
    assert did_wait(queued=9.0, called=0.1, left=0.1) == "nothing to wait for"
    assert did_wait(queued=0.1, called=9.0, left=0.1) == "yes"
    assert did_wait(queued=0.1, called=0.1, left=9.0) == "no"


def test_an_asynchronous_sum_is_right(ranks: GlooPool) -> None:
    for spans in ranks.run(2, reduce_asynchronously, 1000, 3):
        assert set(spans) == {"queued", "read", "waited", "finished"}
        assert spans["finished"] >= max(spans["queued"], spans["waited"]) > 0


@pytest.fixture(scope="module")
def found() -> Experiment:
    return run(CPU, quick=True)


@pytest.mark.slow
def test_every_part_is_measured(found: Experiment) -> None:
    titles = " / ".join(table.title for table in found.tables)
    for part in ("Queued and finished", "Loops over 100", "Costs", "Which calls synchronise", "collectives", "Memory"):
        assert part in titles
    assert all(value > 0 for name, value in found.metrics.items() if name != "t3_answer_seconds")


def test_eager_operations_on_a_cpu_leave_nothing_to_wait_for(found: Experiment) -> None:
    finished, _, _, calls, *_ = found.tables
    rows = {row[0]: row for row in finished.rows}
    assert rows["eager on the CPU"][3] > 0.5  # queued ÷ finished: handing over is all there is
    assert rows["a queue to one thread, CPU"][3] < rows["eager on the CPU"][3]
    assert "print(x[0, 0])" in calls.column("call on the result")
    assert set(calls.column("waits?")) == {"nothing to wait for"}


def test_the_condition_is_explained_in_words(found: Experiment) -> None:
    assert any("only where 100·t2 > 99·t1" in note for note in found.notes)
