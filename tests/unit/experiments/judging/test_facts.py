"""Facts are never wrong: each input names exactly its faults."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest

from scalestudy.experiments.judging.facts import edge_fact, facts_of
from scalestudy.experiments.judging.runs import Evaluation, Run
from scalestudy.experiments.judging.suspicions import suspicions_of

TARGET = 0.9
LEARNS = (0.3, 0.5, 0.7, 0.8, 0.88, 0.91, 0.92, 0.93, 0.93, 0.94)
"""Meets the target after six of ten evaluations."""
FAILS = (0.3, 0.4, 0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7)


def evaluations(values=LEARNS, seconds=10.0, steps=100, noise=0.0):
    return tuple(
        Evaluation(value=value + noise, seconds=seconds * place + noise, steps=steps * place, epochs=float(place))
        for place, value in enumerate(values, start=1)
    )


def clean():
    """Two batch sizes, two rates, two seeds, one after another on one machine."""
    places = list(product((64, 128), (0.1, 0.2), (0, 1)))
    return [
        Run(
            where=f"runs.csv, row {number}",
            name=f"r{number}",
            num_gpus=2,
            batch_size=batch_size,
            learning_rate=rate,
            seed=seed,
            settings={"optimizer": "sgd", "weight_decay": 1e-4},
            evaluations=evaluations(noise=number * 1e-4),
            seconds=101.0,
            ended="finished",
            started=1_700_000_000.0 + 200 * number,
            machine="node1",
            accelerator="A100",
        )
        for number, (batch_size, rate, seed) in enumerate(places)
    ]


def changed(*numbers, **fields):
    """The clean runs with these fields in some."""
    return lambda runs: [
        replace(run, **fields) if number in numbers or not numbers else run for number, run in enumerate(runs)
    ]


def each(**functions):
    """The clean runs with each field made of the run."""
    return lambda runs: [replace(run, **{name: make(run) for name, make in functions.items()}) for run in runs]


def having(**settings):
    """The clean runs with more settings, each made of the run."""
    return each(settings=lambda run: run.settings | {name: make(run) for name, make in settings.items()})


def without(*numbers):
    return lambda runs: [run for number, run in enumerate(runs) if number not in numbers]


ALL = {f"r{number}" for number in range(8)}
CUT_SHORT = evaluations(FAILS[:5])
BACK = tuple(replace(one, seconds=one.seconds - 45 * (place > 4)) for place, one in enumerate(evaluations()))
TWICE = (*evaluations(LEARNS[:3]), *(replace(one, seconds=one.seconds + 1) for one in evaluations(LEARNS)[2:]))
SHORT = evaluations(seconds=1.0)
RARE = (Evaluation(value=0.5, seconds=20, steps=200, epochs=2), *evaluations()[5:])

FAULTY = {
    "clean": (lambda runs: runs, {}),
    "one run": (lambda runs: runs[:1], {"one_seed": {"r0"}}),
    "no runs": (lambda runs: [], {}),
    "one seed in all": (lambda runs: runs[::2], {"one_seed": {"r0", "r2", "r4", "r6"}}),
    "one seed in one cell": (without(1), {"one_seed": {"r0"}}),
    "the same seed twice": (changed(1, seed=0), {"one_seed": {"r0", "r1"}}),
    "no seed named": (changed(seed=None), {"no_seed": ALL}),
    "no seed named in one": (changed(3, seed=None), {"no_seed": {"r3"}}),
    "a shorter budget": (changed(2, evaluations=CUT_SHORT, seconds=51.0), {"budgets": {"r2"}}),
    "budgets in examples": (
        each(evaluations=lambda run: tuple(replace(one, epochs=None) for one in run.evaluations)),
        {"budgets": {"r0", "r1", "r2", "r3"}},
    ),
    "ended at its target": (changed(2, evaluations=evaluations(LEARNS[:7]), seconds=71.0), {}),
    "diverged": (
        changed(2, evaluations=(*CUT_SHORT, replace(evaluations()[5], value=math.nan)), seconds=61.0),
        {},
    ),
    "the last batch left out": (
        changed(2, evaluations=(*evaluations(FAILS)[:9], replace(evaluations(FAILS)[9], epochs=9.8))),
        {},
    ),
    "lengths unknown": (
        each(
            evaluations=lambda run: tuple(
                replace(one, epochs=None, steps=None) for one in run.evaluations[: 10 - (run.name == "r2")]
            )
        ),
        {},
    ),
    "another setting": (
        lambda runs: changed(3, settings={"optimizer": "adam", "weight_decay": 1e-4})(runs),
        {"settings": {"r3"}},
    ),
    "two other settings": (
        lambda runs: changed(3, settings={"optimizer": "adam", "weight_decay": 0})(runs),
        {"settings": {"r3"}},
    ),
    "a setting that one names": (changed(3, settings={"optimizer": "sgd", "weight_decay": 1e-4, "ema": True}), {}),
    "the same number": (changed(3, settings={"optimizer": "sgd", "weight_decay": 0.0001}), {}),
    "the batch of a device": (having(per_device=lambda run: run.batch_size // run.num_gpus), {}),
    "steps of an epoch": (having(steps_per_epoch=lambda run: -(-50_000 // run.batch_size)), {}),
    "the seed under another name": (having(data_seed=lambda run: run.seed), {}),
    "names of the record": (
        having(run_id=lambda run: run.name, output_dir=lambda run: f"/x/{run.name}", note=lambda run: run.seed),
        {},
    ),
    "results": (
        having(val_loss=lambda run: run.seed, best_epoch=lambda run: 3 + run.seed, score=lambda run: int(run.name[1])),
        {},
    ),
    "a label": (having(group=lambda run: f"of {run.name}"), {}),
    "a number of two runs": (
        lambda runs: having(layers=lambda run: 3 + run.seed)(runs[:2]),
        {},
    ),
    "a number that runs share": (
        lambda runs: having(layers=lambda run: 3 + run.seed)(runs),
        {"settings": {"r1", "r3", "r5", "r7"}},
    ),
    "a model that differs": (
        having(model_name=lambda run: "resnet18" if run.batch_size == 64 else "resnet50"),
        {"settings": {"r4", "r5", "r6", "r7"}},
    ),
    "two types of GPU": (changed(6, 7, accelerator="H100"), {"accelerators": {"r6", "r7"}}),
    "one type, named twice": (changed(6, accelerator="NVIDIA A100-SXM4-80GB"), {}),
    "one type, by two makers' names": (
        lambda runs: changed(6, accelerator="Tesla A100")(changed(accelerator="NVIDIA A100")(runs)),
        {},
    ),
    "a type and its variant": (changed(6, accelerator="A100 Ti"), {"accelerators": {"r6"}}),
    "a type unknown": (changed(6, accelerator=None), {}),
    "two machines": (changed(4, 5, machine="node2"), {"machines": {"r4", "r5"}}),
    "a machine with its domain": (changed(4, machine="node1.cluster.example"), {}),
    "an address and a name": (changed(4, machine="10.0.0.7"), {}),
    "two addresses": (
        lambda runs: changed(4, machine="10.0.0.8")(changed(machine="10.0.0.7")(runs)),
        {"machines": {"r4"}},
    ),
    "a clock that goes back": (changed(5, evaluations=BACK), {"clock": {"r5"}}),
    "a time before the start": (
        changed(5, evaluations=(replace(evaluations()[0], seconds=-3.0), *evaluations()[1:])),
        {"clock": {"r5"}},
    ),
    "shorter than its evaluations": (changed(5, seconds=50.0), {"clock": {"r5"}}),
    "seconds that are rounded": (changed(5, seconds=99.0), {}),
    "at the same time": (changed(1, started=1_700_000_050.0), {"overlap": {"r0", "r1"}}),
    "at the same time elsewhere": (changed(1, started=1_700_000_050.0, machine=None), {}),
    "one after another, to the second": (changed(1, started=1_700_000_100.0), {}),
    "a few seconds of its start-up at the same time": (changed(1, started=1_700_000_097.0), {}),
    "short runs, one after another, to the second": (
        lambda runs: changed(1, started=1_700_000_009.0)(changed(0, 1, evaluations=SHORT, seconds=9.0)(runs)),
        {},
    ),
    "as long as its evaluations": (
        lambda runs: changed(0, seconds=None)(changed(1, started=1_700_000_060.0)(runs)),
        {"overlap": {"r0", "r1"}},
    ),
    "met at the first evaluation": (
        changed(6, evaluations=evaluations()[5:], seconds=101.0),
        {"rare_evaluations": {"r6"}},
    ),
    "met between two far apart": (changed(6, evaluations=RARE), {"rare_evaluations": {"r6"}}),
    "far apart, and not met": (
        changed(6, evaluations=tuple(replace(one, value=0.4) for one in RARE)),
        {},
    ),
    "a row a run": (
        each(evaluations=lambda run: run.evaluations[6:7]),
        {"rare_evaluations": ALL},
    ),
    "failed": (changed(2, ended="failed", evaluations=CUT_SHORT), {"failed": {"r2"}}),
    "failed at once": (
        changed(2, ended="failed", evaluations=(), seconds=None),
        {"failed": {"r2"}, "one_seed": {"r3"}},
    ),
    "cut": (changed(2, 3, ended="cut", evaluations=CUT_SHORT), {"cut": {"r2", "r3"}}),
    "without an end": (changed(7, ended="running"), {"running": {"r7"}}),
    "twice a step": (changed(1, evaluations=TWICE), {"twice_a_step": {"r1"}}),
    "there twice": (lambda runs: [*runs, replace(runs[3], name="again")], {"duplicates": {"r3", "again"}}),
    "as before, at another time": (
        lambda runs: [*runs, replace(runs[3], name="r8", started=1_700_009_000.0)],
        {},
    ),
    "as before, without times": (
        lambda runs: each(
            evaluations=lambda run: tuple(replace(one, seconds=None) for one in run.evaluations),
            started=lambda _: None,
        )([*runs, replace(runs[3], name="r8")]),
        {},
    ),
    "two faults": (
        lambda runs: changed(0, ended="failed")(changed(3, machine="node2")(runs)),
        {"failed": {"r0"}, "machines": {"r3"}},
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_each_input_names_exactly_its_faults(name):
    make, expected = FAULTY[name]
    facts = facts_of(make(clean()), TARGET, "max")
    assert {fact.kind: set(fact.runs) for fact in facts} == expected
    for fact in facts:
        assert fact.words.endswith(".")
        assert all(run in fact.words for run in fact.runs[:3])


@pytest.mark.parametrize("said", ["included", "excluded", None])
def test_nothing_is_suspected_of_the_clean_one(said):
    assert suspicions_of(clean(), [], evaluation=said) == []


def test_the_table_is_large_enough():
    assert len(FAULTY) >= 25


def test_a_metric_that_is_minimised():
    losses = each(evaluations=lambda run: tuple(replace(one, value=1 - one.value) for one in run.evaluations))
    runs = changed(6, evaluations=tuple(replace(one, value=0.05) for one in evaluations()))(losses(clean()))
    assert [(fact.kind, fact.runs) for fact in facts_of(runs, 0.1, "min")] == [("rare_evaluations", ("r6",))]


def test_settings_that_differ_are_a_table():
    runs = having(weight_decay=lambda run: 10.0 ** -(2 + run.seed), ema=lambda run: run.learning_rate == 0.2)(clean())
    [fact] = facts_of(runs, TARGET, "max")
    table = {row.setting: {value: list(names) for value, names in row.values} for row in fact.table}
    assert table == {
        "weight_decay": {"0.001": ["r1", "r3", "r5", "r7"], "0.01": ["r0", "r2", "r4", "r6"]},
        "ema": {"false": ["r0", "r1", "r4", "r5"], "true": ["r2", "r3", "r6", "r7"]},
    }
    assert "weight_decay (0.001, 0.01), ema (false, true)" in fact.words


def test_many_runs_are_counted():
    [fact] = facts_of(changed(seed=None)(clean()), TARGET, "max")
    assert (
        fact.words == "No seed is named (--column seed=NAME says which column it is): 8 runs (r0, r1, r2 and 5 more)."
    )


def test_values_that_are_no_numbers_are_compared_all_the_same():
    odd = [float("nan"), float("inf"), *LEARNS[2:]]
    runs = changed(2, evaluations=evaluations(odd))(having(schedule=lambda _: {"warmup": [1, 2]})(clean()))
    assert not facts_of(runs, TARGET, "max")
    json.dumps([fact.words for fact in facts_of([*runs, replace(runs[2], name="again")], TARGET, "max")])


@pytest.mark.parametrize(
    ("rate", "chance", "words"),
    [
        (0.1, 0.5, "0.1 is the lowest learning rate tried at batch 64: a lower one may do better: 2 runs (r0, r1)."),
        (0.2, 0.9, "0.2 is the highest learning rate tried at batch 64: a higher one may do better: 2 runs (r2, r3)."),
        (0.1, 0.49, None),
        (0.15, 1.0, None),
    ],
)
def test_the_best_rate_at_the_edge(rate, chance, words):
    inner = replace(clean()[0], name="inner", learning_rate=0.15)
    fact = edge_fact([*clean(), inner], 64, rate, chance)
    assert (fact.words if fact else None) == words


def test_the_only_rate_is_an_edge():
    fact = edge_fact(clean()[:2], 64, 0.1, 1.0)
    assert "the only learning rate" in fact.words
