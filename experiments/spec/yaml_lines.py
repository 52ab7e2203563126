"""YAML as plain data, with the line of every value.

PyYAML only composes the nodes; the values are built here. So no tag can run code, repeated keys are seen, and aliases
are bounded. Scalars follow YAML 1.2: `1e-3` is a number, while `yes`, `1:30` and a date are text.
"""

import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from scalestudy.training.section import ABSENT, Line, Location, Problem, shown

MAX_VALUES = 50_000
"""Values in one document, aliases written out. A spec that lists 10,000 trials as points has fewer."""
MAX_DEPTH = 40


@dataclass
class Document:
    """Plain data, where the value at each path stands, and the problems of its notation."""

    data: Any = None
    lines: dict[Location, Line] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: Location) -> Line:
        """Return where the value at `path` stands, or the nearest section around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path)


class NotReadableError(ValueError):
    """Text that is not a YAML document of plain data. line: 1-based, None if unknown."""

    def __init__(self, message: str, remedy: str, line: int | None = None) -> None:
        super().__init__(message, remedy, line)
        self.message, self.remedy, self.line = message, remedy, line


def read_yaml(text: str) -> Document:
    """Read one YAML document.

    Raises NotReadableError if the text is not YAML, has several documents, or is too large with its aliases written
    out. Tags and repeated keys become `problems` of the document, so that they are reported together with the rest.
    """
    try:
        node = yaml.compose(text, Loader=_Composer)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise NotReadableError(f"is not YAML: {error.problem}", "correct the YAML on this line", line) from None
    except yaml.YAMLError as error:
        raise NotReadableError(f"is not YAML: {' '.join(str(error).split())}", "correct the YAML") from None
    except RecursionError:
        raise NotReadableError("is nested too deeply", f"use at most {MAX_DEPTH} levels") from None
    document = Document()
    if node is not None:
        document.data = _Builder(document).build(node, (), 0)
    return document


class _Composer(yaml.SafeLoader):
    """A composer that leaves every plain scalar untagged. `_plain_scalar` decides its type."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own name and shape)


_TAG = "tag:yaml.org,2002:"


class _Builder:
    """A builder of plain data from composed nodes. It notes lines and problems in the document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values = 0

    def build(self, node: Node, path: Location, depth: int) -> Any:
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH:
            remedy = f"use at most {MAX_VALUES:,} values, nested at most {MAX_DEPTH} deep, aliases (*name) written out"
            raise NotReadableError("is too large or too deeply nested", remedy, node.start_mark.line + 1)
        shown_tag = node.tag.replace(_TAG, "!!")
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(child, (*path, index), depth + 1) for index, child in enumerate(node.value)]
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._build_mapping(node, path, depth)
        if isinstance(node, ScalarNode) and node.tag.removeprefix(_TAG) in _TAGGED_SCALARS:
            is_plain = node.style is None and node.tag == f"{_TAG}str"
            read = _plain_scalar if is_plain else _TAGGED_SCALARS[node.tag.removeprefix(_TAG)]
            try:
                return read(node.value)
            except (ValueError, KeyError):
                self._add_problem(node, path, f"{shown(node.value)} does not fit its tag {shown_tag}", "remove the tag")
                return None
        self._add_problem(node, path, f"has the tag {shown_tag}, which is refused", "remove the tag")
        return None

    def _build_mapping(self, node: MappingNode, path: Location, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.build(key_node, (*path, "<key>"), depth + 1)
            if not isinstance(key, str) or key == "<<":
                self._add_problem(key_node, path, f"has the key {shown(key)}", "use plain words as keys, no << merges")
            elif key in result:
                first = self.document.lines[(*path, key)]
                remedy = f"keep one of the two (the first is on line {first})"
                self._add_problem(key_node, (*path, key), "is given twice", remedy)
            else:
                self.document.lines[(*path, key)] = key_node.start_mark.line + 1
                result[key] = self.build(value_node, (*path, key), depth + 1)
        return result

    def _add_problem(self, node: Node, path: Location, message: str, remedy: str) -> None:
        name = ".".join(part for part in path if isinstance(part, str) and part != "<key>")
        line = node.start_mark.line + 1
        self.document.problems.append(Problem(field=name, value=ABSENT, line=line, message=message, remedy=remedy))


_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def _plain_scalar(text: str) -> Hashable:
    """Return the value of an unquoted scalar, by YAML 1.2's core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return math.nan if text.lower().endswith("nan") else float(text.replace(".", ""))
    return text


_TAGGED_SCALARS: dict[str, Callable[[str], Hashable]] = {
    "str": str,
    "int": int,
    "float": lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "null": lambda text: _CONSTANTS[text],
}
"""How the value of a quoted or tagged scalar is read."""
