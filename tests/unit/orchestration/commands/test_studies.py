"""`list`, `latest` and `open`: which studies there are, which is the latest, and what is refused."""

import json
import os
import re
import webbrowser
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.commands.studies import list_studies, named_study
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.storage.lock import lock_of
from tests.support.approved import approved
from tests.support.in_process import scalestudy
from tests.support.old_studies import STUDIES, unpack
from tests.support.studies import complaint, left_behind
from tests.support.synthetic_studies import TINY, folder_of, summary_of
from tests.support.trials import Law

LAW = Law(noise=0.02)


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


def test_the_list(here):
    """Each state, and each reason for which there is no answer; the latest study comes first."""
    runs = here / "runs"
    study(runs / "answered", began=9e9, ended="finished")
    study(runs / "stopped", began=8e9, ended="stopped")
    study(runs / "interrupted", began=7e9)
    study(runs / "without-a-target", began=6e9, ended="finished", text=TINY.replace("targets: {accuracy: [0.8]}", ""))
    study(runs / "hard", began=5e9, ended="finished", text=TINY.replace("0.8", "0.999"))
    study(runs / "new", began=4e9).summary_file.unlink()
    old = study(runs / "old", began=3e9, ended="finished")
    old.summary_file.write_text('{"version": 1, "recommendation": {"knee": 3}}')
    running = study(runs / "running", began=2e9)
    running.summary_file.unlink()
    study(runs / "broken-20260102T030405Z").plan_file.write_text("{")
    torn = study(runs / "torn", began=1e9, ended="stopped")
    (torn.journal_folder / "00000003.json").write_text('{"at": ')
    with lock_of(running):
        done = scalestudy("list", cwd=here)
        plain = json.loads(scalestudy("list", "--json", cwd=here).stdout)
    assert (done.returncode, done.stderr) == (0, "")
    approved(re.sub(r"can't be read: .*", "can't be read: …", done.stdout), Path(__file__).parent / "list.txt")
    recommended = summary(TINY)["recommendation"]["recommended"]
    first, broken = plain[0], plain[-2]
    answer = {key: first["answer"][key] for key in ("label", "seconds", "target")}
    assert answer == {**{key: recommended[key] for key in ("label", "seconds")}, "target": 0.8}
    assert (first["name"], first["ended"], first["planned"]) == ("tiny", 4, 4)
    assert (first["folder"], first["started"]) == ("runs/answered", "2255-03-14T16:00:00+00:00")
    assert (broken["state"], broken["ended"]) == ("unreadable", None)
    assert plain[3]["answer"]["seconds"] is plain[3]["answer"]["target"] is None
    assert scalestudy("report", "runs/old", cwd=here).returncode == 0
    assert {row.folder: row for row in listed()}["runs/old"].answer["label"]


@pytest.mark.parametrize("name", STUDIES)
def test_it_counts_as_status_does(here, name):
    unpack(name, here / "runs" / name)
    (row,), current = listed(), status_of(here / "runs" / name)
    assert (row.study, row.state, row.planned) == (current.study, current.state, current.trials["planned"])
    assert row.ended == sum(current.trials.values()) - row.planned
    assert row.started == next(Journal(here / "runs" / name / "journal").entries()).at


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


def test_every_command_that_looks_takes_it_and_says_which_it_took(here):
    study(here / "runs" / "a", began=1e9, ended="finished")
    study(here / "runs" / "b", began=2e9, ended="finished")
    for command in ("status", "report", "recommend", "open"):
        done = scalestudy(command, "latest", cwd=here, DISPLAY="", BROWSER="true")
        assert (done.returncode, done.stderr) == (0, "latest: runs/b\n"), command


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


@pytest.mark.parametrize(
    ("screen", "has_browser", "is_shown"),
    [
        pytest.param({"DISPLAY": ":0"}, True, True, id="a screen"),
        pytest.param({"DISPLAY": ":0"}, False, False, id="no browser"),
        pytest.param({}, True, False, id="no screen, where a browser of the terminal would start"),
    ],
)
def test_the_path_is_printed_and_the_page_shown(here, monkeypatch, screen, has_browser, is_shown):
    asked = []

    def show(page):
        asked.append(page)
        if not has_browser:
            raise webbrowser.Error("could not locate runnable browser")
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    file = study(here / "runs" / "50 % #1", began=1e9).report_file.absolute()
    done = scalestudy("open", "runs/50 % #1", cwd=here, **screen)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}\n", "")
    assert asked == ([f"file://{here}/runs/50%20%25%20%231/report.html"] if screen else [])
    done = scalestudy("open", "--json", cwd=here, **screen)
    assert json.loads(done.stdout) == {"report": str(file), "shown": is_shown}
    assert done.stderr == "latest: runs/50 % #1\n"
