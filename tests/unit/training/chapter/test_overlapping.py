"""`bench overlap`: two things at once do what each does alone."""

from __future__ import annotations

import pytest
import torch

from scalestudy.training.chapter.overlapping import (
    ORDERS,
    QUICK,
    Overlap,
    compute_and_reduce,
    compute_by_turns,
    copies_by_stream,
    copies_by_thread,
    run,
)
from tests.support.gloo import GlooPool

CPU = torch.device("cpu")


def test_the_hidden_share() -> None:
    """(in turn - at once) ÷ the shorter: (5 - 3) ÷ 2, (5 - 5) ÷ 2, (5 - 6) ÷ 2."""
    for at_once, share in ((3.0, 1.0), (5.0, 0.0), (6.0, -0.5)):
        seconds = dict(zip(ORDERS, (3.0, 2.0, 5.0, at_once), strict=True))
        assert Overlap("what", "word", seconds).hidden == share


@pytest.mark.parametrize("measure", [compute_by_turns, compute_and_reduce])
def test_two_ranks_at_once(ranks: GlooPool, measure: object) -> None:
    """They raise if a sum or a product comes out otherwise."""
    for seconds in ranks.run(2, measure, QUICK):
        assert list(seconds) == list(ORDERS)
        assert min(seconds.values()) > 0


@pytest.mark.parametrize("found", [lambda: copies_by_thread(QUICK), lambda: copies_by_stream(CPU, QUICK)])
def test_copies_arrive(found: object) -> None:
    """By a thread, and by the lines that CUDA's side stream runs; both raise if the copy is not what was copied."""
    overlap = found()
    assert overlap.moved_bytes == QUICK.copies * QUICK.copied * 4
    assert list(overlap.seconds) == list(ORDERS)


@pytest.mark.slow
def test_all_three_are_measured() -> None:
    found = run(CPU, quick=True)
    (table,) = found.tables
    assert len(table.rows) == 3
    assert {f"{word}_hidden_ratio" for word in ("two_devices", "copies", "communication")} <= set(found.metrics)
    assert "No GPU is used" in found.notes[0]
