"""The tables of `make bench`: a part is a title, a header and a function that measures its rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalestudy.orchestration.base.environment import Output

Rows = list[list[str]]


@dataclass(frozen=True)
class Part:
    """One table; `measure(folder, small=…)` gives its rows. small: sizes that prove that it works, and no more."""

    title: str
    header: list[str]
    measure: Callable[..., Rows]

    def text(self, *, small: bool = False) -> str:
        """Measures in a folder of its own; Markdown."""
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
            rows = self.measure(Path(name), small=small)
        return f"### {self.title}\n\n{table(self.header, rows)}\n"


def table(header: list[str], rows: Rows) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def print_parts(parts: Mapping[str, Part], arguments: Sequence[str] = ()) -> None:
    """Measures and prints the named parts, or all of them; `--small` among the arguments makes them short.

    What Ray and the workers say goes to a file, which is kept when a part fails.
    """
    wanted = [argument for argument in arguments if argument != "--small"] or list(parts)
    unknown = [name for name in wanted if name not in parts]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: not one of {', '.join(parts)}")
    for name in wanted:
        log = Path(tempfile.gettempdir()) / f"bench-{name}-{os.getpid()}.log"
        with Output() as output:
            output.keep_in(log)
            try:
                text = parts[name].text(small="--small" in arguments)
            except BaseException:
                print(f"{name} failed; what was said meanwhile: {log}", file=output.screen)
                raise
            print(text, file=output.screen)
        log.unlink()
