"""The table of every key in docs/keys.md, from the text of a new spec and the spec's own models.

`python infra/docs/spec_keys.py` writes it. `make docs` does so first, and a test holds the two together.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from scalestudy.experiments.spec.reading import template
from scalestudy.experiments.spec.sweep import DEFAULTS

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "experiments" / "spec" / "sections.py"
PAGE = ROOT / "docs" / "keys.md"
BEGIN, END = "<!-- keys: written by infra/docs/spec_keys.py -->", "<!-- end of keys -->"

DEFAULT = {"name": "none"} | {f"sweep.{key}": f"not swept: `{value}`" for key, (value,) in DEFAULTS.items()}
"""Of keys to which the template gives an example."""

LINE = re.compile(r"^(?P<indent> *)(?P<key>\w+):\s*(?P<value>[^#]*?)\s*(?:#\s*(?P<words>.*))?$")


def rows(text: str) -> list[tuple[str, str, str]]:
    """Of every key in a spec: its name with its sections, its value as written, and the comment beside it."""
    found: list[tuple[str, str, str]] = []
    sections: list[str] = []
    for line in text.splitlines():
        if (match := LINE.match(line)) is None:
            continue
        sections = [*sections[: len(match["indent"]) // 2], match["key"]]
        if match["value"]:
            found.append((".".join(sections), match["value"], match["words"] or ""))
    return found


def docstrings(source: str) -> dict[str, str]:
    """By key with its section, the text below its field in the models."""
    found = {}
    for section in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for field, text in zip(section.body, section.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
                key = f"{section.name.lower()}.{field.target.id}"
                found[key] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[attr-defined]
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def table() -> str:
    """The table in Markdown."""
    texts = docstrings(MODELS.read_text("utf-8"))
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key, value, words in rows(template()):
        meaning = (words or texts.get(key, "")).replace("<", "&lt;")
        lines.append(f"| `{key}` | {DEFAULT.get(key, f'`{value}`')} | {meaning} |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with the table between its marks. Raises ValueError where they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: needs the lines {BEGIN} and {END}, between which the table is written")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    """Writes the page anew."""
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
