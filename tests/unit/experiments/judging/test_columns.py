"""Which column says what, and what is asked."""

import pytest

from scalestudy.experiments.judging.columns import clock_of, mode_of, number_of, seconds_of
from scalestudy.training.exceptions import InputError
from tests.support.runs_of_others import USUAL, curve, run, taken


def asked(runs, *columns, **more):
    """The questions, each with its options."""
    _, questions = taken(runs, *columns, **more)
    return {question.words.partition(":")[0].partition(" (")[0]: list(question.answers) for question in questions}


@pytest.mark.parametrize(
    ("role", "name"),
    [
        *(
            ("num_gpus", name)
            for name in ("num_gpus", "n_gpu", "world_size", "config/world_size", "GPUs", "nGpus", "n_devices")
        ),
        *(("learning_rate", name) for name in ("lr", "learning_rate", "optimizer.lr", "learningRate", "Learning Rate")),
        *(("batch_size", name) for name in ("global_batch_size", "total_batch_size", "effectiveBatchSize")),
        *(("seed", name) for name in ("seed", "random_seed", "hparams/seed")),
    ],
)
def test_a_column_is_found_by_its_name(role, name):
    usual = {"num_gpus": "num_gpus", "learning_rate": "lr", "batch_size": "global_batch_size", "seed": "seed"}
    values = {(name if usual[role] == key else key): value for key, value in USUAL.items()}
    columns, questions = taken([run(values, curve(0.5, 0.9))])
    assert (columns.names[role], questions) == (name, [])


def test_nothing_is_asked_of_clear_runs_and_the_table_says_what_was_taken():
    columns, questions = taken([run(history=curve(0.5, 0.9))])
    assert questions == []
    assert [row[:2] for row in columns.rows()] == [
        ("metric", "val_acc"),
        ("num_gpus", "num_gpus"),
        ("batch_size", "global_batch_size"),
        ("learning_rate", "lr"),
        ("seed", "seed"),
        ("step", "global_step"),
        ("seconds", "train_time"),
    ]
    assert columns.evaluation == "excluded"


def test_a_batch_of_several_workers_is_asked_for():
    values = {"num_gpus": 2, "batch_size": 64, "lr": 0.1}
    options = {"batch_size": ["--column batch_size=batch_size", "--column device_batch_size=batch_size"]}
    assert asked([run(values, curve(0.5, 0.6))]) == options
    assert asked([run({**values, "num_gpus": 1}, curve(0.5, 0.6))]) == {}
    assert asked([run({**values, "num_gpus": 1, "grad_accum": 4}, curve(0.5, 0.6))]) == options
    for answer in options["batch_size"]:
        assert asked([run(values, curve(0.5, 0.6))], answer.split()[1]) == {}


def test_what_a_batch_is_of_is_asked_beside_how_many_workers_there_are():
    assert list(asked([run({"ranks": 2, "batch_size": 64, "lr": 0.1}, curve(0.5, 0.6))])) == ["num_gpus", "batch_size"]
    assert asked([run({"batch_size": 64, "lr": 0.1}, curve(0.5, 0.6))], given=["num_gpus=1"]) == {}


@pytest.mark.parametrize("name", ["rng", "repeat", "config/replicate", "Rep"])
def test_what_may_be_a_seed_or_a_setting_is_asked_for(name):
    runs = [run({key: value for key, value in USUAL.items() if key != "seed"} | {name: 1}, curve(0.5, 0.6))]
    assert asked(runs) == {"seed": [f"--column seed={name}", f"--column setting={name}"]}
    assert taken(runs, f"seed={name}")[0].names["seed"] == name
    columns, questions = taken(runs, f"setting={name}")
    assert ("seed" in columns.names, questions) == (False, [])
    assert ("setting", name, "runs that differ in it are compared apart") in columns.rows([name])
    assert asked([run(USUAL | {name: 1}, curve(0.5, 0.6))]) == {}, "a column is called seed"


def test_the_batch_of_a_device_needs_no_question():
    columns, questions = taken(
        [run({"num_gpus": 2, "per_device_train_batch_size": 16, "grad_accum": 4, "lr": 1}, curve(0.5, 0.6))]
    )
    assert questions == []
    assert (columns.names["device_batch_size"], columns.names["accumulation"]) == (
        "per_device_train_batch_size",
        "grad_accum",
    )


def test_what_may_be_workers_that_load_data_is_asked_for():
    values = {"num_workers": 4, "global_batch_size": 64, "lr": 0.1}
    assert asked([run(values, curve(0.5, 0.6))]) == {
        "num_gpus": ["--column num_gpus=num_workers", "--set num_gpus=VALUE"]
    }
    assert asked([run({**values, "n_gpu": 2}, curve(0.5, 0.6))]) == {}


def test_what_no_column_says_is_asked_for():
    assert asked([run({"lr": 0.1}, curve(0.5, 0.6))]) == {
        "num_gpus": ["--column num_gpus=NAME", "--set num_gpus=VALUE"],
        "batch_size": [
            "--column device_batch_size=NAME",
            "--column batch_size=NAME",
            "--set batch_size=VALUE",
        ],
    }
    assert asked([run({"lr": 0.1}, curve(0.5, 0.6))], given=["num_gpus=1", "batch_size=8"]) == {}


def test_a_question_that_wants_a_name_lists_the_columns_that_it_may_be():
    history = [{**row, "took": 5.0 * place} for place, row in enumerate(curve(0.5, 0.6), start=1)]
    history = [{key: value for key, value in row.items() if key != "train_time"} for row in history]
    _, questions = taken([run({"lr": 0.1, "chunk": 64, "ranks": 2, "optimizer": "sgd"}, history)])
    assert [question.names for question in questions] == [("lr", "chunk", "ranks")] * 2 + [("global_step", "took")]


def test_a_word_is_no_rate_where_another_column_has_a_number():
    """As scikit-learn has them: the schedule's name, and the rate."""
    values = {"num_gpus": 1, "batch_size": 64, "learning_rate": "constant", "learning_rate_init": 0.1}
    columns, questions = taken([run(values, curve(0.5, 0.6))])
    assert (columns.names["learning_rate"], questions) == ("learning_rate_init", [])
    del values["learning_rate_init"]
    assert taken([run(values, curve(0.5, 0.6))])[0].names["learning_rate"] == "learning_rate"


def test_two_columns_of_one_role_are_asked_for_unless_they_say_the_same():
    values = {**USUAL, "learning_rate": 0.2}
    assert asked([run(values, curve(0.5, 0.6))]) == {
        "learning_rate": ["--column learning_rate=lr", "--column learning_rate=learning_rate"]
    }
    assert asked([run({**values, "learning_rate": 0.1}, curve(0.5, 0.6))]) == {}
    assert asked([run(values, curve(0.5, 0.6))], "learning_rate=lr") == {}


def test_a_rate_that_changes_within_a_run_is_asked_for_unless_another_does_not():
    history = [{**row, "lr": 0.1 / place} for place, row in enumerate(curve(0.5, 0.6), start=1)]
    values = {key: value for key, value in USUAL.items() if key != "lr"}
    assert list(asked([run(values, history)])) == ["learning_rate"]
    columns, questions = taken([run({**values, "base_lr": 0.1}, history)])
    assert (columns.names["learning_rate"], questions) == ("base_lr", [])


def timed(name, *values):
    history = [{"global_step": 10 * place, name: value, "val_acc": 0.5} for place, value in enumerate(values, start=1)]
    return [run(history=history)]


@pytest.mark.parametrize(
    ("name", "values", "role", "evaluation"),
    [
        ("_runtime", (5, 10, 15), "seconds", "included"),
        ("time_total_s", (5, 10, 15), "seconds", "included"),
        ("train_time", (5, 10, 15), "seconds", "excluded"),
        ("_timestamp", (1.7e9, 1.7e9 + 5, 1.7e9 + 10), "timestamp", "included"),
        ("wall_time", (1.7e9, 1.7e9 + 5, 1.7e9 + 10), "timestamp", "included"),
        ("timestamp", ("2026-01-01T00:00:05", "2026-01-01T00:00:10", "2026-01-01T00:00:15"), "timestamp", "included"),
        ("time_this_iter_s", (5, 5, 5), "period_seconds", "included"),
    ],
)
def test_a_clock_is_read_by_its_name_and_values(name, values, role, evaluation):
    columns, questions = taken(timed(name, *values))
    assert (columns.names[role], columns.evaluation, questions) == (name, evaluation, [])


def test_a_clock_that_may_be_several_is_asked_for():
    assert asked(timed("train_time", 5, 5.1, 5, 4.9, 5)) == {
        "seconds": ["--column period_seconds=train_time", "--column seconds=train_time"]
    }
    assert asked(timed("train_time", 50_000, 50_005, 50_010)) == {
        "seconds": ["--column timestamp=train_time", "--column seconds=train_time"]
    }
    assert asked(timed("time", 5, 10, 15)) == {"evaluation": ["--set evaluation=included", "--set evaluation=excluded"]}
    assert list(asked(timed("other", 5, 10, 15))) == ["seconds"]
    assert asked(timed("other", 5, 10, 15), "seconds=other", given=["evaluation=included"]) == {}


def test_the_unit_of_a_clock_is_in_its_name():
    for name, unit in (("train_time_ms", 0.001), ("train_time (min)", 60), ("Train Time (h)", 3600), ("train_time", 1)):
        columns, _ = taken(timed(name, 5, 10, 15))
        assert columns.unit == unit, name


def test_a_count_of_evaluations_is_no_step():
    history = [{"step": place, "train_time": place, "val_acc": 0.5} for place in range(1, 5)]
    columns, questions = taken([run(history=history)])
    assert ("step" not in columns.names, questions) == (True, [])
    assert "step: counts evaluations" in columns.notes["not taken"]
    columns, _ = taken([run(history=[{**row, "step": 100 * row["step"]} for row in history])])
    assert columns.names["step"] == "step"


def test_epochs_that_count_from_0_are_seen():
    first = [{"epoch": place, "train_time": 5.0 * (place + 1), "val_acc": 0.5} for place in range(4)]
    before = [{**row, "train_time": 5.0 * place + 0.01} for place, row in enumerate(first)]
    assert taken([run(history=first)])[0].first_epoch == 1
    assert taken([run(history=before)])[0].first_epoch == 0  # evaluated once before the training
    assert taken([run(history=[{**row, "epoch": row["epoch"] + 1} for row in first])])[0].first_epoch == 0


def test_whether_a_run_ended_at_the_target_is_asked_for_where_its_result_alone_is_known():
    alone = [run({**USUAL, "train_time": 50, "val_acc": 0.9})]
    assert asked(alone) == {"stop": ["--set stop=target", "--set stop=end"]}
    columns, questions = taken(
        [run({**USUAL, "train_time_to_target": 50, "val_acc": 0.9})], "seconds=train_time_to_target"
    )
    assert (columns.stops, [question.words for question in questions]) == (
        True,
        ["evaluation: do the times of train_time_to_target include it?"],
    )


def test_one_evaluation_a_run_is_its_result_wherever_the_source_keeps_it():
    once = [run({**USUAL, "seed": seed}, curve(0.9), str(seed)) for seed in (0, 1)]
    assert asked(once) == {"stop": ["--set stop=target", "--set stop=end"]}
    assert taken(once, given=["stop=target"])[0].results
    assert asked([*once, run({**USUAL, "seed": 2}, curve(0.5, 0.9))]) == {}


def test_the_budget_of_runs_that_ended_at_the_target_is_no_progress():
    alone = [run({**USUAL, "epochs": 10, "train_time": at, "val_acc": 0.9}, name=str(at)) for at in (50, 60)]
    assert "epoch" not in taken(alone, given=["stop=target"])[0].names
    assert "epoch" in taken(alone, given=["stop=end"])[0].names
    arrived = [run({**USUAL, "epochs": at / 10, "train_time": at, "val_acc": 0.9}, name=str(at)) for at in (50, 60)]
    assert "epoch" in taken(arrived, given=["stop=target"])[0].names


def test_a_metric_is_found_or_named():
    runs = [run(history=[{**row, "train/acc": 0.4} for row in curve(0.5, 0.6, metric="val/acc")])]
    assert taken(runs, metric="val/acc")[0].metric == "val/acc"
    assert taken(runs, metric="val_acc")[0].metric == "val/acc"
    with pytest.raises(InputError, match=r"--target: acc: may be a/acc or b/acc; write the whole name"):
        taken([run(history=[{**row, "a/acc": 1, "b/acc": 1} for row in curve(0.5)])], metric="acc")
    with pytest.raises(InputError, match=r"--target: top5: no run has this metric; the columns are num_gpus.*val/acc"):
        taken(runs, metric="top5")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "min") for name in ("loss", "val_loss", "eval/perplexity", "valLoss", "test-error", "wer", "bpb")),
        *((name, "max") for name in ("val_acc", "accuracy", "eval/f1", "mAP", "r2", "reward", "top1")),
        *((name, None) for name in ("metric", "lossless", "map_loss", "value")),
    ],
)
def test_the_mode_follows_from_the_name(name, mode):
    assert mode_of(name) == mode


def test_a_mode_that_no_name_says_is_asked_for():
    history = curve(0.5, 0.6, metric="value")
    assert asked([run(history=history)], metric="value") == {
        "value": ["--mode max", "--mode min"],
    }
    assert asked([run(history=history)], metric="value", mode="min") == {}


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        (["bs"], [], "--column: bs: is not ROLE=NAME"),
        (["batch=bs"], [], "--column: batch: is not a role"),
        (["batch_size=none"], [], "--column: none: no run has this column"),
        (["ignored=none"], [], "--column: none: no run has this column"),
        ([], ["num_gpus"], "--set: num_gpus: is not KEY=VALUE"),
        ([], ["gpus=2"], "--set: gpus: can't be set"),
        ([], ["num_gpus=two"], "--set: num_gpus: two: is not a whole number above 0"),
        ([], ["num_gpus=0"], "--set: num_gpus: 0: is not a whole number above 0"),
        ([], ["learning_rate=nan"], "--set: learning_rate: nan: is not a number above 0"),
        ([], ["stop=never"], "--set: stop: never: is not target or end; choose target or end"),
    ],
)
def test_what_is_said_wrongly_is_refused(columns, given, said):
    with pytest.raises(InputError) as error:
        taken([run(history=curve(0.5, 0.6))], *columns, given=given)
    assert str(error.value).startswith(said)


def test_numbers_and_times_of_text():
    assert [number_of(each) for each in ("1e-3", 2, True, "two", None, "nan", "inf")] == [
        *(0.001, 2.0, None, None, None, None),
        float("inf"),
    ]
    assert [seconds_of(each) for each in ("1:02:03", "02:03.5", 7, "7 s")] == [3723.0, 123.5, 7.0, None]
    assert [clock_of(each) for each in (1.7e9, 1.7e12, "2023-11-14T22:13:20Z", "now")] == [1.7e9, 1.7e9, 1.7e9, None]
