"""Values that don't go together: searches, schedulers and factorised grids that can't work."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import SpecError, parse_study
from tests.support.factorised import METHOD
from tests.support.synthetic_studies import problems_of, spec_of

RATE = "learning_rate: {log_uniform: [0.01, 1]}"

ACCEPTED = [
    "search: {method: tpe, scheduler: asha, grace_epochs: 9}\nsweep: {num_gpus: [1, 2]}",
    "search: {method: tpe, objective: time_to_target}\nsweep: {num_gpus: [1, 2]}\ntargets: {accuracy: [0.9]}",
    "search: {method: random}",
    "search: {method: random, scheduler: asha}\nsweep: {train.epochs: [5]}",
    f"search: {{method: random}}\nsweep: {{points: [{{num_gpus: 1}}, {{num_gpus: 2}}], {RATE}}}",
    "search: {scheduler: asha, reduction: 2, grace_epochs: 3}",
    "search: {method: random, samples: 10000}\nsweep: {learning_rate: {uniform: [0.1, 0.2]}}",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_searches_that_work(text):
    spec = spec_of(f"name: x\n{text}")
    assert spec_of(spec.to_yaml()) == spec


TPE = "search: {method: tpe}\n"
RANDOM = "search: {method: random}\n"
# (the spec after its name, the field, a piece of the message)
BAD = [
    ("sweep: {learning_rate: {uniform: [0.1, 1]}}", "sweep.learning_rate", '{"uniform": [0.1, 1.0]} is a range, which'),
    ("sweep: {learning_rate: {uniform: [0.1, 1]}}", "sweep.learning_rate", "set search.method: random or tpe, or list"),
    (RANDOM + "sweep: {learning_rate: {log_uniform: [0, 1]}}", "sweep.learning_rate", "above 0, low < high"),
    (RANDOM + "sweep: {learning_rate: {log_uniform: [-2, -1]}}", "sweep.learning_rate", "above 0, low < high"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0, 1]}}", "sweep.learning_rate", "0 is too small"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, 0.1]}}", "sweep.learning_rate", "invalid bounds"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, .nan]}}", "sweep.learning_rate", "invalid bounds"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, .inf]}}", "sweep.learning_rate", ".inf is not a finite number"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1]}}", "sweep.learning_rate", "write {uniform: [low, high]}"),
    (RANDOM + "sweep: {learning_rate: {uniform: 0.1}}", "sweep.learning_rate", "invalid bounds"),
    (RANDOM + "sweep: {learning_rate: {uniform: ['a', 'b']}}", "sweep.learning_rate", "invalid bounds"),
    (RANDOM + "sweep: {learning_rate: {normal: [0, 1]}}", "sweep.learning_rate", "is not a list"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, 1], choice: [1]}}", "sweep.learning_rate", "is not a list"),
    (RANDOM + "sweep: {batch_size: {uniform: [32, 64.5]}}", "sweep.batch_size", "64.5 is not a whole number"),
    (RANDOM + "sweep: {num_gpus: {uniform: [0, 4]}}", "sweep.num_gpus", "0 is too small"),
    (RANDOM + "sweep: {seed: {uniform: [0, 4]}}", "sweep.seed", "a range, which this key can't have; list the values"),
    (RANDOM + "sweep: {train.gradient_sync: {uniform: [0, 4]}}", "sweep.train.gradient_sync", "this key can't have"),
    (RANDOM + "sweep: {train.compile: {uniform: [0, 1]}}", "sweep.train.compile", "this key can't have"),
    (RANDOM + "sweep: {train.optimizer.momentum: {uniform: [0, 1]}}", "sweep.train.optimizer.momentum", "less than 1"),
    (RANDOM + "sweep: {points: [{learning_rate: {uniform: [0.1, 1]}}]}", "sweep.points.learning_rate", "not a number"),
    (RANDOM + "sweep: {num_gpus: {uniform: [1, 8]}, batch_size: [16, 4]}", "sweep.batch_size", "4 is smaller than"),
    (TPE + "sweep: {num_gpus: [1, 8], batch_size: {uniform: [4, 99]}}", "sweep.batch_size", "smaller than num_gpus 8"),
    (
        TPE + "sweep: {train.optimizer.momentum: {uniform: [0, 0.9]}, train.optimizer.name: [sgd, adam]}",
        "sweep.train.optimizer.momentum",
        "0.9 does not go with optimizer.name adam",
    ),
    (TPE + "train: {shards: [1, 2]}\nsweep: {num_gpus: {uniform: [2, 3]}}", "train.shards", "num_gpus is 3"),
    (TPE, "search.method", "has nothing to search: the sweep has one point; list more values"),
    (TPE + "sweep: {seed: [0, 1, 2]}", "search.method", "nothing to search"),
    (TPE + "sweep: {points: [{num_gpus: 1}, {num_gpus: 2}]}", "sweep.points", "which needs lists or ranges; list the"),
    (
        "search: {method: tpe, objective: time_to_target}\nsweep: {num_gpus: [1, 2]}",
        "search.objective",
        "needs a target",
    ),
    (
        "search: {method: tpe, objective: cost_to_target}\nsweep: {num_gpus: [1, 2]}",
        "search.objective",
        "give one, such as targets: {accuracy: [0.9]}",
    ),
    ("search: {objective: time_to_target}\ntargets: {accuracy: [0.9]}", "search.objective", "only tpe uses it"),
    ("targets: {stop: true}", "targets.stop", "has no target to stop at; give one"),
    ("targets: {stop: maybe}", "targets.stop", "choose false, true or auto"),
    (
        TPE + "sweep: {num_gpus: [1, 2]}\ntargets: {accuracy: [0.9], stop: true}",
        "targets.stop",
        "before their best metric, which search.objective looks for; set search.objective: time_to_target",
    ),
    (
        "search: {method: random, samples: 5001}\nsweep: {seed: [1, 2], learning_rate: {uniform: [0.1, 1]}}",
        "search.samples",
        "5001 makes 10,002 trials with all seeds, more than 10,000; choose fewer points",
    ),
    ("search: {samples: 0}", "search.samples", "at least 1"),
    ("search: {seed: -1}", "search.seed", "at least 0"),
    ("search: {scheduler: asha}\ntrain: {epochs: 1}", "search.scheduler", "can't stop trials of one epoch early"),
    ("search: {scheduler: asha}\nsweep: {train.epochs: [1]}", "search.scheduler", "trials of one epoch"),
    (
        "search: {scheduler: asha}\ntrain: {steps: 100}\nsweep: {train.eval_every: [{steps: 5}, {steps: 50}]}",
        "search.scheduler",
        "set train.eval_every to one of its values",
    ),
    ("search: {scheduler: asha, grace_epochs: 10}", "search.grace_epochs", "trials have 10 epochs; use less than 10"),
    ("search: {scheduler: asha, reduction: 1}", "search.reduction", "at least 2"),
    ("search: {scheduler: asha}\nsweep: {train.epochs: [5, 10]}", "search.scheduler", "both decide how long"),
]


@pytest.mark.parametrize(("text", "field", "piece"), BAD, ids=[f"{row[1]}-{n}" for n, row in enumerate(BAD)])
def test_a_search_that_can_not_work_is_told_with_its_remedy(text, field, piece):
    problems = problems_of(f"name: x\n{text}\n")
    told = [problem.text("study.yaml") for problem in problems if problem.field == field]
    assert any(piece in each for each in told), [problem.text("study.yaml") for problem in problems]
    assert len(problems) == 1, "one message for one mistake"


def test_more_samples_than_points_are_all_points():
    """Asked for more than there is, a search gives what there is: nobody has to count a grid to draw from it."""
    assert spec_of("name: x\nsearch: {method: random, samples: 9000}\nsweep: {seed: [0, 1, 2]}").search.samples == 9000


# --- factorised grids -------------------------------------------------------------------------------------------------


TWO = "sweep: {num_gpus: [1, 2]}\n"


# (the spec after its name, the field, a piece of the message)
NOT_FACTORISED = [
    (METHOD, "search.method", "nothing to factorise: the sweep has one num_gpus; list more under sweep.num_gpus"),
    (METHOD + "sweep: {num_gpus: [2]}", "search.method", "nothing to factorise"),
    (
        METHOD + "sweep: {points: [{num_gpus: 1, batch_size: 32}, {num_gpus: 2, batch_size: 64}]}",
        "sweep.points",
        "contain num_gpus, which a factorised study combines with every point; list it under sweep.num_gpus",
    ),
    (METHOD + "sweep: {num_gpus: [1, 2], points: [{seed: 1}, {seed: 2}]}", "sweep.points", "list it under sweep.seed"),
    (METHOD + "sweep: {num_gpus: {uniform: [1, 4]}}", "sweep.num_gpus", "which a factorised grid can't run"),
    (METHOD + "sweep: {num_gpus: [1, 2], learning_rate: {uniform: [0.1, 1]}}", "sweep.learning_rate", "is a range"),
    (TWO + "search: {method: factorised, train_on: 4}", "search.train_on", "is not in sweep.num_gpus; choose one of 1"),
    (TWO + "search: {method: factorised, train_on: 0}", "search.train_on", "at least 1"),
    (TWO + "search: {method: factorised, held_out: -1}", "search.held_out", "at least 0"),
    (TWO + "search: {train_on: 2}", "search.train_on", "no effect: search.method is not factorised"),
    (TWO + "search: {method: random, allow_inexact: true}", "search.allow_inexact", "set search.method: factorised"),
    (TWO + METHOD + "train: {lr_rule: adascale}", "train.lr_rule", "depend on num_gpus; set search.method: grid, or"),
    (METHOD + "sweep: {num_gpus: [1, 2], train.lr_rule: [none, adascale]}", "sweep.train.lr_rule", "adapts the rate"),
    (TWO + METHOD + "train: {gradient_sync: bf16}", "train.gradient_sync", "search.allow_inexact: true to run it"),
    (TWO + METHOD + "train: {gradient_sync: 'my.own:sync'}", "train.gradient_sync", "is your own code, and can't be"),
    (
        METHOD + "sweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, powersgd]}",
        "sweep.train.gradient_sync",
        '"powersgd" does not sum gradients exactly',
    ),
    (METHOD + "sweep: {num_gpus: [1, 2], points: [{train.gradient_sync: local_sgd}]}", "sweep.points", "local_sgd"),
    (
        TWO + METHOD + "workload: {model: resnet18}",
        "workload.model",
        "over one worker's examples; set train.sync_batch_norm: true",
    ),
    (
        METHOD + "sweep: {num_gpus: [1, 2], train.sync_batch_norm: [true, false]}\nworkload: {model: resnet18}",
        "workload.model",
        "batch normalisation",
    ),
    (
        TWO + METHOD + "workload: {model: resnet18}\ntrain: {sync_batch_norm: true, accumulation: 2}",
        "workload.model",
        "micro-batches, and these differ with num_gpus; set train.accumulation: 1",
    ),
    (TWO + METHOD + "workload: {model: mlp, model_args: {batch_norm: true}}", "workload.model", "batch normalisation"),
    (TWO + METHOD + "workload: {model: mlp, model_args: {dropout: 0.5}}", "workload.model_args.dropout", "set it to 0"),
]


def of_all_models(text):
    return parse_study(f"name: x\n{text}\n", "study.yaml")


@pytest.mark.parametrize(
    ("text", "field", "piece"), NOT_FACTORISED, ids=[f"{row[1]}-{n}" for n, row in enumerate(NOT_FACTORISED)]
)
def test_what_can_not_be_factorised_is_told_with_its_remedy(text, field, piece):
    with pytest.raises(SpecError) as refused:
        of_all_models(text)
    told = [problem.text("study.yaml") for problem in refused.value.problems if problem.field == field]
    assert any(piece in each for each in told), str(refused.value)
    assert len(refused.value.problems) == 1, "one message for one mistake"


INEXACT = [
    row[0] for row in NOT_FACTORISED if any(word in row[2] for word in ("allow_inexact", "your own code", "dropout"))
]


FACTORISED = [
    TWO + METHOD,
    TWO + METHOD + "train: {lr_rule: linear, augment: crop_flip, shards: speed, precision: bf16}",
    TWO + METHOD + "workload: {model: resnet18}\ntrain: {sync_batch_norm: true}",
    TWO + "search: {method: factorised, scheduler: asha, train_on: 2, held_out: 0}",
    METHOD + "sweep: {num_gpus: [1, 2], points: [{batch_size: 64, learning_rate: 0.1}]}",
    METHOD + "sweep: {num_gpus: [1, 2, 4], train.gradient_sync: [ddp, naive, flat, ring]}",
    *(text.replace("factorised}", "factorised, allow_inexact: true}") for text in INEXACT if "random" not in text),
]


@pytest.mark.parametrize("text", FACTORISED)
def test_what_can_be_factorised(text):
    spec = of_all_models(text)
    assert of_all_models(spec.to_yaml().replace("name: x\n", "")) == spec


def test_many_trials_are_counted_as_they_are_run():
    rates = [round(0.01 * n, 2) for n in range(1, 3001)]
    sweep = f"sweep: {{num_gpus: [1, 2, 4], learning_rate: {rates}, seed: [0, 1, 2]}}\n"
    assert len(make_plan(spec_of(f"name: x\n{sweep}{METHOD}")).trials) == 9_000
    (problem,) = problems_of(f"name: x\n{sweep.replace('[0, 1, 2]', '[0, 1, 2, 3]')}{METHOD}")
    assert "the factorised grid has 12,008 trials, more than 10,000" in problem.message
