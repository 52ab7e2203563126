"""What `judge` asks on a terminal."""

from unittest import mock

import pytest

from scalestudy.experiments.judging.columns import Question
from scalestudy.orchestration.commands import judging

QUESTION = Question(
    words="num_gpus: no column says it",
    answers={"--column num_gpus=NAME": "the column that says it", "--set num_gpus=VALUE": "of all runs"},
)


@pytest.mark.parametrize(
    ("typed", "option"),
    [
        ((2, "4"), "--set num_gpus=4"),
        ((1, "my column"), "--column num_gpus='my column'"),
        ((0, 3, 2, "4"), "--set num_gpus=4"),
    ],
)
def test_a_question_is_answered_by_number_and_what_it_needs(typed, option, capsys):
    with mock.patch.object(judging.typer, "prompt", side_effect=typed):
        assert judging.ask(QUESTION) == option
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "num_gpus: no column says it",
        "  1  the column that says it",
        "  2  of all runs",
        option,
    ]
