"""`bench parallel`: graphs of operations in turn, on threads and on streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.training.chapter.measuring import intra_op_threads
from scalestudy.training.chapter.parallelism import (
    DEPENDENT,
    INDEPENDENT,
    Graph,
    Work,
    longest_chain,
    rounds,
    run,
    run_in_turn,
    run_on_streams,
    run_on_threads,
)

CPU = torch.device("cpu")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to eight operations, each taking results of any before it."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 8)))]
    return {
        name: tuple(sorted(draw(st.sets(st.sampled_from(names[:number]))))) if number else ()
        for number, name in enumerate(names)
    }


def test_rounds_and_chains() -> None:
    assert (longest_chain(INDEPENDENT), rounds(INDEPENDENT, 1), rounds(INDEPENDENT, 2), rounds(INDEPENDENT, 16)) == (
        *(1, 10, 5),
        1,
    )
    assert (longest_chain(DEPENDENT), rounds(DEPENDENT, 1), rounds(DEPENDENT, 2)) == (3, 7, 4)  # ab cd ef g


@given(graphs(), st.integers(1, 5))
def test_no_number_of_workers_beats_the_chain(graph: Graph, workers: int) -> None:
    taken = rounds(graph, workers)
    assert max(longest_chain(graph), -(-len(graph) // workers)) <= taken <= len(graph)
    assert rounds(graph, len(graph)) == longest_chain(graph)


@pytest.fixture(scope="module")
def pools() -> list[ThreadPoolExecutor]:
    return [ThreadPoolExecutor(workers) for workers in (1, 3)]


@settings(max_examples=30)
@given(graph=graphs())
def test_every_way_gives_the_same(pools: list[ThreadPoolExecutor], graph: Graph) -> None:
    operations = Work(graph, size=4, products=2).operations(CPU)
    with intra_op_threads(1):
        expected = run_in_turn(graph, operations)
        others = [run_on_threads(graph, pool, operations) for pool in pools]
        others.append(run_on_streams(graph, CPU, operations))
    for found in others:
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in graph)


def test_operations_take_what_they_need() -> None:
    results = run_in_turn(DEPENDENT, Work(DEPENDENT, size=4, products=0).operations(CPU))
    torch.testing.assert_close(results["g"] - results["e"] - results["f"], Work(DEPENDENT, 4, 0).operations(CPU)["g"]())


def test_three_graphs_are_run() -> None:
    found = run(CPU, quick=True)
    (table,) = found.tables
    assert table.column("operations") == [10, 7, 10]
    assert table.column("same results") == ["yes"] * 3
    assert found.metrics["independent_gain_ratio"] == pytest.approx(
        found.metrics["independent_in_turn_seconds"] / found.metrics["independent_together_seconds"]
    )
