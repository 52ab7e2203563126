"""A notebook run as plain Python: its code cells in their order, in one process, as a kernel would without a screen."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

WRITE_FILE = "%%writefile "


def code_cells(notebook: Path) -> list[str]:
    """The source of each code cell."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; returns the value of its last line if that is an expression. `%%writefile FILE` writes the file."""
    if source.startswith(WRITE_FILE):
        head, _, text = source.partition("\n")
        Path(head.removeprefix(WRITE_FILE).strip()).write_text(text, "utf-8")
        return None
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


def shown(value: Any) -> str:
    """What a notebook shows of a value."""
    html = getattr(value, "_repr_html_", None)
    return html() if html else repr(value)


def main(notebook: Path) -> None:
    """Runs a notebook in the current folder; the last line is what each cell showed, as JSON."""
    sys.path.insert(0, "")  # as a kernel has it
    names: dict[str, Any] = {"__name__": "__main__"}
    values = [run_cell(source, names) for source in code_cells(notebook)]
    print(json.dumps([None if value is None else shown(value) for value in values]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
