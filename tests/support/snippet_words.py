"""What can be checked of commands without running them, and of the names of spec keys: in prose, and in snippets."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer
import yaml

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import SpecError, catalogue
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep import sweep_keys
from scalestudy.orchestration.study.folders import read_spec
from tests.support.studies import REPOSITORY

OPTION = re.compile(r"^\[?(--[a-z][a-z0-9-]*)")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")
PLACEHOLDER = re.compile(r"^[\[<]?(?:[A-Z_]+|…)\b|^…")
SECTIONS = sorted({"workload", "train", "sweep", "search", "resources", "targets", "limits", "tracking"})
SPEC_KEY = re.compile(rf"(?<![\w/.:-])((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)(?![\w(/]|:\w)")
FILE_ENDINGS = (".py", ".md", ".yaml", ".json", ".jsonl")
DOTTED = re.compile(r"(?:orchestration|training|experiments)(?:\.\w+)+")
IMPORT = re.compile(rf"from ({DOTTED.pattern[:-1]}*) import (\w+(?:, \w+)*)")
READERS = re.compile(r"(?:test_)?my_\w+\.py$")
OUR_FOLDERS = ("infra/", "docs/", "tests/", "experiments/", "orchestration/", "training/")


def commands(text: str) -> list[list[str]]:
    """The commands of a shell's text as lists of words, without comments, here-documents and leading assignments."""
    found, left, end = list[list[str]](), "", None
    for line in text.splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        left = f"{left}{line}"
        if left.endswith("\\"):
            left = left[:-1] + " "
            continue
        try:
            words = _words(left)
        except ValueError:  # a quote that is still open
            left += "\n"
            continue
        heredoc = HEREDOC.search(left)
        end, left = heredoc[1] if heredoc else None, ""
        found += _split(words)
    if left.strip():
        raise ValueError(f"a quote that does not end: {left.strip()}")
    return found


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    return list(lexer)


def _split(words: Sequence[str]) -> Iterator[list[str]]:
    """One list for each command between `&&`, `|` and `;`."""
    command = list[str]()
    for word in [*words, ";"]:
        if set(word) <= set(";&|"):
            if command:
                yield command
            command = []
        elif command or not ASSIGNMENT.match(word):
            command.append(word)


def command_problems(words: Sequence[str]) -> list[str]:
    """What a command names that is not there: commands, options, files, stages, targets, spec keys."""
    found = list(_by_program(list(words)))
    return found + [f"{word}: no such file" for word in words if _is_ours(word) and not _is_there(word)]


def _by_program(words: list[str]) -> Iterator[str]:
    if words[0] == "scalestudy":
        yield from click_problems(scalestudy_command(), words)
        yield from _set_problems(words)
    elif words[:3] == ["python", "-m", "scalestudy"]:
        yield from command_problems(["scalestudy", *words[3:]])
    elif words[0] in ("python", "torchrun") and "training" in words and words[words.index("training") - 1] == "-m":
        yield from _argparse_problems(words[words.index("training") + 1 :])
    elif words[0] == "ray":
        yield from click_problems(_ray_command(), words)
        if "--" in words[1:-1]:
            yield from command_problems(words[words.index("--") + 1 :])
    elif words[0] == "make":
        yield from (f"make {word}: no such target" for word in _targets(words) if word not in _make_targets())
    elif words[:2] == ["docker", "build"]:
        yield from _stage_problems(words)
    elif words[0] == "kubectl":
        yield from _manifest_problems(words)
    elif words[0].endswith(".sh") and _is_there(words[0]) and len(words) > 1:
        yield from _script_problems(words)


def click_problems(command: Any, words: Sequence[str]) -> Iterator[str]:
    """The first word that is no command of its group, and long options that the command does not have."""
    path = [words[0]]
    for word in words[1:]:
        if word == "--":
            return
        option = OPTION.match(word)
        if option and option[1] not in _options(command):
            yield f"{' '.join(path)}: has no option {option[1]}"
        if option or not hasattr(command, "commands"):  # Typer has a Click of its own, so that its class says nothing
            continue
        if PLACEHOLDER.match(word) or word.startswith("-"):
            return
        if word not in command.commands:
            yield f"{' '.join(path)}: has no command {word}"
            return
        command = command.commands[word]
        path.append(word)


def _options(command: Any) -> set[str]:
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return {"--help", *own}


@cache
def scalestudy_command() -> Any:
    """Click's object of the command line."""
    from scalestudy.orchestration.commands.cli import app

    return typer.main.get_command(app)


@cache
def _ray_command() -> Any:
    from ray.scripts.scripts import cli

    return cli


def _set_problems(words: Sequence[str]) -> Iterator[str]:
    """`--set key=value` with a key that no spec has; of a study of the catalogue, a spec or a plan that is refused."""
    overrides = [value for option, value in itertools.pairwise(words) if option == "--set"]
    if len(words) > 2 and words[2] in catalogue():
        try:
            make_plan(read_spec(words[2], [value for value in overrides if "…" not in value]))
        except SpecError as error:
            yield f"{' '.join(words)}: {error}"
    for key in (value.partition("=")[0] for value in overrides):
        if not PLACEHOLDER.match(key) and key not in ("key", "key.path") and not is_spec_key(key):
            yield f"--set {key}: a spec has no such key"


def _argparse_problems(words: Sequence[str]) -> Iterator[str]:
    from scalestudy.training.arguments import make_parser

    known = make_parser("")._option_string_actions
    options = (found[1] for word in words if (found := OPTION.match(word)))
    yield from (f"python -m scalestudy.training: has no option {option}" for option in options if option not in known)


def _targets(words: Sequence[str]) -> list[str]:
    return [word for word in words[1:] if re.fullmatch(r"[a-z][\w-]*", word)]


@cache
def _make_targets() -> frozenset[str]:
    text = (REPOSITORY / "Makefile").read_text("utf-8")
    return frozenset(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))


def _stage_problems(words: Sequence[str]) -> Iterator[str]:
    file = REPOSITORY / _after("-f", words, "Dockerfile")
    if not file.is_file():
        return  # told by its path
    text = file.read_text("utf-8")
    stages = re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE)
    if (target := _after("--target", words, stages[-1])) not in stages:
        yield f"docker build --target {target}: the stages are {', '.join(stages)}"
    arguments = re.findall(r"^ARG (\w+)", text, re.MULTILINE)
    given = [value.partition("=")[0] for name, value in itertools.pairwise(words) if name == "--build-arg"]
    yield from (f"docker build --build-arg {name}: no such argument" for name in given if name not in arguments)


def _manifest_problems(words: Sequence[str]) -> Iterator[str]:
    name = _after("-f", words, "") if words[1] in ("apply", "delete", "create") else ""
    if name and (REPOSITORY / name).is_file():
        manifest = yaml.safe_load((REPOSITORY / name).read_text("utf-8"))
        if not {"apiVersion", "kind", "metadata"} <= set(manifest):
            yield f"kubectl -f {name}: is no manifest"


def _script_problems(words: Sequence[str]) -> Iterator[str]:
    """A script's first argument is one of the patterns of its `case`."""
    text = (REPOSITORY / words[0]).read_text("utf-8")
    known = {name for line in re.findall(r"^ +([a-z| -]+)\)", text, re.MULTILINE) for name in re.split(r"[ |]+", line)}
    if words[1] not in known:
        yield f"{words[0]}: has no command {words[1]}"


def _after(option: str, words: Sequence[str], default: str) -> str:
    return words[words.index(option) + 1] if option in words[:-1] else default


def _is_ours(word: str) -> bool:
    return word.startswith(OUR_FOLDERS) and re.fullmatch(r"[\w./-]+", word) is not None


def _is_there(word: str) -> bool:
    """Or is made by a command, or by the reader: `experiments/analysis/laws/my_law.py`."""
    made = word == "infra/mlflow/.env" or READERS.match(word.rpartition("/")[2])
    return bool(made) or (REPOSITORY / word).exists()


def span_commands(text: str) -> list[list[str]]:
    """The commands that inline code shows whose words can be checked; none where it is no command of these."""
    if not re.search(r"\b(?:scalestudy|ray|make|python|torchrun|kubectl|docker|\w+\.sh|[a-z]+) \S", text):
        return []
    try:
        found = commands(text)
    except ValueError:
        return []
    return [checked for words in found if (checked := _checked(words))]


def _checked(words: list[str]) -> list[str]:
    """The words of a command of these programs; `run --extend` is one of scalestudy's."""
    if len(words) < 2:
        return []
    if words[0] in scalestudy_command().commands and OPTION.match(words[1]):
        return ["scalestudy", *words]
    programs = ("scalestudy", "ray", "make")
    known = words[0] in programs or words[:2] in (["python", "-m"], ["docker", "build"]) or words[0] == "kubectl"
    return words if known else []


def is_a_name(text: str) -> bool:
    """Whether inline code is a path or a dotted name of ours, or an import of one."""
    return _is_ours(text) or bool(IMPORT.match(text) or DOTTED.fullmatch(text))


def name_problems(text: str) -> list[str]:
    """What inline code that is a path or a dotted name of ours, or an import of one, names that is not there."""
    if _is_ours(text):
        return [] if _is_there(text) else [f"{text}: no such file"]
    imported = IMPORT.match(text)
    names = [f"{imported[1]}.{name}" for name in imported[2].split(", ")] if imported else []
    names += [text] if DOTTED.fullmatch(text) and not text.endswith(FILE_ENDINGS) else []
    return [f"{name}: there is no such name" for name in names if not _is_a_name(name)]


def _is_a_name(dotted: str) -> bool:
    """Whether a module has it, however deep."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def spec_keys(text: str) -> list[str]:
    """The dotted spec keys that inline code names: `train.gradient_sync`."""
    return [key for key in SPEC_KEY.findall(text) if not key.endswith(FILE_ENDINGS)]


def is_spec_key(key: str) -> bool:
    """Whether a spec may have a value there. What stands below a mapping of a user's own is free."""
    first, _, rest = key.partition(".")
    if first == "sweep" and rest:
        return rest in sweep_keys()
    model: Any = StudySpec
    for part in key.split("."):
        fields = getattr(model, "model_fields", None)
        if fields is None:
            return str(model).startswith("dict")
        if part not in fields:
            return False
        model = fields[part].annotation
    return True
