"""The answer in words, from whatever parts a summary has."""

import pytest

from scalestudy.experiments.analysis import answer_lines, best_rows, book_table
from scalestudy.experiments.analysis.measures.cells import flag_caveats
from scalestudy.experiments.analysis.measures.parts import estimate_text, identified, interval_of, number_of, part_of
from scalestudy.experiments.analysis.measures.units import (
    LONGEST_LINE,
    MOST_LINES,
    brief_seconds,
    clipped,
    flag_verdict_words,
    range_text,
)
from scalestudy.experiments.analysis.text.answer import answer, headline, scaling_line, study_took, verdict_words
from tests.support.rich_study import PARTS, estimate, rich_summary, unidentified
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law

NOTE_LIMIT = 8_000
"""Characters of an MLflow note."""


def beyond(summary):
    """The line about more workers than were measured."""
    (line,) = [line for line in answer_lines(summary) if "8 GPUs measured" in line]
    return line


@pytest.mark.parametrize("missing", [(), *((part,) for part in PARTS), PARTS])
def test_the_answer_has_five_lines_at_most(missing):
    summary = rich_summary(missing)
    lines = answer_lines(summary)
    assert 1 <= len(lines) <= MOST_LINES
    assert all(line == line.strip() and "None" not in line and "nan" not in line for line in lines)
    assert headline(summary) == "8 GPUs, batch 1024, rate 0.2 reached 0.85 in 10.7 s, soonest of all."


@pytest.mark.parametrize(
    ("num_gpus", "batch_size", "learning_rate", "words"),
    [
        (1, 1024, 0.2, "with 8 GPUs it took"),
        (8, 64, 0.2, "with batch 1024 it took"),
        (1, 64, 0.4, "with 8 GPUs, batch 1024, rate 0.2 it took"),
    ],
)
def test_the_headline_names_in_what_the_fastest_differs(num_gpus, batch_size, learning_rate, words):
    recommendation = rich_summary()["recommendation"]
    own = {"num_gpus": num_gpus, "batch_size": batch_size, "learning_rate": learning_rate}
    chosen = {**recommendation["fastest"], **own, "label": "another", "params": own, "seconds": 11.0}
    said = headline(rich_summary(recommendation={**recommendation, "recommended": chosen}))
    assert said.endswith(f"rate {learning_rate:g} reached 0.85 in 11.0 s, {words} 10.7 s.")


def test_a_line_knows_what_it_is_about():
    lines = answer(rich_summary())
    assert [line.topic for line in lines[:2]] == ["Recommended and fastest to 0.85 test accuracy", "Cheapest"]
    assert [str(line) for line in lines] == answer_lines(rich_summary())
    assert lines[-1].topic == ""
    long = lines[0].clipped(60)
    assert (long.topic, len(str(long)) <= 60, long.text[-2:]) == (lines[0].topic, True, " …")


def test_it_says_what_more_workers_would_bring():
    part = rich_summary()["predictions"]
    best, within = part["best"]["fastest"], part["rows"][3]
    line = beyond(rich_summary())
    assert line.startswith(
        "Beyond the 8 GPUs measured: 16 at batch 2048 are predicted to reach 0.85 in 8.90 s (7.03 s to"
    )
    assert f"{within['seconds_to_target'] / best['seconds_to_target']:.2f}× as fast as predicted of 8 at batch" in line
    assert f"for {best['worker_seconds'] / within['worker_seconds']:.2f}× the worker-seconds" in line
    assert line.endswith(f"The prediction ends at 64: {part['breaks_at']['why']}.")


def test_what_a_prediction_stands_in_doubt_for_is_said_and_flagged_ones_are_marked():
    part = rich_summary()["predictions"]
    line = beyond(rich_summary(predictions={**part, "flagged": True, "why": "a rate is at the edge of its grid"}))
    assert "reach 0.85 in 8.90 s† (7.03 s to" in line
    assert " Of the steps to 0.85: a rate is at the edge of its grid. The prediction ends at 64" in line
    assert "†" not in beyond(rich_summary())


def test_it_says_why_nothing_is_predicted():
    assert beyond(rich_summary(("predictions",))) == (
        "Beyond the 8 GPUs measured: no prediction: too little was measured for predictions."
    )


def test_it_says_when_more_workers_are_not_faster():
    part = rich_summary()["predictions"]
    slower = {**part, "best": {"fastest": part["rows"][3], "cheapest": part["rows"][0]}}
    assert beyond(rich_summary(predictions=slower)).startswith(
        "Beyond the 8 GPUs measured no time to 0.85 is predicted to be shorter. The prediction ends at 64"
    )


def test_a_doubt_about_the_timings_stands_before_the_cause():
    (line,) = [line for line in answer_lines(rich_summary()) if "faster than one" in line]
    doubt, cause = line.index("these timings are disturbed"), line.index("Summing gradients over the workers takes")
    assert doubt < cause
    only = rich_summary(verdicts=rich_summary()["verdicts"][:1])
    assert any(line.endswith("Set resources.exclusive: true and run again.") for line in answer_lines(only))


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


def test_what_flagged_timings_show_is_marked_in_words_too():
    verdict = {
        "cause": "fixed_cost",
        "words": "80% is a fixed cost (workers=1 batch=128).",
        "remedy": "Use more.",
        "evidence": {"workers=1 batch=128": 0.8},
        "threshold": 0.5,
    }
    summary = rich_summary()
    longer = {
        **verdict,
        "words": "80% is a fixed cost (workers=1 batch=1280).",
        "evidence": {"workers=1 batch=1280": 0.8},
    }
    assert [verdict_words(each, summary) for each in (verdict, longer)] == [verdict["words"], longer["words"]]
    assert str(scaling_line(summary)) == summary["scaling"]["words"]
    for row in summary["timings"]:
        row["flags"] = ["resumed"] if row["label"] == "workers=1 batch=128" else []
    assert verdict_words(verdict, summary) == "80% is a fixed cost (workers=1 batch=128) †."
    assert verdict_words(longer, summary) == longer["words"]
    assert verdict_words({**verdict, "cause": "disturbed"}, summary) == verdict["words"]
    summary["verdicts"] = [verdict]
    told = " ".join(answer_lines(summary))
    assert "fixed cost (workers=1 batch=128) †. Use more." in told
    worst = summary["scaling"]["worst"]["label"]
    assert worst == "workers=2 batch=128"  # flagged is what it is compared with
    assert f"{summary['scaling']['words'].rstrip('.')} †." in told


def test_a_recommended_time_of_flagged_timings_is_marked():
    summary = rich_summary()
    assert "10.7 s (" in answer_lines(summary)[0]
    summary["recommendation"]["recommended"]["flags"] = ["resumed"]
    assert "10.7 s† (" in answer_lines(summary)[0]


def test_the_closing_line_names_flags_that_no_verdict_told():
    summary = rich_summary()
    assert "Marked" not in answer_lines(summary)[-1]  # the verdict on them stands above
    summary["cells"][0]["flags"] = ["resumed"]
    marked = list(flag_caveats(summary["cells"]).values())
    kinds = [{"kind": kind, "words": words} for kind, words in flag_caveats(summary["cells"]).items()]
    assert marked[0] == "Marked resumed (resumed from a checkpoint): 1 cell of 80."
    assert marked[1].startswith("Marked shared_node (other work ran on the same node): ")
    summary["caveats"] = kinds
    assert answer_lines(summary)[-1].endswith(f"training time. {marked[0]}")
    summary["verdicts"] = []
    assert answer_lines(summary)[-1].endswith(" ".join(marked))


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


def test_flagged_timings_are_marked_in_the_table_and_so_are_speedups_over_them():
    summary = rich_summary()
    first = summary["cells"][0]
    first["flags"] = ["resumed"]
    header, rows = book_table(summary)
    seconds, accuracy, gain, target = (header.index(name) for name in ("epoch s", "test acc", "speed-up", "s to 0.85"))
    assert rows[0][seconds].endswith("†")
    assert rows[0][target].endswith("†")
    assert not rows[0][accuracy].endswith("†")
    over = next(place for place, row in enumerate(summary["cells"]) if row["base"] == first["label"] and place)
    assert rows[over][gain].endswith("†")
    assert not rows[over][seconds].endswith("†")


def test_inferred_cells_are_marked():
    summary = rich_summary()
    summary["cells"][0]["kind"] = "factorised"
    assert book_table(summary)[1][0][-1] == "inferred"


def test_an_accuracy_of_trials_that_were_stopped_is_noted():
    summary = rich_summary()
    summary["cells"][0]["trials"].update(finished=2, stopped=3)
    rows = book_table(summary)[1]
    assert rows[0][-1] == "3 stopped"
    assert "stopped" not in rows[1][-1]


def test_what_is_recommended_is_among_the_best_however_late_it_is():
    summary = rich_summary()
    roles = ("recommended", "fastest", "cheapest", "best_accuracy")
    wanted = {summary["recommendation"][role]["label"] for role in roles}
    labels = [summary["cells"][place]["label"] for place in best_rows(summary, len(wanted))]
    assert set(labels) == wanted


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


@pytest.mark.parametrize(
    ("train", "named", "headed"),
    [
        ("", "batch=32 lr=0.1", "Batch 32, rate 0.1"),
        ("train: {gradient_sync: local_sgd}", "workers=1 batch=32 lr=0.1", "1 worker, batch 32, rate 0.1"),
    ],
)
def test_the_best_metric_names_num_gpus_only_where_they_change_what_is_learnt(train, named, headed):
    text = f"name: x\n{train}\nsweep: {{num_gpus: [1, 2], batch_size: [32, 64], learning_rate: [0.1]}}"
    summary = summary_of(text, Law(noise=0))
    assert answer_lines(summary)[1].startswith(f"Best test accuracy: {named}, 0.")
    assert headline(summary).startswith(f"{headed} came furthest")
    missed = summary_of(f"{text}\ntargets: {{accuracy: [0.999]}}", Law(noise=0))
    assert headline(missed).startswith(f"No cell reached 0.999; {headed[:1].lower()}{headed[1:]} came furthest")


COST = {
    "wall_seconds": 108.1,
    "overhead_ratio": 1.467,
    "critical_path_seconds": 73.7,
    "worker_seconds": 110.4,
    "cost": None,
    "why": None,
}


def test_what_a_study_took_in_words():
    assert study_took(COST) == (
        "The study took 108 s over all its runs, 1.47× the 73.7 s of training on its critical path: start-up, "
        "evaluation and recording are the difference. All trainings together: 110 worker-seconds."
    )
    assert study_took({**COST, "cost": 2.5}).endswith("together: 110 worker-seconds, cost 2.50.")
    untrained = {**COST, "overhead_ratio": None, "why": "no trial trained"}
    assert study_took(untrained) == "The study took 108 s over all its runs; no trial trained."
    unknown = {**untrained, "wall_seconds": None, "why": "the study's wall time is not known"}
    assert study_took(unknown) == "What the study took is not known: the study's wall time is not known."
