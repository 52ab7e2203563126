"""What a run has found, as tables, in words and in a notebook."""

import pickle
from signal import SIGINT, SIGTERM

import pytest

from scalestudy.orchestration.base.errors import ExitCode, RequestError, StudyFailedError
from scalestudy.orchestration.study.result import StudyResult, exit_code_of
from tests.support.synthetic_studies import TINY, folder_of, summary_of
from tests.support.trials import Law

LAW = Law(noise=0.02)


@pytest.fixture
def result(tmp_path):
    return result_of(tmp_path)


def result_of(place, text=TINY, exit_code=ExitCode.DONE, **keywords):
    more = {key: keywords.pop(key) for key in ("broken", "unsent") if key in keywords}
    folder = folder_of(place / "tiny", text, LAW, **keywords)
    return StudyResult(
        folder=folder.path,
        address=str(folder.path),
        summary=summary_of(text, LAW, **keywords),
        exit_code=exit_code,
        tracking_uri="sqlite:///mlflow.db",
        **{"broken": None, "unsent": 0, "cold_starts": {}, **more},
    )


@pytest.mark.parametrize(
    ("failed", "facts", "code"),
    [
        (0, {}, 0),
        (2, {}, 1),
        (2, {"broken": "its first trials failed alike", "failed_alike": True}, 1),
        (0, {"broken": "the pool died"}, 3),
        (2, {"broken": "the pool died"}, 3),
        (2, {"unsent": 5}, 3),
        (2, {"unsent": 5, "broken": "its first trials failed alike", "failed_alike": True}, 3),
        (None, {}, 3),
        (None, {"broken": "its first trials failed alike", "failed_alike": True}, 3),
        (0, {"caught": SIGINT}, 130),
        (None, {"caught": SIGTERM, "broken": "the pool died", "unsent": 5}, 143),
    ],
)
def test_what_decides_the_exit_status(failed, facts, code):
    """failed: trials, by the summary; None: there is no summary."""
    summary = None if failed is None else {"trials": {"failed": failed}}
    standard = {"caught": None, "broken": None, "failed_alike": False, "unsent": 0}
    assert exit_code_of(summary, **{**standard, **facts}) == code


def test_trials_are_rows_with_parameters_metric_and_times(result):
    trials = result.trials
    assert list(trials["num_gpus"]) == [1, 1, 2, 2]
    assert set(trials["status"]) == {"finished"}
    assert (trials["test_accuracy"] <= trials["best_test_accuracy"]).all()
    assert (trials["epochs"] == 8).all()
    assert {"learning_rate", "seed", "train_seconds", "error", "nodes", "accelerator", "flags"} <= set(trials.columns)


def test_cells_are_rows_with_intervals_and_the_time_to_the_target(result):
    cells = result.cells
    assert list(cells["label"]) == [cell["label"] for cell in result.summary["cells"]]
    first = result.summary["cells"][0]
    assert cells["epoch_seconds"][0] == first["epoch_seconds"]["value"]
    assert cells["speedup"][0] == 1.0
    reached = {row["label"]: row["seconds"] for row in result.summary["time_to_target"] if row["target"] == 0.8}
    assert [None if seconds != seconds else seconds for seconds in cells["seconds_to_0.8"]] == list(reached.values())
    assert cells["seconds_to_0.8"].notna().any()


def test_cells_have_both_rates_where_a_task_counts_tokens(tmp_path, result):
    assert "tokens_per_second" not in result.cells

    def counted(trial):
        for epoch in trial["epochs"]:
            epoch["tokens"] = 8 * epoch["samples"]

    cells = result_of(tmp_path / "tokens", change=counted).cells
    for end in ("", "_low", "_high"):
        expected = [8 * rate for rate in cells[f"samples_per_second{end}"]]
        assert list(cells[f"tokens_per_second{end}"]) == pytest.approx(expected)


def test_the_best_trial_has_the_best_metric_by_its_mode(tmp_path, result):
    best = result.best
    assert best["test_accuracy"] == result.trials["test_accuracy"].max()
    least = TINY.replace("data: digits", "data: digits, metric: mse, metric_mode: min")
    other = result_of(tmp_path / "mse", least)
    assert other.best["test_mse"] == other.trials["test_mse"].min()
    failed = result_of(tmp_path / "failed", endings={"*": "failed"})
    assert failed.best is None


def test_a_recommendation_for_another_target_prints_as_sentences(result):
    advice = result.recommend(target=0.5)
    assert advice.data["target"] == 0.5
    assert str(advice).splitlines()[0].startswith("Recommended")
    assert result.recommend(max_gpus=1).data["choice"]["num_gpus"] == 1
    with pytest.raises(RequestError, match="target: 95: is not a share; give one above 0"):
        result.recommend(target=95)


def test_a_notebook_shows_the_answer_and_the_cells(result):
    html = result._repr_html_()
    assert "Recommended" in html
    assert html.count("<tr>") == 1 + 4
    assert str(result.report) in html


def test_a_notebook_shows_what_users_wrote_as_text(tmp_path):
    text = TINY.replace("name: tiny", 'name: tiny\ndescription: "</table><script>alert(1)</script>"')
    result = result_of(tmp_path / "<b>", text, endings={"*": "failed"}, message="<script>")
    assert "<script>" not in result._repr_html_()
    assert "<b>" not in result._repr_html_().replace("<body>", "")
    assert "&lt;b&gt;" in result._repr_html_()


def test_many_cells_are_shown_in_brief(tmp_path):
    rates = [round(0.01 * number, 2) for number in range(1, 16)]
    result = result_of(tmp_path, TINY.replace("[0.1, 0.2]", str(rates)))
    html = result._repr_html_()
    assert html.count("<tr>") == 1 + 10
    assert "The 10 best of 30 cells." in html
    assert len(result.cells) == 30


def test_a_run_without_a_summary_still_has_its_trials(result):
    cut = StudyResult(**{**vars(result), "summary": None, "exit_code": ExitCode.TERMINATED})
    assert len(cut.trials) == 4
    assert cut.cells.empty
    assert "was ended before its report" in cut._repr_html_()


def test_a_clean_run_raises_nothing(result):
    assert result.raise_on_failure() is result


@pytest.mark.parametrize(
    ("changes", "word", "remedy"),
    [
        ({"exit_code": ExitCode.SOME_FAILED, "endings": {"*": "failed"}}, "the model raised", "driver.log"),
        ({"exit_code": ExitCode.INTERRUPTED}, "was stopped", "resume_study"),
        ({"exit_code": ExitCode.UNREACHABLE, "broken": "the head is gone"}, "the head is gone", "resume_study"),
        ({"exit_code": ExitCode.UNREACHABLE, "unsent": 3}, "MLflow missed 3 events", "--sync"),
    ],
)
def test_any_other_end_raises_with_its_exit_status_and_pickles(tmp_path, changes, word, remedy):
    result = result_of(tmp_path, **changes)
    with pytest.raises(StudyFailedError, match=word) as raised:
        result.raise_on_failure()
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.exit_code == changes["exit_code"]
    assert remedy in error.remedy
