"""Stage 7: a study in a real MLflow store on sqlite."""

import json
import os
import socket

import pytest

from scalestudy.orchestration.base.errors import StudyError
from scalestudy.orchestration.base.places import home
from scalestudy.orchestration.tracking.mlflow_store import NOTE_LIMIT, MlflowStore, milliseconds
from scalestudy.orchestration.tracking.server import check_reachable, resolve_address
from scalestudy.orchestration.tracking.writer import Cursor, Numbered, Tracker, replay
from tests.support.ports import free_port

AT = "2026-01-31T12:00:0{}.125Z"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """One database for the module: MLflow takes seconds to lay out a new one."""
    return resolve_address(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


@pytest.fixture
def store(address, request):
    return MlflowStore(address, request.node.name, "lenet-20260131")


def point(step, **metrics):
    return {"at": AT.format(step), "step": step, "metrics": metrics}


def operations(folder, *, note="**The answer**"):
    (folder / "figures").mkdir()
    (folder / "figures" / "curve.png").write_bytes(b"png")
    (folder / "report.html").write_text("<p>report</p>")
    spec = folder / "spec.yaml"
    spec.write_text("name: lenet\n")
    return [
        {"op": "study_started", "at": AT.format(0), "note": "what", "params": {"sweep.num_gpus": [1, 2]},
         "files": [str(spec)]},
        {"op": "trial_started", "trial_id": "t1", "name": "gpus=2 batch=256 lr=0.2 seed=0", "at": AT.format(0),
         "params": {"num_gpus": 2, "learning_rate": 0.2, "train.epochs": 2}},
        {"op": "epochs", "trial_id": "t1", "points": [point(1, test_accuracy=0.1 + 0.2, train_loss=1e-300)]},
        {"op": "epochs", "trial_id": "t1", "points": [point(2, test_accuracy=1 / 3)]},
        {"op": "trial_ended", "trial_id": "t1", "status": "finished", "at": AT.format(3),
         "point": point(2, best_test_accuracy=1 / 3), "tags": {"scalestudy.attempts": "2"}},
        {"op": "study_ended", "at": AT.format(4), "status": "finished", "note": note,
         "point": {"at": AT.format(4), "step": 0, "metrics": {"wall_seconds": 12.5}},
         "files": [str(folder / "report.html")], "folders": [[str(folder / "figures"), "figures"]]},
    ]  # fmt: skip


def runs_of(store):
    found = store.client.search_runs([store.experiment_id])
    return {run.data.tags["scalestudy.role"]: run for run in found}, len(found)


def history(store, run, name):
    points = store.client.get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.timestamp, metric.value) for metric in points]


def test_the_layout(store, tmp_path):
    store.apply(operations(tmp_path))
    runs, count = runs_of(store)
    assert count == 2
    study, trial = runs["study"], runs["trial"]
    assert study.info.run_name == "lenet-20260131"
    assert study.data.params == {"sweep.num_gpus": "[1, 2]"}
    assert study.data.tags["mlflow.note.content"] == "**The answer**"
    assert study.data.metrics == {"wall_seconds": 12.5}
    assert trial.info.run_name == "gpus=2 batch=256 lr=0.2 seed=0"
    assert trial.data.params == {"num_gpus": "2", "learning_rate": "0.2", "train.epochs": "2"}
    assert trial.data.tags["mlflow.parentRunId"] == study.info.run_id
    assert trial.data.tags["scalestudy.trial_id"] == "t1"
    assert trial.data.tags["scalestudy.attempts"] == "2"
    for run in (study, trial):
        assert run.data.tags["scalestudy.study_id"] == "lenet-20260131"
        assert run.data.tags["scalestudy.status"] == "finished"
        assert run.info.status == "FINISHED"
    assert trial.info.start_time == milliseconds(AT.format(0)) == 1769860800125
    assert trial.info.end_time == milliseconds(AT.format(3))
    names = [file.path for file in store.client.list_artifacts(study.info.run_id)]
    assert names == ["figures", "report.html", "spec.yaml"]
    assert [file.path for file in store.client.list_artifacts(study.info.run_id, "figures")] == ["figures/curve.png"]


def test_points_are_what_was_told_exactly(store, tmp_path):
    store.apply(operations(tmp_path))
    trial = runs_of(store)[0]["trial"]
    at = [milliseconds(AT.format(second)) for second in range(3)]
    assert history(store, trial, "test_accuracy") == [(1, at[1], 0.1 + 0.2), (2, at[2], 1 / 3)]
    assert history(store, trial, "train_loss") == [(1, at[1], 1e-300)]


def test_writing_twice_changes_nothing(store, address, tmp_path, request):
    told = operations(tmp_path)
    store.apply(told)
    runs, _ = runs_of(store)
    before = {role: run.to_dictionary() for role, run in runs.items()}
    store.apply(told)
    again = MlflowStore(address, request.node.name, "lenet-20260131")  # another process: nothing in memory
    again.apply(json.loads(json.dumps(told)))
    runs, count = runs_of(again)
    assert count == 2
    assert {role: run.to_dictionary() for role, run in runs.items()} == before
    assert len(history(again, runs["trial"], "test_accuracy")) == 2
    assert len(history(again, runs["study"], "wall_seconds")) == 1


def test_a_second_attempt_goes_on_in_the_same_run(store, tmp_path):
    told = operations(tmp_path)
    store.apply(told[:3])
    store.apply([told[1], *told[3:]])
    runs, count = runs_of(store)
    assert count == 2
    assert [step for step, _, _ in history(store, runs["trial"], "test_accuracy")] == [1, 2]


def test_a_run_whose_making_was_not_answered_is_found(store, tmp_path, monkeypatch):
    told, make = operations(tmp_path), store.client.create_run

    def made_without_an_answer(*args, **kwargs):
        make(*args, **kwargs)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(store.client, "create_run", made_without_an_answer)
    for count in (1, 2):  # the study's run, then the trial's
        with pytest.raises(ConnectionError):
            store.apply(told)
        assert runs_of(store)[1] == count
    store.apply(told)
    assert runs_of(store)[1] == 2


def test_studies_of_one_experiment_do_not_share_runs(store, address, tmp_path, request):
    told = operations(tmp_path)
    store.apply(told)
    other = MlflowStore(address, request.node.name, "lenet-20260201")
    other.apply(told)
    assert runs_of(other)[1] == 4
    assert other.runs["t1"] != store.runs["t1"]


def test_a_long_note_is_cut(store, tmp_path):
    store.apply(operations(tmp_path, note="é" * 20_000))
    note = runs_of(store)[0]["study"].data.tags["mlflow.note.content"]
    assert len(note) == NOTE_LIMIT < 8_000


def test_a_description_as_long_as_a_page_is_taken(store, tmp_path):
    started = operations(tmp_path)[0]
    store.apply([{**started, "note": "x" * 20_000}])
    assert len(runs_of(store)[0]["study"].data.tags["mlflow.note.content"]) <= 8_000


@pytest.mark.parametrize("study_id", ["bob's study", 'the "best" one', "a`b", "50% of it", "naïve"])
def test_a_folder_may_have_any_name(address, tmp_path, study_id):
    told = operations(tmp_path)
    for _ in range(2):
        store = MlflowStore(address, "any name", study_id)
        store.apply(told)
    assert store.runs["t1"]
    found = [run for run in store.client.search_runs([store.experiment_id])
             if run.data.tags["scalestudy.study_id"] == study_id]  # fmt: skip
    assert len(found) == 2


def test_statuses_are_mapped(store, tmp_path):
    started, trial, *_ = operations(tmp_path)
    ours = {"finished": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED", "failed": "FAILED",
            "diverged": "FAILED", "out_of_memory": "FAILED"}  # fmt: skip
    told = [started]
    for status in ours:
        end = {"op": "trial_ended", "trial_id": status, "status": status, "at": AT.format(1), "tags": {}}
        told += [{**trial, "trial_id": status}, {**end, "point": point(0)}]
    store.apply(told)
    found = store.client.search_runs([store.experiment_id], "tags.`scalestudy.role` = 'trial'")
    assert {run.data.tags["scalestudy.status"]: run.info.status for run in found} == ours


def test_many_points_and_parameters_are_split_into_requests(store, tmp_path):
    started, trial, *_ = operations(tmp_path)
    epochs = [{"op": "epochs", "trial_id": "t1", "points": [point(1, **{f"m{n}": n for n in range(2_500)})]}]
    store.apply([started, {**trial, "params": {f"p{n}": n for n in range(250)}}, *epochs])
    run = store.client.get_run(store.runs["t1"])
    assert (len(run.data.params), len(run.data.metrics)) == (250, 2_500)


def test_an_experiment_that_was_deleted_is_taken_up_again(store, address, tmp_path, request):
    store.client.delete_experiment(store.experiment_id)
    again = MlflowStore(address, request.node.name, "lenet-20260131")
    assert again.experiment_id == store.experiment_id
    again.apply(operations(tmp_path))


@pytest.mark.parametrize("name", ["with space", "a#b", "a?b", "50%25"])
def test_artifacts_of_an_experiment_of_any_name_are_found_again(address, tmp_path, name):
    store = MlflowStore(address, name, "study")
    store.apply(operations(tmp_path)[:1])
    run = store.runs["study"]
    assert [file.path for file in store.client.list_artifacts(run)] == ["spec.yaml"]


def test_what_has_no_study_is_passed_over_and_holds_up_nothing(store, tmp_path):
    orphan = {
        "op": "epochs",
        "trial_id": "t9",
        "name": "t9",
        "params": {},
        "at": "2026-01-31T12:00:00.000Z",
        "points": [],
    }
    store.apply([orphan, *operations(tmp_path)])
    assert "t9" not in runs_of(store)[0]
    store.apply([orphan])  # now that the study is there, its epochs make the run
    assert store.runs["t9"]


def test_a_tracker_and_a_replay_after_it_write_everything_once(address, tmp_path):
    told = [Numbered(number, [operation]) for number, operation in enumerate(operations(tmp_path), start=1)]
    cursor = Cursor(tmp_path / "spool" / "written")
    tracker = Tracker(lambda: MlflowStore(address, "replayed", "lenet-20260131"), cursor)
    for each in told[:4]:
        tracker.tell(each.number, each.operations)
    assert tracker.close() == 0
    store = MlflowStore(address, "replayed", "lenet-20260131")
    assert replay(store, told[cursor.read() - 1 :], cursor) == len(told) - 3  # one of them once more
    trial = runs_of(store)[0]["trial"]
    assert [value for _, _, value in history(store, trial, "test_accuracy")] == [0.1 + 0.2, 1 / 3]


# --- addresses ----------------------------------------------------------------------------------------------------


def test_the_default_store_lies_in_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    found = resolve_address(None)
    assert found.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert found.artifacts == f"file://{tmp_path}/mlartifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert resolve_address(None).uri == "http://tracking:5000"
    assert resolve_address(None).artifacts is None
    assert resolve_address("sqlite:////data/x.db").uri == "sqlite:////data/x.db"


def test_inside_a_ray_job_the_default_store_lies_at_home(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "new"))
    found = resolve_address(None)
    assert found.uri == f"sqlite:///{home()}/mlflow.db"
    check_reachable(found)
    assert not (tmp_path / "new").exists()
    MlflowStore(found, "first", "study")  # makes the folder that the check left alone
    assert (tmp_path / "new" / "mlflow.db").exists()


def refusal(uri):
    with pytest.raises(StudyError) as caught:
        check_reachable(resolve_address(uri))
    assert str(uri).split("://")[0] in caught.value.problem
    assert caught.value.remedy
    return caught.value.problem


def test_a_sqlite_file_can_be_made(tmp_path):
    check_reachable(resolve_address(f"sqlite:///{tmp_path}/new.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["", "/file.txt/mlflow.db"])
def test_a_place_that_can_not_hold_a_file_is_refused(tmp_path, place):
    (tmp_path / "file.txt").touch()
    assert "can't be written" in refusal(f"sqlite:///{tmp_path}{place}")


def test_a_folder_that_can_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    assert "can't be written" in refusal(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns", "/tmp/mlruns"])
def test_file_stores_are_refused(uri):
    assert "retired" in refusal(uri)


def test_an_unknown_kind_of_store_is_refused():
    assert "does not know this kind" in refusal("htp://127.0.0.1:5000")


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path):
    file = tmp_path / "notes.db"
    file.write_text("these are my notes, not a database")
    assert "not an SQLite database" in refusal(f"sqlite:///{file}")
    assert file.read_text().startswith("these are my notes")


def test_a_file_that_is_gone_is_passed_over_and_the_rest_is_written(store, tmp_path):
    study, trial, *_, ended = operations(tmp_path)
    (tmp_path / "report.html").unlink()
    store.apply([study, ended, trial])
    runs, count = runs_of(store)
    assert count == 2
    assert runs["trial"].data.tags["scalestudy.trial_id"] == "t1"


@pytest.fixture
def login(monkeypatch):
    """MLflow's variables of a login, which are as they were afterwards."""
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize("scheme", ["http", "postgresql", "mysql+pymysql"])
def test_a_port_where_nobody_listens_is_refused_without_the_password(scheme, login):
    port = free_port()
    problem = refusal(f"{scheme}://ann:s3cret@127.0.0.1:{port}/db")
    assert "nobody listens" in problem
    assert ("127.0.0.1" if scheme == "http" else "ann:***@127.0.0.1") in problem
    assert "s3cret" not in problem


def test_a_database_without_its_driver_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        problem = refusal(f"postgresql+pg8000://ann:s3cret@127.0.0.1:{server.getsockname()[1]}/db")
    assert "its driver is not installed (No module named 'pg8000')" in problem
    assert "s3cret" not in problem


@pytest.mark.parametrize("uri", ["postgresql://ann:p@ss@h/db", "http://ann:pass@h:1/x", "mysql+pymysql://ann:pass@h"])
def test_passwords_are_not_shown(uri, login):
    """A server's whole login goes where MLflow's client looks for it."""
    shown = resolve_address(uri).shown
    assert "ss@" not in shown
    assert ("http://h:1" if uri.startswith("http") else "ann:***@h") in shown
    assert (os.environ["MLFLOW_TRACKING_PASSWORD"] == "pass") is uri.startswith("http")


def test_an_address_without_a_password_is_shown_as_it_is():
    assert resolve_address("http://h:5000").shown == "http://h:5000"
