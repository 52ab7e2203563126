"""A spec file becomes a validated StudySpec, or every problem is told."""

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
from scalestudy.training.section import ConfigError
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


# (the spec after its name, the field, the line, a piece of the message)
BAD = [
    ("nmae: y", "nmae", 2, 'did you mean "name"'),
    ("version: 1", "version", 2, "1 is not the form of this version's specs; write version: 2, or remove the key"),
    ("version: true", "version", 2, "true is not a whole number"),
    ("train: {epoch: 3}", "train.epoch", 2, 'did you mean "epochs"'),
    ("train:\n  epochs: '2'", "train.epochs", 3, '"2" is not a whole number'),
    ("train: {epochs: true}", "train.epochs", 2, "true is not a whole number"),
    ("train: {epochs: 0}", "train.epochs", 2, "at least 1"),
    ("train: {epochs: 99999999999}", "train.epochs", 2, "too large"),
    ("train: {optimizer: sgd}", "train.optimizer", 2, "not a mapping"),
    ("train: {optimizer: {name: sdg}}", "train.optimizer.name", 2, 'did you mean "sgd"'),
    ("train: {optimizer: {momentum: 1}}", "train.optimizer.momentum", 2, "less than 1"),
    ("train: {lr_rule: adascal}", "train.lr_rule", 2, 'did you mean "adascale"'),
    (
        "train: {schedule: step}",
        "train.schedule",
        2,
        "is not built in; choose constant, cosine, linear, one_cycle",
    ),
    ("train: {warmup_epochs: -1}", "train.warmup_epochs", 2, "at least 0"),
    ("train: {warmup_epochs: .inf}", "train.warmup_epochs", 2, "not a finite number"),
    ("train: {base_batch_size: 0}", "train.base_batch_size", 2, "at least 1"),
    ("train: {precision: fp16}", "train.precision", 2, "is not fp32, tf32 or bf16"),
    ("train: {channels_last: 1}", "train.channels_last", 2, "1 is not false, true or auto"),
    ("train: {compile: auto}", "train.compile", 2, "not false, true, reduce-overhead or max-autotune"),
    ("train: {sync_batch_norm: 1}", "train.sync_batch_norm", 2, "not true or false"),
    ("train: {accumulation: 0}", "train.accumulation", 2, "at least 1"),
    ("train: {accumulation: 2.0}", "train.accumulation", 2, "not a whole number"),
    ("train: {augment: flip}", "train.augment", 2, "is not none or crop_flip"),
    ("train: {gradient_sync: rign}", "train.gradient_sync", 2, 'did you mean "ring"? choose ddp, naive, flat'),
    ("train: {gradient_sync: 'a b:c'}", "train.gradient_sync", 2, "package.module:callable"),
    ("train: {gradient_sync: powersgd, powersgd_rank: 0}", "train.powersgd_rank", 2, "at least 1"),
    ("train: {gradient_sync: local_sgd, local_steps: 0}", "train.local_steps", 2, "at least 1"),
    ("train: {powersgd_rank: 2}", "train.powersgd_rank", 2, "no trial's gradient_sync is powersgd; set gradient_sync"),
    ("train: {local_steps: 4}", "train.local_steps", 2, "no trial's gradient_sync is local_sgd; set gradient_sync"),
    ("sweep: {train.local_steps: [4, 8]}", "sweep.train.local_steps", 2, "4 has no effect"),
    ("train: {checkpoint_every: -1}", "train.checkpoint_every", 2, "at least 0"),
    ("train: {shards: odd}", "train.shards", 2, "is not even, speed or a list of weights"),
    ("train: {lr_rule: adascale, optimizer: {name: adam}}", "train.lr_rule", 2, "optimizer.name adam, which some"),
    ("train: {lr_rule: adascale, gradient_sync: local_sgd}", "train.lr_rule", 2, "exact gradient"),
    ("train: {lr_rule: adascale, gradient_sync: powersgd}", "train.lr_rule", 2, "exact gradient"),
    ("train: {lr_rule: adascale, gradient_sync: bf16}", "train.lr_rule", 2, "exact gradient"),
    ("train: {lr_rule: adascale, warmup_epochs: 1}", "train.warmup_epochs", 2, "the gain of adascale is a warm-up"),
    ("train: {schedule: one_cycle, warmup_epochs: 2}", "train.warmup_epochs", 2, "has its own warm-up; set warmup"),
    ("train: {optimizer: {name: adam, momentum: 0.9}}", "train.optimizer.momentum", 2, "only sgd uses it"),
    ("train: {warmup_epochs: 5}\nsweep: {train.schedule: [cosine, one_cycle]}", "train.warmup_epochs", 2, "one_cycle"),
    ("sweep: {train.lr_rule: [linear, adascale], train.warmup_epochs: [0, 5]}", "sweep.train.warmup_epochs", 2, "5.0"),
    ("sweep: {points: [{train.lr_rule: adascale, train.warmup_epochs: 5}]}", "sweep.points", 2, "5.0 does not go"),
    ("train: {gradient_clip: 0}", "train.gradient_clip", 2, "greater than 0"),
    ("train: {shards: [1, 0]}", "train.shards", 2, "weights"),
    ("train: {shards: [1, 2]}", "train.shards", 2, "has 2 weights, but num_gpus is 1"),
    ("train: {shards: [0.9, 0.3]}", "train.shards", 2, "sum to 1.2, not 1; give shares that sum to 1, or whole"),
    ("train: {shards: []}", "train.shards", 2, "is not even, speed or a list of weights"),
    ("train: {optimizer: {nam: sgd}}", "train.optimizer.nam", 2, 'did you mean "name"? the keys here are amsgrad'),
    ("train: {gradient_sync: ''}", "train.gradient_sync", 2, "is empty"),
    ("train: {gradient_sync: 3}", "train.gradient_sync", 2, "is not text"),
    ("train: null", "train", 2, "not a mapping"),
    ("sweep: {num_gpus: [1, 0]}", "sweep.num_gpus", 2, "0 is too small; use at least 1"),
    ("sweep: {num_gpus: [-1]}", "sweep.num_gpus", 2, "-1 is too small"),
    ("sweep: {num_gpus: [2.0]}", "sweep.num_gpus", 2, "2.0 is not a whole number"),
    ("sweep: {num_gpus: 2}", "sweep.num_gpus", 2, "write a list: [2]"),
    ("sweep: {num_gpus: []}", "sweep.num_gpus", 2, "empty list"),
    ("sweep:\n  num_gpus:\n    - 1\n    - 1", "sweep.num_gpus", 5, "1 is listed twice"),
    ("sweep: {num_gpus: [1]}\nsweep: {num_gpus: [2]}", "sweep", 3, "given twice"),
    ("sweep: {num_gpus: [1, 4], batch_size: [8, 2]}", "sweep.batch_size", 2, "2 is smaller than num_gpus 4"),
    ("sweep: {learning_rate: [0]}", "sweep.learning_rate", 2, "greater than 0"),
    ("sweep: {learning_rate: [.nan]}", "sweep.learning_rate", 2, ".nan is not a finite number"),
    ("sweep: {learning_rate: [.inf]}", "sweep.learning_rate", 2, ".inf is not a finite number"),
    ("sweep: {learning_rate: [-0.1]}", "sweep.learning_rate", 2, "too small"),
    ("sweep: {learning_rate: ['0.1']}", "sweep.learning_rate", 2, "not a number"),
    ("sweep: {learning_rate: [0.1, 1e-1]}", "sweep.learning_rate", 2, "listed twice"),
    ("sweep: {learning_rate: {log_uniform: [0.1, 1]}}", "sweep.learning_rate", 2, "is a range"),
    ("sweep: {learning_rate: {log_uniform: [0, 1]}}", "sweep.learning_rate", 2, "bounds"),
    ("sweep: {learning_rate: {uniform: [2, 1]}}", "sweep.learning_rate", 2, "bounds"),
    ("sweep: {seed: [-1]}", "sweep.seed", 2, "at least 0"),
    ("sweep: {train.gradiant_sync: [ddp]}", "sweep.train.gradiant_sync", 2, 'did you mean "train.gradient_sync"'),
    ("sweep: {train.gradient_sync: [ddp, rign]}", "sweep.train.gradient_sync", 2, '"rign" is not built in; did you'),
    ("sweep: {train.optimizer.momentum: [0, 2]}", "sweep.train.optimizer.momentum", 2, "2 is too large"),
    ("sweep: {train.optimizer: [{}]}", "sweep.train.optimizer", 2, "can't be swept"),
    ("sweep: {workload.model: [lenet]}", "sweep.workload.model", 2, "workload.model_args.NAME or workload.data_args"),
    ("sweep: {workload.model_args.: [1]}", "sweep.workload.model_args.", 2, "can't be swept"),
    ("sweep: {workload.model_args.a.b: [1]}", "sweep.workload.model_args.a.b", 2, "can't be swept"),
    ("sweep: {workload.model_args.a: [.inf]}", "sweep.workload.model_args.a", 2, ".inf is not plain data; write num"),
    ("sweep: {workload.model_args.a: [1, 1]}", "sweep.workload.model_args.a", 2, "listed twice"),
    ("sweep: {workload.model_args.a: 64}", "sweep.workload.model_args.a", 2, "write a list: [64]"),
    (
        "workload: {model: mlp}\nsearch: {method: factorised}\n"
        "sweep: {num_gpus: [1, 2], workload.model_args.dropout: [0, 0.5]}",
        "sweep.workload.model_args.dropout",
        4,
        "has dropout, whose random numbers differ with num_gpus; set it to 0",
    ),
    (
        "workload: {model: mlp}\nsearch: {method: factorised}\n"
        "sweep: {num_gpus: [1, 2], workload.model_args.batch_norm: [false, true]}",
        "workload.model",
        2,
        "has batch normalisation",
    ),
    ("sweep: {num_gpus: [2], train.shards: [[1, 2, 3]]}", "sweep.train.shards", 2, "3 weights, but num_gpus is 2"),
    ("sweep: {points: []}", "sweep.points", 2, "not a list of points"),
    ("sweep: {points: [{num_gpus: 1}, {batch_size: 1}]}", "sweep.points", 2, "other keys"),
    ("sweep: {points: [{num_gpus: 1}, {num_gpus: 1}]}", "sweep.points", 2, "twice"),
    ("sweep: {points: [{num_gpus: 1}], num_gpus: [1]}", "sweep.num_gpus", 2, "in sweep.points"),
    ("sweep: {points: [{num_gpus: 3, batch_size: 2}]}", "sweep.points", 2, "smaller than num_gpus 3"),
    ("sweep: null", "sweep", 2, "not a mapping"),
    ("search: {method: factored}", "search.method", 2, 'did you mean "factorised"? choose grid, random, tpe or'),
    ("search: {scheduler: median}", "search.scheduler", 2, "is not none or asha"),
    ("resources: {exclusive: 1}", "resources.exclusive", 2, "1 is not false, true or auto"),
    (
        "resources: {placement: packed}",
        "resources.placement",
        2,
        'did you mean "pack"? choose pack or spread',
    ),
    ("resources: {gpus_per_worker: 0}", "resources.gpus_per_worker", 2, "greater than 0"),
    ("targets: {accuracy: [0]}", "targets.accuracy", 2, "greater than 0"),
    ("targets: {accuracy: [1.5]}", "targets.accuracy", 2, "at most 1"),
    ("targets: {accuracy: [0.5, 0.5]}", "targets.accuracy", 2, "twice"),
    ("targets: {accuracy: [.inf]}", "targets.accuracy", 2, "not a finite number"),
    ("targets: {accuracy: [0]}\nworkload: {metric: mse, metric_mode: min}", "targets.accuracy", 2, "greater than 0"),
    ("workload: {loss: hinge}", "workload.loss", 2, "is not built in; choose cross_entropy, mse, or write package"),
    ("workload: {loss: 'm:'}", "workload.loss", 2, "write package.module:callable"),
    ("workload: {metric: acuracy}", "workload.metric", 2, 'did you mean "accuracy"'),
    ("workload: {metric: 'my.metrics:loss'}", "workload.metric", 2, "test_loss"),
    ("workload: {metric_mode: least}", "workload.metric_mode", 2, "is not max or min"),
    ("workload: {metric_mode: min}", "workload.metric_mode", 2, "the smallest accuracy; the largest is best"),
    ("workload: {metric: mse}", "workload.metric_mode", 2, "the smallest is best; write metric_mode: min"),
    ("workload: {data: 'torchvision:CIFAR10'}", "workload.data", 2, "not available"),
    ("workload: {model: lennet}", "workload.model", 2, 'did you mean "lenet"? choose lenet, mlp'),
    ("workload: {data: imagenet}", "workload.data", 2, "choose digits, mnist, fashion_mnist, cifar10, synthetic"),
    ("workload: {model: 'a b:c'}", "workload.model", 2, "package.module:callable"),
    ("storage: ''", "storage", 2, "is empty"),
    ("storage: ftp://host/x", "storage", 2, "unknown kind of storage; name a folder, or a URI that starts with one of"),
    ("storage: s3://", "storage", 2, "is not a folder in a bucket"),
    ("storage: s3://bucket/a/../../b", "storage", 2, "is not a folder in a bucket"),
    ("storage: s3://me:secret@bucket/x", "storage", 2, "AWS_SECRET_ACCESS_KEY"),
    ("tracking: {uri: ''}", "tracking.uri", 2, "is empty"),
    ("tracking: {uri: 'file:./mlruns'}", "tracking.uri", 2, "retired"),
    ("tracking: {uri: ./mlruns}", "tracking.uri", 2, "retired"),
    ("tracking: {experiment: ' '}", "tracking.experiment", 2, "is empty"),
    ("tracking: {offline: queue}", "tracking.offline", 2, "is not refuse or spool"),
    ("workload: {model: !!python/object/apply:os.system [ls]}", "workload.model", 2, "refused"),
]


@pytest.mark.parametrize(("text", "field", "line", "piece"), BAD, ids=[f"{row[1]}-{n}" for n, row in enumerate(BAD)])
def test_bad_input_names_file_line_field_value_and_remedy(text, field, line, piece):
    problems = problems_of(f"name: x\n{text}\n")
    found = [problem for problem in problems if problem.field == field and piece in problem.text("study.yaml")]
    assert found, [problem.text("study.yaml") for problem in problems]
    assert found[0].line == line
    assert found[0].text("study.yaml").startswith(f"study.yaml:{line}: {field}: ")
    assert found[0].remedy


NO_LISTS = [
    ("sweep", "batch_size", "64", "[64]"),
    ("sweep", "batch_size", "'64'", "[64]"),
    ("sweep", "batch_size", "64, 128", "[64, 128]"),
    ("sweep", "learning_rate", "0.1 1e-2", "[0.1, 1e-2]"),
    ("sweep", "learning_rate", "{choice: 0.1}", "[0.1]"),
    ("sweep", "train.gradient_sync", "ddp, flat", "[ddp, flat]"),
    ("sweep", "train.optimizer.momentum", "0.9", "[0.9]"),
    ("targets", "accuracy", "0.9", "[0.9]"),
    ("targets", "accuracy", "90%, 95%", "[0.9, 0.95]"),
]


@pytest.mark.parametrize(("section", "key", "written", "listed"), NO_LISTS)
def test_where_a_list_is_meant_the_error_has_the_text_to_write(section, key, written, listed):
    (problem,) = problems_of(f"name: x\n{section}:\n  {key}: {written}\n")
    assert (problem.field, problem.line) == (f"{section}.{key}", 3)
    assert problem.text("study.yaml").endswith(f"is not a list; write a list: {listed}")
    spec_of(f"name: x\n{section}:\n  {key}: {listed}\n")


@pytest.mark.parametrize("written", ["null", "{low: 1}", "''", "'" + "1, " * 100 + "2'"])
@pytest.mark.parametrize(("section", "key"), [("sweep", "batch_size"), ("targets", "accuracy")])
def test_what_no_list_can_be_made_of_is_refused_without_one(section, key, written):
    (problem,) = problems_of(f"name: x\n{section}: {{{key}: {written}}}\n")
    assert (problem.message, problem.remedy) == ("is not a list", "list at least one value, or remove the key")


@pytest.mark.parametrize("name", ["a/b", "../x", "..", "", ".hidden", "-x", "a b", "x" * 65, "näme", "a\n", "a\0"])
def test_names_that_are_unfit_for_a_folder(name):
    with pytest.raises(ConfigError, match=r"^name: .* can't name a folder; use letters"):
        StudySpec(name=name)


@pytest.mark.parametrize("name", ["a", "9", "lenet-fashion_2.1", "x" * 64])
def test_names_that_are_fit_for_a_folder(name):
    assert StudySpec(name=name).name == name


def test_all_problems_are_told_at_once_in_the_files_order():
    problems = problems_of(
        """
        name: a/b
        train: {epochs: 0}
        sweep: {num_gpus: [8, 0], batch_size: [4]}
        workload: {model: lennet}
        """,
        "limits.trial_minutes=-1",
    )
    assert [(problem.field, problem.line) for problem in problems] == [
        ("name", 2),
        ("train.epochs", 3),
        ("sweep.num_gpus", 4),
        ("sweep.batch_size", 4),
        ("workload.model", 5),
        ("limits.trial_minutes", "--set"),
    ]


def test_a_wrong_key_of_train_hides_no_other():
    """Of the keys, of the sections in them, and of how the values go together."""
    problems = problems_of(
        """
        name: x
        train:
          epochs: 1.5
          optimizer: {momentum: -1, name: adam}
          lr_rule: adascale
          qq: 1
        """
    )
    assert [(problem.field, problem.line, problem.value) for problem in problems] == [
        ("train.epochs", 4, 1.5),
        ("train.optimizer.momentum", 5, -1),
        ("train.lr_rule", 6, "adascale"),
        ("train.qq", 7, 1),
    ]


def test_an_unknown_model_hides_no_unknown_metric():
    problems = problems_of("name: x\nworkload: {model: lenat, metric: foo}\ntrain: {tokens: 0}")
    assert [problem.field for problem in problems] == ["workload.model", "workload.metric", "train.tokens"]


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

    for key in ("name", "train", "sweep", "storage", "targets", "workload"):
        text = yaml.safe_dump({"name": "x", key: value})
        with contextlib.suppress(SpecError):
            spec_of(text)


def test_the_spec_loads_without_anything_heavy():
    heavy = "matplotlib scipy pandas numpy torch ray mlflow"
    ours = "scalestudy.experiments.spec.reading, scalestudy.experiments.plan.plan"
    code = f"import sys, {ours}; print([m for m in '{heavy}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
FACTORISED = "search: {method: factorised}\ntargets: {accuracy: [0.9]"
PLAIN = "targets: {accuracy: [0.9]"


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        (f"{FACTORISED}}}", True),
        (f"{TIMED}}}", True),
        (f"{PLAIN}}}", False),
        ("search: {method: factorised}", False),  # nothing to stop at
        (f"{FACTORISED}, stop: false}}", False),
        (f"{PLAIN}, stop: true}}", True),
    ],
)
def test_trainings_stop_at_the_target_where_only_the_time_to_it_is_asked_for(text, stops):
    spec = spec_of(f"name: x\nsweep: {{num_gpus: [1, 2]}}\n{text}")
    assert spec.stops_at_target is stops
    assert spec_of(spec.to_yaml()).stops_at_target is stops


def test_the_tolerance_is_a_tenth_unless_said_otherwise_and_changes_no_id():
    texts = [f"name: x\n{PLAIN}}}", f"name: x\n{PLAIN}, tolerance: 0}}", f"name: x\n{PLAIN}, tolerance: 0.25}}"]
    specs = [spec_of(text) for text in texts]
    assert [spec.targets.tolerance for spec in specs] == [0.1, 0.0, 0.25]
    assert len({tuple(trial.trial_id for trial in make_plan(spec).trials) for spec in specs}) == 1


@pytest.mark.parametrize("value", ["-0.1", ".inf", "a tenth"])
def test_a_tolerance_that_is_no_share_is_one_clear_mistake(value):
    (problem,) = problems_of(f"name: x\n{PLAIN}, tolerance: {value}}}")
    assert problem.field == "targets.tolerance"


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
    both = problems_of(text.replace("[0.9]", "[0.9], accuracy: [0.8]"))
    assert [problem.field for problem in both] == ["targets.r2"]
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
    "loader", ["{workers: -1}", "{workers: 257}", "{workers: true}", "{prefetch: 0}", "{threads: 2}"]
)
def test_a_loader_that_can_not_be_is_refused_at_its_key(loader):
    (problem,) = problems_of(f"name: x\nworkload: {{loader: {loader}}}")
    assert problem.field.startswith("workload.loader.")


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
