"""docs/examples: what the pages show is what lies there, and it does what the pages say."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from docs.examples.custom_data import load, smoothed, top_two
from docs.examples.custom_model import Centre, Dense, build, orthogonal
from docs.examples.my_law import fit_epoch_law, of_summary
from docs.examples.my_search import BesideTheBest
from docs.examples.my_verdict import slow_optimizer
from scalestudy.experiments.analysis.answers.verdicts import Case
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.sweep.search import TrialSource
from scalestudy.training.config import ScheduleConfig
from scalestudy.training.data.loading import open_data
from scalestudy.training.loop.schedules import make_schedule
from scalestudy.training.loop.train import train
from tests.support.gloo import GlooPool
from tests.support.studies import REPOSITORY
from tests.support.synthetic_studies import spec_of, summary_of
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
)
from tests.support.trials import Law

EXAMPLES = REPOSITORY / "docs" / "examples"
BLOCK = re.compile(r'^```python title="(\w+\.py)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LISTS = {"num_gpus": [1, 2], "batch_size": [16, 32, 64, 128], "learning_rate": [0.01, 0.05, 0.1, 0.5, 1.0]}
CLIMB = f"name: x\nsweep: {{num_gpus: [1, 2], batch_size: {LISTS['batch_size']}, learning_rate: {LISTS['learning_rate']}, seed: [0, 1]}}\nsearch: {{samples: 12}}"  # noqa: E501


def shown() -> dict[str, set[str]]:
    """By file name, the blocks of all pages that are that file or a part of it."""
    found: dict[str, set[str]] = {}
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        for name, text in BLOCK.findall(page.read_text("utf-8")):
            found.setdefault(name, set()).add(text)
    return found


def test_pages_show_the_examples_as_they_are() -> None:
    files = {file.name: file.read_text("utf-8") for file in EXAMPLES.glob("*.py")}
    found = {name: texts for name, texts in shown().items() if name in files}
    assert not [(name, text) for name, texts in found.items() for text in texts if text not in files[name]]
    linked = {
        name
        for page in (REPOSITORY / "docs").glob("*.md")
        for name in files
        if f"(examples/{name})" in page.read_text("utf-8")
    }
    assert {*found, *linked} == {*files}


def test_the_schedules_are_called_as_their_page_says() -> None:
    decay = ScheduleConfig(name="docs.examples.schedules:decay", args={"gamma": 0.01})
    assert [make_schedule(decay, 0.5)(step, 4) for step in (0, 2, 4)] == pytest.approx([0.5, 0.05, 0.005])
    halves = make_schedule(ScheduleConfig(name="docs.examples.schedules:halves"), 0.5)
    assert [halves(step, 4) for step in range(4)] == [0.5, 0.5, 0.25, 0.25]


def test_random_transforms_differ_by_epoch_and_not_by_worker() -> None:
    data = open_data(make_config(data="docs.examples.my_transforms:load", data_args={}), ALONE)
    order = torch.arange(data.samples)
    (first, _), (again, _), (later, _) = (next(data.shards(order, [(0, 8)], epoch)) for epoch in (1, 1, 2))
    (part, _) = next(data.shards(order, [(4, 8)], 1))
    assert torch.equal(first, again)
    assert torch.equal(first[4:], part)
    assert not torch.equal(first, later)
    config = make_config(
        model="mlp", model_args={"image_size": 16}, data="docs.examples.my_transforms:load", data_args={}, epochs=3
    )
    assert train(config.replace(learning_rate=0.1), ALONE).records[-1].test_metric > 0.9


def test_the_data_set_is_the_same_each_time_and_fits_its_classes() -> None:
    one, other = load("nowhere", train_samples=50, test_samples=20), load("nowhere", train_samples=50, test_samples=20)
    assert torch.equal(one.train_inputs, other.train_inputs)
    assert one.train_inputs.shape == (50, 1, 16, 16)
    assert len(one.test_inputs) == 20
    assert set(one.train_targets.tolist()) == {0, 1, 2, 3}
    assert 0 <= one.train_inputs.min() < one.train_inputs.max() <= 1


def test_the_loss_and_the_metric_by_hand() -> None:
    outputs, targets = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), torch.tensor([1, 0])
    assert top_two(outputs, targets).tolist() == [1.0, 0.0]
    # log-sum-exp of (2, 1, 0) is 2.4076; 0.9 · (2.4076 − target's) + 0.1 · (2.4076 − their mean, 1)
    assert smoothed(outputs, targets).tolist() == pytest.approx([1.4076, 0.9 * 2.4076 + 0.1 * 1.4076], abs=1e-4)


def test_model_data_loss_and_metric_train_alike_on_one_worker_and_two(ranks: GlooPool) -> None:
    config = make_config(
        model="docs.examples.custom_model:build",
        model_args={"units": 16, "side": 16, "init": "docs.examples.custom_model:orthogonal"},
        data="docs.examples.custom_data:load",
        data_args={"train_samples": 300, "test_samples": 60},
        loss="docs.examples.custom_data:smoothed",
        metric="docs.examples.custom_data:top_two",
        learning_rate=0.2,
        epochs=3,
    )
    (alone,), replicas = ranks.run(1, run_training, config), ranks.run(2, run_training, config)
    assert same_bits(replicas[0]["state"], replicas[1]["state"])
    assert smallest_movement(alone["first_state"], alone["state"]) > 1e-3
    assert largest_difference(alone["state"], replicas[0]["state"]) < 1e-5
    assert alone["curve"][-1][2] > 0.75  # two guesses of four are right in half of the cases


@pytest.mark.parametrize(
    ("module", "task", "metric", "learning_rate", "reached", "sizes"),
    [
        # of 2/3: a word that is as high as the one before it is rare
        ("tagger", "Tagging", "macro_f1", 0.5, 0.6, {"train_texts": 600, "test_texts": 100}),
        ("two_inputs", "Prices", "r2", 0.1, 0.95, {"train_houses": 1500, "test_houses": 200}),
        ("detector", "Detection", "overlap", 0.2, 0.55, {"train_pictures": 1000, "test_pictures": 200}),
    ],
)
def test_the_tasks_learn_what_their_metric_says(
    module: str, task: str, metric: str, learning_rate: float, reached: float, sizes: dict[str, int]
) -> None:
    """In float32, as the pages have them; that workers train like one is held in float64 in training/test_task.py."""
    where = f"docs.examples.{module}"
    config = make_config(
        model=f"{where}:build",
        model_args={},
        data=f"{where}:load",
        data_args=sizes,
        task=f"{where}:{task}",
        metric=metric,
        learning_rate=learning_rate,
        epochs=6,
    )
    curve = run_training(ALONE, config)["curve"]
    assert curve[0][2] < curve[-1][2]
    assert curve[-1][2] > reached


def test_the_stream_learns_waves_on_one_worker_as_on_two(ranks: GlooPool) -> None:
    where = "docs.examples.waves"
    config = make_config(
        **{"model": f"{where}:build", "model_args": {}, "data": f"{where}:load"},
        **{"data_args": {"windows": 400, "tests": 100}, "learning_rate": 0.1},
        **{"loss": "mse", "metric": "mse", "epochs": None, "steps": 100},
    )
    (alone,), (first, _) = ranks.run(1, run_training, config), ranks.run(2, run_training, config)
    assert largest_difference(alone["state"], first["state"]) < 1e-5
    assert first["curve"][-1][2] < 0.02 < first["curve"][0][2]


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("batch_size", [32, 30])
def test_the_strategy_trains_like_one_worker(ranks: GlooPool, workers: int, batch_size: int) -> None:
    config = make_config(gradient_sync="docs.examples.my_sync:MySync", batch_size=batch_size, learning_rate=0.2)
    (alone,) = ranks.run(1, run_training, config)
    replicas = ranks.run(workers, run_training, config)
    assert all(same_bits(replicas[0]["state"], each["state"]) for each in replicas)
    assert smallest_movement(alone["first_state"], alone["state"]) > 1e-3
    assert largest_difference(alone["state"], replicas[0]["state"]) < 1e-5


def record(params: dict[str, Any], status: str = "finished") -> dict[str, Any]:
    """A trial that does best at batch 64 and rate 0.5."""
    away = sum(abs(LISTS[key].index(params[key]) - best) for key, best in (("batch_size", 2), ("learning_rate", 3)))
    epoch = {"epoch": 1, "test_accuracy": 0.9 - 0.1 * away, "train_seconds": 1.0}
    return {"status": status, "error": None, "epochs": [epoch]}


def climbed(search: TrialSource, most: int = 1_000) -> list[tuple[str, dict[str, Any], int | None]]:
    """Trials as a sweep asks for them: two at a time, the older one ending first."""
    running: list[Any] = []
    done = []
    for _ in range(most):
        while len(running) < 2 and (suggestion := search.next()) is not None:
            running.append(suggestion)
        if not running:
            break
        trial, point = running.pop(0)
        search.ended(trial.trial_id, record(trial.params))
        done.append((trial.trial_id, trial.params, point))
    return done


def test_the_search_finds_the_best_of_a_space_that_it_does_not_run_whole() -> None:
    done = climbed(BesideTheBest(spec_of(CLIMB)))
    assert len(done) == 12 * 2  # points, two seeds each; the space has 40
    assert len({trial_id for trial_id, *_ in done}) == len(done)
    assert max(record(params)["epochs"][0]["test_accuracy"] for _, params, _ in done) == pytest.approx(0.9)


def test_the_search_goes_on_where_an_earlier_run_was_cut_off() -> None:
    spec = spec_of(CLIMB)
    first = climbed(BesideTheBest(spec), most=9)
    resumed = BesideTheBest(spec)
    plans = {trial.trial_id: trial for trial in make_plan(spec).trials}
    for trial_id, params, point in first:
        if point is not None:
            resumed.was_suggested(plans[trial_id], point)
        resumed.ended(trial_id, record(params))
    rest = climbed(resumed)
    assert not {trial_id for trial_id, *_ in rest} & {trial_id for trial_id, *_ in first}
    assert len(first) + len(rest) == 24


GRID = "name: x\nsweep: {num_gpus: [1, 2, 4], batch_size: [32, 256]}"
FLAT = Law(data=0.0, fixed=0.0, per_example=0.001, sync=0.0, sync_per_worker=0.0, optimizer=0.001)


def test_the_law_finds_what_is_known() -> None:
    found = fit_epoch_law([1, 2, 4], [1.1, 0.6, 0.35])  # 0.1 + 1/N
    assert found == pytest.approx((0.1, 1.0), rel=1e-6)
    with pytest.raises(ValueError, match="time two or more"):
        fit_epoch_law([2], [1.0])


def test_the_law_reads_a_summary() -> None:
    # 45 and 6 steps of 0.001 + 0.032/N and 0.001 + 0.256/N seconds
    lines = of_summary(summary_of(GRID, FLAT))
    assert lines == ["batch=32: fixed 0.045 s, divided 1.44 s", "batch=256: fixed 0.006 s, divided 1.54 s"]
    (alone,) = of_summary(summary_of("name: x\nsweep: {num_gpus: [2], batch_size: [32]}", FLAT))
    assert alone.startswith("batch=32: null, because one number of workers (2)")


def test_the_verdict_has_a_threshold() -> None:
    # four workers at batch 32: 0.002 / (0.002 + 0.008) is 20 % of a step, 0.001 / (0.001 + 0.008) 11 %
    def judged(law: Law) -> dict[str, Any] | None:
        summary = summary_of(GRID, law)
        (row,) = [row for row in summary["timings"] if row["label"] == "workers=4 batch=32"]
        return slow_optimizer(Case.of(summary["timings"], {"recommended": {"label": row["cells"][0]}}))

    found = judged(Law(**{**vars(FLAT), "optimizer": 0.002}))
    assert found is not None
    assert found["evidence"] == {"workers=4 batch=32": pytest.approx(0.2)}
    assert judged(FLAT) is None


def test_the_model_s_layers_do_what_they_say() -> None:
    inputs = torch.rand(3, 5)
    assert Centre()(inputs).mean(dim=1).abs().max() < 1e-6
    assert list(Centre().parameters()) == []
    layer = Dense(5, 2)
    assert torch.equal(layer(inputs), torch.relu(inputs @ layer.weight + layer.bias))
    assert [tuple(parameter.shape) for parameter in layer.parameters()] == [(5, 2), (2,)]


def test_the_model_s_initialiser_draws_orthogonal_columns() -> None:
    model = build(10, 1, units=8, init="docs.examples.custom_model:orthogonal")
    weight = model[2].weight
    assert torch.allclose(weight.T @ weight, torch.eye(8), atol=1e-5)
    untouched = torch.nn.Conv2d(1, 2, 3)
    before = untouched.weight.clone()
    orthogonal(untouched)
    assert torch.equal(before, untouched.weight)
