"""The programs that the peers' users would write train what we train."""

import json
from dataclasses import replace

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_data
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.loop.train import train
from tests.bench.peer_ways import OPTUNA, SCALESTUDY, TORCHRUN, Sweep, Way, our_records, our_spec, run
from tests.support.gloo import gloo_pool

TINY = Sweep(num_gpus=[1, 2], batch_size=[64], learning_rate=[0.05], epochs=2)


def ours(worker, config):
    """What the training loop computes of a trial."""
    return [(record.train_loss, record.to_dict()["test_accuracy"]) for record in train(config, worker).records]


def expected(tmp_path, sweep):
    """Our losses and accuracies of each trial of a sweep, by world size."""
    SCALESTUDY.settings(tmp_path, sweep, False)
    spec = read_spec(tmp_path / "study.yaml")
    found = {}
    with gloo_pool(2) as ranks:
        for trial in make_plan(spec).trials:
            config = train_config(trial, check_data(spec))
            found[trial.params["num_gpus"]] = ranks.run(trial.params["num_gpus"], ours, config)[0]
    return found


@pytest.mark.chaos
@pytest.mark.timeout(600)  # half a minute on two quiet cores
def test_peers_train_what_we_train(tmp_path):
    """Equal but for rounding, and for the last batch of an epoch, whose uneven shards a user's DDP weighs alike."""
    mine = expected(tmp_path, TINY)
    _, by_torchrun = run(TORCHRUN, tmp_path / "torchrun", replace(TINY, num_gpus=[1]))
    _, by_optuna = run(OPTUNA, tmp_path / "optuna", replace(TINY, num_gpus=[2]))
    assert [trial.params["num_gpus"] for trial in by_torchrun + by_optuna] == [1, 2]
    for trial in by_torchrun + by_optuna:
        losses, accuracies = zip(*mine[trial.params["num_gpus"]], strict=True)
        assert [epoch["train_loss"] for epoch in trial.epochs] == pytest.approx(losses, rel=0.01)
        assert [epoch["test_accuracy"] for epoch in trial.epochs] == pytest.approx(accuracies, abs=0.03)
        assert trial.epochs[1]["train_loss"] < trial.epochs[0]["train_loss"] - 0.1


@pytest.mark.chaos
@pytest.mark.timeout(900)  # three minutes on two quiet cores
def test_the_same_training_as_a_loop_of_ray_train_s_gets_the_same_answer(tmp_path):
    sweep = Sweep(num_gpus=[1, 2], batch_size=[64], learning_rate=[0.03, 0.1], epochs=8)
    target = ("--set", "targets={accuracy: [0.7], stop: false}")
    accuracies, answers = [], []
    for file in ("study.yaml", "loop.yaml"):
        way = Way(file, (file,), our_spec(file, *target), our_records)
        _, trials = run(way, tmp_path / file, sweep)
        accuracies.append({str(each.params): [epoch["test_accuracy"] for epoch in each.epochs] for each in trials})
        answers.append(json.loads((tmp_path / file / "study" / "summary.json").read_text("utf-8"))["recommendation"])
    ours, loops = accuracies
    assert ours.keys() == loops.keys()
    assert len(ours) == 4
    for point, found in loops.items():  # the last batch of an epoch is uneven, which a user's DDP weighs alike
        assert found == pytest.approx(ours[point], abs=0.06)
        assert found[-1] == pytest.approx(ours[point][-1], abs=0.02)
    assert answers[0]["choice"]["learning_rate"] == answers[1]["choice"]["learning_rate"]
