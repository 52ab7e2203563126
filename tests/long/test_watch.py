"""`open --watch` beside a real run: the page follows it, and leads to the report when the run ends."""

from __future__ import annotations

import re
import subprocess

import pytest

from scalestudy.experiments.plan.timing_flags import TimingFlag
from tests.support.drivers import SLOW, Driver
from tests.support.groups import wait_until
from tests.support.studies import command, environment, write_spec


@pytest.mark.chaos
def test_the_page_follows_a_run_and_leads_to_its_report(tmp_path):
    write_spec(
        tmp_path,
        workload={**SLOW, "model_args": {"seconds": 0.15}},
        train={"epochs": 6},
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1, 0.12, 0.14, 0.16]},
    )
    study = Driver(tmp_path, "out")
    study.wait_for("epoch", 1)
    watching = subprocess.Popen(
        command("open", "out", "--watch"),
        cwd=tmp_path,
        env=environment(SCALESTUDY_HOME=str(tmp_path / "home")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    (page,) = wait_until(lambda: list((tmp_path / "home" / "live").glob("*.html")), seconds=60)
    first = page.read_text("utf-8")
    assert re.search(r"<h1>So far: ", first)
    assert re.search(r"<strong>\d/4 trials · .* elapsed", first)
    assert re.search(r"<li>.*: epoch \d of 6</li>", first)
    status, printed = study.end()
    assert status == 0, printed
    printed, told = watching.communicate(timeout=60)
    assert (watching.returncode, printed) == (0, f"{page}\n"), told
    assert told.splitlines()[-1] == f"the study has ended; its report: {study.folder.report_file}"
    assert study.folder.report_file.as_uri() in page.read_text("utf-8")
    flags = [trial["flags"] for trial in study.folder.read_trials()]
    assert len(flags) == 4
    assert all(set(each) <= {TimingFlag.STARVED} for each in flags)
