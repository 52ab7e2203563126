"""What pages show is there: specs are valid, Python compiles, and commands, options, targets, files and keys exist."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import typer

from scalestudy.experiments.judging.columns import GIVEN
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep_section import sweep_keys
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.cli import app
from scalestudy.training.section import Section
from tests.support.pages import blocks, inline_code, page_names, page_text, shell_commands
from tests.support.project_files import REPOSITORY, project_files
from tests.support.synthetic_studies import TINY, summary_of

PAGES = page_names()
SKILL = "skills/scalestudy/SKILL.md"
BESIDE = {
    "name": "my-study",
    "sweep": "{num_gpus: [1, 2], batch_size: [64, 128], learning_rate: [0.1, 0.2]}",
    "targets": "{accuracy: [0.8]}",
}
"""What stands beside a part of a spec, where that does not say it itself."""
SECTIONS = ("workload", "train", "sweep", "search", "resources", "targets", "limits", "tracking")
SPEC_KEY = re.compile(rf"(?<![\w/.:-])((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)(?![\w(/]|:\w)")
OURS = re.compile(r"(?:infra|docs|tests|experiments|orchestration|training)/[\w./-]*")
MADE_BY_THE_READER = re.compile(r"(?:.*/)?(?:(?:test_)?my_\w+\.py|\.env)")


@cache
def scalestudy() -> Any:
    """The command line as Click sees it."""
    return typer.main.get_command(app)


def parse(words: Sequence[str]) -> Any:
    """The command that `scalestudy …` names, with its options and arguments. Runs nothing; raises Click's errors."""
    command, rest = scalestudy(), list(words[1:])
    context = command.make_context("scalestudy", [], resilient_parsing=True)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"{' '.join(words)}: has no command {name}"
        command = command.commands[name]
        context = type(context)(command, info_name=name, parent=context)
    if not {"--help", "-h"} & set(rest):
        values, _, _ = command.make_parser(context).parse_args(rest)
        missing = [
            each.name for each in command.params if each.required and not each.envvar and not values.get(each.name)
        ]
        assert not missing, f"{' '.join(words)}: lacks {missing}"
    return command


def ours(commands: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Those that call scalestudy, however."""
    for words in commands:
        if words[0] == "scalestudy":
            yield words
        elif list(words[:3]) == ["python", "-m", "scalestudy"]:
            yield ["scalestudy", *words[3:]]


def is_spec_key(key: str) -> bool:
    """Whether a spec may have a value there. What stands below a mapping of a user's own is free."""
    first, _, rest = key.partition(".")
    if first == "sweep" and rest:
        return rest in sweep_keys()
    value: Any = StudySpec(name="x")
    for part in key.split("."):
        if value == {}:
            return True
        if not isinstance(value, Section) or part not in type(value).model_fields:
            return False
        value = getattr(value, part)
    return True


def check_spec(text: str, place: str) -> None:
    """A whole spec, or a part of one. Raises SpecError with every problem."""
    beside = [f"{key}: {value}\n" for key, value in BESIDE.items() if not re.search(f"^{key}:", text, re.MULTILINE)]
    parse_study(text + "".join(beside), place)


def check_spans(spans: Sequence[str]) -> None:
    """Spec keys in inline code, and commands with options where nothing else stands there, such as a placeholder."""
    keys = [key for span in spans for key in SPEC_KEY.findall(span) if not key.endswith(".py")]
    assert not [key for key in keys if not is_spec_key(key)]
    for span in spans:
        if re.fullmatch(r"scalestudy [a-z-]+(?: --[a-z-]+)*", span):
            command, options = scalestudy(), span.split()[1:]
            while options and not options[0].startswith("-") and hasattr(command, "commands"):
                command = command.commands[options.pop(0)]
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
            assert set(options) <= known, span


@pytest.mark.parametrize("page", PAGES)
def test_specs_are_valid_and_python_compiles(page: str) -> None:
    for block in blocks(page_text(page), "yaml"):
        check_spec(block.text, f"{page}:{block.line}")
    for block in blocks(page_text(page), "python"):
        compile(block.text, f"{page}:{block.line}", "exec")


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_blocks_exist_with_their_options_and_arguments(page: str) -> None:
    for block in blocks(page_text(page), "bash"):
        for words in ours(shell_commands(block.text)):
            parse(words)
            keys = [value.partition("=")[0] for option, value in itertools.pairwise(words) if option == "--set"]
            is_known = GIVEN.__contains__ if "judge" in words[:2] else is_spec_key
            assert not [key for key in keys if not is_known(key)], f"{page}:{block.line}"


@pytest.mark.parametrize("name", project_files("experiments/*.yaml"))
def test_commands_and_keys_in_the_comments_of_our_specs_exist(name: str) -> None:
    comments = "\n".join(re.findall(r"^ *#+ ?(.*)$", page_text(name), re.MULTILINE))
    check_spans(inline_code(comments))
    for line in re.findall(r"^(scalestudy \S.*?)(?:\s{2,}.*)?$", comments, re.MULTILINE):
        parse(line.split())


@pytest.mark.parametrize("page", PAGES)
def test_files_targets_keys_and_commands_in_prose_exist(page: str) -> None:
    text = re.sub(r"^### Removed\n.*?(?=^##|\Z)", "", page_text(page), flags=re.MULTILINE | re.DOTALL)
    spans = inline_code(text)
    block_words = [words for block in blocks(text, "bash") for words in shell_commands(block.text)]
    targets = set(re.findall(r"^([a-z][\w-]*):", page_text("Makefile"), re.MULTILINE))
    named = [words[1] for words in [*block_words, *map(str.split, spans)] if words[0] == "make" and len(words) > 1]
    assert not [name for name in named if re.fullmatch(r"[a-z][\w-]*", name) and name not in targets]
    paths = [word for word in [*spans, *(word for words in block_words for word in words)] if OURS.fullmatch(word)]
    assert not [path for path in paths if not MADE_BY_THE_READER.fullmatch(path) and not (REPOSITORY / path).exists()]
    check_spans(spans)


@pytest.mark.parametrize("page", ["docs/running.md", SKILL])
def test_every_exit_status_has_its_row(page: str) -> None:
    (rows,) = re.findall(r"^\| status \|.*\n\|[-|]+\n((?:\|.*\n)+)", page_text(page), re.MULTILINE)
    statuses = [int(status) for row in rows.splitlines() for status in row.split("|")[1].split(",")]
    assert statuses == [int(code) for code in ExitCode]


def test_the_skill_is_short_and_its_commands_and_keys_exist() -> None:
    text = page_text(SKILL)
    assert len(text.splitlines()) <= 120
    _, head, body = text.split("---\n", 2)
    assert re.fullmatch(r"name: scalestudy\ndescription: .{50,1000}\n", head)
    for span in inline_code(body):
        for words in ours(shell_commands(span)) if span.startswith("scalestudy ") else ():
            parse(words)
    (listed,) = re.findall(r"`summary\.json` \(every number of it: ([^)]*)\)", body)
    assert set(re.findall(r"`(\w+)`", listed)) <= summary_of(TINY).keys()
    (chosen,) = re.findall(r"^- `recommend --json`: .*?, each with (.*?);", body, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", chosen)) <= summary_of(TINY)["recommendation"]["recommended"].keys()


# --- can it fail? ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["scalestudy rnu", "scalestudy run x --extnd", "scalestudy plan", "scalestudy data ftch"]
)
def test_a_command_that_is_not_there_is_found(line: str) -> None:
    (words,) = ours(shell_commands(line))
    with pytest.raises(Exception, match=r"no command|No such option|lacks"):
        parse(words)
