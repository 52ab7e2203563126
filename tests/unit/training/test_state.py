"""Saved parameters."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from scalestudy.training.models import LeNet
from scalestudy.training.state import cpu_state, load_state, save_state


def test_a_saved_model_loads_to_the_bit(tmp_path: Path) -> None:
    model, other = LeNet(10, 1), LeNet(10, 1)
    save_state(model, tmp_path / "model.pt")
    other.load_state_dict(load_state(tmp_path / "model.pt"))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_state_is_a_copy() -> None:
    model = LeNet(10, 1)
    state = cpu_state(model)
    with torch.no_grad():
        model[0].bias.fill_(7)
    assert state["0.bias"].max() == 0


def test_an_unwritable_path_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't write") as caught:
        save_state(LeNet(10, 1), tmp_path / "missing" / "model.pt")
    assert str(caught.value).endswith("/missing/model.pt: No such file or directory; choose another path")


def test_a_failure_inside_torch_save_is_a_value_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: object, file: object) -> None:
        raise RuntimeError(f"{file}: file write failed")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(ValueError, match="can't write") as caught:
        save_state(LeNet(10, 1), tmp_path / "model.pt")
    assert ".model.pt." not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code from a file",))


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(_Evil(), protocol=2)])
def test_what_holds_no_tensors_is_refused(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ValueError, match="can't read"):
        load_state(tmp_path / "model.pt")
    assert "code from a file" not in capsys.readouterr().out


def test_a_missing_file_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't read"):
        load_state(tmp_path / "none.pt")
