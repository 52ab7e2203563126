"""What a study's runs in MLflow say, from records alone."""

import json
from dataclasses import replace

import pytest

from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.groups.events import Ended, Origin, TrialError, World
from scalestudy.orchestration.tracking.run_content import (
    ORIGIN_TAGS,
    DataSet,
    answer_of,
    answer_params,
    final_metrics,
    flat_params,
    mlflow_name,
    note,
    origin_tags,
    trial_note,
    trial_params,
    trial_tags,
)
from scalestudy.training.data import SOURCES
from scalestudy.training.fingerprint import DataFacts, Fingerprint
from scalestudy.training.records import EpochRecord, epoch_metrics, find_metric
from tests.support.loop_studies import loop_study
from tests.support.recordings import SPEC, whole
from tests.support.synthetic_studies import TINY, spec_of, study_of, summary_of

PRICED = TINY.replace("accuracy: [0.8]", "accuracy: [0.8], price_per_gpu_hour: 3.6")


# --- a study's run ----------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_summary():
    summary = summary_of(PRICED)
    chosen = summary["recommendation"]["recommended"]
    answer = answer_of(summary)
    assert answer.cell == chosen["params"]
    assert answer.figures == {
        "best_test_accuracy": max(row["best_test_accuracy"]["high"] for row in summary["cells"]),
        "trials_planned": 4,
        "trials_ended": 4,
        "trials_failed": 0,
        "recommended_workers": chosen["num_gpus"],
        "recommended_batch_size": chosen["batch_size"],
        "recommended_learning_rate": chosen["learning_rate"],
        "recommended_target": 0.8,
        "recommended_seconds": chosen["seconds"],
        "recommended_worker_seconds": chosen["worker_seconds"],
        "recommended_cost": pytest.approx(chosen["worker_seconds"] / 1000),  # 3.6 an hour are 0.001 a second
    }
    assert {find_metric(name).name for name in answer.figures} == {*answer.figures, "best_test_<metric>"} - {
        "best_test_accuracy"
    }


def test_what_a_study_can_not_answer_is_left_out():
    nothing = answer_of(summary_of(TINY, endings={"*": "failed"}))
    assert nothing.cell == {}
    assert nothing.figures == {"trials_planned": 4, "trials_ended": 4, "trials_failed": 4}
    unpriced = answer_of(summary_of(TINY))
    assert "recommended_cost" not in unpriced.figures
    assert "recommended_seconds" in unpriced.figures


def test_of_an_error_the_smallest_value_is_the_best():
    summary = summary_of(TINY.replace("data: digits", "data: digits, metric: mse, metric_mode: min"))
    assert answer_of(summary).figures["best_test_mse"] == min(row["best_test_mse"]["low"] for row in summary["cells"])


def test_parameters_of_an_answer_are_written_once_and_another_answer_gets_a_number():
    first, second = {"num_gpus": 2, "learning_rate": 0.1}, {"num_gpus": 4, "learning_rate": 0.1}
    known = answer_params(first, {"sweep.num_gpus": "[2, 4]"})
    assert known == {"recommended.num_gpus": "2", "recommended.learning_rate": "0.1"}
    assert answer_params(first, known) == {}
    more = answer_params(second, known)
    assert more == {"recommended.2.num_gpus": "4", "recommended.2.learning_rate": "0.1"}
    known |= more
    assert answer_params(second, known) == answer_params(first, known) == answer_params({}, known) == {}


def test_the_note_is_the_answer_in_markdown():
    spec, _, _ = study_of(SPEC)
    lines = note(spec, summary_of(SPEC)).splitlines()
    assert lines[0] == "**A small one**"
    assert sum(line.startswith("- ") for line in lines) >= 1
    assert "report.html" in lines[-1]


def test_who_ran_it_from_what_is_told_in_mlflow_s_own_tags():
    whole_origin = Origin(user="ann", source="study.yaml", commit="abc", job="raysubmit_1")
    assert origin_tags(whole_origin) == {
        "mlflow.user": "ann",
        "mlflow.source.name": "study.yaml",
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": "abc",
        "scalestudy.job_id": "raysubmit_1",
    }
    assert origin_tags(Origin(source="study.yaml")) == {
        "mlflow.source.name": "study.yaml",
        "mlflow.source.type": "LOCAL",
    }
    assert set(ORIGIN_TAGS) == set(origin_tags(whole_origin))


# --- a trial's run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "params", "name"),
    [
        ("training", {"num_gpus": 2, "batch_size": 256, "learning_rate": 0.2, "seed": 0}, "w2 b256 lr.2 s0"),
        ("training", {"num_gpus": 16, "batch_size": 8192, "learning_rate": 1.5, "seed": 12}, "w16 b8192 lr1.5 s12"),
        ("training", {"num_gpus": 1, "batch_size": 32, "learning_rate": 1e-5, "seed": 0}, "w1 b32 lr1e-05 s0"),
        (
            "training",
            {
                "num_gpus": 1,
                "batch_size": 32,
                "learning_rate": 1,
                "seed": 0,
                "train.gradient_sync": "naive",
                "train.optimizer.momentum": 0.9,
            },
            "w1 b32 lr1 s0 gradient_sync=naive momentum=0.9",
        ),
        ("timing", {"num_gpus": 2, "batch_size": 64, "learning_rate": 0.1, "seed": 0}, "timing w2 b64"),
    ],
)
def test_a_run_s_name_says_most_in_its_first_letters(kind, params, name):
    assert mlflow_name(kind, params) == name


def test_runs_of_one_study_have_names_of_their_own():
    text = TINY.replace("learning_rate: [0.1, 0.2]", "learning_rate: [0.1, 0.2, 1.2], seed: [0, 1, 10]")
    trials = make_plan(spec_of(text)).trials
    assert len({mlflow_name(trial.kind, trial.params) for trial in trials}) == len(trials) == 18


def test_metrics_at_the_end():
    _, _, trials = study_of(SPEC)
    found = final_metrics(trials[0], (0.2, 0.99), ACCURACY)
    assert found["best_test_accuracy"] == max(epoch["test_accuracy"] for epoch in trials[0]["epochs"])
    assert "time_to_accuracy_0.2" in found
    assert not {"time_to_accuracy_0.99", "at_0.99_seconds"} & set(found), "the hardest target was not reached"
    assert [find_metric(name).name for name in found]
    broken = {**trials[0], "epochs": [], "startup_seconds": None}
    assert final_metrics(broken, (0.3,), ACCURACY).keys() == {"train_seconds", "wall_seconds"}


def test_a_trial_leads_with_its_time_to_the_hardest_target_and_its_best_value():
    _, _, trials = study_of(TINY)
    found = final_metrics(trials[-1], (0.3, 0.5), ACCURACY)
    assert sorted(found)[:3] == ["at_0.3_seconds", "at_0.5_seconds", "best_test_accuracy"]
    assert found["at_0.5_seconds"] == found["time_to_accuracy_0.5"] > found["time_to_accuracy_0.3"]


def test_a_trial_s_description_is_how_it_ended():
    seconds, best = {"at_0.5_seconds": 12.3}, {"best_test_accuracy": 0.87654}
    for facts, metrics, words in (
        ({}, {**seconds, **best}, "**12.3 s** to 0.5 test accuracy; best 0.877 in 2 epochs"),
        ({}, best, "0.5 test accuracy not reached; best 0.877 in 2 epochs"),
        (
            {"status": "out_of_memory", "epochs": (), "error": TrialError(kind="out_of_memory", message="no room")},
            {},
            "out of memory: no room; 0.5 test accuracy not reached",
        ),
    ):
        assert trial_note(end_with(**facts), metrics, (0.3, 0.5), ACCURACY, "epoch") == words
    assert trial_note(end_with(), best, (), ACCURACY, "evaluation") == "best 0.877 in 2 evaluations"


def end_with(**facts):
    """The end of a trial, with these facts."""
    _, _, trials = study_of(SPEC)
    return replace(Ended.from_facts(whole(trials[0])), **{"flags": (), **facts})


def test_tags_at_the_end():
    assert trial_tags(end_with(attempts=2)) == {"scalestudy.attempts": "2"}
    tags = trial_tags(end_with(flags=("a", "b"), error=TrialError(kind="exception", message="x" * 9_999)))
    assert tags["scalestudy.flags"] == "a, b"
    assert len(tags["scalestudy.error"]) == 1_000
    assert trial_tags(end_with(world=World(device="cuda", nodes=2)))["scalestudy.nodes"] == "2"
    on_gpus = World(device="cuda", nodes=1, backend="nccl", accelerator="A100")
    assert trial_tags(end_with(world=on_gpus)) == {
        "scalestudy.attempts": "1",
        "scalestudy.accelerator": "A100",
        "scalestudy.backend": "nccl",
    }


def test_what_training_chose_by_itself_is_among_the_tags():
    chosen = {"shards": [0.6, 0.4], "channels_last": True, "fused": False, "compressed_steps": 120, "kind": "amx"}
    assert trial_tags(end_with(details=chosen)) == {
        "scalestudy.shards": "[0.6, 0.4]",
        "scalestudy.channels_last": "true",
        "scalestudy.fused": "false",
        "scalestudy.compressed_steps": "120",
        "scalestudy.kind": "amx",
        "scalestudy.attempts": "1",
    }


def test_dotted_names():
    tree = {"train": {"epochs": 2, "optimizer": {"name": "sgd"}, "args": {}}, "other": 1}
    found = flat_params(tree, ("train",))
    assert found == [("train.epochs", 2), ("train.optimizer.name", "sgd"), ("train.args", {})]
    assert flat_params({"a": {"b": {"c": 1}, "b.c": 2}}, ("a",)) == [("a.b.c", 1), ("a.b.c", 2)], "none is lost"


# --- the data ---------------------------------------------------------------------------------------------------------


def data_of(name, **arguments):
    return DataSet.of({"data": name, "data_args": arguments})


def test_a_data_set_of_files_is_known_by_their_checksums(monkeypatch):
    found = data_of("mnist")
    assert (found.name, found.source_type) == ("mnist", "http")
    assert SOURCES["mnist"].mirrors[0] in found.source
    assert found == data_of("mnist")
    other = replace(SOURCES["mnist"], md5={"train-images-idx3-ubyte": "0" * 32})
    monkeypatch.setattr("scalestudy.orchestration.tracking.run_content.SOURCES", {"mnist": other})
    assert data_of("mnist").digest != found.digest


def test_arguments_too_long_for_mlflow_are_left_out_of_the_source_and_still_told_apart():
    found, other = (data_of("mine:load", files=["x" * 70_000], seed=seed) for seed in (0, 1))
    assert len(found.source) <= 65_535
    assert "mine:load" in json.loads(found.source)["tags"]["mlflow.source.name"]
    assert found.digest != other.digest
    assert len(data_of(f"mine:{'x' * 600}").name) <= 500


def test_another_data_set_is_known_by_its_name_and_arguments():
    found = data_of("my_module:load", train_samples=100)
    assert (found.name, found.source_type) == ("my_module:load", "code")
    assert "my_module:load" in found.source
    digests = {
        data.digest for data in (found, data_of("my_module:load"), data_of("my_module:other", train_samples=100))
    }
    assert len(digests) == 3
    assert max(map(len, digests)) <= 36, "MLflow takes no more"
    assert "scalestudy.training.data.builtin:load_digits" in data_of("digits").source


def test_the_user_s_code_and_examples_are_part_of_the_digest():
    facts = DataFacts(train=600, examples="e")
    runs = [
        None,
        Fingerprint(code={"my_module": {"my_module.py": "1"}}, data={"my_module:load": facts}),
        Fingerprint(code={"my_module": {"my_module.py": "2"}}, data={"my_module:load": facts}),
        Fingerprint(code={"my_module": {"my_module.py": "1"}}, data={"my_module:load": replace(facts, train=800)}),
    ]
    own = {"data": "my_module:load", "data_args": {}}
    digests = [DataSet.of(own, fingerprint).digest for fingerprint in runs]
    assert len({*digests}) == 4
    model = replace(runs[1], code={**runs[1].code, "net": {"net.py": "1"}})
    assert DataSet.of(own, model).digest == digests[1], "a model changes no data set"
    assert DataSet.of({"data": "digits", "data_args": {}}, runs[1]) == data_of("digits")


# --- a user's Ray Train loop ------------------------------------------------------------------------------------------


def test_the_runs_of_a_loop_have_what_it_obeys_and_measured():
    spec, plan, lines = loop_study()
    params = dict(trial_params(plan.trials[0]))
    assert params["workload.loop"] == "my_loop:train"
    assert (params["workload.loop_args.hidden"], params["workload.metrics.accuracy"]) == (8, "eval_acc")
    assert [name for name in params if name.startswith("train.")] == ["train.epochs"]
    assert not {"workload.model", "workload.data", "workload.loss"} & params.keys()
    told = dict(flat_params(spec.to_dict(), ("workload", "train")))
    assert not {"lenet", "digits"} & {value for value in (*params.values(), *told.values()) if isinstance(value, str)}
    metrics = epoch_metrics(EpochRecord.from_dict({"sync_bytes": None, **lines[0]["epochs"][0]}))
    assert set(metrics) == {"test_accuracy", "epoch_seconds", "learning_rate"}
    assert {"time_to_accuracy_0.8", "best_test_accuracy", "train_seconds"} <= final_metrics(
        lines[-1], spec.targets.accuracy, ACCURACY
    ).keys()
    answer = answer_of(summarise(spec, plan, lines))
    assert answer.figures["recommended_seconds"] > 0
    assert plan.trials[0].period_word == "report"


def test_the_data_of_a_loop_are_those_that_the_spec_makes():
    assert DataSet.all_of({"loop": "my:loop", "datasets": {}}) == []
    names = {"train": "mine:load", "valid": "mine:load", "test": "mine:other"}
    found = DataSet.all_of({"loop": "my:loop", "datasets": names})
    assert found == [data_of("mine:load"), data_of("mine:other")]
    assert DataSet.all_of({"data": "digits", "data_args": {}}) == [data_of("digits")]
    edited = Fingerprint(code={"mine": {"mine.py": "1"}})
    assert DataSet.all_of({"loop": "my:loop", "datasets": names}, edited)[0].digest != found[0].digest
