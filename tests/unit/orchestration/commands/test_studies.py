"""`list`, `latest` and `open`: which studies there are, which is the latest, and what is refused."""

import json
import os
import webbrowser
from contextlib import ExitStack
from functools import cache

import pytest

from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.studies import HEADER, list_studies, named_study
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.storage.lock import lock_of
from tests.support.in_process import scalestudy
from tests.support.old_studies import STUDIES, unpack
from tests.support.studies import complaint, left_behind
from tests.support.synthetic_studies import TINY, folder_of, summary_of
from tests.support.trials import Law

LAW = Law(noise=0.02)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, with a home that no other test has."""
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def study(path, *, began=None, ended=None, text=TINY):
    """A study with its summary; the journal says when it began (seconds since 1970) and how it ended."""
    folder = folder_of(path, text, LAW)
    journal = Journal(folder.journal_folder, clock=lambda: began)
    if began is not None:
        journal.append("", {"type": "study", "state": "started"})
    if ended is not None:
        more = {"finished": {"best": None}, "stopped": {"open": []}}[ended]
        journal.append("", {"type": "study", "state": ended, "wall_seconds": 1.0, **more})
    folder.write_json(folder.summary_file, summary(text))
    folder.write_text(folder.report_file, "a page")
    return folder


@cache
def summary(text):
    return summary_of(text, LAW)


def listed(storage=None):
    return list_studies(storage)[0]


# --- list -----------------------------------------------------------------------------------------------------------


def test_studies_are_listed_with_their_state_and_answer_the_latest_first(here):
    study(here / "runs" / "a", began=2e9, ended="finished")
    study(here / "runs" / "b", began=1e9, ended="stopped")
    study(here / "runs" / "c", began=3e9)
    rows = listed()
    assert [row.folder for row in rows] == ["runs/c", "runs/a", "runs/b"]
    assert [row.state for row in rows] == ["interrupted", "finished", "stopped"]
    assert {(row.name, row.ended, row.planned) for row in rows} == {("tiny", 4, 4)}
    recommended, answer = summary(TINY)["recommendation"]["recommended"], rows[1].answer
    assert (answer["label"], answer["seconds"], answer["target"]) == (recommended["label"], recommended["seconds"], 0.8)
    assert answer["words"].startswith(f"{answer['label']}, ")
    assert answer["words"].endswith(" s of training to 0.8")


@pytest.mark.parametrize("name", STUDIES)
def test_it_counts_as_status_does(here, name):
    unpack(name, here / "runs" / name)
    (row,), current = listed(), status_of(here / "runs" / name)
    assert (row.study, row.state, row.planned) == (current.study, current.state, current.trials["planned"])
    assert row.ended == sum(current.trials.values()) - row.planned
    assert row.started == next(Journal(here / "runs" / name / "journal").entries()).at


def test_the_last_event_may_be_torn(here):
    folder = study(here / "runs" / "a", began=2e9, ended="stopped")
    (folder.journal_folder / "00000003.json").write_text('{"at": ')
    assert listed()[0].state == "stopped"


def test_a_study_without_a_target_is_answered_by_its_metric(here):
    study(here / "runs" / "a", text=TINY.replace("targets: {accuracy: [0.8]}", ""))
    (row,) = listed()
    assert row.answer["seconds"] is row.answer["target"] is None
    assert row.answer["words"] == f"{row.answer['label']}, {row.answer['value']:.3f} test accuracy"


def test_why_there_is_no_answer(here):
    hard = study(here / "runs" / "hard", began=5e9, text=TINY.replace("0.8", "0.999"))
    new = study(here / "runs" / "new", began=4e9)
    new.summary_file.unlink()
    old = study(here / "runs" / "old", began=3e9)
    old.summary_file.write_text('{"version": 1, "recommendation": {"knee": 3}}')
    runs = study(here / "runs" / "runs", began=2e9)
    runs.summary_file.unlink()
    broken = study(here / "runs" / "broken-20260102T030405Z")
    broken.plan_file.write_text("{")
    with lock_of(runs):
        rows = {row.folder: row for row in listed()}
    assert list(rows) == [f"runs/{name}" for name in ("hard", "new", "old", "runs", "broken-20260102T030405Z")]
    whys = [row.answer["why"] for row in rows.values()]
    assert whys[:4] == [
        "no cell reached a test accuracy of 0.999",
        "it has no report; scalestudy report runs/new writes one",
        "its summary.json has version 1, not 2; scalestudy report runs/old rewrites it",
        "it has not ended",
    ]
    assert whys[4].startswith("can't be read: ")
    assert [row.state for row in rows.values()][3:] == ["running", "unreadable"]
    assert rows["runs/broken-20260102T030405Z"].to_row()[1:4] == ["unreadable", "–", "2026-01-02 03:04"]
    assert scalestudy("report", "runs/old", cwd=here).returncode == 0
    assert {row.folder: row for row in listed()}["runs/old"].answer["label"]
    assert hard.address


def test_studies_of_jobs_lie_in_the_home(here, monkeypatch, tmp_path):
    study(here / "runs" / "mine", began=1e9)
    study(tmp_path / "home" / "runs" / "job", began=2e9)
    assert [row.folder for row in listed()] == [str(tmp_path / "home" / "runs" / "job"), "runs/mine"]
    assert named_study("latest")[0] == str(tmp_path / "home" / "runs" / "job")
    assert named_study("runs/latest")[0] == "runs/mine"
    monkeypatch.setenv("SCALESTUDY_HOME", str(here))
    assert [row.folder for row in listed()] == ["runs/mine"], "one place, and not twice"


def test_another_folder_that_holds_studies(here, tmp_path):
    study(tmp_path / "two words" / "a")
    (tmp_path / "two words" / "no study").mkdir()
    assert [row.folder for row in listed(str(tmp_path / "two words"))] == [str(tmp_path / "two words" / "a")]
    assert listed() == []
    with pytest.raises(RequestError, match=r"--storage: none: there is no such folder; name one that holds studies"):
        list_studies("none")
    with pytest.raises(RequestError, match=r"--storage: .*/a: is itself a study's folder; name the folder that"):
        list_studies(str(tmp_path / "two words" / "a"))
    with pytest.raises(RequestError, match=r"--storage: ftp://x/y: is an unknown kind of storage"):
        list_studies("ftp://x/y")


def test_the_command_prints_a_table_or_json(here):
    study(here / "runs" / "a-long-name", began=1e9, ended="finished")
    study(here / "runs" / "b", began=2e9, ended="finished")
    done = scalestudy("list", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    head, first, second = done.stdout.splitlines()
    assert all(name in head for name in HEADER)
    assert first.split()[:5] == ["runs/b", "finished", "4/4", "2033-05-18", "03:33"]
    assert second.startswith("runs/a-long-name  finished  4/4     2001-09-09 01:46  workers=")
    plain = json.loads(scalestudy("list", "--json", cwd=here).stdout)
    assert [each["folder"] for each in plain] == ["runs/b", "runs/a-long-name"]
    assert plain[0]["started"] == "2033-05-18T03:33:20+00:00"


def test_an_empty_folder(here, tmp_path):
    done = scalestudy("list", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"no study in runs or {tmp_path / 'home' / 'runs'}; to run one: scalestudy run SPEC\n"
    assert json.loads(scalestudy("list", "--json", cwd=here).stdout) == []
    assert left_behind(tmp_path) == ["here"]


# --- latest ---------------------------------------------------------------------------------------------------------


def test_the_latest_is_the_one_that_began_last(here):
    first = study(here / "runs" / "a", began=3e9)
    study(here / "runs" / "b", began=2e9)
    os.utime(first.path, (1, 1))
    os.utime(first.plan_file, (1, 1))
    assert named_study("latest")[0] == "runs/a"


def test_a_study_that_has_not_begun_yet_is_known_by_its_name(here):
    study(here / "runs" / "tiny-20260101T000000Z")
    study(here / "runs" / "tiny-20260101T000000Z-2")
    study(here / "runs" / "odd-20269999T000000Z")
    study(here / "runs" / "other", began=1e9)
    assert named_study("latest")[0] == "runs/tiny-20260101T000000Z-2"
    assert [row.folder for row in listed()][-1] == "runs/odd-20269999T000000Z", "nothing tells when"


def test_a_folder_that_is_called_so_wins(here):
    study(here / "runs" / "a", began=3e9)
    study(here / "latest", began=1e9)
    study(here / "runs" / "latest", began=1e9)
    for name in ("latest", "runs/latest", "runs/a"):
        assert named_study(name) == (name, "")
    assert json.loads(scalestudy("status", "latest", "--json", cwd=here).stdout)["folder"] == "latest"


COMMANDS = [
    ("status",),
    ("report",),
    ("recommend",),
    ("open",),
    ("resume",),
    ("ui", "--sync"),
    ("run", "digits-quick", "--extend"),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["latest", "runs/latest"])
def test_where_there_is_none_every_command_says_so(here, tmp_path, command, name):
    done = scalestudy(*command, name, cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    looked = f"runs or {tmp_path / 'home' / 'runs'}" if name == "latest" else "runs"
    told = f"DIR: {name}: there is no study in {looked}; run one with scalestudy run SPEC, or name a study's folder\n"
    assert done.stderr == told
    assert left_behind(tmp_path) == ["here"]


def test_every_command_that_looks_takes_it_and_says_which_it_took(here):
    study(here / "runs" / "a", began=1e9, ended="finished")
    study(here / "runs" / "b", began=2e9, ended="finished")
    for command in ("status", "report", "recommend", "open"):
        done = scalestudy(command, "latest", cwd=here, DISPLAY="", BROWSER="true")
        assert (done.returncode, done.stderr) == (0, "latest: runs/b\n"), command
    done = scalestudy("compare", "runs/a", "latest", cwd=here)
    assert (done.returncode, done.stderr) == (0, "latest: runs/b\n")
    done = scalestudy("compare", "latest", "runs/b", cwd=here)
    assert done.returncode == 2
    assert done.stderr.endswith("DIR: runs/b: is the study b again; name each study once\n")


def test_between_two_that_run_those_that_look_say_which_and_those_that_act_refuse(here):
    names = ("runs/c", "runs/b", "runs/a")
    folders = [study(here / name, began=began) for name, began in zip(names, (3e9, 2e9, 1e9), strict=True)]
    with ExitStack() as stack:
        stack.enter_context(lock_of(folders[1]))
        stack.enter_context(lock_of(folders[2]))
        assert named_study("latest")[1] == "latest: runs/c", "it does not run itself: it is clear which is meant"
        stack.enter_context(lock_of(folders[0]))
        done = scalestudy("status", "latest", "--json", cwd=here)
        assert json.loads(done.stdout)["folder"] == "runs/c"
        assert done.stderr == "latest: runs/c; running too: runs/b, runs/a\n"
        for command in (("resume",), ("ui", "--sync"), ("run", "digits-quick", "--extend")):
            done = scalestudy(*command, "latest", cwd=here)
            assert (done.returncode, done.stdout) == (2, "")
            told = "DIR: latest: 3 studies run now (runs/c, runs/b, runs/a); name the folder of the one that you mean\n"
            assert done.stderr == told
    with lock_of(folders[0]), lock_of(folders[2]):
        assert named_study("latest")[1] == "latest: runs/c; running too: runs/a"
    with lock_of(folders[0]):
        done = scalestudy("resume", "latest", cwd=here)
        assert done.returncode == 2
        first, last = complaint(done.stderr).splitlines()
        assert first == "latest: runs/c"
        assert last.startswith("DIR: runs/c: is being run by process ")


# --- open -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """The pages that a browser was asked to show."""
    pages = []
    monkeypatch.setattr(webbrowser, "open", lambda page: pages.append(page) or True)
    return pages


def test_the_report_is_shown_and_its_path_printed(here, opened):
    folder = study(here / "runs" / "50 % #1", began=1e9)
    done = scalestudy("open", "runs/50 % #1", cwd=here, DISPLAY=":0")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder.report_file.absolute()}\n", "")
    assert opened == [f"file://{here}/runs/50%20%25%20%231/report.html"]
    done = scalestudy("open", "--json", cwd=here, DISPLAY=":0")
    assert json.loads(done.stdout) == {"report": str(folder.report_file.absolute()), "shown": True}
    assert done.stderr == "latest: runs/50 % #1\n"


def test_without_a_screen_the_path_is_printed_and_no_browser_of_the_terminal_started(here, opened, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    folder = study(here / "runs" / "a", began=1e9)
    done = scalestudy("open", "runs/a", cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder.report_file.absolute()}\n", "")
    assert opened == []
    assert json.loads(scalestudy("open", "runs/a", "--json", cwd=here).stdout)["shown"] is False


def test_a_browser_that_is_not_there_is_no_error(here, monkeypatch):
    def fail(page):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", fail)
    study(here / "runs" / "a", began=1e9)
    assert scalestudy("open", "runs/a", cwd=here, DISPLAY=":0").returncode == 0


def test_a_study_without_a_report_and_a_folder_that_is_no_study(here, opened):
    folder = study(here / "runs" / "a b", began=1e9)
    folder.report_file.unlink()
    done = scalestudy("open", "runs/a b", cwd=here, DISPLAY=":0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "DIR: runs/a b: has no report.html; scalestudy report 'runs/a b' writes it now\n"
    done = scalestudy("open", "runs", cwd=here, DISPLAY=":0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "DIR: runs: is not a study's folder (it has no plan.json); name one of scalestudy list\n"
    assert opened == []
