"""Bad input: every value that a spec or a training refuses, and the words that the user reads.

`bad_input.txt` is the one table. A block is a spec without its name, or what a TrainConfig is made from; then come
values from the command line, the problems as they are shown, and the keys that an editor marks by the JSON Schema. Each
other door, such as a command, has one test that it shows the same problems. SCALESTUDY_APPROVE=1 writes what is said.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scalestudy.experiments.spec.reading import SpecError, parse_study, study_from
from scalestudy.experiments.spec.schema import json_schema
from scalestudy.experiments.spec.yaml_lines import NotReadableError, read_yaml
from scalestudy.training.config import TrainConfig
from scalestudy.training.contradictions import CONTRADICTIONS
from scalestudy.training.section import ConfigError, Problem
from tests.support.approved import approved

TABLE = Path(__file__).parent / "bad_input.txt"
SAID, SET = "=> ", "--set "
LONGEST = 300
"""Characters of a line in the table. Lists of all keys are longer: their middle is left out."""


@dataclass(frozen=True)
class Row:
    """A block of the table without what is said of it."""

    text: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def of(cls, block: str) -> "Row":
        lines = [line for line in block.splitlines() if not line.startswith(SAID)]
        overrides = tuple(line.removeprefix(SET) for line in lines if line.startswith(SET))
        return cls("\n".join(line for line in lines if not line.startswith(SET)), overrides)

    @property
    def spec(self) -> str:
        return self.text if self.text.startswith("name:") else f"name: x\n{self.text}"

    @property
    def is_training(self) -> bool:
        return self.text.startswith("training:")

    @cached_property
    def problems(self) -> list[Problem]:
        try:
            if self.is_training:
                TrainConfig.from_dict({"batch_size": 8, "learning_rate": 0.1, **read_yaml(self.text).data["training"]})
            else:
                parse_study(self.spec, "study.yaml", self.overrides)
        except (ConfigError, SpecError) as error:
            return list(error.problems)
        return []

    @cached_property
    def plain(self) -> dict[str, Any] | None:
        """The spec as plain data; None if YAML itself is at fault, or the row is no spec in a file."""
        try:
            document = read_yaml(self.spec)
        except NotReadableError:
            return None
        return None if document.problems or self.overrides or self.is_training else document.data

    @cached_property
    def marks(self) -> list[str]:
        """The dotted paths that an editor marks, "the whole" at the top."""
        found = VALIDATOR.iter_errors(self.plain) if self.plain is not None else ()
        paths = {".".join(part for part in error.absolute_path if isinstance(part, str)) for error in found}
        return sorted(path or "the whole" for path in paths)


VALIDATOR = jsonschema.Draft7Validator(json_schema())
BLOCKS = TABLE.read_text("utf-8").rstrip("\n").split("\n\n")
ROWS = [Row.of(block) for block in BLOCKS if not block.startswith("#")]


def test_bad_input_is_refused_in_these_words():
    assert [row for row in ROWS if not row.problems] == []
    rows = iter(ROWS)
    said = [block if block.startswith("#") else lines_of(next(rows)) for block in BLOCKS]
    approved("\n\n".join(said), TABLE)


def lines_of(row):
    said = [problem.text("" if row.is_training else "study.yaml") for problem in row.problems]
    said += [f"an editor marks {', '.join(row.marks)}"] if row.marks else []
    given = [row.text, *(f"{SET}{override}" for override in row.overrides)]
    return "\n".join([*(line for line in given if line), *(f"{SAID}{shortened(line)}" for line in said)])


def shortened(line):
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 100]} … {line[-97:]}"


def test_every_problem_has_a_remedy_and_shows_no_password():
    assert [row for row in ROWS if not all(problem.remedy for problem in row.problems)] == []
    assert "s3cr3t" not in "".join(problem.text() for row in ROWS for problem in row.problems)


def test_an_editor_marks_only_what_is_refused():
    for row in ROWS:
        fields = [problem.field for problem in row.problems]
        assert all(mark == "the whole" or any(field.startswith(mark) for field in fields) for mark in row.marks), row


def test_plain_data_are_refused_as_a_file_is():
    """So are the specs of a notebook."""
    for row in [row for row in ROWS if row.plain is not None]:
        with pytest.raises(SpecError) as caught:
            study_from(row.plain, "study")
        of_file, of_data = (
            sorted(replace(problem, line=None).text() for problem in problems)
            for problems in (row.problems, caught.value.problems)
        )
        assert of_file == of_data


LITERAL = re.compile(r"write (?:a list: )?(\[.*\]|\{\w+: [\w.:]+\})")


def test_the_text_that_a_remedy_gives_is_accepted():
    tried = 0
    for row in [row for row in ROWS if not row.is_training]:
        for problem in row.problems:
            if literal := LITERAL.fullmatch(problem.remedy):
                mended = replace(row, overrides=(*row.overrides, f"{problem.field}={literal[1]}"))
                assert problem.field not in [each.field for each in mended.problems], problem
                tried += 1
    assert tried > 15


def test_what_an_adaptive_search_refuses_of_a_training_a_grid_runs():
    remedy = re.compile(r"(?!.*list values).*search\.method: grid")
    refused = [row for row in ROWS if any(remedy.fullmatch(each.remedy) for each in row.problems)]
    assert len(refused) > 15
    for row in refused:
        others = "".join(line + "\n" for line in row.text.splitlines() if not line.startswith(("search:", "budget:")))
        assert replace(row, text=others).problems == [], row.text


def test_the_table_has_every_contradiction():
    told = [problem.text() for row in ROWS if row.is_training for problem in row.problems]
    for pair in CONTRADICTIONS:
        words = (f"{pair.key}: ", f" does not go with {pair.other_key} ", f": {pair.reason}; {pair.remedy}")
        assert any(line.startswith(words[0]) and words[1] in line and line.endswith(words[2]) for line in told), pair
