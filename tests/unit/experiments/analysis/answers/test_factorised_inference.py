"""Factorised studies: what is refused, what is trained, held out and timed, and what it costs."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.factorised import held_out_trials
from scalestudy.experiments.plan.estimate import estimate
from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.plan.timing_runs import step_key, timing_trials
from scalestudy.experiments.spec.reading import SpecError, parse_study
from scalestudy.training.registry import DATASETS, MODELS
from tests.support.factorised import factorised_study, stopped_after
from tests.support.synthetic_studies import problems_of, spec_of
from tests.support.trials import Law, make_trials

METHOD = "search: {method: factorised}\n"
SWEEP = "sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}\n"
TEXT = f"name: x\ntrain: {{epochs: 4}}\ntargets: {{accuracy: [0.2]}}\n{SWEEP}{METHOD}"

# --- the spec -------------------------------------------------------------------------------------------------------

TWO = "sweep: {num_gpus: [1, 2]}\n"
# (the spec after its name, the field, a piece of the message)
BAD = [
    (METHOD, "search.method", "nothing to factorise: there is one num_gpus; list more under sweep.num_gpus"),
    (METHOD + "sweep: {num_gpus: [2]}", "search.method", "nothing to factorise"),
    (
        METHOD + "sweep: {points: [{num_gpus: 1, batch_size: 32}, {num_gpus: 2, batch_size: 64}]}",
        "sweep.points",
        "give num_gpus, so that they are no grid of it; list sweep.num_gpus apart",
    ),
    (METHOD + "sweep: {num_gpus: [1, 2], points: [{seed: 1}, {seed: 2}]}", "sweep.points", "list sweep.seed apart"),
    (METHOD + "sweep: {num_gpus: {uniform: [1, 4]}}", "sweep.num_gpus", "which a factorised grid can't run"),
    (METHOD + "sweep: {num_gpus: [1, 2], learning_rate: {uniform: [0.1, 1]}}", "sweep.learning_rate", "distribution"),
    (TWO + "search: {method: factorised, train_on: 4}", "search.train_on", "no num_gpus of the sweep; choose one of 1"),
    (TWO + "search: {method: factorised, train_on: 0}", "search.train_on", "at least 1"),
    (TWO + "search: {method: factorised, held_out: -1}", "search.held_out", "at least 0"),
    (TWO + "search: {train_on: 2}", "search.train_on", "no effect: no grid is factorised"),
    (TWO + "search: {method: random, allow_inexact: true}", "search.allow_inexact", "set search.method: factorised"),
    (TWO + METHOD + "train: {lr_rule: adascale}", "train.lr_rule", "depend on num_gpus; set search.method: grid, or"),
    (METHOD + "sweep: {num_gpus: [1, 2], train.lr_rule: [none, adascale]}", "sweep.train.lr_rule", "as num_gpus work"),
    (TWO + METHOD + "train: {gradient_sync: bf16}", "train.gradient_sync", "search.allow_inexact: true to run it"),
    (TWO + METHOD + "train: {gradient_sync: 'my.own:sync'}", "train.gradient_sync", "code of your own, and only you"),
    (
        METHOD + "sweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, powersgd]}",
        "sweep.train.gradient_sync",
        '"powersgd" does not sum gradients exactly',
    ),
    (METHOD + "sweep: {num_gpus: [1, 2], points: [{train.gradient_sync: local_sgd}]}", "sweep.points", "local_sgd"),
    (
        TWO + METHOD + "workload: {model: resnet18}",
        "workload.model",
        "sees each worker's examples alone; set train.sync_batch_norm: true",
    ),
    (
        METHOD + "sweep: {num_gpus: [1, 2], train.sync_batch_norm: [true, false]}\nworkload: {model: resnet18}",
        "workload.model",
        "batch normalisation",
    ),
    (
        TWO + METHOD + "workload: {model: resnet18}\ntrain: {sync_batch_norm: true, accumulation: 2}",
        "workload.model",
        "sees micro-batches, other examples at each num_gpus; set train.accumulation: 1",
    ),
    (TWO + METHOD + "workload: {model: mlp, model_args: {batch_norm: true}}", "workload.model", "batch normalisation"),
    (TWO + METHOD + "workload: {model: mlp, model_args: {dropout: 0.5}}", "workload.model_args", "set dropout: 0"),
]


def of_all_models(text):
    return parse_study(f"name: x\n{text}\n", "study.yaml", models=MODELS, datasets=DATASETS)


@pytest.mark.parametrize(("text", "field", "piece"), BAD, ids=[f"{row[1]}-{n}" for n, row in enumerate(BAD)])
def test_what_can_not_be_factorised_is_told_with_its_remedy(text, field, piece):
    with pytest.raises(SpecError) as refused:
        of_all_models(text)
    told = [problem.text("study.yaml") for problem in refused.value.problems if problem.field == field]
    assert any(piece in each for each in told), str(refused.value)
    assert len(refused.value.problems) == 1, "one message for one mistake"


INEXACT = [row[0] for row in BAD if any(word in row[2] for word in ("allow_inexact", "code of your own", "dropout"))]
ACCEPTED = [
    TWO + METHOD,
    TWO + METHOD + "train: {lr_rule: linear, augment: crop_flip, shards: speed, precision: bf16}",
    TWO + METHOD + "workload: {model: resnet18}\ntrain: {sync_batch_norm: true}",
    TWO + "search: {method: factorised, scheduler: asha, train_on: 2, held_out: 0}",
    METHOD + "sweep: {num_gpus: [1, 2], points: [{batch_size: 64, learning_rate: 0.1}]}",
    METHOD + "sweep: {num_gpus: [1, 2, 4], train.gradient_sync: [ddp, naive, flat, ring]}",
    *(text.replace("factorised}", "factorised, allow_inexact: true}") for text in INEXACT if "random" not in text),
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_can_be_factorised(text):
    spec = of_all_models(text)
    assert of_all_models(spec.to_yaml().replace("name: x\n", "")) == spec


def test_many_trials_are_counted_as_they_are_run():
    rates = [round(0.01 * n, 2) for n in range(1, 3001)]
    sweep = f"sweep: {{num_gpus: [1, 2, 4], learning_rate: {rates}, seed: [0, 1, 2]}}\n"
    assert len(make_plan(spec_of(f"name: x\n{sweep}{METHOD}")).trials) == 9_000
    (problem,) = problems_of(f"name: x\n{sweep.replace('[0, 1, 2]', '[0, 1, 2, 3]')}{METHOD}")
    assert "the factorised grid has 12,008 trials, more than 10,000" in problem.message


# --- the trainings --------------------------------------------------------------------------------------------------


def grid_of(text):
    return make_plan(spec_of(text.replace("method: factorised", "method: grid")))


def test_the_trainings_are_those_of_the_grid_with_one_num_gpus():
    plan, grid = make_plan(spec_of(TEXT)), grid_of(TEXT)
    assert plan.trials == tuple(trial for trial in grid.trials if trial.num_gpus == 1), "ids and all"
    larger = make_plan(spec_of(TEXT, "search.train_on=2"))
    assert larger.trials == tuple(trial for trial in grid.trials if trial.num_gpus == 2)
    assert plan.sizes == larger.sizes == (1, 2), "what runs later needs its room too"
    assert plan.cells == larger.cells == grid.cells
    assert (plan.expected_trials, grid.expected_trials) == (8 + 2 * 2, 16)


def test_the_plan_is_plain_data_and_back():
    plan = make_plan(spec_of(TEXT, "search.train_on=2"))
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_no_more_cells_are_held_out_than_there_are():
    assert make_plan(spec_of(TEXT, "search.held_out=99")).held_out_trials == 8
    assert make_plan(spec_of(TEXT, "search.held_out=0")).expected_trials == 8


def some(numbers, most=3):
    return st.lists(numbers, min_size=1, max_size=most, unique=True)


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=3, unique=True),
    some(st.integers(8, 64)),
    some(st.sampled_from([0.05, 0.1, 0.2])),
    some(st.integers(0, 9)),
    st.integers(0, 4),
)
def test_every_training_once_every_step_timed_and_what_is_held_out_is_apart(gpus, batches, rates, seeds, held_out):
    sweep = f"sweep: {{num_gpus: {gpus}, batch_size: {batches}, learning_rate: {rates}, seed: {seeds}}}"
    study = factorised_study(f"name: x\n{sweep}\nsearch: {{method: factorised, held_out: {held_out}}}")
    trained = [(t["params"]["batch_size"], t["params"]["learning_rate"], t["params"]["seed"]) for t in study.trained]
    assert sorted(trained) == sorted((b, r, s) for b in batches for r in rates for s in seeds)
    assert {trial["params"]["num_gpus"] for trial in study.trained} == {min(gpus)}
    apart = Counter(step_key(trial["params"]) + str(trial["params"]["learning_rate"]) for trial in study.held_out)
    assert len(apart) == min(held_out, (len(gpus) - 1) * len(batches) * len(rates))
    assert set(apart.values()) <= {len(seeds)}, "each with all its seeds"
    assert min(gpus) not in {trial["params"]["num_gpus"] for trial in study.held_out}
    timed = [(trial["params"]["num_gpus"], trial["params"]["batch_size"]) for trial in study.timings]
    assert sorted(timed) == sorted((gpu, batch) for gpu in gpus for batch in batches)
    ids = [trial["trial_id"] for trial in study.trials]
    assert len(set(ids)) == len(ids)
    grid = grid_of(study.spec.to_yaml())
    assert {trial["trial_id"] for trial in study.trained + study.held_out} <= {t.trial_id for t in grid.trials}


# --- timing runs ----------------------------------------------------------------------------------------------------


def records_of(plan, **keywords):
    return {record["trial_id"]: record for record in make_trials(plan, Law(), **keywords)}


def test_other_keys_that_change_a_step_are_timed_with_every_num_gpus():
    sweep = "sweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, ring], train.schedule: [constant, cosine]}\n"
    spec = spec_of(f"name: x\n{sweep}{METHOD}")
    plan = make_plan(spec)
    names = [trial.run_name for trial in timing_trials(spec, plan.swept, records_of(plan), plan.factorised)]
    assert names == [
        f"timing gpus={gpus} batch=256 gradient_sync={sync}" for gpus in (2, 1) for sync in ("ddp", "ring")
    ]


def test_timing_runs_are_those_of_a_packed_grid():
    """So a grid and its factorised twin have the same ids for the same runs."""
    spec, grid = spec_of(TEXT), grid_of(TEXT)
    plan = make_plan(spec)
    packed = timing_trials(spec, grid.trials, records_of(grid, flags={"*": ["shared_node"]}))
    factorised = timing_trials(spec, plan.swept, records_of(plan), plan.factorised)
    assert [(trial.trial_id, trial.train) for trial in factorised] == [
        (trial.trial_id, trial.train) for trial in packed
    ]


def test_what_no_training_finished_is_not_timed():
    plan = make_plan(spec_of(TEXT))
    endings = {f"gpus=1 batch=32 lr={rate} seed={seed}": "diverged" for rate in (0.1, 0.2) for seed in (0, 1)}
    found = timing_trials(spec_of(TEXT), plan.swept, records_of(plan, endings=endings), plan.factorised)
    assert {trial.batch_size for trial in found} == {128}


# --- held-out cells -------------------------------------------------------------------------------------------------


def chosen(text, *overrides, known=(), **keywords):
    spec = spec_of(text, *overrides)
    plan = make_plan(spec)
    return held_out_trials(spec, plan, known, records_of(plan, **keywords))


def cells_of(trials):
    return sorted({(trial.batch_size, trial.learning_rate) for trial in trials})


def test_the_choice_is_the_seed_s_and_every_step_has_its_turn():
    first = chosen(TEXT)
    assert first == chosen(TEXT)
    assert len({trial.batch_size for trial in first}) == 2, "two batch sizes before one of them twice"
    assert len({tuple(cells_of(chosen(TEXT, f"search.seed={seed}"))) for seed in range(12)}) > 1


def test_cells_that_reached_their_targets_come_first():
    """With a rate of 0.1 a batch of 32 reaches 0.5, one of 128 does not, with 0.2 neither misses 0.3."""
    text = TEXT.replace("[0.2]}", "[0.3, 0.5]}").replace("0.1, 0.2]", "0.1]")
    law = Law(learning=60)
    assert law.accuracy(4, 32, 0.1) > 0.5 > law.accuracy(4, 128, 0.1)
    assert cells_of(chosen(text, "search.held_out=1")) == [(32, 0.1)]
    failed = {"gpus=1 batch=32 lr=0.1 seed=1": "failed"}
    assert cells_of(chosen(text, endings=failed)) == [(128, 0.1)], "a training that failed says nothing"
    assert chosen(text, endings={"*": "failed"}) == []


def test_without_targets_the_longest_trainings_come_first():
    text = TEXT.replace("targets: {accuracy: [0.2]}\n", "")
    spec = spec_of(text, "search.held_out=1")
    plan = make_plan(spec)
    ran_on = plan.trials[-1].cell
    records = {
        trial.trial_id: record if trial.cell == ran_on else stopped_after(record, 1)
        for trial, record in zip(plan.trials, make_trials(plan, Law()), strict=True)
    }
    assert cells_of(held_out_trials(spec, plan, (), records)) == [(ran_on["batch_size"], ran_on["learning_rate"])]


def test_cells_that_are_held_out_stay_when_the_study_grows():
    before = chosen(TEXT)
    for grown in (TEXT.replace("[0.1, 0.2]", "[0.05, 0.1, 0.2]"), TEXT.replace("[1, 2]", "[1, 2, 4]")):
        assert chosen(grown, known=before) == before
    more = chosen(TEXT, "search.held_out=3", known=before)
    assert set(cells_of(before)) < set(cells_of(more))
    assert len(more) == 6
    seeds = chosen(TEXT.replace("seed: [0, 1]", "seed: [0, 1, 2]"), known=before)
    assert cells_of(seeds) == cells_of(before)
    assert len(seeds) == 6, "the new seed too"


def test_a_study_that_is_not_factorised_holds_nothing_out():
    assert chosen(TEXT.replace("factorised", "grid")) == []


# --- what it costs --------------------------------------------------------------------------------------------------


def known(plan, trials, seconds):
    """Records as an earlier study's, each epoch of so many seconds by num_gpus."""
    found = []
    for trial, record in zip(plan.trials, trials, strict=True):
        epochs = [{"train_seconds": seconds[trial.num_gpus], "eval_seconds": 0.0, "steps": 10}]
        found.append({**record, "workload": trial.workload, "train": trial.train, "epochs": epochs})
    return found


def test_the_estimate_counts_trainings_held_out_cells_and_timing_runs():
    plan = make_plan(spec_of(TEXT))
    cost = estimate(plan, [])
    # 8 trainings and 2 cells × 2 seeds, 4 epochs each; those with 2 workers count twice
    assert (cost.trials, cost.epochs, cost.worker_epochs, cost.timings) == (12, 48, 8 * 4 + 4 * 4 * 2, 4)
    assert (cost.grid.trials, cost.grid.worker_epochs) == (16, 8 * 4 + 8 * 4 * 2)
    assert (cost.seconds, cost.grid.seconds) == (None, None)
    assert "no earlier timing" in cost.why
    assert json.loads(json.dumps(cost.to_dict()))["grid"]["trials"] == 16


def test_the_estimate_in_seconds():
    plan, grid = make_plan(spec_of(TEXT)), grid_of(TEXT)
    cost = estimate(plan, known(grid, make_trials(grid, Law()), {1: 2.0, 2: 1.5}))
    # trainings 8 × 4 × 2 s; held out 4 × 4 × 1.5 s; timings 65 steps of 0.2 s and of 0.15 s, two batch sizes
    assert cost.seconds == pytest.approx(64 + 24 + 2 * 65 * (0.2 + 0.15))
    assert cost.gpu_seconds == pytest.approx(64 + 48 + 2 * 65 * (0.2 + 0.3))
    assert cost.grid.gpu_seconds == pytest.approx(64 + 8 * 4 * 1.5 * 2)
    trained = known(plan, make_trials(plan, Law()), {1: 2.0})
    assert estimate(plan, trained).seconds is None, "nobody knows what two workers take"
