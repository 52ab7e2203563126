"""Ranges in the sweep, and searches and schedulers that can't work."""

import pytest

from scalestudy.experiments.spec.sections import Range
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.study.trials import train_config
from tests.support.synthetic_studies import problems_of, spec_of

RATE = "learning_rate: {log_uniform: [0.01, 1]}"


def test_ranges_are_kept_as_written_and_read_back_equal():
    others = "batch_size: {uniform: [32, 512]}, train.optimizer.momentum: {uniform: [0, 0.9]}"
    spec = spec_of(f"name: x\nsweep: {{{RATE}, {others}}}\nsearch: {{method: random}}")
    assert spec.sweep.ranges() == {
        "batch_size": Range(kind="uniform", low=32, high=512),
        "learning_rate": Range(kind="log_uniform", low=0.01, high=1.0),
        "train.optimizer.momentum": Range(kind="uniform", low=0.0, high=0.9),
    }
    assert spec.sweep.lists() == {"num_gpus": (1,), "seed": (0,)}
    assert spec.to_dict()["sweep"]["learning_rate"] == {"log_uniform": [0.01, 1.0]}
    assert spec_of(spec.to_yaml()) == spec == StudySpec.model_validate(spec.to_dict())


@pytest.mark.parametrize("method", ["random", "tpe"])
@pytest.mark.parametrize(
    "key", ["num_gpus", "batch_size", "train.epochs", "train.accumulation", "train.base_batch_size"]
)
def test_whole_numbers_may_have_ranges(method, key):
    text = f"name: x\nsweep: {{{key}: {{log_uniform: [2, 8]}}}}\nsearch: {{method: {method}}}"
    assert spec_of(text).sweep.ranges()[key].whole


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
    ("sweep: {learning_rate: {uniform: [0.1, 1]}}", "sweep.learning_rate", '{"uniform": [0.1, 1.0]} is a distribution'),
    ("sweep: {learning_rate: {uniform: [0.1, 1]}}", "sweep.learning_rate", "set search.method: random or tpe, or list"),
    (RANDOM + "sweep: {learning_rate: {log_uniform: [0, 1]}}", "sweep.learning_rate", "above 0, low < high"),
    (RANDOM + "sweep: {learning_rate: {log_uniform: [-2, -1]}}", "sweep.learning_rate", "above 0, low < high"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0, 1]}}", "sweep.learning_rate", "0 is too small"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, 0.1]}}", "sweep.learning_rate", "no valid bounds"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, .nan]}}", "sweep.learning_rate", "no valid bounds"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, .inf]}}", "sweep.learning_rate", ".inf is not a finite number"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1]}}", "sweep.learning_rate", "write {uniform: [low, high]}"),
    (RANDOM + "sweep: {learning_rate: {uniform: 0.1}}", "sweep.learning_rate", "no valid bounds"),
    (RANDOM + "sweep: {learning_rate: {uniform: ['a', 'b']}}", "sweep.learning_rate", "no valid bounds"),
    (RANDOM + "sweep: {learning_rate: {normal: [0, 1]}}", "sweep.learning_rate", "is not a list"),
    (RANDOM + "sweep: {learning_rate: {uniform: [0.1, 1], choice: [1]}}", "sweep.learning_rate", "is not a list"),
    (RANDOM + "sweep: {batch_size: {uniform: [32, 64.5]}}", "sweep.batch_size", "64.5 is not a whole number"),
    (RANDOM + "sweep: {num_gpus: {uniform: [0, 4]}}", "sweep.num_gpus", "0 is too small"),
    (RANDOM + "sweep: {seed: {uniform: [0, 4]}}", "sweep.seed", "the values are no measure; list the values"),
    (RANDOM + "sweep: {train.gradient_sync: {uniform: [0, 4]}}", "sweep.train.gradient_sync", "no measure"),
    (RANDOM + "sweep: {train.compile: {uniform: [0, 1]}}", "sweep.train.compile", "no measure"),
    (RANDOM + "sweep: {train.optimizer.momentum: {uniform: [0, 1]}}", "sweep.train.optimizer.momentum", "less than 1"),
    (RANDOM + "sweep: {points: [{learning_rate: {uniform: [0.1, 1]}}]}", "sweep.points.learning_rate", "not a number"),
    (RANDOM + "sweep: {num_gpus: {uniform: [1, 8]}, batch_size: [16, 4]}", "sweep.batch_size", "4 is a batch smaller"),
    (TPE + "sweep: {num_gpus: [1, 8], batch_size: {uniform: [4, 99]}}", "sweep.batch_size", "smaller than num_gpus 8"),
    (
        TPE + "sweep: {train.optimizer.momentum: {uniform: [0, 0.9]}, train.optimizer.name: [sgd, adam]}",
        "sweep.train.optimizer.momentum",
        "0.9 does not go with optimizer.name adam",
    ),
    (TPE + "train: {shards: [1, 2]}\nsweep: {num_gpus: {uniform: [2, 3]}}", "train.shards", "num_gpus is 3"),
    (TPE, "search.method", "has one possible point, so that there is nothing to search; list more values"),
    (TPE + "sweep: {seed: [0, 1, 2]}", "search.method", "one possible point"),
    (TPE + "sweep: {points: [{num_gpus: 1}, {num_gpus: 2}]}", "sweep.points", "tpe can't learn; list the parameters"),
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
    ("search: {objective: time_to_target}\ntargets: {accuracy: [0.9]}", "search.objective", "only tpe looks for it"),
    (
        "search: {method: random, samples: 5001}\nsweep: {seed: [1, 2], learning_rate: {uniform: [0.1, 1]}}",
        "search.samples",
        "5001 makes 10,002 trials with all seeds, more than 10,000; choose fewer points",
    ),
    ("search: {samples: 0}", "search.samples", "at least 1"),
    ("search: {seed: -1}", "search.seed", "at least 0"),
    ("search: {scheduler: asha}\ntrain: {epochs: 1}", "search.scheduler", "can't stop trials of one epoch early"),
    ("search: {scheduler: asha}\nsweep: {train.epochs: [1]}", "search.scheduler", "trials of one epoch"),
    ("search: {scheduler: asha, grace_epochs: 10}", "search.grace_epochs", "trials have 10 epochs; use less than 10"),
    ("search: {scheduler: asha, reduction: 1}", "search.reduction", "at least 2"),
    ("search: {scheduler: asha}\nsweep: {train.epochs: [5, 10]}", "search.scheduler", "train.epochs is swept as well"),
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


def test_the_corners_of_a_search_are_what_the_training_loop_takes():
    from scalestudy.experiments.plan.plan import corner_trials

    spec = spec_of(f"name: x\nsweep: {{num_gpus: [1, 2], {RATE}, train.schedule: [cosine, one_cycle]}}\n{TPE}")
    corners = corner_trials(spec)
    assert {(each.num_gpus, each.learning_rate, each.train["schedule"]) for each in corners} == {
        (gpus, rate, schedule) for gpus in (1, 2) for rate in (0.01, 1.0) for schedule in ("cosine", "one_cycle")
    }
    for trial in corners:
        train_config(trial, "data").weights(trial.num_gpus)
