"""What tests of several rooms share."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, with a home that no other test has."""
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
