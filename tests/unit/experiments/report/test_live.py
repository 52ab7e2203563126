"""The page of a study that runs."""

import json
import subprocess
import sys
import time

from scalestudy.experiments.report.live import last_lines, running_curves, write_live_page
from tests.support.report_pages import Page
from tests.support.synthetic_studies import TINY, folder_of

TOLD = {
    "ended": 2,
    "planned": 4,
    "progress": "2/4 trials",
    "running": [
        {
            "name": "workers=2 batch=32 lr=0.1 seed=0",
            "cell": {"num_gpus": 2, "batch_size": 32, "learning_rate": 0.1},
            "period": "epoch",
            "last": 8,
            "epochs": [[1, 2.0, 0.25], [2, 1.5, None], [3, 2.5, 0.5]],
        }
    ],
}


def test_the_page_shows_what_has_ended_and_what_runs(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    lines = folder.trials_file.read_text("utf-8").splitlines(keepends=True)
    folder.trials_file.write_text("".join(lines[:2]), "utf-8")
    folder.log_file.write_text(json.dumps({"at": "2026-01-01T10:11:12.5Z", "message": "a </pre> message"}), "utf-8")
    write_live_page(folder, TOLD)
    page = Page(folder.report_file.read_text("utf-8"))
    for words in ("2/4 trials", "workers=2 batch=32 lr=0.1 seed=0: epoch 3 of 8", "10:11:12 a </pre> message"):
        assert words in page.shown
    assert len(page.tables["Table of cells"]) == 5
    assert abs(float(dict(page.attributes)["data-written"]) - time.time()) < 60
    assert not folder.summary_file.exists()
    assert "Dashed: a trial that still runs." in page.shown


def test_a_trial_that_runs_has_a_curve():
    labels = ["workers=1 batch=32 lr=0.1", "workers=2 batch=32 lr=0.1"]
    # the epoch without a metric counts in the seconds: 2.0 + 1.5 + 2.5
    assert running_curves(TOLD["running"], labels) == [
        {"cell": 1, "runs": True, "epochs": [[1, 3], [0.25, 0.5]], "seconds": [[2, 6], [0.25, 0.5]]}
    ]
    assert running_curves(TOLD["running"], labels[:1]) == []
    assert running_curves([{**TOLD["running"][0], "epochs": []}], labels) == []


def test_a_study_without_a_trial_has_a_page_too(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    folder.trials_file.write_text("", "utf-8")
    write_live_page(folder, {**TOLD, "ended": 0})
    assert "2/4 trials" in Page(folder.report_file.read_text("utf-8")).shown


def test_only_whole_lines_of_the_log_are_shown(tmp_path):
    log = tmp_path / "log.jsonl"
    assert last_lines(log) == []
    whole = [json.dumps({"at": f"2026-01-01T00:00:{second:02}Z", "message": f"m{second}"}) for second in range(20)]
    log.write_text("\n".join([*whole, "broken {"]), "utf-8")
    assert last_lines(log) == [f"00:00:{second} m{second}" for second in range(15, 20)]


def test_its_process_answers_each_request(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    program = "from scalestudy.experiments.report.live import main; main()"
    asked = f"{json.dumps(TOLD)}\n{{}}\n{json.dumps(TOLD)}\n"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.path)], input=asked, capture_output=True, text=True, check=True
    )
    first, second, third = (line.partition(" ") for line in done.stdout.splitlines())
    assert 0 < float(third[0]) <= float(first[0]) + 0.5
    assert (first[2], third[2]) == ("", "")
    assert second[2].startswith("KeyError: ")
