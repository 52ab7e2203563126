"""What tracing makes of Python."""

from __future__ import annotations

import pytest

from scalestudy.training.chapter.tracing import CASES, Outcome, Trace, tracing_table


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return tracing_table()[1]


@pytest.mark.parametrize(
    ("case", "breaks"),
    [
        ("print", 1),
        (".item()", 1),
        ("if x.sum() > 0", 1),
        ("for: rounds by data", 1),
        ("in-place: x += 1", 0),
        ("if x.shape[0] > 2", 0),
        ("for: 3 rounds", 0),
    ],
)
def test_graph_breaks(traces: dict[str, Trace], case: str, breaks: int) -> None:
    assert traces[case].breaks == breaks
    assert traces[case].graphs == breaks + 1


def test_a_compiled_function_does_what_the_eager_one_does(traces: dict[str, Trace]) -> None:
    assert list(traces) == list(CASES)
    assert {trace.compiled.text for trace in traces.values()} == {"same as eager"}


def test_what_one_graph_can_not_hold_is_refused(traces: dict[str, Trace]) -> None:
    refused = {name for name, trace in traces.items() if trace.full_graph.error}
    assert refused == {"print", "if x.sum() > 0", "for: rounds by data"}
    assert all("\n" not in (trace.full_graph.error or "") for trace in traces.values())
    assert "Data-dependent branching" in traces["if x.sum() > 0"].full_graph.text


def test_an_exported_program_has_no_print_and_no_branch(traces: dict[str, Trace]) -> None:
    assert traces["print"].compiled.printed == 1
    assert traces["print"].exported == Outcome(same=True, printed=0, expected=1)
    assert traces["if x.sum() > 0"].exported.error
    assert traces["in-place: x += 1"].exported.text == "same as eager"
