"""What the whole analysis makes of trainings that were stopped, of several nodes and of periods of unequal length."""

import copy

import pytest

from scalestudy.experiments.analysis import answer_lines, summarise
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.targets import target_row
from scalestudy.experiments.analysis.measures.usable import cut_caveats
from scalestudy.experiments.analysis.text.answer import measured_when
from scalestudy.experiments.plan.timing_runs import step_key, timing_trials
from tests.support.synthetic_studies import study_of, summary_of, words_of
from tests.support.timed_studies import stopped_after
from tests.support.trials import Law, across_nodes, make_timings, slow_down

# --- trainings that a scheduler has stopped: their timings, targets that they had not met, best rates -----------------

STOPPED = """
    name: x
    train: {epochs: 9}
    targets: {accuracy: [0.5]}
    search: {scheduler: asha}
    sweep: {num_gpus: [1, 2], batch_size: [64], learning_rate: [0.1, 0.2, 0.4], seed: [0, 1, 2]}
"""
ALL, ONE_LEFT = 0.1, 0.4


def stopped(trial):
    params = trial["params"]
    early = params["learning_rate"] == ALL or (params["learning_rate"] == ONE_LEFT and params["seed"] != 0)
    return stopped_after(trial, 1) if early else trial


def stopped_study(law):
    spec, plan, trials = study_of(STOPPED, law)
    return spec, plan, [stopped(trial) for trial in trials]


def slow_first(trials):
    for trial in trials:
        slow_down({"epochs": trial["epochs"][:1]}, 4)
    return trials


def rows_of(summary, key="cells"):
    return {row["label"]: row for row in summary[key]}


def test_their_first_epoch_is_left_out_of_timings_as_their_siblings_is():
    spec, plan, trials = stopped_study(Law())
    truth = summarise(spec, plan, trials)
    found = summarise(spec, plan, slow_first(trials))
    assert [row["epoch_seconds"] for row in found["timings"]] == [row["epoch_seconds"] for row in truth["timings"]]
    assert [row["speedup"] for row in found["timings"]] == [row["speedup"] for row in truth["timings"]]
    scatters = [row["scatter"]["seconds"]["value"] for row in found["timings"]]
    assert all(value is None or value == pytest.approx(0) for value in scatters)
    assert not [verdict for verdict in found["verdicts"] if verdict["cause"] == "disturbed"]
    assert "stopped at their first evaluation" in rows_of(found)["workers=1 batch=64 lr=0.1"]["epoch_seconds"]["why"]


def test_one_stopped_after_two_epochs_is_timed_by_its_second():
    spec, plan, trials = stopped_study(Law())
    first, *_ = trials
    assert first["params"]["learning_rate"] == ALL
    whole = stopped_after(study_of(STOPPED, Law())[2][0], 2)
    (cell, *_) = gather(plan, slow_first([whole, *trials[1:]]), ACCURACY)
    row = rows_of(summarise(spec, plan, [whole, *trials[1:]]))[cell.label]
    assert row["epoch_seconds"]["value"] == pytest.approx(Law().epoch_seconds(1, 64))


def test_without_longer_siblings_the_first_epoch_is_all_there_is():
    spec, plan, trials = study_of(STOPPED)
    found = summarise(spec, plan, [stopped_after(trial, 1) for trial in trials])
    assert all(row["epoch_seconds"]["n"] == 3 for row in found["cells"])


def test_of_those_that_had_not_met_the_target_it_is_known_how_long_they_had_not():
    rows = rows_of(summarise(*stopped_study(Law(learning=90))), "time_to_target")
    # 0.985 - 0.885 exp(-90 * 0.4 / 64 e) is 0.487 after one epoch and 0.698 after two
    left = rows["workers=1 batch=64 lr=0.4"]
    assert (left["n_seeds"], left["reached"], left["censored"], left["cut"]) == (3, 1, 2, 2)
    assert left["seconds"] == pytest.approx(left["measured_seconds"], rel=0.1), "the seed that went on is the median"
    none = rows["workers=1 batch=64 lr=0.1"]
    assert (none["n_seeds"], none["reached"], none["censored"], none["seconds"]) == (3, 0, 3, None)
    assert none["why"] == f"3 of 3 seeds did not reach 0.5 within {Law().epoch_seconds(1, 64):.3g} s"


def test_a_seed_that_had_met_the_target_counts():
    spec, plan, trials = study_of(STOPPED, Law(learning=900))
    for epochs, counted in ((1, (0, 3)), (2, (3, 0))):  # one evaluation that meets it does not yet reach it
        rows = rows_of(summarise(spec, plan, [stopped_after(trial, epochs) for trial in trials]), "time_to_target")
        assert (rows["workers=1 batch=64 lr=0.4"]["reached"], rows["workers=1 batch=64 lr=0.4"]["censored"]) == counted


def test_the_best_rate_is_that_of_the_seeds_that_went_on():
    summary = summarise(*stopped_study(Law(learning=90)))
    (point,) = summary["statistical_efficiency"]["points"]
    assert (point["learning_rate"], point["edge"], point["n"], point["stopped"]) == (0.4, "highest", 1, 2)
    assert point["rates"] == 3  # 0.1 was tried, though none of its seeds went on
    assert summary["recommendation"]["fastest"]["learning_rate"] == 0.4
    assert "2 of 3 seeds did not reach the target, 2 of which were stopped before their end." in words_of(
        summary["recommendation"]["fastest"]
    )


def test_a_rate_that_was_given_up_is_a_rate_that_was_tried():
    spec, plan, trials = study_of(STOPPED, Law(learning=90))
    ends = [stopped_after(trial, 1) if trial["params"]["learning_rate"] != 0.2 else trial for trial in trials]
    (point,) = summarise(spec, plan, ends)["statistical_efficiency"]["points"]
    assert (point["learning_rate"], point["edge"], point["rates"]) == (0.2, None, 3)


def test_rows_say_how_many_and_after_how_many_epochs():
    summary = summarise(*stopped_study(Law()))
    assert rows_of(summary)["workers=1 batch=64 lr=0.4"]["stopped_after"] == [1, 1]
    assert rows_of(summary)["workers=1 batch=64 lr=0.2"]["stopped_after"] == []
    assert cut_caveats([]) == []


def test_trainings_that_stopped_at_the_target_say_so_and_are_compared_by_their_times_alone():
    spec, plan, trials = study_of(STOPPED.replace("scheduler: asha", "method: grid"), Law(learning=90))
    # 0.985 - 0.885 exp(-90 * 0.4 / 64 e) is 0.487, 0.698, 0.821: the third epoch confirms that 0.5 is reached
    ends = [
        {**stopped_after(trial, 3), "status": "at_target"} if trial["params"]["learning_rate"] == 0.4 else trial
        for trial in trials
    ]
    whole, cut = (summarise(spec, plan, each) for each in (trials, ends))
    label = "workers=1 batch=64 lr=0.4"
    row, same = rows_of(cut, "time_to_target")[label], rows_of(whole, "time_to_target")[label]
    assert (row["measured_seconds"], row["reached"], row["censored"]) == (same["measured_seconds"], 3, 0)
    assert (rows_of(cut)[label]["trials"]["at_target"], rows_of(cut)[label]["stopped_after"]) == (3, [3, 3, 3])
    assert cut["recommendation"]["best_accuracy"]["why"].startswith("trainings stopped at the target")
    assert not cut["failures"]
    harder = target_row(gather(plan, ends, ACCURACY)[2], 0.9, confirmed=0.8)
    assert (harder["reached"], harder["censored"]) == (0, 3), "whether they would have got there is not known"


def test_the_best_metric_says_where_it_was_measured():
    """Every trial of the best cell was stopped after its third epoch; of another, none was."""
    spec, plan, trials = study_of(STOPPED.replace("[0.5]", "[]"), Law())
    assert measured_when(summarise(spec, plan, trials)["recommendation"]["best_accuracy"]) == "at the last evaluation"
    cut = [stopped_after(trial, 3) for trial in trials]
    found = summarise(spec, plan, cut)
    when = "at the last evaluation, or where trials were stopped (after 3)"
    assert measured_when(found["recommendation"]["best_accuracy"]) == when
    assert any(line.endswith(f"{when}.") for line in answer_lines(found))


# --- trials on several nodes ------------------------------------------------------------------------------------------

SEVERAL = """
name: several
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2, 4], batch_size: [32, 64], learning_rate: [0.1, 0.2], seed: [0, 1]}
targets: {accuracy: [0.8]}
"""


def on_two_nodes(spans):
    """The summary of the study. spans: by the parameters of a trial, whether its workers were on two nodes."""
    return summary_of(SEVERAL, change=lambda trial: spans(trial["params"]) and across_nodes(trial))


@pytest.fixture(scope="module")
def calm():
    """The summary of the study on one node."""
    return summary_of(SEVERAL)


def times_in(summary):
    """All that rests on the times of single trials."""
    cells = [
        {
            **{key: row[key]["value"] for key in ("epoch_seconds", "samples_per_second")},
            **{key: row[key] for key in ("speedup", "efficiency")},
            **row["step_seconds"],
        }
        for row in summary["cells"]
    ]
    targets = [
        {key: row[key] for key in ("measured_seconds", "n_seeds", "reached")} for row in summary["time_to_target"]
    ]
    return cells, targets


def test_times_on_one_node_are_never_pooled_with_times_on_two(calm):
    mixed = on_two_nodes(lambda params: params["num_gpus"] == 2 and params["seed"] == 1)
    for found, kept in zip(times_in(mixed), times_in(calm), strict=True):
        assert found == [pytest.approx(row) for row in kept]
    assert not any("nodes" in row for row in mixed["cells"])
    assert mixed["recommendation"]["recommended"]["label"] == calm["recommendation"]["recommended"]["label"]
    # the law of a step's time tells one node from two
    law = mixed["throughput_model"]
    points = {tuple(point[key] for key in ("num_gpus", "batch_size", "nodes")): point for point in law["points"]}
    assert points.keys() >= {(2, 32, 1), (2, 32, 2)}
    assert points[2, 32, 2]["measured_seconds"] > 2.5 * points[2, 32, 1]["measured_seconds"]


def test_cells_of_one_size_on_one_node_and_on_two_have_the_timing_row_of_one(calm):
    mixed = on_two_nodes(lambda params: params["num_gpus"] == 2 and params["learning_rate"] == 0.2)
    for found, kept in zip(mixed["timings"], calm["timings"], strict=True):
        assert not found["across_nodes"]
        assert found["epoch_seconds"]["value"] == pytest.approx(kept["epoch_seconds"]["value"])
        assert found["speedup"] == pytest.approx(kept["speedup"])
    assert {row["label"]: row["nodes"] for row in mixed["cells"] if "nodes" in row} == {
        f"workers=2 batch={size} lr=0.2": 2 for size in (32, 64)
    }


def test_a_cell_that_only_ran_on_several_nodes_has_those_times(calm):
    spanning = on_two_nodes(lambda params: params["num_gpus"] == 4)
    for found, kept in zip(spanning["cells"], calm["cells"], strict=True):
        spans = found["params"]["num_gpus"] == 4
        assert found.get("nodes", 1) == (2 if spans else 1)
        slower = 3.0 if spans else 1.0
        assert found["epoch_seconds"]["value"] == pytest.approx(slower * kept["epoch_seconds"]["value"])


@pytest.mark.parametrize(
    ("of_seeds", "named"),
    [(["A100", "A100"], "A100"), (["A100", "T4"], "A100/T4"), ([None, None], None), ([None, "T4"], "T4")],
)
def test_two_types_of_gpus_are_a_caveat_and_one_is_only_named(of_seeds, named):
    def change(trial):
        if kind := of_seeds[trial["params"]["seed"]]:
            trial["world"]["accelerator"] = kind

    found = summary_of(SEVERAL, change=change)
    assert found["study"].get("accelerator") == named
    assert ("accelerators" in [each["kind"] for each in found["caveats"]]) == (named == "A100/T4")


@pytest.mark.parametrize(
    ("of_seeds", "mixed"),
    [
        ([{"mine": ["a"]}, {"mine": ["a"]}], False),
        ([{"mine": ["a"]}, {"mine": ["b"]}], True),
        ([{"mine": ["a"]}, {"mine": ["a", "b"]}], True),
        ([{"mine": ["a"], "mine:load": ["d"]}, {"mine": ["a"], "mine:load": ["e"]}], True),
        ([{"mine": ["a"]}, {"lions": ["b"], "mine": ["a"]}], False),
        ([None, {"mine": ["b"]}], False),
    ],
)
def test_trials_of_different_code_or_data_are_a_caveat(of_seeds, mixed):
    def change(trial):
        if fingerprint := of_seeds[trial["params"]["seed"]]:
            trial["fingerprint"] = fingerprint

    found = summary_of(SEVERAL, change=change)
    assert ("versions" in [each["kind"] for each in found["caveats"]]) == mixed
    assert any("different versions of mine" in line for line in answer_lines(found)) == mixed


def test_a_trial_that_failed_before_its_code_was_mended_is_not_compared():
    def change(trial):
        failed = trial["params"]["seed"] == 0
        trial.update(fingerprint={"mine": [str(failed)]}, **({"status": "failed", "epochs": []} if failed else {}))

    assert "versions" not in [each["kind"] for each in summary_of(SEVERAL, change=change)["caveats"]]


def test_timing_runs_on_one_node_stand_before_those_on_two():
    text = "resources: {device: cuda}\n" + SEVERAL
    spec, plan, trials = study_of(text, device="cuda", flags={"*": ["shared_node"]})
    runs = make_timings(timing_trials(spec, plan.trials, {trial["trial_id"]: trial for trial in trials}), Law())
    calm = summarise(spec, plan, [*trials, *runs])
    first = {}
    for run in runs:
        first.setdefault(step_key(run["params"]), run["trial_id"])
    repeats = {run["trial_id"] for run in runs if run["params"]["num_gpus"] == 2} - set(first.values())
    second = copy.deepcopy(runs)
    for run in second:
        if run["trial_id"] in repeats:
            across_nodes(run)
    assert second != runs
    mixed = summarise(spec, plan, [*trials, *second])
    for found, kept in zip(times_in(mixed), times_in(calm), strict=True):
        assert found == [pytest.approx(row) for row in kept]
    (size,) = [row for row in mixed["timings"] if (row["params"]["num_gpus"], row["params"]["batch_size"]) == (2, 32)]
    assert (size["across_nodes"], size["timed_apart"]) == (False, True)


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        ("{steps: 50, eval_every: {steps: 20}}", [20, 20, 10]),
        ("{epochs: 5, eval_every: {epochs: 2}}", [40, 40, 20]),
        ("{tokens: 4488, eval_every: {tokens: 408}}", [1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 2]),
    ],
)
def test_periods_of_unequal_length_tell_the_same_time_of_a_step(train, steps):
    """A step of N workers takes 1/N s; the metric meets 0.5 at the second evaluation, and at the third."""
    spec, plan, trials = study_of(f"name: x\ntrain: {train}\n{UNEQUAL}", Law(noise=0))
    for trial in trials:
        second = 1 / trial["params"]["num_gpus"]
        first = trial["epochs"][0]
        trial["epochs"] = [
            {
                **first,
                "epoch": number,
                "steps": count,
                "samples": 32 * count,
                "train_seconds": count * second,
                "samples_per_second": 32 / second,
                "test_accuracy": 0.3 + 0.1 * number,
            }
            for number, count in enumerate(steps, start=1)
        ]
        trial["train_seconds"] = sum(steps) * second
    summary = summarise(spec, plan, trials)
    for row in summary["cells"]:
        workers = row["params"]["num_gpus"]
        assert row["epoch_seconds"]["value"] == pytest.approx(max(steps) / workers)
        assert row["speedup"] == pytest.approx(workers)
    for row in summary["time_to_target"]:
        expected = sum(steps[:2]) / row["params"]["num_gpus"]
        assert row["measured_seconds"] == pytest.approx(expected)
        # two workers in half the time are at the edge of what the law of a step allows
        assert row["seconds"] == pytest.approx(expected, rel=0.03)


UNEQUAL = """
workload: {task: "my_task:Task"}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1], seed: [0]}
targets: {accuracy: [0.5]}
"""
