"""Whatever trials record, a search goes on to an end, and a study has an answer: records drawn without a law."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.next_look import Over, Room, Wanted
from scalestudy.experiments.analysis.answers.next_trainings import next_trainings
from scalestudy.experiments.analysis.answers.summary import summary_of
from scalestudy.experiments.analysis.text.answer import answer_lines, headline
from scalestudy.experiments.plan.plan import make_plan
from tests.support.fake_pool import ended
from tests.support.looks import TEXT, Looking, end_of, record_of
from tests.support.synthetic_studies import spec_of

BUDGETS = ("{trials: 30}", "{trials: 3}", "{minutes: 5}", "{worker_hours: 0.2}")
OBJECTIVES = ("time_to_target", "cost_to_target")
MOST_LOOKS = 120
FEW = [0, 1]
MANY = [pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 60)]


def curves(evaluations):
    """Values of the metric after each evaluation, None once it diverged, of trainings as no law has them."""
    third = evaluations // 3
    return {
        "nothing": [],
        "one": [0.5],
        "at once": [0.9, 0.9],
        "level": [0.5] * evaluations,
        "rests, then rises": [0.1] * 2 * third + np.linspace(0.2, 0.7, evaluations - 2 * third).tolist(),
        "to and fro": [0.1, 0.79] * (evaluations // 2),
        "slow": np.linspace(0.1, 0.79, evaluations).tolist(),
        "diverges": [0.3, None],
    }


def odd_end(trial, chance):
    """Draw how a trial ends: by the law in two of five, without records in one, else anyhow."""
    way = chance.choices(("law", "none", "odd"), (2, 1, 2))[0]
    if way == "law":
        return end_of(trial)
    if way == "none":
        return end_of(trial, chance.choice(("failed", "out_of_memory")))
    seconds = chance.choice((1e-9, 1e-4, 0.05, 0.05, 3.0))
    batch, beside = trial.batch_size, chance.choice((0.0, 3.0))
    if trial.kind == "timing":
        records = chance.choice(([], [record_of(1, None, 60, batch, seconds)]))
        return replace(ended(records, "finished"), wall_seconds=60 * seconds + beside)
    values = chance.choice(list(curves(trial.evaluations).values()))
    limit = trial.look.evaluations if trial.look else None
    status = "at_target" if values[-1:] == [0.9] else "diverged" if None in values else "finished"
    if limit is not None and limit < len(values):
        values, status = values[:limit], "stopped"
    steps = math.ceil(1437 / batch)
    records = [record_of(number, value, steps, batch, seconds) for number, value in enumerate(values, start=1)]
    factor = chance.choice((0.5, 1.1))  # a clock that went wrong, or an evaluation beside the steps
    return replace(ended(records, status), wall_seconds=factor * len(values) * steps * seconds + beside)


def answered(analysis, wall_seconds):
    summary = summary_of(analysis, wall_seconds)
    assert headline(summary)
    assert all(answer_lines(summary))
    return summary


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", [*FEW, *MANY])
def test_a_search_comes_to_an_end_and_says_why(seed):
    chance = random.Random(seed)
    spec = spec_of(
        TEXT.replace("{trials: 60}", chance.choice(BUDGETS)), f"search.objective={chance.choice(OBJECTIVES)}"
    )
    search = Looking(spec=spec, room=Room(workers=chance.choice((1, 2, 4)), start_seconds=3.0))
    for _ in range(MOST_LOOKS):
        decision = search.decide()
        if isinstance(decision, Over):
            break
        if isinstance(decision, Wanted):
            search.start()
            if len(search.running) < search.room.workers and chance.random() < 0.5:
                continue
        trial = chance.choice(search.running)
        search.running.remove(trial)
        search.lines.append(odd_end(trial, chance).to_line(trial))
        minutes = search.room.minutes + search.lines[-1]["wall_seconds"] / 60
        search.room = replace(search.room, minutes=minutes)
    assert isinstance(decision, Over), "the search did not end"
    part = answered(search.analysis, search.room.minutes * 60)["adaptive"]
    assert part["ended"] == decision.why
    assert len(part["steps"]) == len(search.lines)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", [*FEW, *MANY])
def test_a_study_has_an_answer_and_next_trainings_or_says_why_not(seed):
    chance = random.Random(seed)
    spec = spec_of(TEXT.replace("search: {method: adaptive}\nbudget: {trials: 60}\n", ""))
    plan = make_plan(spec)
    begun = chance.sample(plan.trials, chance.randint(1, len(plan.trials)))
    analysis = Analysis(spec, plan, [odd_end(trial, chance).to_line(trial) for trial in begun])
    answered(analysis, 60.0)
    most = chance.choice((None, 1))
    found = next_trainings(analysis, analysis.recommend(max_gpus=most), 5, max_gpus=most)
    assert found.get("why") or all(row["gain"] > 0 for row in found["rows"])
