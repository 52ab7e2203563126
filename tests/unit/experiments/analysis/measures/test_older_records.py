"""Records of versions that wrote less: whatever they lack, there are a summary and a report that say why."""

import json

import pytest

from scalestudy.experiments.analysis import answer_lines, recommend, recommendation_lines, summarise
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.report import draw, write_report
from tests.support.report_pages import check, page_of
from tests.support.synthetic_studies import folder_of, study_of
from tests.support.trials import Law

TEXT = """
    name: x
    train: {epochs: 4}
    targets: {accuracy: [0.3, 0.6], price_per_gpu_hour: 2}
    sweep: {num_gpus: [1, 2], batch_size: [32, 64, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}
"""
ENDINGS = {
    "gpus=1 batch=32 lr=0.2 seed=0": "failed",
    "gpus=2 batch=32 lr=0.2 seed=1": "diverged",
    "gpus=2 batch=64 lr=0.2 seed=0": "skipped",
    "gpus=2 batch=128 lr=0.2 seed=1": "out_of_memory",
}
OF_TRIALS = ("kind", "flags", "world", "details", "error", "started_at", "ended_at", "train_seconds")
OF_EPOCHS = ("phases", "samples_per_second", "grad_sq_norm")


def older(*keys):
    """The spec, plan and trials of a study whose records have none of these keys."""
    spec, plan, trials = study_of(TEXT, Law(noise=0.02, learning=200), endings=ENDINGS)
    for trial in trials:
        trial["details"] = {"channels_last": True}
        for key in keys:
            for record in (trial, *trial["epochs"]) if key in OF_EPOCHS else (trial,):
                record.pop(key, None)
    return spec, plan, trials


def null_parts(part, path=""):
    """Paths of everything below that is `{"value": null}` without a why."""
    if isinstance(part, list):
        return [found for place, each in enumerate(part) for found in null_parts(each, f"{path}[{place}]")]
    if not isinstance(part, dict):
        return []
    own = [path] if "value" in part and part["value"] is None and not part.get("why") else []
    return own + [found for key, each in part.items() for found in null_parts(each, f"{path}.{key}")]


@pytest.mark.parametrize("key", [*OF_TRIALS, *OF_EPOCHS])
def test_records_without_a_key_have_a_summary_and_a_page(key):
    spec, plan, trials = older(key)
    summary = summarise(spec, plan, trials)
    json.dumps(summary, allow_nan=False)
    assert null_parts(summary) == []
    assert summary["trials"] == summarise(spec, plan, older()[2])["trials"]
    assert answer_lines(summary)
    assert recommendation_lines(recommend(plan, trials, targets=spec.targets.accuracy))
    summary["study"]["study_id"] = "x"
    page_of(summary)


@pytest.mark.parametrize("keys", [OF_TRIALS, OF_EPOCHS], ids=["of trials", "of epochs"])
def test_records_without_several_keys_have_a_report(keys, tmp_path):
    folder = folder_of(tmp_path / "x", TEXT)
    folder.trials_file.unlink()
    for trial in older(*keys)[2]:
        folder.append_trial(trial)
    check(write_report(folder).read_text("utf-8"))


def test_figures_are_drawn_whichever_key_is_missing(monkeypatch):
    """Every figure is laid out. Only its bytes, which take most of the time, are left out."""

    def save(figure, out, *, format, **looks):
        out.write("<svg></svg>" if format == "svg" else b"png")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
    for key in (*OF_TRIALS, *OF_EPOCHS):
        spec, plan, trials = older(key)
        cells = gather(plan, trials, StudyMetric.of(spec.workload))
        assert any(figure.png for figure in draw(cells, summarise(spec, plan, trials))), key


def test_what_can_be_had_otherwise_is_as_it_was():
    truth = summarise(*older())
    for key in ("kind", "flags", "started_at", "ended_at", "grad_sq_norm"):
        found = summarise(*older(key), truth["cost"]["wall_seconds"])
        assert found["cells"] == truth["cells"], key
        assert found["recommendation"] == truth["recommendation"], key
    for key in ("train_seconds", "samples_per_second"):
        found = summarise(*older(key))
        assert found["cost"]["gpu_seconds"] == pytest.approx(truth["cost"]["gpu_seconds"])
        for row, known in zip(found["cells"], truth["cells"], strict=True):
            assert row["samples_per_second"] == pytest.approx(known["samples_per_second"])


def test_what_can_not_be_had_is_null_with_a_why():
    without_phases = summarise(*older("phases"))
    assert {row["step_seconds"]["why"] for row in without_phases["timings"]} >= {"phases were not measured"}
    assert "phases were not measured" in without_phases["throughput_model"]["data_seconds"]["why"]
    assert summarise(*older("world"))["study"]["device"] is None
    failed = summarise(*older("error"))["failures"]
    assert {(group["kind"], group["message"]) for group in failed} == {(None, None)}
