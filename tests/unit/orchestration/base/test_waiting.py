"""What a command says while it waits, and how long it has run."""

import io
import os
import subprocess
import sys
import time

from scalestudy.orchestration.base import waiting
from scalestudy.orchestration.base.waiting import process_seconds, waiting_lines
from tests.support.studies import environment


def test_a_wait_is_told_where_the_stream_led_at_first(tmp_path):
    paths = tmp_path / "screen", tmp_path / "log"
    with paths[0].open("w") as screen, paths[1].open("w") as log, waiting_lines(screen) as say:
        os.dup2(log.fileno(), screen.fileno())  # as `Output` does with a command's streams
        say("Ray to start")
        assert paths[0].read_text() == "waiting for Ray to start\n", "at once"
    assert (tmp_path / "log").read_text() == ""


def test_a_wait_is_told_in_the_encoding_of_the_stream_and_whether_or_not_somebody_reads(tmp_path):
    with (tmp_path / "screen").open("w", encoding="latin-1") as screen, waiting_lines(screen) as say:
        say("größe ─")
    assert (tmp_path / "screen").read_bytes() == "waiting for größe ?\n".encode("latin-1")
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as screen, waiting_lines(screen) as say:
        os.close(reading)
        say("Ray to start")
        say("Ray to start")


def test_a_wait_is_told_to_a_stream_without_a_descriptor_and_hides_secrets():
    stream = io.StringIO()
    with waiting_lines(stream) as say:
        say("MLflow at http://me:hidden@host")
    assert stream.getvalue().startswith("waiting for MLflow at http://")
    assert "hidden" not in stream.getvalue()


def test_the_seconds_of_a_process_begin_with_it():
    code = (
        "import time; time.sleep(0.5)\n"
        "from scalestudy.orchestration.base.waiting import process_seconds\n"
        "print(process_seconds())"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert 0.5 <= float(done.stdout) <= time.monotonic() - began


def test_a_clock_that_cannot_be_right_is_not_believed(monkeypatch):
    monkeypatch.setattr(waiting, "LOADED", time.monotonic() - 1.0)
    monkeypatch.setattr(waiting, "PLAUSIBLE_SECONDS", 0.0)
    assert 1.0 <= process_seconds() < 2.0
