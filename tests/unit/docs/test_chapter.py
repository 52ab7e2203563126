"""docs/chapter: its index, and what its scripts compute; tests/long/test_chapter.py runs them."""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker
from tests.support.pages import page_names, page_text
from tests.support.studies import REPOSITORY

CHAPTER = REPOSITORY / "docs" / "chapter"
SCRIPTS = sorted(file.stem for file in CHAPTER.glob("*.py") if file.stem != "lesson")
CPU = torch.device("cpu")


def script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A script, or what the scripts share, as a module."""
    monkeypatch.syspath_prepend(str(CHAPTER))
    return importlib.import_module(name)


def test_the_index_gives_every_script_as_a_command_and_pages_name_no_other() -> None:
    commands = set(re.findall(r"`python docs/chapter/(\w+)\.py", page_text("docs/chapter/index.md")))
    assert commands == {*SCRIPTS}
    named = {name for page in page_names() for name in re.findall(r"docs/chapter/([a-z_]+)\.py", page_text(page))}
    assert named <= commands


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["overlap.py", "--device", "cuda"])
    with pytest.raises(SystemExit, match="2"):
        script(monkeypatch, "lesson").begin("What is hidden?")
    assert "there is no CUDA device here; choose cpu" in capsys.readouterr().err


def test_the_rebinding_allreduce_leaves_replicas_apart_and_the_cure_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = script(monkeypatch, "allreduce")
    assert [chapter.step(chapter.rebinding_allreduce, [CPU] * count) for count in (2, 4)] == [
        [[3, 3], [3, 2], "no"],
        [[10, 10, 10, 10], [10, 2, 3, 4], "no"],
    ]
    assert [chapter.step(chapter.allreduce, [CPU] * count) for count in (2, 4)] == [
        [[3, 3], [3, 3], "yes"],
        [[10, 10, 10, 10], [10, 10, 10, 10], "yes"],
    ]


def test_the_book_s_functions_give_what_the_book_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = script(monkeypatch, "allreduce")
    data = [torch.ones(1, 2), torch.full((1, 2), 2.0)]
    chapter.allreduce(data)
    assert [tensor.tolist() for tensor in data] == [[[3.0, 3.0]]] * 2
    parts = chapter.split_batch(torch.arange(20).reshape(4, 5), torch.arange(4), [CPU] * 2)
    assert [labels.tolist() for _, labels in parts] == [[0, 1], [2, 3]]
    assert parts[1][0].tolist() == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


def test_bandwidths_are_those_of_nccl_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    bandwidths = script(monkeypatch, "allreduce").bandwidths
    assert bandwidths(8_000_000, 0.004, 2) == (2e9, 2e9)  # 8 MB in 4 ms; 2 · (2 - 1) ÷ 2 = 1
    assert bandwidths(8_000_000, 0.004, 4) == (2e9, 3e9)  # 2 · (4 - 1) ÷ 4 = 1.5


def test_a_wrong_sum_of_processes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    with pytest.raises(RuntimeError, match=r"all_reduce of 1 … 2 gave \[1\.0\], not 3"):
        script(monkeypatch, "allreduce").time_sums(Worker(0, 2, CPU), (1024,), 1)
