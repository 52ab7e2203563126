"""MLflow's own pages, opened at a study's."""

import os
import signal
import subprocess
from urllib.parse import parse_qs

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.commands import ui
from scalestudy.orchestration.commands.ui import TrackedPage
from scalestudy.orchestration.tracking.runs_view import view_tag
from scalestudy.orchestration.tracking.server import Experiment, resolve_address, same_address
from scalestudy.training.process import Terminated
from tests.support.ports import free_port
from tests.support.synthetic_studies import TINY, folder_of

WHOLE = "postgresql://ann:s3cr3t@db:5432/mlflow"
KEPT = "postgresql://ann:***@db:5432/mlflow"


def test_the_pages_are_on_loopback_and_their_command_line_has_no_password(monkeypatch, capsys):
    """Everybody on a machine can read command lines, and the owner's processes alone their environment."""
    asked = {}

    class Process:
        pid = 2**22 + 1  # of no process

        def __init__(self, command, **options):
            asked.update(command=command, **options)

        def wait(self, seconds=None):
            return 0

    monkeypatch.setattr(ui, "check_reachable", lambda address: None)
    monkeypatch.setattr(ui.subprocess, "Popen", Process)
    assert ui.serve_ui(WHOLE, 5999) == 0
    command = asked["command"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert not any("s3cr3t" in part for part in command)
    ours = {"MLFLOW_BACKEND_STORE_URI": WHOLE, "PYTHONWARNINGS": asked["env"]["PYTHONWARNINGS"]}
    assert asked["env"] == {**os.environ, **ours}
    assert KEPT in capsys.readouterr().out


@pytest.mark.parametrize(("sent", "status"), [(KeyboardInterrupt, 0), (Terminated, None)])
def test_ctrl_c_ends_the_pages_well_and_every_signal_ends_the_server(monkeypatch, tmp_path, sent, status):
    started = []

    class Server(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__(["sleep", "600"], **options)
            started.append(self)

        def wait(self, seconds=None):
            if seconds is None:
                raise sent
            return super().wait(seconds)

    monkeypatch.setattr(ui, "check_reachable", lambda address: None)
    monkeypatch.setattr(ui, "open_database", lambda file: None)
    monkeypatch.setattr(ui.subprocess, "Popen", Server)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    if status is None:
        with pytest.raises(sent):
            ui.serve_ui(uri, free_port())
    else:
        assert ui.serve_ui(uri, free_port()) == status
    assert started[0].returncode == -signal.SIGTERM


# --- a study's page ---------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, with a study in `runs`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "runs" / "tiny-20260131T120000Z", TINY)
    return tmp_path


@pytest.fixture
def opened(monkeypatch):
    """The addresses that the browser is asked for."""
    found = []
    monkeypatch.setattr(ui, "show_in_browser", found.append)
    return found


STUDY = "runs/tiny-20260131T120000Z"


def test_a_study_s_address_names_the_view_the_experiment_and_the_study(place):
    url = TrackedPage.of(STUDY).url("http://127.0.0.1:5000", Experiment("7", {}))
    page, _, query = url.partition("?")
    assert page == "http://127.0.0.1:5000/#/experiments/7/runs"
    assert parse_qs(query) == {
        "workflowType": ["machine_learning"],
        "searchFilter": ["tags.`scalestudy.study_id` = 'tiny-20260131T120000Z'"],
        "orderByKey": ["metrics.`at_0.8_seconds`"],
        "orderByAsc": ["true"],
    }
    assert not set(url) & set(" `'\"")


def test_the_address_of_a_study_that_has_a_view_in_mlflow_names_it_alone(place):
    """MLflow opens no view whose address has a filter or an order."""
    tag = view_tag("tiny-20260131T120000Z")
    url = TrackedPage.of(STUDY).url("http://h:1", Experiment("7", {tag: "{}", view_tag("another"): "{}"}))
    key = tag.removeprefix("mlflow.sharedViewState.")
    assert parse_qs(url.partition("?")[2]) == {"workflowType": ["machine_learning"], "viewStateShareKey": [key]}


@pytest.mark.parametrize(("metric", "mode", "ascending"), [("mse", "min", "true"), ("accuracy", "max", "false")])
def test_without_a_target_the_best_run_comes_first(place, metric, mode, ascending):
    text = TINY.replace("data: digits", f"data: digits, metric: {metric}, metric_mode: {mode}")
    folder_of(place / "runs" / "error", text.replace("[0.8]", "[]"))
    query = parse_qs(TrackedPage.of("runs/error").url("http://h:1", Experiment("7", {})).partition("?")[2])
    assert (query["orderByKey"], query["orderByAsc"]) == ([f"metrics.`best_test_{metric}`"], [ascending])


def test_a_study_s_pages_are_those_of_its_own_store(place, monkeypatch):
    page = TrackedPage.of(STUDY)
    assert page.address.uri == f"sqlite:///{place}/mlflow.db"
    assert not (place / STUDY / "spool").exists(), "nothing is written"
    same_address(StudyFolder(place / STUDY), resolve_address("sqlite:///other.db"))
    assert TrackedPage.of(STUDY).address.uri == f"sqlite:///{place}/other.db"
    assert TrackedPage.of(STUDY, "sqlite:///third.db").address.uri == f"sqlite:///{place}/third.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000")
    assert TrackedPage.of(STUDY).address.uri == f"sqlite:///{place}/other.db"


def test_without_a_study_the_latest_one_is_shown_from_its_own_store(place):
    same_address(StudyFolder(place / STUDY), resolve_address("sqlite:///its.db"))
    assert ui._latest_in(None).address.uri == f"sqlite:///{place}/its.db", "as a job's, which is in ~/scalestudy"
    (place / STUDY / "spec.yaml").write_text("name: [x")
    assert ui._latest_in(None) is None, "its spec can't be read"
    (place / STUDY / "plan.json").unlink()
    assert ui._latest_in(None) is None


def test_of_a_named_store_the_latest_study_is_shown_if_it_is_there(place):
    assert ui._latest_in("sqlite:///mlflow.db").study_id == "tiny-20260131T120000Z"
    assert ui._latest_in("sqlite:///other.db") is None


@pytest.mark.parametrize(
    ("experiment", "words", "address"),
    [
        (
            Experiment("7", {}),
            "tiny-20260131T120000Z: http://h:1/#/experiments/7/runs?workflowType=machine_learning&",
            "experiments/7",
        ),
        (
            None,
            f"MLflow has nothing of tiny-20260131T120000Z; to send it: scalestudy ui {STUDY} --sync",
            "#/experiments?",
        ),
    ],
)
def test_the_address_is_printed_and_opened(place, opened, monkeypatch, capsys, experiment, words, address):
    monkeypatch.setattr(ui, "find_experiment", lambda server, name: experiment)
    ui._show("http://h:1", TrackedPage.of(STUDY))
    assert words in capsys.readouterr().out
    (url,) = opened
    assert address in url
    assert "workflowType=machine_learning" in url


def test_a_server_that_does_not_answer_is_told_in_a_line(place, opened, monkeypatch, capsys):
    def away(server, name):
        raise UnreachableError("tracking.uri: http://h:1: is away", "start it")

    monkeypatch.setattr(ui, "find_experiment", away)
    ui._show("http://h:1", TrackedPage.of(STUDY))
    assert capsys.readouterr().err == "tracking.uri: http://h:1: is away; start it\n"
    assert opened == []


def test_a_store_that_is_a_server_has_pages_of_its_own(place, opened, monkeypatch, capsys):
    monkeypatch.setattr(ui, "check_reachable", lambda address: None)
    monkeypatch.setattr(ui, "find_experiment", lambda server, name: Experiment("7", {}))
    monkeypatch.setattr(ui.subprocess, "Popen", lambda *_, **__: pytest.fail("nothing is to be served"))
    assert ui.serve_ui("http://ann:s3cr3t@h:5000/", 5999, STUDY) == 0
    (url,) = opened
    assert url.startswith("http://h:5000/#/experiments/7/runs?")
    assert "s3cr3t" not in capsys.readouterr().out
