"""Texts that somebody has read and approved: a file beside the test, compared whole.

`SCALESTUDY_APPROVE=1 python -m pytest FILE` writes the files anew; read what changed in them before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

APPROVE = "SCALESTUDY_APPROVE"


def assert_approved(test: str, name: str, text: str) -> None:
    """Fail unless a text is the one in `approved/NAME.txt` beside a test file. test: the file's `__file__`."""
    file = Path(test).parent / "approved" / f"{name}.txt"
    text = text.rstrip() + "\n"
    if os.environ.get(APPROVE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    approved = file.read_text("utf-8") if file.exists() else ""
    assert text.splitlines() == approved.splitlines(), f"{APPROVE}=1 approves what is new in {file}"
