"""The schedule that `plan` foretells of a spec, and how it is written."""

import json
import os

import pytest

from scalestudy.experiments.plan.estimate import estimate
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.cluster.nodes import ClusterNode
from scalestudy.orchestration.commands import plan as plan_module
from scalestudy.orchestration.commands.plan import (
    bar,
    cost_lines,
    duration_text,
    forecast,
    forecast_lines,
    gpus_here,
    machines,
    plan_study,
)
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.opening import open_new
from scalestudy.orchestration.study.schedule import GroupSpan, TrialSpan
from tests.support.studies import left_behind, scalestudy, write_spec
from tests.support.synthetic_studies import folder_of, spec_of, study_of

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2]}
"""


def two_cores():
    return [ClusterNode(node_id="a", host="a", cpus=2.0, gpus=0.0)]


def test_a_rehearsal_tells_the_loss_of_its_step(tmp_path):
    spec = write_spec(tmp_path)
    done = scalestudy("plan", spec, "--rehearse", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["rehearsal"]
    assert found["left_out"] == {}
    assert found["steps"]["batch=64"]["loss"] == pytest.approx(2.3, abs=0.3), "log of ten classes"
    assert left_behind(tmp_path) == ["study.yaml"]


def test_a_forecast_from_earlier_timings():
    spec, plan, trials = study_of(SPEC)
    first = plan.trials[0]
    earlier = [{**trial, "workload": first.workload, "train": first.train} for trial in trials]
    found = forecast(spec, plan, earlier, two_cores())
    assert found.unit == "seconds"
    assert found.why is None
    assert found.room.exclusive
    trained = sum(e["train_seconds"] + e["eval_seconds"] for trial in trials for e in trial["epochs"])
    assert found.makespan_seconds == pytest.approx(trained + 4 * 0.1 + 2 * 7.0 + 1.5, rel=0.02)
    assert "schedule: about" in "\n".join(forecast_lines(found))


def test_a_forecast_of_what_was_never_measured_counts_epochs():
    spec, plan, _ = study_of(SPEC)
    found = forecast(spec, plan, [], two_cores())
    assert (found.unit, found.makespan_seconds, found.schedule.makespan) == ("epochs", None, 32)
    assert found.to_dict()["why"] == "no earlier timing for 4 of 4 trials"
    text = "\n".join(forecast_lines(found))
    assert "32 epochs one after another; in seconds not known" in text
    assert "workers are started twice, once in the room of others that end for them" in text


def test_a_forecast_without_room():
    spec, plan, _ = study_of(SPEC)
    found = forecast(spec, plan, [], [ClusterNode(node_id="a", host="a", cpus=1.0, gpus=0.0)])
    assert found.schedule is None
    assert forecast_lines(found) == [
        "schedule: none (num_gpus: 2: there is room for 1 workers at a time; for other machines: --slots, --nodes)"
    ]


@pytest.mark.parametrize(("placement", "spanning"), [("pack", 2), ("spread", 4)])
def test_trials_that_span_nodes_are_counted(placement, spanning):
    spec = spec_of(SPEC.replace("[1, 2]", "[1, 2, 3]"), f"resources.placement={placement}")
    nodes = [ClusterNode(node_id=name, host=name, cpus=2.0, gpus=0.0) for name in "ab"]
    found = forecast(spec, make_plan(spec), [], nodes)
    assert found.to_dict()["spanning"] == spanning
    assert f"; {spanning} trials on several nodes" in forecast_lines(found)[-1]


def test_a_search_that_makes_its_trials_later_has_no_schedule():
    spec = spec_of(SPEC + "search: {method: tpe, samples: 3}\n")
    found = forecast(spec, make_plan(spec), [], two_cores())
    assert forecast_lines(found) == ["schedule: none (tpe chooses the points while the study runs)"]


def test_a_scheduler_makes_it_a_bound():
    spec, plan, _ = study_of(SPEC + "search: {scheduler: asha}\n")
    found = forecast(spec, plan, [], two_cores())
    assert found.at_most
    assert any("at most, because trials may stop early: 32 epochs" in line for line in forecast_lines(found))


def test_the_machines_to_plan_for():
    spec, _, _ = study_of(SPEC)
    (here,) = machines(spec.resources, None, 1, None)
    assert (here.cpus, here.gpus) == (os.cpu_count(), gpus_here())
    named = machines(spec.resources.model_copy(update={"device": "cuda", "gpus_per_worker": 0.5}), 4, 2, None)
    assert [(node.cpus, node.gpus) for node in named] == [(4.0, 2.0), (4.0, 2.0)]


def test_the_forecast_is_that_of_the_trainings():
    spec = spec_of(SPEC.replace("epochs: 8", "epochs: 2") + "search: {method: factorised, held_out: 1}\n")
    nodes = [ClusterNode(node_id="node-1", host="machine-1", cpus=2.0, gpus=0.0)]
    expected = forecast(spec, make_plan(spec), [], nodes)
    assert (expected.room.exclusive, len(expected.schedule.trials), expected.schedule.makespan) == (False, 2, 2)


def test_a_forecast_in_seconds_where_some_are_scaled():
    spec, plan, trials = study_of(SPEC)
    first = plan.trials[0]
    alone = [
        {**trial, "workload": first.workload, "train": first.train}
        for trial in trials
        if trial["params"]["num_gpus"] == 1
    ]
    found = forecast(spec, plan, alone, two_cores())
    assert (found.unit, found.scaled, found.why) == ("seconds", 2, None)
    assert "schedule: roughly" in "\n".join(forecast_lines(found))


# --- as text ----------------------------------------------------------------------------------------------------------


def test_a_bar():
    group = GroupSpan(group_id="g", num_workers=1, nodes=1, ordered=2.0, ready=4.0, stopped=9.0)
    spans = [
        TrialSpan(trial_id="t", group_id="g", start=4.0, end=6.0),
        TrialSpan(trial_id="u", group_id="g", start=7.0, end=8.0),
    ]
    assert bar(group, spans, 10.0, width=10) == "  ░░██·█· "


def test_many_groups_are_cut():
    spec, plan, _ = study_of(SPEC)
    many = spec.model_copy(update={"limits": spec.limits.model_copy(update={"trials_per_group": 1})})
    lines = forecast_lines(forecast(many, plan, [], two_cores()))
    assert sum("1 trial" in line for line in lines) == 4
    assert [duration_text(value) for value in (48.2, 720.0, 12_600.0)] == ["48 s", "12 min", "3.5 h"]


def test_costs_are_told_with_their_interval_and_what_they_rest_on():
    _, plan, trials = study_of(SPEC)
    first = plan.trials[0]
    known = [{**trial, "workload": first.workload, "train": first.train} for trial in trials]
    for trial in known:
        for number, epoch in enumerate(trial["epochs"]):
            epoch.update(train_seconds=100.0 + 10 * number, eval_seconds=0.0)
    (line, cost) = cost_lines(estimate(plan, known), 3.6, ["4 trials of 1 earlier study (runs/a)", "60 steps"])
    # epochs of 100, 110 … 170 s, each twice: 5 % and 95 % of the way lie 100 and 170; 32 epochs, 48 by workers
    assert "time: about 72 min one trial at a time (53 min to 91 min)" in line
    assert line.endswith("from 4 trials of 1 earlier study (runs/a); 60 steps")
    assert cost == "cost: 4.8 to 8.16 at 3.6 a GPU-hour"
    (line, some) = cost_lines(estimate(plan, known[:2]), None, ["2 trials"])
    # two workers: an epoch of 0.5 × 100 to 1.5 × 170 s; 16 epochs of each
    assert line.startswith("time: 40 min to 113 min one trial at a time, ")
    assert some.startswith("2 of 4 trials have a num_gpus and a batch size that were timed")
    (line,) = cost_lines(estimate(plan, []), 2.0)
    assert line.startswith("time: not known before a first run (no earlier timing for 4 of 4 trials); --measure")


def test_the_command(tmp_path):
    write_spec(tmp_path)
    done = scalestudy("plan", "study.yaml", "--slots", "4", "--nodes", "2", "--json", cwd=tmp_path)
    schedule = json.loads(done.stdout)["schedule"]
    assert schedule["slots"] == [4, 4]
    assert schedule["makespan_seconds"] is None
    assert len(schedule["trials"]) == 4
    assert (
        "room for 4 + 4 workers"
        in scalestudy("plan", "study.yaml", "--slots", "4", "--nodes", "2", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize(
    ("gpus", "device", "says"),
    [(1, "auto", "on A100 as none was on H100"), (1, "cpu", ""), (0, "cuda", "")],
)
def test_the_type_of_this_machine_s_gpus_is_the_planned_one_where_workers_get_them(
    tmp_path, monkeypatch, gpus, device, says
):
    monkeypatch.setattr(plan_module, "gpus_here", lambda: gpus)
    monkeypatch.setattr(plan_module, "gpu_type_here", lambda: "H100")
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = folder_of(tmp_path / "runs" / "a", SPEC)
    on = {"device": "cpu" if device == "cpu" else "cuda", "accelerator": "A100", "workers": []}
    trials = [{**json.loads(line), "world": on} for line in folder.trials_file.read_text().splitlines()]
    folder.trials_file.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    spec = tmp_path / "study.yaml"
    spec.write_text(SPEC)
    (words,) = plan_study(str(spec), [f"resources.device={device}"], slots=2).rests_on
    assert words.startswith("4 trials of 1 earlier study (runs/a)")
    assert words.endswith(says or "(runs/a)")


# --- a study that grows -------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path):
    """A study of the small spec, of which one trial has ended."""
    spec = write_spec(tmp_path)
    opened = open_new(read_spec(str(spec), ()), tmp_path / "out")
    opened.write()
    first = opened.plan.trials[0]
    (record,) = [each for each in study_of(spec.read_text())[2] if each["trial_id"] == first.trial_id]
    Journal(opened.folder.journal_folder).append(first.trial_id, {"type": "ended", **record})
    opened.folder.append_trial(record)
    return tmp_path


def test_what_has_ended_is_not_planned_again(begun):
    more = ["--set", "sweep.learning_rate=[0.1, 0.2, 0.4]"]
    planned = json.loads(scalestudy("plan", "study.yaml", "--extend", "out", "--json", *more, cwd=begun).stdout)
    ended = [line["trial_id"] for line in StudyFolder(begun / "out").read_trials()]
    assert len(planned["trials"]) == planned["estimate"]["trials"] == 2 * 3 - 1
    assert not {trial["trial_id"] for trial in planned["trials"]} & set(ended)
    told = scalestudy("plan", "study.yaml", "--extend", "out", *more, cwd=begun).stdout
    assert f"1 trial of {begun / 'out'} has ended and does not run again" in " ".join(told.split())


def test_what_run_refuses_to_extend_is_not_planned_either(begun):
    refused = scalestudy("plan", "study.yaml", "--extend", "out", "--set", "name=other", cwd=begun)
    assert refused.returncode == 2
    assert "--extend:" in refused.stderr
    assert "is the study small, not other" in refused.stderr
    nothing = scalestudy("plan", "study.yaml", "--extend", "nowhere", cwd=begun)
    assert (nothing.returncode, nothing.stdout) == (2, "")
