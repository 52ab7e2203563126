"""The loops of docs/examples, by the real libraries, as trials: they learn, on two workers as on one."""

from __future__ import annotations

import pytest

from scalestudy.orchestration.groups.host import LoopGroups
from tests.support.groups import group_pool

EPOCHS = 3
TRAIN = {"ray_loop": 1536, "lightning_loop": 1536, "transformers_loop": 512}
"""Examples of an epoch."""


@pytest.fixture(scope="module")
def pool(ray_session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    groups = LoopGroups(storage=str(folder / "checkpoints"), datasets={})
    with group_pool(folder / "logs", loop=groups, trials_per_group=1) as pool:
        yield pool


@pytest.mark.parametrize(
    ("name", "learning_rate", "metric", "least_gain"),
    [
        ("ray_loop", 0.02, "eval_acc", 0.15),
        pytest.param("lightning_loop", 0.02, "eval_acc", 0.15, marks=pytest.mark.slow),
        pytest.param("transformers_loop", 0.01, "eval_loss", -0.4, marks=pytest.mark.chaos),
    ],
)
def test_a_loop_learns_on_two_workers_as_on_one(pool, name, learning_rate, metric, least_gain):
    config = {
        "loop": f"docs.examples.{name}:train_loop_per_worker",
        "loop_args": {"hidden": 32},
        "metric": metric,
        "batch_size": 64,
        "learning_rate": learning_rate,
        "epochs": EPOCHS,
    }
    trials = [pool.request(size, **config) for size in (1, 2)]
    alone, together = (pool.end_of(trial) for trial in trials)
    for ended in (alone, together):
        assert (ended.status, len(ended.epochs)) == ("finished", EPOCHS), ended.error
        assert (ended.epochs[-1].test_metric - ended.epochs[0].test_metric) / least_gain > 1
        assert [each.samples for each in ended.epochs] == [TRAIN[name]] * EPOCHS, "by scalestudy.step"
        assert all(each.samples_per_second for each in ended.epochs)
    values = [each.test_metric for each in alone.epochs]  # the same batches, summed in another order
    assert [each.test_metric for each in together.epochs] == pytest.approx(values, abs=0.01)
