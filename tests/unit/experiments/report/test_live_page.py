"""The page of a study that runs, as text."""

import time

from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.live_page import TrialNow, live_page, running_curves
from tests.support.report_pages import Page
from tests.support.synthetic_studies import TINY, folder_of

NOW = TrialNow(
    name="w2 b32 lr.1 s0",
    cell={"num_gpus": 2, "batch_size": 32, "learning_rate": 0.1},
    attempt=2,
    period="epoch",
    last=8,
    evaluations=[(1, 2.0, 0.25), (2, 1.5, None), (3, 2.5, 0.5)],
)


def test_the_page_shows_what_has_ended_and_what_runs(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    study = AnalysedStudy.of(folder, trials=folder.read_trials()[:2])
    page = Page(live_page(study, [NOW], ended=2, planned=4, progress="2/4 trials"))
    for words in ("2/4 trials", "w2 b32 lr.1 s0: epoch 3 of 8, attempt 2", "Dashed: a trial that still runs."):
        assert words in page.shown
    assert len(page.tables["Table of cells"]) == 5
    assert abs(float(dict(page.attributes)["data-written"]) - time.time()) < 60


def test_a_study_without_a_trial_has_a_page_too(tmp_path):
    study = AnalysedStudy.of(folder_of(tmp_path / "tiny-1", TINY), trials=[])
    assert "0/4 trials" in Page(live_page(study, [], ended=0, planned=4, progress="0/4 trials")).shown


def test_a_trial_that_runs_has_a_curve():
    labels = ["workers=1 batch=32 lr=0.1", "workers=2 batch=32 lr=0.1"]
    # the epoch without a metric counts in the seconds: 2.0 + 1.5 + 2.5
    assert running_curves([NOW], "test_accuracy", labels) == [
        {"cell": 1, "runs": True, "epochs": [1, 3], "seconds": [2, 6], "test_accuracy": [0.25, 0.5]}
    ]
    assert running_curves([NOW], "test_accuracy", labels[:1]) == []
