"""Which trials ASHA stops, and that it decides the same after it was told its past again."""

import math
import random
import statistics
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.usable import time_to_target
from scalestudy.experiments.plan.plan import TrialPlan, make_plan
from scalestudy.orchestration.sweep.asha import Asha
from scalestudy.orchestration.sweep.methods import search_for
from tests.support.epochs import epoch_of as epoch
from tests.support.searches import epoch_event
from tests.support.synthetic_studies import spec_of


class Told:
    """ASHA of a spec without targets, in which trials have names."""

    def __init__(self, mode="max", epochs=9, grace_epochs=1, reduction=3):
        search = f"{{scheduler: asha, grace_epochs: {grace_epochs}, reduction: {reduction}}}"
        workload = f"{{metric: {'accuracy' if mode == 'max' else 'mse'}, metric_mode: {mode}}}"
        self.asha = Asha(spec_of(f"name: x\nworkload: {workload}\ntrain: {{epochs: {epochs}}}\nsearch: {search}"))

    def stops(self, name, record):
        return self.asha.stops(TrialPlan(trial_id=name, params={}, workload={}, train={}), record)

    @property
    def stopped(self):
        return self.asha.stopped


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_trial_worse_than_the_best_third_so_far_stops_at_the_rung(mode):
    better = (0.1, 0.2, 0.3) if mode == "max" else (0.3, 0.2, 0.1)
    found = Told(mode)
    assert not any(found.stops(f"trial-{value}", epoch(1, value)) for value in better)
    # of 0.1, 0.2, 0.3 the upper third begins at 0.1 + 2/3 · 0.2 = 0.233; of the losses at 0.166
    assert found.stops("worse", epoch(1, 0.23 if mode == "max" else 0.17))
    assert not found.stops("better", epoch(1, 0.9 if mode == "max" else 0.01))
    assert found.stopped == {"worse": 1}


def test_rungs_are_the_grace_epochs_and_their_multiples_below_the_last_epoch():
    def stopped_at(number, **settings):
        found = Told(**settings)
        found.stops("best", epoch(number, 0.9))
        return found.stops("worst", epoch(number, 0.1))

    assert [stopped_at(number) for number in (1, 2, 3, 8)] == [True, True, True, True]
    assert not stopped_at(9), "the last epoch: both end by themselves, with their models"
    assert not stopped_at(1, grace_epochs=2)
    assert stopped_at(2, grace_epochs=2)
    found = Told()  # at 1 the worse one was the first, and nobody to compare with; between rungs nothing is decided
    assert not found.stops("worst", epoch(1, 0.1))
    assert not found.stops("best", epoch(1, 0.9))
    assert not found.stops("best", epoch(2, 0.9))
    assert not found.stops("worst", epoch(2, 0.1))
    assert not found.stops("best", epoch(3, 0.9))
    assert found.stops("worst", epoch(3, 0.1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_an_epoch_without_a_number_is_not_judged_and_does_not_spoil_the_rung(value):
    found = Told()
    assert not found.stops("odd", epoch(1, value))
    assert not found.stops("best", epoch(1, 0.9))
    assert found.stops("worst", epoch(1, 0.1))
    assert found.stops("odd", epoch(2, 0.2)), "judged as soon as it has a number"


def test_an_epoch_told_again_after_a_crash_is_not_judged_again():
    found = Told()
    found.stops("first", epoch(1, 0.1))
    for value in (0.5, 0.6, 0.7):
        found.stops(f"trial-{value}", epoch(1, value))
    assert not found.stops("first", epoch(1, 0.1))
    assert not found.stops("first", epoch(2, 0.1))


def test_a_stopped_trial_stays_stopped():
    found = Told()
    found.stops("best", epoch(1, 0.9))
    assert found.stops("worst", epoch(1, 0.1))
    assert found.stops("worst", epoch(2, 0.99))
    assert found.stopped == {"worst": 1}


def test_rungs_that_are_told_their_past_decide_as_they_would_have():
    generator = random.Random(3)
    story = [(f"trial-{generator.randrange(30)}", generator.random()) for _ in range(400)]
    epochs = {}
    told = []
    for trial_id, value in story:
        epochs[trial_id] = epochs.get(trial_id, 0) + 1
        if epochs[trial_id] <= 27:
            told.append((trial_id, epoch(epochs[trial_id], value)))
    whole = Told(epochs=27)
    decisions = [whole.stops(*each) for each in told]
    assert 5 < len(whole.stopped) < 30
    for cut in range(0, len(told), 7):
        again = Told(epochs=27)
        for each in told[:cut]:
            again.stops(*each)
        assert [again.stops(*each) for each in told[cut:]] == decisions[cut:]


def test_a_spec_s_epochs_may_stand_in_its_sweep():
    spec = spec_of("name: x\nsweep: {train.epochs: [2]}\nsearch: {scheduler: asha}")
    best, worst = (TrialPlan(trial_id=name, params={}, workload={}, train={}) for name in ("best", "worst"))
    found = Asha(spec)
    found.stops(best, epoch(2, 0.9))
    assert not found.stops(worst, epoch(2, 0.1)), "the second epoch is the last"


@pytest.mark.parametrize(
    ("epochs", "grace", "reduction", "mode"), [(27, 1, 3, "max"), (20, 2, 2, "min"), (7, 3, 4, "max")]
)
def test_without_a_target_it_decides_as_ray_tune_does(epochs, grace, reduction, mode):
    tune = AsyncHyperBandScheduler(
        time_attr="epoch",
        metric="value",
        mode=mode,
        max_t=epochs,
        grace_period=grace,
        reduction_factor=reduction,
        stop_last_trials=False,
    )
    ours, generator = Told(mode, epochs, grace, reduction), random.Random(5)
    running = {f"trial-{number}": 0 for number in range(40)}
    for name in running:
        tune.on_trial_add(None, SimpleNamespace(trial_id=name))
    while running:
        name = generator.choice(list(running))
        running[name] += 1
        result = {"epoch": running[name], "value": generator.random()}
        stops = tune.on_trial_result(None, SimpleNamespace(trial_id=name), result) == TrialScheduler.STOP
        last = running[name] == epochs
        assert ours.stops(name, epoch(running[name], result["value"])) == (stops and not last)
        if stops or last:
            del running[name]
    assert 10 < len(ours.stopped) < 40


# --- like with like ---------------------------------------------------------------------------------------------------


GRID = """
name: x
train: {{epochs: 27}}
sweep:
  num_gpus: [1, 2, 4]
  batch_size: [32, 64, 128, 256, 512]
  learning_rate: [0.05, 0.1, 0.2, 0.4, 0.8]
  seed: [0, 1, 2]
search: {{scheduler: asha}}
targets: {{accuracy: {targets}, stop: {stop}}}
"""


class World:
    """A drawn truth in which steps cost more than their examples, so that large batches are soonest at the target.

    Accuracy after s steps is 1 - exp(-2.303 s/S): 0.9 after S = steps of the batch size at its best rate, more at
    another. An epoch has 12,800 examples.
    """

    def __init__(self, seed):
        generator = random.Random(seed)
        self.launch, self.per_example = generator.uniform(0.01, 0.04), generator.uniform(2e-5, 1e-4)
        self.sync, self.critical = generator.uniform(0.001, 0.005), generator.uniform(300, 1200)
        self.best_rate = {size: 0.2 * generator.uniform(0.7, 1.4) for size in (32, 64, 128, 256, 512)}
        self.noise = {}
        self.generator = generator

    def steps(self, params):
        away = math.log(params["learning_rate"] / self.best_rate[params["batch_size"]])
        return 60 * (1 + self.critical / params["batch_size"]) * math.exp(0.3 * away**2)

    def curve(self, params, epochs=27):
        made = (params["batch_size"], params["learning_rate"], params["seed"])  # the same on any num_gpus
        factor = self.noise.setdefault(made, math.exp(self.generator.gauss(0, 0.05)))
        every = 12_800 / params["batch_size"]
        return [1 - math.exp(-2.303 * every * n / self.steps(params) / factor) for n in range(1, epochs + 1)]

    def epoch_seconds(self, params):
        workers = params["num_gpus"]
        step = self.launch + self.per_example * params["batch_size"] / workers + (self.sync if workers > 1 else 0)
        return step * 12_800 / params["batch_size"]

    def seconds(self, params):
        """The true time to 0.9."""
        return self.steps(params) * self.epoch_seconds(params) * params["batch_size"] / 12_800


def played(world, **keys):
    """Runs a grid with ASHA; the time to 0.9 of each trial as its epochs tell it, and their number of epochs."""
    spec = spec_of(GRID.format(**{"targets": "[0.9]", "stop": "false", **keys}))
    search = search_for(spec, make_plan(spec))
    times, made = {}, 0
    while (suggestion := search.next()) is not None:
        trial, points = suggestion.trial, []
        for number, value in enumerate(world.curve(trial.params), start=1):
            points.append((number * world.epoch_seconds(trial.params), value))
            event = epoch_event(number, value)
            search.take(trial.trial_id, event)
            if search.stops(trial.trial_id, event):
                break
        made += len(points)
        cell = tuple(sorted(trial.cell.items()))
        times.setdefault(cell, []).append(time_to_target(points, 0.9, ACCURACY))
    return times, made


def regret(world, times):
    """How much longer than the best cell the chosen one takes, in truth."""
    known = {cell: [time for time in each if math.isfinite(time)] for cell, each in times.items()}
    chosen = min((cell for cell, each in known.items() if each), key=lambda cell: statistics.median(known[cell]))
    return world.seconds(dict(chosen)) / min(world.seconds(dict(cell)) for cell in times) - 1


def test_the_soonest_cell_survives_where_only_like_is_compared_with_like():
    worlds = [World(seed) for seed in range(5)]
    before, after = ([played(world, targets=targets) for world in worlds] for targets in ("[]", "[0.9]"))
    lost = [regret(world, times) for world, (times, _) in zip(worlds, before, strict=True)]
    found = [regret(world, times) for world, (times, _) in zip(worlds, after, strict=True)]
    assert statistics.median(lost) > 1, "without a target all batch sizes are compared: more than twice the time"
    assert statistics.median(found) < 0.03
    assert max(found) < 0.15
    whole = 27 * len(make_plan(spec_of(GRID.format(targets="[0.9]", stop="false"))).trials)
    assert all(0.2 < made / whole < 0.7 for _, made in after), "and trials are still stopped"


def trial_of(name, **params):
    params = {"num_gpus": 1, "batch_size": 32, "learning_rate": 0.1, "seed": 0, **params}
    return TrialPlan(trial_id=name, params=params, workload={}, train={})


def test_a_training_on_other_num_gpus_counts_once_and_is_not_its_own_competitor():
    found = Asha(spec_of(GRID.format(targets="[0.9]", stop="false")))
    for workers in (1, 2, 4):
        assert not found.stops(trial_of(f"best-{workers}", num_gpus=workers), epoch(1, 0.9 - workers / 1000))
    for number, rate in enumerate((0.2, 0.4)):
        assert found.stops(trial_of(f"bad-{number}", learning_rate=rate), epoch(1, 0.1))
    # of 0.899, 0.1, 0.1 the upper third begins at 0.1 + 1/3 · 0.799 = 0.366; with every copy it would at 0.896
    assert not found.stops(trial_of("second", learning_rate=0.8), epoch(1, 0.5))
    assert found.stops(trial_of("copy", learning_rate=0.2, num_gpus=2), epoch(1, 0.1)), "and its copies fare alike"


def test_a_training_that_has_just_reached_its_target_ends_by_itself():
    """At the rung after epoch 3 it is the worst of all, and has met 0.9 twice."""
    for stop, stopped in (("true", {}), ("false", {"slow": 3})):
        found = Asha(spec_of(GRID.format(targets="[0.9]", stop=stop)))
        for name, values in (("fast", (0.99, 0.99, 0.99)), ("slow", (0.99, 0.91, 0.91))):
            rate = {"fast": 0.1, "slow": 0.2}[name]
            for number, value in enumerate(values, start=1):
                found.stops(trial_of(name, learning_rate=rate), epoch(number, value))
        assert found.stopped == stopped
