"""What MLflow takes as names and values, and what is written in place of what it does not take.

The limits are those of MLflow 3.17 and of the columns of its databases, whichever is smaller. MLflow refuses a whole
request for one name in it, and treats names as paths. Some of its databases take two names for one that differ in case.
"""

import hashlib
import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST_NAME = 250
"""Characters of the name of a parameter, metric or tag, of a run and an experiment."""
LONGEST_PARAM = 6_000
LONGEST_TAG = 8_000
LONGEST_DATA_NAME = 500
LONGEST_DATA_SOURCE = 65_535
LONGEST_FOLDER = 200
"""Bytes of a folder of artifacts: file systems take 255."""
MARK_DIGITS = 6

_NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")


def fitted_names(names: Iterable[str]) -> list[str]:
    """Return for each name the one that it has in MLflow: itself if MLflow takes it, else a readable one with a mark.

    The first of several equal names keeps it; the others get marks too. The result is the same each time.
    """
    taken: set[str] = set()
    found = []
    for name in names:
        fitted = next(each for each in _candidates(name) if each.casefold() not in taken)
        taken.add(fitted.casefold())
        found.append(fitted)
    return found


def fitted_params(params: Iterable[tuple[str, Any]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return parameters as MLflow takes them, and in words what differs from those given, by their names in MLflow."""
    given = list(params)
    fitted: dict[str, str] = {}
    changes: dict[str, str] = {}
    for (name, value), there in zip(given, fitted_names(name for name, _ in given), strict=True):
        text = str(value)
        fitted[there] = fitted_text(text, LONGEST_PARAM)
        words = [f"as {there}"] if there != name else []
        words += [f"cut to {LONGEST_PARAM:,} of {len(text):,} characters"] if len(text) > LONGEST_PARAM else []
        if words:
            changes[there] = f"{fitted_text(name, 100)} {', '.join(words)}"
    return fitted, changes


def fitted_text(text: str, longest: int) -> str:
    """Return a text of at most so many characters that every database takes: no NUL, nothing that is not Unicode."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\0")
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def experiment_name(name: str) -> str:
    """Return the name of an experiment: the given one, unless it is too long or no text for every database."""
    fitted = fitted_text(name, LONGEST_NAME)
    return name if fitted == name else f"{fitted[: LONGEST_NAME - MARK_DIGITS - 1]}-{_mark(name)}"


def artifact_folder(experiment: str) -> str:
    """Return the name of the folder for an experiment's artifacts: the experiment's, unless it can't name a folder."""
    clean = experiment_name(experiment)
    if clean == experiment and "/" not in clean and clean not in (".", "..") and _bytes(clean) <= LONGEST_FOLDER:
        return clean
    while _bytes(clean) > LONGEST_FOLDER - MARK_DIGITS - 1:
        clean = clean[:-1]
    return f"{clean.replace('/', '_').lstrip('.')}-{_mark(experiment)}"


def _candidates(name: str) -> Iterator[str]:
    """Yield the names that a name may have in MLflow, the best first."""
    clean = _NOT_IN_NAMES.sub("_", name)
    if posixpath.normpath(clean) != clean or clean == "." or clean.startswith(("..", "/")):  # MLflow would take a path
        clean = clean.replace("/", "_").lstrip(".") or "_"
    if clean == name and len(name) <= LONGEST_NAME:
        yield name
    for number in itertools.count():
        yield f"{clean[: LONGEST_NAME - MARK_DIGITS - 1]}-{_mark(f'{name} {number}')}"


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:MARK_DIGITS]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))
