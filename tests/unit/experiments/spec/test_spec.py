"""A spec file becomes a StudySpec, and its trials have their ids. What is refused, test_bad_input.py says."""

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalestudy.experiments.plan.estimate import way_of
from scalestudy.experiments.plan.plan import make_plan, trial_id
from scalestudy.experiments.spec.reading import SpecError, parse_study
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.study.trials import train_config
from tests.support.project_files import REPOSITORY
from tests.support.synthetic_studies import problems_of, spec_of


def test_defaults_are_the_designs():
    spec = spec_of("name: x")
    assert spec.sweep.lists() == {"num_gpus": (1,), "batch_size": (256,), "learning_rate": (0.1,), "seed": (0,)}
    assert (spec.workload.model, spec.workload.data) == ("lenet", "digits")
    assert (spec.train.epochs, spec.train.optimizer.name, spec.train.gradient_sync) == (10, "sgd", "ddp")
    assert (spec.limits.trial_minutes, spec.limits.stalled_seconds, spec.limits.trials_per_group) == (60, 120, 200)
    assert (spec.storage, spec.tracking.uri, spec.tracking.offline) == ("runs", None, "refuse")


def test_a_spec_is_frozen():
    with pytest.raises(ValidationError):
        spec_of("name: x").name = "y"
    with pytest.raises(ValidationError):
        spec_of("name: x").train.epochs = 3


SPECS = [
    "name: x",
    "name: x\nsweep: {num_gpus: [2], train.shards: [even, [3, 1]], train.optimizer.momentum: [0, 0.9]}",
    "name: x\nsweep: {points: [{num_gpus: 1, batch_size: 8}, {num_gpus: 2, batch_size: 9}], seed: [3, 1]}",
    "name: x\nworkload: {model: 'my.nets:Net', model_args: {a: [1, {b: null}]}}\ntargets: {accuracy: [0.9, 1]}",
    "name: x\ndescription: 'ünï: \"cödé\"'\nresources: {exclusive: true}\ntrain: {gradient_clip: 1e-05}",
]


@pytest.mark.parametrize("text", SPECS)
def test_the_resolved_spec_reads_back_equal(text):
    spec = spec_of(text)
    assert spec_of(spec.to_yaml()) == spec
    assert StudySpec.model_validate(spec.to_dict()) == spec


def test_choice_is_a_list_and_whole_rates_are_numbers():
    spec = spec_of("name: x\nsweep: {learning_rate: {choice: [1, 1e-3]}}")
    assert spec.sweep.learning_rate == (1.0, 0.001)
    assert type(spec.sweep.learning_rate[0]) is float


@pytest.mark.parametrize("name", ["a", "9", "lenet-fashion_2.1", "x" * 64])
def test_names_that_are_fit_for_a_folder(name):
    assert StudySpec(name=name).name == name


def test_too_many_trials():
    text = "name: x\nsweep: {{seed: {0}, batch_size: {1}}}"
    spec_of(text.format(list(range(100)), list(range(1, 101))))  # 10,000
    (problem,) = problems_of(text.format(list(range(100)), list(range(1, 102))))
    assert "10,100 trials, more than 10,000" in problem.message


def test_the_error_survives_pickling():
    with pytest.raises(SpecError) as caught:
        spec_of("name: a/b")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.problems) == (str(caught.value), caught.value.problems)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=5))
def test_any_value_anywhere_gives_a_spec_or_a_spec_error(value):
    import yaml

    everywhere = dict.fromkeys(("train", "sweep", "storage", "targets", "workload"), value)  # each is read to its end
    for data in ({"name": value}, {"name": "x", **everywhere}):
        with contextlib.suppress(SpecError):
            spec_of(yaml.safe_dump(data))


# --- the keys of `train`: one table for the spec and the training loop ------------------------------------------------


TRAININGS = [
    "train: {lr_rule: linear, warmup_epochs: 0.5, schedule: cosine, precision: bf16, channels_last: auto}",
    "train: {lr_rule: sqrt, schedule: one_cycle, compile: true, accumulation: 4, augment: crop_flip, shards: speed}",
    "train: {lr_rule: adascale, schedule: one_cycle, optimizer: {momentum: 0.9, weight_decay: 1e-4}}",
    "train: {gradient_sync: powersgd, powersgd_rank: 4, sync_batch_norm: true, checkpoint_every: 5}",
    "train: {gradient_sync: local_sgd, local_steps: 16, optimizer: {name: adamw}, channels_last: true}",
    "train: {gradient_sync: 'mine.sync:Tree', local_steps: 3}",
    "train: {local_steps: 4}\nsweep: {train.gradient_sync: [ddp, naive, flat, ring, bf16, powersgd, local_sgd]}",
    "sweep: {train.lr_rule: [none, linear], train.precision: [fp32, bf16], train.channels_last: [true, auto]}",
    "sweep: {points: [{train.lr_rule: adascale, train.precision: fp32}, {train.lr_rule: sqrt, train.precision: bf16}]}",
    "workload: {loss: mse, metric: mse, metric_mode: min, model: linear_regression, data: synthetic_linear}\n"
    "targets: {accuracy: [2.5, 0.1]}",
    "workload: {loss: 'my.losses:focal', metric: 'my.metrics:r2', model: 'torchvision:resnet18'}\n"
    "targets: {accuracy: [-1, 0]}",
]


@pytest.mark.parametrize("text", TRAININGS)
def test_every_way_of_training_is_accepted_and_reads_back_equal(text):
    spec = parse_study(f"name: x\n{text}", "study.yaml")
    again = parse_study(spec.to_yaml(), "study.yaml")
    assert again == spec
    for trial in make_plan(spec).trials:  # and the training loop accepts it as well
        train_config(trial, "data").weights(trial.num_gpus)


TIMED = "search: {method: tpe, objective: cost_to_target}\ntargets: {accuracy: [0.9]"
PLAIN = "targets: {accuracy: [0.9]"
ADAPTIVE = "search: {method: adaptive}\nbudget: {trials: 5}"


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        (f"{TIMED}}}", True),
        (f"{PLAIN}}}", False),
        (f"{TIMED}, stop: false}}", False),
        ("", False),  # nothing to stop at
        (f"{PLAIN}, stop: true}}", True),
        (f"{ADAPTIVE}\n{PLAIN}}}", True),
        (f"{ADAPTIVE}\n{PLAIN}, stop: true}}", True),
    ],
)
def test_trainings_stop_at_the_target_where_only_the_time_to_it_is_asked_for(text, stops):
    spec = spec_of(f"name: x\nsweep: {{num_gpus: [1, 2]}}\n{text}")
    assert spec.stops_at_target is stops
    assert spec_of(spec.to_yaml()).stops_at_target is stops


def test_the_tolerance_is_a_tenth_the_confidence_a_half_unless_said_otherwise_and_they_change_no_id():
    rests = ("", ", tolerance: 0", ", tolerance: 0.25", ", confidence: 0.9")
    specs = [spec_of(f"name: x\n{PLAIN}{rest}}}") for rest in rests]
    assert [spec.targets.tolerance for spec in specs] == [0.1, 0.0, 0.25, 0.1]
    assert [spec.targets.confidence for spec in specs] == [0.5, 0.5, 0.5, 0.9]
    assert len({tuple(trial.trial_id for trial in make_plan(spec).trials) for spec in specs}) == 1


@pytest.mark.parametrize(
    ("objective", "minimises"), [("metric", "time"), ("time_to_target", "time"), ("cost_to_target", "cost")]
)
def test_an_adaptive_search_minimises_the_time_unless_the_cost_is_asked_for(objective, minimises):
    text = f"name: x\nsweep: {{num_gpus: [1, 2]}}\n{ADAPTIVE}\n{PLAIN}}}"
    assert spec_of(text, f"search.objective={objective}").minimises == minimises


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("", False),
        (f"{ADAPTIVE}\n", True),
        (f"{ADAPTIVE}\nworkload: {{loop: 'my:loop', exact: true}}\n", False),
    ],
)
def test_a_training_must_be_exact_where_it_stands_for_those_with_other_workers(text, needs):
    assert spec_of(f"name: x\nsweep: {{num_gpus: [1, 2]}}\n{text}{PLAIN}}}").needs_exact is needs


def test_a_training_that_stops_is_the_beginning_of_the_whole_one_and_has_its_id():
    plans = [make_plan(spec_of(f"name: x\n{PLAIN}, stop: {stop}}}")) for stop in ("auto", "true", "false")]
    assert plans[0] == plans[1] == plans[2]


# --- ids of trials ----------------------------------------------------------------------------------------------------


KNOWN_IDS = {
    "": ["582912de6e20"],
    "sweep: {num_gpus: [2], train.shards: [even, [3, 1]], train.optimizer.momentum: [0, 0.9]}": [
        "efe2d204716c",
        "04dd8e3361c2",
        "fe2812d1aff6",
        "6b99ff9741f2",
    ],
    "resources: {exclusive: true, placement: spread}\ntrain: {gradient_clip: 1e-05}": ["9938268763d8"],
    "train: {gradient_sync: local_sgd, local_steps: 16, optimizer: {name: adamw}, channels_last: true}": [
        "a8cca6d84c37"
    ],
}
"""A study is resumed and extended by these ids. Another default of a key needs another `ID_FORMAT`."""


@pytest.mark.parametrize("text", KNOWN_IDS)
def test_trials_keep_their_ids(text):
    assert [trial.trial_id for trial in make_plan(spec_of(f"name: x\n{text}")).trials] == KNOWN_IDS[text]


IDENTIFIED = [
    *(text.removeprefix("name: x\n").removeprefix("name: x") for text in SPECS),
    *TRAININGS,
    *KNOWN_IDS,
    "sweep: {num_gpus: [1, 2], batch_size: [64, 256], learning_rate: [0.1, 1], seed: [0, 1]}",
    "sweep: {train.epochs: [9, 10], train.warm_up_steps: [4, 5], train.checkpoint_every: [0, 1]}",
    "sweep: {train.nesterov: [true]}",
    "sweep: {train.optimizer.momentum: [0, 0.5], train.optimizer.weight_decay: [0, 0.5]}",
    "sweep: {train.optimizer.name: [sgd, adam, adamw]}",
    "sweep: {workload.model_args.a: [0, 1, 1.5, false, true, null, '1'], workload.data_args.a: [1, 2]}",
    "train: {steps: 10}",
    "train: {steps: 10, eval_every: {steps: 1}}",
    "train: {epochs: 10, eval_every: {epochs: 1}}",
    "train: {optimizer: {betas: [0.9, 0.999], name: adam}}",
    "train: {optimizer: {eps: 1e-08, name: adam}}",
    "train: {powersgd_rank: 2, gradient_sync: powersgd}",
    "train: {gradient_sync: powersgd}",
    "workload: {task: 'my:Task'}",
    "workload: {loader: {workers: 0}}",
    "resources: {device: cpu}",
    "resources: {cpus_per_worker: 2}",
    "resources: {gpus_per_worker: 0.5}",
    "resources: {oversubscribe: true}",
]


def written_out(trial, resources):
    """Everything that can change the result of a trial, defaults too, as text."""
    no_result = ("exclusive", "placement", "oversubscribe", "checkpoint_every", "loader")
    parts = {"workload": trial.workload, "train": trial.train, "resources": resources}
    kept = {name: {key: value for key, value in part.items() if key not in no_result} for name, part in parts.items()}
    numbers = {key: trial.params[key] for key in ("num_gpus", "batch_size", "learning_rate", "seed")}
    return json.dumps({**numbers, **kept}, sort_keys=True)


def test_two_trials_share_an_id_exactly_if_all_that_can_change_the_result_is_equal():
    pairs = set()
    for text in IDENTIFIED:
        with contextlib.suppress(SpecError):
            spec = spec_of(f"name: x\n{text}")
            resources = spec.to_dict()["resources"]
            pairs |= {(trial.trial_id, written_out(trial, resources)) for trial in make_plan(spec).trials}
    ids, texts = zip(*pairs, strict=True)
    assert len(pairs) == len(set(ids)) == len(set(texts)) > 80


def test_a_key_that_a_version_lacks_changes_no_id():
    plain = spec_of("name: x").to_dict()
    point = {"num_gpus": 1, "batch_size": 64, "learning_rate": 0.1, "seed": 0}
    now = trial_id(point, plain["workload"], plain["train"], plain["resources"])
    for section in ("workload", "train", "resources"):
        for key in plain[section]:
            less = {**plain, section: {name: value for name, value in plain[section].items() if name != key}}
            assert trial_id(point, less["workload"], less["train"], less["resources"]) == now, key
    with_task = {**plain["workload"], "task": "my_task:Task"}
    assert now != trial_id(point, with_task, plain["train"], plain["resources"])


NEW_KEY = """
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    \'\'\'share of every class in a target\'\'\'
"""
FIND_IT = """
import contextlib, io, json
from scalestudy.experiments.spec.reading import new_spec
from scalestudy.experiments.plan.plan import make_plan, trial_id
from scalestudy.experiments.spec.reading import SpecError, parse_study
from infra.docs.spec_keys import table
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.arguments import make_config, make_parser
from scalestudy.training.config import TrainConfig

def study(text):
    return parse_study(f"name: x\\n{text}", "x.yaml")

def problem(text):
    try:
        study(text)
    except SpecError as error:
        return str(error)

in_range = study("search: {method: random}\\nsweep: {train.label_smoothing: {uniform: [0, 0.5]}}")
trials = make_plan(study("sweep: {train.label_smoothing: [0, 0.1]}")).trials
options = make_parser("").parse_args(
    "--model lenet --data digits --batch-size 8 --learning-rate 0.1 --label-smoothing 0.2".split()
)
print(json.dumps({
    "value": study("train: {label_smoothing: 0.1}").to_dict()["train"]["label_smoothing"],
    "bad": problem("train: {label_smoothing: 1}"),
    "bad_sweep": problem("sweep: {train.label_smoothing: [-1]}"),
    "range": list(in_range.sweep.ranges()),
    "trained": [train_config(trial, "data").label_smoothing for trial in trials],
    "option": make_config(options).label_smoothing,
    "help": make_parser("").format_help(),
    "template": new_spec("x"),
    "table": table(),
}))
"""


def test_a_key_is_declared_once_and_found_everywhere(tmp_path):
    """In a copy of the packages with one more line in training/config.py."""
    for folder in ("scalestudy", "training", "experiments", "orchestration", "infra"):
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, symlinks=True, ignore=without_caches)
    file = tmp_path / "training" / "config.py"
    text = file.read_text("utf-8")
    place = text.index("    warm_up_steps: Annotated[")
    file.write_text(text[:place] + NEW_KEY.strip("\n") + "\n" + text[place:], "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FIND_IT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["value"] == 0.1
    assert found["bad"] == "x.yaml:2: train.label_smoothing: 1 is too large; it must be less than 1"
    assert found["bad_sweep"] == "x.yaml:2: sweep.train.label_smoothing: -1 is too small; use at least 0"
    assert found["range"] == ["train.label_smoothing"]
    assert found["trained"] == [0.0, 0.1]
    assert found["option"] == 0.2
    assert "--label-smoothing LABEL_SMOOTHING" in found["help"]
    assert "share of every class in a target" in " ".join(found["help"].split())
    assert "  label_smoothing: 0.0      # share of every class in a target\n" in found["template"]
    assert "| `train.label_smoothing` | `0.0` | share of every class in a target |" in found["table"]


def test_targets_may_be_written_under_the_metrics_name():
    text = "name: x\nworkload: {task: my_task:Task, metric: r2}\ntargets: {r2: [0.9]}\n"
    spec = spec_of(text)
    assert spec.targets.accuracy == (0.9,)
    assert spec.to_dict()["targets"]["r2"] == [0.9]
    assert "accuracy" not in spec.to_dict()["targets"]
    assert spec_of(spec.to_yaml()) == spec
    assert spec_of("name: x\ntargets: {accuracy: [0.9]}").to_dict()["targets"]["accuracy"] == [0.9]


def test_how_data_are_read_ahead_changes_no_id_but_may_change_the_time_of_a_step():
    first, second = (
        spec_of(f"name: x\nworkload: {{loader: {{workers: {workers}}}}}").to_dict() for workers in ("null", 2)
    )
    point = {"num_gpus": 1, "batch_size": 64, "learning_rate": 0.1, "seed": 0}
    ids = {trial_id(point, each["workload"], each["train"], each["resources"]) for each in (first, second)}
    assert len(ids) == 1
    earlier = {key: value for key, value in first["workload"].items() if key != "loader"}
    assert way_of(earlier, first["train"]) == way_of(first["workload"], first["train"])
    assert way_of(first["workload"], first["train"]) != way_of(second["workload"], second["train"])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 10),
        ("train: {epochs: 7, eval_every: {epochs: 3}}", 3),
        ("train: {epochs: 2}\nsweep: {train.epochs: [2, 5]}", 5),
        ("train: {steps: 100}\nsweep: {train.eval_every: [{steps: 5}, {steps: 50}]}", 20),
        ("train: {steps: 10, eval_every: {steps: 5}}\nsweep: {train.steps: [10, 41]}", 9),
    ],
)
def test_the_most_evaluations_of_a_training(text, count):
    assert spec_of(f"name: x\n{text}").evaluations == count


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("warmup_steps: 100", "100 with train.epochs: at batch_size 256 the warm-up is 8 times as large a share"),
        ("warmup_steps: 100, steps: 1000", None),
        ("warmup_epochs: 2", None),
        (
            "warmup_epochs: 2, steps: 1000",
            "at batch_size 32 the warm-up is 8 times as large a share of the training as at",
        ),
        ("warmup_share: 0.1, steps: 1000", None),
    ],
)
def test_a_warm_up_of_another_share_at_each_batch_size_is_noted(train, said):
    notes = spec_of(f"name: x\ntrain: {{{train}}}\nsweep: {{batch_size: [64, 256, 32]}}").notes
    assert [said in note for note in notes] == ([True] if said else [])
    assert spec_of(f"name: x\ntrain: {{{train}}}\nsweep: {{batch_size: [64]}}").notes == []


LOOP = """
name: x
workload: {loop: 'my:loop', loop_args: {hidden: 8}, metric: perplexity, metric_mode: min, metrics: {samples: seen}}
train: {epochs: 3}
sweep: {num_gpus: [1, 2], batch_size: [32], workload.loop_args.hidden: [4, 16]}
targets: {perplexity: [9]}
"""


def test_the_spec_of_a_loop_says_what_holds_and_comes_back():
    spec = spec_of(LOOP)
    plain = spec.to_dict()
    assert set(plain["workload"]) == {"loop", "loop_args", "metrics", "datasets", "exact", "metric", "metric_mode"}
    assert plain["train"] == {"epochs": 3}
    assert StudySpec.model_validate(json.loads(json.dumps(plain))) == spec == parse_study(spec.to_yaml(), "study.yaml")
    trials = make_plan(spec).trials
    assert [trial.workload["loop_args"] for trial in trials] == [{"hidden": 4}, {"hidden": 16}] * 2
    assert all(trial.train == {"epochs": 3} and "model" not in trial.workload for trial in trials)


def test_a_trial_of_a_loop_gives_its_workers_what_they_read():
    config = train_config(make_plan(spec_of(LOOP)).trials[1], "data")
    assert (config.loop, config.loop_args, config.metrics) == ("my:loop", {"hidden": 16}, {"samples": "seen"})
    assert (config.epochs, config.batch_size, config.learning_rate, config.seed) == (3, 32, 0.1, 0)


def test_the_spec_of_the_built_in_loop_names_no_key_of_another():
    plain = spec_of("name: x").to_dict()["workload"]
    assert not plain.keys() & {"loop", "loop_args", "metrics", "datasets", "exact"}
    assert {"model", "data", "loss", "task", "loader"} <= plain.keys()


def test_an_id_of_a_loop_follows_its_arguments_and_names():
    def ids(text):
        return {trial.trial_id for trial in make_plan(spec_of(text)).trials}

    assert len(ids(LOOP)) == 4
    for before, after in (
        ("my:loop", "my:other"),
        ("seen", "samples"),
        ("perplexity", "loss"),
        ("epochs: 3", "epochs: 4"),
    ):
        assert not ids(LOOP) & ids(LOOP.replace(before, after))
    assert ids(LOOP.replace("metric:", "exact: true, metric:")) == ids(LOOP)  # it says something, and changes nothing


def test_a_loop_that_reports_once_or_twice_is_noted():
    (note,) = spec_of(LOOP, "train.epochs=2").notes
    assert "reported twice" in note
    assert "let the loop report more often" in note
    assert spec_of(LOOP).notes == []
