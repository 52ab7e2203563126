"""The JSON Schema of a spec, from which an editor completes and checks.

It says which keys there are and what each may be by itself. Whether values go together, `scalestudy validate` says.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from scalestudy.experiments.spec.sections import ARGUMENTS, KINDS, number_type, sweepable_keys
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep_section import Numbers
from scalestudy.training.section import IDENTIFIER, default_of, leaves

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest one that the YAML support of every editor reads."""
Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the schema of a whole spec, as plain data without references, so that an editor needs nothing else."""
    plain = StudySpec.model_json_schema(schema_generator=_Untitled)
    schema = _inlined(plain, plain.pop("$defs"))
    schema["description"] = "One study: what is trained, which parameters vary, on which resources, and why."
    sections = schema["properties"]
    for path, field in leaves(StudySpec):
        if path[0] != "sweep" and not field.is_required():
            _part(schema, path)["default"] = default_of(field)
    values = sections["targets"]["properties"]["accuracy"]
    others = f"^(?!({'|'.join(sections['targets']['properties'])})$){IDENTIFIER}$"
    sections["targets"]["patternProperties"] = {others: values}  # the metric's own name
    sections["sweep"] = _sweep(sections["sweep"]["properties"], sections["train"])
    return {"$schema": DIALECT, "title": "A study of scalestudy", **schema}


class _Untitled(GenerateJsonSchema):
    """A generator without titles made from fields' names: an editor shows the name anyhow."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Return a copy with each reference replaced by its target. Draft 7 ignores what stands beside a reference."""
    plain = dict(schema)
    if "$ref" in plain:
        plain = {**definitions[plain.pop("$ref").rpartition("/")[2]], **plain}
        plain.pop("default", None)  # of a section: its keys have their own
    plain.pop("title", None)
    if "description" in plain:
        plain["description"] = " ".join(plain["description"].split())
    for key in ("properties", "$defs"):
        if key in plain:
            plain[key] = {name: _inlined(part, definitions) for name, part in plain[key].items()}
    if "anyOf" in plain:
        plain["anyOf"] = [_inlined(part, definitions) for part in plain["anyOf"]]
    return plain


def _part(schema: Schema, path: Iterable[str]) -> Schema:
    """Return the part of a schema that a key has."""
    for name in path:
        schema = schema["properties"][name]
    return schema


def _sweep(fields: Schema, train: Schema) -> Schema:
    """Return the section `sweep`: for each key a list, {choice: [...]} or a range."""
    words = {name: part["description"] for name, part in fields.items()}
    parts: dict[str, Schema] = Numbers.model_json_schema(schema_generator=_Untitled)["properties"]
    for path in sweepable_keys():
        parts[path] = _part(train, path.split(".")[1:])
        words[path] = parts[path]["description"]
    items = {
        path: {key: value for key, value in part.items() if key not in ("default", "description")}
        for path, part in parts.items()
    }
    arguments = f"^({'|'.join(map(re.escape, ARGUMENTS))})\\.{IDENTIFIER}$"
    any_value = {"description": "An argument of the model, the data set, the task or the schedule."}
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


def _values(path: str, item: Schema) -> Iterator[Schema]:
    """Return the forms that a swept parameter's values may have."""
    listed = {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}
    bounds = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    forms = {"choice": listed} | (dict.fromkeys(KINDS, bounds) if number_type(path) else {})
    yield listed
    for word, values in forms.items():
        yield {"type": "object", "properties": {word: values}, "required": [word], "additionalProperties": False}
