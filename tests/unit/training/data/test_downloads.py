"""Where data files lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.training.data.downloads import default_root


def test_the_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCALESTUDY_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("SCALESTUDY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "scalestudy" / "data"
