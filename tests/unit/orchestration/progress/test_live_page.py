"""When the report of a running study is rewritten, and that nothing about it can harm the study."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalestudy.orchestration.groups.events import Ended, Running, WorkerPlace, World
from scalestudy.orchestration.progress import live_page
from scalestudy.orchestration.progress.live_page import LivePage, Pages, is_due
from scalestudy.orchestration.progress.progress import StudyProgress
from tests.support.groups import wait_until
from tests.support.synthetic_studies import TINY, folder_of

BESIDE = {"alone": False, "running": 2, "ended": False}
BETWEEN = {"alone": True, "running": 0, "ended": True}


@pytest.mark.parametrize(
    ("pages", "now", "told", "due"),
    [
        (Pages(), 29.9, BESIDE, False),  # the first page is taken to cost 0.3 s
        (Pages(), 30.1, BESIDE, True),
        (Pages(last=10, cost=0.1, count=1), 39.9, BESIDE, False),  # 29.9 s after the one before
        (Pages(last=10, cost=0.1, count=1), 40.1, BESIDE, True),
        (Pages(last=10, cost=0.3, count=1), 59.0, BESIDE, False),  # with another it would be 0.6 s of 59 s
        (Pages(last=10, cost=0.3, count=1), 60.1, BESIDE, True),
        (Pages(), 100.0, {**BETWEEN, "running": 1}, False),  # beside a trial that wants the machine to itself
        (Pages(), 100.0, {**BETWEEN, "ended": False}, False),  # a trial begins
        (Pages(), 100.0, BETWEEN, True),
    ],
)
def test_when_a_page_is_due(pages, now, told, due):
    assert is_due(pages, now, **told) is due


def test_pages_take_at_most_a_hundredth_of_the_time():
    pages, now, cost = Pages(), 0.0, 2.0
    while now < 36_000:
        if is_due(pages, now, **BESIDE):
            pages, now = pages.and_one(now + cost, cost), now + cost
        now += 1.0
    assert 0.009 * now < pages.cost <= 0.01 * now
    assert pages.count > 100


def page_of(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    return folder, LivePage(folder.path, StudyProgress(folder.read_plan().by_id()))


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(live_page, "FIRST_SECONDS", 0.0)


HERE = frozenset({"node-1"})


def began(node="node-1"):
    return Running(attempt=1, world=World(workers=(WorkerPlace(rank=0, node=node, device="cpu", threads=1),)))


def test_a_page_is_written_beside_trials_that_do_not_mind(tmp_path, at_once):
    folder, page = page_of(tmp_path)
    try:
        page.event("a", began(), kept_free=HERE)
        time.sleep(0.2)
        assert not folder.report_file.exists()
        page.event("a", began(), kept_free=frozenset())
        wait_until(folder.report_file.exists, seconds=60)
        assert "0/4 trials" in folder.report_file.read_text("utf-8")
    finally:
        page.close()


def test_a_late_event_does_not_make_a_page_dear(tmp_path, at_once):
    folder, page = page_of(tmp_path)
    try:
        page.event("a", began(), kept_free=frozenset())
        wait_until(folder.report_file.exists, seconds=60)
        time.sleep(5)
        page.event("a", began(), kept_free=frozenset())
        assert page._pages.count == 1
        assert 0 < page._pages.cost < 3
    finally:
        page.close()


def test_its_process_stands_still_while_a_trial_has_the_machine_to_itself(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(live_page, "LONGEST_WAIT_SECONDS", 0.0)  # no page is done at once
    folder, page = page_of(tmp_path)
    state = Path(f"/proc/{page._process.pid}/stat")
    try:
        page.event("b", ended(), kept_free=HERE)
        page.event("a", began(), kept_free=HERE)
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", seconds=10)
        time.sleep(3)
        assert not folder.report_file.exists()
        page.event("c", began("node-2"), kept_free=HERE)  # on another machine
        assert not folder.report_file.exists()
        page.event("a", ended(), kept_free=HERE)
        wait_until(folder.report_file.exists, seconds=60)
    finally:
        page.close()


def ended():
    at = "2026-01-01T00:00:00Z"
    times = {"started_at": at, "ended_at": at, "wall_seconds": 1.0, "train_seconds": 1.0, "startup_seconds": 0.0}
    return Ended(status="finished", attempts=1, **times)


def test_a_process_that_has_died_is_no_harm(tmp_path, at_once, caplog):
    _, page = page_of(tmp_path)
    page._process.kill()
    page._process.wait()
    page.event("a", began(), kept_free=frozenset())
    page.event("a", began(), kept_free=frozenset())
    assert "no more reports while the study runs" in caplog.text
    page.close()


def test_a_stopped_process_ends_with_a_driver_that_is_killed(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    driver = f"""
import pathlib, signal, time
from scalestudy.orchestration.progress.live_page import LivePage
page = LivePage(pathlib.Path({str(folder.path)!r}), None)
time.sleep(2)
page._process.send_signal(signal.SIGSTOP)
print(page._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True) as process:
        page = Path(f"/proc/{process.stdout.readline().strip()}")
        assert page.exists()
        process.kill()
    wait_until(lambda: not page.exists() or "Z" in (page / "stat").read_text(), seconds=10)


def test_no_process_at_all_is_no_harm(tmp_path, at_once, monkeypatch, caplog):
    monkeypatch.setattr(live_page.sys, "executable", str(tmp_path / "none"))
    _, page = page_of(tmp_path)
    page.event("a", began(), kept_free=frozenset())
    page.close()
    assert "no report while the study runs" in caplog.text
