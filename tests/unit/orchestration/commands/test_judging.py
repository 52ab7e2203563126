"""What `judge` asks on a terminal."""

import os
import select
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest

from scalestudy.experiments.judging.columns import Question
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands import judging
from tests.support.groups import wait_until
from tests.support.processes import is_asleep
from tests.support.runs_of_others import small, world_rows, write_csv
from tests.support.studies import command, environment
from tests.support.worlds import TARGET, World

CONTROLLED = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes standard input the process's controlling terminal, whose Ctrl-C is a signal, then becomes the command."""
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A terminal on which a command was typed. A context: what still runs at its end is killed."""

    def __init__(self, *arguments, cwd):
        self._terminal, its_end = os.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *command(*arguments)],
            cwd=cwd,
            env=environment(TERM="dumb", COLUMNS="200"),
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            start_new_session=True,
        )
        os.close(its_end)
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def answers(self, question, typed):
        """Waits until the terminal's last words are these and the command waits for what is typed, and types.

        A Ctrl-C between the two can be lost: Python has looked for signals, and does not read yet.
        """
        self._reads(until=question)
        assert self.shown.endswith(question), self.shown
        wait_until(lambda: is_asleep(self._process.pid))
        os.write(self._terminal, typed.encode())

    def ends(self):
        """Waits for the command's end; its exit status."""
        self._reads(until=None)
        return self._process.wait(60)

    def _reads(self, until, seconds=120):
        deadline = time.monotonic() + seconds
        while until is None or not self.shown.endswith(until):
            ready, _, _ = select.select([self._terminal], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"nothing more in {seconds:g} s after: {self.shown}"
            try:
                told = os.read(self._terminal, 65536)
            except OSError:  # Linux says EIO once nobody has the other end
                return
            if not told:
                return
            self.shown += told.decode("utf-8", "replace").replace("\r\n", "\n")


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
