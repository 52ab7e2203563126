"""A recommendation in words – evidence and caveats of each choice, then what more workers would bring."""

import pytest

from scalestudy.experiments.analysis import recommendation_lines
from tests.support.rich_study import rich_summary

SHARED = "Provisional: one seed."


def recommendation(**changes):
    """That of the rich study, whose three choices are three cells; changes: by role, of its parts."""
    found = rich_summary()["recommendation"]
    for role in ("fastest", "cheapest", "knee"):
        found[role] = {**found[role], "caveats": [], **changes.get(role, {})}
    return {**found, "provisional": False}


def test_below_each_choice_stand_its_evidence_and_its_own_caveats():
    edge, chance = "0.4 is the highest rate tried.", "It may be chance."
    found = recommendation(
        fastest={"caveats": [edge, SHARED]}, cheapest={"caveats": [SHARED, chance]}, knee={"caveats": [SHARED]}
    )
    lines = recommendation_lines(found)
    starts = [
        "Fastest to",
        "  Evidence –",
        f"  {edge}",
        "Cheapest to",
        "  Evidence –",
        f"  {chance}",
        "Knee between",
        "  Evidence –",
        SHARED,
    ]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 9
    seeds = found["fastest"]["evidence"]["seeds"]
    assert seeds >= 5
    assert lines[1] == f"  Evidence – measured: {seeds} seeds."
    assert "\n".join(lines).count(SHARED) == 1


def test_one_cell_that_is_both_has_the_caveats_of_both_once():
    tie, other = "Not told apart from a.", "Not told apart from b."
    found = recommendation(fastest={"caveats": [SHARED, tie]})
    found = {**found, "cheapest": {**found["fastest"], "caveats": [SHARED, other]}, "knee": {"value": None, "why": "-"}}
    lines = recommendation_lines(found)
    assert lines[0].startswith("Fastest and cheapest to")
    assert lines[2:] == [f"  {SHARED}", f"  {tie}", f"  {other}"]


def test_inferred_choices_name_the_cells_that_were_trained():
    cells = [f"gpus=1 batch={number}" for number in range(5)]
    lines = recommendation_lines(
        recommendation(fastest={"evidence": {"kind": "factorised", "cells": cells, "seeds": 1}})
    )
    named = ", ".join(cells[:3])
    assert lines[1] == f"  Evidence – trainings times timings: 1 seed of 5 cells ({named} and 2 more)."


def test_where_no_target_was_reached_the_best_has_its_evidence():
    none = {"value": None, "why": "no cell reached a test accuracy of 0.99"}
    found = {**recommendation(), **dict.fromkeys(("fastest", "cheapest", "knee"), none), "target": None}
    found["best_accuracy"] = {**found["best_accuracy"], "caveats": [SHARED], "n_seeds": 1}
    lines = recommendation_lines({**found, "provisional": True})
    assert lines[0] == "No cell reached a test accuracy of 0.99."
    assert lines[1].startswith("Best test accuracy: ")
    assert lines[2].startswith("  Evidence – measured: ")
    assert lines[3:] == [f"  {SHARED}"]  # no second sentence that it is provisional
    nothing = {**found, "best_accuracy": {"value": None, "why": "no trial finished"}, "provisional": True}
    assert recommendation_lines(nothing)[1:] == ["Provisional: fewer than five seeds a cell."]


@pytest.mark.parametrize(("most", "told"), [(None, True), (16, True), (15, False), (8, False), (2, False)])
def test_what_more_workers_would_bring_is_told_unless_no_more_are_wanted(most, told):
    summary = rich_summary()
    extra = {"predictions": summary["predictions"], "study": summary["study"], "max_gpus": most}
    plain = recommendation_lines(recommendation())
    lines = recommendation_lines({**recommendation(), **extra})
    assert lines[: len(plain)] == plain
    assert [line.startswith("Beyond the 8 GPUs measured: 16 at batch 2048") for line in lines[len(plain) :]] == [
        True
    ] * told
