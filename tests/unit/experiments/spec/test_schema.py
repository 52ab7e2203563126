"""The JSON Schema of a spec: it takes what `validate` takes. What it marks as wrong, test_bad_input.py has."""

import jsonschema
import pytest
import yaml
from pydantic_core import to_jsonable_python

from scalestudy.experiments.spec.reading import STUDIES, catalogue, template
from scalestudy.experiments.spec.schema import json_schema
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep_section import sweep_keys
from scalestudy.training.section import value_of
from tests.support.synthetic_studies import spec_of

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


def test_every_key_has_its_meaning_and_its_default():
    found = dict(leaves(SCHEMA))
    assert found.keys() >= {f"sweep.{key}" for key in sweep_keys()}
    assert [path for path, part in found.items() if not part.get("description")] == []
    defaults = {
        path: part["default"] for path, part in found.items() if not path.startswith("sweep.") and path != "name"
    }
    spec = StudySpec(name="x")
    for path, default in defaults.items():
        assert default == to_jsonable_python(value_of(spec, path)), path
