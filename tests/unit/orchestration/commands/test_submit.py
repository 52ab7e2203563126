"""What `scalestudy submit` asks a job server for. That a job runs is in test_job_submit.py."""

import pytest

from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.commands import submit
from scalestudy.orchestration.commands.submit import submission, submit_study
from scalestudy.orchestration.study.origin import git_commit
from tests.support.studies import REPOSITORY, write_spec


def test_a_job_without_a_rehearsal(tmp_path):
    asked = submission("digits-quick", [], [], tmp_path, rehearsal=False)
    assert asked.entrypoint.endswith("run digits-quick --no-rehearsal")
    assert "rehearsal" not in submission("digits-quick", [], [], tmp_path).entrypoint


def test_a_spec_in_the_current_folder_travels_with_it(tmp_path):
    (tmp_path / "specs").mkdir()
    spec = write_spec(tmp_path / "specs")
    asked = submission(str(spec), ["train.epochs=1", "name=a b"], ["A=1", "B=x=y"], tmp_path)
    assert asked.entrypoint == ("python -m scalestudy run specs/study.yaml --set train.epochs=1 --set 'name=a b'")
    assert asked.runtime_env["working_dir"] == str(tmp_path)
    assert asked.runtime_env["env_vars"] == {"A": "1", "B": "x=y"}
    assert asked.runtime_env["py_modules"] == [str(REPOSITORY / "scalestudy")]


def test_from_the_repository_itself_nothing_travels_twice():
    assert submission("digits-quick", [], [], REPOSITORY).runtime_env == {"working_dir": str(REPOSITORY)}


def test_a_variable_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", "hunter2=x")
    asked = submission("digits-quick", [], ["MY_PASSWORD", "A=1"], tmp_path)
    assert asked.runtime_env["env_vars"] == {"MY_PASSWORD": "hunter2=x", "A": "1"}
    assert "hunter2" not in asked.entrypoint


def test_a_server_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreachableError, match=r"--address: http://127.0.0.1:9: no job server answers") as lost:
        submit_study("digits-quick", address="http://127.0.0.1:9")
    assert lost.value.exit_code == 3


def test_a_proxy_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {"http_proxy": "http://ann:s3cr3t@127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}.items():
        monkeypatch.setenv(name, value)
    said = r"http://far\.invalid:8265, through the proxy http://ann:\*\*\*@127.0.0.1:9 \(no_proxy does not list far"
    with pytest.raises(UnreachableError, match=said) as lost:
        submit_study("digits-quick", address="http://far.invalid:8265")
    assert "s3cr3t" not in str(lost.value)


class FakeServer:
    """Ray's job server, at the client's edge."""

    def __init__(self, exit_code, status="SUCCEEDED", refusal=None):
        self.refusal = refusal
        self.info = type("Info", (), {"driver_exit_code": exit_code, "status": status})()
        self.metadata = None

    def submit_job(self, *, entrypoint, runtime_env, metadata):
        assert entrypoint.startswith("python -m scalestudy run digits-quick")
        self.metadata = metadata
        if self.refusal:
            raise RuntimeError(self.refusal)
        return "raysubmit_1"

    async def tail_job_logs(self, job):
        yield f"log of {job}\n"

    def get_job_info(self, job):
        return self.info


@pytest.mark.parametrize(
    ("exit_code", "status", "expected"),
    [(0, "SUCCEEDED", 0), (1, "FAILED", 1), (143, "STOPPED", 143), (None, "FAILED", 1), (None, "SUCCEEDED", 0)],
)
def test_the_exit_status_is_the_studys(monkeypatch, capsys, exit_code, status, expected):
    monkeypatch.setattr(submit, "_client", lambda address: FakeServer(exit_code, status))
    assert submit_study("digits-quick", address="http://head:8265") == expected
    printed = capsys.readouterr().out
    assert "job: raysubmit_1 at http://head:8265; to stop it: ray job stop" in printed
    assert "log of raysubmit_1" in printed


def test_the_job_is_told_who_submitted_it_and_from_which_commit(monkeypatch):
    server = FakeServer(0)
    monkeypatch.setattr(submit, "_client", lambda address: server)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.chdir(REPOSITORY)
    submit_study("digits-quick", address="http://head:8265")
    assert server.metadata == {"scalestudy_user": "ann", "scalestudy_git_commit": git_commit(REPOSITORY)}


def test_words_of_the_server_repeat_no_variable(monkeypatch, capsys):
    server = FakeServer(0, refusal="bad runtime env {'A': 'hunter22', 'U': 'http://ann:pw@h'}\nTraceback …")
    monkeypatch.setattr(submit, "_client", lambda address: server)
    monkeypatch.setenv("U", "http://ann:pw@h")
    with pytest.raises(UnreachableError, match="the job was refused") as refused:
        submit_study("digits-quick", address="http://head:8265", variables=["A=hunter22", "U"])
    said = "".join([str(refused.value), *capsys.readouterr()])
    assert "{'A': '***', 'U': '***'}" in said
    assert "hunter22" not in said
    assert "ann:pw" not in said


def test_an_interrupt_shows_no_password(monkeypatch, capsys):
    async def interrupted(client, job):
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "_client", lambda address: FakeServer(0))
    monkeypatch.setattr(submit, "_follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit_study("digits-quick", address="http://ann:hunter2@head:8265")
    printed = "".join(capsys.readouterr())
    assert "the job goes on; its log: ray job logs --address http://ann:***@head:8265 --follow raysubmit_1" in printed
    assert "hunter2" not in printed


def test_without_waiting_the_log_is_not_followed(monkeypatch, capsys):
    monkeypatch.setattr(submit, "_client", lambda address: FakeServer(1))
    assert submit_study("digits-quick", address="http://head:8265", wait=False) == 0
    assert "log of" not in capsys.readouterr().out
