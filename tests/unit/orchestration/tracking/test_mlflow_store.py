"""A study's journal in a real MLflow store on sqlite."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, INVALID_PARAMETER_VALUE

from scalestudy.experiments.spec.addresses import path_of
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.base.places import home
from scalestudy.orchestration.groups.events import EpochDone, Origin, Reopened, Running, StudyBegan, to_plain
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking import mlflow_model
from scalestudy.orchestration.tracking.entries import Recorded, StudyJournal
from scalestudy.orchestration.tracking.mlflow_store import (
    NOTE,
    NOTE_LIMIT,
    TRACEBACK,
    MlflowStore,
    TrackedStudy,
    milliseconds,
)
from scalestudy.orchestration.tracking.run_content import DataSet, answer_of, note, origin_tags
from scalestudy.orchestration.tracking.runs_view import CELL, cell_text, view_tag
from scalestudy.orchestration.tracking.sending import POINTS_A_REQUEST
from scalestudy.orchestration.tracking.server import check_reachable, resolve_address
from scalestudy.orchestration.tracking.writer import Cursor, TrackingWriter, catch_up
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.records import CELL_PLACE, EpochRecord, epoch_metrics, find_metric
from tests.support.faulty_proxy import faulty_proxy
from tests.support.recordings import SPEC, Kept, entries_of, numbered, plain_of, whole, with_keys
from tests.support.synthetic_studies import TINY, study_of, summary_of

STUDY_ID = "tiny-20260131"
SEEDS = TINY.replace("learning_rate: [0.1, 0.2]", "learning_rate: [0.2], seed: [0, 1]")


@pytest.fixture(scope="module")
def address(database):
    return resolve_address(f"sqlite:///{database}")


def tracked(path, experiment, study_id=STUDY_ID, *, text=SPEC, **spec_facts):
    """A study with a folder, and its synthetic trials."""
    spec, plan, trials = study_of(text)
    tracking = spec.tracking.model_copy(update={"experiment": experiment})
    spec = spec.model_copy(update={"tracking": tracking, **spec_facts})
    folder = StudyFolder(path / "study")
    folder.create()
    folder.write_plan(plan, study_id, spec.to_yaml())
    folder.report_file.write_text("<p>report</p>")
    study = TrackedStudy(
        spec=spec, folder=folder, trials=plan.by_id(), config_of=lambda trial: train_config(trial, "data")
    )
    return study, [whole(trial) for trial in trials]


@pytest.fixture
def told(tmp_path, request):
    """A study of one trial, and its journal."""
    study, trials = tracked(tmp_path, request.node.name)
    return study, trials[0], entries_of(trials[:1])


@pytest.fixture
def store(address, told):
    return MlflowStore(address, told[0])


def runs_of(store):
    found = store.client.search_runs([store.experiment_id])
    return {run.data.tags["scalestudy.role"]: run for run in found}, len(found)


def history(store, run, name):
    points = store.client.get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.timestamp, metric.value) for metric in points]


def test_the_layout(store, told):
    _, record, entries = told
    store.write(entries)
    runs, count = runs_of(store)
    assert count == 2
    study, trial = runs["study"], runs["trial"]
    assert study.info.run_name == STUDY_ID
    assert study.data.params["sweep.num_gpus"] == "[1]"
    assert study.data.tags[NOTE] == "**A small one**"
    assert study.data.metrics == {"wall_seconds": 12.5}
    assert trial.info.run_name == "w1 b32 lr.1 s0"
    assert trial.data.params["num_gpus"] == "1"
    assert trial.data.params["train.optimizer.name"] == "sgd"
    assert trial.data.tags["mlflow.parentRunId"] == study.info.run_id
    assert trial.data.tags["scalestudy.trial_id"] == record["trial_id"]
    assert trial.data.tags["scalestudy.kind"] == "training"
    assert trial.data.tags["scalestudy.attempts"] == "1"
    assert trial.data.tags[NOTE].startswith("0.99 test accuracy not reached; best 0.")
    for run in (study, trial):
        assert run.data.tags["scalestudy.study_id"] == STUDY_ID
        assert run.data.tags["scalestudy.status"] == "finished"
        assert run.info.status == "FINISHED"
        assert [find_metric(name).name for name in run.data.metrics]
    assert (study.info.start_time, trial.info.start_time) == (1_769_860_800_125, 1_769_860_801_125)
    assert trial.info.end_time == milliseconds(record["ended_at"])
    names = [file.path for file in store.client.list_artifacts(study.info.run_id)]
    assert names == ["plan.json", "report.html", "spec.yaml"]


def test_points_are_what_the_journal_says_exactly(store, told):
    _, record, entries = told
    store.write(entries)
    trial = runs_of(store)[0]["trial"]
    epochs = [EpochRecord.from_dict(epoch) for epoch in record["epochs"]]
    for name in epoch_metrics(epochs[0]):
        expected = [(each.epoch, milliseconds(each.at), epoch_metrics(each)[name]) for each in epochs]
        assert history(store, trial, name) == expected
    best = max(epoch["test_accuracy"] for epoch in record["epochs"])
    assert history(store, trial, "best_test_accuracy") == [(2, milliseconds(record["ended_at"]), best)]
    assert "grad_sq_norm" not in trial.data.metrics


def test_writing_twice_changes_nothing(store, address, told):
    study, _, entries = told
    store.write(entries)
    runs, _ = runs_of(store)
    before = {role: run.to_dictionary() for role, run in runs.items()}
    store.write(entries)
    again = MlflowStore(address, study)  # another process: nothing in memory
    again.write(entries)
    runs, count = runs_of(again)
    assert count == 2
    assert {role: run.to_dictionary() for role, run in runs.items()} == before
    assert len(history(again, runs["trial"], "test_accuracy")) == 2
    assert len(history(again, runs["study"], "wall_seconds")) == 1


def test_a_second_attempt_goes_on_in_the_same_run(store, told):
    _, record, entries = told
    lost = {"type": "retry", "attempt": 1, "error": {"kind": "worker_lost", "message": "died", "rank": 0}}
    again = {"type": "running", "attempt": 2, "world": record["world"]}
    store.write([*entries[:3], *numbered([(record["trial_id"], lost), (record["trial_id"], again)]), *entries[3:]])
    runs, count = runs_of(store)
    assert count == 2
    assert [step for step, _, _ in history(store, runs["trial"], "test_accuracy")] == [1, 2]


def test_a_trial_that_is_reopened_gets_a_new_run(store, told):
    _, record, entries = told
    store.write(entries)
    before = runs_of(store)[0]["trial"].info.run_id
    later = [(record["trial_id"], to_plain(event)) for event in (Reopened(), Running(attempt=2))]
    numbers = range(entries[-1].number + 1, entries[-1].number + 3)
    told_later = [Entry(number=n, at=2e9 + n, trial_id=t, event=e) for n, (t, e) in zip(numbers, later, strict=True)]
    store.write([Recorded.of(entry) for entry in told_later])
    runs, count = runs_of(store)
    assert (count, runs["trial"].info.status) == (2, "RUNNING")
    assert runs["trial"].info.run_id != before
    assert "best_test_accuracy" not in runs["trial"].data.metrics


def test_an_interrupted_study_ends_its_open_trials_until_they_go_on(store, told):
    _, record, entries = told
    open_trials = [record["trial_id"], "made-by-a-search"]
    store.write([*entries[:3], *entries_of([], last="stopped", open=open_trials)[1:]])
    runs, _ = runs_of(store)
    for run in runs.values():
        assert (run.data.tags["scalestudy.status"], run.info.status) == ("interrupted", "KILLED")
    store.write([replace(entries[0], event=StudyBegan(how="resumed")), entries[1]])
    runs, _ = runs_of(store)
    for run in runs.values():
        assert (run.data.tags["scalestudy.status"], run.info.status) == ("running", "RUNNING")


def test_a_run_whose_making_was_not_answered_is_found(store, told, monkeypatch):
    entries, make = told[2], store.client.create_run

    def made_without_an_answer(*args, **kwargs):
        make(*args, **kwargs)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(store.client, "create_run", made_without_an_answer)
    for count in (1, 2):  # the study's run, then the trial's
        with pytest.raises(ConnectionError):
            store.write(entries)
        assert runs_of(store)[1] == count
    store.write(entries)
    assert runs_of(store)[1] == 2


def test_mlflow_s_client_asks_for_a_run_once():
    """It would repeat a request whose answer was lost, and make a run twice."""
    away = faulty_proxy("http://127.0.0.1:1", lambda *_: "refused")
    with away as (address, seen), pytest.raises(MlflowException, match="503"):
        MlflowClient(tracking_uri=address).create_run("0", run_name="w1 b64")
    assert seen == [("POST", "/api/2.0/mlflow/runs/create")]


def test_studies_of_one_experiment_do_not_share_runs(store, address, told, tmp_path, request):
    _, record, entries = told
    store.write(entries)
    study, _ = tracked(tmp_path / "other", request.node.name, "tiny-20260201")
    other = MlflowStore(address, study)
    other.write(entries)
    assert runs_of(other)[1] == 4
    assert other.runs[record["trial_id"]] != store.runs[record["trial_id"]]


def test_a_study_s_cells_are_listed_in_its_order_with_the_recommended_one_marked(address, tmp_path, request):
    study, trials = tracked(tmp_path, request.node.name, text=SEEDS)
    store = MlflowStore(address, study)
    summary = summary_of(SEEDS)
    study.folder.write_json(study.folder.summary_file, summary)
    entries = entries_of(trials, answer=answer_of(summary).to_plain())
    recommended = cell_text(summary["recommendation"]["recommended"]["params"])

    def listed():
        """By place: the cell of each run, and the number of its runs. And the state of the view."""
        runs = store.client.search_runs([store.experiment_id], order_by=["metrics.cell_place ASC"])
        found = Counter((run.data.metrics.get(CELL_PLACE), run.data.tags.get(CELL)) for run in runs)
        tags = store.client.get_experiment(store.experiment_id).tags
        return found, json.loads(json.loads(tags[view_tag(STUDY_ID)])["state"])

    store.write(entries[:-1])
    cells = {cell_text(study.trials[trial["trial_id"]].cell) for trial in trials}
    found, running = listed()
    assert found == {(None, None): 1, **{(None, cell): 2 for cell in cells}}
    assert running["orderByKey"] == "metrics.`at_0.8_seconds`"
    store.write(entries)
    found, ended = listed()
    assert next(iter(found)) == (1.0, f"★ {recommended}")
    assert found == {(None, None): 1, **{key: 2 for key in found if key[0]}}
    assert [place for place, _ in found if place] == [1.0, 2.0]
    assert ended["orderByKey"] == "metrics.`cell_place`"
    assert list(ended["groupsExpanded"]) == [f"tag.{CELL}.{cell}" for place, cell in found if place]
    MlflowStore(address, study).write(entries)  # another process: nothing in memory
    assert listed() == (found, ended)
    trial = next(run for run in store.client.search_runs([store.experiment_id]) if CELL_PLACE in run.data.metrics)
    assert len(history(store, trial, CELL_PLACE)) == 1

    other = next(row for row in summary["cells"] if cell_text(row["params"]) != recommended)
    chosen = {**summary["recommendation"]["recommended"], "label": other["label"], "params": other["params"]}
    summary["recommendation"]["recommended"] = chosen
    study.folder.write_json(study.folder.summary_file, summary)
    store.write([replace(entries[-1], at=entries[-1].at + 60)])
    found, _ = listed()
    marked = [cell for _, cell in found if cell and cell.startswith("★")]
    assert marked == [f"★ {cell_text(other['params'])}"] == [next(iter(found))[1]], "an extended study's last answer"


def test_a_description_as_long_as_a_page_is_cut(address, tmp_path, request):
    study, trials = tracked(tmp_path, request.node.name, description="é" * 20_000)
    store = MlflowStore(address, study)
    for entry in entries_of(trials[:1]):
        store.write([entry])
        assert len(runs_of(store)[0]["study"].data.tags[NOTE]) == NOTE_LIMIT < 8_000


def test_the_note_is_the_answer(store, told):
    study, _, entries = told
    summary = summary_of(SPEC)
    study.folder.write_json(study.folder.summary_file, summary)
    store.write(entries)
    run = runs_of(store)[0]["study"]
    assert run.data.tags[NOTE] == note(study.spec, json.loads(study.folder.summary_file.read_text()))
    assert "summary.json" in [file.path for file in store.client.list_artifacts(run.info.run_id)]


def test_the_note_of_a_summary_of_version_1_leads_to_the_report(store, told):
    study, _, entries = told
    study.folder.write_json(study.folder.summary_file, {**summary_of(SPEC), "version": 1})
    store.write(entries)
    run = runs_of(store)[0]["study"]
    assert run.data.tags[NOTE] == "**A small one**\n\nThe whole answer, with figures, is the artifact `report.html`."
    assert run.info.status == "FINISHED"


def test_the_best_model_comes_last(store, told, monkeypatch):
    study, record, _ = told
    logged = []

    def keep(client, run_id, config, path, changed):
        assert not changed
        logged.append((run_id, runs_of(store)[0]["study"].info.status, config.learning_rate, path))

    monkeypatch.setattr(mlflow_model, "log_best_model", keep)
    store.write(entries_of([record], best=record["trial_id"]))
    path = str(study.folder.model_file(record["trial_id"]))
    assert logged == [(store.runs[record["trial_id"]], "FINISHED", 0.1, path)]


@pytest.mark.parametrize(
    ("trained_with", "imported", "changed"),
    [
        (["now"], None, []),
        (["before"], None, ["store_mine"]),
        (["before", "now"], None, ["store_mine"]),
        (["now"], "before", ["store_mine"]),
        (["before"], "before", []),
    ],
    ids=["the same", "another", "both", "edited since it was imported here", "the same as was imported here"],
)
def test_code_that_has_changed_since_the_best_trial_is_told_of_its_model(
    address, tmp_path, monkeypatch, trained_with, imported, changed
):
    monkeypatch.syspath_prepend(tmp_path)
    versions = {}
    for version in ("before", "now"):
        (tmp_path / "store_mine.py").write_text(f"VERSION = '{version}'\n")
        versions[version] = Fingerprint.of_code(["store_mine"])
    text = SPEC.replace("model: lenet", "model: 'store_mine:build'")
    study, trials = tracked(tmp_path / "study", f"code-{tmp_path.name}", text=text)
    trial = study.trials[trials[0]["trial_id"]]
    digests = [versions[each].digests(trial.workload)["store_mine"] for each in trained_with]
    record = {**trials[0], "fingerprint": {"store_mine": digests}}
    study.folder.write_trials([record])
    told, said = [], []

    def keep(client, run_id, config, path, changed):
        told.append(changed)
        return "a word" if changed else ""

    monkeypatch.setattr(mlflow_model, "log_best_model", keep)
    study = replace(study, imported=versions[imported] if imported else None)
    MlflowStore(address, study, said.append).write(entries_of([record], best=record["trial_id"]))
    assert told == [changed]
    assert said == (["the best model in MLflow: a word"] if changed else [])


@pytest.mark.parametrize("study_id", ["bob's study", 'the "best" one', "a`b", "50% of it", "naïve"])
def test_a_study_may_have_any_id(address, tmp_path, study_id):
    study, trials = tracked(tmp_path, "any name", study_id)
    for _ in range(2):
        store = MlflowStore(address, study)
        store.write(entries_of(trials[:1]))
    assert store.runs[trials[0]["trial_id"]]
    found = store.client.search_runs([store.experiment_id])
    assert len([run for run in found if run.data.tags["scalestudy.study_id"] == study_id]) == 2


WORDS = {
    "finished": "FINISHED",
    "at_target": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
    "diverged": "FAILED",
    "out_of_memory": "FAILED",
}


def test_statuses_are_mapped(address, tmp_path, request):
    seeds = SPEC.replace("learning_rate: [0.1, 0.2]", f"learning_rate: [0.1], seed: {[*range(len(WORDS))]}")
    study, trials = tracked(tmp_path, request.node.name, text=seeds)
    store = MlflowStore(address, study)
    entries = entries_of([{**trial, "status": status} for trial, status in zip(trials, WORDS, strict=True)])
    store.write([entry for entry in entries if not isinstance(entry.event, EpochDone)])
    runs = store.client.search_runs([store.experiment_id], "tags.`scalestudy.role` = 'trial'")
    assert {run.data.tags["scalestudy.status"]: run.info.status for run in runs} == WORDS


def test_neighbouring_epochs_go_in_one_request_of_the_size_that_mlflow_takes(store, told, monkeypatch):
    _, record, entries = told
    first = record["epochs"][0]
    epochs = [(record["trial_id"], {"type": "epoch", "epoch": {**first, "epoch": n}}) for n in range(1, 301)]
    sizes, log = [], store.client.log_batch

    def counted(run, metrics=(), **rest):
        sizes.append(len(metrics))
        log(run, metrics=metrics, **rest)

    store.write(entries[:2])
    monkeypatch.setattr(store.client, "log_batch", counted)
    store.write(numbered(epochs))
    points = 300 * len(epoch_metrics(EpochRecord.from_dict(first)))
    assert points > 2 * POINTS_A_REQUEST
    assert (sum(sizes), max(sizes)) == (points, POINTS_A_REQUEST)
    assert len(sizes) == -(-points // POINTS_A_REQUEST)
    assert len(history(store, runs_of(store)[0]["trial"], "test_accuracy")) == 300


def test_many_parameters_are_split_into_requests(address, tmp_path, request):
    study, trials = tracked(tmp_path, request.node.name)
    many = {f"p{number}": number for number in range(250)}
    trial_id = trials[0]["trial_id"]
    study = replace(study, trials={trial_id: replace(study.trials[trial_id], params=many)})
    store = MlflowStore(address, study)
    store.write(entries_of(trials[:1])[:2])
    params = store.client.get_run(store.runs[trial_id]).data.params
    assert {name: params[name] for name in many} == {name: str(number) for name, number in many.items()}


def test_an_extended_study_adds_parameters_and_changes_none(store, told):
    entries = told[2]
    store.write(entries)
    before = runs_of(store)[0]["study"].data.params
    store.write([replace(entries[0], event={"type": "study", "state": "extended"})])
    assert runs_of(store)[0]["study"].data.params == before


def test_an_experiment_that_was_deleted_is_taken_up_again(store, address, told):
    study, _, entries = told
    store.client.delete_experiment(store.experiment_id)
    again = MlflowStore(address, study)
    assert again.experiment_id == store.experiment_id
    again.write(entries)


@pytest.mark.parametrize("name", ["with space", "a#b", "a?b", "50%25", "../up", "/x", ".", "a/../../b", "é" * 250])
def test_artifacts_of_an_experiment_of_any_name_are_found_again(address, tmp_path, name):
    study, trials = tracked(tmp_path, name)
    store = MlflowStore(address, study)
    store.write(entries_of(trials)[:1])
    run = store.runs[STUDY_ID]
    assert [file.path for file in store.client.list_artifacts(run)] == ["spec.yaml"]
    assert path_of(store.client.get_run(run).info.artifact_uri).parents[2] == path_of(address.artifacts)


def test_what_has_no_study_is_skipped_and_holds_up_nothing(store, told):
    _, record, entries = told
    store.write(entries[2:3])
    assert runs_of(store)[1] == 0
    store.write([*entries[2:3], *entries[:1]])
    assert runs_of(store)[1] == 1
    store.write(entries[2:3])  # now that the study is there, its epochs make the trial's run
    assert store.runs[record["trial_id"]]


def test_a_file_that_is_gone_is_skipped_and_the_rest_is_written(address, store, told):
    study, record, entries = told
    study.folder.spec_file.unlink()
    said = []
    store = MlflowStore(address, study, said.append)
    store.write(entries)
    runs, count = runs_of(store)
    assert count == 2
    assert runs["trial"].data.tags["scalestudy.trial_id"] == record["trial_id"]
    assert runs["study"].info.status == "FINISHED"
    assert [line.partition(":")[0] for line in said] == ["MLflow refused the artifact spec.yaml"]


def test_events_of_a_trial_that_nobody_knows_are_skipped(store, told):
    entries = told[2]
    unknown = [replace(entry, trial_id="nobody") for entry in entries[1:-1]]
    store.write([entries[0], *unknown])
    assert runs_of(store)[1] == 1


def test_a_writer_and_catching_up_after_it_write_everything_once(store, address, told, tmp_path):
    study, record, entries = told
    cursor = Cursor(tmp_path / "spool" / "written")
    writer = TrackingWriter(lambda: MlflowStore(address, study), cursor, Kept(entries))
    for entry in entries[:4]:
        writer.tell(entry)
    assert writer.close() == 0
    assert (cursor.read(), catch_up(store, Kept(entries), cursor)) == (4, len(entries) - 4)
    trial = runs_of(store)[0]["trial"]
    values = [epoch["test_accuracy"] for epoch in record["epochs"]]
    assert [value for _, _, value in history(store, trial, "test_accuracy")] == values


def test_a_database_without_the_study_gets_all_of_it_again(address, tmp_path, request):
    """As one that was just made, because the old one was deleted."""
    study, trials = tracked(tmp_path, request.node.name)
    entries, cursor = entries_of(trials), Cursor(tmp_path / "spool" / "written")
    catch_up(MlflowStore(address, study), Kept(entries[:-1]), cursor)
    other, _ = tracked(tmp_path / "new", f"{request.node.name}, new")
    store = MlflowStore(address, other)
    assert catch_up(store, Kept(entries), cursor) == len(entries)
    runs = store.client.search_runs([store.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    assert catch_up(store, Kept(entries), cursor) == 0


def test_a_store_makes_the_folder_that_the_check_left_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "new"))
    found = resolve_address(None)
    assert found.uri == f"sqlite:///{home()}/mlflow.db"
    check_reachable(found)
    assert not (tmp_path / "new").exists()
    MlflowStore(found, tracked(tmp_path, "first")[0])
    assert (tmp_path / "new" / "mlflow.db").exists()


def test_metrics_at_the_end_of_a_study_of_an_error(address, tmp_path, request):
    text = SPEC.replace("data: digits", "data: digits, metric: mse, metric_mode: min").replace("0.99", "0.001")
    study, trials = tracked(tmp_path, request.node.name, text=text.replace("0.3", "0.8"))
    store = MlflowStore(address, study)
    store.write(entries_of(trials[:1]))
    found = runs_of(store)[0]["trial"].data.metrics
    assert found["best_test_mse"] == min(epoch["test_mse"] for epoch in trials[0]["epochs"])
    assert "time_to_mse_0.8" in found


# --- the answer, where it comes from, what it was trained on, why it failed -------------------------------------------

ORIGIN = {"user": "ann", "source": "study.yaml", "commit": "abc123", "job": "raysubmit_7"}
ANSWER = {
    "cell": {"num_gpus": 2, "batch_size": 32, "learning_rate": 0.2},
    "figures": {"recommended_workers": 2.0, "recommended_seconds": 3.5, "trials_ended": 2.0},
}
OTHER = {
    "cell": {"num_gpus": 1, "batch_size": 32, "learning_rate": 0.2},
    "figures": {"recommended_workers": 1.0, "trials_ended": 3.0},
}


def test_the_study_s_run_has_the_answer_as_metrics_and_parameters(store, told):
    _, record, _ = told
    store.write(entries_of([record], answer=ANSWER))
    run = runs_of(store)[0]["study"]
    assert run.data.metrics == {"wall_seconds": 12.5, **ANSWER["figures"]}
    assert {key: value for key, value in run.data.params.items() if key.startswith("recommended")} == {
        "recommended.num_gpus": "2",
        "recommended.batch_size": "32",
        "recommended.learning_rate": "0.2",
    }
    assert run.data.tags["scalestudy.recommended"] == "w2 b32 lr.2"
    assert run.data.params["sweep.num_gpus"] == "[1]"


def test_an_extended_study_s_other_answer_replaces_the_figures_and_adds_parameters(store, told, address):
    study, record, _ = told
    first = entries_of([record], answer=ANSWER)
    extended = [
        ("", {"type": "study", "state": "extended"}),
        ("", {**plain_of(first[-1]), "wall_seconds": 20.0, "answer": OTHER}),
    ]
    later = numbered([*((entry.trial_id, plain_of(entry)) for entry in first), *extended])
    for _ in range(2):  # also by a process that has lost its cursor
        MlflowStore(address, study).write(later)
        run = runs_of(store)[0]["study"]
        metrics = run.data.metrics
        assert (metrics["recommended_workers"], metrics["trials_ended"], metrics["wall_seconds"]) == (1.0, 3.0, 20.0)
        assert math.isnan(metrics["recommended_seconds"]), "this answer has none"
        assert run.data.params["recommended.num_gpus"] == "2"
        assert run.data.params["recommended.2.num_gpus"] == "1"
        assert "recommended.3.num_gpus" not in run.data.params
        assert run.data.tags["scalestudy.recommended"] == "w1 b32 lr.2"
        assert len(history(store, run, "recommended_workers")) == len(history(store, run, "recommended_seconds")) == 2


def test_a_study_that_was_stopped_has_figures_so_far_and_no_parameters(store, told):
    _, record, _ = told
    store.write(entries_of([record], last="stopped", answer=ANSWER))
    run = runs_of(store)[0]["study"]
    assert run.data.metrics["recommended_workers"] == 2.0
    assert not [name for name in run.data.params if name.startswith("recommended")]


def test_all_runs_say_who_ran_them_from_what(store, address, told):
    study, record, _ = told
    entries = entries_of([record], origin=ORIGIN)
    store.write(entries[:1])
    MlflowStore(address, study).write(entries[1:])  # `sync` in another process, which did not see the study begin
    for run in runs_of(store)[0].values():
        assert origin_tags(Origin(**ORIGIN)).items() <= run.data.tags.items()


def test_a_later_run_of_the_study_says_where_it_comes_from(store, told):
    _, record, _ = told
    entries = entries_of([record], origin=ORIGIN)
    resumed = {"type": "study", "state": "resumed", "origin": {"user": "bob", "source": "study.yaml"}}
    store.write([entries[0], *numbered([("", resumed)]), *entries[1:]])
    for run in runs_of(store)[0].values():
        assert (run.data.tags["mlflow.user"], run.data.tags["mlflow.source.type"]) == ("bob", "LOCAL")
        assert not {"scalestudy.job_id", "mlflow.source.git.commit"} & set(run.data.tags)


@pytest.mark.parametrize("seen", range(6))
def test_the_input_is_of_the_code_that_the_trial_s_run_of_the_study_began_with(address, tmp_path, seen):
    """Told by a process that sees the study begin, and by one that sends the rest later, after other runs of it."""
    text = SPEC.replace("data: digits", "data: 'mine:load'")
    own = {"data": "mine:load", "data_args": {}}
    study, trials = tracked(tmp_path, f"own-{seen}", text=text)
    journal, digests = StudyJournal(study.folder), []
    for number, trial in enumerate(trials):
        fingerprint = Fingerprint(code={"mine": {"mine.py": str(number)}})
        digests.append(DataSet.of(own, fingerprint).digest)
        journal.append_study(StudyBegan(how="resumed" if number else "started", fingerprint=fingerprint))
        journal.append(trial["trial_id"], Running(attempt=1))
    journal.append_study(StudyBegan(how="resumed", fingerprint=Fingerprint(code={"mine": {"mine.py": "of no trial"}})))
    entries = list(journal.entries())
    MlflowStore(address, study).write(entries[:seen])
    store = MlflowStore(address, study)
    store.write(entries[seen:])
    runs = store.client.search_runs([store.experiment_id], "tags.`scalestudy.role` = 'trial'")
    inputs = {run.data.tags["scalestudy.trial_id"]: run.inputs.dataset_inputs[0].dataset.digest for run in runs}
    assert inputs == {trial["trial_id"]: digest for trial, digest in zip(trials, digests, strict=True)}
    assert digests[0] != digests[1]


def test_all_runs_have_the_data_set_as_their_input_once(store, address, told):
    study, _, entries = told
    for _ in range(2):
        MlflowStore(address, study).write(entries)
    for run in runs_of(store)[0].values():
        (given,) = store.client.get_run(run.info.run_id).inputs.dataset_inputs
        assert (given.dataset.name, given.dataset.source_type) == ("digits", "code")
        assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]


def test_a_data_set_that_another_study_makes_at_the_same_moment_is_the_input_too(store, told, monkeypatch):
    log, tries = store.client.log_inputs, []

    def raced(run, datasets):
        tries.append(run)
        if len(tries) == 1:
            raise MlflowException("UNIQUE constraint failed: datasets.experiment_id", error_code=BAD_REQUEST)
        log(run, datasets)

    monkeypatch.setattr(store.client, "log_inputs", raced)
    store.write(told[2])
    for run in runs_of(store)[0].values():
        assert len(store.client.get_run(run.info.run_id).inputs.dataset_inputs) == 1


def test_a_failed_trial_has_its_traceback_as_an_artifact(store, told):
    entries = told[2]
    error = {
        "kind": "exception",
        "message": "ValueError: bad",
        "rank": 1,
        "traceback": "Traceback …\nValueError: bad\n",
    }
    store.write([*entries[:-2], with_keys(entries[-2], status="failed", error=error)])
    run = runs_of(store)[0]["trial"]
    assert [file.path for file in store.client.list_artifacts(run.info.run_id)] == [TRACEBACK]
    text = Path(store.client.download_artifacts(run.info.run_id, TRACEBACK)).read_text("utf-8")
    assert text == error["traceback"]
    assert run.data.tags["scalestudy.error"] == "ValueError: bad"


def test_a_run_that_was_made_and_not_described_is_described_later(store, told, monkeypatch):
    """MLflow goes away between the making of a trial's run and its parameters."""
    entries = told[2]
    log_inputs, calls = store.client.log_inputs, []

    def away(run, datasets):
        calls.append(run)
        if len(calls) == 2:  # the first is the study's own run
            raise ConnectionError("away")
        log_inputs(run, datasets)

    monkeypatch.setattr(store.client, "log_inputs", away)
    with pytest.raises(ConnectionError):
        store.write(entries)
    store.write(entries)
    runs, count = runs_of(store)
    assert count == 2
    assert runs["trial"].data.params["num_gpus"] == "1"
    assert store.client.get_run(runs["trial"].info.run_id).inputs.dataset_inputs
    assert len(calls) == 4  # the study's run again, and the trial's: after that it is not asked for again


# --- what a spec holds that MLflow does not take, or refuses ----------------------------------------------------------

ODD = {
    "workload": {
        "model_args": {"class_weights": {"New York (city)": 2.0, "a@b": 1.0}, "a": {"b": 1}, "a.b": 2, "x/../y": 3},
        "data_args": {"files": ["x" * 70_000], "": 1, "k" * 300: 1, "NUL": "a\0b", "lone": "\ud800"},
    }
}


def odd_study(tmp_path, experiment):
    """A study of one trial whose spec is full of what MLflow does not take."""
    study, trials = tracked(tmp_path, experiment)
    workload = study.spec.workload.model_copy(update=ODD["workload"])
    trial_id = trials[0]["trial_id"]
    trial = study.trials[trial_id]
    params = {**trial.params, "workload.model_args.big (MB)": "y" * 20_000}
    trial = replace(trial, params=params, workload={**trial.workload, **ODD["workload"]})
    spec = study.spec.model_copy(update={"workload": workload})
    return replace(study, spec=spec, trials={**study.trials, trial_id: trial}), trials


def test_what_mlflow_does_not_take_is_there_in_another_form_and_said_once(address, tmp_path, request):
    study, trials = odd_study(tmp_path, request.node.name)
    said = []
    store = MlflowStore(address, study, said.append)
    store.write(entries_of(trials))
    runs = store.client.search_runs([store.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in runs:
        params = run.data.params
        if run.data.tags["scalestudy.role"] == "study":
            assert {"train.epochs", "sweep.num_gpus"} <= set(params)
            assert "spec.yaml" in [file.path for file in store.client.list_artifacts(run.info.run_id)]
        else:
            assert {"batch_size", "learning_rate", "num_gpus"} <= set(params)
            assert run.data.metrics["best_test_accuracy"] > 0
        if run.data.tags.get("scalestudy.trial_id") != trials[1]["trial_id"]:
            values = [value for name, value in params.items() if name.startswith("workload.model_args.class_weights")]
            assert sorted(values) == ["1.0", "2.0"]
            assert sorted(params[name] for name in params if name.startswith("workload.model_args.a.b")) == ["1", "2"]
            assert len([name for name in params if name.startswith("workload.data_args.")]) == len(
                ODD["workload"]["data_args"]
            )
            assert len(run.inputs.dataset_inputs) == 1
    assert len(said) == 2, "of the spec, and of what a trial alone has"
    assert said[0].startswith("other names or values in MLflow: ")
    assert (
        "workload.model_args.class_weights.New York (city) as workload.model_args.class_weights.New York _ci" in said[0]
    )
    assert "big (MB) as workload.model_args.big _MB_-" in said[1]
    assert "cut to 6,000 of 20,000 characters" in said[1]
    said.clear()
    MlflowStore(address, study, said.append).write(entries_of(trials))  # another process
    assert said == []


def test_what_mlflow_refuses_all_the_same_costs_nothing_else(address, tmp_path, request, monkeypatch):
    """Such as a server of another version, with other limits."""
    study, trials = tracked(tmp_path, request.node.name)
    said = []
    store = MlflowStore(address, study, said.append)
    log, refused = store.client.log_batch, {"train.epochs", "test_accuracy", "scalestudy.attempts", "learning_rate"}

    def picky(run, metrics=(), params=(), tags=()):
        if bad := refused & {each.key for each in (*metrics, *params, *tags)}:
            raise MlflowException(f"Invalid value {sorted(bad)}", error_code=INVALID_PARAMETER_VALUE)
        log(run, metrics=metrics, params=params, tags=tags)

    def never(*_):
        raise MlflowException("'source' exceeds the maximum length", error_code=INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(store.client, "log_batch", picky)
    monkeypatch.setattr(store.client, "log_inputs", never)
    store.write(entries_of(trials))
    runs = store.client.search_runs([store.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in runs:
        names = {*run.data.params, *run.data.metrics, *run.data.tags}
        assert not refused & names
        if run.data.tags["scalestudy.role"] == "study":
            assert {"train.loss_scale", "sweep.num_gpus", "wall_seconds"} & names
            assert "spec.yaml" in [file.path for file in store.client.list_artifacts(run.info.run_id)]
        else:
            assert {"batch_size", "num_gpus", "best_test_accuracy", "test_loss", NOTE} <= names
    starts = [line.partition(":")[0] for line in said]
    assert sorted(starts) == sorted(
        [
            *(f"MLflow refused {name}" for name in refused),
            "MLflow refused the study's data set",
            f"MLflow refused a trial's data set ({trials[0]['trial_id']})",
        ]
    )


def test_a_run_that_was_deleted_costs_one_request_a_batch_and_one_line(store, told):
    entries, said = told[2], []
    store._sender._say = said.append
    store.write(entries[:3])
    store.client.delete_run(runs_of(store)[0]["trial"].info.run_id)
    log, calls = store.client.log_batch, []
    store.client.log_batch = lambda *given, **named: (calls.append(0), log(*given, **named))
    store.write(entries[3:])
    assert len(calls) <= len(entries)
    assert any("deleted" in line or "active" in line for line in said)


def test_a_fault_of_ours_is_not_taken_for_a_refusal_of_mlflow(address, tmp_path, monkeypatch):
    """A refusal is logged and skipped for ever; what we got wrong must be told, and be sent later."""
    study, trials = tracked(tmp_path, "fault")
    store, cursor = MlflowStore(address, study), Cursor(tmp_path / "mlflow.cursor")
    monkeypatch.setattr("scalestudy.orchestration.tracking.writer.RETRY_SECONDS", (0.01,))
    monkeypatch.setattr("scalestudy.orchestration.tracking.mlflow_store.final_metrics", lambda *_: {}["no such key"])
    with pytest.raises(KeyError, match="no such key"):
        catch_up(store, Kept(entries_of(trials)), cursor)
    monkeypatch.undo()
    catch_up(MlflowStore(address, study), Kept(entries_of(trials)), cursor)
    runs = store.client.search_runs([store.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
