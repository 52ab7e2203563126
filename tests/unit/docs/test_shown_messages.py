"""Messages that pages show and none of their commands prints: made by the code that says them, and compared."""

from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from scalestudy.experiments.spec.reading import SpecError, parse_study
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.show import closing_lines
from scalestudy.orchestration.study.running import StudyResult
from scalestudy.orchestration.tracking.server import reason_of
from tests.support.pages import blocks, page_text


def shown(page, beginning):
    """The lines of the text of a page that begins so."""
    texts = [block.text for block in blocks(page_text(page), "text")]
    (text,) = [text for text in texts if text.startswith(beginning)]
    return text.splitlines()


def test_the_demos_answer_in_the_readme_is_that_of_the_first_steps():
    whole = shown("docs/start.md", "num_gpus (CPU)")
    part = [line for line in shown("README.md", "Recommended and") if line != "…"]
    assert len(part) > 3
    assert [line for line in part if line not in whole] == []


def test_a_mistake_is_told_as_the_page_shows():
    (spec,) = [block.text for block in blocks(page_text("docs/write-a-study.md")) if block.title == "study.yaml"]
    (line,) = shown("docs/write-a-study.md", "study.yaml:")
    with pytest.raises(SpecError) as told:
        parse_study(spec.replace("epochs:", "epoch:"), "study.yaml")
    assert str(told.value).splitlines()[0].startswith(line.removesuffix("…"))


def test_what_mlflow_missed_is_told_as_the_page_shows():
    (line,) = shown("docs/mlflow.md", "MLflow missed")
    place = "runs/my-study-20261121T132357Z"
    error = MlflowException("API request failed (too many 500 error responses)")
    done = StudyResult(
        folder=Path(place),
        address=place,
        summary=None,
        exit_code=ExitCode.UNREACHABLE,
        tracking_uri="http://127.0.0.1:5000",
        broken=None,
        unsent=14,
        cold_starts={},
        unsent_reason=reason_of(error),
    )
    assert closing_lines(done) == [line.replace("runs/my-study-…", place)]
