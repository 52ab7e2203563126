"""Texts that a person approved once: a test compares a whole page or table with the file beside it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

VARIABLE = "SCALESTUDY_APPROVE"


def approved(text: str, path: Path) -> None:
    """Compare a text with the approved one in a file. With SCALESTUDY_APPROVE=1 write the file anew instead.

    Spaces at the ends of lines do not count.
    """
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get(VARIABLE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), f"{path} is not there; {VARIABLE}=1 writes it, for you to read"
    lines = path.read_text(encoding="utf-8").splitlines()
    differences = "\n".join(difflib.unified_diff(lines, text.splitlines(), "approved", "now", lineterm=""))
    assert not differences, f"differs from {path}; {VARIABLE}=1 rewrites it, for you to read:\n{differences}"
