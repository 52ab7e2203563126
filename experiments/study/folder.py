"""The files of one study. Every path inside a study's folder is made here and nowhere else."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalestudy.experiments.plan.plan import Plan, step_params, without
from scalestudy.experiments.spec.addresses import child
from scalestudy.training.whole_file import write_whole

PLAN_MARKS = ("study_id", "spec_sha256")
"""Keys of plan.json that do not belong to the plan."""
MODEL_FILE = "model.pt"


class Mirror(Protocol):
    """The storage of a study whose folder here is only a working copy, such as a bucket.

    Names are the folder's file names, such as `journal/00000001.json`. A call returns when the whole data is stored.
    All calls raise OSError if the storage fails.
    """

    @property
    def address(self) -> str:
        """The address of the study, such as s3://bucket/runs/<study_id>."""

    def write(self, name: str, data: bytes) -> None:
        """Store the data under this name, in place of what was there."""

    def create(self, name: str, data: bytes) -> None:
        """Store the data under a new name. Raises FileExistsError if the name is taken."""

    def delete(self, name: str) -> None:
        """Delete what is stored under this name, if anything."""


@dataclass(frozen=True)
class StudyFolder:
    """A study's folder, `<storage>/<study_id>/`. Files are written aside, then renamed; trials are appended."""

    path: Path
    mirror: Mirror | None = None
    """Where the study is kept, if not here. Everything is written there first, so this copy never holds more."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @property
    def study_id(self) -> str:
        """Name and UTC timestamp, from the plan's file. Without that file, the folder's name."""
        if self.plan_file.exists():
            return str(json.loads(self.plan_file.read_text("utf-8"))["study_id"])
        return self.path.resolve().name

    @property
    def version(self) -> Any:
        """The version of the folder's files. This scalestudy writes `PLAN_VERSION`."""
        return json.loads(self.plan_file.read_text("utf-8")).get("version")

    @property
    def spec_file(self) -> Path:
        """The resolved spec."""
        return self.path / "spec.yaml"

    @property
    def plan_file(self) -> Path:
        """The plan, as `Plan.to_dict` gives it."""
        return self.path / "plan.json"

    @property
    def journal_folder(self) -> Path:
        """A file for each event. `scalestudy.experiments.study.journal` reads and writes them."""
        return self.path / "journal"

    @property
    def cursor_file(self) -> Path:
        """How much of the journal has reached MLflow."""
        return self.path / "spool" / "written"

    @property
    def address_file(self) -> Path:
        """The MLflow address of the study."""
        return self.path / "spool" / "address.json"

    @property
    def pages_file(self) -> Path:
        """Where a browser finds the study's runs: JSON with the address of its experiment's page in MLflow."""
        return self.path / "spool" / "pages.json"

    def runs_page(self) -> str | None:
        """Return the address in `pages_file`. None if MLflow has never been reached, or it is no page of a server."""
        try:
            address = json.loads(self.pages_file.read_text("utf-8"))["experiment"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return address if isinstance(address, str) and address.startswith(("http://", "https://")) else None

    @property
    def lock_file(self) -> Path:
        """Who runs the study now."""
        return self.path / "lock"

    @property
    def trials_file(self) -> Path:
        """One line for each ended trial."""
        return self.path / "trials.jsonl"

    @property
    def summary_file(self) -> Path:
        """The analysis, as strict JSON."""
        return self.path / "summary.json"

    @property
    def judged_file(self) -> Path:
        """Of runs that others made: what was taken as what, what is left out, and what is unfair."""
        return self.path / "judged.json"

    def read_judged(self) -> dict[str, Any] | None:
        """Read `judged_file`. None: the study made its runs. Raises OSError or ValueError if it can't be read."""
        if not self.judged_file.exists():
            return None
        content: dict[str, Any] = json.loads(self.judged_file.read_text("utf-8"))
        return content

    @property
    def report_file(self) -> Path:
        """The report, as self-contained HTML."""
        return self.path / "report.html"

    @property
    def driver_log(self) -> Path:
        """The output of Ray and Tune."""
        return self.path / "driver.log"

    @property
    def log_file(self) -> Path:
        """What the driver did, and what happened to it: lines of JSON, with the ids of study and trial."""
        return self.path / "log.jsonl"

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs."""
        return self.path / "logs"

    @property
    def figures(self) -> Path:
        """Folder of the report's figures as PNG, which `report --png` writes."""
        return self.path / "figures"

    def figure_file(self, name: str) -> Path:
        """Return the PNG file of a figure."""
        return self.figures / f"{name}.png"

    def checkpoints(self, trial_id: str) -> Path:
        """Return the folder of one trial's checkpoints."""
        return self.path / "checkpoints" / trial_id

    def model_file(self, trial_id: str) -> Path:
        """Return the parameters of one trial's model. Only kept models have this file."""
        return self.checkpoints(trial_id) / MODEL_FILE

    @property
    def address(self) -> str:
        """Where the study is kept: the path or URI that commands take."""
        return self.mirror.address if self.mirror else str(self.path)

    def place_of(self, file: Path) -> str:
        """Return where a file of this folder is kept: its path or URI."""
        return child(self.mirror.address, *file.relative_to(self.path).parts) if self.mirror else str(file)

    def share(self, *files: Path) -> None:
        """Copy files that others wrote to where the study is kept. Skip files that do not exist."""
        for file in files:
            if self.mirror and file.is_file():
                self.mirror.write(self._name(file), file.read_bytes())

    def share_new(self, file: Path, content: bytes) -> None:
        """Store a new file where the study is kept, before it is written here. Raises FileExistsError if it exists."""
        if self.mirror:
            self.mirror.create(self._name(file), content)

    def delete(self, file: Path) -> None:
        """Delete a file, if it exists."""
        if self.mirror:
            self.mirror.delete(self._name(file))
        file.unlink(missing_ok=True)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()

    def create(self) -> None:
        """Make the folder and its subfolders. Raises OSError if that fails."""
        for folder in (self.path, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def write_text(self, file: Path, text: str) -> None:
        """Write a file of this folder aside, then rename it. A reader sees the old or the new one, whole."""
        self.write_bytes(file, text.encode("utf-8"))

    def write_bytes(self, file: Path, content: bytes) -> None:
        """Do the same as `write_text`, for bytes."""
        if self.mirror:
            self.mirror.write(self._name(file), content)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content, durable=True)

    def write_json(self, file: Path, data: Mapping[str, Any]) -> None:
        """Write strict JSON as `write_text` does. Each key has a line, and so has each item of its list.

        Raises ValueError for NaN and infinity.
        """
        line = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
        values = {
            key: "[\n  " + ",\n  ".join(map(line, value)) + "\n ]" if isinstance(value, list) and value else line(value)
            for key, value in data.items()
        }
        self.write_text(file, "{\n" + ",\n".join(f" {line(key)}: {text}" for key, text in values.items()) + "\n}\n")

    def write_plan(self, plan: Plan, study_id: str, spec_yaml: str) -> None:
        """Write the spec and its plan, with the study's id and the spec's hash.

        The plan comes first, with the hash of the old spec too. So a study that is killed in between can still resume.
        """
        specs = [_hash(spec_yaml.encode("utf-8"))]
        if self.spec_file.exists():
            specs.append(_hash(self.spec_file.read_bytes()))
        mark = {"study_id": study_id, "spec_sha256": specs}
        self.write_json(self.plan_file, {**mark, **plan.to_dict()})
        self.write_text(self.spec_file, spec_yaml)

    def update_plan(self, plan: Plan) -> None:
        """Replace the plan in its file, with the trials that a search has added. The `PLAN_MARKS` stay."""
        before = json.loads(self.plan_file.read_text("utf-8"))
        self.write_json(self.plan_file, {key: before[key] for key in PLAN_MARKS} | plan.to_dict())

    def is_spec_unchanged(self) -> bool:
        """Return whether the plan was written for this spec.yaml.

        Raises OSError or ValueError if either can't be read.
        """
        return _hash(self.spec_file.read_bytes()) in json.loads(self.plan_file.read_text("utf-8"))["spec_sha256"]

    def read_plan(self) -> Plan:
        """Read the plan. Raises OSError or ValueError if there is none that can be read."""
        return Plan.from_dict(json.loads(self.plan_file.read_text("utf-8")))

    def append_trial(self, trial: Mapping[str, Any]) -> None:
        """Append one ended trial as a whole line. Raises ValueError for NaN and infinity.

        The line may not be on disk yet when this returns. A power cut can take it, but the journal has the trial on
        disk, and the line is written again from it.
        """
        line = json.dumps(trial, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
        with self.trials_file.open("ab+") as stream:
            _drop_torn_line(stream)
            stream.write(line.encode("utf-8", "backslashreplace"))

    def write_trials(self, trials: Iterable[Mapping[str, Any]]) -> None:
        """Write the lines of these trials in place of all that are there. Raises ValueError for NaN and infinity."""
        lines = [json.dumps(each, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n" for each in trials]
        write_whole(self.trials_file, "".join(lines).encode("utf-8", "backslashreplace"))

    def read_trials(self) -> list[dict[str, Any]]:
        """Read the ended trials in the order of their ends. The first record of a trial_id wins.

        Ignore a last line that a crash has torn. Raises ValueError for a broken line elsewhere.
        """
        if not self.trials_file.exists():
            return []
        trials: dict[str, dict[str, Any]] = {}
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
            trials.setdefault(trial["trial_id"], trial)
        return list(trials.values())

    def measured_trials(self) -> list[dict[str, Any]]:
        """Return the ended trials, each with the `workload` and `train` of its plan, as `plan.estimate` takes them.

        Runs that others made have neither.
        The plan does not list timing runs. Each has the parameters of a planned trial with the same kind of step.
        """
        trials = () if self.judged_file.exists() else self.read_plan().trials
        planned = {trial.trial_id: trial for trial in trials}
        kinds = {_kind_of_step(trial.params): trial for trial in reversed(trials)}
        found = []
        for record in self.read_trials():
            trial = planned.get(record["trial_id"])
            if trial is None and record.get("kind") == "timing":
                trial = kinds.get(_kind_of_step(record["params"]))
            if trial is not None:
                found.append({**record, "workload": trial.workload, "train": trial.train})
        return found


def _kind_of_step(params: Mapping[str, Any]) -> str:
    """Return the kind of a trial's step, whatever its num_gpus."""
    return json.dumps(without(step_params(params), {"num_gpus"}), sort_keys=True)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _drop_torn_line(stream: Any) -> None:
    """Cut off the torn line that a crash left at the end."""
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
