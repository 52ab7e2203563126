"""Whether a factorised study's model trains alike at every num_gpus."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study.ready import check_exact
from scalestudy.training.registry import DATASETS, MODELS
from tests.support.factorised import TINY

MODULE = "tests.unit.training.loop.test_exactness"


def check(model, **changes):
    text = TINY.replace("model: lenet", f"model: '{model}'")
    for before, after in changes.values():
        text = text.replace(before, after)
    spec = parse_study(text, "study.yaml", models=MODELS, datasets=DATASETS)
    check_exact(spec, make_plan(spec), "data")


def test_a_model_that_trains_alike_at_every_num_gpus():
    check("lenet")
    check(f"{MODULE}:Plain")
    check(f"{MODULE}:normalised", train=("epochs: 2", "epochs: 2, sync_batch_norm: true"))


@pytest.mark.parametrize(
    ("model", "problem", "remedy"),
    [
        ("normalised", "layer 0 is batch normalisation", "set train.sync_batch_norm: true; or set search.method: grid"),
        ("Functional", "draws random numbers", "remove their layers; or set search.method: grid"),
        ("Centred", "depends on the other examples", "search.allow_inexact: true"),
        (
            "broken",
            "LookupError: no weights for this model (test_exactness.py:",
            "correct it, or set search.allow_inexact: true",
        ),
    ],
)
def test_a_model_that_does_not(model, problem, remedy):
    with pytest.raises(RequestError) as refused:
        check(f"{MODULE}:{model}")
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith(f"workload.model: {MODULE}:{model}: ")
    assert problem in str(refused.value)
    assert remedy in str(refused.value)


def test_nobody_asks_where_it_does_not_matter():
    check(f"{MODULE}:broken", search=("held_out: 1", "allow_inexact: true"))
    check(f"{MODULE}:broken", search=("method: factorised, held_out: 1", "method: grid"))


def test_batch_normalisation_that_is_swept_is_looked_at_each_way():
    with pytest.raises(RequestError, match="batch normalisation"):
        check(f"{MODULE}:normalised", sweep=("sweep: {", "sweep: {train.sync_batch_norm: [true, false], "))
