"""The page of a study in which every part is there, and of those in which parts are missing or other."""

import difflib
import json
from functools import cache
from pathlib import Path

import pytest

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.summary import summary_of
from scalestudy.experiments.analysis.text.answer import headline
from scalestudy.experiments.report import page as page_module
from scalestudy.experiments.report.charts import Bars, Chart
from scalestudy.experiments.report.explorer import explorer_data
from scalestudy.experiments.report.page import no_verdict, render_page, summary_figures
from tests.support.approved import approved
from tests.support.report_pages import check
from tests.support.rich_study import PARTS, TEXT, estimate, rich_data, rich_summary, unidentified
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

HERE = Path(__file__).parent / "approved"


@pytest.fixture(scope="module")
def summary():
    return rich_summary()


def page_of(summary, data=None):
    """The page of a summary. data: of its cells; None: those of the rich study."""
    return check(render_page(summary, TEXT, rich_data() if data is None else data))


def read(summary):
    """What a reader of the page meets: its lines, and of each figure the words that are drawn."""
    words = [f"in {figure.name}: {', '.join(words_in(figure.numbers))}" for figure in summary_figures(summary)]
    return [*page_of(summary).lines.splitlines(), *words]


def words_in(numbers):
    """Labels of axes, parts and bars, entries of the legend, and notes."""
    match numbers:
        case Bars():
            return [numbers.label, *(part.words for part in numbers.parts), *(bar.label for bar in numbers.bars)]
        case Chart():
            entries = [each.words for each in (*numbers.series, *numbers.uprights)]
            noted = [*(point for each in numbers.series for point in each.points), *numbers.uprights]
            return [numbers.x.label, numbers.y.label, *filter(None, (*entries, *(each.note for each in noted)))]
    return []


@pytest.mark.parametrize(("name", "parts"), [("every_part", ()), ("no_part", PARTS)])
def test_the_page_says_what_was_approved(name, parts):
    """The answer and why, the tables with every number of the summary, what is missing and why."""
    summary = rich_summary(parts)
    approved("\n".join(read(summary)), HERE / f"{name}.txt")


# --- what another summary changes -------------------------------------------------------------------------------------


def changed(change):
    """The rich study's summary after a change in place."""
    summary = rich_summary()
    change(summary)
    return summary


def other(part, **changes):
    """The rich study's summary, of which one part is changed."""
    return rich_summary(**{part: {**rich_summary()[part], **changes}})


def flagged(summary, batch=""):
    """Mark the timings of a batch size, or all."""
    for row in summary["timings"]:
        if row["label"].endswith(f"batch={batch}" if batch else ""):
            row["flags"] = ["shared_node"]


def marked_choices(summary):
    for role in ("recommended", "fastest", "cheapest"):
        summary["recommendation"][role]["flags"] = ["shared_node"]
    for cell in summary["cells"]:
        if cell["label"] == summary["recommendation"]["fastest"]["label"]:
            cell["flags"] = ["shared_node"]


def own_and_shared_caveats(summary):
    own, shared = ({"kind": "x", "words": words} for words in ("The rate lies at the edge.", "Provisional: one seed."))
    for role in ("recommended", "fastest", "cheapest"):
        summary["recommendation"][role]["caveats"] = [shared]
    summary["recommendation"]["recommended"]["caveats"] = [own, shared]


def few_seeds(summary):
    """Of the first cell one seed's figures, some seeds that were stopped, others that missed the target."""
    cell = summary["cells"][0]
    cell["trials"].update(finished=2, stopped=3)
    for key in ("test_accuracy", "epoch_seconds"):
        cell[key].update(low=cell[key]["value"], high=cell[key]["value"])
    for row in summary["time_to_target"]:
        if row["label"] == cell["label"]:
            row.update(reached=3)


def marked_verdict(summary):
    """The timing that a verdict names, and that others are compared with, is marked."""
    words, evidence = "A fixed cost (workers=2 batch=128).", {"workers=2 batch=128": 0.77}
    summary["verdicts"][-1].update(words=words, evidence=evidence)
    for row in summary["timings"]:
        row["flags"] = ["resumed"] if row["label"] == "workers=2 batch=128" else []


def several_combinations(summary):
    """Of each law the first combination, which is there twice, has none, the second one, the last none either."""
    for key in ("throughput_model", "statistical_efficiency", "lr_rule"):
        none = {"value": None, "why": "flagged timings were left out", "of": "gradient_sync=ddp"}
        law = {**summary[key], "of": "gradient_sync=naive", "others": []}
        summary[key] = {**none, "others": [law, none, {**none, "of": "gradient_sync=flat"}]}


def without_phases(summary):
    for row in summary["timings"]:
        row["step_seconds"] = {"value": None, "why": "phases were not measured"}
    summary["verdicts"] = []


def of_steps(points, **changes):
    return other("statistical_efficiency", points=points, **changes)


def timed_once(summary):
    for row in summary["timings"]:
        row["scatter"]["seconds"] = {"value": None, "why": "fewer than two runs measured it", "n": 1}


def cases():
    """Title and summary of each case."""
    summary = rich_summary()
    points, timings = summary["statistical_efficiency"]["points"], summary["predictions"]
    yield "caveats of a choice, and shared ones", changed(own_and_shared_caveats)
    yield "flagged choices", changed(marked_choices)
    yield "a flagged verdict and answer", changed(marked_verdict)
    yield "few seeds", changed(few_seeds)
    yield "an older summary", changed(lambda s: s.pop("predictions"))
    yield "no trial failed", changed(lambda s: s.update(failures=[]))
    yield "laws of several combinations", changed(several_combinations)
    naive = {**summary["throughput_model"], "of": "gradient_sync=naive", "alpha_c": estimate(0.5)}
    yield "a second law of the time of a step", other("throughput_model", others=[naive])
    yield "no phases", changed(without_phases)

    nothing = {"value": None, "why": "nothing was timed across nodes"}
    broken = {"num_gpus": 16, "why": nothing["why"]}
    within = [row for row in timings["rows"] if not row["beyond"]]
    yield (
        "predictions end with the cluster",
        other("predictions", rows=within, breaks_at=broken, best={"fastest": nothing}),
    )
    yield "nothing is predicted", other("predictions", rows=[], breaks_at=broken, best={})
    why = "the best rate is at the edge of those tried"
    yield "predictions in doubt", other("predictions", why=why, flagged=True)

    yield "flagged timings", changed(flagged)
    yield "each size was timed once", changed(timed_once)

    open_law = unidentified(1200.0, "try batch sizes above 2048")
    yield "B_crit is not identified", other("statistical_efficiency", b_crit=open_law)
    lost = dict.fromkeys(("steps", "low", "high", "regime", "fitted_steps"))
    yield "a batch size without steps", of_steps([{**points[0], **lost}, *points[1:]])
    yield "two batch sizes", of_steps(points[:2])
    yield "no batch size", of_steps([], target=None, why="none")


@cache
def usual():
    return read(rich_summary())


def changes(before, after):
    """The lines that come, and how many go where others do not come for all of them."""
    for tag, start, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            if last - first < end - start:
                yield f"- {end - start} lines from: {before[start][:60]}"
            yield from (f"+ {line}" for line in after[first:last])


def test_what_another_summary_changes_is_what_was_approved():
    text = ""
    for title, summary in cases():
        text += f"# {title}\n" + "".join(f"{line}\n" for line in changes(usual(), read(summary)))
    approved(text, HERE / "changes.txt")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_missing_is_said_in_words(part):
    assert f"oo little was measured for {part.replace('_', ' ')}" in page_of(rich_summary((part,))).said


def test_where_nothing_is_found_the_page_says_where_it_was_looked_for(summary):
    label = summary["recommendation"]["choice"]["label"]
    assert no_verdict(summary).startswith(f"Where {label} was timed no threshold")
    none = {**summary, "recommendation": {"choice": {"value": None, "why": "-"}}}
    assert no_verdict(none) == "No cell is recommended, so no cause was looked for."
    rows = [{**row, "flags": ["starved"] if label in row["cells"] else []} for row in summary["timings"]]
    starved = no_verdict({**summary, "timings": rows})
    assert starved == f"The workers of {label} were starved, so its timings name no cause."


def made(text, law=None, **keywords):
    """Summary and data of a study of synthetic trials."""
    analysis = Analysis(*study_of(text, law, **keywords))
    summary = summary_of(analysis)
    summary["study"]["study_id"] = "x-1"
    return summary, explorer_data(analysis, summary)


def test_the_most_accurate_is_marked_for_every_num_gpus_that_learns_alike():
    text = "name: x\ntargets: {accuracy: [0.999]}\nsweep: {num_gpus: [1, 2], batch_size: [32, 64]}"

    def marked(train):
        page = page_of(*made(f"{text}\n{train}", Law(noise=0)))
        return [row[:2] for row in page.tables["Table of cells"] if "most accurate" in row[-1]]

    assert marked("") == [["1", "32"], ["2", "32"]]
    assert marked("train: {gradient_sync: local_sgd}") == [["1", "32"]]


def test_flagged_timings_are_marked_in_every_row(summary):
    page = page_of(summary)
    _, *rows = page.tables["Table of every cell"]
    for row, cell in zip(rows, summary["cells"], strict=True):
        timings = [text for place, text in enumerate(row[:-1]) if place in (3, 4, 6, 7, 8) and text != "–"]
        assert all(text.endswith("†") == bool(cell["flags"]) for text in timings)
    for row, cell in zip(page.tables["Table of ranges over seeds"][1:], summary["cells"], strict=True):
        assert row[0].endswith(" †") == bool(cell["flags"])


def test_texts_of_the_parts_are_escaped(summary):
    evil = "<script>alert(3)</script>"
    part = {**summary["predictions"], "breaks_at": {"num_gpus": 64, "why": evil}}
    evil_summary = rich_summary(predictions=part, lr_rule={"value": None, "why": evil})
    page = page_of(evil_summary)
    assert page.tags.count("script") == 2
    assert page.said.count(evil) == 3  # the answer, the law that is not there, above the predictions


def test_a_headline_that_tells_of_failed_trials_leads_to_their_causes():
    text = "name: x\ntargets: {accuracy: [0.8]}\nsweep: {num_gpus: [1, 2]}"
    (failed, its_data), (trained, data) = (made(text, endings=endings) for endings in ({"*": "failed"}, {}))
    told, page = headline(failed), render_page(failed, "name: x", its_data)
    assert "(2 failed)" in told
    assert f'<h1><a href="#unfinished">{told}</a></h1>' in page
    assert 'id="unfinished"' in page
    assert f"<h1>{headline(trained)}</h1>" in render_page(trained, "name: x", data)


def test_a_table_that_is_too_long_has_the_best_cells(summary, monkeypatch):
    monkeypatch.setattr(page_module, "LONGEST_TABLE", 4_000)
    page = page_of(summary)
    shown = page.tables["Table of every cell"]
    assert 20 < len(shown) < 80
    assert f"The {len(shown) - 1} best of 80 cells (the rest is in summary.json); above are the 40 best" in page.said
    assert {"recommended", "fastest", "cheapest"} <= {word for row in shown for word in row[-1].split()}


def test_the_sample_is_strict_json(summary):
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
