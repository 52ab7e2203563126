"""What the page explores: figures as the summary has them, and the recommendation at every place of the slider."""

import json
import math
from dataclasses import replace
from functools import cache

import pytest

from scalestudy.experiments.analysis import answer_lines, book_table, recommend
from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.recommendation import ROLES
from scalestudy.experiments.analysis.answers.summary import summary_of
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.text.answer import chosen_lines, headline
from scalestudy.experiments.report import explorer
from scalestudy.experiments.report.explorer import brief, embedded, explorer_data, slider_targets
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

TEXT = """
name: x
train: {epochs: 8}
targets: {accuracy: [0.6, 0.8]}
sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}
"""


def explored(text=TEXT, **keywords):
    spec, plan, trials = study_of(text, Law(noise=0.05, learning=60), **keywords)
    analysis = Analysis(spec, plan, trials)
    summary = summary_of(analysis)
    summary["study"]["study_id"] = "x-1"
    return spec, plan, trials, analysis, summary, explorer_data(analysis, summary)


plain = cache(explored)
"""The study of TEXT, for tests that change nothing in it."""


def test_at_every_target_the_slider_says_what_recommend_says():
    spec, plan, trials, _, summary, data = plain()
    assert len(data["targets"]) == explorer.MOST_TARGETS
    labels = [row["label"] for row in summary["cells"]]
    for answer in data["targets"]:
        found = recommend(spec, plan, trials, accuracy=answer["target"])
        told = {role: labels[place] for role, place in answer["roles"].items()}
        assert told == {role: found[role]["label"] for role in ROLES if found[role].get("value", 0) is not None}
        assert [line["text"] for line in answer["words"]] == [line.text for line in chosen_lines(found)]
        assert [labels[place] for place in answer["front"]] == found["pareto"]


@pytest.mark.parametrize("targets", ["[0.6, 0.99]", "[0.99]"])
def test_above_the_hardest_target_that_a_cell_reached_words_say_so_and_how_far_the_best_came(targets):
    *_, data = explored(TEXT.replace("[0.6, 0.8]", targets))
    above = [answer for answer in data["targets"] if not any(answer["reached"])]
    assert above
    assert above[-1] is data["targets"][-1]
    for answer in above:
        assert answer["words"][0]["text"].startswith(f"No cell reached a test accuracy of {answer['target']:g}")
        assert ": the best, workers=2 batch=32 lr=0.2, came to 0.949 in 8 evaluations" in answer["words"][0]["text"]
        assert answer["words"][1]["topic"] == "Best test accuracy"


def test_the_answered_target_has_the_times_of_the_summary():
    *_, summary, data = plain()
    answer = data["targets"][data["answered"]]
    assert answer["target"] == summary["recommendation"]["target"] == 0.8
    rows = [row for row in summary["time_to_target"] if row["target"] == 0.8]
    known = [place for place, row in enumerate(rows) if row["seconds"] is not None]
    assert known == [place for place, seconds in enumerate(answer["seconds"]) if seconds is not None]
    for place in known:
        assert answer["seconds"][place] == pytest.approx(rows[place]["seconds"], rel=1e-4)
        assert answer["low"][place] == pytest.approx(rows[place]["interval"]["low"], rel=1e-4)


def test_runs_are_named_as_mlflow_has_them(monkeypatch):
    monkeypatch.setattr(explorer, "MOST_TARGETS", 2)
    *_, analysis, summary, data = explored()
    assert data["runs"] is None
    page = "http://127.0.0.1:5000/#/experiments/1/runs"
    runs = explorer_data(analysis, summary, runs_page=page)["runs"]
    assert runs["page"] == page
    assert runs["filters"][0] == (
        "params.`num_gpus` = '1' and params.`batch_size` = '32' and params.`learning_rate` = '0.1' "
        "and tags.`scalestudy.study_id` = 'x-1'"
    )
    analysis.cells = [replace(analysis.cells[0], lent=True), *analysis.cells[1:]]
    assert explorer_data(analysis, summary, runs_page=page)["runs"]["filters"][0] is None


def test_values_that_are_mappings_or_flags_read_as_in_names():
    """In the filters, in the CSV, in the table of cells and in the answer."""
    swept = "train.schedule: [constant, {name: cosine, args: {floor: 0.1}}], train.optimizer.nesterov: [true]"
    text = TEXT.replace("{epochs: 8}", "{epochs: 8, optimizer: {name: sgd, momentum: 0.9}}")
    *_, summary, data = explored(text.replace("num_gpus: [1, 2], batch_size: [32, 128]", swept))
    texts = {tuple(values[3:]) for values in data["cells"]["params"]}
    assert texts == {("constant", True), ("cosine(floor=0.1)", True)}
    header, rows = book_table(summary)
    place = header.index("schedule")
    assert {tuple(row[place : place + 2]) for row in rows} == {("constant", "true"), ("cosine(floor=0.1)", "true")}
    assert not any("{" in line for line in (headline(summary), *answer_lines(summary)))


def test_columns_have_an_entry_for_each_cell():
    *_, summary, data = plain()
    assert data["cells"]["label"] == [row["label"] for row in summary["cells"]]
    assert {len(column) for column in data["cells"].values()} == {len(summary["cells"])}
    assert data["sizes"] == [
        {"workers": 1, "colour": "w1", "shape": "circle"},
        {"workers": 2, "colour": "w2", "shape": "square"},
    ]
    assert {curve["cell"] for curve in data["curves"]} == set(range(len(summary["cells"])))
    for curve in data["curves"]:
        assert curve["epochs"] == list(range(1, 9))
        assert curve["seconds"] == sorted(curve["seconds"])
        assert len(curve["test_accuracy"]) == len(curve["learning_rate"]) == 8


@pytest.mark.parametrize(
    ("mode", "targets", "firsts"), [("max", [0.6, 0.8], [0.3, 0.5]), ("min", [2.0, 0.01], [5.0, 4.0])]
)
def test_targets_go_from_the_first_evaluation_to_the_hardest(mode, targets, firsts):
    metric = StudyMetric(name="m", mode=mode, share=False)
    cells = [type("Cell", (), {"own": (Trial.of({"epochs": [{"test_m": first}]}),)})() for first in firsts]
    found = slider_targets(metric, targets, cells)
    assert len(found) <= explorer.MOST_TARGETS
    assert found == metric.easiest_first(found)
    assert found[-1] == metric.hardest_first(targets)[0]
    assert set(targets) <= set(found)
    middle = sum(firsts) / len(firsts)
    assert all(metric.better(target, middle) for target in found)
    many = [*targets, *(targets[0] + (targets[1] - targets[0]) * step / 9 for step in range(1, 8))]
    assert slider_targets(metric, many, cells) == metric.easiest_first(many)


def test_a_study_without_a_target_has_no_slider():
    *_, data = explored(TEXT.replace("[0.6, 0.8]", "[]"))
    assert (data["targets"], data["answered"]) == ([], None)


def test_a_study_of_diverged_trials_is_told():
    *_, data = explored(endings={"*": "diverged"})
    assert all(seconds is None for answer in data["targets"] for seconds in answer["seconds"])
    assert json.loads(embedded(data)) == data


@pytest.mark.parametrize(
    ("number", "told"),
    [(1.2345678, 1.2346), (3.0, 3), (1e300, None), (math.nan, None), (math.inf, None), (None, None), ("x", None)],
)
def test_numbers_are_brief_and_finite(number, told):
    assert brief(number) == told


def test_no_text_ends_the_script():
    hostile = {"name": "</script><script>alert(1)</script>\u2028 & \"'<!--"}
    text = embedded(hostile)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == hostile
    with pytest.raises(ValueError, match="Out of range float values"):
        embedded({"x": math.nan})
