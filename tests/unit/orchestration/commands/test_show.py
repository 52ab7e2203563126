"""What commands print when a study ends."""

import dataclasses
import io
from pathlib import Path

from rich.console import Console

from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.study.study import StudyResult
from tests.support.approved import approved
from tests.support.synthetic_studies import TINY, summary_of

FOLDER = Path("/runs/tiny-20260131T120000Z-with-a-name-that-is-longer-than-a-terminal-is-wide-as-some-folders-are")


def printed(draw, *arguments):
    console = Console(file=io.StringIO(), width=80)
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


def ends():
    """Every way in which a study may end."""
    lost = "RayError: the head is gone\nand many lines more"
    return {
        "done": dataclasses.replace(done(), wall_seconds=125.0),
        "trials failed": done(ExitCode.SOME_FAILED, endings={"*": "failed"}, message="ValueError: [bold]x[/bold]"),
        "broken by its first trials": done(ExitCode.SOME_FAILED, broken="two cells met the same error"),
        "broken": done(ExitCode.UNREACHABLE, broken=lost),
        "MLflow missed events": dataclasses.replace(done(ExitCode.UNREACHABLE, unsent=3), unsent_reason="it is away"),
        "stopped": done(ExitCode.INTERRUPTED),
        "stopped without a report": dataclasses.replace(done(ExitCode.TERMINATED), summary=None),
    }


def test_the_end_of_a_study():
    """The whole text for three ends, and the closing lines for all: what is left to do."""
    found = ends()
    pages = {name: printed(show.result, found[name]) for name in ("done", "trials failed", "stopped without a report")}
    lines = {f"{name}: left to do": "\n".join(show.closing_lines(end)) + "\n" for name, end in found.items()}
    text = "\n".join(f"# {name}\n{page}" for name, page in {**pages, **lines}.items())
    approved(text, Path(__file__).parent / "end.txt")


def test_below_the_answer_stand_the_caveats_that_it_does_not_tell():
    text = printed(show.result, done())
    caveats = done().summary["recommendation"]["recommended"]["caveats"]
    assert caveats
    for words in (each["words"] for each in caveats):
        assert text.count(words.rstrip(".")) == 1, words


def test_of_many_cells_the_best_are_shown():
    rates = [round(0.01 * number, 2) for number in range(1, 51)]
    summary = summary_of(f"name: x\nsweep: {{num_gpus: [1], batch_size: [32], learning_rate: {rates}}}")
    lines = printed(show.table_of, summary).splitlines()
    assert len(lines) == 1 + 40 + 1
    assert lines[-1] == "the 40 best of 50 cells; the report has all of them"


def test_a_result_as_data():
    data = show.result_data(done(ExitCode.SOME_FAILED, unsent=2))
    assert (data["exit_code"], data["unsent"], data["folder"]) == (1, 2, str(FOLDER))
    assert data["cold_start_seconds"] == {"group-1-of-1": 7.5}
    assert show.result_data(ends()["stopped without a report"])["report"] is None
