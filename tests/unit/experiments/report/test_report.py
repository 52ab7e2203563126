"""The report – self-contained, safe, deterministic, there whatever became of the trials."""

import json
import re
from functools import partial

import pytest

from scalestudy.experiments.report import write_report
from tests.support.loop_studies import LAW, LOOP, as_a_loop_tells
from tests.support.report_pages import Page, check
from tests.support.synthetic_studies import folder_of
from tests.support.trials import Law

TEXT = (
    "name: x\ndescription: '<script>alert(1)</script> & \"quotes\"'\ntrain: {epochs: 4}\n"
    "targets: {accuracy: [0.3, 0.5], price_per_gpu_hour: 2}\n"
    "sweep: {num_gpus: [1, 2], batch_size: [32, 128], seed: [0, 1]}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    endings = {"workers=2 batch=128 lr=0.1 seed=1": "failed"}
    message = "</td><script>alert(2)</script> $x^{y"
    folder = folder_of(
        tmp_path_factory.mktemp("runs") / "x-1", TEXT, Law(noise=0.05, learning=130), endings=endings, message=message
    )
    write_report(folder, 99.0)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder.report_file.read_text("utf-8"))


def test_nothing_is_loaded_from_outside(folder, page):
    text = folder.report_file.read_text("utf-8")
    assert not {"link", "iframe", "object", "img"} & set(page.tags)
    references = [value for name, value in page.attributes if name.endswith(("href", "src"))]
    assert all(value.startswith("#") for value in references)
    assert (
        "content",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:",
    ) in page.attributes
    assert not re.search(r"@import|url\(", text)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert len(text.encode()) < 5_000_000


def test_the_script_reaches_for_nothing(folder, page):
    data, script = page.scripts
    for word in ("fetch", "XMLHttp", "import", "eval(", "innerHTML", "http", "</"):
        assert word not in script.replace('"http://www.w3.org/2000/svg"', "")
    assert not set("<>&") & set(data)


def test_without_scripts_the_page_has_the_answer_and_the_tables_and_says_where_the_figures_are(folder, page):
    text = folder.report_file.read_text("utf-8")
    hidden = re.search(r'<div id="explorer" hidden>.*?</section>', text, re.DOTALL)[0]
    assert "data-figure" in hidden
    shown = text.replace(hidden, "").partition("<script")[0]
    for word in ("<button", "<select", "arrow keys"):
        assert word not in shown
    missing = re.search(r"<noscript><p>The figures are drawn by the page's script, (.*)</p></noscript>", shown)[1]
    for title in re.findall(r"<figure.*?<h3>(.*?)</h3>", text, re.DOTALL):
        assert title in missing
    assert '<section class="answer"' in shown
    assert {"Table of cells", "Table of ranges over seeds"} <= page.tables.keys()


def test_untrusted_text_is_escaped_but_there(page):
    shown = "".join(page.text)
    assert "<script>alert(1)</script>" in shown
    assert "</td><script>alert(2)</script> $x^{y" in shown


def test_ids_are_unique_and_every_reference_has_its_end(page):
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    inside = [value[1:] for name, value in page.attributes if name.endswith("href")]
    assert set(inside) <= set(ids)


def test_figures_have_a_title_a_sentence_and_a_place_for_the_drawing(folder):
    text = folder.report_file.read_text("utf-8")
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    explored = [f"explore-{name}" for name in ("curves", "pareto", "speedup", "time_to_target", "memory")]
    others = ["phases", "predictions", "efficiency"]
    assert [re.search(r'id="([^"]+)"', figure)[1] for figure in figures] == [*explored, *others]
    for figure in figures:
        assert re.search(r"<h3>.+</h3>", figure)
        assert re.search(r"<figcaption>.+</figcaption>", figure)
        assert '<div class="plot"></div>' in figure
    assert "<svg" not in text


def test_what_the_study_does_not_support_is_not_drawn_and_said(page, tmp_path):
    assert "Batch size and learning rate. The study has one learning rate only." in page.said

    def without_memory(trial):
        for epoch in trial["epochs"]:
            epoch["peak_memory_bytes"] = None

    folder = folder_of(tmp_path / "x", "name: x\nsweep: {learning_rate: [0.1, 0.2]}", change=without_memory)
    said = Page(write_report(folder).read_text("utf-8")).said
    for words in (
        "Time against worker-seconds. No cell has a time to a target.",
        "Memory of a worker. No trial measured its memory.",
    ):
        assert words in said
    assert "Batch size and learning rate. The study" not in said


def test_the_same_trials_give_the_same_bytes_and_the_wall_time_is_kept(folder):
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    write_report(folder)
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    assert json.loads(before[folder.summary_file])["cost"]["wall_seconds"] == 99.0


def test_that_every_trial_got_fresh_workers_is_said_and_kept_when_the_report_is_rebuilt(tmp_path):
    folder = folder_of(tmp_path / "x", "name: x")
    write_report(folder, fresh_workers="it was kept")
    words = "Every trial got fresh workers: it was kept."
    assert words in Page(write_report(folder).read_text("utf-8")).said
    assert words not in Page(write_report(folder, fresh_workers="").read_text("utf-8")).said


MANY = [round(0.01 * 1.2**power, 4) for power in range(13)]
CASES = {
    "one trial": ("name: x", {}),
    "all failed": (TEXT, {"endings": {"*": "failed"}}),
    "all skipped": (TEXT, {"endings": {"*": "skipped"}}),
    "all diverged": (TEXT, {"endings": {"*": "diverged"}}),
    "no target reached": (TEXT, {"law": Law(learning=0.1)}),
    "no targets": ("name: x\nsweep: {num_gpus: [1, 2]}", {}),
    "on GPUs": (
        "name: x\ntargets: {accuracy: [0.5]}\nsweep: {num_gpus: [1, 2], batch_size: [32, 128]}",
        {"device": "cuda"},
    ),
    "long names": (
        "name: x\nsweep: {num_gpus: [2], train.gradient_sync: [ddp, naive], train.optimizer.momentum: [0, 0.9], "
        "train.optimizer.weight_decay: [0, 0.001]}",
        {},
    ),
    "many rates": (
        f"name: x\ntargets: {{accuracy: [0.2]}}\nsweep: {{learning_rate: {MANY}}}",
        {"endings": {"workers=1 batch=256 lr=0.01 seed=0": "diverged"}},
    ),
    "two strategies": (
        "name: x\ntargets: {accuracy: [0.2]}\nsweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, naive]}",
        {"flags": {"*": ["oversubscribed", "of_tomorrow"]}},
    ),
    "perfect": ("name: x\ntargets: {accuracy: [1.0]}", {"law": Law(ceiling=1.0, learning=1e6)}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_study_has_a_report(case, tmp_path):
    text, keywords = CASES[case]
    folder = folder_of(tmp_path / "x", text, **keywords)
    page = check(write_report(folder).read_text("utf-8"))
    assert "How it was measured" in page.said
    assert json.loads(folder.summary_file.read_text())


def test_a_folder_without_trials_or_plan(tmp_path):
    folder = folder_of(tmp_path / "x", "name: x")
    folder.trials_file.unlink()
    assert "No answer" in write_report(folder).read_text("utf-8")
    folder.plan_file.unlink()
    with pytest.raises(OSError, match=r"plan\.json"):
        write_report(folder)


FALLING = TEXT.replace("[0.3, 0.5]", "[0.5, 0.2]") + "\nworkload: {metric: mse, metric_mode: min}"


def test_the_report_of_an_error_speaks_of_it_throughout(tmp_path):
    folder = folder_of(tmp_path / "x", FALLING, Law(learning=200))
    text = write_report(folder).read_text("utf-8")
    page = "".join(Page(text).text)
    assert "The study's spec" in page  # in which the targets have the metric's name
    for words in ("accuracy", "accurate", "test acc", " 0 to 1"):
        assert words not in page
    for words in (
        "test mse at the last evaluation (less is better)",
        "test mse, best",
        "best test mse",
        "to 0.2 test mse",
        "time to 0.2",
    ):
        assert words in page
    summary = json.loads(folder.summary_file.read_text())
    for row in summary["cells"]:
        assert f"{row['test_mse']['value']:.3g}" in page


@pytest.mark.parametrize(
    ("values", "target"),
    [((-2.0, -0.5), 1e9), ((0.0, 0.0), 0.3), ((3.0, 3.0), 0.001), ((1e-12, 1e12), 1e9), ((0.3, None), 0.001)],
)
def test_an_error_of_any_size_has_a_page(tmp_path, values, target):
    def measured(trial):
        for epoch, value in zip(trial["epochs"], values, strict=True):
            epoch["test_mse"] = value

    text = f"{{epochs: 2}}\nworkload: {{metric: mse, metric_mode: min}}\ntargets: {{accuracy: [{target}]}}"
    folder = folder_of(tmp_path / "x", f"name: x\ntrain: {text}", change=measured)
    assert 'data-figure="curves"' in write_report(folder).read_text("utf-8")


def test_what_training_picked_by_itself_is_shown(page, tmp_path):
    def picked(trial):
        shards = [[0.61234, 0.38766], [0.5, 0.5]][trial["params"]["seed"]]
        trial["details"] = {"shards": shards, "channels_last": True}

    folder = folder_of(tmp_path / "x", TEXT, change=picked)
    assert "picked by training" not in page.text, "in which no trial tells of any"
    shown = Page(write_report(folder).read_text("utf-8")).text
    assert "picked by training" in shown
    assert "shards: [0.612, 0.388] or [0.5, 0.5]; channels_last: true" in shown


def test_of_many_cells_the_best_are_shown_and_all_are_there(tmp_path):
    rates = [round(0.01 * number, 2) for number in range(1, 31)]
    text = f"""
    name: many
    workload: {{model: lenet, data: digits}}
    train: {{epochs: 2}}
    sweep: {{num_gpus: [1, 2], batch_size: [32], learning_rate: {rates}}}
    """
    page = write_report(folder_of(tmp_path, text)).read_text("utf-8")
    before, hidden, after = page.partition("All 60 cells; above are the 40 best")
    assert hidden
    row = re.compile(r"<tr data-cell=\"\d+\"(?: class=\"winner\")?><td>[12]</td>")
    assert len(row.findall(before)) == 40
    assert len(row.findall(after)) == 60
    assert "fastest" in before or "most accurate" in before  # what is recommended is among them


@pytest.mark.parametrize("samples", [True, False])
def test_the_report_of_a_loop_names_it_and_nothing_of_the_built_in_one(samples, tmp_path):
    few = LOOP.replace(", 64, 128]", ", 128]").replace("[0.2, 0.4, 0.8], seed: [0, 1]", "[0.4], seed: [0]")
    folder = folder_of(tmp_path / "study", few, LAW, change=partial(as_a_loop_tells, samples=samples))
    text = write_report(folder).read_text("utf-8")
    check(text)
    assert "The Ray Train loop my_loop:train, 8 reports" in text
    assert "median training time from one report to the next" in text
    assert "evaluation is not timed" not in text
    whole = text.partition("<style")[0] + text.partition("</style>")[2] + folder.summary_file.read_text("utf-8")
    assert not re.search(r"lenet|digits|\bsgd\b", whole)
    for reason in ("The loop&#39;s memory is not measured", "The loop&#39;s phases are not measured"):
        assert reason in text
    assert ("call scalestudy.step(samples) in it" in text) is not samples
    data = json.loads(re.search(r'id="study-data">(.*?)</script>', text, re.DOTALL)[1])
    assert (data["evaluation_timed"], data["period"]) == (True, "report")
