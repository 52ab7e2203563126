"""The rehearsal of a study: which trainings it makes a step of, and what becomes of what it finds."""

import json
import math
import subprocess
import threading
import time

import pytest
import torch

from scalestudy.experiments.plan.plan import corner_trials, make_plan
from scalestudy.orchestration.base.child import run_child
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study import rehearsal
from scalestudy.orchestration.study.rehearsal import (
    FITTING_DATA,
    FITTING_EXAMPLES,
    FITTING_MODELS,
    Answer,
    Order,
    Rehearsal,
    blamed,
    free_memory_bytes,
    is_known_to_fit,
    kinds_of,
    rehearse_study,
)
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.train import train
from scalestudy.training.rehearsal import Division
from tests.support.synthetic_studies import spec_of
from tests.support.training.helpers import ALONE, make_config

HERE = "tests.unit.orchestration.study.test_rehearsal"
GRID = """
name: x
workload: {model: lenet, data: digits, model_args: {init: xavier}}
sweep: {num_gpus: [1, 2], batch_size: [32, 64, 128], learning_rate: [0.1, 0.2]}
"""
BUILT_IN = "model: lenet, data: digits, model_args: {init: xavier}"


def planned(text=GRID, **replaced):
    for before, after in replaced.values():
        text = text.replace(before, after)
    return make_plan(spec_of(text)).trials


def answer(model="mlp", **changes):
    config = make_config(model=model, **changes)
    return Order(config=config, divisions=(Division.of(config, 1),), in_group=False).answer("1 GiB")


# --- which trainings -----------------------------------------------------------------------------------------------


def test_trainings_that_make_the_same_mistakes_are_one_kind_of_the_smallest_batch():
    ((name, kind),) = kinds_of(planned()).items()
    assert name == "batch=32"
    assert ([trial.batch_size for trial in kind.trials], kind.in_group) == ([32] * 4 + [64] * 4 + [128] * 4, False)
    ((_, several),) = kinds_of(planned(sizes=("num_gpus: [1, 2]", "num_gpus: [2]"))).items()
    assert several.in_group


def test_each_combination_of_arguments_is_a_kind_by_its_name():
    swept = (
        "sweep: {",
        "sweep: {workload.model_args.init: [xavier, normal], workload.data_args.image_size: [28, 14], "
        f"train.optimizer.name: [sgd, adam, '{HERE}:build'], ",
    )
    kinds = kinds_of(planned(swept=swept))
    assert len(kinds) == 2 * 2 * 2, "built-in optimizers make no mistakes"
    assert next(iter(kinds)) == "batch=32 model.init=xavier data.image_size=28 name=sgd"


def test_a_search_is_rehearsed_at_its_corners():
    spec = spec_of(GRID.replace("[0.1, 0.2]}", "{uniform: [0.1, 0.2]}}\nsearch: {method: tpe, samples: 4}"))
    ((_, kind),) = kinds_of(corner_trials(spec)).items()
    assert (kind.trials[0].batch_size, kind.trials[-1].batch_size) == (32, 128)


# --- when there is nothing to find ----------------------------------------------------------------------------------


def test_the_catalogues_first_study_does_not_wait_for_a_rehearsal():
    from scalestudy.orchestration.study.folders import read_spec

    assert is_known_to_fit(make_plan(read_spec("digits-quick")).trials)
    assert is_known_to_fit(planned())


@pytest.mark.parametrize(
    "change",
    [
        ("model: lenet", f"model: '{HERE}:build'"),
        ("model: lenet", "model: 'torchvision:resnet18'"),
        ("data: digits", f"data: '{HERE}:build'"),
        ("data: digits", "data: digits, data_args: {image_size: 14}"),
        ("init: xavier", f"init: '{HERE}:build'"),
        ("init: xavier", "init: [xavier]"),
        ("init: xavier", "init: xavier, layers: 3"),
        ("workload: {", f"workload: {{loss: '{HERE}:build', "),
        ("workload: {", f"workload: {{metric: '{HERE}:build', "),
        ("workload: {", f"workload: {{task: '{HERE}:Build', "),
        ("128]", "1438]"),
        ("sweep: {", f"train: {{schedule: '{HERE}:build'}}\nsweep: {{"),
        ("sweep: {", f"train: {{optimizer: {{name: '{HERE}:build'}}}}\nsweep: {{"),
        ("sweep: {", "train: {schedule: {name: StepLR, args: {step_size: 1}}}\nsweep: {"),
        ("sweep: {", "train: {evaluate_batches: 1}\nsweep: {"),
    ],
)
def test_what_is_not_built_in_or_was_not_tried_is_rehearsed(change):
    assert not is_known_to_fit(planned(change=change))


def built_in(name):
    """A built-in data set; those that are downloaded have 28 × 28 pixels and ten classes, as synthetic ones."""
    return name if name in ("digits", "synthetic") else "synthetic"


@pytest.mark.slow
@pytest.mark.parametrize("data", sorted({built_in(name) for name in FITTING_DATA}))
@pytest.mark.parametrize("model", FITTING_MODELS)
def test_what_is_known_to_fit_does(model, data):
    """With each loss and each metric; with one of each at a batch as large as the smallest of the sets."""
    largest = Division(FITTING_EXAMPLES, (1.0,), 1, normalised_together=False)
    for loss, metric, others in (("cross_entropy", "mse", ()), ("mse", "accuracy", (largest,))):
        config = make_config(
            model=model, model_args={}, data=data, data_args={}, loss=loss, metric=metric, batch_size=4
        )
        said = Order(config=config, divisions=(Division.of(config, 1), *others), in_group=False).answer("")
        assert (said.problem, said.left_out) == ("", "")


# --- what becomes of what is found ---------------------------------------------------------------------------------


def build(num_classes, in_channels):
    raise LookupError("no weights\nfor this model")


def leaves(num_classes, in_channels):
    raise SystemExit("enough")


def too_large(num_classes, in_channels):
    raise MemoryError


def on_a_gpu(num_classes, in_channels):
    raise RuntimeError("No CUDA GPUs are available")


def test_a_users_exception_names_its_part_its_place_and_the_way_without():
    said = answer(f"{HERE}:build", model_args={})
    assert said.problem.startswith(f"workload.model: {HERE}:build: LookupError: no weights (test_rehears")
    assert said.problem.endswith(", in build)")
    assert said.remedy == "correct it; --no-rehearsal starts the study without this check"
    assert "SystemExit: enough" in answer(f"{HERE}:leaves", model_args={}).problem


def test_a_mistake_that_is_known_has_its_own_remedy():
    said = answer(batch_size=512)
    assert said == Answer(
        problem="batch_size: 512 is more than the 256 training examples of 'synthetic'", remedy="choose at most 256"
    )


def test_what_this_machine_can_not_do_is_left_out():
    assert answer(f"{HERE}:too_large", model_args={}) == Answer(left_out="it takes more than 1 GiB")
    assert answer(f"{HERE}:on_a_gpu", model_args={}).left_out == "it needs a GPU (No CUDA GPUs are available)"
    assert answer().loss > 0


def test_words_are_one_line():
    steps = {"batch=8 w=8": Answer(loss=2.3025, seconds=0.1), "batch=8 w=9": Answer(loss=math.nan)}
    left_out = dict.fromkeys((f"batch=8 w={width}" for width in range(10, 16)), "it takes more than 60 s")
    found = Rehearsal(steps=steps, left_out=left_out, seconds=2.06, fresh_workers="")
    assert found.words() == (
        "rehearsal: 2.1 s, the first steps of batch=8 w=8 (loss 2.303), batch=8 w=9 (loss nan); "
        "batch=8 w=10, batch=8 w=11, batch=8 w=12 and 3 more left out: it takes more than 60 s"
    )
    assert [step["loss"] for step in found.to_dict()["steps"].values()] == [2.3025, None]
    assert found.to_dict()["left_out"] == left_out


def falls(progress, gamma):
    return gamma ** (20 * progress)


def rehearsed_here(text, tmp_path):
    """What a rehearsal finds of each kind, by its steps in this process."""
    orders = {name: Order.of(kind.order(tmp_path), (), {}) for name, kind in kinds_of(planned(text)).items()}
    return Rehearsal(steps={name: order.answer("") for name, order in orders.items()}, left_out={}, seconds=0.0)


SCHEDULED = """
name: x
workload: {model: mlp, data: synthetic, data_args: {train_samples: 256}}
train: {epochs: 4}
sweep: {batch_size: [64], learning_rate: [0.1], GIVEN}
"""


def test_the_rates_of_each_schedule_are_told_and_those_that_fall_to_nothing(tmp_path):
    """One kind of training, whose schedules are looked at without a step."""
    gammas = f"train.schedule: [cosine, '{HERE}:falls'], train.schedule.args.gamma: [0.9, 0.1]"
    with pytest.raises(InputError, match="are no arguments of cosine"):
        rehearsed_here(SCHEDULED.replace("GIVEN", gammas), tmp_path)
    own = f"train.schedule: ['{HERE}:falls'], train.schedule.args.gamma: [0.9, 0.1]"
    found = rehearsed_here(SCHEDULED.replace("GIVEN", own), tmp_path)
    named = f"batch=64 lr=0.1 schedule={HERE}:falls schedule.gamma"
    assert found.rate_lines() == [
        f"rates of {named}=0.9: 0.1 at the start, 0.059 at 1/4, 0.0349 at 1/2, 0.0206 at 3/4, 0.0139 at the end",
        f"rates of {named}=0.1: 0.1 at the start, 1e-06 at 1/4, 1e-11 at 1/2, 1e-16 at 3/4, 1.78e-20 at the end",
    ]
    assert len(found.steps) == 1
    assert found.doubts == [
        f"the rates fall to nothing with {named}=0.1: in 81% of the steps they are under 0.001 of their peak, 0.1, and "
        "end at 1.78e-20; correct train.schedule"
    ]


def test_more_evaluation_than_the_test_set_has_is_refused(tmp_path):
    few, more = rehearsed_here(SCHEDULED.replace("GIVEN", "train.evaluate_batches: [1, 9]"), tmp_path).steps.values()
    assert not few.problem
    assert more.problem.startswith("evaluate_batches: 9 batches of 512 are more than the 1024 test examples")


def test_rates_of_more_trainings_than_a_person_reads_are_in_json():
    rates = {f"lr={number}": {"the start": 0.1, "the end": 0.01} for number in range(5)}
    found = Rehearsal(steps={"batch=8": Answer(loss=1.0, seconds=0.1, rates=rates)}, left_out={}, seconds=1.0)
    assert found.rate_lines()[2:] == ["rates of lr=2: 0.1 at the start, 0.01 at the end", "rates of 2 more: --json"]
    assert found.to_dict()["steps"]["batch=8"]["rates"] == rates


def sleeps(num_classes, in_channels):
    import time

    time.sleep(60)


def test_a_rehearsal_that_takes_too_long_is_left_out(tmp_path):
    spec = spec_of(GRID.replace(BUILT_IN, f"model: '{HERE}:sleeps', data: digits"))
    plan = make_plan(spec)
    found = rehearse_study(spec, plan, plan.trials, tmp_path, limit_seconds=0.2)
    assert found.left_out_words() == ["batch=32 left out: it takes more than 0 s"]
    assert found.words().startswith("rehearsal: no step was made; batch=32 left out")


@pytest.mark.slow
def test_the_whole_way_in_a_process_of_its_own(tmp_path, monkeypatch):
    """A good model, then one that takes too much memory, then a wrong one, which names its arguments.

    The first starts a thread and a child that never end.
    """
    text = GRID.replace(BUILT_IN, f"model: '{HERE}:by_number', data: digits")
    spec = spec_of(text.replace("sweep: {", "sweep: {workload.model_args.number: [0, 1, 2, 3], "))
    plan = make_plan(spec)
    ended = []
    monkeypatch.setattr(rehearsal, "run_child", lambda *order: ended.append(run_child(*order)) or ended[0])
    with pytest.raises(
        RequestError, match=r"^batch=32 model.number=2: workload.model: .*: KeyError: 2 \(test_rehearsal"
    ):
        rehearse_study(spec, plan, plan.trials, tmp_path)
    told = [json.loads(line) for line in ended[0].answers]
    good, large, wrong = (Answer(**{each["kind"]: each for each in told}[number]["answer"]) for number in range(3))
    assert good.loss > 0
    assert large.left_out.startswith("it takes more than half of the free memory, ")
    assert wrong.problem, "after it no other is tried"


SMALL = """
name: x
workload:
  model: tests.support.training.strangers:Normed
  data: synthetic
  data_args: {train_samples: 257, test_samples: 64}
train: {epochs: 1}
sweep: {num_gpus: [1, 2], batch_size: [16, 64]}
"""


@pytest.mark.slow
def test_all_places_of_an_adaptive_search_are_looked_at(tmp_path):
    """The trainings of one worker have a last batch of 17 examples; sixteen workers have two or one of these."""
    alone = SMALL.replace("[1, 2], batch_size: [16, 64]", "[1], batch_size: [120]")
    assert len(rehearse_all(alone, tmp_path).steps) == 1
    text = alone.replace("[1]", "[1, 16]")
    adaptive = "search: {method: adaptive}\nbudget: {trials: 5}\ntargets: {accuracy: [0.9]}"
    with pytest.raises(RequestError, match=r"^batch_size: 120 \(num_gpus 16\): .* 1 example at once"):
        rehearse_all(f"{text}{adaptive}", tmp_path)


def rehearse_all(text, tmp_path):
    spec = spec_of(text)
    plan = make_plan(spec)
    return rehearse_study(spec, plan, corner_trials(spec) if plan.to_suggest else plan.trials, tmp_path)


@pytest.mark.slow
def test_what_a_search_may_draw_is_a_line_and_no_refusal(tmp_path):
    """Batches of 64 leave one of 257 examples; random points are known, and none of these does."""
    text = SMALL.replace("[1, 2], batch_size: [16, 64]", "[1], batch_size: {uniform: [60, 70]}")
    found = rehearse_all(f"{text}search: {{method: tpe, samples: 4}}", tmp_path)
    assert "; a search may draw batch_size: 64 (num_gpus 1): in some step a worker trains 1 " in found.words()
    drawn = f"{text}search: {{method: random, samples: 2}}"
    assert 64 not in [trial.batch_size for trial in make_plan(spec_of(drawn)).trials]
    assert rehearse_all(drawn, tmp_path).doubts == []
    adaptive = "search: {method: adaptive}\nbudget: {trials: 5}\ntargets: {accuracy: [0.9]}"
    assert rehearse_all(f"{text}{adaptive}", tmp_path).doubts == [], "its places are batches of 60 and 70 alone"


def by_number(num_classes, in_channels, number):
    from scalestudy.training.models import MLP

    print("a user's word")
    if number == 0:
        threading.Thread(target=time.sleep, args=(600,)).start()
        subprocess.Popen(["sleep", "600"])
    return {0: MLP, 1: _most_of_memory}[number](num_classes, in_channels)


def _most_of_memory(num_classes, in_channels):
    """More than a rehearsal may have, and no more than the machine has."""
    return torch.empty(int(0.7 * (free_memory_bytes() or 2**40)), dtype=torch.uint8)


@pytest.mark.slow
def test_a_training_that_an_earlier_one_changes_asks_for_fresh_workers():
    """Only where fresh ones help: a model that looks at the clock is never the same."""
    ended = run_child(("-m", "tests.unit.orchestration.study.used_processes"), None, 60)
    (found,) = map(json.loads, ended.answers)
    left = "tests.support.training.strangers:Backbone trains in another way after another training in its process"
    warm = ("nowhere", "by the clock", "as a child")
    assert found == {kept: "" if kept in warm else left for kept in found}


# --- whose mistake an exception is ---------------------------------------------------------------------------------

FAULTS = "tests.unit.training.test_rehearsal_faults"


def blame(config):
    try:
        train(config, ALONE)
    except Exception as error:  # whatever the user's code raises
        return str(blamed(error, config, "mend it"))


def test_a_users_exception_names_its_part():
    found = blame(make_config(data=f"{FAULTS}:raises_when_loaded", data_args={}))
    assert found.startswith(
        f"workload.data: {FAULTS}:raises_when_loaded: LookupError: no such file (test_rehearsal_faults.py:"
    )
    assert found.endswith(", in raises_when_loaded); mend it")
    found = blame(make_config(loss=f"{FAULTS}:detached"))
    assert found.startswith("workload: backward: RuntimeError: element 0 of tensors does not require grad")


def test_a_mistake_that_is_known_keeps_its_remedy():
    error = InputError("model: it is wrong", "choose another")
    assert str(blamed(error, make_config(), "mend it")) == "model: it is wrong; choose another"
    assert str(blamed(InputError("model: it is wrong"), make_config(), "mend it")).endswith("; correct the spec")


def test_what_no_part_raised_and_what_has_several_lines():
    assert str(blamed(KeyError("a\nb"), make_config(), "mend it")) == r"KeyError: 'a\nb'; mend it"
    assert str(blamed(OSError("a:\n  b\nc"), make_config(), "mend it")) == "OSError: a: b; mend it"
