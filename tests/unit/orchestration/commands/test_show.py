"""What commands print."""

import dataclasses
import io
from pathlib import Path

from rich.console import Console

from scalestudy.experiments.analysis.text.answer import study_took
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.study.study import StudyResult
from tests.support.synthetic_studies import TINY, summary_of

FOLDER = Path("/runs/tiny-20260131T120000Z-with-a-name-that-is-longer-than-a-terminal-is-wide-as-some-folders-are")


def printed(draw, *arguments, width=80):
    console = Console(file=io.StringIO(), width=width)
    draw(console, *arguments)
    return console.file.getvalue()


def done(exit_code=ExitCode.DONE, unsent=0, broken=None, **keywords):
    return StudyResult(
        folder=FOLDER,
        address=str(FOLDER),
        summary=summary_of(TINY, **keywords),
        exit_code=exit_code,
        broken=broken,
        tracking_uri="sqlite:////runs/mlflow.db",
        unsent=unsent,
        cold_starts={"group-1-of-1": 7.5},
    )


def test_a_result():
    text = printed(show.result, done())
    assert f"report: {FOLDER / 'report.html'}" in text  # whole, however long: it is copied
    assert "MLflow: sqlite:////runs/mlflow.db" in text
    assert "The study took" in text
    assert "num_gpus" in text
    assert "stopped" not in text


def test_failures_are_shown_as_the_user_wrote_them():
    text = printed(show.result, done(endings={"*": "failed"}, message="ValueError: [bold]x[/bold]"), width=200)
    assert "failed on rank 0: ValueError: [bold]x[/bold]" in text


def test_the_studys_time_and_the_commands_are_told_apart():
    ended = done()
    took = study_took(ended.summary["cost"])
    assert took.startswith("The study took ")
    assert took in printed(show.result, ended).splitlines()
    assert "This command" not in printed(show.result, ended)
    text = printed(show.result, dataclasses.replace(ended, wall_seconds=125.0))
    assert f"{took}\nThis command took 125 s from its start to its end.\nstudy:" in text


def test_what_is_left_to_do():
    assert show.closing_lines(done()) == []
    (line,) = show.closing_lines(done(ExitCode.INTERRUPTED))
    assert "stopped: the trials that had ended are kept and in the report" in line
    assert f"scalestudy resume {FOLDER}" in line
    unsent = dataclasses.replace(done(ExitCode.UNREACHABLE, unsent=3), unsent_reason="its disk is full")
    (line,) = show.closing_lines(unsent)
    assert line == f"MLflow missed 3 events (its disk is full); when it is back: scalestudy ui {FOLDER} --sync"
    line, way_on = show.closing_lines(done(ExitCode.UNREACHABLE, broken="RayError: many lines\nthe head is gone"))
    assert "the head is gone" in line
    assert f"scalestudy resume {FOLDER}" in way_on
    (line,) = show.closing_lines(done(ExitCode.SOME_FAILED))
    assert str(FOLDER / "driver.log") in line


def test_an_end_without_time_for_a_report():
    cut = dataclasses.replace(done(ExitCode.TERMINATED), summary=None)
    text = printed(show.result, cut, width=200)
    assert "report:" not in text
    assert f"stopped: the trials that had ended are kept; to go on: scalestudy resume {FOLDER}" in text
    assert show.result_data(cut)["report"] is None


def test_of_many_cells_the_best_are_shown():
    rates = [round(0.01 * number, 2) for number in range(1, 51)]
    summary = summary_of(f"name: x\nsweep: {{num_gpus: [1], batch_size: [32], learning_rate: {rates}}}")
    lines = printed(show.table_of, summary, width=200).splitlines()
    assert len(lines) == 1 + 40 + 1
    assert lines[-1] == "the 40 best of 50 cells; the report has all of them"


def test_below_the_answer_stand_the_caveats_that_it_does_not_tell():
    text = printed(show.result, done(), width=400)
    caveats = done().summary["recommendation"]["recommended"]["caveats"]
    assert caveats
    for words in (each["words"] for each in caveats):
        assert text.count(words.rstrip(".")) == 1, words


def test_a_result_as_data():
    data = show.result_data(done(ExitCode.SOME_FAILED, unsent=2))
    assert (data["exit_code"], data["unsent"], data["folder"]) == (1, 2, str(FOLDER))
    assert data["cold_start_seconds"] == {"group-1-of-1": 7.5}
