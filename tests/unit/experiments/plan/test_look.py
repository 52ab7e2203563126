"""What a look says of itself as plain data, and where it is kept."""

import json
from dataclasses import replace

from scalestudy.experiments.plan.look import Look
from scalestudy.experiments.plan.plan import Plan, cell_trial, make_plan
from scalestudy.experiments.spec.search_space import stated_places
from tests.support.looks import TEXT
from tests.support.synthetic_studies import spec_of

LOOK = Look(number=7, kind="training", evaluations=9, gain=0.031, repeats=4, row=2, worker_seconds=12.5, best="a")


def test_a_look_is_read_back_from_its_plain_data():
    plain = json.loads(json.dumps(LOOK.to_dict()))
    assert Look.from_dict(plain) == LOOK
    assert None not in plain.values(), "what is not known is left out"


def test_a_look_of_a_newer_version_is_read_without_what_is_new():
    assert Look.from_dict({**LOOK.to_dict(), "colour": "red"}) == LOOK


def test_a_plan_keeps_why_its_trials_were_asked_for():
    spec = spec_of(TEXT)
    trial = replace(cell_trial(spec, stated_places(spec)[0], 3), look=LOOK)
    plan = make_plan(spec).with_trials([trial])
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.trials[0].look == LOOK
