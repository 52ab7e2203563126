"""Libraries that are loaded ahead."""

import sys

from scalestudy.orchestration.study.ahead import load_ahead


def test_modules_are_loaded_and_what_cannot_be_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "loaded_later_one.py").write_text("value = 1")
    (tmp_path / "loaded_later_bad.py").write_text("raise OSError('no library')")
    (tmp_path / "loaded_later_two.py").write_text("value = 2")
    monkeypatch.syspath_prepend(tmp_path)
    load_ahead(["loaded_later_one", "loaded_later_bad", "loaded_later_two"]).join(10)
    assert sys.modules.pop("loaded_later_one").value == 1
    assert "loaded_later_bad" not in sys.modules
    assert sys.modules.pop("loaded_later_two").value == 2
