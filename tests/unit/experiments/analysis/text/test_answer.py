"""The answer in words, from whatever parts a summary has."""

import pytest

from scalestudy.experiments.analysis import answer_lines, best_rows
from scalestudy.experiments.analysis.measures.parts import estimate_text, identified, interval_of, number_of, part_of
from scalestudy.experiments.analysis.measures.units import (
    LONGEST_LINE,
    MOST_LINES,
    brief_seconds,
    clipped,
    flag_verdict_words,
    range_text,
)
from scalestudy.experiments.analysis.text.answer import answer, headline, verdict_words
from scalestudy.experiments.analysis.text.sentences import ranked_cells
from tests.support.rich_study import PARTS, estimate, rich_summary, unidentified

NOTE_LIMIT = 8_000
"""Characters of an MLflow note."""


@pytest.mark.parametrize("missing", [(), *((part,) for part in PARTS), PARTS])
def test_the_answer_has_five_lines_at_most(missing):
    summary = rich_summary(missing)
    lines = answer_lines(summary)
    assert 1 <= len(lines) <= MOST_LINES
    assert all(line == line.strip() and "None" not in line and "nan" not in line for line in lines)
    told = headline(summary)
    assert told == "8 workers, batch 1024, rate 0.2 reached 0.85 in 10.7 s, soonest of all that were confirmed."


def test_a_line_knows_what_it_is_about():
    lines = answer(rich_summary())
    assert [line.topic for line in lines[:2]] == [
        "Recommended and fastest of those confirmed to 0.85 test accuracy",
        "Cheapest",
    ]
    assert [str(line) for line in lines] == answer_lines(rich_summary())
    assert lines[-1].topic == ""
    long = lines[0].clipped(90)
    assert (long.topic, len(str(long)) <= 90, long.text[-2:]) == (lines[0].topic, True, " …")


def test_however_many_cells_a_verdict_names_the_note_has_room():
    labels = [f"workers=8 batch={number}" for number in range(10_000)]
    verdict = {
        "cause": "oversubscribed",
        "words": f"More threads than cores ({', '.join(labels)}).",
        "remedy": "Lower them.",
        "evidence": dict.fromkeys(labels, 1.0),
        "threshold": None,
    }
    long = rich_summary(verdicts=[verdict, {**verdict, "cause": "allreduce"}])
    long["caveats"] = [{"kind": "endings", "words": ", ".join(labels)}]
    assert all(len(line) <= LONGEST_LINE for line in answer_lines(long))
    assert sum(len(line) for line in answer_lines(long)) < NOTE_LIMIT - 3_000  # a description has room beside them


def test_of_many_cells_three_are_named():
    labels = [f"workers=1 batch={number}" for number in range(5)]

    def verdict(count):
        words = flag_verdict_words("disturbed", labels[:count])
        return {"cause": "disturbed", "words": words, "evidence": dict.fromkeys(labels[:count], 1.0), "threshold": None}

    few = f"Other work ran on the same node ({', '.join(labels[:3])} and 2 more): these timings are disturbed."
    assert verdict_words(verdict(5), rich_summary()) == few
    assert verdict_words(verdict(4), rich_summary()) == verdict(4)["words"]
    unsteady = {**verdict(5), "words": "Repeated timings differ by 75% (workers=1 batch=0).", "threshold": 0.2}
    assert verdict_words(unsteady, rich_summary()) == unsteady["words"]


def test_clipped_texts_end_between_words():
    assert clipped("one, two, three", 12) == "one, two …"
    assert clipped("short", 12) == "short"


def test_what_is_recommended_is_among_the_best_however_late_it_is():
    summary = rich_summary()
    roles = ("recommended", "fastest", "cheapest", "best_accuracy")
    wanted = {summary["recommendation"][role]["label"] for role in roles}
    labels = [summary["cells"][place]["label"] for place in best_rows(summary, len(wanted))]
    assert set(labels) == wanted


def test_cells_are_in_order_the_recommended_before_the_fastest_and_the_rest_by_time():
    summary = rich_summary()
    answer = summary["recommendation"]
    soonest = answer["fastest"]["label"]
    other = next(
        row for row in summary["time_to_target"] if row["target"] == answer["target"] and row["label"] != soonest
    )
    answer["recommended"] = {**answer["recommended"], "label": other["label"]}
    places = ranked_cells(summary)
    assert sorted(places) == list(range(len(summary["cells"])))
    first, second, *others = (summary["cells"][place]["label"] for place in places)
    assert (first, second) == (other["label"], soonest)
    seconds = {row["label"]: row["seconds"] for row in summary["time_to_target"] if row["target"] == answer["target"]}
    times = [seconds[label] or float("inf") for label in others]
    assert times == sorted(times)


def test_estimates_in_words():
    assert estimate_text(estimate(100.0, 0.1), "{:.0f}".format) == "100 (90 to 110)"
    assert estimate_text({"value": 3.0, "low": None, "high": None}, "{:.0f}".format) == "3"
    assert str(estimate_text(unidentified(1.5, "measure more."), "{:.0f}".format)) == "not identified: measure more"
    assert str(estimate_text({"value": None, "why": "one size"}, "{:.0f}".format)) == "not known: one size"
    assert estimate_text(None, "{:.0f}".format) == "–"
    assert number_of(unidentified(1.5, "x")) is None
    assert interval_of({"value": 1.0, "low": 0.5, "high": None}) is None
    assert not identified({})
    assert part_of({}, "lr_rule")["why"] == "this summary has no lr rule"


def test_short_times_and_intervals_in_words():
    assert [brief_seconds(value) for value in (0.0, 2e-8, 0.000315, 0.0165, 1.0)] == [
        "0 µs",
        "0.020 µs",
        "315 µs",
        "16.5 ms",
        "1.00 s",
    ]
    assert range_text({"kind": "t", "low": 1.0, "high": 2.0}) == "1.00 s to 2.00 s at 90%"
    assert range_text({"low": 1.0, "high": 2.0}) == "1.00 s to 2.00 s over seeds"
