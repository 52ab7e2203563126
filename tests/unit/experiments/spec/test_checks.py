"""Searches that work. Those that can't, test_bad_input.py has."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from tests.support.synthetic_studies import problems_of, spec_of

RATE = "learning_rate: {log_uniform: [0.01, 1]}"

SEARCHES = [
    "search: {method: tpe, scheduler: asha, grace_epochs: 9}\nsweep: {num_gpus: [1, 2]}",
    "search: {method: tpe, objective: time_to_target}\nsweep: {num_gpus: [1, 2]}\ntargets: {accuracy: [0.9]}",
    "search: {method: random}",
    "search: {method: random, scheduler: asha}\nsweep: {train.epochs: [5]}",
    f"search: {{method: random}}\nsweep: {{points: [{{num_gpus: 1}}, {{num_gpus: 2}}], {RATE}}}",
    "search: {scheduler: asha, reduction: 2, grace_epochs: 3}",
    "search: {method: random, samples: 10000}\nsweep: {learning_rate: {uniform: [0.1, 0.2]}}",
]
TWO = "sweep: {num_gpus: [1, 2]}\n"
REACHED = "targets: {accuracy: [0.9]}\nsearch: {method: adaptive}\n"
ADAPTIVE = [
    TWO + REACHED + "budget: {minutes: 0.5}",
    TWO + REACHED + "budget: {worker_hours: 4, uses: 1000}",
    TWO + REACHED.replace("adaptive", "adaptive, objective: cost_to_target") + "budget: {trials: 1}",
    TWO + REACHED.replace("[0.9]", "[0.9], stop: true") + "budget: {trials: 1}",
    REACHED + "budget: {trials: 12}\nsweep: {num_gpus: {log_uniform: [1, 8]}, batch_size: [4, 64], seed: [3]}",
    REACHED + "budget: {trials: 12}\nsweep: {batch_size: {uniform: [32, 64]}, train.optimizer.momentum: [0.9]}",
    *(
        f"{TWO}{REACHED}budget: {{trials: 12}}\n{trains}"
        for trains in (
            "train: {lr_rule: linear, augment: crop_flip, shards: speed, precision: bf16}",
            "workload: {model: resnet18}\ntrain: {sync_batch_norm: true}",
        )
    ),
    *(
        f"{REACHED}budget: {{trials: 12}}\nsweep: {{num_gpus: [1, 2], train.gradient_sync: [{sync}]}}"
        for sync in ("ddp", "naive", "flat", "ring")
    ),
    REACHED + "budget: {trials: 12}\nworkload: {loop: 'my:loop', exact: true}\n"
    "sweep: {num_gpus: {log_uniform: [1, 8]}, batch_size: {log_uniform: [64, 512]}}",
]


@pytest.mark.parametrize("text", [*SEARCHES, *ADAPTIVE])
def test_searches_that_work(text):
    spec = spec_of(f"name: x\n{text}")
    assert spec_of(spec.to_yaml()) == spec


def test_more_samples_than_points_are_all_points():
    """Asked for more than there is, a search gives what there is: nobody has to count a grid to draw from it."""
    assert spec_of("name: x\nsearch: {method: random, samples: 9000}\nsweep: {seed: [0, 1, 2]}").search.samples == 9000


def test_many_trials_are_counted_as_they_are_run():
    def study(rates):
        learning_rate = [round(0.01 * n, 2) for n in range(1, rates + 1)]
        return f"name: x\nsweep: {{num_gpus: [1, 2, 4], learning_rate: {learning_rate}, seed: [0, 1, 2, 3]}}\n"

    assert len(make_plan(spec_of(study(10))).trials) == 120
    (problem,) = problems_of(study(1000))
    assert "the grid has 12,000 trials, more than 10,000" in problem.message


def test_more_places_than_an_adaptive_search_may_have_are_counted_and_not_made():
    text = f"name: x\n{REACHED}budget: {{minutes: 30}}\n"
    (problem,) = problems_of(f"{text}sweep: {{batch_size: {list(range(1, 4001))}, num_gpus: {list(range(1, 4001))}}}")
    assert problem.text() == (
        "5: sweep: states 16,000,000 places to search, more than 10,000; "
        "list fewer values, or give ranges, of which points an octave apart count"
    )
