"""What is wrong with a spec, and how to fix it.

Every problem names file, line, field and value, then says what is wrong and the remedy. pydantic finds most problems;
`explain` puts its error types into these words.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from scalestudy.experiments.spec.addresses import redacted
from scalestudy.training.config import did_you_mean, either

SHOWN_CHARACTERS = 60
ABSENT: Any = object()
"""The value of a field that is missing. No value is shown then."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a spec.

    field: dotted path, "" for the whole file. value: as the user wrote it, or `ABSENT`.
    line: 1-based line in the file, "--set" for a value from the command line, None if there is no file.
    message: what is wrong, a phrase that follows the value. remedy: what to do.
    """

    field: str
    value: Any
    line: int | Literal["--set"] | None
    message: str
    remedy: str

    def text(self, source: str) -> str:
        """Formats the problem as one line: `study.yaml:12: sweep.num_gpus: 0 is too small; use at least 1`."""
        place = self.line if self.line == "--set" else ":".join(str(part) for part in (source, self.line) if part)
        value = "" if self.value is ABSENT else f"{shown(self.value)} "
        field_name = f"{self.field}: " if self.field else ""
        return f"{place}: {field_name}{value}{self.message}; {self.remedy}"


@dataclass
class SpecError(ValueError):
    """A spec that can't be used. Carries every problem, so the user can fix all of them at once."""

    problems: list[Problem]
    source: str = "study.yaml"
    args: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.args = (self.problems, self.source)  # what pickle hands back to __init__

    def __str__(self) -> str:
        return "\n".join(problem.text(self.source) for problem in self.problems)


def one_problem(source: str, message: str, remedy: str, line: int | None = None, value: Any = ABSENT) -> SpecError:
    """Makes the error for a file that can't be read as a spec at all."""
    return SpecError([Problem(field="", value=value, line=line, message=message, remedy=remedy)], source)


def shown(value: Any) -> str:
    """Formats a value as a user would write it, without passwords, cut to `SHOWN_CHARACTERS`."""
    if isinstance(value, float) and not math.isfinite(value):
        text = ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    text = "".join(character if character.isprintable() else "?" for character in redacted(text))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def as_list(value: Any) -> str | None:
    """The list to write in place of a value that is none: `[64, 128]` for the text "64, 128", `[0.9]` for "90%".

    None for a mapping, null and empty or long text, of which no list can be told.
    """
    if isinstance(value, str):
        items = [_item(part) for part in re.split(r"[,\s]+", value) if part]
    else:
        items = [] if value is None or isinstance(value, Mapping) else [shown(value)]
    text = f"[{', '.join(items)}]"
    return text if items and len(text) <= SHOWN_CHARACTERS else None


def _item(text: str) -> str:
    """A word of a text as an item of a list: 0.75 for "75%", a number and a name as they are."""
    if re.fullmatch(r"\d+(\.\d+)?%", text):
        return f"{float(text[:-1]) / 100:g}"
    return text if re.fullmatch(r"[+-]?[\w.][\w.:+-]*", text) and not text.endswith(":") else shown(text)


def not_a_list(value: Any) -> tuple[str, str]:
    """What is wrong with a value where a list is meant, and the remedy: the text to write."""
    text = as_list(value)
    return "is not a list", f"write a list: {text}" if text else "list at least one value, or remove the key"


def alternatives(values: Iterable[object]) -> str:
    """Lists values as `a, b or c`."""
    return either(value if isinstance(value, str) else shown(value) for value in values)


def wrong(message: str, remedy: str) -> PydanticCustomError:
    """Makes an error for a validator to raise. `explain` keeps its words."""
    return PydanticCustomError("explained", "{message}; {remedy}", {"message": message, "remedy": remedy})


def field_name(location: Sequence[int | str]) -> str:
    """The dotted path of a value, without positions in lists: the value itself tells which item it is."""
    return ".".join(part for part in location if isinstance(part, str))


def explain(error: Mapping[str, Any], known_keys: Collection[str] = ()) -> tuple[str, str]:
    """Puts one entry of pydantic's `ValidationError.errors()` into words: what is wrong, and the remedy.

    known_keys: the valid keys of the section, to help with an unknown one.
    """
    context = error.get("ctx", {})
    key = error["loc"][-1] if error["loc"] else ""
    match error["type"]:
        case "explained":
            return context["message"], context["remedy"]
        case "extra_forbidden":
            known = f"the keys here are {', '.join(sorted(known_keys))}" if known_keys else "remove it"
            return "stands under an unknown key", did_you_mean(key, known_keys) + known
        case "missing":
            return "is missing", f"add `{key}: …`"
        case "int_type" | "int_from_float" | "int_parsing_size":
            return "is not a whole number", "write a whole number without quotes or a point, such as 2"
        case "float_type":
            return "is not a number", "write a number without quotes, such as 0.1"
        case "finite_number":
            return "is not a finite number", "write a finite number, such as 0.1"
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
