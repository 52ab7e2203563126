"""Stage 9: the report – self-contained, safe, deterministic, there whatever became of the trials."""

import json
import re
from html.parser import HTMLParser

import pytest

from experiments.report import write_report
from experiments.report.scaling_figures import log_ticks
from tests.experiments.support import folder_of
from tests.support.trials import Law

TEXT = (
    "name: x\ndescription: '<script>alert(1)</script> & \"quotes\"'\ntrain: {epochs: 4}\n"
    "targets: {accuracy: [0.3, 0.5], price_per_gpu_hour: 2}\n"
    "sweep: {num_gpus: [1, 2], batch_size: [32, 128], seed: [0, 1]}"
)
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects tags and attributes; complains about tags that are not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    endings = {"gpus=2 batch=128 lr=0.1 seed=1": "failed"}
    message = "</td><script>alert(2)</script> $x^{y"
    folder = folder_of(
        tmp_path_factory.mktemp("runs") / "x-1", TEXT, Law(noise=0.05, learning=130), endings=endings, message=message
    )
    write_report(folder, 99.0)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder.report_file.read_text("utf-8"))


def test_nothing_is_loaded_from_outside_and_no_script_is_there(folder, page):
    text = folder.report_file.read_text("utf-8")
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    references = [value for name, value in page.attributes if name.endswith(("href", "src"))]
    assert all(value.startswith("#") for value in references)
    assert not re.search(r"@import|url\((?!#)", text)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert len(text.encode()) < 5_000_000


def test_untrusted_text_is_escaped_but_there(page):
    shown = "".join(page.text)
    assert "<script>alert(1)</script>" in shown
    assert "</td><script>alert(2)</script> $x^{y" in shown


def test_ids_are_unique_and_every_reference_has_its_end(page):
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    inside = [value[1:] for name, value in page.attributes if name.endswith("href")]
    inside += [value[5:-1] for name, value in page.attributes if name == "clip-path"]
    assert set(inside) <= set(ids)


def test_figures_have_a_title_a_sentence_and_a_name_for_screen_readers(folder, page):
    text = folder.report_file.read_text("utf-8")
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    assert len(figures) == 6
    for figure in figures:
        assert re.search(r"<h3>.+</h3>", figure)
        assert re.search(r"<figcaption>.+</figcaption>", figure)
        assert re.search(r'<svg[^>]*role="img" aria-label="[^"]+', figure)
    names = sorted(path.name for path in folder.figures.iterdir())
    assert names == [
        "accuracy_epochs.png", "accuracy_seconds.png", "efficiency.png", "pareto.png", "phases.png", "speedup.png",
    ]  # fmt: skip


def test_the_same_trials_give_the_same_bytes(folder):
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    write_report(folder)
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_the_wall_time_is_kept_when_the_report_is_rebuilt(folder):
    write_report(folder)
    assert json.loads(folder.summary_file.read_text())["cost"]["wall_seconds"] == 99.0


def test_the_numbers_are_the_summarys(folder, page):
    summary, shown = json.loads(folder.summary_file.read_text()), "".join(page.text)
    for row in summary["cells"]:
        assert f"{row['test_accuracy']['value']:.3f}" in shown
        assert f"{row['speedup']:.2f}" in shown
    assert f"{summary['cost']['overhead_ratio']:.2f}×" in shown


CASES = {
    "one trial": ("name: x", {}),
    "all failed": (TEXT, {"endings": {"*": "failed"}}),
    "all skipped": (TEXT, {"endings": {"*": "skipped"}}),
    "all diverged": (TEXT, {"endings": {"*": "diverged"}}),
    "no target reached": (TEXT, {"law": Law(learning=0.1)}),
    "no targets": ("name: x\nsweep: {num_gpus: [1, 2]}", {}),
    "forty cells": (
        "name: x\ntargets: {accuracy: [0.5]}\nsweep: {num_gpus: [1, 2, 4, 8], batch_size: [32, 64, 128, 256, 512], "
        "learning_rate: [0.1, 0.2]}",
        {"device": "cuda"},
    ),
    "long names": (
        "name: x\nsweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, naive], train.optimizer.momentum: [0, 0.9], "
        "train.optimizer.weight_decay: [0, 0.001]}",
        {},
    ),
    "perfect": ("name: x\ntargets: {accuracy: [1.0]}", {"law": Law(ceiling=1.0, learning=1e6)}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_study_has_a_report(case, tmp_path):
    text, keywords = CASES[case]
    folder = folder_of(tmp_path / "x", text, **keywords)
    shown = "".join(Page(write_report(folder).read_text("utf-8")).text)
    assert "Traceback" not in shown
    assert "None" not in shown
    assert " nan" not in shown
    assert json.loads(folder.summary_file.read_text())


def test_a_folder_without_trials_or_plan(tmp_path):
    folder = folder_of(tmp_path / "x", "name: x")
    folder.trials_file.unlink()
    assert "No answer" in write_report(folder).read_text("utf-8")
    folder.plan_file.unlink()
    with pytest.raises(OSError, match=r"plan\.json"):
        write_report(folder)


def test_missing_phases_are_said(tmp_path):
    folder = folder_of(tmp_path / "x", "name: x")
    (trial,) = folder.read_trials()
    for epoch in trial["epochs"]:
        epoch["phases"] = None
    folder.trials_file.unlink()
    folder.append_trial(trial)
    text = write_report(folder).read_text("utf-8")
    assert "no trial measured the phases" in text
    assert "no cause can be named" in text


@pytest.mark.parametrize(("low", "high"), [(1.4, 2.8), (0.5, 200), (1.0, 1.05), (3e-5, 7e3), (9.1, 11)])
def test_log_ticks_are_few_and_within(low, high):
    ticks = log_ticks(low, high)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= 10
    assert len(ticks) >= 2 or high / low < 1.1
