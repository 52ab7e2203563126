"""What the report says of more workers than were measured, where little is known of them."""

import pytest

from scalestudy.experiments.report.time_figures import predictions_figure, time_map_figure
from tests.support.report_pages import page_of
from tests.support.rich_study import rich_summary
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law

PREDICTIONS = "Table of predictions"


@pytest.fixture(scope="module")
def summary():
    return rich_summary()


def test_a_prediction_that_cannot_leave_the_cluster(summary):
    part = summary["predictions"]
    rows = [row for row in part["rows"] if not row["beyond"]]
    nothing = {"value": None, "why": "nothing was timed across nodes"}
    broken = {"num_gpus": 16, "why": "nothing was timed across nodes"}
    within = rich_summary(predictions={**part, "rows": rows, "breaks_at": broken, "best": {"fastest": nothing}})
    assert predictions_figure(within).svg
    words = "Beyond the 8 GPUs measured nothing can be predicted. The prediction ends at 16: nothing was"
    assert words in page_of(within).said
    empty = rich_summary(predictions={**part, "rows": [], "breaks_at": broken, "best": {}})
    assert predictions_figure(empty).caption == "Not drawn: nothing was timed across nodes."
    assert words in page_of(empty).said


def test_what_predictions_stand_in_doubt_for_is_said_beside_them(summary):
    why = "the best rate is at the edge of those tried"
    doubtful = rich_summary(predictions={**summary["predictions"], "why": why, "flagged": True})
    figure = predictions_figure(doubtful)
    page = page_of(doubtful, [figure])
    assert page.said.count(f"Of the steps to 0.85: {why}.") == 3  # the answer, the caption, above the table
    assert page.said.count("Flagged timings (†) were used anyway.") == 2
    assert "predicted †" in figure.svg
    for row, plain in zip(page.tables[PREDICTIONS][1:-1], page_of(summary).tables[PREDICTIONS][1:-1], strict=True):
        marked = [place for place, text in enumerate(row) if text.endswith("†")]
        assert marked == [4, 5, 7, 8]
        assert [text.rstrip("†") for text in row] == plain
    for sound in (predictions_figure(summary).caption, page_of(summary).said):
        assert "Of the steps to" not in sound
        assert "used all the same" not in sound


def test_seeds_that_missed_the_target_are_counted_as_seeds():
    text = "name: x\ntrain: {epochs: 4}\ntargets: {accuracy: [0.7]}\nsweep: {num_gpus: [1, 2], batch_size: [32, 128], seed: [0, 1, 2]}"  # noqa: E501
    # 0.985 − 0.885 · exp(−60 · 0.1/B · 4): 0.567 at 32, 0.252 at 128
    summary = summary_of(text, Law(noise=0, learning=150))
    told = {(row["params"]["batch_size"], row["reached"], row["n_seeds"]) for row in summary["time_to_target"]}
    assert told == {(32, 3, 3), (128, 0, 3)}
    figure = time_map_figure(summary)
    assert "6 of 12 seeds at these rates never got there." in figure.caption
