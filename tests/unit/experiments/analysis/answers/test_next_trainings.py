"""Which trainings are listed as the next ones."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from scalestudy.experiments.analysis.answers import next_trainings as module
from scalestudy.experiments.analysis.answers.analysis import Analysis, asked
from scalestudy.experiments.analysis.answers.next_trainings import next_trainings
from scalestudy.experiments.analysis.measures.progress import LOOP_TELLS_NONE
from scalestudy.experiments.plan.look import Look
from scalestudy.experiments.plan.plan import cell_trial, make_plan
from scalestudy.experiments.plan.timing_runs import timing_trials
from tests.support import adaptive_worlds
from tests.support.adaptive_worlds import Searched
from tests.support.loop_studies import loop_study
from tests.support.synthetic_studies import study_of
from tests.support.timed_studies import lent_study
from tests.support.trials import Law, make_timings
from tests.support.worlds import World, place_of

GRID = """
name: grid
train: {epochs: 8}
sweep: {num_gpus: [1, 2, 4], batch_size: [32, 64, 128], learning_rate: [0.1, 0.2, 0.4], seed: [0]}
targets: {accuracy: [0.6], stop: true}
"""
LAW = Law(noise=0.03, learning=100, per_example=0.0003, sync=0.0002, sync_per_worker=0.0001)
"""Twice the workers take 0.6 to 0.7 of the time."""


def listed(spec, plan, trials, count=8, accuracy=None, **wishes):
    """What is listed for a study."""
    analysis = Analysis(spec, plan, trials)
    by = "cost" if wishes.get("by_cost") else None
    recommendation = analysis.recommend(accuracy=accuracy, max_gpus=wishes.get("max_gpus"), by=by)
    return next_trainings(analysis, recommendation, count, **wishes)


def rows_of(study, count=8, **wishes):
    return listed(*study, count, **wishes)["rows"]


def without(study, *labels):
    """A study of which these cells, by num_gpus, batch size and rate, were not run."""
    spec, plan, trials = study
    return spec, plan, [trial for trial in trials if place_of(trial["params"]) not in labels]


# --- what comes first -----------------------------------------------------------------------------------------------


def test_the_cell_that_the_laws_name_best_comes_first_though_it_was_not_tried():
    """Of the world's 80 cells 14 were tried; the true best is none of them."""
    world = World.draw(np.random.default_rng(2), noise=0.1, seeds=1, missing=0.8)
    trials = world.trials()
    [first, *_] = rows_of((world.spec, world.plan, trials))
    assert world.best not in {place_of(trial["params"]) for trial in trials}
    assert (place_of(first["params"]), first["seeds"]) == (world.best, 0)
    assert first["seconds"] == pytest.approx(world.seconds(world.best), rel=0.25)
    assert first["worker_seconds"] == pytest.approx(first["seconds"] * world.best[0])


def test_where_two_cells_tie_both_get_another_seed():
    """Rates 0.4 and 0.401 train alike, as fast as any, and all others take twice as long."""
    text = (
        GRID.replace("[1, 2, 4]", "[1]")
        .replace("[0.1, 0.2, 0.4]", "[0.2, 0.4, 0.401]")
        .replace("[32, 64, 128]", "[32]")
    )
    rows = rows_of(study_of(text, replace(LAW, noise=0.1)), 2)
    assert {row["params"]["learning_rate"] for row in rows} == {0.4, 0.401}
    assert [(row["seeds"], row["params"]["seed"]) for row in rows] == [(1, 1), (1, 1)]


def test_a_gain_is_a_share_and_a_price_makes_a_cost():
    spec, plan, trials = study_of(GRID, LAW)
    rows = rows_of((asked(spec, price=3.0), plan, trials))
    assert all(0 < row["gain"] < 1 and row["repeats"] in (1, 2, 4, 8) for row in rows)
    assert [row["cost"] for row in rows] == pytest.approx([3.0 * row["worker_seconds"] / 3600 for row in rows])
    assert {row["cost"] for row in rows_of((spec, plan, trials))} == {None}


def test_the_least_cost_may_be_looked_for_in_place_of_the_least_time():
    study = without(study_of(GRID, LAW), (1, 32, 0.4), (4, 32, 0.4))
    by_time, by_cost = listed(*study), listed(*study, by_cost=True)
    assert (by_time["by"], by_cost["by"]) == ("time", "cost")
    assert [found["rows"][0]["params"]["num_gpus"] for found in (by_time, by_cost)] == [4, 1]


# --- what is listed at all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_each_row_is_another_training_that_was_not_run(seed):
    world = World.draw(np.random.default_rng(seed), noise=0.2, seeds=1, missing=0.8, bend=True)
    lines = world.trials()
    rows = rows_of((world.spec, world.plan, lines), 50)
    trainings = [tuple(row["params"].items()) for row in rows]
    assert len(set(trainings)) == len(rows)
    assert not {tuple(line["params"].items()) for line in lines} & set(trainings)
    assert all(row["params"]["batch_size"] >= row["params"]["num_gpus"] for row in rows)


def test_a_seed_is_new_to_the_batch_and_rate_whatever_the_workers():
    """Where num_gpus changes nothing, seed 0 of another num_gpus would be the same training once more."""
    study = without(study_of(GRID, LAW), (4, 32, 0.4))
    [first, *_] = rows_of(study)
    assert (place_of(first["params"]), first["params"]["seed"], first["seeds"]) == ((4, 32, 0.4), 1, 0)


def test_where_steps_depend_on_the_workers_each_cell_has_its_own_seeds():
    text = GRID.replace("{epochs: 8}", "{epochs: 8, gradient_sync: local_sgd}")
    study = without(study_of(text, LAW), (4, 32, 0.4))
    [first, *_] = rows_of(study)
    assert (place_of(first["params"]), first["params"]["seed"], first["seeds"]) == ((4, 32, 0.4), 0, 0)


def test_the_seeds_of_the_study_come_before_others():
    text = GRID.replace("seed: [0]", "seed: [7, 3]")
    spec, plan, trials = study_of(text, LAW)
    rows = rows_of((spec, plan, [trial for trial in trials if trial["params"]["seed"] == 7]), 50)
    found = {}
    for row in rows:
        place = row["params"]["batch_size"], row["params"]["learning_rate"]
        found.setdefault(place, []).append(row["params"]["seed"])
    assert {tuple(seeds) for seeds in found.values()} <= {(3, *range(8, 8 + more)) for more in range(50)}


def test_what_diverged_and_what_has_no_room_in_memory_is_not_listed():
    """A worker has room for less than 64 examples: 2 workers of 128 had none, so 1 of 64 has none either."""
    endings = {"workers=1 batch=32 lr=0.4 seed=0": "diverged", "workers=2 batch=32 lr=0.4 seed=0": "diverged"}
    endings |= {"workers=4 batch=32 lr=0.4 seed=0": "diverged", "workers=2 batch=128 lr=0.2 seed=0": "out_of_memory"}
    study = study_of(GRID, replace(LAW, noise=0.4), endings=endings)
    study = without(study, (1, 64, 0.2), (4, 64, 0.2), (4, 128, 0.4))
    rows = rows_of(study, 50)
    assert rows
    assert not [row for row in rows if place_of(row["params"])[1:] == (32, 0.4)]
    assert not [row for row in rows if row["params"]["batch_size"] / row["params"]["num_gpus"] >= 64]


def test_a_diverged_seed_among_others_does_not_rule_a_cell_out():
    text = GRID.replace("seed: [0]", "seed: [0, 1, 2]")
    lost = {f"workers={count} batch=32 lr=0.4 seed=2": "diverged" for count in (1, 2, 4)}
    rows = rows_of(study_of(text, replace(LAW, noise=0.1), endings=lost), 50)
    assert (32, 0.4) in {place_of(row["params"])[1:] for row in rows}


def test_a_cell_whose_time_is_known_does_not_count_as_one_that_misses_the_target():
    """Three of its five seeds reached it, just before their end; its prediction says that half would miss it."""
    text = GRID.replace("[1, 2, 4]", "[1]").replace("[32, 64, 128]", "[64]").replace("[0.1, 0.2, 0.4]", "[0.1, 0.2]")
    text = text.replace("[0.6]", "[0.89]").replace("epochs: 8", "epochs: 9").replace("[0]", "[0, 1, 2, 3, 4]")
    spec, plan, trials = study_of(text, replace(LAW, noise=0.1))
    [missed, known] = Analysis(spec, plan, trials).times(0.89).rows
    assert (missed["reached"], known["reached"], known["n_seeds"]) == (0, 3, 5)
    with patch.object(module, "gains", wraps=module.gains) as made:
        listed(spec, plan, trials)
    shown = made.call_args.args[0]
    assert np.exp(shown[:, 1].mean()) == pytest.approx(known["seconds"], rel=0.1)


def test_workers_beyond_the_limit_are_left_out():
    rows = rows_of(without(study_of(GRID, LAW), (2, 32, 0.4)), 50, max_gpus=2)
    assert max(row["params"]["num_gpus"] for row in rows) == 2


def test_the_other_settings_of_the_choice_go_along():
    """What runs out of memory with others of them says nothing."""
    text = GRID.replace("seed: [0]", "seed: [0], train.optimizer.momentum: [0.0, 0.9]")
    heavy = "workers=1 batch=32 lr=0.1 seed=0 momentum=0"
    spec, plan, trials = study_of(text, LAW, endings={heavy: "out_of_memory"})
    assert [trial["status"] for trial in trials].count("out_of_memory") == 1
    trials = [trial for trial in trials if place_of(trial["params"]) != (1, 32, 0.4)]
    for trial in trials:
        if trial["params"]["train.optimizer.momentum"] == 0.0:
            trial["epochs"] = [{**epoch, "train_seconds": 2 * epoch["train_seconds"]} for epoch in trial["epochs"]]
    found = listed(spec, plan, trials)
    assert found["of"] == "momentum=0.9"
    assert {row["params"]["train.optimizer.momentum"] for row in found["rows"]} == {0.9}
    assert max(row["params"]["batch_size"] / row["params"]["num_gpus"] for row in found["rows"]) >= 32
    assert list(found["rows"][0]["params"]) == list(trials[0]["params"])


def test_of_very_many_values_some_are_left_out_and_no_cell_that_was_tried():
    """30 random points: 3 num_gpus, some 20 batch sizes and 30 rates would be 1,800 cells."""
    text = """
    name: random
    train: {epochs: 8}
    sweep: {num_gpus: [1, 2, 4], batch_size: {log_uniform: [32, 128]}, learning_rate: {log_uniform: [0.1, 0.4]}}
    search: {method: random, samples: 30}
    targets: {accuracy: [0.6], stop: true}
    """
    spec, plan, trials = study_of(text, LAW)
    with patch.object(module.Beliefs, "of", wraps=module.Beliefs.of) as made:
        assert rows_of((spec, plan, trials))
    places = set(made.call_args.args[0])
    assert {place_of(trial["params"]) for trial in trials} <= places
    assert len(places) <= module.MOST_CELLS + len(trials)


# --- how long one takes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now"), [(", stop: true", ""), ("[0.6]", "[0.6, 0.999]")], ids=["to the end", "a harder target"]
)
def test_a_training_that_does_not_stop_at_the_target_takes_all_its_epochs(was, now):
    """8 epochs of 1437 examples in batches of 32: 8 · 45 steps."""
    study = study_of(GRID.replace(was, now), replace(LAW, noise=0.0))
    for row in rows_of(without(study, (2, 32, 0.4)), accuracy=0.6):
        workers, batch, _ = place_of(row["params"])
        assert row["seconds"] == pytest.approx(8 * LAW.epoch_seconds(workers, batch), rel=0.05)


def test_where_the_epochs_are_swept_a_training_takes_those_of_its_settings():
    """The choice has the fewer ones: trainings of 12 are twice as slow here."""
    text = GRID.replace(", stop: true", "").replace("seed: [0]", "seed: [0], train.epochs: [4, 12]")
    spec, plan, trials = study_of(text, replace(LAW, noise=0.0))
    for trial in trials:
        if trial["params"]["train.epochs"] == 12:
            trial["epochs"] = [{**epoch, "train_seconds": 2 * epoch["train_seconds"]} for epoch in trial["epochs"]]
    rows = rows_of((spec, plan, [trial for trial in trials if place_of(trial["params"]) != (2, 32, 0.4)]))
    assert rows
    for row in rows:
        workers, batch, _ = place_of(row["params"])
        assert row["params"]["train.epochs"] == 4
        assert row["seconds"] == pytest.approx(4 * LAW.epoch_seconds(workers, batch), rel=0.05)


# --- kinds of studies -----------------------------------------------------------------------------------------------


def test_one_training_stands_for_all_workers_of_an_adaptive_study():
    """So each batch size and rate is listed with the one num_gpus that takes the fewest worker-seconds."""
    text = GRID.replace(", stop: true", "") + "search: {method: adaptive}\nbudget: {trials: 100}\n"
    study = lent_study(text, LAW, seeds=[0])
    trials = [
        trial for trial in study.trials if trial["kind"] == "timing" or place_of(trial["params"])[1:] != (32, 0.4)
    ]
    [first, *others] = rows_of((study.spec, study.plan, trials), 50)
    assert place_of(first["params"]) == (1, 32, 0.4)
    assert {row["params"]["num_gpus"] for row in others} == {1}


@pytest.fixture(scope="module")
def begun_search():
    """A search of which 14 looks have ended, and what is listed for it."""
    world = World.draw(np.random.default_rng(3), noise=0.1, seeds=1, wide=True)
    with patch.object(adaptive_worlds, "MOST_LOOKS", 14):
        search = Searched(world=world, share=0.5).run()
    return search, rows_of((search.spec, make_plan(search.spec), search.lines))


def test_an_adaptive_search_goes_on_from_what_it_has(begun_search):
    search, rows = begun_search
    seeds = {
        (*place_of(line["params"])[1:], line["params"]["seed"]) for line in search.lines if line["kind"] == "training"
    }
    recipes = [(*place_of(row["params"])[1:], row["params"]["seed"]) for row in rows]
    assert len(set(recipes)) == len(recipes)
    assert not seeds & set(recipes)


def test_the_seeds_that_a_confirmation_had_are_not_asked_for_again(begun_search):
    search, [before, *_] = begun_search
    lines = list(search.lines)
    cell = {name: value for name, value in before["params"].items() if name != "seed"}
    for number, seed in enumerate((0, 1, 1000), start=15):
        trial = replace(cell_trial(search.spec, cell, seed), look=Look(number=number, kind="confirmation"))
        lines.append(search.answer(trial, np.random.default_rng(seed)))
    rows = rows_of((search.spec, make_plan(search.spec), lines), 50)
    after = next(row for row in rows if row["label"] == before["label"])
    assert (after["seeds"], after["params"]["seed"]) == (before["seeds"] + 3, 1001)


def test_trainings_that_ran_side_by_side_tell_steps_alone():
    spec, plan, trials = study_of(GRID, LAW, flags={"*": ["shared_node"]})
    timings = make_timings(timing_trials(spec, plan.trials, {trial["trial_id"]: trial for trial in trials}), LAW)
    study = without((spec, plan, [*trials, *timings]), (4, 32, 0.4))
    with patch.object(module, "gains", wraps=module.gains) as made, patch.object(module, "conditioned") as learnt:
        learnt.side_effect = lambda draws, *_: draws
        [first, *_] = rows_of(study, 2)
    _, looks, noise = made.call_args.args
    assert place_of(first["params"]) == (4, 32, 0.4)
    assert len({tuple(column) for column in looks.T}) == 9, "3 batch sizes by 3 rates, whatever the workers"
    assert len(set(noise)) == 1
    assert learnt.call_count == 1, "of steps, and not of seconds"


def test_a_loop_that_tells_its_steps_is_as_any_study():
    [first, *_] = rows_of(without(loop_study(samples=True), (1, 32, 0.8)))
    assert place_of(first["params"]) == (1, 32, 0.8)


def test_without_updates_there_is_no_law_to_decide_by():
    found = listed(*loop_study(samples=False))
    assert found == {"value": None, "why": LOOP_TELLS_NONE}


# --- nothing to list ------------------------------------------------------------------------------------------------


def test_without_a_target_that_was_reached_there_is_a_reason():
    spec, plan, trials = study_of(GRID, LAW)
    found = listed(asked(spec, accuracy=0.99), plan, trials)
    assert found["value"] is None
    assert found["why"].startswith("no cell reached a test accuracy of 0.99")


def test_a_study_without_targets_compares_no_times():
    study = study_of(GRID.replace("targets: {accuracy: [0.6], stop: true}", ""), LAW)
    assert listed(*study) == {"value": None, "why": "the study names no target, by which times are compared"}


def test_where_the_answer_is_sure_nothing_is_listed():
    """One batch size, and rates of which one takes a tenth of the others' steps, known to 0.1 % by five seeds."""
    text = GRID.replace("[1, 2, 4]", "[1]").replace("[32, 64, 128]", "[32]").replace("[0.1, 0.2, 0.4]", "[0.02, 0.4]")
    study = study_of(
        text.replace("epochs: 8", "epochs: 80").replace("[0]", "[0, 1, 2, 3, 4]"), replace(LAW, noise=0.001)
    )
    assert listed(*study) == {
        "value": None,
        "why": "no further training is expected to lower the time to the target",
    }
