"""Stages 7 to 9: the files of one study. Every path inside a study's folder is made here and nowhere else."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.plan import Plan


@dataclass(frozen=True)
class StudyFolder:
    """A study's folder, `<storage>/<study_id>/`. Files are written aside, then renamed; trials are appended whole."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @property
    def study_id(self) -> str:
        """Name + UTC timestamp, as the plan's file says; the folder may have another name. Before that, its name."""
        if self.plan_file.exists():
            return str(json.loads(self.plan_file.read_text("utf-8")).get("study_id") or self.path.resolve().name)
        return self.path.resolve().name

    @property
    def spec_file(self) -> Path:
        """The resolved spec."""
        return self.path / "spec.yaml"

    @property
    def plan_file(self) -> Path:
        """The plan, `Plan.to_dict`."""
        return self.path / "plan.json"

    @property
    def trials_file(self) -> Path:
        """One line an ended trial."""
        return self.path / "trials.jsonl"

    @property
    def summary_file(self) -> Path:
        """The analysis, strict JSON."""
        return self.path / "summary.json"

    @property
    def report_file(self) -> Path:
        """The report, self-contained HTML."""
        return self.path / "report.html"

    @property
    def driver_log(self) -> Path:
        """What Ray and Tune say."""
        return self.path / "driver.log"

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs."""
        return self.path / "logs"

    @property
    def figures(self) -> Path:
        """Folder of the report's figures as PNG."""
        return self.path / "figures"

    def figure_file(self, name: str) -> Path:
        """The PNG file of a figure."""
        return self.figures / f"{name}.png"

    def checkpoints(self, trial_id: str) -> Path:
        """Folder of one trial's checkpoints."""
        return self.path / "checkpoints" / trial_id

    def create(self) -> None:
        """Makes the folder and those in it. Raises OSError where that can't be."""
        for folder in (self.path, self.figures, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def write_text(self, file: Path, text: str) -> None:
        """Writes a file of this folder aside, then renames it: a reader sees the old one or the new one, whole."""
        self.write_bytes(file, text.encode("utf-8"))

    def write_bytes(self, file: Path, content: bytes) -> None:
        """As `write_text`, for bytes."""
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            Path(aside).chmod(0o644)
            Path(aside).replace(file)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise

    def write_json(self, file: Path, data: Mapping[str, Any]) -> None:
        """Strict JSON, written aside. Raises ValueError for NaN and infinity."""
        self.write_text(file, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")

    def write_plan(self, plan: Plan, study_id: str) -> None:
        """Writes the plan with the study's id."""
        self.write_json(self.plan_file, {"study_id": study_id, **plan.to_dict()})

    def read_plan(self) -> Plan:
        """The plan. Raises OSError or ValueError where there is none that can be read."""
        return Plan.from_dict(json.loads(self.plan_file.read_text("utf-8")))

    def append_trial(self, trial: Mapping[str, Any]) -> None:
        """Appends one ended trial: a whole line, on disk when this returns. Raises ValueError for NaN and infinity."""
        line = json.dumps(trial, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
        with self.trials_file.open("ab+") as stream:
            _drop_torn_line(stream)
            stream.write(line.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())

    def read_trials(self) -> list[dict[str, Any]]:
        """The ended trials in the order of their ends; the first record of a trial_id wins.

        A last line torn by a crash is left out. Raises ValueError for a broken line elsewhere.
        """
        trials: dict[str, dict[str, Any]] = {}
        for trial in self._lines():
            trials.setdefault(trial["trial_id"], trial)
        return list(trials.values())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.trials_file.exists():
            return
        whole, _, _torn = self.trials_file.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                trial = json.loads(line)
                trial["trial_id"], trial["params"], trial["status"]
            except (ValueError, KeyError, TypeError):
                remedy = "remove the line; the trial then counts as not run"
                raise ValueError(f"{self.trials_file}:{number}: is not the record of a trial; {remedy}") from None
            yield trial

    def measured_trials(self) -> list[dict[str, Any]]:
        """The ended trials, each with the `workload` and `train` of its plan: what `plan.estimate` learns from."""
        planned = {trial.trial_id: trial for trial in self.read_plan().trials}
        return [
            {**trial, "workload": planned[trial["trial_id"]].workload, "train": planned[trial["trial_id"]].train}
            for trial in self.read_trials()
            if trial["trial_id"] in planned
        ]


def _drop_torn_line(stream: Any) -> None:
    """Cuts what a crash left after the last line's end."""
    size = stream.seek(0, os.SEEK_END)
    position = size
    while position > 0:
        step = min(position, 65_536)
        stream.seek(position - step)
        newline = stream.read(step).rfind(b"\n")
        if newline >= 0:
            stream.truncate(position - step + newline + 1)
            return
        position -= step
    stream.truncate(0)
