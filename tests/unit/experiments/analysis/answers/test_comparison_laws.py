"""Laws side by side."""

from dataclasses import replace

import pytest

from scalestudy.experiments.analysis.answers.comparison import compare, compared_laws, comparison_lines, law_lines
from scalestudy.experiments.analysis.laws.step_time import Constants
from scalestudy.experiments.analysis.measures.parts import missing
from tests.support.known_laws import StepLaw
from tests.support.synthetic_studies import summary_of


def estimate(value, half=0.1):
    return {"value": value, "low": value * (1 - half), "high": value * (1 + half)}


def study(b_crit, *, target=0.8, of="", alpha=None):
    efficiency = {"of": of, "target": target, "s_min": estimate(100.0), "b_crit": b_crit}
    model = missing("no timings") if alpha is None else {"of": of, "alpha_c": alpha, "beta_c": estimate(1e-4)}
    return {"statistical_efficiency": efficiency, "throughput_model": model}


def answers(rows, name):
    (row,) = [row for row in rows if row["name"] == name]
    return [(entry["study"], entry["answer"]) for entry in row["entries"]]


def test_intervals_part_or_not():
    rows = compared_laws(
        {name: study(estimate(value)) for name, value in zip("abcd", (200.0, 300.0, 100.0, 220.0), strict=True)}
    )
    assert answers(rows, "b_crit") == [("a", "within noise"), ("b", "more"), ("c", "less"), ("d", "within noise")]
    assert answers(rows, "s_min")[1] == ("b", "within noise")
    assert rows[1]["entries"][1]["change"] == pytest.approx(1.5)
    assert "b: b_crit (examples) 300 against 200: more" in law_lines(rows)


def test_what_only_one_has_is_not_compared():
    rows = compared_laws({"a": study(missing("two batch sizes")), "b": study(estimate(300.0), alpha=estimate(0.002))})
    assert [row["name"] for row in rows] == ["s_min"]
    rows = compared_laws(
        {
            "a": study(estimate(2.0), alpha=estimate(0.001)),
            "b": study(estimate(2.0)),
            "c": study(estimate(2.0), alpha=estimate(0.002)),
        }
    )
    assert answers(rows, "alpha_c") == [("a", "within noise"), ("c", "more")]


def test_laws_of_other_things_are_not_told_apart():
    rows = compared_laws(
        {
            "a": study(estimate(200.0)),
            "b": study(estimate(300.0), target=0.9),
            "c": study(estimate(300.0), of="gradient_sync=flat"),
        }
    )
    assert answers(rows, "b_crit") == [("a", "within noise"), ("b", "not known"), ("c", "not known")]
    assert "b: b_crit (examples) 300 against 200: not known: the law is to another target" in law_lines(rows)
    bound = {"value": 300.0, "low": None, "high": None, "identified": False, "why": "an edge"}
    rows = compared_laws({"a": study(estimate(200.0)), "b": study(bound)})
    assert answers(rows, "b_crit") == [("a", "within noise"), ("b", "not known")]
    assert rows[1]["entries"][1]["why"] == "it has no interval in both"


def test_what_is_not_identified_is_not_known_though_it_has_an_interval():
    vague = {**estimate(300.0), "identified": False, "why": "too few batch sizes"}
    for pair in ((estimate(200.0), vague), (vague, estimate(200.0))):
        rows = compared_laws({name: study(law) for name, law in zip("ab", pair, strict=True)})
        assert answers(rows, "b_crit")[1] == ("b", "not known")
        assert rows[1]["entries"][1]["why"] == "the measurements do not identify it in both"


SYNCED = """
    name: x
    train: {epochs: 3}
    sweep: {num_gpus: [1, 2, 4, 8], batch_size: [64, 256, 1024], seed: [0, 1, 2, 3, 4]}
"""


def test_studies_that_differ_in_synchronisation_alone_are_told_apart_by_it():
    constants = Constants(alpha_c=0.004, beta_c=5e-5, alpha_r=0.003, beta_r=0.0004, gamma=1.5)
    laws = {"fast": constants, "slow": replace(constants, alpha_r=0.012)}
    rows = compared_laws({name: summary_of(SYNCED, StepLaw(constants=law, noise=0.02)) for name, law in laws.items()})
    assert answers(rows, "alpha_r") == [("fast", "within noise"), ("slow", "more")]
    assert answers(rows, "alpha_c") == [("fast", "within noise"), ("slow", "within noise")]
    (change,) = [row["entries"][1]["change"] for row in rows if row["name"] == "alpha_r"]
    assert change == pytest.approx(4.0, rel=0.25)


def test_the_exponent_of_the_rate_is_compared():
    rules = {"a": estimate(0.5), "b": estimate(1.0)}
    rows = compared_laws({name: {"lr_rule": {"of": "", "exponent": exponent}} for name, exponent in rules.items()})
    assert answers(rows, "exponent") == [("a", "within noise"), ("b", "more")]
    assert law_lines(rows) == ["b: exponent (power of the batch size) 1 against 0.5: more"]


def test_they_are_part_of_the_comparison():
    summaries = {name: summary_of("name: x\nsweep: {seed: [0, 1]}") for name in "ab"}
    assert compare(summaries)["laws"] == []
    for name, value in (("a", 200.0), ("b", 400.0)):
        summaries[name]["statistical_efficiency"] = study(estimate(value))["statistical_efficiency"]
    found = compare(summaries)
    assert answers(found["laws"], "b_crit")[1] == ("b", "more")
    assert "b: b_crit (examples) 400 against 200: more" in comparison_lines(found)


def test_summaries_of_older_versions():
    old = dict.fromkeys(("statistical_efficiency", "throughput_model"))
    assert compared_laws({"a": old, "b": {}, "c": study(estimate(2.0))}) == []
