"""`log.jsonl`: what the driver did and met, a line of JSON each."""

import json
import logging

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.progress.live import Logged, Silent, StudyLog
from scalestudy.orchestration.progress.progress import Board
from tests.support.synthetic_studies import spec_of

PLAN = make_plan(spec_of("name: s\nsweep: {num_gpus: [1], batch_size: [64], learning_rate: [0.1]}\n"))


def lines(file):
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_every_event_has_the_studys_and_the_trials_id(tmp_path):
    file, (trial,) = tmp_path / "log.jsonl", PLAN.trials
    board = Board({trial.trial_id: trial})
    view = Logged(Silent(), board)
    with StudyLog(file, "s-1"):
        view.stage("starting")
        for event in ({"type": "running", "attempt": 1}, {"type": "epoch", "epoch": {}}):
            board.take(trial.trial_id, event)
            view.event(trial.trial_id, event)
    opening, running = lines(file)  # an epoch's record is in the journal
    assert (opening["message"], opening["study_id"], opening["level"]) == ("starting", "s-1", "info")
    assert "trial_id" not in opening
    assert (running["trial_id"], running["event"], running["study_id"]) == (trial.trial_id, "running", "s-1")
    assert running["message"].endswith(": training")
    assert running["at"].endswith("Z")


def test_warnings_and_tracebacks_of_these_packages_are_in_it_and_no_others(tmp_path):
    file, ours = tmp_path / "log.jsonl", logging.getLogger("scalestudy.orchestration.tracking.writer")
    before = logging.getLogger("orchestration").level
    with StudyLog(file, "s-1"):
        logging.getLogger("elsewhere").warning("not ours")
        ours.warning("MLflow is out of reach:\n%s", "…")
        try:
            raise ValueError("broken")
        except ValueError:
            ours.exception("the sweep broke off")
    ours.warning("after it")
    warning, error = lines(file)
    assert (warning["level"], warning["message"]) == ("warning", "MLflow is out of reach:\n…")
    assert error["traceback"].endswith("ValueError: broken")
    assert logging.getLogger("orchestration").level == before


def test_a_log_that_can_not_be_written_stops_nothing(tmp_path):
    with StudyLog(tmp_path / "missing" / "log.jsonl", "s-1"):
        logging.getLogger("orchestration").warning("nobody hears it")
    assert not (tmp_path / "missing").exists()
