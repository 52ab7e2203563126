"""`report --png`: pictures from a browser, here one that a script stands for."""

import base64
import json
import os
import shutil
from pathlib import Path

import pytest

from scalestudy.experiments.report import pictures, write_report
from scalestudy.experiments.report.pictures import BrowserError, write_pictures
from scalestudy.experiments.study.folder import StudyFolder
from tests.support.in_process import scalestudy
from tests.support.synthetic_studies import TINY, folder_of

FAKE = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in
    --screenshot=*) printf whole > "${argument#--screenshot=}" ;;
    --dump-dom) printf '%s' '<body><pre id="pictures">TOLD</pre></body>' ;;
  esac
done
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("runs") / "tiny-1", TINY)
    write_report(folder)
    return folder


@pytest.fixture
def folder(reported, tmp_path):
    return StudyFolder(Path(shutil.copytree(reported.path, tmp_path / "tiny-1")))


@pytest.fixture
def browser(tmp_path, monkeypatch):
    """Puts a browser on this machine that runs a script; no other is there."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setattr(pictures, "BROWSERS", (str(place / "chromium"),))

    def make(script):
        (place / "chromium").write_text(script)
        (place / "chromium").chmod(0o755)

    return make


def test_every_picture_of_the_page_becomes_a_file_and_those_of_an_earlier_report_go(folder, browser):
    told = {name: base64.b64encode(name.encode()).decode() for name in ("pareto", "phases")}
    browser(FAKE.replace("TOLD", json.dumps(told).replace('"', "&quot;")))
    folder.figures.mkdir()
    (folder.figures / "predictions.png").write_bytes(b"old")
    written = write_pictures(folder)
    assert written == [folder.figure_file(name) for name in ("pareto", "phases", "report")]
    assert {file.name: file.read_bytes() for file in folder.figures.iterdir()} == {
        "pareto.png": b"pareto",
        "phases.png": b"phases",
        "report.png": b"whole",
    }


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\necho '<body></body>'\n", "did not draw the report's figures"),
        (FAKE.replace("TOLD", "{}").replace("printf whole >", ": "), "did not draw the report"),
    ],
)
def test_a_browser_that_draws_nothing_is_an_error_and_no_picture_is_touched(folder, browser, script, words):
    browser(script)
    folder.figures.mkdir()
    (folder.figures / "pareto.png").write_bytes(b"old")
    with pytest.raises(BrowserError, match=words):
        write_pictures(folder)
    assert (folder.figures / "pareto.png").read_bytes() == b"old"


def test_root_alone_starts_the_browser_without_its_sandbox(folder, browser, monkeypatch, tmp_path):
    browser(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{FAKE.partition(chr(10))[2].replace("TOLD", "{}")}')
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        write_pictures(folder)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ["--no-sandbox" in line.split() for line in asked] == [True, True, False, False]


def test_without_a_browser_the_report_is_written_and_the_command_says_what_to_do(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    folder.report_file.unlink()
    done = scalestudy("report", folder.path, "--png", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "--png: there is no Chromium or Chrome on this machine; install Debian's chromium, or Chrome; "
        f"or press PNG beside the figures of {folder.report_file}\n"
    )
    assert folder.report_file.exists()


def test_the_command_names_what_it_wrote(folder, browser, tmp_path):
    browser(FAKE.replace("TOLD", "{}"))
    done = scalestudy("report", folder.path, "--png", cwd=tmp_path)
    assert done.stdout.splitlines() == [str(folder.report_file), str(folder.figure_file("report"))]
    done = scalestudy("report", folder.path, "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"report": str(folder.report_file), "pictures": []}
