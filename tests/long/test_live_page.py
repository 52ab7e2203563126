"""The report of a study while it runs, from a real run: it is there, it costs little, and disturbs no timing."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime

import pytest

from tests.support.drivers import SLOW, Driver
from tests.support.studies import write_spec


@pytest.mark.chaos
def test_the_page_is_rewritten_between_trials_and_then_is_the_report(tmp_path):
    rates = [0.1 + 0.02 * number for number in range(9)]
    write_spec(
        tmp_path,
        workload={**SLOW, "model_args": {"seconds": 0.15}},
        train={"epochs": 6},
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": rates},
    )
    study, written = Driver(tmp_path, "out"), {}
    while study.process.poll() is None:
        if study.folder.report_file.exists():
            text = study.folder.report_file.read_text("utf-8")
            if found := re.search(r'data-written="([\d.]+)"', text):
                written.setdefault(float(found[1]), text)
        time.sleep(0.1)
    status, printed = study.end()
    assert status == 0, printed
    (moment, first), *_ = written.items()
    assert re.search(r"<h1>So far: ", first)
    assert re.search(r"<strong>\d/9 trials · .* elapsed · about .* left", first)
    records = [json.loads(line) for line in study.folder.trials_file.read_text("utf-8").splitlines()]
    assert [record["flags"] for record in records] == [[]] * 9
    running = [
        record["trial_id"]
        for record in records
        if stamp(record["started_at"]) + 0.5 < moment < stamp(record["ended_at"]) - 0.5
    ]
    assert running == []
    last = study.folder.report_file.read_text("utf-8")
    assert "data-written" not in last
    assert "So far" not in last


def stamp(at: str) -> float:
    """POSIX seconds of a record's time."""
    return datetime.fromisoformat(at).timestamp()
