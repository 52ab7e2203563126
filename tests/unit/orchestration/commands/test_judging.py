"""What `judge` asks on a terminal."""

from unittest import mock

import numpy as np
import pytest

from scalestudy.experiments.judging.columns import Question
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands import judging
from tests.support.runs_of_others import world_rows, write_csv
from tests.support.terminals import CTRL_C, CTRL_D, Terminal
from tests.support.world_sources import small
from tests.support.worlds import TARGET, World

QUESTION = Question(
    words="num_gpus: no column says it",
    answers={"--column num_gpus=NAME": "the column that says it", "--set num_gpus=VALUE": "of all runs"},
    names=("ranks", "width"),
)


@pytest.mark.parametrize(
    ("typed", "prompts", "option"),
    [
        (("2", "4"), "Which: Value: ", "--set num_gpus=4"),
        (("1", "my column"), "Which: Name: ", "--column num_gpus='my column'"),
        (
            ("0", "two", "2", "4"),
            "Which: Please select one of the available options\n"
            "Which: Please enter a valid integer number\n"
            "Which: Value: ",
            "--set num_gpus=4",
        ),
    ],
)
def test_a_question_is_answered_by_number_and_what_it_needs(typed, prompts, option, capsys):
    with mock.patch("builtins.input", side_effect=typed):
        assert judging.ask(QUESTION) == option
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "num_gpus: no column says it\n"
        "  1  the column that says it\n"
        "  2  of all runs\n"
        "  the columns are ranks, width\n"
        f"{prompts}{option}\n"
    )


@pytest.fixture
def place(tmp_path):
    """A folder with a table that leaves open whose the batch is and what the time includes."""
    names = {"global batch size": "batch", "train_time": "time"}
    world = small(World.draw(np.random.default_rng(1), noise=0.1, seeds=2), several=2)
    rows = [{names.get(key, key): value for key, value in row.items()} for row in world_rows(world)]
    write_csv(tmp_path / "runs.csv", rows)
    return tmp_path


JUDGE = ("judge", "runs.csv", "--target", f"val/acc={TARGET}")


@pytest.mark.slow
def test_the_answers_that_are_typed_are_taken(place):
    with Terminal(*JUDGE, cwd=place) as terminal:
        terminal.answers("Which: ", "7\n")
        terminal.answers("Which: ", "1\n")
        terminal.answers("Which: ", "2\n")
        assert terminal.ends() == ExitCode.DONE, terminal.shown
    questions, _, answer = terminal.shown.partition("role ")
    for words in (
        *("batch_size: is batch of all workers together, or of one?", "--column batch_size=batch\n"),
        *("evaluation: do the times of time include it?", "--set evaluation=excluded\n"),
    ):
        assert words in questions, words
    assert "Recommended" in answer
    [folder] = (place / "runs").iterdir()
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_an_answer_that_can_t_be_is_asked_again(place):
    with Terminal(*JUDGE, "--column", "ignored=GPUs", cwd=place) as terminal:
        terminal.answers("Which: ", "2\n")
        terminal.answers("Value: ", "two\n")
        terminal.answers("Which: ", "1\n")
        terminal.answers("Name: ", "gpu\n")
        terminal.answers("Which: ", CTRL_D)
        assert terminal.ends() == ExitCode.BAD_REQUEST
    assert "--set: num_gpus: two: is not a whole number above 0" in terminal.shown
    assert "--column: gpu: no run has this column" in terminal.shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "code", "says"),
    [
        (CTRL_D, ExitCode.BAD_REQUEST, "batch_size: is batch of all workers together, or of one?; "),
        (CTRL_C, ExitCode.INTERRUPTED, "stopped"),
    ],
)
def test_who_does_not_answer_gets_one_line_and_no_folder(place, key, code, says):
    with Terminal(*JUDGE, cwd=place) as terminal:
        terminal.answers("Which: ", key)
        assert terminal.ends() == code, terminal.shown
    [line] = terminal.shown.rpartition("Which: ")[2].strip().removeprefix("^C").split("\n")[-1:]
    assert line.startswith(says)
    assert [file.name for file in place.iterdir()] == ["runs.csv"]
