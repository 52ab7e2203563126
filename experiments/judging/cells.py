"""What the cells of a table say: numbers in several notations, dates, words. A column is read as a whole."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from scalestudy.experiments.judging.runs import SourceError

Mark = Literal[",", "."]
"""The mark before a number's decimals."""

_NUMBER = re.compile(
    r"(?!\d+(?:\.\d+){3}$)[+-]?"  # an IP address is none
    r"(?P<whole>\d{1,3}(?P<group>[.,'’ ])\d{3}(?:(?P=group)\d{3})*(?:(?!(?P=group))[.,]\d*)?|\d*[.,]\d+|\d+[.,]?)"
    r"(?P<power>[eE][+-]?\d+)?(?P<percent> ?%)?"
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
"""A number in which the one mark may be of decimals or of thousands."""
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_NOTHING = {"", "na", "n/a", "#n/a", "null", "none", "-", "–", "—"}
"""Words for a missing value. Beside text they stay text: `none` is the name of a scheduler too."""
_TRUTH = {"true": True, "false": False}
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|UTC|[+-]\d\d:?\d\d))?")
_CLOCK = re.compile(r"(?P<hours>\d+):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d(\.\d+)?)")


def value_of(text: str) -> Any:
    """Return what one text says where no others help: a number as Python writes it, a truth value, else the text."""
    plain = _plain_numbers([text])
    return plain[0] if plain is not None and plain[0] is not None else _TRUTH.get(text.casefold(), text)


def columns_of(names: Sequence[str], texts: Sequence[Sequence[str]], source: str, semicolons: bool) -> list[list[Any]]:
    """Return the values of a table's columns of texts; None: the cell is empty.

    A comma is a mark of decimals or of thousands, whichever the column says, else the other columns. A percentage
    becomes a share, a date POSIX seconds (UTC unless it says its zone), `1:02:03` seconds.

    semicolons: whether semicolons part the columns, as they do where a comma is the mark of decimals.
    Raises SourceError for a column that says both, or where nothing says which.
    """
    columns = [[_tidy(text) for text in column] for column in texts]
    plain = [_plain_numbers(column) for column in columns]
    marked = [values is None and _is_numeric(column) for column, values in zip(columns, plain, strict=True)]
    if not any(marked):
        return [_words(column) if values is None else values for column, values in zip(columns, plain, strict=True)]
    numeric = [values is not None or more for values, more in zip(plain, marked, strict=True)]
    said = [_decimal_marks(column) if known else set[Mark]() for column, known in zip(columns, numeric, strict=True)]
    everywhere = set[Mark]().union(*said)
    has_commas = any("," in text for column, more in zip(columns, marked, strict=True) if more for text in column)
    of_others: Mark | None = None
    if len(everywhere) < 2:
        of_others = next(iter(everywhere), "," if semicolons and has_commas else None)
    result = []
    for name, column, values, known, marks in zip(names, columns, plain, numeric, said, strict=True):
        if not known:
            result.append(_words(column))
            continue
        if len(marks) > 1:
            raise SourceError(f"{source}: column {name!r} has decimals with commas and with points", "use one mark")
        mark = next(iter(marks), of_others)
        unclear = next((text for text in column if "," in text and _THOUSANDS.fullmatch(text.lstrip("+-"))), None)
        if mark is None and unclear:
            what = f"{source}: column {name!r}: {unclear!r} may be a whole number or one with three decimals"
            raise SourceError(what, "write the column without marks of thousands")
        is_read = mark != ","
        result.append(values if is_read and values else [_number(text, mark or ".") for text in column])
    return result


def _tidy(text: str) -> str:
    """Return a cell with one kind of space and of minus."""
    text = text.strip()
    if not text.isascii():
        text = text.replace("\u2212", "-").replace("\u00a0", " ").replace("\u202f", " ").strip()
    return text


def _plain_numbers(column: Sequence[str]) -> list[Any] | None:
    """Return the numbers of a column in Python's notation, whole ones as int; None: it has something else."""
    if not any(column):
        return [None] * len(column)
    try:
        whole = [int(text) if text else None for text in column]
    except ValueError:
        try:
            numbers = [float(text) if text else None for text in column]
        except ValueError:
            return None
        return None if any("_" in text for text in column) else numbers
    return None if any("_" in text for text in column) else whole


def _is_numeric(column: Iterable[str]) -> bool:
    """Whether a column has numbers, and beside them nothing but words for what is none."""
    texts = {text for text in column if text.casefold() not in _NOTHING}
    return any(_NUMBER.fullmatch(text) for text in texts) and all(
        _NUMBER.fullmatch(text) or text.casefold().lstrip("+-") in _WORDS for text in texts
    )


def _decimal_marks(column: Iterable[str]) -> set[Mark]:
    """Return the marks that must be of decimals, by the digits around them."""
    marks: set[Mark] = set()
    for text in set(column):
        found = _NUMBER.fullmatch(text)
        if found is None:
            continue
        whole = found["whole"]
        comma, point = whole.rfind(","), whole.rfind(".")
        if comma >= 0 and point >= 0:
            marks.add("," if comma > point else ".")
        elif comma >= 0 or point >= 0:
            mark: Mark = "," if comma >= 0 else "."
            several, spaced = whole.count(mark) > 1, any(each in whole for each in " '’")
            if several:
                marks.add("." if mark == "," else ",")
            elif spaced or found["power"] or not _THOUSANDS.fullmatch(whole):
                marks.add(mark)
    return marks


def _number(text: str, mark: Mark) -> float | int | None:
    found = _NUMBER.fullmatch(text)
    if not found:
        word = _WORDS.get(text.casefold().lstrip("+-"))
        return -word if word is not None and text.startswith("-") else word
    bare = re.sub(r"[ '’]", "", text.removesuffix("%"))
    bare = bare.replace("." if mark == "," else ",", "").replace(mark, ".")
    value: float | int = int(bare) if bare.lstrip("+-").isdigit() else float(bare)
    return value / 100 if found["percent"] else value


def _words(column: Sequence[str]) -> list[Any]:
    """Return the values of a column that has no numbers: truth values, dates, durations, else texts."""
    texts = {text for text in column if text}
    if all(text.casefold() in _TRUTH for text in texts):
        return [_TRUTH.get(text.casefold()) for text in column]
    if all(_DATE.fullmatch(text) for text in texts):
        return [_posix(text) if text else None for text in column]
    if all(_CLOCK.fullmatch(text) for text in texts):
        return [_duration(text) if text else None for text in column]
    return [text or None for text in column]


def _posix(text: str) -> float | str:
    """Return a date as POSIX seconds; the text, if there is no such day."""
    try:
        at = datetime.fromisoformat(text.replace(",", ".").replace(" UTC", "Z").replace(" +", "+").replace(" -", "-"))
    except ValueError:
        return text
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _duration(text: str) -> float:
    found = _CLOCK.fullmatch(text)
    assert found is not None
    return int(found["hours"]) * 3600 + int(found["minutes"]) * 60 + float(found["seconds"])
