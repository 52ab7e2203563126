"""Which timings of earlier studies a plan takes."""

import json

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.earlier import EarlierTimings, earlier_timings, ran_on
from tests.support.synthetic_studies import TINY, folder_of, spec_of


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, with a home that no other test has."""
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def found(text=TINY, device="cpu", storage=None, accelerator="", **changes):
    spec = spec_of(text)
    for key, value in changes.items():
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={key: value})})
    return earlier_timings(spec, make_plan(spec).trials, device, storage, accelerator)


def test_it_looks_in_the_storage_in_runs_at_home_and_where_it_is_told(here):
    own = TINY + "storage: own\n"
    for place in ("own", "runs", "../home/runs", "../told"):
        folder_of(here / place / "a", TINY)
    assert len(found(own).studies) == 3
    told = found(own, storage=str(here.parent / "told"))
    assert len(told.studies) == 4
    assert len(told.trials) == 16
    assert {"own/a", "runs/a"} <= set(told.studies)
    assert len(found(own, storage=str(here / "runs")).studies) == 3, "each study once"


def test_only_the_same_workload_way_of_training_device_and_threads_count(here):
    folder_of(here / "runs" / "a", TINY)
    assert found().words() == "4 trials of 1 earlier study (runs/a)"
    assert found(TINY.replace("epochs: 8", "epochs: 20, schedule: cosine")).studies == ["runs/a"]
    assert found(TINY.replace("lenet", "mlp")).studies == []
    assert found(TINY.replace("data: digits", "data: digits, data_args: {image_size: 32}")).studies == []
    assert found(TINY.replace("epochs: 8", "epochs: 8, precision: bf16")).studies == []
    assert found(device="cuda").studies == []
    assert found(cpus_per_worker=2).studies == []


def timed_on(folder, types):
    """A study whose trials ran on these types of GPUs."""
    study = folder_of(folder, TINY)
    trials = [json.loads(line) for line in study.trials_file.read_text().splitlines()]
    for trial, kind in zip(trials, types, strict=True):
        trial["world"] = {**(trial["world"] or {}), "accelerator": kind}
    study.trials_file.write_text("".join(json.dumps(trial) + "\n" for trial in trials))


@pytest.mark.parametrize(
    ("own", "taken", "words"),
    [
        ("", "A100", "5 trials of 2 earlier studies (runs/a, runs/b), those on A100"),
        ("T4", "T4", "4 trials of 2 earlier studies (runs/b, runs/c), those on T4"),
        ("H100", "A100", "5 trials of 2 earlier studies (runs/a, runs/b), those on A100 as none was on H100"),
    ],
)
def test_of_several_types_of_gpus_the_planned_one_counts_or_else_the_one_with_the_most_trials(here, own, taken, words):
    for name, types in {"a": ["A100"] * 4, "b": ["A100", "T4", "T4", None], "c": ["T4"] * 2 + [None] * 2}.items():
        timed_on(here / "runs" / name, types)
    earlier = found(accelerator=own)
    assert {trial["world"]["accelerator"] for trial in earlier.trials} == {taken}
    assert earlier.words() == words


def test_timings_of_another_type_than_the_planned_one_are_said_to_be(here):
    timed_on(here / "runs" / "a", ["A100"] * 4)
    assert found(accelerator="A100").words() == "4 trials of 1 earlier study (runs/a)"
    assert found(accelerator="H100").words() == (
        "4 trials of 1 earlier study (runs/a), those on A100 as none was on H100"
    )


def test_timings_that_name_no_type_count_for_every_one(here):
    folder_of(here / "runs" / "a", TINY)
    assert found(accelerator="H100").words() == "4 trials of 1 earlier study (runs/a)"


def test_a_broken_folder_is_skipped(here):
    folder_of(here / "runs" / "a", TINY)
    broken = folder_of(here / "runs" / "b", TINY)
    broken.write_text(broken.plan_file, "{")
    assert found().studies == ["runs/a"]


def test_a_place_that_is_none_is_refused(here):
    with pytest.raises(RequestError, match="--storage: nowhere: there is no such folder"):
        found(storage="nowhere")


def test_devices_and_threads():
    workers = [{"rank": 0, "threads": 2}]
    assert ran_on({"world": {"device": "cpu", "workers": workers}}, "cpu", 2)
    assert not ran_on({"world": {"device": "cpu", "workers": workers}}, "cpu", 1)
    assert not ran_on({"world": {"device": "cpu", "workers": workers}}, "cuda", 2)
    assert ran_on({"world": {"device": "cuda", "workers": workers}}, "cuda", 1), "threads matter on a CPU"
    assert ran_on({"world": None}, "cpu", 1)


def test_in_words():
    assert EarlierTimings().words() is None
    many = EarlierTimings(trials=[{}], studies=["a", "b", "c", "d", "e"])
    assert many.words() == "1 trial of 5 earlier studies (a, b, c and 2 more)"
