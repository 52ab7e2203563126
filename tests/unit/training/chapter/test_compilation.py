"""`bench compile`: text made into programs, models compiled for real, and what tracing makes of Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalestudy.training.chapter.compilation import (
    CACHE_VARIABLE,
    Compiled,
    evoke_text,
    fancy_func,
    folded_text,
    fresh_cache,
    program_table,
    run_program,
)
from scalestudy.training.chapter.tracing import CASES, Outcome, Trace, tracing_table


def test_the_text_does_what_the_functions_do() -> None:
    assert fancy_func(1, 2, 3, 4) == run_program(evoke_text()) == run_program(folded_text()) == 10
    table = program_table()
    assert table.column("result") == [10] * 4
    assert table.column("numbers in the compiled code")[2:] == ["1, 2, 3, 4", "10"]  # the compiler has added them up


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


def test_compiling_pays_after_what_it_took_is_saved() -> None:
    assert Compiled(8, 6.0, 0.003, 0.001, 0, 0, 0.0).calls_to_pay == pytest.approx(3000)  # 6 ÷ 0.002
    assert Compiled(8, 6.0, 0.001, 0.001, 0, 0, 0.0).calls_to_pay is None


def test_the_cache_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "somewhere"):
        monkeypatch.delenv(CACHE_VARIABLE, raising=False)
        if before:
            monkeypatch.setenv(CACHE_VARIABLE, before)
        with fresh_cache():
            assert list(Path(os.environ[CACHE_VARIABLE]).iterdir()) == []
        assert os.environ.get(CACHE_VARIABLE) == before
