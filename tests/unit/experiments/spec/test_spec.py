"""A spec file becomes a validated StudySpec, or every problem is told."""

import contextlib
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalestudy.experiments.spec.reading import SpecError, load_study
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.synthetic_studies import DATASETS, MODELS, problems_of, spec_of


def load(path, *overrides):
    return load_study(path, overrides, models=MODELS, datasets=DATASETS)


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
    with pytest.raises(FrozenInstanceError):
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
    ("train: {epoch: 3}", "train.epoch", 2, 'did you mean "epochs"'),
    ("train:\n  epochs: '2'", "train.epochs", 3, '"2" is not a whole number'),
    ("train: {epochs: true}", "train.epochs", 2, "true is not a whole number"),
    ("train: {epochs: 0}", "train.epochs", 2, "at least 1"),
    ("train: {epochs: 99999999999}", "train.epochs", 2, "too large"),
    ("train: {optimizer: sgd}", "train.optimizer", 2, "not a mapping"),
    ("train: {optimizer: {name: sdg}}", "train.optimizer.name", 2, 'did you mean "sgd"'),
    ("train: {optimizer: {momentum: 1}}", "train.optimizer.momentum", 2, "less than 1"),
    ("train: {lr_rule: adascal}", "train.lr_rule", 2, 'did you mean "adascale"'),
    ("train: {schedule: step}", "train.schedule", 2, "is not constant, cosine or one_cycle"),
    ("train: {warmup_epochs: -1}", "train.warmup_epochs", 2, "at least 0"),
    ("train: {warmup_epochs: .inf}", "train.warmup_epochs", 2, "not a finite number"),
    ("train: {base_batch_size: 0}", "train.base_batch_size", 2, "at least 1"),
    ("train: {precision: fp16}", "train.precision", 2, "is not fp32 or bf16"),
    ("train: {channels_last: 1}", "train.channels_last", 2, "1 is not false, true or auto"),
    ("train: {compile: auto}", "train.compile", 2, "not true or false"),
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
    ("train: {lr_rule: adascale, warmup_epochs: 1}", "train.warmup_epochs", 2, "the gain of adascale rises"),
    ("train: {schedule: one_cycle, warmup_epochs: 2}", "train.warmup_epochs", 2, "has a rise of its own; set warmup"),
    ("train: {optimizer: {name: adam, momentum: 0.9}}", "train.optimizer.momentum", 2, "only sgd takes it"),
    ("train: {warmup_epochs: 5}\nsweep: {train.schedule: [cosine, one_cycle]}", "train.warmup_epochs", 2, "one_cycle"),
    ("sweep: {train.lr_rule: [linear, adascale], train.warmup_epochs: [0, 5]}", "sweep.train.warmup_epochs", 2, "5.0"),
    ("sweep: {points: [{train.lr_rule: adascale, train.warmup_epochs: 5}]}", "sweep.points", 2, "5.0 does not go"),
    ("train: {gradient_clip: 0}", "train.gradient_clip", 2, "greater than 0"),
    ("train: {shards: [1, 0]}", "train.shards", 2, "weights"),
    ("train: {shards: [1, 2]}", "train.shards", 2, "has 2 weights, but num_gpus is 1"),
    ("train: {shards: [0.9, 0.3]}", "train.shards", 2, "sum to 1.2, not 1; give shares that sum to 1, or whole"),
    ("train: {shards: []}", "train.shards", 2, "is not even, speed or a list of weights"),
    ("train: {optimizer: {nam: sgd}}", "train.optimizer.nam", 2, 'did you mean "name"? the keys here are momentum'),
    ("train: {gradient_sync: ''}", "train.gradient_sync", 2, "is empty"),
    ("train: {gradient_sync: 3}", "train.gradient_sync", 2, "is not text"),
    ("train: null", "train", 2, "not a mapping"),
    ("sweep: {num_gpus: [1, 0]}", "sweep.num_gpus", 2, "0 is too small; use at least 1"),
    ("sweep: {num_gpus: [-1]}", "sweep.num_gpus", 2, "-1 is too small"),
    ("sweep: {num_gpus: [2.0]}", "sweep.num_gpus", 2, "2.0 is not a whole number"),
    ("sweep: {num_gpus: 2}", "sweep.num_gpus", 2, "write a list, such as [2]"),
    ("sweep: {num_gpus: []}", "sweep.num_gpus", 2, "empty list"),
    ("sweep:\n  num_gpus:\n    - 1\n    - 1", "sweep.num_gpus", 5, "1 is listed twice"),
    ("sweep: {num_gpus: [1]}\nsweep: {num_gpus: [2]}", "sweep", 3, "given twice"),
    ("sweep: {num_gpus: [1, 4], batch_size: [8, 2]}", "sweep.batch_size", 2, "2 is a batch smaller than num_gpus 4"),
    ("sweep: {learning_rate: [0]}", "sweep.learning_rate", 2, "greater than 0"),
    ("sweep: {learning_rate: [.nan]}", "sweep.learning_rate", 2, ".nan is not a finite number"),
    ("sweep: {learning_rate: [.inf]}", "sweep.learning_rate", 2, ".inf is not a finite number"),
    ("sweep: {learning_rate: [-0.1]}", "sweep.learning_rate", 2, "too small"),
    ("sweep: {learning_rate: ['0.1']}", "sweep.learning_rate", 2, "not a number"),
    ("sweep: {learning_rate: [0.1, 1e-1]}", "sweep.learning_rate", 2, "listed twice"),
    ("sweep: {learning_rate: {log_uniform: [0.1, 1]}}", "sweep.learning_rate", 2, "distribution"),
    ("sweep: {learning_rate: {log_uniform: [0, 1]}}", "sweep.learning_rate", 2, "bounds"),
    ("sweep: {learning_rate: {uniform: [2, 1]}}", "sweep.learning_rate", 2, "bounds"),
    ("sweep: {seed: [-1]}", "sweep.seed", 2, "at least 0"),
    ("sweep: {train.gradiant_sync: [ddp]}", "sweep.train.gradiant_sync", 2, 'did you mean "train.gradient_sync"'),
    ("sweep: {train.gradient_sync: [ddp, rign]}", "sweep.train.gradient_sync", 2, '"rign" is not built in; did you'),
    ("sweep: {train.optimizer.momentum: [0, 2]}", "sweep.train.optimizer.momentum", 2, "2 is too large"),
    ("sweep: {train.optimizer: [{}]}", "sweep.train.optimizer", 2, "can't be swept"),
    ("sweep: {num_gpus: [2], train.shards: [[1, 2, 3]]}", "sweep.train.shards", 2, "3 weights, but num_gpus is 2"),
    ("sweep: {points: []}", "sweep.points", 2, "not a list of points"),
    ("sweep: {points: [{num_gpus: 1}, {batch_size: 1}]}", "sweep.points", 2, "other keys"),
    ("sweep: {points: [{num_gpus: 1}, {num_gpus: 1}]}", "sweep.points", 2, "twice"),
    ("sweep: {points: [{num_gpus: 1}], num_gpus: [1]}", "sweep.num_gpus", 2, "in points"),
    ("sweep: {points: [{num_gpus: 3, batch_size: 2}]}", "sweep.points", 2, "smaller than num_gpus 3"),
    ("sweep: null", "sweep", 2, "not a mapping"),
    ("search: {method: factored}", "search.method", 2, 'did you mean "factorised"? choose grid, random, tpe or'),
    ("search: {scheduler: median}", "search.scheduler", 2, "is not none or asha"),
    ("resources: {exclusive: 1}", "resources.exclusive", 2, "1 is not auto, true or false"),
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
    ("workload: {metric_mode: min}", "workload.metric_mode", 2, "would choose the smallest accuracy; the largest is best"),
    ("workload: {metric: mse}", "workload.metric_mode", 2, "the smallest is best; write metric_mode: min"),
    ("workload: {data: 'torchvision:CIFAR10'}", "workload.data", 2, "not available"),
    ("workload: {model: lennet}", "workload.model", 2, 'did you mean "lenet"? choose lenet, mlp'),
    ("workload: {data: imagenet}", "workload.data", 2, "choose digits, fashion_mnist, mnist, synthetic"),
    ("workload: {model: 'a b:c'}", "workload.model", 2, "package.module:callable"),
    ("storage: ''", "storage", 2, "is empty"),
    ("storage: ftp://host/x", "storage", 2, "unknown kind; name a folder, or a URI that starts with one of s3://"),
    ("storage: s3://", "storage", 2, "is not a place in a bucket"),
    ("storage: s3://bucket/a/../../b", "storage", 2, "is not a place in a bucket"),
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


@pytest.mark.parametrize("name", ["a/b", "../x", "..", "", ".hidden", "-x", "a b", "x" * 65, "näme", "a\n", "a\0"])
def test_names_that_are_unfit_for_a_folder(name):
    with pytest.raises(ValidationError):
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


def test_too_many_trials():
    text = "name: x\nsweep: {{seed: {0}, batch_size: {1}}}"
    spec_of(text.format(list(range(100)), list(range(1, 101))))  # 10,000
    (problem,) = problems_of(text.format(list(range(100)), list(range(1, 102))))
    assert "10,100 trials, more than 10,000" in problem.message


def test_overrides_replace_values_and_make_sections():
    spec = spec_of(
        "name: x\ntrain: {epochs: 3}",
        "train.epochs=4",
        "sweep.num_gpus=[1, 2]",
        "sweep.train.gradient_sync=[ddp, naive]",
        "workload.model_args.init=xavier",
        "train.gradient_clip=1e-3",
    )
    assert (spec.train.epochs, spec.train.gradient_clip) == (4, 0.001)
    assert spec.sweep.lists()["train.gradient_sync"] == ("ddp", "naive")
    assert spec.workload.model_args == {"init": "xavier"}


@pytest.mark.parametrize(
    ("override", "piece"),
    [
        ("trian.epochs=3", 'trian: {"epochs": 3} stands under an unknown key; did you mean "train"'),
        ("train.epoch=3", 'did you mean "epochs"'),
        ("train.epochs.x=3", "epochs has no keys"),
        ("train.epochs", "not key=value"),
        ("=3", "not key=value"),
        ("train..epochs=3", "not key=value"),
        ("train.epochs=[", "not YAML"),
        ("train.epochs=!!python/name:os.system", "refused"),
        ("train.epochs=two", '"two" is not a whole number'),
        ("sweep.num_gpu=[1]", 'did you mean "num_gpus"'),
    ],
)
def test_bad_overrides_are_told_as_well(override, piece):
    problems = problems_of("name: x\ntrain: {epochs: 1}", override)
    assert any(piece in problem.text("study.yaml") for problem in problems)
    assert all(problem.text("study.yaml").startswith("--set: ") for problem in problems)


def test_a_file_that_is_no_spec(tmp_path):
    cases = {
        "empty.yaml": (b"", "is empty"),
        "comment.yaml": (b"# nothing\n", "is empty"),
        "list.yaml": (b"- 1\n", "not a mapping"),
        "words.yaml": (b"hello\n", "not a mapping"),
        "latin.yaml": ("name: é".encode("latin-1"), "not UTF-8"),
        "binary.yaml": (bytes(range(8)) * 10, "not YAML"),
        "big.yaml": (b"#" * 1_000_001, "larger than 1 MB"),
    }
    for name, (content, piece) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SpecError, match=piece) as caught:
            load(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
    with pytest.raises(SpecError, match=r"no such file.*digits-quick"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(SpecError, match="is a folder"):
        load(tmp_path)


def test_a_byte_order_mark_is_no_problem(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert load(tmp_path / "bom.yaml").name == "x"


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
