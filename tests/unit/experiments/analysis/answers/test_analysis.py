"""A study is read, gathered and fitted once, whatever is asked of it."""

from collections import Counter

import pytest

from scalestudy.experiments.analysis import predict, recommend, summarise
from scalestudy.experiments.analysis.answers import analysis, posterior
from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.summary import summary_of
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.explorer import MOST_TARGETS
from scalestudy.orchestration.study.advice import advise
from tests.support.synthetic_studies import folder_of, study_of
from tests.support.trials import Law

TEXT = """
    name: x
    train: {epochs: 8}
    targets: {accuracy: [0.6, 0.8]}
    sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}
"""
COUNTED = {
    analysis: ("usable", "gather", "cell_row", "timing_rows", "Posterior"),
    posterior: ("trainings_of", "steps_to_target", "step_seconds"),
}


@pytest.fixture
def calls(monkeypatch):
    """How often each of these was called."""
    made = Counter()

    def counting(name, function):
        def call(*arguments, **keywords):
            made[name] += 1
            return function(*arguments, **keywords)

        return call

    for module, names in COUNTED.items():
        for name in names:
            monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return made


ONCE = {"usable": 1, "gather": 1, "cell_row": 8, "timing_rows": 1, "Posterior": 1, "trainings_of": 1}
"""Of eight cells of one combination."""


def test_recommend_works_out_everything_once(tmp_path, calls):
    advise(folder_of(tmp_path / "x", TEXT, Law(noise=0.05)))
    assert calls == {**ONCE, "steps_to_target": 2, "step_seconds": 1}, "two targets"


def test_for_one_target_recommend_fits_it_once(tmp_path, calls):
    advise(folder_of(tmp_path / "x", TEXT, Law(noise=0.05)), target=0.7, max_gpus=1, tolerance=0.2, price=2.0)
    assert calls == {**ONCE, "steps_to_target": 1, "step_seconds": 1}


def test_a_report_fits_each_place_of_its_slider_once(tmp_path, calls):
    AnalysedStudy.of(folder_of(tmp_path / "x", TEXT, Law(noise=0.05))).page_data()
    assert calls == {**ONCE, "steps_to_target": MOST_TARGETS, "step_seconds": 1}


def test_predict_gives_the_summary_s_predictions():
    records = study_of(TEXT, Law(noise=0.05))
    found = predict(*records, recommend(*records))
    assert found == summarise(*records)["predictions"]
    priced = predict(*records, recommend(*records), price=3600.0)
    assert [row["cost"] for row in priced["rows"]] == [row["worker_seconds"] for row in found["rows"]]


def test_what_is_asked_again_is_at_hand(calls):
    study = Analysis(*study_of(TEXT, Law(noise=0.05)))
    first, before = summary_of(study), Counter(calls)
    assert summary_of(study) == first
    assert study.predict(study.recommendation) == first["predictions"]
    assert study.recommend() == first["recommendation"]
    assert calls == before
