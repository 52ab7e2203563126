"""A study's fingerprint: real files in a folder, and data that a process of its own opens."""

import json
import subprocess
import sys

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.study.fingerprint import fingerprint_of
from scalestudy.training.fingerprint import Fingerprint
from tests.support.synthetic_studies import spec_of

FILES = {
    "fp_mine.py": "import torch\nfrom fp_glue import SIZE\n\ndef build(num_classes, in_channels):\n    return None\n",
    "fp_glue.py": "SIZE = 60\n",
    "fp_data.py": """
import os, sys, threading, time
import torch
from scalestudy.training.data import Splits

def load(root, size=60, how="well"):
    print("this is no answer")
    if how == "badly":
        raise OSError("on the cluster's storage")
    if how == "leaves":
        sys.exit(0)
    threading.Thread(target=time.sleep, args=(600,)).start()
    inputs = torch.zeros(size, 1, 2, 2)
    return Splits(inputs, torch.zeros(size, dtype=torch.int64), inputs[:9], torch.zeros(9, dtype=torch.int64), 2)
""",
}
SPEC = """
name: tiny
workload: {model: fp_mine:build, data: digits}
train: {epochs: 1}
sweep: {num_gpus: [1], batch_size: [32], learning_rate: [0.1]}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def fingerprint(text, said=None):
    spec = spec_of(text)
    return fingerprint_of(spec, make_plan(spec).trials, "data", (said if said is not None else []).append)


def test_a_study_of_built_in_parts_has_none_and_takes_no_time(project):
    said = []
    assert fingerprint(SPEC.replace("fp_mine:build", "lenet"), said) == Fingerprint()
    own = fingerprint(SPEC, said)
    assert {name: set(files) for name, files in own.code.items()} == {"fp_mine": {"fp_mine.py", "fp_glue.py"}}
    assert (own.data, said) == ({}, [])


def test_swept_names_count(project):
    text = SPEC.replace("[0.1]}", "[0.1], train.schedule: [cosine, 'fp_glue:factor']}")
    assert fingerprint(text).code.keys() == {"fp_mine", "fp_glue"}


def test_data_are_read_elsewhere_as_far_as_they_can_be_opened(project):
    points = (
        "sweep: {num_gpus: [1], batch_size: [32], learning_rate: [0.1], workload.data_args.how: [badly, well, leaves]}"
    )
    text = SPEC.replace("data: digits", "data: fp_data:load, data_args: {how: well, size: 80}")
    text = text[: text.index("sweep:")] + points
    said = []
    found = fingerprint(text, said).data
    assert {key.split()[0]: (facts.train, facts.test) for key, facts in found.items()} == {"fp_data:load": (80, 9)}
    assert said == ["some examples of fp_data:load"]


def test_torch_is_not_loaded_here(project):
    program = """
import json, sys
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.orchestration.study.fingerprint import fingerprint_of
spec = parse_study(sys.argv[1], "study.yaml")
found = fingerprint_of(spec, make_plan(spec).trials, "data")
print(json.dumps([sorted(found.code), "torch" in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program, SPEC], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["fp_mine"], False]


def test_the_modules_of_a_loop_and_of_its_data_count(project):
    workload = "workload: {loop: 'fp_mine:build', datasets: {train: 'fp_data:load'}}"
    said = []
    own = fingerprint(SPEC.replace("workload: {model: fp_mine:build, data: digits}", workload), said)
    assert {name: set(files) for name, files in own.code.items()} == {
        "fp_mine": {"fp_mine.py", "fp_glue.py"},
        "fp_data": {"fp_data.py"},
    }
    assert (own.data, said) == ({}, [])
