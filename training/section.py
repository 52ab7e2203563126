"""The base of every configuration: which values a section takes, and how it reports what is wrong.

A section is a frozen pydantic model. Nothing is coerced: "2" is not 2, 1 is not true, 2.0 is no whole number and NaN is
no number. Two forms of plain data are read: a list where a tuple is meant, and a whole number where a float is meant.
Every problem names field, value and remedy, and all problems of a section are reported together.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic._internal._model_construction import ModelMetaclass  # type(BaseModel), which mypy takes for no base
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema, to_jsonable_python

from scalestudy.training.exceptions import InputError
from scalestudy.training.redaction import redacted

LARGEST = 2**31 - 1
"""The largest whole number that a key takes, unless its field says otherwise."""
SHOWN_CHARACTERS = 60
CALLABLE = "package.module:callable"
IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
"""The pattern of a name in Python, for JSON Schemas."""

Location = tuple[int | str, ...]
Line = int | Literal["--set"] | None
"""Where a value stands: 1-based, in the file; "--set": on the command line; None: in no file."""
LineOf = Callable[[Location], Line]


class _Read(ModelMetaclass):
    """Makes `Section(key=value)` read its values as `from_dict` does. Pydantic reads the sections in it by itself."""

    def __call__(cls, **values: Any) -> Any:  # noqa: N805  of a metaclass
        return cls.from_dict(values)  # type: ignore[attr-defined]


class Section(BaseModel, metaclass=_Read):
    """A part of a configuration. Unknown keys are errors; the text below a field is its meaning.

    Making one raises ConfigError with every problem, each with field, value and remedy.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read plain data, or values that are checked already. Raises ConfigError with every problem."""
        section, problems = read(cls, plain)
        if section is None or problems:
            raise ConfigError(problems)
        return section

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, safe for JSON. `from_dict` gives an equal section."""
        return self.model_dump(mode="json")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed. Raises ConfigError with every problem."""
        return self.from_dict({**{name: getattr(self, name) for name in type(self).model_fields}, **changes})


AnySection = TypeVar("AnySection", bound=Section)


class Named(Section):
    """A section with a `name`, which alone may stand for it: `schedule: cosine`. Plain data have it in the short form.

    So a value that was a plain name before it had further keys keeps its form, and a trial its id.
    """

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping | cls):
            return raw
        if not isinstance(raw, str):
            raise wrong("is neither a name nor a mapping", "write a name, or {name: …}")
        try:
            return {"name": value_of(cls.from_dict({"name": raw}), "name")}
        except ConfigError as error:  # at the place where the name stands
            raise wrong(error.problems[0].message, error.problems[0].remedy) from None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        del schema["type"]  # what it says of properties is for a mapping alone
        schema["anyOf"] = [*schema["properties"]["name"]["anyOf"], {"type": "object"}]
        return schema

    @model_serializer(mode="wrap")
    def _write_name(self, handler: SerializerFunctionWrapHandler) -> Any:
        plain = handler(self)
        more = changed(type(self), {key: value for key, value in plain.items() if key != "name"})
        return plain if more else plain["name"]


def name_of(value: Any) -> str:
    """Return the name of a `Named` section, given as such or as plain data in either form. "": it has none."""
    if isinstance(value, Section):
        value = value.to_dict()
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)


@dataclass(frozen=True)
class Affects:
    """What a key can change. A field without this mark can change both."""

    step: bool = True  # the time or the memory of a step
    result: bool = True  # what a training learns; if not, no trial's id depends on the key


@dataclass(frozen=True)
class Only:
    """Marks a key that only one gradient strategy uses."""

    strategy: str


class _Absent:
    """A class, so that it stays the same when it is pickled."""


ABSENT: Any = _Absent
"""The value of a field that is missing. No value is shown then."""

# --- problems ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a configuration."""

    field: str  # dotted path; "" for the whole
    value: Any = ABSENT  # as the user wrote it
    message: str  # what is wrong, a phrase that follows the value
    remedy: str  # what to do
    line: Line = None

    @property
    def what(self) -> str:
        """Everything except the remedy: `optimizer.momentum: 2 is too large`."""
        value = "" if self.value is ABSENT else f"{shown(self.value)} "
        return f"{self.field}: {value}{self.message}" if self.field else f"{value}{self.message}"

    def text(self, source: str = "") -> str:
        """Return one line: `study.yaml:12: sweep.num_gpus: 0 is too small; use at least 1`. source: the file's name."""
        place = self.line if self.line == "--set" else ":".join(str(part) for part in (source, self.line) if part)
        return f"{place}: {self.what}; {self.remedy}" if place else f"{self.what}; {self.remedy}"


class ConfigError(InputError):
    """A configuration that can't be used. Carries every problem; its text has a line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        *others, last = problems
        super().__init__("\n".join([*(problem.text() for problem in others), last.what]), last.remedy)
        self.problems = tuple(problems)
        self.args = (self.problems,)  # what pickle hands back to __init__


EXPLAINED, RELATION = "explained", "relation"
"""Types of errors that carry our words: for a single value, and for values that don't go together."""


def wrong(message: str, remedy: str) -> PydanticCustomError:
    """Return an error for a validator to raise. `explain` keeps its words."""
    return PydanticCustomError(EXPLAINED, "{message}; {remedy}", {"message": message, "remedy": remedy})


@dataclass(frozen=True)
class Clash:
    """A value that does not go with others of its section. The keys are dotted paths in the section."""

    key: str
    message: str  # what is wrong, a phrase that follows the value
    remedy: str
    others: Sequence[str]  # keys of the values with which it was compared


def wrong_together(section: Section, clashes: Iterable[Clash]) -> ValidationError:
    """Return an error for a validator of the section to raise."""
    details = []
    for clash in clashes:
        told = {"message": clash.message, "remedy": clash.remedy, "field": clash.key, "compared": [*clash.others]}
        kind, place = PydanticCustomError(RELATION, "{message}; {remedy}", told), tuple(clash.key.split("."))
        details.append(InitErrorDetails(type=kind, loc=place, input=value_of(section, clash.key)))
    return ValidationError.from_exception_data("section", details)


def read(
    section: type[AnySection],
    plain: Any,
    line_of: LineOf = lambda location: None,
    stand_ins: Mapping[str, Any] | None = None,
) -> tuple[AnySection | None, list[Problem]]:
    """Return the section that plain data describe, and every problem with them.

    Faulty values are left out and the rest is read again, so that the values of other sections are compared too. What
    may come from the gap is not reported. The section is None if nothing valid is left.

    Args:
        section: its class.
        plain: a mapping.
        line_of: the line of the value at a path.
        stand_ins: values of required keys, used where the given ones are missing or faulty.
    """
    problems: list[Problem] = []
    data = plain
    while True:
        try:
            return section.model_validate(data), problems
        except ValidationError as error:
            found = error.errors(include_url=False)
        told = [problem.field for problem in problems]
        problems += [_problem(section, each, line_of) for each in found if not _comes_from_a_gap(each, told)]
        before, data = data, _without(data, [details["loc"] for details in found])
        if isinstance(data, dict):
            data = {**(stand_ins or {}), **data}
        if data == before:  # a required key without a stand-in, or no mapping at all
            return None, problems


def _comes_from_a_gap(error: Any, told: Collection[str]) -> bool:
    """Whether one of pydantic's errors may be there because a faulty value was left out. told: the faulty fields."""
    field, compared = field_name(error["loc"]), [field_name(error["loc"])]
    if error["type"] == RELATION:
        section = field.removesuffix(error["ctx"]["field"])
        compared += [f"{section}{key}" for key in error["ctx"]["compared"]]
    return any(each == key or each.startswith(f"{key}.") for each in told for key in compared)


def _problem(section: type[Section], details: Any, line_of: LineOf) -> Problem:
    """Put one of pydantic's errors into words."""
    location, value = details["loc"], details["input"]
    around: Any = None  # the type of the section around the value
    kind: Any = section  # of the value
    for part in location:
        field = kind.model_fields.get(part) if is_section(kind) else None
        around, kind = kind, field.annotation if field else None
    message, remedy = explain(details, around.model_fields if is_section(around) else ())
    if is_section(kind) and details["type"] != EXPLAINED and (text := _as_mapping(kind, value)):
        remedy = f"write {text}"
    elif details["type"] == "missing":
        value = ABSENT
    return Problem(field=field_name(location), value=value, message=message, remedy=remedy, line=line_of(location))


def _without(data: Any, locations: list[Location], here: Location = ()) -> Any:
    """Return a copy of the data without the values at these locations, or at one within a tuple or a value."""
    if isinstance(data, Mapping):
        kept = {key: value for key, value in data.items() if (*here, key) not in locations}
        return {key: _without(value, locations, (*here, key)) for key, value in kept.items()}
    if isinstance(data, list):
        return [
            _without(value, locations, (*here, index))
            for index, value in enumerate(data)
            if (*here, index) not in locations
        ]
    return data


def field_name(location: Location) -> str:
    """Return the dotted path of a value, without positions in lists: the value itself shows which item it is."""
    return ".".join(part for part in location if isinstance(part, str))


def explain(error: Any, known_keys: Collection[str] = ()) -> tuple[str, str]:
    """Put one entry of pydantic's `ValidationError.errors()` into words: what is wrong, and the remedy.

    known_keys: the valid keys of the section, to help with an unknown one.
    """
    context = error.get("ctx", {})
    key = error["loc"][-1] if error["loc"] else ""
    match error["type"]:
        case "explained" | "relation":
            return context["message"], context["remedy"]
        case "extra_forbidden":
            known = f"the keys here are {', '.join(sorted(known_keys))}" if known_keys else "remove it"
            return "stands under an unknown key", did_you_mean(key, known_keys) + known
        case "missing":
            return "is missing", f"add `{key}: …`"
        case "int_type" | "int_from_float" | "int_parsing_size":
            return "is not a whole number", "write a whole number without quotes or a point, such as 2"
        case "finite_number":
            return "is not a finite number", "write a finite number, such as 0.1"
        case "float_type" if type(error["input"]) is int:  # one that no float holds
            return "is not a finite number", "write a finite number, such as 0.1"
        case "float_type":
            return "is not a number", "write a number without quotes, such as 0.1"
        case "bool_type":
            return "is not true or false", "write true or false without quotes"
        case "string_type":
            return "is not text", "write text; put quotes around what looks like a number"
        case "tuple_type" | "list_type":
            return not_a_list(error["input"])
        case "dict_type" | "model_type" | "model_attributes_type":
            return "is not a mapping", "write keys and values, `key: value`"
        case "greater_than":
            return "is too small", f"it must be greater than {context['gt']:g}"
        case "greater_than_equal":
            return "is too small", f"use at least {context['ge']:.10g}"
        case "less_than":
            return "is too large", f"it must be less than {context['lt']:g}"
        case "less_than_equal":
            return "is too large", f"use at most {context['le']:.10g}"
        case _:
            return f"is not valid ({error['msg']})", "correct it"


def shown(value: Any) -> str:
    """Return a value as a user would write it, without passwords, cut to `SHOWN_CHARACTERS`."""
    if isinstance(value, float) and not math.isfinite(value):
        text = ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    else:
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    text = "".join(character if character.isprintable() else "?" for character in redacted(text))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Section) else str(value)


def text_of(value: Any) -> str:
    """Return a value as YAML and the command line write it: `false`, `null`, `sgd`."""
    value = _plain(value) if isinstance(value, Section) else value
    return value if isinstance(value, str) else json.dumps(value)


def alternatives(values: Iterable[object]) -> str:
    """List values as `a, b or c`."""
    *others, last = (value if isinstance(value, str) else shown(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


SYNONYMS: Mapping[str, str] = {
    "workers": "num_gpus",
    "num_workers": "num_gpus",
    "gpus": "num_gpus",
    "batch": "batch_size",
    "lr": "learning_rate",
    "rate": "learning_rate",
    "train.schedule.name": "train.schedule",
}
"""What others call a key."""


def did_you_mean(wrong_one: object, names: Collection[str]) -> str:
    """Return `did you mean "x"? ` if a known name is close to the wrong one or means the same. Otherwise empty."""
    close = difflib.get_close_matches(str(wrong_one)[:100], list(names), n=1, cutoff=0.6)
    if (same := SYNONYMS.get(str(wrong_one))) in names:
        close = [str(same)]
    return f'did you mean "{close[0]}"? ' if close else ""


def as_list(value: Any) -> str | None:
    """Return the list to write in place of a value that is none: `[64, 128]` for "64, 128", `[0.9]` for "90%".

    None for a mapping, null and empty or long text, which no list can hold.
    """
    if isinstance(value, str):
        items = [_item(part) for part in re.split(r"[,\s]+", value) if part]
    else:
        items = [] if value is None or isinstance(value, Mapping) else [shown(value)]
    text = f"[{', '.join(items)}]"
    return text if items and len(text) <= SHOWN_CHARACTERS else None


def _item(text: str) -> str:
    """Return a word of a text as an item of a list: 0.75 for "75%", a number and a name as they are."""
    if re.fullmatch(r"\d+(\.\d+)?%", text):
        return f"{float(text[:-1]) / 100:g}"
    return text if re.fullmatch(r"[+-]?[\w.][\w.:+-]*", text) and not text.endswith(":") else shown(text)


def _as_mapping(section: type[Section], value: Any) -> str | None:
    """Return the mapping to write in place of a bare name: `{name: sgd}` for "sgd" where an optimizer is meant.

    None for any other value, and for a name that several keys of the section, or none, may have.
    """
    if not isinstance(value, str):
        return None
    names = {key: known for key, field in section.model_fields.items() if (known := names_of(field)) is not None}
    keys = [key for key, known in names.items() if value in known] or [key for key in names if key == "name"]
    return f"{{{keys[0]}: {_item(value)}}}" if len(keys) == 1 else None


def not_a_list(value: Any) -> tuple[str, str]:
    """Return what is wrong with a value where a list is meant, and the remedy: the text to write."""
    text = as_list(value)
    return "is not a list", f"write a list: {text}" if text else "list at least one value, or remove the key"


# --- types of values --------------------------------------------------------------------------------------------------


def _not_blank(value: str) -> str:
    if not value.strip():
        raise wrong("is empty", "write a value, or remove the key")
    return value


def _named(value: Any) -> Any:
    is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if not is_mapping:
        raise wrong("is not a mapping of names to values", 'write names and values, such as {"width": 64}')
    return dict(value)


Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, AfterValidator(_not_blank)]
Arguments = Annotated[dict[str, Any], BeforeValidator(_named)]
"""Keyword arguments of something that the user names. Only the user knows which values they take."""


class _Exact:
    """Goes with a Literal: it takes these values only, and only with their types, so that 1 is not true."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = typing.get_args(source)

        def check(value: Any) -> Any:
            if any(type(value) is type(choice) and value == choice for choice in choices):
                return value
            guess = did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])
            raise wrong(f"is not {alternatives(choices)}", f"{guess}choose {alternatives(choices)}")

        return core_schema.no_info_before_validator_function(check, handler(source))


EXACT = _Exact()


def has_path_form(value: str) -> bool:
    """Whether the value has the form `package.module:callable`."""
    module_name, colon, attribute = value.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module_name.split("."))


def not_built_in(value: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return what is wrong with a value and the remedy, or None if it is a name or `package.module:callable`."""
    if value in names or has_path_form(value):
        return None
    path = value.replace(".py:", ":").replace("/", ".")
    guess = f'did you mean "{path}"? ' if has_path_form(path) else did_you_mean(value, names)
    choose = f"choose {', '.join(names)}, or write" if names else "write"
    return "is not built in", f"{guess}{choose} {CALLABLE}"


@dataclass(frozen=True, eq=False)  # a union of types asks for its hash
class BuiltIn:
    """Goes with Text: it takes these names, and any text of the form `package.module:callable`."""

    names: Collection[str]
    more: Collection[str] = ()
    """Further names, which no list shows. Other validators may refuse them with a better reason."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": self.forms()}

    def forms(self) -> list[dict[str, Any]]:
        """Return the JSON Schema of each form that a value may have."""
        return [{"enum": [*self.names, *self.more]}, {"type": "string", "pattern": "^[^:]+:[^:]+$"}]

    def _check(self, value: str) -> str:
        if value not in self.more and (problem := not_built_in(value, self.names)):
            raise wrong(*problem)
        return value


# --- the fields of a section ------------------------------------------------------------------------------------------


def is_section(kind: Any) -> bool:
    """Whether a field's type is a section with further keys."""
    return isinstance(kind, type) and issubclass(kind, Section)


def leaves(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield the path and the field of each plain key of a section and of the sections in it."""
    for name, field in section.model_fields.items():
        if is_section(field.annotation):
            yield from leaves(typing.cast(type[Section], field.annotation), (*path, name))
        else:
            yield (*path, name), field


def value_of(section: object, key: str) -> Any:
    """Return the value of a dotted key, such as `optimizer.momentum`."""
    return functools.reduce(getattr, key.split("."), section)


def _options(field: FieldInfo) -> list[Any]:
    """Return the types of which a value may be one, without marks and null."""
    bare = [typing.get_args(each)[0] if typing.get_origin(each) is Annotated else each for each in _types(field)]
    return [each for each in bare if each is not type(None)]


def kind_of(field: FieldInfo) -> Any:
    """Return the type of the values that are not listed one by one: int, float, bool, str, tuple or dict; else None."""
    kinds = [typing.get_origin(each) or each for each in _options(field)]
    return next((kind for kind in kinds if kind is not Literal), None)


def choices_of(field: FieldInfo) -> tuple[Any, ...]:
    """Return the values that a key's type lists one by one. Empty if it lists none."""
    literals = [each for each in _options(field) if typing.get_origin(each) is Literal]
    return tuple(choice for literal in literals for choice in typing.get_args(literal))


def names_of(field: FieldInfo) -> Collection[str] | None:
    """Return the built-in names of a key that also takes a callable of the user's. None: it takes none."""
    mark = _mark(field, BuiltIn)
    return mark.names if mark else None


def affects(field: FieldInfo) -> Affects:
    """Return what a key can change."""
    return _mark(field, Affects) or Affects()


def strategy_of(field: FieldInfo) -> str:
    """Return the only gradient strategy that uses a key. "": all do."""
    mark = _mark(field, Only)
    return mark.strategy if mark else ""


Mark = TypeVar("Mark")


def _mark(field: FieldInfo, kind: type[Mark]) -> Mark | None:
    """Return the mark of this kind that a field or one of its types has: `Annotated[X, mark] | None` has it within."""
    marks = [*field.metadata, *(mark for each in _types(field) for mark in getattr(each, "__metadata__", ()))]
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _types(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types of which a value may be one, each with its marks."""
    kind = field.annotation
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def default_of(field: FieldInfo) -> Any:
    """Return a field's default as plain data. None if the key is required."""
    return None if field.is_required() else to_jsonable_python(field.get_default(call_default_factory=True))


@functools.cache
def _keys(section: type[Section]) -> Mapping[str, tuple[Affects, Any, Any]]:
    """Return what each key can change, its type, and its default: ABSENT if it is required. Each trial's id asks."""
    return {
        name: (affects(field), field.annotation, ABSENT if field.is_required() else default_of(field))
        for name, field in section.model_fields.items()
    }


def meaning_of(field: FieldInfo) -> str:
    """Return the text below a field, in one line, without the details that follow an empty line."""
    return " ".join((field.description or "").partition("\n\n")[0].split())


def details_of(field: FieldInfo) -> str:
    """Return the details below a field, after its meaning, in one line. "": there are none."""
    return " ".join((field.description or "").partition("\n\n")[2].split())


def summary_of(field: FieldInfo) -> str:
    """Return what a key may be beside its default, and its meaning: `or linear: how the rate falls`."""
    names, default = names_of(field), default_of(field)
    listed = choices_of(field) if names is None else (*names, CALLABLE)
    others = [text_of(each) for each in listed if each != default or type(each) is not type(default)]
    return f"or {', '.join(others)}: {meaning_of(field)}" if others else meaning_of(field)


def changed(
    section: type[Section],
    plain: Mapping[str, Any],
    matters: Callable[[Affects], bool] = lambda affects: True,
    always: Collection[str] = (),
) -> dict[str, Any]:
    """Return the values of plain data that are not the defaults, of keys that matter; of the sections in it likewise.

    So a key that a later version adds leaves no trace until somebody sets it. Keys that the section lacks are kept.
    always: dotted paths of keys that are kept at their defaults too.
    """
    kept: dict[str, Any] = {}
    for name, value in plain.items():
        affected, kind, default = _keys(section).get(name, (None, None, ABSENT))
        if affected is not None and not matters(affected):
            continue
        if is_section(kind) and isinstance(value, Mapping):
            below = [key.partition(".")[2] for key in always if key.startswith(f"{name}.")]
            value = changed(typing.cast(type[Section], kind), value, matters, below)
            if not value:
                continue
            if set(value) == {"name"} and issubclass(typing.cast(type[Section], kind), Named):
                value = value["name"]
        elif value == default and name not in always:
            continue
        kept[name] = value
    return kept
