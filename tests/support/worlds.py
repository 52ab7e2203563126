"""Worlds: studies drawn at random whose truth is known, to judge what the analysis decides.

A world is a grid of num_gpus, batch sizes and learning rates. A training's steps to the target follow a law in batch
and rate, its step time a law in workers and batch; single cells deviate from both. Seeds scatter the steps, runs the
step time. The metric rises with the steps and is measured at the end of each epoch, as in an ordinary study. The true
best is the cell of the least median time over seeds.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from scipy import special

from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from tests.support.step_worlds import StepWorld
from tests.support.synthetic_studies import spec_of

Bend = Literal["jump", "plateau", "divergence", "two optima"]
Place = tuple[int, int, float]
"""num_gpus, batch size, learning rate."""
TARGET, EPOCHS = 0.8, 24
FLOOR, CEILING = 0.1, 0.92
"""Of the metric; a plateau ends below the target."""
SHAPE = math.log((CEILING - FLOOR) / (CEILING - TARGET))
DEVIATION = 0.05
"""Standard deviation of a cell's time from the laws, half of its variance in the steps, half in the step time."""
JUMP = 1.5
"""Over the law, of the steps with few examples a worker."""
KNEE = 2.0
"""Of the swapped form: steps are S_min (1 + (B_crit/B)^2)^(1/2)."""
BROKEN_BY = 0.35
"""How far apart seeds diverge, or stay on a plateau, in octaves of the rate."""
LONGEST_WARM_UP = 0.5
"""Of the first epoch, in epochs."""


@dataclass(frozen=True, kw_only=True)
class World:
    """The truth of a study.

    noise: standard deviation of the logarithm of a training's steps over seeds, and of a run's step time. common: share
    of the seeds' variance that is the same in every cell. missing: share of the trials that never ran. bend: what the
    laws leave out; None: nothing. step: of the seconds of a step. rate, exponent: the best rate of the smallest batch,
    and how it grows with the batch. curvature: of log steps in octaves off it. bent_at: where in the grid the bend is.
    warm_up: by how many epochs the first one of a training takes longer.
    steps_off, step_off: deviations of cells from the laws, as logarithms. epochs_of_best: that the best cell takes.
    swapped: whether steps follow another form than the law: a sharper knee over batches, and too high a rate costs more
    than one that is too low by as much.
    """

    workers: tuple[int, ...]
    batches: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: int
    noise: float
    missing: float
    common: float
    bend: Bend | None
    step: StepWorld
    b_crit: float
    rate: float
    exponent: float
    curvature: float
    bent_at: float
    steps_off: Mapping[tuple[int, float], float]
    step_off: Mapping[tuple[int, int], float]
    epochs_of_best: float
    warm_up: float
    draw_seed: int
    swapped: bool = False

    @classmethod
    def draw(
        cls,
        generator: np.random.Generator,
        *,
        noise: float,
        seeds: int,
        missing: float = 0.0,
        bend: Bend | bool = False,
        deviation: float | None = None,
        wide: bool = False,
        swapped: bool = False,
    ) -> Self:
        """A world. bend: which one; True draws one. deviation: of cells from the laws; None draws 0 or 5 %.

        wide: 5 num_gpus, 6 batches and 7 rates, all an octave apart, and no warm-up, which timing runs leave out.
        """
        workers = (1, 2, 4, 8)[: int(generator.integers(3, 5))]
        first, spacing = int(generator.choice([16, 32, 64])), int(generator.choice([2, 4]))
        batches = tuple(first * spacing**power for power in range(int(generator.integers(4, 6))))
        ratio = float(generator.choice([2.0, 4.0]))
        count = int(generator.integers(4, 6))
        if wide:
            workers, ratio, count = (1, 2, 4, 8, 16), 2.0, 7
            batches = tuple(first * 2**power for power in range(6))
        rates = tuple(0.1 * ratio ** (power - (3 if wide else 1)) for power in range(count))
        middle = math.sqrt(batches[0] * batches[-1])
        b_crit = middle * math.exp(generator.uniform(-1.5, 1.5))
        off = generator.choice([0.0, DEVIATION]) if deviation is None else deviation
        places, learnt = itertools.product(workers, batches), itertools.product(batches, rates)
        return cls(
            workers=workers,
            batches=batches,
            rates=rates,
            seeds=seeds,
            noise=noise,
            missing=missing,
            common=float(generator.uniform(0, 0.5)),
            bend=_bend(bend, generator),
            step=StepWorld.draw(generator, workers_a_node=2),
            b_crit=b_crit,
            rate=rates[0] * ratio ** generator.uniform(0, count - 2)
            if wide
            else 0.1 * ratio ** generator.uniform(0, count - 2),
            exponent=float(generator.uniform(0, 0.6)),
            curvature=float(generator.uniform(0.08, 0.3)),
            bent_at=float(generator.uniform(0.3, 0.8)),
            steps_off={place: float(generator.normal(0, off / math.sqrt(2))) for place in learnt},
            step_off={place: float(generator.normal(0, off / math.sqrt(2))) for place in places},
            epochs_of_best=float(generator.uniform(4, 8)),
            warm_up=0.0 if wide else max(0.0, float(generator.uniform(-LONGEST_WARM_UP, LONGEST_WARM_UP))),
            draw_seed=int(generator.integers(2**31)),
            swapped=swapped,
        )

    def step_seconds(self, num_gpus: int, batch_size: int) -> float:
        """True seconds of a step."""
        off = math.exp(self.step_off[num_gpus, batch_size])
        return self.step.seconds(num_gpus, batch_size) * self.jump(num_gpus, batch_size) * off

    def jump(self, num_gpus: int, batch_size: int) -> float:
        """By how much a step takes longer than the law says."""
        return JUMP if self.bend == "jump" and batch_size / num_gpus <= self._bent_share else 1.0

    @property
    def _bent_share(self) -> float:
        shares = sorted({batch / count for batch in self.batches for count in self.workers})
        return shares[int(self.bent_at * (len(shares) - 1))]

    @property
    def _bent_rate(self) -> float:
        """The rate at which half of the seeds diverge, or stay below the target."""
        return self.rates[0] * (self.rates[-1] / self.rates[0]) ** self.bent_at

    def shape_of_steps(self, batch_size: int, rate: float) -> float:
        """True median steps to the target, of the seeds that reach it, up to a factor."""
        best = math.log2(self.rate) + self.exponent * math.log2(batch_size / self.batches[0])
        off = math.log2(rate) - best
        cost = self.curvature * off**2
        if self.swapped:
            cost *= 1.6 if off > 0 else 0.6
        if self.bend == "two optima":
            cost = min(cost, self.curvature * (off - 3) ** 2 + 0.1)
        knee = KNEE if self.swapped else 1.0
        beside = (1 + (self.b_crit / batch_size) ** knee) ** (1 / knee)
        return beside * math.exp(cost + self.steps_off[batch_size, rate])

    def losing(self, rate: float) -> float:
        """The share of seeds that never reach the target: they diverge, or come to a plateau."""
        if self.bend not in ("divergence", "plateau"):
            return 0.0
        return float(special.ndtr(math.log2(rate / self._bent_rate) / BROKEN_BY))

    def _shape(self, place: Place) -> float:
        """Median time over seeds up to a factor; infinity where half of them miss the target."""
        num_gpus, batch_size, rate = place
        lost = self.losing(rate)
        if lost >= 0.5:
            return math.inf
        later = math.exp(self.noise * float(special.ndtri(0.5 / (1 - lost))))
        return self.shape_of_steps(batch_size, rate) * self.step_seconds(num_gpus, batch_size) * later

    @cached_property
    def places(self) -> list[Place]:
        """Every cell."""
        return list(itertools.product(self.workers, self.batches, self.rates))

    @cached_property
    def best(self) -> Place:
        """The cell of the least median time."""
        return min(self.places, key=self._shape)

    @cached_property
    def samples(self) -> int:
        """Examples of the training set, so many that the best cell reaches the target after some epochs."""
        _, batch_size, _ = self.best
        return batch_size * 64

    @cached_property
    def _factor(self) -> float:
        _, batch_size, rate = self.best
        return self.epochs_of_best * (self.samples / batch_size) / self.shape_of_steps(batch_size, rate)

    def steps(self, batch_size: int, rate: float) -> float:
        """True median steps to the target, of the seeds that reach it."""
        return self.shape_of_steps(batch_size, rate) * self._factor

    def seconds(self, place: Place) -> float:
        """True median time to the target; infinity where half of the seeds miss it within the epochs of a training."""
        _, batch_size, rate = place
        epochs = self.steps(batch_size, rate) * batch_size / self.samples
        if epochs >= EPOCHS - 1:
            return math.inf
        return self._shape(place) * self._factor + self.warm_up_seconds(*place[:2])

    def regret(self, place: Place | None) -> float:
        """By how much longer a cell takes than the best, as a share; infinite without a cell."""
        return math.inf if place is None else self.seconds(place) / self.seconds(self.best) - 1

    def warm_up_seconds(self, num_gpus: int, batch_size: int) -> float:
        """By how much the first epoch takes longer."""
        return self.warm_up * math.ceil(self.samples / batch_size) * self.step_seconds(num_gpus, batch_size)

    @cached_property
    def spec(self) -> StudySpec:
        """The study's spec."""
        return spec_of(
            f"name: world\ntrain: {{epochs: {EPOCHS}}}\ntargets: {{accuracy: [{TARGET}], stop: true}}\n"
            f"sweep: {{num_gpus: {list(self.workers)}, batch_size: {list(self.batches)}, "
            f"learning_rate: {list(self.rates)}, seed: {list(range(self.seeds))}}}\n"
        )

    @cached_property
    def plan(self) -> Plan:
        """The study's plan."""
        return make_plan(self.spec)

    def trials(self) -> list[dict[str, Any]]:
        """A record for each trial that ran."""
        generator = np.random.default_rng(self.draw_seed)
        own, shared = self.noise * math.sqrt(1 - self.common), self.noise * math.sqrt(self.common)
        of_seed = generator.normal(0, shared, self.seeds)
        learnt: dict[tuple[int, float, int], tuple[float, bool]] = {}
        for batch_size, rate, seed in itertools.product(self.batches, self.rates, range(self.seeds)):
            factor = math.exp(of_seed[seed] + generator.normal(0, own))
            lost = bool(generator.random() < self.losing(rate))
            learnt[batch_size, rate, seed] = self.steps(batch_size, rate) * factor, lost
        records = []
        for trial in self.plan.trials:
            batch_size, rate = trial.batch_size, trial.learning_rate
            step = self.step_seconds(trial.num_gpus, batch_size) * math.exp(generator.normal(0, self.noise))
            jitter = np.exp(generator.normal(0, 0.01, EPOCHS))
            jitter[0] *= 1 + self.warm_up
            if generator.random() < self.missing:
                continue
            steps, lost = learnt[batch_size, rate, trial.seed]
            records.append(self.record(trial, steps, step * jitter, lost=lost))
        return records

    def drawn_steps(self, batch_size: int, rate: float, seed: int) -> tuple[float, bool]:
        """Steps to the target of one training, whatever its workers, and whether it never reaches it."""
        of_seed = np.random.default_rng([self.draw_seed, seed]).normal(0, self.noise * math.sqrt(self.common))
        place = [self.draw_seed, seed, batch_size, round(1e9 * rate)]
        own = np.random.default_rng(place)
        factor = math.exp(of_seed + own.normal(0, self.noise * math.sqrt(1 - self.common)))
        return self.steps(batch_size, rate) * factor, bool(own.random() < self.losing(rate))

    def record(self, trial: Any, steps: float, step_seconds: np.ndarray, *, lost: bool) -> dict[str, Any]:
        """The record of a training that takes so many steps, with the seconds of a step in each epoch."""
        each, diverged = math.ceil(self.samples / trial.batch_size), lost and self.bend == "divergence"
        ceiling = TARGET - 0.02 if lost else CEILING
        epochs: list[dict[str, Any]] = []
        arrived = False
        for number in range(1, 3 if diverged else EPOCHS + 1):
            value = ceiling - (ceiling - FLOOR) * math.exp(-SHAPE * number * each / steps)
            seconds = each * float(step_seconds[number - 1])
            epochs.append(
                {
                    "epoch": number,
                    "steps": each,
                    "samples": self.samples,
                    "train_seconds": seconds,
                    "samples_per_second": self.samples / seconds,
                    "test_accuracy": None if diverged and number == 2 else value,
                }
            )
            if arrived := number > 1 and epochs[-2]["test_accuracy"] >= TARGET:
                break  # it stops at the target, which it never leaves
        return {
            "trial_id": trial.trial_id,
            "kind": "training",
            "params": dict(trial.params),
            "status": "diverged" if diverged else "at_target" if arrived else "finished",
            "train_seconds": math.fsum(epoch["train_seconds"] for epoch in epochs),
            "flags": [],
            "epochs": epochs,
        }

    def write(self, path: Path) -> StudyFolder:
        """An ordinary study folder."""
        folder = StudyFolder(path)
        folder.create()
        folder.write_plan(self.plan, path.name, self.spec.to_yaml())
        for trial in self.trials():
            folder.append_trial(trial)
        return folder


def place_of(params: Mapping[str, Any]) -> Place:
    """The place of a cell's or trial's parameters."""
    return int(params["num_gpus"]), int(params["batch_size"]), float(params["learning_rate"])


def _bend(bend: Bend | bool, generator: np.random.Generator) -> Bend | None:
    if isinstance(bend, str):
        return bend
    drawn: Sequence[Bend] = get_args(Bend)
    return drawn[int(generator.integers(len(drawn)))] if bend else None
