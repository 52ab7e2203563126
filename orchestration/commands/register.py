"""`scalestudy register`: the recommended cell's model under a name in MLflow's model registry."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.plan.plan import cell_of, label
from scalestudy.experiments.study.mlflow_filters import study_filter
from scalestudy.experiments.study.mlflow_limits import LONGEST_NAME, fitted_text, is_model_name
from scalestudy.orchestration.base.errors import RequestError, StudyError, UnreachableError
from scalestudy.orchestration.commands.recommended import RecommendedCell, best_name
from scalestudy.orchestration.commands.study_commands import advise
from scalestudy.orchestration.storage.trial_states import states_of
from scalestudy.orchestration.study.folders import open_folder, readable, refuse_judged, spec_of
from scalestudy.orchestration.tracking.database import open_database
from scalestudy.orchestration.tracking.mlflow_model import MODEL, find_model, register_model
from scalestudy.orchestration.tracking.mlflow_store import TRIAL_ID
from scalestudy.orchestration.tracking.run_content import experiment_of
from scalestudy.orchestration.tracking.server import address_of, check_reachable, reason_of, resolve_address


@dataclass(frozen=True, kw_only=True)
class Registered:
    """The result of `register`."""

    name: str
    cell: str
    version: int | None = None  # null: the weights were not kept
    trial: str | None = None  # run name of the trial whose weights they are; null with the version
    caveat: str | None = None  # whether the model's code is another than that trial's
    commands: tuple[str, ...] = ()  # which train the cell, one after another, where the weights were not kept

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        return asdict(self)

    @property
    def words(self) -> str:
        """The result, in a line."""
        if self.version is None:
            kept = "a study keeps its best trial's weights alone"
            return f"{self.cell} is recommended, and {kept}. To train and register it:"
        load = f"mlflow.pytorch.load_model({f'models:/{self.name}/{self.version}'!r})"
        caveat = f" ({self.caveat})" if self.caveat else ""
        return f"{self.name} version {self.version}: the model of {self.trial}{caveat}; to load it: {load}"


def register_recommended(path: str | Path, name: str) -> Registered:
    """Register the model of a study's recommended cell, or of its only one, as the next version of a name.

    The model has its signature. A study keeps the weights of its best trial, which may be of another cell. Raises
    RequestError for a folder that is no study's, a study without an answer, a model that MLflow does not have, or a
    name that it refuses; UnreachableError if it is out of reach.
    """
    if not is_model_name(name):
        problem = f"--name: {fitted_text(name, LONGEST_NAME)!r}: can't name a model in MLflow"
        raise RequestError(problem, "give one of letters, digits, - and _, such as my-model")
    advice = advise(path)
    folder = open_folder(path)
    with readable(folder):
        spec = spec_of(folder)
        refuse_judged(spec, f"DIR: {advice.study_id}")
        ended = {line["trial_id"] for line in folder.read_trials()}
    trained = [trial for trial in advice.plan.trials if trial.kind == "training" and trial.trial_id in ended]
    only = {label(cell_of(trial.params)) for trial in trained}
    if len(only) == 1 and not present(advice.data[advice.role]):  # nothing to compare it with
        [chosen], trials = only, trained
    else:
        RecommendedCell.of(advice)  # raises if there is none
        chosen, cells = advice.data[advice.role]["label"], advice.data[advice.role]["evidence"]["cells"]
        # in an adaptive study they may have another num_gpus
        trials = [trial for trial in trained if label(cell_of(trial.params)) in cells]
    address = address_of(folder, resolve_address(spec.tracking.uri))
    check_reachable(address)
    try:
        from mlflow import MlflowClient

        runs: Mapping[str, Any] = {}
        if address.is_there:  # asking a missing database would create it
            if address.database:
                open_database(address.database)
            client = MlflowClient(tracking_uri=address.uri)
            runs = _runs_of(client, experiment_of(spec), advice.study_id)
        remedy = f"scalestudy ui {shlex.quote(folder.address)} --sync sends it"
        if not runs:
            raise RequestError(f"tracking.uri: {address.shown}: has no run of {advice.study_id}", remedy)
        for trial in trials:
            run = runs.get(trial.trial_id)
            if run is None:
                continue
            if model_id := find_model(client, run.info.run_id):
                version = register_model(client, model_id, name)
                caveat = run.data.tags.get(MODEL)
                return Registered(name=name, cell=chosen, version=version, trial=trial.name, caveat=caveat)
            if why := run.data.tags.get(MODEL):
                load = f"load model/model.pt, an artifact of the run {run.info.run_id}, into the model by your code"
                raise RequestError(f"DIR: {advice.study_id}: the model of {trial.name}: {why}", load)
        if kept := [trial.name for trial in trials if states_of(folder).has_model(trial.trial_id)]:
            raise RequestError(f"tracking.uri: {address.shown}: does not have the model of {kept[0]}", remedy)
    except StudyError:
        raise
    except Exception as error:  # MLflow raises its own, SQLAlchemy's and the HTTP client's
        if getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE":
            raise RequestError(f"--name: {name}: {reason_of(error)}", "give another name") from error
        remedy = "start the server, then type this command again"
        raise UnreachableError(f"tracking.uri: {address.shown}: {reason_of(error)}", remedy) from error
    file = f"{best_name(spec)}.yaml"
    commands = (
        shlex.join(["scalestudy", "recommend", folder.address, "--spec", file]),
        shlex.join(["scalestudy", "run", file]),
        shlex.join(["scalestudy", "register", "latest", "--name", name]),
    )
    return Registered(name=name, cell=chosen, commands=commands)


def _runs_of(client: Any, experiment: str, study_id: str) -> Mapping[str, Any]:
    """Return the study's runs by trial id, and its parent run under the empty text. Empty: MLflow has none."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return {}
    runs, token = [], None
    while token is None or token:
        page = client.search_runs([found.experiment_id], study_filter(study_id), page_token=token)
        runs += page
        token = page.token or ""
    return {run.data.tags.get(TRIAL_ID, ""): run for run in runs}
