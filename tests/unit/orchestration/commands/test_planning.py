"""`scalestudy plan`: which trials, how long by the last timings, and what is left of a study that grows."""

import io
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scalestudy.experiments.plan.estimate import Estimate
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.commands import planning as plan_module
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.planning import (
    NOT_TIMED,
    gpus_here,
    how_long,
    machines,
    plan_study,
    trials_at_a_time,
)
from scalestudy.orchestration.groups.placement import Request, decide
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.opening import open_new
from tests.support.approved import approved
from tests.support.in_process import scalestudy
from tests.support.studies import left_behind, write_spec
from tests.support.synthetic_studies import folder_of, study_of
from tests.support.trials import Law

HERE = Path(__file__).parent
SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2]}
targets: {accuracy: [0.8], price_per_gpu_hour: 2.5}
"""


@pytest.fixture
def here(here):
    """The same current folder with a spec in it."""
    (here / "study.yaml").write_text(SPEC)
    return here


def printed(planned):
    console = Console(file=io.StringIO(), width=120)
    show.plan(console, planned)
    return console.file.getvalue()


CASES = {
    "a new study": [],
    "a search": ["search={method: tpe, samples: 3, scheduler: asha}"],
    "side by side, to the target": ["resources.exclusive=false", "targets.stop=true"],
    "an adaptive search": ["search.method=adaptive", "budget={minutes: 30, uses: 1000}"],
    "no room": ["sweep.num_gpus=[1, 4]"],
}


def test_what_is_printed(here):
    pages = {name: printed(plan_study("study.yaml", more, slots=2)) for name, more in CASES.items()}
    folder_of(here / "runs" / "a", SPEC, Law(noise=0.1))
    timed = {f"{name}, timed": printed(plan_study("study.yaml", more, slots=2)) for name, more in CASES.items()}
    both = {**pages, **timed, "other machines": printed(plan_study("study.yaml", slots=4, nodes=2))}
    text = "\n".join(f"# {name}\n{page}" for name, page in both.items())
    approved(re.sub(r"\b[0-9a-f]{12}\b", "its-id", text), HERE / "plan.txt")


@pytest.mark.parametrize(
    ("budget", "most"),
    [("{worker_hours: 4}", "4 worker-hours"), ("{trials: 1}", "1 training"), ("{trials: 9}", "9 trainings")],
)
def test_the_plan_of_an_adaptive_search_has_no_duration_but_its_budget(here, budget, most):
    planned = plan_study("study.yaml", ["search.method=adaptive", f"budget={budget}"], slots=2)
    plain = planned.to_dict()
    assert (plain["trials"], plain["to_suggest"]["points"]) == ([], 4)
    assert (plain["estimate"]["seconds"], plain["estimate"]["worker_seconds"]) == (None, None)
    assert plain["estimate"]["why"].endswith(f"and at the latest with its budget, {most}")
    assert plain["estimate"]["budget"] == planned.spec.budget.to_dict()


def timed(trials, timing_runs=()):
    """A timed plan; trials and timing runs are (workers, seconds)."""
    pairs = [*trials, *timing_runs]
    orders = [SimpleNamespace(num_gpus=workers) for workers, _ in pairs]
    return Estimate(
        trials=orders[: len(trials)],
        timing_runs=orders[len(trials) :],
        epochs=len(trials),
        worker_epochs=sum(workers for workers, _ in trials),
        seconds=[seconds for _, seconds in pairs],
        timed=len(trials),
        rests_on=("runs/a",),
    )


@pytest.mark.parametrize(
    ("trials", "timing_runs", "slots", "exclusive", "seconds"),
    [
        # side by side on four workers' room: 24 · 1 / 4 + 10 · 2 / 2 + 10 · 4 / 1, which is (24 + 40 + 160) / 4
        ([(1, 6.0)] * 4 + [(2, 10.0)] * 2 + [(4, 10.0)] * 4, [], [4], False, 6 + 10 + 40),
        # one at a time: all seconds
        ([(1, 6.0)] * 4 + [(2, 10.0)] * 2, [], [4], True, 24 + 20),
        # of three workers one trial fits four at a time
        ([(3, 10.0)] * 2, [], [4], False, 20),
        # one at a time on each of two machines: (24 + 20) / 2; what needs both, alone
        ([(1, 6.0)] * 4 + [(2, 10.0)] * 2, [], [4, 4], True, 22),
        ([(8, 10.0)] * 2 + [(4, 10.0)] * 2, [], [4, 4], True, 20 + 10),
        # two of the four places stay empty
        ([(1, 8.0), (1, 10.0)], [], [4], False, 10),
        # timing runs follow, one at a time on each machine
        ([(1, 6.0)] * 4, [(1, 2.0)] * 2 + [(2, 3.0)] * 2, [4], False, 6 + 4 + 6),
        ([(1, 6.0)] * 8, [(1, 2.0)] * 2 + [(2, 3.0)] * 2, [4, 4], False, 6 + 5),
    ],
)
def test_how_long_a_plan_takes(trials, timing_runs, slots, exclusive, seconds):
    assert how_long(timed(trials, timing_runs), slots, exclusive=exclusive) == pytest.approx(seconds)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.1, 30.0)), min_size=1, max_size=9),
    st.integers(1, 8),
    st.integers(1, 4),
    st.booleans(),
)
def test_no_plan_takes_less_than_its_longest_trial_and_its_work_over_the_room(trials, each, machines, exclusive):
    trials = [(min(workers, each * machines), seconds) for workers, seconds in trials]
    cost = timed(trials)
    found = how_long(cost, [each] * machines, exclusive=exclusive)
    assert found >= max(seconds for _, seconds in trials)
    assert found >= cost.worker_seconds / (each * machines) - 1e-9
    assert how_long(cost, [each] * (machines + 1), exclusive=exclusive) <= found + 1e-9


@given(st.integers(1, 10), st.integers(0, 8), st.integers(1, 4), st.booleans())
def test_as_many_trials_fit_as_the_engine_starts_on_empty_machines(size, each, machines, exclusive):
    nodes = [Node(node_id=str(number), slots=each) for number in range(machines)]
    requests = [Request(trial_id=str(number), num_workers=size) for number in range(40)]
    started = len(decide(nodes, [], requests, exclusive=exclusive))
    fitting = trials_at_a_time(size, [each] * machines, exclusive=exclusive)
    if exclusive or size <= each:
        assert fitting == started
    else:  # what one trial leaves of a machine may hold a part of another
        assert fitting <= started
        assert bool(fitting) == bool(started)


def test_without_timings_there_is_no_number(here):
    done = scalestudy("plan", "study.yaml", "--slots", "2", "--json", cwd=here)
    plain = json.loads(done.stdout)["estimate"]
    assert (plain["seconds"], plain["worker_seconds"], plain["rests_on"]) == (None, None, [])
    assert plain["why"] == NOT_TIMED
    assert left_behind(here) == ["study.yaml"]


def test_a_rehearsal_tells_the_loss_of_its_step_and_shows_the_model(tmp_path):
    spec = write_spec(tmp_path)
    done = scalestudy("plan", spec, "--rehearse", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert plain["rehearsal"]["left_out"] == {}
    assert plain["rehearsal"]["steps"]["batch=64"]["loss"] == pytest.approx(2.3, abs=0.3), "log of ten classes"
    (model,) = plain["models"]
    assert model["inspection"]["parameters"][0]["shape"] == [20, 1, 3, 3]
    assert left_behind(tmp_path) == ["study.yaml"]


@pytest.mark.slow
def test_a_model_that_was_left_out_of_the_rehearsal_is_not_built_here(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ndef build(num_classes, in_channels, far=False):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, num_classes,"
        " device='cuda' if far else 'cpu'))\n"
    )
    sweep = {"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1], "workload.model_args.far": [True, False]}
    spec = write_spec(tmp_path, workload={"model": "mine:build", "data": "digits"}, sweep=sweep)
    plain = json.loads(scalestudy("plan", spec, "--rehearse", "--json", cwd=tmp_path, CUDA_VISIBLE_DEVICES="").stdout)
    assert len(plain["rehearsal"]["left_out"]) == 1
    assert [model["params"] for model in plain["models"]] == [{"workload.model_args.far": False}]


def test_the_machines_to_plan_for():
    spec, _, _ = study_of(SPEC)
    (here,) = machines(spec.resources, None, 1, None)
    assert (here.cpus, here.gpus) == (os.cpu_count(), gpus_here())
    named = machines(spec.resources.model_copy(update={"device": "cuda", "gpus_per_worker": 0.5}), 4, 2, None)
    assert [(node.cpus, node.gpus) for node in named] == [(4.0, 2.0), (4.0, 2.0)]


@pytest.mark.parametrize(("gpus", "device", "counts"), [(1, "auto", False), (1, "cpu", True), (0, "cuda", True)])
def test_the_type_of_this_machine_s_gpus_counts_where_workers_get_them(here, monkeypatch, gpus, device, counts):
    monkeypatch.setattr(plan_module, "gpus_here", lambda: gpus)
    monkeypatch.setattr(plan_module, "gpu_type_here", lambda: "H100")
    folder = folder_of(here / "runs" / "a", SPEC)
    on = {"device": "cpu" if device == "cpu" else "cuda", "accelerator": "A100", "workers": []}
    trials = [{**json.loads(line), "world": on} for line in folder.trials_file.read_text().splitlines()]
    folder.trials_file.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    planned = plan_study("study.yaml", [f"resources.device={device}"], slots=2)
    assert planned.cost.rests_on == (("runs/a",) if counts else ())


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


LOOP_TO_PLAN = """
name: of-a-loop
workload: {loop: 'tests.support.loops_to_check:plain'}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32]}
"""


def test_the_plan_of_a_loop(here):
    (here / "loop.yaml").write_text(LOOP_TO_PLAN)
    planned = plan_study("loop.yaml", slots=2, rehearse=True)
    text = " ".join(printed(planned).split())
    assert "of-a-loop: 2 trials, 16 reports, 24 worker-reports" in text
    assert NOT_TIMED in text
    assert "tests.support.loops_to_check:plain left out: a Ray Train loop is not rehearsed" in text
    assert planned.models == ()
