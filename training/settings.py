"""Settings of a process, which are put back to how they stood; here those of Python.

The driver asks too, so this file loads no torch.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A setting that holds for the whole process, or for its training thread."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


class Settings:
    """Some settings as they stood when this was made."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings = settings
        self._wanted = {name: setting.get() for name, setting in settings.items()}

    def changed(self) -> dict[str, Any]:
        """Return what has changed since, as it is now."""
        now = {name: setting.get() for name, setting in self._settings.items()}
        return {name: value for name, value in now.items() if value != self._wanted[name]}

    def put_back(self) -> list[str]:
        """Put back what has changed since; return the names of it."""
        changed = list(self.changed())
        put_settings(self._settings, {name: self._wanted[name] for name in changed})
        return changed


def put_settings(settings: Mapping[str, Setting], wanted: Mapping[str, Any]) -> None:
    """Set those of the settings that have another value, each by its name."""
    for name, value in wanted.items():
        if settings[name].get() != value:
            settings[name].put(value)


def _folder() -> str | None:
    with contextlib.suppress(OSError):  # it may be gone
        return str(Path.cwd())
    return None


def _put_folder(wanted: str | None) -> None:
    with contextlib.suppress(OSError):
        if wanted is not None:
            os.chdir(wanted)


def _put_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _put_filters(wanted: Sequence[Any]) -> None:
    warnings.resetwarnings()  # Python forgets which warnings it has shown
    warnings.filters[:] = wanted  # type: ignore[index]


def _put_garbage_collection(wanted: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if wanted[0] else gc.disable)()
    gc.set_threshold(*wanted[1])


OF_PYTHON: Mapping[str, Setting] = {
    "the current folder": Setting(_folder, _put_folder),
    "the environment": Setting(lambda: dict(os.environ), _put_environment),
    "sys.path": Setting(lambda: list(sys.path), lambda wanted: sys.path.__setitem__(slice(None), wanted)),
    "the recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "warning filters": Setting(lambda: list(warnings.filters), _put_filters),
    "the locale": Setting(
        lambda: locale.setlocale(locale.LC_ALL), lambda wanted: locale.setlocale(locale.LC_ALL, wanted)
    ),
    "how processes start": Setting(
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda wanted: multiprocessing.set_start_method(wanted, force=True),
    ),
    "garbage collection": Setting(lambda: (gc.isenabled(), gc.get_threshold()), _put_garbage_collection),
}
