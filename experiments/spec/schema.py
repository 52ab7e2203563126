"""The JSON Schema of a spec, from which an editor completes and checks.

It says which keys there are and what each may be by itself. Whether values go together, `scalestudy validate` says.
"""

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from scalestudy.experiments.spec.sections import ARGUMENTS, FOLDER_NAME, KINDS, Section, Train, leaf_keys, number_type
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep import ITEMS, Sweep
from scalestudy.training.config import Key, Knobs, keys
from scalestudy.training.registry import DATASETS, LOSSES, METRICS, MODELS

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest one that the YAML support of every editor reads."""
CALLABLE = {"type": "string", "pattern": "^[^:]+:[^:]+$"}
"""`package.module:callable`, or `torchvision:name`."""

IDENTIFIER = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}

Schema = dict[str, Any]


def json_schema() -> Schema:
    """The schema of a whole spec, as plain data without references, so that an editor needs nothing else."""
    plain = StudySpec.model_json_schema(schema_generator=_Untitled)
    schema = _inlined(plain, plain.pop("$defs"))
    schema["description"] = "One study: what is trained, which parameters vary, on which resources, and why."
    sections = schema["properties"]
    _describe(sections, StudySpec)
    for name, field in StudySpec.model_fields.items():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, Section):
            _describe(sections[name]["properties"], field.annotation)
    sections["name"]["pattern"] = f"^{FOLDER_NAME}$"
    for key, names in (("model", MODELS), ("data", DATASETS), ("loss", LOSSES), ("metric", METRICS)):
        named = sections["workload"]["properties"][key]
        named |= _name_of(names)
        del named["type"]
    sections["workload"]["properties"]["metric"]["anyOf"].append(IDENTIFIER)  # of a task
    values = sections["targets"]["properties"]["accuracy"]
    others = f"^(?!({'|'.join(sections['targets']['properties'])})$)[A-Za-z_][A-Za-z0-9_]*$"
    sections["targets"]["patternProperties"] = {others: values}  # the metric's own name
    sections["train"] = _knobs(Train, "How one trial is trained. Any key can be swept too, with a list under `sweep`.")
    sections["sweep"] = _sweep()
    return {"$schema": DIALECT, "title": "A study of scalestudy", **schema}


class _Untitled(GenerateJsonSchema):
    """Makes no titles of the names of fields: an editor shows the name anyhow."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _describe(properties: Schema, section: type[Section]) -> None:
    """Gives each key of a section, and of the sections in it, the text below its field."""
    for name, text in _texts(section).items():
        properties[name]["description"] = text
        kind = section.model_fields[name].annotation
        if inspect.isclass(kind) and issubclass(kind, Section):
            _describe(properties[name]["properties"], kind)


def _texts(section: type[Section]) -> dict[str, str]:
    """By field, the text below it. Pydantic could read it when it makes the class, but that slows every command."""
    (model,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(model, ast.ClassDef)
    found = {}
    for field, below in pairwise(model.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return found


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """A copy in which each reference is what it refers to. Draft 7 ignores what stands beside a reference."""
    plain = dict(schema)
    if "$ref" in plain:
        plain = {**definitions[plain.pop("$ref").rpartition("/")[2]], **plain}
        plain.pop("default", None)  # of a section: its keys have their own
    plain.pop("title", None)
    for key in ("properties", "$defs"):
        if key in plain:
            plain[key] = {name: _inlined(part, definitions) for name, part in plain[key].items()}
    if "anyOf" in plain:
        plain["anyOf"] = [_inlined(part, definitions) for part in plain["anyOf"]]
    return plain


def _name_of(names: Collection[str]) -> Schema:
    return {"anyOf": [{"enum": list(names)}, CALLABLE]}


def _knobs(section: type[Knobs], meaning: str) -> Schema:
    """A section of `scalestudy.training.config`."""
    return {
        "type": "object",
        "description": meaning,
        "properties": {
            key.name: _knobs(key.kind, key.knob.help) if key.is_section else {**_knob(key), "default": _default(key)}
            for key in keys(section)
        },
        "additionalProperties": False,
    }


def _default(key: Key) -> Any:
    return list(key.default) if isinstance(key.default, tuple) else key.default


def _knob(key: Key) -> Schema:
    """The values that a key takes."""
    knob = key.knob
    limits = {
        "minimum": knob.least,
        "exclusiveMinimum": knob.above,
        "exclusiveMaximum": knob.below,
        "maximum": knob.most,
    }
    options: list[Schema] = [{"enum": list(key.choices)}] if key.choices else []
    if knob.names is not None:
        options += _name_of(knob.names)["anyOf"]
    elif key.kind is tuple:
        options.append({"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 1})
    elif key.kind is not None:
        types: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", Mapping: "object"}
        known = {name: limit for name, limit in limits.items() if limit is not None}
        options.append({"type": types[key.kind], **known})
    if key.is_optional:
        options.append({"type": "null"})
    unset = f"; null: {knob.unset}" if key.is_optional else ""
    return {**(options[0] if len(options) == 1 else {"anyOf": options}), "description": f"{knob.help}{unset}"}


def _sweep() -> Schema:
    """The section `sweep`: for each key a list, {choice: [...]} or a range."""
    items: dict[str, Schema] = {name: adapter.json_schema() for name, adapter in ITEMS.items()}
    words = _texts(Sweep)
    for path, key in _leaves(Train, "train."):
        item = _knob(key)
        words[path] = str(item.pop("description"))
        items[path] = item
    assert list(items) == [*ITEMS, *leaf_keys()]
    arguments = f"^({'|'.join(map(re.escape, ARGUMENTS))})\\.[A-Za-z_][A-Za-z0-9_]*$"
    any_value = {"description": "An argument of the model or the data set."}
    point = {
        "type": "object",
        "properties": items,
        "patternProperties": {arguments: any_value},
        "additionalProperties": False,
        "minProperties": 1,
    }
    points = {"type": "array", "items": point, "minItems": 1, "description": words["points"]}
    swept = {path: {"anyOf": list(_values(path, item)), "description": words[path]} for path, item in items.items()}
    return {
        "type": "object",
        "description": "The parameters of the study: every value is tried with every other.",
        "properties": {**swept, "points": points},
        "patternProperties": {arguments: {"anyOf": list(_values(f"{ARGUMENTS[0]}.name", {})), **any_value}},
        "additionalProperties": False,
    }


def _leaves(section: type[Knobs], prefix: str) -> Iterator[tuple[str, Key]]:
    """The keys of a section and its subsections that have a value, by dotted path."""
    for key in keys(section):
        if key.is_section:
            yield from _leaves(key.kind, f"{prefix}{key.name}.")
        else:
            yield f"{prefix}{key.name}", key


def _values(path: str, item: Schema) -> Iterator[Schema]:
    """The forms that a swept parameter's values may have."""
    listed = {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}
    bounds = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    forms = {"choice": listed} | (dict.fromkeys(KINDS, bounds) if number_type(path) else {})
    yield listed
    for word, values in forms.items():
        yield {"type": "object", "properties": {word: values}, "required": [word], "additionalProperties": False}
