"""What an adaptive search did, in words: exact texts, and none with a hole."""

import pytest

from scalestudy.experiments.analysis.answers.summary import summary_of
from scalestudy.experiments.analysis.measures.endings import WHY_OVER
from scalestudy.experiments.analysis.measures.units import LONGEST_LINE, MOST_LINES
from scalestudy.experiments.analysis.text.answer import answer_lines
from scalestudy.experiments.analysis.text.looks import confirmed_words, look_words, search_words
from scalestudy.experiments.report.tables import looks_table
from tests.support.looks import TEXT, Looking, finished_search
from tests.support.synthetic_studies import spec_of

ROW = {
    "label": "workers=4 batch=256 lr=0.2",
    "seeds": 5,
    "reached": 5,
    "fresh_seconds": 61.3,
    "seconds": 60.1,
    "low": 55.0,
    "high": 66.0,
    "confirmed": True,
}
PART = {
    "minimises": "time",
    "ended": "sure",
    "why": None,
    "chosen": "workers=4 batch=256 lr=0.2",
    "beside": "workers=8 batch=256 lr=0.2",
    "probability": 0.913,
    "within": 0.05,
    "leans_on": {"steps": "looks", "seconds": "law"},
    "looks": {"trainings": 12, "timings": 7, "confirmations": 10},
    "untried": {"cells": 201, "of": 210, "steps": 33, "of_steps": 42, "sizes": 24, "of_sizes": 30},
    "possible": 210,
    "budget": {"unit": "minutes", "amount": 30},
    "confirmation": [ROW, {**ROW, "label": "workers=8 batch=256 lr=0.2", "fresh_seconds": 71.0, "confirmed": False}],
    "steps": [],
}
LEFT = "33 of 42 pairs of batch size and rate were not trained, 24 of 30 of workers and batch size not timed"


def test_the_search_in_words():
    assert search_words(PART) == (
        "12 trainings and 7 timing runs, ended since the choice is likely enough near the best: "
        "workers=4 batch=256 lr=0.2 is 91% likely within 5% of the best of 210 cells; "
        f"{LEFT}. Its seconds a step are by the law. "
        "Confirmed: 61.3 s with 5 fresh seeds of workers=4 batch=256 lr=0.2, 60.1 s predicted (55.0 s to 66.0 s, 98%). "
        "Not confirmed: 71.0 s with 5 fresh seeds of workers=8 batch=256 lr=0.2, "
        "60.1 s predicted (55.0 s to 66.0 s, 98%)."
    )


def test_a_search_without_a_choice_says_why():
    nothing = {"chosen": None, "probability": None, "leans_on": None, "confirmation": []}
    part = {**PART, **nothing, "ended": "unreached", "why": "no training has reached the target"}
    assert search_words(part) == f"12 trainings and 7 timing runs: no training has reached the target; {LEFT}."


def test_a_search_that_was_cut_short_or_not_wholly_confirmed_says_so():
    cut = {**PART, "ended": None, "why": "its looks, or its confirmation, were cut short", "confirmation": []}
    assert search_words(cut).startswith(
        "12 trainings and 7 timing runs; its looks, or its confirmation, were cut short: workers=4"
    )
    assert search_words(cut).endswith("by the law.")
    short = {**PART, "ended": "budget", "why": "the budget had no room for the whole confirmation", "confirmation": []}
    assert search_words(short).endswith("by the law. The budget had no room for the whole confirmation.")
    assert "ended since the budget has no room for another training" in search_words(short)


def test_cells_that_can_not_run_are_not_among_those_that_the_choice_is_the_best_of():
    assert "the best of the 198 that can run of 210 cells; 33 of" in search_words({**PART, "possible": 198})


def test_nothing_is_certain():
    assert "is over 99% likely" in search_words({**PART, "probability": 0.9996})


def test_fresh_seeds_that_do_not_arrive_confirm_nothing():
    row = {**ROW, "fresh_seconds": None, "reached": 2, "confirmed": False}
    assert confirmed_words(row) == "Not confirmed: 2 of 5 fresh seeds of workers=4 batch=256 lr=0.2 arrived."


@pytest.mark.parametrize(
    ("look", "words"),
    [
        ({"kind": "size"}, "a step of a size that lies apart from the others"),
        ({"kind": "first"}, "no training had reached the target yet"),
        ({"kind": "training", "gain": 0.031, "repeats": 1}, "may lower the best time by 3.1%"),
        ({"kind": "size", "gain": 0.031, "repeats": 4}, "may lower the best time by 3.1%, with 3 more of its kind"),
        ({"kind": "training", "gain": 0.7, "repeats": 1}, "may lower the best time by 50%"),
        ({"kind": "training", "gain": 0.00002, "repeats": 1}, "may lower the best time by 0.002%"),
        ({"kind": "training", "gain": 0.0, "repeats": 1}, "tells whether the best cell is near the best"),
        (
            {"kind": "whole", "gain": 0.031, "repeats": 1},
            "may lower the best time by 3.1%; it went on to its end, as a test of the limits at which trainings end",
        ),
        ({"kind": "confirmation"}, "a fresh seed, to confirm the choice"),
    ],
)
def test_why_a_look_was_made(look, words):
    assert look_words(look) == words


def test_a_search_for_the_cheapest_lowers_a_cost():
    assert look_words({"kind": "training", "gain": 0.031}, "cost") == "may lower the best cost by 3.1%"


# --- whole studies ------------------------------------------------------------------------------------------------
def studies():
    """Summaries of searches that ended in different ways."""
    ways = (
        (["search.objective=cost_to_target"], None),
        (["budget.trials=12"], None),
        (["budget.trials=1"], None),
        (["targets.accuracy=[0.99]"], None),
        ([], "diverged"),
        ([], "out_of_memory"),
        ([], "failed"),
    )
    done = finished_search()
    yield done.over, summary_of(done.analysis, 600.0)
    for overrides, status in ways:
        search = Looking(spec=spec_of(TEXT, *overrides), ends=lambda trial, status=status: status)
        over = search.run()
        yield over, summary_of(search.analysis, 600.0)
    begun = Looking()
    begun.until(lambda trial: trial.look.kind == "training")
    yield None, summary_of(begun.analysis, 600.0)


def test_no_text_of_any_search_has_a_hole_or_more_lines_than_an_answer_may_have():
    ends = set()
    for over, summary in studies():
        ends.add(over.why if over else None)
        table = looks_table(summary)
        lines = answer_lines(summary)
        cells = [cell for row in table.rows for cell in row]
        for text in (*lines, table.lead, *cells):
            assert not {"None", "nan", "inf"} & set(text.replace("%", " ").replace(",", " ").split()), text
        assert len(lines) <= MOST_LINES
        assert all(len(line) <= LONGEST_LINE for line in lines)
        assert any(search_words(summary["adaptive"]) in line for line in lines), "it is not cut"
        assert len(table.rows) == len(summary["adaptive"]["steps"])
    assert ends == {"sure", "budget", "unreached", "none_can_run", "untimed", None}
    assert ends - {None} <= WHY_OVER.keys()
