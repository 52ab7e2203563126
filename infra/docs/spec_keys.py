"""The table of every key in docs/keys.md, from the models of a spec.

`python infra/docs/spec_keys.py` writes it. `make docs` does so first, and a test holds the two together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep_section import DEFAULTS
from scalestudy.training.section import default_of, details_of, leaves, summary_of, text_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "keys.md"
BEGIN, END = "<!-- keys: written by infra/docs/spec_keys.py -->", "<!-- end of keys -->"


def table() -> str:
    """Return the table in Markdown."""
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *_rows()])


def _rows() -> Iterator[str]:
    for path, field in leaves(StudySpec):
        default = "none" if field.is_required() else f"`{text_of(default_of(field))}`"
        if path[0] == "sweep":
            default = f"not swept: `{DEFAULTS[path[1]][0]}`" if path[1] in DEFAULTS else "none"
        details = f". {details_of(field)}" if details_of(field) else ""
        meaning = f"{summary_of(field)}{details}".replace("<", "&lt;")
        yield f"| `{'.'.join(path)}` | {default} | {meaning} |"


def filled(page: str) -> str:
    """Return the page with the table between its marks. Raises ValueError where they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: needs the lines {BEGIN} and {END}, between which the table is written")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    """Write the page anew."""
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
