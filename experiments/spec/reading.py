"""A spec from a file, the catalogue or the template.

All problems are reported at once, before anything is started or written.
"""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, cast

from scalestudy.experiments.spec.checks import relation_problems
from scalestudy.experiments.spec.spec_error import SpecError, one_problem
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import Document, NotReadableError, read_yaml
from scalestudy.training.section import (
    Problem,
    Section,
    default_of,
    did_you_mean,
    is_section,
    meaning_of,
    read,
    summary_of,
    text_of,
)

__all__ = [
    "Problem",
    "SpecError",
    "StudySpec",
    "catalogue",
    "find_study",
    "load_study",
    "new_spec",
    "new_spec_from",
    "parse_study",
    "study_from",
]

STUDIES = Path(__file__).parents[1] / "studies"
LARGEST_FILE_BYTES = 1_000_000


def catalogue() -> list[str]:
    """Return the names of the studies that come with the package, sorted."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def find_study(name_or_path: str) -> Path:
    """Find the spec file of a catalogue name or a path. A catalogue name wins over a file of the same name.

    Raises SpecError, with the names of the catalogue, if there is neither.
    """
    names = catalogue()
    if name_or_path in names:
        return STUDIES / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    try:
        is_there = bool(name_or_path) and path.exists()
    except (OSError, ValueError):
        is_there = False
    if is_there:
        return path
    guess = did_you_mean(path.name, names)
    remedy = f"{guess}name a YAML file, or a study of the catalogue: {', '.join(names)}"
    raise one_problem(name_or_path or '""', "there is no such file or study", remedy)


def load_study(source: Path, overrides: Sequence[str] = ()) -> StudySpec:
    """Read and validate a spec file.

    overrides: `key.path=value` with a YAML value; each replaces what the file says. Raises SpecError with every problem
    found.
    """
    path = Path(source)
    name = str(path)
    try:
        if path.is_dir():
            raise one_problem(name, "is a folder, not a spec", "name a YAML file or a study of the catalogue")
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise one_problem(name, "is larger than 1 MB, too large for a spec", "name a study spec")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise one_problem(name, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except OSError as error:
        raise one_problem(name, f"can't be read ({error.strerror})", "check the path and its permissions") from None
    return parse_study(text, str(source), overrides)


def parse_study(text: str, source: str, overrides: Sequence[str] = ()) -> StudySpec:
    """Validate the text of a spec, as `load_study` does. `source` names it in errors."""
    try:
        document = read_yaml(text)
    except NotReadableError as error:
        raise one_problem(source, error.message, error.remedy, error.line) from None
    if document.data is None and not document.problems:
        raise one_problem(source, "is empty", "write a spec, beginning with `name: my-study`")
    if not isinstance(document.data, dict):
        if document.problems:
            raise SpecError(document.problems, source)
        remedy = "write keys and values, beginning with `name: my-study`"
        raise one_problem(source, "is not a mapping of keys to values", remedy, 1, document.data)
    return _study_of(document, source, overrides)


def study_from(data: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> StudySpec:
    """Validate a spec that is plain data already, as `load_study` does. `source` names it in errors."""
    return _study_of(Document(copy.deepcopy(dict(data))), source, overrides)


def _study_of(document: Document, source: str, overrides: Sequence[str]) -> StudySpec:
    problems = list(document.problems)
    for override in overrides:
        problems += _apply(override, document)
    spec, found = read(StudySpec, document.data, document.line_of, {"name": "unnamed"})
    problems += found
    if spec is not None:
        problems += relation_problems(spec, document.line_of, {problem.field for problem in problems})
    if problems or spec is None:
        problems.sort(key=lambda problem: problem.line if isinstance(problem.line, int) else math.inf)
        raise SpecError(problems, source)
    return spec


def _apply(override: str, document: Document) -> list[Problem]:
    """Put one `key.path=value` into the document. Return what is wrong with its form."""

    def problem(field: str, value: Any, message: str, remedy: str) -> Problem:
        return Problem(field=field, value=value, line="--set", message=message, remedy=remedy)

    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if parts[0] == "sweep" and len(parts) > 2:
        parts = ["sweep", ".".join(parts[1:])]
    if not equals or not all(parts):
        return [problem("", override, "is not key=value", "write it like sweep.num_gpus=[1, 2]")]
    try:
        value = read_yaml(text)
    except NotReadableError as error:
        return [problem(key, text, error.message, "quote the whole argument for your shell")]
    if value.problems:
        return [problem(key, text, each.message, each.remedy) for each in value.problems]
    target: Any = document.data
    for depth, part in enumerate(parts[:-1], 1):
        if target.get(part) is None:
            target[part] = {}
            document.lines.setdefault(tuple(parts[:depth]), "--set")
        target = target[part]
        if not isinstance(target, dict):
            return [problem(key, text, f"can't be set: {part} has no keys", "name an existing key")]
    target[parts[-1]] = value.data
    path = tuple(parts)
    for below in [each for each in document.lines if each[: len(path)] == path]:
        del document.lines[below]
    document.lines[path] = "--set"
    return []


TEMPLATE = Path(__file__).parents[1] / "template.yaml"
PLACEHOLDER = "NAME"
SECTION = re.compile(r"^(\w+): KEYS$", re.MULTILINE)
"""The line of the template at which the keys of a section stand."""


def new_spec(name: str, file: str | None = None) -> str:
    """Return a commented spec with this name. file: as commands should name it; default: `name`.yaml.

    Raises SpecError if the name can't name a folder.
    """
    file = file or f"{name}.yaml"
    text = template()
    text = text.replace(f"name: {PLACEHOLDER}", f"name: {json.dumps(name)}", 1)  # in quotes: 123 is a name, too
    parse_study(text, file)
    return text.replace(f"{PLACEHOLDER}.yaml", quote(file)).replace(PLACEHOLDER, name)


def new_spec_from(study: str, name: str, file: str | None = None) -> str:
    """Return a study of the catalogue with another name: its text, comments included. file: as for `new_spec`.

    Raises SpecError if the catalogue has no such study, or if the name can't name a folder.
    """
    names = catalogue()
    if study not in names:
        remedy = f"{did_you_mean(study, names)}choose {', '.join(names)}"
        raise one_problem("--from", "is not a study of the catalogue", remedy, value=study)
    text = (STUDIES / f"{study}.yaml").read_text(encoding="utf-8")
    text = text.replace(f"\nname: {study}\n", f"\nname: {json.dumps(name)}\n", 1)  # in quotes: 123 is a name, too
    parse_study(text, file or f"{name}.yaml")
    return f"# Begun from the study {study} of the catalogue.\n{text}"


def template() -> str:
    """Return the spec without a name. Its sections come from the fields of their models."""

    def section(match: re.Match[str]) -> str:
        model = StudySpec.model_fields[match[1]].annotation
        return "\n".join([f"{match[1]}:", *_template_lines(cast(type[Section], model), "  ")])

    return SECTION.sub(section, TEMPLATE.read_text(encoding="utf-8"))


def _template_lines(section: type[Section], indent: str) -> Iterator[str]:
    """Yield a line for each key: its default, and as a comment its other choices and its meaning."""
    for name, field in section.model_fields.items():
        if is_section(field.annotation):
            yield f"{indent}{name}:".ljust(27) + f" # {meaning_of(field)}"
            yield from _template_lines(cast(type[Section], field.annotation), indent + "  ")
            continue
        yield f"{indent}{name}: {text_of(default_of(field))}".ljust(27) + f" # {summary_of(field)}"
