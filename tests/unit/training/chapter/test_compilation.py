"""`bench compile`: text made into programs, and what a compiled model pays."""

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


def test_the_text_does_what_the_functions_do() -> None:
    assert fancy_func(1, 2, 3, 4) == run_program(evoke_text()) == run_program(folded_text()) == 10
    table = program_table()
    assert table.column("result") == [10] * 4
    assert table.column("numbers in the compiled code")[2:] == ["1, 2, 3, 4", "10"]  # the compiler has added them up


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
