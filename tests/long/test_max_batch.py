"""`scalestudy bench max-batch SPEC`: real steps under a real limit, on the command line."""

import json

import pytest

from tests.support.in_process import scalestudy
from tests.support.studies import scalestudy as process
from tests.support.studies import write_spec

WAYS = {"train.accumulation": [1, 4], "batch_size": [64, 128]}


def test_every_way_of_training_has_its_largest_batch(tmp_path):
    spec = write_spec(tmp_path, sweep={"num_gpus": [1], "learning_rate": [0.1], **WAYS})
    done = process("bench", "max-batch", str(spec), "--memory", "1", "--quick", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["name"] == "max-batch"
    answers, *tries = found["tables"]
    assert [row[:3] for row in answers["rows"]] == [[f"train.accumulation={parts}", 64, "yes"] for parts in (1, 4)]
    assert [row[0] for row in tries[0]["rows"]] == [2, 4, 8, 16, 32, 64]
    assert found["mlflow"]["run_id"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["max-batch", "digits-quick"], "a CPU needs a limit; add --memory GIB"),
        (["max-batch", "digits-quick", "--memory", "0"], "0 GiB is not above 0"),
    ],
)
def test_what_can_not_be_answered_is_one_line(tmp_path, arguments, said):
    done = scalestudy("bench", *arguments, "--no-mlflow", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
