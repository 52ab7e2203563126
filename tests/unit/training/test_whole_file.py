"""A file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.training.whole_file import write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "model.pt"
    write_whole(path, b"old", durable=durable)
    write_whole(path, memoryview(b"new"), durable=durable)
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, b"new", durable=durable)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]
