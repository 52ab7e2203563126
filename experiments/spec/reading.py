"""A spec from a file, the catalogue or the template.

All problems are told at once, before anything is started or written.
"""

import copy
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from scalestudy.experiments.spec.checks import relation_problems
from scalestudy.experiments.spec.errors import ABSENT, Problem, SpecError, explain, field_name, one_problem
from scalestudy.experiments.spec.sections import Train, fields_of
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import Document, NotReadableError, read_yaml
from scalestudy.training.config import Knobs, did_you_mean, keys, text_of
from scalestudy.training.registry import DATASETS, MODELS

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
    """Names of the studies that come with the package, sorted."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def find_study(name_or_path: str) -> Path:
    """Finds the spec file of a catalogue name or a path. A catalogue name wins over a file of the same name.

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


def load_study(
    source: Path,
    overrides: Sequence[str] = (),
    *,
    models: Collection[str],
    datasets: Collection[str],
    resolved: bool = False,
) -> StudySpec:
    """Reads and validates a spec file.

    overrides: `key.path=value` with a YAML value; each replaces what the file says. models, datasets: the built-in
    names. Any text of the form `package.module:callable` is accepted too. resolved: it is the one in a study's folder,
    and a key that it lacks has the value by which the study began: version 1, resources.placement emptiest,
    limits.failures continue.

    Raises SpecError with every problem found.
    """
    path = Path(source)
    name = str(path)
    try:
        if path.is_dir():
            raise one_problem(name, "is a folder, not a spec", "name a YAML file or a study of the catalogue")
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise one_problem(name, "is larger than 1 MB, too large for a spec", "name a study spec")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        names = ", ".join(catalogue())
        raise one_problem(name, "there is no such file", f"check the path, or use one of {names}") from None
    except UnicodeDecodeError as error:
        raise one_problem(name, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except OSError as error:
        raise one_problem(name, f"can't be read ({error.strerror})", "check the path and its permissions") from None
    return parse_study(text, str(source), overrides, models=models, datasets=datasets, resolved=resolved)


def parse_study(
    text: str,
    source: str,
    overrides: Sequence[str] = (),
    *,
    models: Collection[str],
    datasets: Collection[str],
    resolved: bool = False,
) -> StudySpec:
    """Validates the text of a spec, as `load_study` does. `source` names it in errors."""
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

    if resolved:
        document.data.setdefault("version", 1)
        if isinstance(resources := document.data.setdefault("resources", {}), dict):
            resources.setdefault("placement", "emptiest")
        if isinstance(limits := document.data.setdefault("limits", {}), dict):
            limits.setdefault("failures", "continue")
    return _study_of(document, source, overrides, models, datasets)


def study_from(
    data: Mapping[str, Any],
    source: str,
    overrides: Sequence[str] = (),
    *,
    models: Collection[str],
    datasets: Collection[str],
) -> StudySpec:
    """Validates a spec that is plain data already, as `load_study` does. `source` names it in errors."""
    return _study_of(Document(copy.deepcopy(dict(data))), source, overrides, models, datasets)


def _study_of(
    document: Document, source: str, overrides: Sequence[str], models: Collection[str], datasets: Collection[str]
) -> StudySpec:
    origin = Origin(document, [])
    problems = list(document.problems)
    for override in overrides:
        problems += _apply(override, origin)
    spec, found = _validate(document.data, origin)
    problems += found
    problems += relation_problems(spec, models, datasets, origin.line_of, {problem.field for problem in problems})
    if problems or spec is None:
        problems.sort(key=lambda problem: problem.line if isinstance(problem.line, int) else math.inf)
        raise SpecError(problems, source)
    return spec


class Origin(NamedTuple):
    """Where each value came from: the document's lines, and the paths that overrides have set."""

    document: Document
    overridden: list[tuple[str, ...]]

    def line_of(self, path: tuple[int | str, ...]) -> int | Literal["--set"] | None:
        """The line of a value. "--set" if an override set it or made the section around it."""
        is_new = path not in self.document.lines
        for override in self.overridden:
            if path[: len(override)] == override or (is_new and override[: len(path)] == path):
                return "--set"
        return self.document.line_of(path)


def _apply(override: str, origin: Origin) -> list[Problem]:
    """Puts one `key.path=value` into the document. Returns what is wrong with its form."""

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
    target: Any = origin.document.data
    for part in parts[:-1]:
        if target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, dict):
            return [problem(key, text, f"can't be set: {part} has no keys", "name an existing key")]
    target[parts[-1]] = value.data
    origin.overridden.append(tuple(parts))
    return []


def _validate(data: dict[str, Any], origin: Origin) -> tuple[StudySpec | None, list[Problem]]:
    """The spec and its problems.

    If there are problems, the spec is made without the faulty values, so that the others can still be checked against
    one another. It is None if nothing valid is left.
    """
    try:
        return StudySpec.model_validate(data), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    problems = []
    for details in errors:
        location = details["loc"]
        section: Any = StudySpec
        for part in location[:-1]:
            section = fields_of(section).get(str(part))
        message, remedy = explain(details, list(fields_of(section)))
        value = ABSENT if details["type"] == "missing" else details["input"]
        line = origin.line_of(location)
        field = field_name(location)
        problems.append(Problem(field=field, value=value, line=line, message=message, remedy=remedy))
    faulty = [details["loc"] for details in errors]
    try:
        return StudySpec.model_validate({"name": "unnamed", **_without(data, faulty)}), problems
    except ValidationError:
        return None, problems


def _without(data: Any, locations: list[tuple[int | str, ...]], here: tuple[int | str, ...] = ()) -> Any:
    """A copy of the data without the values at these locations."""
    if isinstance(data, dict):
        kept = {key: value for key, value in data.items() if (*here, key) not in locations}
        return {key: _without(value, locations, (*here, key)) for key, value in kept.items()}
    if isinstance(data, list):
        return [
            _without(value, locations, (*here, index))
            for index, value in enumerate(data)
            if (*here, index) not in locations
        ]
    return data


TEMPLATE = Path(__file__).parents[1] / "template.yaml"
PLACEHOLDER = "NAME"
TRAIN_PLACEHOLDER = "train: KEYS\n"
BUILT_IN: dict[str, Any] = {"models": ["lenet"], "datasets": ["digits"]}
"""The names that the template uses."""


def new_spec(name: str, file: str | None = None) -> str:
    """A commented spec with this name. file: as commands should name it; default: `name`.yaml.

    Raises SpecError if the name can't name a folder.
    """
    file = file or f"{name}.yaml"
    text = template()
    text = text.replace(f"name: {PLACEHOLDER}", f"name: {json.dumps(name)}", 1)  # in quotes: 123 is a name, too
    parse_study(text, file, **BUILT_IN)
    return text.replace(f"{PLACEHOLDER}.yaml", quote(file)).replace(PLACEHOLDER, name)


def new_spec_from(study: str, name: str, file: str | None = None) -> str:
    """A study of the catalogue with another name: its text, comments included. file: as for `new_spec`.

    Raises SpecError if the catalogue has no such study, or if the name can't name a folder.
    """
    names = catalogue()
    if study not in names:
        remedy = f"{did_you_mean(study, names)}choose {', '.join(names)}"
        raise one_problem("--from", "is not a study of the catalogue", remedy, value=study)
    text = (STUDIES / f"{study}.yaml").read_text(encoding="utf-8")
    text = text.replace(f"\nname: {study}\n", f"\nname: {json.dumps(name)}\n", 1)  # in quotes: 123 is a name, too
    parse_study(text, file or f"{name}.yaml", models=MODELS, datasets=DATASETS)
    return f"# Begun from the study {study} of the catalogue.\n{text}"


def template() -> str:
    """The spec without a name. Its `train` section comes from the keys of `scalestudy.training.config`."""
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace(TRAIN_PLACEHOLDER, "\n".join(["train:", *_template_lines(Train(), "  ")]) + "\n", 1)


def _template_lines(section: Knobs, indent: str) -> Iterator[str]:
    """A line for each key: its default, and as a comment its other choices, its meaning and what null stands for."""
    for key in keys(type(section)):
        value = getattr(section, key.name)
        if isinstance(value, Knobs):
            yield f"{indent}{key.name}:"
            yield from _template_lines(value, indent + "  ")
            continue
        others = [text_of(choice) for choice in key.choices if choice != key.default]
        if key.knob.names is not None:
            others = [*(name for name in key.knob.names if name != key.default), "package.module:callable"]
        choices = f"or {', '.join(others)}: " if others else ""
        unset = f"; null: {key.knob.unset}" if key.is_optional else ""
        yield f"{indent}{key.name}: {text_of(value)}".ljust(27) + f" # {choices}{key.knob.help}{unset}"
