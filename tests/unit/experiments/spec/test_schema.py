"""The JSON Schema of a spec: it takes what `validate` takes, and points at what a value by itself has wrong."""

import jsonschema
import pytest
import yaml

from scalestudy.experiments.spec.reading import STUDIES, catalogue, template
from scalestudy.experiments.spec.schema import json_schema
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep_section import sweep_keys
from tests.support.synthetic_studies import problems_of, spec_of

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def refused(text):
    """The dotted paths at which an editor would mark the text, "" for the whole."""
    found = VALIDATOR.iter_errors(yaml.safe_load(text))
    return {".".join(part for part in error.absolute_path if isinstance(part, str)) for error in found}


def leaves(schema, path=""):
    """Every key with a value, by its dotted path."""
    for name, part in schema["properties"].items():
        if "properties" in part:
            yield from leaves(part, f"{path}{name}.")
        else:
            yield f"{path}{name}", part


def test_it_is_a_schema_of_its_own():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert "$ref" not in str(SCHEMA)
    assert "http" not in str(SCHEMA).replace("http://json-schema.org/draft-07/schema#", "")


@pytest.mark.parametrize("name", catalogue())
def test_it_takes_every_study_of_the_catalogue(name):
    assert refused((STUDIES / f"{name}.yaml").read_text("utf-8")) == set()


def test_it_takes_the_template_and_every_resolved_spec():
    assert refused(template()) == set()
    assert refused(StudySpec(name="x").to_yaml()) == set()
    swept = """
        name: x
        sweep:
          learning_rate: {log_uniform: [0.01, 1]}
          batch_size: {choice: [32, 64]}
          train.optimizer.momentum: {uniform: [0, 0.9]}
          train.shards: [even, speed, [3, 1]]
          workload.model_args.hidden: [[16], 3, wide]
          workload.data_args.noise: {uniform: [0, 0.5]}
          num_gpus: [2]
        search: {method: random}
    """
    spec_of(swept)
    assert refused(swept) == set()
    point = "{num_gpus: 1, batch_size: 64, learning_rate: 1, train.compile: true, workload.model_args.a: 2}"
    points = f"{{name: x, sweep: {{points: [{point}]}}}}"
    spec_of(points)
    assert refused(points) == set()


WRONG = {
    "name": "{name: a/b}",
    "": "{name: x, serch: {}}",
    "version": "{name: x, version: 3}",
    "workload.model": "{name: x, workload: {model: lenett}}",
    "workload.metric_mode": "{name: x, workload: {metric_mode: most}}",
    "train": "{name: x, train: {epoch: 3}}",
    "train.epochs": "{name: x, train: {epochs: 0}}",
    "train.optimizer.momentum": "{name: x, train: {optimizer: {momentum: 1}}}",
    "train.schedule": "{name: x, train: {schedule: cosin}}",
    "train.gradient_clip": "{name: x, train: {gradient_clip: 0}}",
    "train.channels_last": "{name: x, train: {channels_last: yess}}",
    "sweep": "{name: x, sweep: {num_gpu: [1]}}",
    "sweep.num_gpus": "{name: x, sweep: {num_gpus: 2}}",
    "sweep.batch_size": "{name: x, sweep: {batch_size: []}}",
    "sweep.learning_rate": "{name: x, sweep: {learning_rate: [0]}}",
    "sweep.train.precision": "{name: x, sweep: {train.precision: {uniform: [0, 1]}}}",
    "search.method": "{name: x, search: {method: tpee}}",
    "resources.exclusive": "{name: x, resources: {exclusive: 2}}",
    "resources.placement": "{name: x, resources: {placement: packed}}",
    "targets.stop": "{name: x, targets: {stop: never}}",
    "limits.trial_minutes": "{name: x, limits: {trial_minutes: 0}}",
    "sweep.workload.model_args.a": "{name: x, sweep: {workload.model_args.a: 3}}",
}


@pytest.mark.parametrize("place", WRONG)
def test_what_it_refuses_validate_refuses_too(place):
    assert refused(WRONG[place]) == {place}
    assert all(problem.field.startswith(place) for problem in problems_of(WRONG[place]))


def test_every_key_has_its_meaning_and_its_default():
    found = dict(leaves(SCHEMA))
    assert found.keys() >= {f"sweep.{key}" for key in sweep_keys()}
    assert [path for path, part in found.items() if not part.get("description")] == []
    defaults = {
        path: part["default"] for path, part in found.items() if not path.startswith("sweep.") and path != "name"
    }
    plain = StudySpec(name="x").to_dict()
    for path, default in defaults.items():
        value = plain
        for part in path.split("."):
            value = value[part]
        assert default == value, path
