"""Data sets by their names: which need files, and what is said where these are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.training.data import DataError, fetch, require
from scalestudy.training.data.downloads import default_root
from scalestudy.training.registry import DATASETS, resolve


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_missing_data_set_names_the_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"`scalestudy data fetch {name}`"):
        require(name, tmp_path)
    with pytest.raises(DataError, match=f"`scalestudy data fetch {name}`"):
        resolve(name, DATASETS)(str(tmp_path))


@pytest.mark.parametrize("name", ["digits", "synthetic", "package.module:callable"])
def test_what_needs_no_files_is_there(name: str, tmp_path: Path) -> None:
    require(name, tmp_path)


def test_an_unknown_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose digits"):
        require("cifar1000", tmp_path)


def test_fetch_of_what_needs_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs no files"):
        fetch("digits", tmp_path)


def test_the_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCALESTUDY_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("SCALESTUDY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "scalestudy" / "data"
