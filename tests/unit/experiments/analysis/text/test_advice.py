"""A recommendation in words – evidence and caveats of each choice, then what more workers would bring."""

import pytest

from scalestudy.experiments.analysis import recommendation_lines
from tests.support.rich_study import rich_summary

SHARED = {"kind": "seeds", "words": "Provisional: one seed."}


def recommendation(**changes):
    """That of the rich study, but with three choices that are three cells; changes: by role, of its parts."""
    found = rich_summary()["recommendation"]
    label = "workers=4 batch=1024 lr=0.2"
    evidence = {**found["fastest"]["evidence"], "cells": [label]}
    between = {**found["fastest"], "label": label, "seconds": 11.0, "worker_seconds": 44.0, "evidence": evidence}
    for role, choice in {**{role: found[role] for role in ("fastest", "cheapest")}, "recommended": between}.items():
        found[role] = {**choice, "caveats": [], **changes.get(role, {})}
    return {**found, "settle": None, "provisional": False}


def test_below_each_choice_stand_its_evidence_and_its_own_caveats():
    edge = {"kind": "rate_edge", "words": "0.4 is the highest rate tried."}
    chance = {"kind": "retrograde", "words": "It may be chance."}
    found = recommendation(
        recommended={"caveats": [edge, SHARED]}, fastest={"caveats": [SHARED]}, cheapest={"caveats": [SHARED, chance]}
    )
    lines = recommendation_lines(found)
    starts = [
        "Recommended to 0.85 test accuracy: workers=4 batch=1024",
        "  Evidence –",
        f"  {edge['words']}",
        "Fastest: workers=8",
        "  Evidence –",
        "Cheapest: workers=1",
        "  Evidence –",
        f"  {chance['words']}",
        SHARED["words"],
    ]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 9
    seeds = found["fastest"]["evidence"]["seeds"]
    assert seeds >= 5
    assert lines[1] == f"  Evidence – trained: {seeds} seeds."
    assert "\n".join(lines).count(SHARED["words"]) == 1


def test_one_cell_that_is_all_has_its_evidence_and_caveats_once():
    tie = {"kind": "ties", "words": "Tied with a: the difference is within noise."}
    found = recommendation(recommended={"caveats": [SHARED, tie]})
    found = {**found, **dict.fromkeys(("fastest", "cheapest"), found["recommended"])}
    lines = recommendation_lines(found)
    assert lines[0].startswith("Recommended, fastest and cheapest to")
    assert lines[2:] == [f"  {SHARED['words']}", f"  {tie['words']}"]


def test_what_the_others_take_is_told_beside_what_is_recommended():
    lines = recommendation_lines(recommendation())
    # 10.2 s and 81.6 worker-seconds against 11.0 and 44.0; 34.3 and 34.3 against them
    assert lines[2].endswith(": 0.97× the time and 1.94× the cost.")
    assert lines[4].endswith(": 3.35× the time and 0.84× the cost.")


def test_seeds_that_would_settle_it_are_told_with_their_cost():
    settle = {"label": "workers=4 batch=512 lr=0.2", "seeds": 3, "worker_seconds": 180.0}
    line, *_ = recommendation_lines({**recommendation(), "settle": settle})
    assert line.endswith(
        "workers=4 batch=512 lr=0.2 is cheaper and may be near enough: some 3 more seeds of it and of the fastest "
        "would tell, for 180 worker-seconds."
    )


def test_inferred_choices_name_the_cells_that_were_trained():
    cells = [f"workers=1 batch={number}" for number in range(5)]
    evidence = {"kind": "factorised", "cells": cells, "seeds": 1}
    lines = recommendation_lines(recommendation(recommended={"evidence": evidence}))
    named = ", ".join(cells[:3])
    assert lines[1] == f"  Evidence – trainings times timings: 1 seed of 5 cells ({named} and 2 more)."


def test_where_no_target_was_reached_the_best_has_its_evidence():
    none = {"value": None, "why": "no cell reached a test accuracy of 0.99"}
    found = {**recommendation(), **dict.fromkeys(("recommended", "fastest", "cheapest"), none), "target": None}
    found["best_accuracy"] = {**found["best_accuracy"], "caveats": [SHARED], "n_seeds": 1}
    lines = recommendation_lines({**found, "provisional": True})
    assert lines[0] == "No cell reached a test accuracy of 0.99."
    assert lines[1].startswith("Best test accuracy: ")
    assert lines[2].startswith("  Evidence – trained: ")
    assert lines[3:] == [f"  {SHARED['words']}"]  # no second sentence that it is provisional
    nothing = {**found, "best_accuracy": {"value": None, "why": "no trial finished"}, "provisional": True}
    assert recommendation_lines(nothing)[1:] == ["Provisional: fewer than five seeds a cell."]


def test_without_targets_the_cheapest_that_is_as_good_is_told():
    none, base = {"value": None, "why": "the spec names no target accuracy"}, recommendation()
    chosen = {**base["recommended"], "ties": [base["fastest"]["label"]], "stopped_after": []}
    found = {**base, **dict.fromkeys(("fastest", "cheapest"), none), "recommended": chosen, "target": None}
    assert recommendation_lines(found)[1].startswith(
        "Cheapest that is as good as the best: workers=4 batch=1024 lr=0.2, 0."
    )


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
