"""The files of one study, and how they are written. Every path inside a study's folder is made here."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.spec.addresses import child

PLAN_MARKS = ("study_id", "spec_sha256")
"""Keys of plan.json beside the plan's own."""
MODEL_FILE = "model.pt"


@contextmanager
def written_aside(file: Path, content: bytes, *, durable: bool = False) -> Iterator[Path]:
    """Yields a new file beside `file` with the content, for the caller to rename or to link; then removes it.

    durable: the content is on the disk, so that a power cut keeps it. Raises OSError.
    """
    aside = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        with aside.open("xb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def write_whole(file: Path, content: bytes, *, durable: bool = False) -> None:
    """Replaces a file at once: a reader sees the old one or the new one, whole. Raises OSError.

    durable: see `written_aside`.
    """
    with written_aside(file, content, durable=durable) as aside:
        aside.replace(file)


class Mirror(Protocol):
    """Where a study is kept, such as a bucket, if its folder here is a working copy.

    Names are those of the folder's files, such as `journal/00000001.json`. A call returns when the object is there,
    whole. All raise OSError if the storage fails.
    """

    @property
    def address(self) -> str:
        """Of the study, such as s3://bucket/runs/<study_id>."""

    def write(self, name: str, data: bytes) -> None:
        """Holds the data under this name from now on."""

    def create(self, name: str, data: bytes) -> None:
        """As `write`. Raises FileExistsError where something is held under this name."""

    def delete(self, name: str) -> None:
        """Holds nothing under this name; it need not have held anything."""


@dataclass(frozen=True)
class StudyFolder:
    """A study's folder, `<storage>/<study_id>/`. Files are written aside, then renamed; trials are appended whole.

    mirror: where the study is kept, if not here. All is written there first, so that this copy never holds more.
    """

    path: Path
    mirror: Mirror | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @property
    def study_id(self) -> str:
        """Name and UTC time, as the plan's file says; the folder's name as long as there is no plan."""
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
    def journal_folder(self) -> Path:
        """Every event, one file each; `scalestudy.experiments.study.journal` reads and writes them."""
        return self.path / "journal"

    @property
    def cursor_file(self) -> Path:
        """How much of the journal MLflow has."""
        return self.path / "spool" / "written"

    @property
    def address_file(self) -> Path:
        """Where MLflow has the study."""
        return self.path / "spool" / "address.json"

    @property
    def lock_file(self) -> Path:
        """Who runs the study now."""
        return self.path / "lock"

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
    def log_file(self) -> Path:
        """What the driver did and met, a line of JSON each, with the study's and the trial's id."""
        return self.path / "log.jsonl"

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

    def model_file(self, trial_id: str) -> Path:
        """The parameters of one trial's model, if it is kept."""
        return self.checkpoints(trial_id) / MODEL_FILE

    @property
    def address(self) -> str:
        """Where the study is kept, as a command takes it: a path, or a URI."""
        return self.mirror.address if self.mirror else str(self.path)

    def place_of(self, file: Path) -> str:
        """Where a file of this folder is kept: its path, or its URI."""
        return child(self.mirror.address, *file.relative_to(self.path).parts) if self.mirror else str(file)

    def share(self, *files: Path) -> None:
        """Puts files that were written by other means into the mirror; skips those that do not exist."""
        for file in files:
            if self.mirror and file.is_file():
                self.mirror.write(self._name(file), file.read_bytes())

    def share_new(self, file: Path, content: bytes) -> None:
        """Puts a file into the mirror before it is written here. Raises FileExistsError if it is there already."""
        if self.mirror:
            self.mirror.create(self._name(file), content)

    def delete(self, file: Path) -> None:
        """Deletes a file; it need not exist."""
        if self.mirror:
            self.mirror.delete(self._name(file))
        file.unlink(missing_ok=True)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()

    def create(self) -> None:
        """Makes the folder and those in it. Raises OSError."""
        for folder in (self.path, self.figures, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def write_text(self, file: Path, text: str) -> None:
        """Writes a file of this folder by `write_whole`, and into the mirror before that."""
        self.write_bytes(file, text.encode("utf-8"))

    def write_bytes(self, file: Path, content: bytes) -> None:
        """As `write_text`, for bytes."""
        if self.mirror:
            self.mirror.write(self._name(file), content)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content, durable=True)

    def write_json(self, file: Path, data: Mapping[str, Any]) -> None:
        """Writes strict JSON: a line a key, and a line an item of its list. Raises ValueError for NaN and infinity."""
        self.write_text(file, "{\n" + ",\n".join(f" {_line(key)}: {_lines(data[key])}" for key in data) + "\n}\n")

    def write_plan(self, plan: Plan, study_id: str, spec_yaml: str) -> None:
        """Writes the spec and its plan, with the study's id and the spec's hash.

        The plan comes first, and also knows the spec that it replaces. So a study killed in between can still go on.
        """
        specs = [_hash(spec_yaml.encode("utf-8"))]
        if self.spec_file.exists():
            specs.append(_hash(self.spec_file.read_bytes()))
        mark = {"study_id": study_id, "spec_sha256": specs}
        self.write_json(self.plan_file, {**mark, **plan.to_dict()})
        self.write_text(self.spec_file, spec_yaml)

    def update_plan(self, plan: Plan) -> None:
        """Writes the plan anew, with the trials that a search has added; the file's other keys stay."""
        before = json.loads(self.plan_file.read_text("utf-8"))
        self.write_json(self.plan_file, {key: before[key] for key in PLAN_MARKS if key in before} | plan.to_dict())

    def is_spec_unchanged(self) -> bool:
        """Whether spec.yaml is one that the plan was written for. Raises OSError or ValueError."""
        known = json.loads(self.plan_file.read_text("utf-8")).get("spec_sha256")
        return _hash(self.spec_file.read_bytes()) in (known or ())

    def read_plan(self) -> Plan:
        """The plan. Raises OSError or ValueError if it can't be read."""
        return Plan.from_dict(json.loads(self.plan_file.read_text("utf-8")))

    def append_trial(self, trial: Mapping[str, Any]) -> None:
        """Appends one ended trial as a whole line, and hands it to the system.

        The journal has the trial on disk by then; what a power cut takes from here is written again from it. Raises
        ValueError for NaN and infinity.
        """
        line = json.dumps(trial, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
        with self.trials_file.open("ab+") as stream:
            _drop_torn_line(stream)
            stream.write(line.encode("utf-8", "backslashreplace"))

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
                remedy = "remove the line; `resume` takes it from the journal again"
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


_line = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def _lines(value: Any) -> str:
    return "[\n  " + ",\n  ".join(map(_line, value)) + "\n ]" if isinstance(value, list) and value else _line(value)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
