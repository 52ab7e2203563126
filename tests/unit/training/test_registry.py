"""Names and import paths."""

from __future__ import annotations

import pathlib
import sys
from pathlib import Path

import pytest

from scalestudy.training.registry import (
    DATASETS,
    GRADIENT_SYNCS,
    MODELS,
    call_with,
    check_name,
    resolve,
    searched_folders,
)


@pytest.mark.parametrize("table", [MODELS, DATASETS, GRADIENT_SYNCS])
def test_every_built_in_name_resolves(table: dict[str, str]) -> None:
    assert all(callable(resolve(name, table)) for name in table)


def test_a_path_resolves() -> None:
    assert resolve("json:dumps", MODELS)([1]) == "[1]"


@pytest.mark.parametrize("name", ["", "lenat"])
def test_what_is_neither_name_nor_path_is_refused_with_the_choices(name: str) -> None:
    """The table of bad input has more: tests/unit/experiments/spec/bad_input.txt."""
    with pytest.raises(
        ValueError, match=r"^'.*' is not built in; .*choose lenet, mlp, resnet18, linear_regression, or write package"
    ):
        check_name(name, MODELS)


def test_a_missing_module_or_callable_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="there is no module 'nowhere'"):
        resolve("nowhere.models:Net", MODELS)
    with pytest.raises(ValueError, match=r"there is no module 'scalestudy\.training\.nowhere'"):
        resolve("scalestudy.training.nowhere:Net", MODELS)
    with pytest.raises(ValueError, match="that has nowhere/, or put that folder on PYTHONPATH"):
        resolve("nowhere.models:Net", MODELS)
    with pytest.raises(ValueError, match="no callable 'PHASES'"):
        resolve("scalestudy.training.records:PHASES", MODELS)


def test_the_folders_that_were_searched_are_those_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, mine = Path(pathlib.__file__).parent, tmp_path / "mine"
    mine.mkdir()
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    entries = ["", str(library), str(packages), "mine", str(mine), str(tmp_path / "none"), "/x/python311.zip"]
    monkeypatch.setattr(sys, "path", entries)
    assert searched_folders() == [str(tmp_path), str(mine)]


def test_what_a_users_module_lacks_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_module.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        resolve("users_module:Net", MODELS)
    sys.modules.pop("users_module", None)


def test_call_with_names_what_is_taken() -> None:
    def function(first: int, second: int = 0) -> int:
        return first + second

    assert call_with(function, "f", 1, second=2) == 3
    assert call_with(lambda what, function: what + function, "f", what=1, function=2) == 3, "a user's own names"
    with pytest.raises(
        ValueError,
        match=r"^f: function\(first: 'int', second: 'int' = 0\) is called with \(1, "
        r"third='3', more=<dict>\): got an unexpected keyword argument 'third'; it takes first, second$",
    ):
        call_with(function, "f", 1, third="3", more={"much": list(range(99))})


def test_call_with_passes_on_the_functions_own_type_error() -> None:
    def function() -> None:
        raise TypeError("from within")

    with pytest.raises(TypeError, match="from within"):
        call_with(function, "f")
