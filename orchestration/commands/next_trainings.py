"""The trainings that `--next` lists: as a table, as CSV, and as `sweep.points` of a spec."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.measures.units import money_text, plural, seconds_text, three_digits
from scalestudy.experiments.spec.sections import is_argument
from scalestudy.experiments.spec.sweep_section import sweep_keys
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.study_commands import write_spec_file

YAML = (".yaml", ".yml")
FIGURES = ("seeds", "gain", "repeats", "seconds", "worker_seconds", "cost")
"""The columns of a CSV after the parameters, as rows of `next_trainings` have them."""
HEAD = """\
# {count} of {study}, the one that tells most for its cost first.
# In a copy of its spec they take the place of sweep, search and budget. If the study's trainings ended at the target,
# so do those that were reckoned with here: say targets.stop: true.
"""


def check_file(file: Path | None, count: int | None) -> None:
    """Raise RequestError for a file that can't be written, before any work is done. count: of `--next`."""
    if file is None:
        return
    if count is None:
        raise RequestError("--next-out: goes with --next alone", "add --next 5")
    if file.suffix not in (".csv", *YAML):
        raise RequestError(f"--next-out: {file}: its ending says no format", "name a .csv, or a .yaml for a spec")
    if file.exists():
        raise RequestError(f"--next-out: {file}: is there already", "choose another name, or move the file")
    if not file.parent.is_dir():
        raise RequestError(f"--next-out: {file}: there is no folder {file.parent}", "name a folder that is there")


@dataclass(frozen=True, kw_only=True)
class NextTrainings:
    """What is listed."""

    found: Mapping[str, Any]  # by `next_trainings` of the analysis
    asked: int  # how many were asked for
    written: Path | None  # the file that has it

    @classmethod
    def of(cls, found: Mapping[str, Any], asked: int, file: Path | None, study: str) -> NextTrainings:
        """Write what was found to the file, if one is named and there is something to write. Raises RequestError."""
        if file is None or not present(found):
            return cls(found=found, asked=asked, written=None)
        rows = found["rows"]
        text = csv_text(rows)
        if file.suffix in YAML:
            text = HEAD.format(count=plural(len(rows), "training"), study=study) + points_text(rows, file)
        return cls(found=found, asked=asked, written=write_spec_file(file, text, "--next-out"))

    @property
    def data(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {"next": self.found, **({"next_out": str(self.written)} if self.written else {})}

    @property
    def why_few(self) -> str | None:
        """A line that says why there are none, or fewer than were asked for."""
        if not present(self.found):
            return f"No training is listed: {self.found['why']}."
        return "No other training is expected to lower it." if len(self.found["rows"]) < self.asked else None

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows."""
        falls = f"least {self.found['by']} falls by"
        priced = any(row["cost"] is not None for row in self.found["rows"])
        rows = [
            [
                row["label"],
                str(row["seeds"]),
                f"{100 * row['gain']:.2g}%",
                str(row["repeats"]),
                seconds_text(row["seconds"]),
                three_digits(row["worker_seconds"]),
                *([money_text(row["cost"])] if priced else []),
            ]
            for row in self.found["rows"]
        ]
        header = ["train next", "seeds so far", falls, "after runs", "time", "worker-seconds"]
        return [*header, *(["cost"] if priced else [])], rows


def points_text(rows: Sequence[Mapping[str, Any]], file: Path) -> str:
    """Return the rows as the section `sweep` of a spec.

    Raises RequestError for settings of runs that others made, which no spec has.
    """
    points = [dict(row["params"]) for row in rows]
    others = [key for key in points[0] if key not in sweep_keys() and not is_argument(key)]
    if others:
        raise RequestError(f"--next-out: {file}: no key of a spec is {' or '.join(others)}", "name a .csv")
    plain = {"sweep": {"points": points}}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV: a column a parameter, then the figures."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = list(rows[0]["params"])
    writer.writerow([*names, *FIGURES])
    writer.writerows([*(row["params"][name] for name in names), *(row[figure] for figure in FIGURES)] for row in rows)
    return stream.getvalue()
