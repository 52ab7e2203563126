"""The page of a study in which every part is there, and of those in which parts are missing."""

import json
import re
from pathlib import Path

import pytest

from scalestudy.experiments.analysis.measures.units import seconds_text
from scalestudy.experiments.analysis.text.answer import headline
from scalestudy.experiments.report import draw
from scalestudy.experiments.report import page as page_module
from scalestudy.experiments.report.page import no_verdict, render_page
from scalestudy.experiments.report.steps_figure import steps_figure
from scalestudy.experiments.report.time_figures import predictions_figure, time_map_figure
from tests.support.approved import approved
from tests.support.report_pages import number, page_of
from tests.support.rich_study import PARTS, TARGET, estimate, rich_summary
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law

FIGURES = ["phases", "predictions", "efficiency", "time_to_target", "steps_to_target"]


@pytest.fixture(scope="module")
def summary():
    return rich_summary()


@pytest.fixture(scope="module")
def figures(summary):
    return {figure.name: figure for figure in draw(summary)}


@pytest.fixture(scope="module")
def page(summary, figures):
    return page_of(summary, list(figures.values()))


def near(value):
    """As a number that is written with three digits."""
    return pytest.approx(value, rel=0.006)


def test_the_sample_is_strict_json(summary):
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.parametrize(("name", "parts"), [("every_part", ()), ("no_part", PARTS)])
def test_the_page_says_what_was_approved(name, parts):
    """The answer and why, the tables with every number of the summary, what is missing and why."""
    summary = rich_summary(parts)
    approved(page_of(summary, draw(summary)).lines, Path(__file__).parent / "approved" / f"{name}.txt")


def test_every_figure_is_drawn_with_its_sentence(figures):
    assert list(figures) == FIGURES
    for figure in figures.values():
        assert figure.svg.startswith("<svg")
        assert figure.caption.endswith(".")
        assert not figure.caption.startswith("Not drawn")
        assert len(figure.caption) < 600


def test_the_same_summary_gives_the_same_figures(summary, figures):
    assert {figure.name: figure for figure in draw(summary)} == figures


def test_caveats_stand_with_their_choice_and_shared_ones_once():
    summary = rich_summary()
    own, shared = ({"kind": "x", "words": words} for words in ("The rate lies at the edge.", "Provisional: one seed."))
    for role in ("recommended", "fastest", "cheapest"):
        summary["recommendation"][role]["caveats"] = [shared]
    summary["recommendation"]["recommended"]["caveats"] = [own, shared]
    said = page_of(summary).said
    assert said.count(own["words"]) == said.count(shared["words"]) == 1
    assert said.index(own["words"]) < said.rindex("Cheapest") < said.index(shared["words"])


def test_the_most_accurate_is_marked_for_every_num_gpus_that_learns_alike():
    text = "name: x\ntargets: {accuracy: [0.999]}\nsweep: {num_gpus: [1, 2], batch_size: [32, 64]}"

    def marked(train):
        summary = summary_of(f"{text}\n{train}", Law(noise=0))
        summary["study"]["study_id"] = "x-20260131T101500Z"
        (table,) = [rows for name, rows in page_of(summary).tables.items() if name == "Table of cells"]
        return [row[:2] for row in table if "most accurate" in row[-1]]

    assert marked("") == [["1", "32"], ["2", "32"]]
    assert marked("train: {gradient_sync: local_sgd}") == [["1", "32"]]


def test_where_nothing_is_found_the_page_says_where_it_was_looked_for():
    text = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [32, 256]}"
    law = Law(data=0.0, fixed=0.0, per_example=0.001, sync=0.0005, optimizer=0.0001)
    summary = summary_of(text, law)
    assert no_verdict(summary).startswith(
        f"Where {summary['recommendation']['choice']['label']} was timed no threshold"
    )
    none = {**summary, "recommendation": {"choice": {"value": None, "why": "-"}}}
    assert no_verdict(none) == "No cell is recommended, so no cause was looked for."


def test_factorising_that_costs_more_than_the_grid_saves_nothing(summary):
    dear = {**summary["factorised"], "saved_by_factorising": -1.16}
    said = page_of(rich_summary(factorised=dear)).said
    assert "Factorising does not pay here: it costs 2.16× as much as that." in said
    assert "-116%" not in said


def test_the_time_map_shows_the_soonest_of_each_size(summary, figures):
    drawn = re.findall(r">([\d.]+ s†?|not reached)<", figures["time_to_target"].svg)
    sizes = {}
    for row in summary["time_to_target"]:
        if row["target"] == TARGET and row["seconds"] is not None:
            size = row["params"]["num_gpus"], row["params"]["batch_size"]
            sizes[size] = min(sizes.get(size, 1e9), row["seconds"])
    assert len(drawn) == 20
    assert sorted(number(each) for each in drawn if each != "not reached") == [
        near(value) for value in sorted(sizes.values())
    ]
    for role in ("recommended", "cheapest"):  # a square has room for one role: the recommended is the fastest too
        assert re.search(rf">{role}<", figures["time_to_target"].svg)


def test_flagged_timings_are_marked_wherever_they_are_touched(summary, page, figures):
    for name in ("efficiency", "phases", "time_to_target"):
        assert "†" in figures[name].svg, name
        assert "† Timed under doubtful conditions (shared node)." in figures[name].caption
    assert "†" not in figures["steps_to_target"].svg + figures["steps_to_target"].caption
    _, *rows = page.tables["Table of every cell"]
    for row, cell in zip(rows, summary["cells"], strict=True):
        timings = [text for place, text in enumerate(row[:-1]) if place in (3, 5, 6, 7) and text != "–"]
        assert all(text.endswith("†") == bool(cell["flags"]) for text in timings)
    for row, cell in zip(page.tables["Table of ranges over seeds"][1:], summary["cells"], strict=True):
        assert row[0].endswith(" †") == bool(cell["flags"])
    assert "in 10.7 s, soonest of all." in page.said
    touched = rich_summary()
    for role in ("recommended", "fastest", "cheapest"):
        touched["recommendation"][role]["flags"] = ["shared_node"]
    said = page_of(touched).said
    assert headline(touched).endswith(" in 10.7 s†, soonest of all.")
    assert headline(touched) in said
    cheapest = touched["recommendation"]["cheapest"]
    assert f"{seconds_text(cheapest['seconds'])}†" in said
    labels = {touched["recommendation"]["fastest"]["label"]}
    for cell in touched["cells"]:
        cell["flags"] = ["shared_node"] if cell["label"] in labels else []
    assert f"10.7 s† ({min(labels)}) to " in time_map_figure(touched).caption


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_missing_is_said_in_words(part):
    assert f"oo little was measured for {part.replace('_', ' ')}" in page_of(rich_summary((part,))).said


def test_an_older_summary_has_none_of_the_parts():
    summary = rich_summary()
    for part in ("predictions", "factorised"):
        del summary[part]
    assert "This summary has no predictions" in page_of(summary).said


def test_points_without_numbers_are_left_out(summary):
    part = summary["statistical_efficiency"]
    none = {**part["points"][0], "steps": None, "low": None, "high": None, "regime": None, "fitted_steps": None}
    fewer = rich_summary(statistical_efficiency={**part, "points": [none, *part["points"][1:]]})
    assert steps_figure(fewer).caption.startswith("At batch 256")
    nothing = rich_summary(statistical_efficiency={**part, "target": None, "points": [], "why": "none"})
    assert steps_figure(nothing).caption == "Not drawn: none."
    assert "S(B) = S_min (1 + B_crit / B), each batch" in page_of(nothing).said


def test_seeds_that_were_stopped_do_not_stand_as_if_they_had_finished():
    summary = rich_summary()
    summary["cells"][0]["trials"].update(finished=2, stopped=3)
    _, first, second, *_ = page_of(summary).tables["Table of ranges over seeds"]
    assert first[1] == "5 of 5, 3 stopped early"
    assert second[1] == "5 of 5"


def test_a_verdict_and_the_answer_to_scaling_are_marked_where_their_timings_are():
    summary = rich_summary()
    summary["verdicts"][-1] |= {
        "words": "A fixed cost (workers=2 batch=128).",
        "evidence": {"workers=2 batch=128": 0.77},
    }
    assert "A fixed cost (workers=2 batch=128) †." not in page_of(summary).said
    for row in summary["timings"]:
        row["flags"] = ["resumed"] if row["label"] == "workers=2 batch=128" else []
    assert "A fixed cost (workers=2 batch=128) †." in page_of(summary).said
    assert f"{summary['scaling']['words'].rstrip('.')} †." in page_of(summary).said


def test_other_combinations_have_tables_of_their_own(summary):
    model = summary["throughput_model"]
    naive = {**model, "of": "gradient_sync=naive", "alpha_c": estimate(0.5)}
    nothing = {"of": "gradient_sync=flat", "value": None, "why": "flagged timings were left out", "flagged": False}
    page = page_of(rich_summary(throughput_model={**model, "others": [naive, nothing]}))
    rows = {row[0]: row[1] for row in page.tables["Table: Time of a step, gradient_sync=naive"]}
    assert rows["α_c"] == "500 ms (460 ms to 540 ms)"
    assert "Table: Time of a step, gradient_sync=flat" not in page.tables
    assert "Time of a step, gradient_sync=flat. Flagged timings were left out." in page.said


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("throughput_model", "Time of a step"),
        ("statistical_efficiency", "Steps to the target"),
        ("lr_rule", "Learning-rate rule"),
        ("usl", "Scaling with num_gpus"),
    ],
)
def test_a_law_of_another_combination_stands_though_that_of_the_first_is_missing(summary, key, title):
    nothing = {"of": "gradient_sync=ddp", "value": None, "why": "flagged timings were left out"}
    naive = {**summary[key], "of": "gradient_sync=naive", "others": []}
    page = page_of(rich_summary(**{key: {**nothing, "others": [naive, nothing]}}))
    assert page.said.count(f"{title}, gradient_sync=ddp. Flagged timings were left out.") == 1
    assert len(page.tables[f"Table: {title}, gradient_sync=naive"]) > 1


def test_texts_of_the_parts_are_escaped(summary):
    evil = "<script>alert(3)</script>"
    part = {**summary["predictions"], "breaks_at": {"num_gpus": 64, "why": evil}}
    evil_summary = rich_summary(predictions=part, lr_rule={"value": None, "why": evil})
    page = page_of(evil_summary, [predictions_figure(evil_summary)])
    assert page.tags.count("script") == 1
    assert page.said.count(evil) == 4  # the answer, a caption, the law that is not there, above the predictions


def test_what_did_not_finish_is_linked_from_the_first_screen(summary):
    broken = {"status": "failed", "rank": 1, "message": "ValueError: bad", "trials": ["a", "b"]}
    said = page_of({**summary, "failures": [broken, {**broken, "status": "diverged", "trials": ["c"]}]}).said
    link, section = "Why 3 trials did not finish.", "Trials that did not finish"
    assert said.index(link) < said.index("What to know before believing it") < said.index(section)
    assert section not in page_of({**summary, "failures": []}).said
    assert "did not finish." not in page_of({**summary, "failures": []}).said


def test_a_headline_that_tells_of_failed_trials_leads_to_their_causes():
    text = "name: x\ntargets: {accuracy: [0.8]}\nsweep: {num_gpus: [1, 2]}"
    failed, trained = (summary_of(text, endings=endings) for endings in ({"*": "failed"}, {}))
    for summary in (failed, trained):
        summary["study"]["study_id"] = "x-1"
    told, page = headline(failed), render_page(failed, [], "name: x")
    assert "(2 failed)" in told
    assert f'<h1><a href="#unfinished">{told}</a></h1>' in page
    assert 'id="unfinished"' in page
    assert f"<h1>{headline(trained)}</h1>" in render_page(trained, [], "name: x")


def test_a_table_that_is_too_long_has_the_best_cells(summary, monkeypatch):
    monkeypatch.setattr(page_module, "LONGEST_TABLE", 4_000)
    page = page_of(summary)
    shown = page.tables["Table of every cell"]
    assert 20 < len(shown) < 80
    assert f"The {len(shown) - 1} best of 80 cells (the rest is in summary.json); above are the 40 best" in page.said
    assert {"recommended", "fastest", "cheapest"} <= {word for row in shown for word in row[-1].split()}
