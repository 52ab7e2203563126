"""Runs in a folder of Ray Tune's results, as Ray 2.60 writes it. Ray is not needed to read them.

A trial's folder has `params.json` (its configuration), `result.json` (a result a line) and `progress.csv` (the same as
a table), and `error.txt` once it failed. The experiment's folder has the state of all trials.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.experiments.judging.cells import value_of
from scalestudy.experiments.judging.files import flat
from scalestudy.experiments.judging.runs import Ended, Recorded, Say, SourceError, silent

PARAMS, RESULTS, PROGRESS, ERROR = "params.json", "result.json", "progress.csv", "error.txt"
STATES = "experiment_state-*.json"
"""The state of an experiment's trials. The newest has the last name."""
_OF_TUNE = {
    *("config", "date", "pid", "node_ip", "trial_id", "done", "should_checkpoint", "checkpoint_dir_name"),
    *("experiment_tag", "experiment_id", "iterations_since_restore", "time_since_restore", "time_this_iter_s"),
    *("timesteps_since_restore", "checkpoint_path"),
}
"""What Tune writes into each result for itself."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """What the experiment's state has of a trial."""

    status: str  # PENDING, RUNNING, PAUSED, TERMINATED or ERROR
    criteria: Mapping[str, Any]  # the values at which it was to stop, by metric


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A trial's folder, read."""

    name: str
    where: str
    config: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]  # flat
    state: _State | None
    has_error: bool

    @property
    def iterations(self) -> float:
        """How far it came."""
        made = _number(self.results[-1].get("training_iteration")) if self.results else 0.0
        return made if math.isfinite(made) else float(len(self.results))


def read_tune(path: Path, say: Say = silent) -> list[Recorded]:
    """Return the runs of an experiment's folder, or of one trial's, in the order of their folders' names.

    say: takes a line about what is left out. Raises SourceError for a folder without trials.
    """
    if not path.is_dir():
        raise SourceError(f"{path}: is no folder", "name the folder of a Tune experiment, or of one of its trials")
    folders = [path] if _is_trial(path) else sorted(folder for folder in path.iterdir() if _is_trial(folder))
    folders = folders or sorted(folder for folder in path.glob("*/*") if _is_trial(folder))
    if not folders:
        remedy = f"name the folder of a Tune experiment: its trials' folders hold {PARAMS} and {RESULTS} or {PROGRESS}"
        raise SourceError(f"{path}: has no trial of Ray Tune", remedy)
    states: dict[str, _State] = {}
    for experiment in dict.fromkeys(folder.parent for folder in folders):
        states |= _states(experiment, say)
    trials = [_trial(folder, states, say) for folder in folders]
    longest = max(trial.iterations for trial in trials)
    return [_recorded(trial, longest) for trial in trials]


def _is_trial(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (PARAMS, RESULTS, PROGRESS))


def _trial(folder: Path, states: Mapping[str, _State], say: Say) -> _Trial:
    raw = list(_results(folder / RESULTS, say)) if (folder / RESULTS).is_file() else []
    used = RESULTS if raw else PROGRESS
    if not raw and (folder / PROGRESS).is_file():
        raw = list(_rows(folder / PROGRESS, say))
    # Tune writes NaN of some types as the word
    told = [{name: math.nan if value == "null" else value for name, value in flat(result).items()} for result in raw]
    results = _without_superseded(told, f"{folder.name}, {used}", say)
    config = _json(folder / PARAMS, say)
    if not config and raw and isinstance(raw[-1].get("config"), Mapping):
        config = raw[-1]["config"]
    trial_id = str(results[-1].get("trial_id", "")) if results else ""
    state = states.get(trial_id) or next((states[each] for each in states if f"_{each}_" in f"_{folder.name}_"), None)
    return _Trial(
        name=trial_id or folder.name,
        where=f"{folder.name}, {used if results else PARAMS}",
        config=flat(config),
        results=results,
        state=state,
        has_error=(folder / ERROR).is_file(),
    )


def _recorded(trial: _Trial, longest: float) -> Recorded:
    history = [{name: value for name, value in result.items() if _is_kept(name)} for result in trial.results]
    first: Mapping[str, Any] = trial.results[0] if trial.results else {}
    last: Mapping[str, Any] = trial.results[-1] if trial.results else {}
    before = _number(first.get("timestamp")) - _number(first.get("time_total_s"))
    stopped, host = _number(last.get("timestamp")), last.get("hostname")
    return Recorded(
        where=trial.where,
        name=trial.name,
        values=dict(trial.config) | ({} if host is None else {"hostname": host}),
        history=history,
        ended=_ended(trial, longest),
        started=before if math.isfinite(before) and first.get("iterations_since_restore", 1) == 1 else None,
        stopped=stopped if math.isfinite(stopped) else None,
    )


def _ended(trial: _Trial, longest: float) -> Ended | None:
    """Return how a trial ended, as far as its files tell.

    Tune marks a result `done` if a scheduler or a limit ended the trial, not if its function returned. One that met no
    limit and is shorter than others was cut by the scheduler.
    """
    status = trial.state.status if trial.state else None
    is_done = bool(trial.results and trial.results[-1].get("done"))
    if status == "ERROR" or (status is None and trial.has_error and not is_done):
        return "failed"
    if status in ("PENDING", "RUNNING", "PAUSED") and not is_done:
        return "running"
    if not is_done:
        return "finished" if status == "TERMINATED" else None
    if trial.iterations >= longest:
        return "finished"
    if trial.state is None:
        return None
    last = trial.results[-1]
    reached = any(_number(last.get(name)) >= _number(limit) for name, limit in trial.state.criteria.items())
    return "finished" if reached else "cut"


def _is_kept(name: str) -> bool:
    return name not in _OF_TUNE and name != "hostname" and not name.startswith("config/")


def _results(file: Path, say: Say) -> Iterator[dict[str, Any]]:
    """Yield the results of a `result.json`."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            result = json.loads(line)
        except ValueError:
            if line.strip("\0 "):
                end = "ends in the middle" if number == len(lines) else "is no JSON"
                say(f"{file.parent.name}, {file.name}: line {number} {end}, and is left out")
            continue
        if isinstance(result, dict):
            yield result


def _rows(file: Path, say: Say) -> Iterator[dict[str, Any]]:
    """Yield the results of a `progress.csv`."""
    text = file.read_text(encoding="utf-8", errors="replace").replace("\0", "")
    header: list[str] = []
    for number, cells in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
        if not header:
            header = cells
        elif len(cells) == len(header):
            yield {name: value_of(cell) for name, cell in zip(header, cells, strict=True) if cell}
        elif cells:
            say(f"{file.parent.name}, {file.name}: row {number} has {len(cells)} of {len(header)} cells; left out")


def _without_superseded(results: list[dict[str, Any]], where: str, say: Say) -> list[dict[str, Any]]:
    """Leave out results that a trial made again, after it was restored from an earlier checkpoint."""
    kept: list[dict[str, Any]] = []
    for result in results:
        if kept and result.get("iterations_since_restore") == 1:
            now = _number(result.get("training_iteration"))
            before = len(kept)
            while kept and _number(kept[-1].get("training_iteration")) >= now:
                kept.pop()
            if before > len(kept):
                say(f"{where}: {before - len(kept)} results that were made again after a restart are left out")
        kept.append(result)
    return kept


def _states(experiment: Path, say: Say) -> dict[str, _State]:
    """Return the states of an experiment's trials by id; none where it has no state."""
    files = sorted(experiment.glob(STATES))
    found = {}
    for entry in _json(files[-1], say).get("trial_data", []) if files else []:
        try:
            trial = json.loads(entry[0])
            criteria = trial.get("stopping_criterion")
            limits = criteria if isinstance(criteria, dict) else {}
            found[trial["trial_id"]] = _State(status=trial["status"], criteria=limits)
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # another version's: the trial's own files must do
    return found


def _json(file: Path, say: Say) -> dict[str, Any]:
    """Return a file's object; empty where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        say(f"{file.parent.name}, {file.name}: can't be read, and is left out")
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
