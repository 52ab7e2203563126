"""Runs of others as a study: its spec, its plan, the lines of its trials, and what the analysis says of them."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.analysis.answers import posterior
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.measures.progress import SET_UNKNOWN, TIMES_ALONE
from scalestudy.experiments.judging.own_study import read_study
from scalestudy.experiments.judging.reading import read_runs
from scalestudy.experiments.judging.taken import JudgedStudy, name_of, study_of
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.training.exceptions import InputError
from tests.support.runs_of_others import USUAL, curve, run, taken
from tests.support.worlds import TARGET, World


def study(recorded, *columns, target=0.8, given=(), **more) -> JudgedStudy:
    """The study of some runs, of which nothing is to be asked."""
    found, questions = taken(recorded, *columns, given=given, **more)
    assert questions == []
    return study_of(*read_runs(recorded, found), found, target, ["logs/runs.csv"])


def summary(of: JudgedStudy):
    return summarise(of.spec, of.plan, of.lines)


def test_a_line_has_what_was_done_between_evaluations():
    found = study([run({**USUAL, "gpu": "A100"}, curve(0.5, 0.9, 0.95), started=1e9, stopped=1e9 + 20)])
    [line] = found.lines
    assert line["params"] == {"num_gpus": 2, "batch_size": 64, "learning_rate": 0.1, "seed": 0}
    assert (line["status"], line["where"], line["train_seconds"]) == ("finished", "runs.csv, a", 15.0)
    assert line["world"]["accelerator"] == "A100"
    assert (line["started_at"], line["ended_at"]) == ("2001-09-09T01:46:40.000Z", "2001-09-09T01:47:00.000Z")
    assert line["epochs"] == [
        {"epoch": place, "steps": 10.0, "samples": 640.0, "train_seconds": 5.0, "test_val_acc": value}
        for place, value in enumerate((0.5, 0.9, 0.95), start=1)
    ]
    assert [trial.trial_id for trial in found.plan.trials] == [line["trial_id"]]


def test_the_spec_claims_nothing_that_is_not_known_and_is_read_back():
    spec = study([run(history=curve(0.5, 0.9))], given=["evaluation=excluded"]).spec
    assert set(spec.to_dict()) == {"version", "name", "description", "workload", "targets", "judged"}
    assert spec.to_dict()["workload"] == {"metric": "judged:val_acc", "metric_mode": "max"}
    assert spec.to_dict()["targets"]["val_acc"] == [0.8]
    again = parse_study(spec.to_yaml(), "spec.yaml")
    assert again == spec
    assert (again.evaluations, again.notes) == (2, [])


@pytest.mark.parametrize("metric", ["val/acc", "eval.Top-1 acc", 'a "quoted" ü, name acc', "test:acc"])
def test_a_metric_keeps_its_name(metric):
    recorded = [run({**USUAL, "seed": seed}, curve(0.5, 0.9, metric=metric), str(seed)) for seed in (0, 1)]
    found = study(recorded, metric=metric)
    assert parse_study(found.spec.to_yaml(), "spec.yaml") == found.spec
    told = summary(found)
    assert told["study"]["metric"] == {"name": metric, "mode": "max", "share": False, "named_by_others": True}
    assert told["cells"][0][f"test_{metric}"]["value"] == 0.9


@pytest.mark.parametrize(
    ("cut", "ways", "told"),
    [
        (0, "results", True),
        (2, "results", False),
        (2, "curves", True),
    ],
)
def test_runs_that_were_cut_leave_an_interval_where_others_show_the_way(cut, ways, told):
    """Who is cut is the one that is behind: what it would have taken can be told by the others' way there alone."""
    recorded = []
    for number, (batch, rate, seed) in enumerate(itertools.product((32, 64, 128), (0.1, 0.2), range(3))):
        params = {**USUAL, "global_batch_size": batch, "lr": rate, "seed": seed}
        is_cut = number < cut
        steps = 40 + number % 5
        if ways == "results":
            params |= {"num_steps": steps, "train_time": 0.1 * steps, "val_acc": 0.6 if is_cut else 0.81}
            history = []
        else:
            history = curve(*((0.3, 0.5) if is_cut else (0.3, 0.5, 0.6, 0.81, 0.82)), step=steps)
        recorded.append(run(params, history, name=str(number), ended="cut" if is_cut else "finished"))
    given = ["stop=target"] if ways == "results" else []
    choice = summary(study(recorded, given=given))["recommendation"]["recommended"]
    words = {each["kind"]: each["words"] for each in choice["caveats"]}
    assert choice["seconds"] > 0
    assert (choice["interval"] is not None) is told
    assert ("unseen" in words) is not told
    if not told:
        assert words["unseen"].startswith("2 trainings were stopped for being behind, and no other has evaluations")


def test_a_clock_that_runs_backwards_and_values_at_one_step_do_not_stop_it():
    rows = [*curve(0.5, 0.6, 0.7), {"global_step": 30, "train_time": 15.0, "val_acc": 0.75}]
    rows += [{"global_step": 40, "train_time": 2.0, "val_acc": 0.9}]
    [line] = study([run(history=rows)], "seconds=train_time").lines
    assert [(epoch["steps"], epoch["train_seconds"], epoch["test_val_acc"]) for epoch in line["epochs"]] == [
        (10, 5.0, 0.5),
        (10, 5.0, 0.6),
        (10, 5.0, 0.75),
        (10, None, 0.9),
    ]


@pytest.mark.parametrize(
    ("values", "ended", "status"),
    [
        ((0.5, 0.6), None, "finished"),
        ((0.5, 0.6), "cut", "stopped"),
        ((0.5, 0.6), "failed", "failed"),
        ((0.5, 0.6), "running", "finished"),
        ((0.5, float("nan")), "failed", "diverged"),
        ((0.5, float("inf")), None, "diverged"),
    ],
)
def test_how_a_run_ended(values, ended, status):
    found = study([run(history=curve(*values), ended=ended)])
    [line] = found.lines
    assert line["status"] == status
    words = [caveat["words"] for caveat in summary(found)["caveats"] if caveat["kind"] == "endings"]
    assert words == ([f"Of 1 run, 1 {status}."] if status in ("diverged", "failed") else [])
    json.dumps(line, allow_nan=False)


def test_runs_without_seeds_get_numbers_in_their_cell():
    values = {key: value for key, value in USUAL.items() if key != "seed"}
    recorded = [run({**values, "lr": rate}, curve(0.4, 0.5 + rate / 10), name) for name, rate in (("a", 1), ("b", 2))]
    recorded += [run({**values, "lr": 1}, curve(0.4, 0.7), "c")]
    recorded += [run({**USUAL, "lr": 1, "seed": 1}, curve(0.4, 0.8), "d")]
    assert [line["params"]["seed"] for line in study(recorded).lines] == [0, 0, 2, 1]


def test_a_run_that_comes_again_is_left_out():
    found = study([run(history=curve(0.5, 0.9), name=name) for name in ("a", "b")])
    assert [each.name for each in found.runs] == ["a"]
    assert [(each.where, each.why) for each in found.left_out] == [("runs.csv, b", "it is runs.csv, a again")]


def test_no_run_that_can_be_read_is_one_line():
    with pytest.raises(InputError) as error:
        study([run({**USUAL, "lr": 0}, curve(0.5, 0.6))])
    assert str(error.value) == (
        "SOURCE: logs/runs.csv: no run can be read: runs.csv, a: lr: 0: is no number above 0; "
        "say with --column and --set what is what"
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("logs/my sweep.csv", "judged-my-sweep"),
        ("mlflow:Digits (new)", "judged-Digits-new"),
        ("mlruns/", "judged-mlruns"),
        ("é", "judged-runs"),
        (f"{'x' * 200}.csv", f"judged-{'x' * 40}"),
    ],
)
def test_a_study_is_named_after_its_first_source(source, name):
    assert name_of([source, "other.csv"]) == name


def rising(steps, *, rate=0.02, upto=1.0):
    """A curve that reaches 0.8 after so many steps."""
    return [upto * 0.8 * made / steps if made < steps else 0.8 + rate for made in range(20, 401, 20)]


def sweep(*, progress=("global_step",), noise=0.05):
    """Runs at 2 numbers of workers, 3 batch sizes, 3 rates and 2 seeds, by a law of steps and one of a step's time."""
    generator, recorded = np.random.default_rng(0), []
    for workers in (1, 2):
        for batch in (32, 64, 128):
            for rate in (0.05, 0.1, 0.2):
                for seed in (0, 1):
                    off = np.log2(rate / 0.1) ** 2
                    steps = 100 * (1 + 64 / batch) * np.exp(0.2 * off + noise * generator.normal()) / 2
                    step = (0.01 + 0.0005 * batch / workers) * np.exp(noise * generator.normal())
                    every = 6400 / batch / 10  # a tenth of an epoch
                    rows = []
                    for place in range(1, 61):
                        made = every * place
                        row = {"global_step": made, "epoch": place / 10, "train_time": step * made}
                        row = {key: value for key, value in row.items() if key == "train_time" or key in progress}
                        rows.append({**row, "val_acc": 0.9 - 0.8 * np.exp(-np.log(8) * made / steps)})
                    values = {"num_gpus": workers, "global_batch_size": batch, "lr": rate, "seed": seed}
                    recorded.append(run(values, rows, f"{workers} {batch} {rate} {seed}"))
    return recorded


def times_of(told):
    return {row["label"]: row["seconds"] for row in told["time_to_target"]}


def test_epochs_of_an_unknown_set_give_the_times_that_a_known_one_gives():
    recorded = sweep(progress=("epoch",))
    unknown, known = (summary(study(recorded, given=given)) for given in ((), ("train_samples=6400",)))
    assert present(unknown["recommendation"]["recommended"])
    assert unknown["recommendation"]["recommended"]["label"] == known["recommendation"]["recommended"]["label"]
    assert times_of(unknown) == pytest.approx(times_of(known), rel=0.01)
    for row, other in zip(unknown["predictions"]["rows"], known["predictions"]["rows"], strict=True):
        assert row["step_seconds"] is None
        assert (row["num_gpus"], row["valid"]) == (other["num_gpus"], other["valid"])
        if row["valid"]:
            assert row["seconds_to_target"] == pytest.approx(other["seconds_to_target"], rel=0.05)
    for part in ("throughput_model", "statistical_efficiency"):
        assert (unknown[part]["why"], present(known[part])) == (SET_UNKNOWN, True)
    assert all(row["samples_per_second"]["why"] == SET_UNKNOWN for row in unknown["cells"])
    assert unknown["cells"][-1]["speedup"] == pytest.approx(known["cells"][-1]["speedup"])


def test_steps_and_epochs_give_the_same():
    by_steps = summary(study(sweep()))
    by_epochs = summary(study(sweep(progress=("epoch",)), given=["train_samples=6400"]))
    assert times_of(by_steps) == pytest.approx(times_of(by_epochs), rel=1e-3)
    assert present(by_steps["throughput_model"])


def test_times_alone_give_times_and_no_law():
    by_steps, alone = summary(study(sweep())), summary(study(sweep(progress=())))
    json.dumps(alone, allow_nan=False)
    assert present(alone["recommendation"]["recommended"])
    told, beside = times_of(alone), times_of(by_steps)
    assert all(told[label] == pytest.approx(beside[label], rel=0.15) for label in told)
    for part in ("throughput_model", "statistical_efficiency", "predictions", "lr_rule", "scaling"):
        assert alone[part] == {"value": None, "why": TIMES_ALONE}, part
    assert all(row["speedup"] is None or row["scaling"] == "base" for row in alone["timings"])
    assert [each for each in alone["recommendation"]["recommended"]["caveats"] if each["kind"] == "retrograde"] == []


def results(*, stop, metric=0.81):
    """Runs of which their results alone are known: those with two workers took half of the time."""
    recorded = [
        run(
            {**USUAL, "num_gpus": workers, "seed": seed, "train_time": 100 / workers + seed, "val_acc": metric},
            name=f"{workers} {seed}",
        )
        for workers in (1, 2)
        for seed in (0, 1, 2)
    ]
    return summary(study(recorded, given=[f"stop={stop}"]))


def test_results_of_runs_that_ended_at_the_target_are_arrivals():
    told = results(stop="target")
    assert [row["measured_seconds"] for row in told["time_to_target"]] == [101.0, 51.0]
    assert [row["upper_bound"] for row in told["time_to_target"]] == [False, False]
    fastest = told["recommendation"]["fastest"]
    assert (fastest["num_gpus"], fastest["seconds"]) == (2, pytest.approx(51, rel=0.05))


def test_points_of_convergence_need_no_clock():
    recorded = [
        run(
            {"global_batch_size": batch, "samples_to_converge": 64_000 + 100 * batch, "seed": seed, "acc": 1},
            name=f"{batch} {seed}",
        )
        for batch in (64, 128, 256)
        for seed in (0, 1)
    ]
    given = ("num_gpus=1", "learning_rate=1", "step_seconds=0.5")
    told = summary(study(recorded, metric="acc", target=1, given=given))
    assert [row["measured_seconds"] for row in told["time_to_target"]] == [550.0, 300.0, 175.0]
    assert told["statistical_efficiency"]["b_crit"]["value"] == pytest.approx(640, rel=0.1)


def test_results_of_runs_that_went_on_are_bounds_and_no_answer():
    told = results(stop="end")
    assert [(row["reached"], row["upper_bound"]) for row in told["time_to_target"]] == [(3, True), (3, True)]
    assert "has its result alone, so when it did is not known" in told["recommendation"]["fastest"]["why"]


def test_results_that_missed_the_target_are_none():
    told = results(stop="target", metric=0.7)
    assert [row["reached"] for row in told["time_to_target"]] == [0, 0]
    assert not present(told["recommendation"]["fastest"])


def test_a_harder_and_an_easier_target_of_results():
    recorded = [
        run({**USUAL, "train_time": 50, "val_acc": 0.81}),
        run({**USUAL, "num_gpus": 1, "train_time": 90, "val_acc": 0.81}, name="b"),
    ]
    found = study(recorded, given=["stop=target"])
    for target, reached, bound in ((0.7, 1, True), (0.8, 1, False), (0.9, 0, False)):
        spec = found.spec.model_copy(update={"targets": found.spec.targets.model_copy(update={"accuracy": (target,)})})
        rows = summarise(spec, found.plan, found.lines)["time_to_target"]
        assert [(row["reached"], row["upper_bound"]) for row in rows] == [(reached, bound)] * 2, target


def test_runs_that_learn_otherwise_with_other_workers_are_not_pooled():
    found = study(sweep())
    assert found.spec.judged
    cells = posterior.Posterior(found.spec, [])
    assert cells.spec.judged is not None
    told = summary(found)
    named = told["recommendation"]["recommended"]
    assert named["named"] == named["label"]  # with its workers: what it learns may depend on them


def test_folders_of_ours_are_a_source(tmp_path):
    world = World.draw(np.random.default_rng(3), noise=0.1, seeds=2)
    folder = world.write(tmp_path / "world-1")
    recorded = read_study(folder, world.spec)
    found = study(recorded, metric="accuracy", target=TARGET)
    assert len(found.runs) == len(world.trials())
    told, ours = summary(found), summarise(world.spec, world.plan, world.trials())
    assert told["recommendation"]["fastest"]["seconds"] == pytest.approx(
        ours["recommendation"]["fastest"]["seconds"], rel=0.1
    )
    diverged = replace(
        recorded[0], history=[*recorded[0].history, {**recorded[0].history[-1], "accuracy": float("nan")}]
    )
    assert study([diverged, *recorded[1:]], metric="accuracy", target=TARGET).lines[0]["status"] in (
        "diverged",
        "finished",
    )
