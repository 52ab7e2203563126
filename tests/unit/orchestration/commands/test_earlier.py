"""Which timings of earlier studies a plan takes."""

import json

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.commands.earlier import earlier_timings, ran_on
from scalestudy.orchestration.study.fingerprint import fingerprint_of
from tests.support.synthetic_studies import TINY, folder_of, spec_of, study_of


def found(text=TINY, device="cpu", storage=None, accelerator="", **changes):
    """How many trials of each study count, in their order."""
    spec = spec_of(text)
    for key, value in changes.items():
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={key: value})})
    studies = earlier_timings(spec, make_plan(spec).trials, device, storage, accelerator)
    return {timings[0].source: len(timings) for timings in studies if timings}


def test_it_looks_in_the_storage_in_runs_at_home_and_where_it_is_told(here):
    own = TINY + "storage: own\n"
    for place in ("own", "runs", "../home/runs", "../told"):
        folder_of(here / place / "a", TINY)
    assert len(found(own)) == 3
    told = found(own, storage=str(here.parent / "told"))
    assert len(told) == 4
    assert sum(told.values()) == 16
    assert {"own/a", "runs/a"} <= told.keys()
    assert len(found(own, storage=str(here / "runs"))) == 3, "each study once"


def test_the_last_study_comes_first(here):
    for name, at in {"a": 1e9, "b": 3e9, "c": 2e9}.items():
        folder = folder_of(here / "runs" / name, TINY)
        Journal(folder.journal_folder, clock=lambda at=at: at).append("", {"type": "study", "state": "started"})
    assert list(found()) == ["runs/b", "runs/c", "runs/a"]


def test_only_the_same_workload_way_of_training_device_and_threads_count(here):
    folder_of(here / "runs" / "a", TINY)
    assert found() == {"runs/a": 4}
    assert found(TINY.replace("epochs: 8", "epochs: 20, schedule: cosine")) == {"runs/a": 4}
    assert found(TINY.replace("lenet", "mlp")) == {}
    assert found(TINY.replace("data: digits", "data: digits, data_args: {image_size: 32}")) == {}
    assert found(TINY.replace("epochs: 8", "epochs: 8, precision: bf16")) == {}
    assert found(device="cuda") == {}
    assert found(cpus_per_worker=2) == {}


def test_timings_of_another_type_of_gpus_do_not_count_where_both_are_known(here):
    study = folder_of(here / "runs" / "a", TINY)
    trials = [json.loads(line) for line in study.trials_file.read_text().splitlines()]
    for trial, kind in zip(trials, ["A100", "A100", "T4", None], strict=True):
        trial["world"] = {**(trial["world"] or {}), "accelerator": kind}
    study.trials_file.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    assert [found(accelerator=own) for own in ("A100", "T4", "H100", "")] == [
        {"runs/a": number} for number in (3, 2, 1, 4)
    ]


OWN = TINY.replace("model: lenet, data: digits", "model: 'earlier_mine:build', data: DATA")
CODE = {
    "earlier_mine.py": "from earlier_glue import VALUE\n",
    "earlier_glue.py": "VALUE = 60\n",
    "earlier_data.py": """
import torch
from scalestudy.training.data import Splits

def load(root, size=60):
    inputs = torch.zeros(size, 1, 2, 2)
    return Splits(inputs, torch.zeros(size, dtype=torch.int64), inputs[:9], torch.zeros(9, dtype=torch.int64), 2)
""",
}


@pytest.mark.parametrize(
    ("data", "edited", "used"),
    [
        ("digits", "earlier_glue.py", {}),
        ("digits", "earlier_data.py", {"runs/a": 4}),
        ("'earlier_data:load'", "earlier_data.py", {}),
    ],
)
def test_timings_of_other_code_or_data_do_not_count(here, monkeypatch, data, edited, used):
    for name, code in CODE.items():
        (here / name).write_text(code)
    monkeypatch.syspath_prepend(here)
    text = OWN.replace("DATA", data)
    spec, plan, _ = study_of(text)
    fingerprint = fingerprint_of(spec, plan.trials, here)

    def told(trial):
        planned = plan.by_id()[trial["trial_id"]]
        digests = fingerprint.digests(planned.workload, planned.train)
        trial["fingerprint"] = {name: [digest] for name, digest in digests.items()}

    folder_of(here / "runs" / "a", text, change=told)
    assert found(text) == {"runs/a": 4}
    (here / edited).write_text(CODE[edited].replace("60", "80"))
    assert found(text) == used
    if data == "digits":
        folder_of(here / "runs" / "b", text)
        assert found(text) == {"runs/b": 4, **used}, "of a study that does not say it, as of an earlier version"


def test_a_broken_folder_is_skipped(here):
    folder_of(here / "runs" / "a", TINY)
    broken = folder_of(here / "runs" / "b", TINY)
    broken.write_text(broken.plan_file, "{")
    assert found() == {"runs/a": 4}


def test_devices_and_threads():
    workers = [{"rank": 0, "threads": 2}]
    assert ran_on({"world": {"device": "cpu", "workers": workers}}, "cpu", 2)
    assert not ran_on({"world": {"device": "cpu", "workers": workers}}, "cpu", 1)
    assert not ran_on({"world": {"device": "cpu", "workers": workers}}, "cuda", 2)
    assert ran_on({"world": {"device": "cuda", "workers": workers}}, "cuda", 1), "threads matter on a CPU"
    assert ran_on({"world": None}, "cpu", 1)
