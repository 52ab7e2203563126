"""Stage 1, study spec: a YAML file becomes a validated `StudySpec` with every default filled in.

What is wrong is told all at once, each problem with its file, line, field, value and remedy (`SpecError`), before
anything is started or written.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field, ValidationError

from experiments.catalogue import catalogue, find_study
from experiments.redaction import redacted
from experiments.spec_checks import relation_problems
from experiments.spec_errors import ABSENT, Problem, SpecError, explain, field_name, one_problem
from experiments.spec_models import (
    FolderName,
    Limits,
    Resources,
    Search,
    Section,
    StorageFolder,
    Targets,
    Tracking,
    Train,
    Workload,
)
from experiments.spec_sweep import Sweep
from experiments.yaml_lines import Document, NotReadableError, read_yaml

__all__ = ["Problem", "SpecError", "StudySpec", "catalogue", "find_study", "load_study", "parse_study"]

LARGEST_FILE_BYTES = 1_000_000


class StudySpec(Section):
    """One study, resolved: what is trained, what is swept, with what, and what is asked of it."""

    name: FolderName
    """Names the study's folder and its MLflow experiment."""
    description: str = ""
    """The question it answers, for people."""
    workload: Workload = Workload()
    train: Train = Train()
    sweep: Sweep = Field(default_factory=lambda: Sweep.model_validate({}))
    search: Search = Search()
    resources: Resources = Resources()
    targets: Targets = Targets()
    limits: Limits = Limits()
    storage: StorageFolder = "runs"
    """The folder, or the URI such as s3://bucket/runs, that holds the studies' folders."""
    tracking: Tracking = Tracking()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, every default filled in; `StudySpec.model_validate` gives an equal spec, but that the tracking
        address has no password: what is written down or shown is made from this."""
        plain = self.model_dump(mode="json")
        plain["tracking"]["uri"] = self.tracking.uri and redacted(self.tracking.uri)
        plain["sweep"] = {key: values for key, values in plain["sweep"].items() if values is not None}
        return plain

    def to_yaml(self) -> str:
        """The resolved spec as YAML, keys in the order of the design."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def load_study(
    source: Path, overrides: Sequence[str] = (), *, models: Collection[str], datasets: Collection[str]
) -> StudySpec:
    """Reads and validates a spec file.

    overrides: `key.path=value` with a YAML value, each put in place of what the file says. models, datasets: the
    built-in names; `package.module:callable` is accepted by its form.

    Raises SpecError with every problem found.
    """
    text = _read_file(Path(source))
    return parse_study(text, str(source), overrides, models=models, datasets=datasets)


def parse_study(
    text: str, source: str, overrides: Sequence[str] = (), *, models: Collection[str], datasets: Collection[str]
) -> StudySpec:
    """Validates the text of a spec; `source` names it in errors. Otherwise as `load_study`."""
    document = _read_document(text, source)
    origin = Origin(document, [])
    problems = list(document.problems)
    for override in overrides:
        problems += _apply(override, origin)
    spec, found = _validate(document.data, origin)
    problems += found
    problems += relation_problems(spec, models, datasets, origin.line_of, {problem.field for problem in problems})
    if problems or spec is None:
        raise SpecError(sorted(problems, key=_place), source)
    return spec


class Origin(NamedTuple):
    """Where each value came from: the document's lines, and the paths that overrides have set."""

    document: Document
    overridden: list[tuple[str, ...]]

    def line_of(self, path: tuple[int | str, ...]) -> int | Literal["--set"] | None:
        """The line of a value, or "--set" where an override set it or made the section that it stands in."""
        made = path not in self.document.lines
        for override in self.overridden:
            if path[: len(override)] == override or (made and override[: len(path)] == path):
                return "--set"
        return self.document.line_of(path)


def _place(problem: Problem) -> int:
    return problem.line if isinstance(problem.line, int) else LARGEST_FILE_BYTES


def _read_file(path: Path) -> str:
    source = str(path)
    try:
        if path.is_dir():
            raise one_problem(source, "is a folder, not a spec", "name a YAML file or a study of the catalogue")
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise one_problem(source, "is larger than 1 MB, too large for a spec", "name a study spec")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        names = ", ".join(catalogue())
        raise one_problem(source, "there is no such file", f"check the path, or use one of {names}") from None
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start})"
        raise one_problem(source, message, "save it as UTF-8") from None
    except OSError as error:
        raise one_problem(source, f"can't be read ({error.strerror})", "check the path and its permissions") from None


def _read_document(text: str, source: str) -> Document:
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
    return document


def _apply(override: str, origin: Origin) -> list[Problem]:
    """Puts one `key.path=value` into the document; returns what is wrong with its form."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if parts[0] == "sweep" and len(parts) > 2:
        parts = ["sweep", ".".join(parts[1:])]
    if not equals or not all(parts):
        return [_override_problem("", override, "is not key=value", "write it like sweep.num_gpus=[1, 2]")]
    try:
        value = read_yaml(text)
    except NotReadableError as error:
        return [_override_problem(key, text, error.message, "quote the whole argument for your shell")]
    if value.problems:
        return [_override_problem(key, text, problem.message, problem.remedy) for problem in value.problems]
    target: Any = origin.document.data
    for part in parts[:-1]:
        if target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, dict):
            return [_override_problem(key, text, f"can't be set: {part} has no keys", "name a key that is there")]
    target[parts[-1]] = value.data
    origin.overridden.append(tuple(parts))
    return []


def _override_problem(field: str, value: Any, message: str, remedy: str) -> Problem:
    return Problem(field=field, value=value, line="--set", message=message, remedy=remedy)


def _validate(data: dict[str, Any], origin: Origin) -> tuple[StudySpec | None, list[Problem]]:
    """The spec and what is wrong with it. With problems, the spec is what is left without the faulty values: enough
    to check how the others go together, so that all is told at once; None where nothing is left.
    """
    try:
        return StudySpec.model_validate(data), []
    except ValidationError as error:
        problems = [_problem(details, origin) for details in error.errors(include_url=False)]
        locations = [details["loc"] for details in error.errors(include_url=False)]
    try:
        return StudySpec.model_validate({"name": "unnamed", **_without(data, locations)}), problems
    except ValidationError:
        return None, problems


def _problem(details: Any, origin: Origin) -> Problem:
    location = details["loc"]
    message, remedy = explain(details, _known_keys(location[:-1]))
    value = ABSENT if details["type"] == "missing" else details["input"]
    line = origin.line_of(location)
    return Problem(field=field_name(location), value=value, line=line, message=message, remedy=remedy)


def _known_keys(section: tuple[int | str, ...]) -> list[str]:
    model: Any = StudySpec
    for part in section:
        fields = getattr(model, "model_fields", {})
        model = fields[part].annotation if part in fields else None
    return list(getattr(model, "model_fields", {}))


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
