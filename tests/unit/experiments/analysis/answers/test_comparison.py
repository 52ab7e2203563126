"""Studies side by side: in which cells they differ."""

import pytest

from scalestudy.experiments.analysis.answers.comparison import (
    beyond_noise,
    compare,
    comparison_lines,
    comparison_table,
)
from tests.support.synthetic_studies import summary_of
from tests.support.timed_studies import packed_study
from tests.support.trials import Law, slow_down

SPEC = """
name: x
train: {{epochs: 4}}
sweep: {{num_gpus: [1, 2], batch_size: {batches}, learning_rate: [0.1], seed: {seeds}}}
"""

SEEDS = "[0, 1, 2, 3, 4]"


def study(law=None, batches="[32, 64]", seeds="[0, 1, 2]", more="", **keywords):
    return summary_of(SPEC.format(batches=batches, seeds=seeds) + more, law, **keywords)


def part(low, high, n):
    return {"value": (low + high) / 2, "low": low, "high": high, "n": n}


@pytest.mark.parametrize(
    ("one", "base", "answer"),
    [
        (part(1.0, 1.2, 5), part(0.5, 0.9, 5), "more"),
        (part(0.1, 0.2, 5), part(0.5, 0.9, 5), "less"),
        (part(0.8, 1.0, 5), part(0.5, 0.9, 5), "within noise"),
        (part(0.9, 1.0, 5), part(0.5, 0.9, 5), "within noise"),  # they touch
        (part(2.0, 2.0, 1), part(0.5, 0.9, 5), "not known"),
        (part(1.0, 1.2, 4), part(0.5, 0.9, 5), "not known"),
        (part(1.0, 1.2, 5), part(0.5, 0.5, 4), "not known"),
        (part(0.8, 1.0, 4), part(0.5, 0.9, 4), "not known"),
    ],
)
def test_what_lies_beyond_noise(one, base, answer):
    assert beyond_noise(one, base) == answer


@pytest.mark.parametrize(
    ("counts", "answer"),
    # two ranges of like values lie apart with probability 2/C(n + m, n): 2/6, 2/15, 2/21, 2/20, 2/11
    [((2, 2), "not known"), ((2, 4), "not known"), ((2, 5), "more"), ((3, 3), "more"), ((1, 10), "not known")],
)
def test_repeats_tell_a_difference_from_so_many_on(counts, answer):
    one, other = counts
    assert beyond_noise(part(1.0, 1.2, one), part(0.5, 0.9, other), repeated=True) == answer


def test_below_five_seeds_no_difference_in_metric_or_time_to_target_is_claimed():
    text = "targets: {accuracy: [0.4]}\n"
    fast, slow = Law(noise=0.01, learning=130), Law(noise=0.01, learning=60)
    for seeds, answers in (("[0, 1, 2, 3]", {"not known"}), (SEEDS, {"less", "more"})):
        found = compare({"a": study(fast, seeds=seeds, more=text), "b": study(slow, seeds=seeds, more=text)})
        told = [row["measures"][heading][1] for row in found["cells"] for heading in ("test acc", "s to accuracy 0.4")]
        assert {entry["answer"] for entry in told if entry["value"] is not None} == answers


def test_the_last_metric_of_trainings_that_were_stopped_is_not_compared():
    one, other = (study(Law(noise=0.01, learning=learning), seeds=SEEDS) for learning in (130, 60))
    for summary, answers in ((other, {"less"}), (cut(other), {"not known"})):
        found = compare({"a": one, "b": summary})
        told = [row["measures"]["test acc"][1] for row in found["cells"]]
        assert {entry["answer"] for entry in told if entry["value"] is not None} == answers
        assert {row["measures"]["epoch s"][1]["change"] is None for row in found["cells"]} == {False}


def cut(summary):
    return {**summary, "cells": [{**row, "stopped_after": [3] * 5} for row in summary["cells"]]}


def test_epochs_are_the_repeats_of_a_time_also_of_timing_runs():
    text = """
        name: f
        train: {epochs: 8}
        targets: {accuracy: [0.5]}
        sweep: {num_gpus: [1, 2], batch_size: [64, 128], seed: [0, 1]}
    """
    one, other = Law(samples=640), Law(samples=640, per_example=3e-4)  # 65 steps: 6 epochs or more, the first left out
    found = compare({"a": packed_study(text, one).summary(), "b": packed_study(text, other).summary()})
    assert {row["measures"]["epoch s"][1]["answer"] for row in found["cells"]} == {"more"}
    assert {row["measures"]["epoch s"][1]["n"] for row in found["cells"] if "workers=1" in row["label"]} == {2}
    assert {row["measures"]["samples/s"][1]["answer"] for row in found["cells"]} == {"less"}


def test_flagged_timings_are_marked():
    flagged = study(Law(noise=0.01, per_example=3e-4), flags={"*": ["shared_node"]})
    found = compare({"a": study(Law(noise=0.01)), "b": flagged})
    header, rows = comparison_table(found)
    assert all("†" in row[header.index("epoch s")] for row in rows[1::2])
    assert not any("†" in "".join(row) for row in rows[::2])
    assert not any("†" in row[header.index("test acc")] for row in rows)
    assert "† b: timings marked shared_node: they may differ for that alone" in comparison_lines(found)


def test_a_study_twice_as_slow_is_seen_in_every_cell():
    law = Law(noise=0.01)
    found = compare({"fast": study(law, seeds=SEEDS), "slow": study(law, seeds=SEEDS, change=slow_down)})
    assert len(found["cells"]) == 4
    for row in found["cells"]:
        seconds, rate, accuracy = (row["measures"][heading][1] for heading in ("epoch s", "samples/s", "test acc"))
        assert (seconds["answer"], rate["answer"], accuracy["answer"]) == ("more", "less", "within noise")
        assert seconds["change"] == pytest.approx(2.0, rel=0.03)
    assert "slow: epoch s: 4 more" in comparison_lines(found)
    assert comparison_table(found)[1][1][2].endswith("×)")


def test_the_same_study_differs_in_nothing():
    same = study(Law(noise=0.05), seeds=SEEDS)
    found = compare({"a": same, "b": same})
    answers = {entry["answer"] for row in found["cells"] for entries in row["measures"].values() for entry in entries}
    assert answers == {"within noise"}
    header, rows = comparison_table(found)
    assert header == ["cell", "study", "epoch s", "samples/s", "test acc"]
    assert [row[1] for row in rows] == ["a", "b"] * 4
    assert rows[1][0] == ""  # the cell is named once
    assert "(" not in "".join(cell for row in rows for cell in row)


def test_cells_that_only_one_has():
    found = compare({"a": study(batches="[32, 64]"), "b": study(batches="[64, 128]")})
    assert [row["params"]["batch_size"] for row in found["cells"]] == [64, 64]
    assert found["only"] == {
        "a": ["workers=1 batch=32 lr=0.1", "workers=2 batch=32 lr=0.1"],
        "b": ["workers=1 batch=128 lr=0.1", "workers=2 batch=128 lr=0.1"],
    }
    assert "a alone has 2 cells" in comparison_lines(found)


def test_a_cell_that_the_base_lacks_is_compared_with_nothing():
    found = compare({"a": study(batches="[32]"), "b": study(batches="[64]"), "c": study(batches="[64]")})
    (row, _) = found["cells"]
    assert [(entry["study"], entry["answer"]) for entry in row["measures"]["epoch s"]] == [
        ("b", "not known"),
        ("c", "not known"),
    ]


def test_of_one_seed_epochs_are_told_apart_and_metrics_are_not():
    found = compare({"a": study(seeds="[0]"), "b": study(seeds="[0]")})
    lines = comparison_lines(found)
    assert "b: epoch s: 4 within noise" in lines
    assert "b: test acc: 4 not known" in lines
    assert "below 5 seeds" in lines[-1]


def test_trials_that_never_ended_well_are_no_difference():
    found = compare({"a": study(), "b": study(endings={"*": "failed"})})
    entries = [row["measures"]["epoch s"][1] for row in found["cells"]]
    assert {(entry["value"], entry["answer"]) for entry in entries} == {(None, "not known")}
    assert comparison_table(found)[1][1][2:] == ["–", "–", "–"]


def test_studies_with_other_metrics_are_compared_by_their_times():
    other = summary_of(SPEC.format(batches="[32]", seeds="[0, 1]") + "workload: {metric: mse, metric_mode: min}\n")
    assert compare({"a": study(batches="[32]"), "b": other})["measures"] == ["epoch s", "samples/s"]


def test_of_many_cells_those_that_differ_most():
    found = compare({"a": study(), "b": study()})
    found["cells"][2]["measures"]["epoch s"][1] |= {"change": 3.0, "answer": "more"}
    _, rows = comparison_table(found, 1)
    assert [row[0] for row in rows] == [found["cells"][2]["label"], ""]
    assert rows[1][2].endswith("(3.00×)")


def test_three_studies():
    found = compare({"a": study(), "b": study(), "c": study()})
    assert [entry["study"] for entry in found["cells"][0]["measures"]["epoch s"]] == ["a", "b", "c"]
    assert found["cells"][0]["measures"]["epoch s"][0]["change"] == 1.0


def test_times_to_the_targets_in_common():
    text = "targets: {{accuracy: {}}}\n"
    law = Law(noise=0.01, learning=130)
    found = compare(
        {
            "fast": study(law, more=text.format("[0.5, 0.6, 0.999]"), seeds=SEEDS),
            "slow": study(law, more=text.format("[0.6, 0.5, 0.7, 0.999]"), seeds=SEEDS, change=slow_down),
        }
    )
    assert found["measures"][3:] == ["s to accuracy 0.5", "s to accuracy 0.6", "s to accuracy 0.999"]
    row = found["cells"][0]["measures"]
    assert (row["s to accuracy 0.6"][1]["answer"], row["s to accuracy 0.6"][1]["n"]) == ("more", 5)
    assert row["s to accuracy 0.6"][1]["change"] == pytest.approx(2.0, rel=0.1)
    assert row["s to accuracy 0.999"][1]["answer"] == "not known"
    header, rows = comparison_table(found)
    assert rows[1][header.index("s to accuracy 0.6")].endswith("×)")
    assert "slow: s to accuracy 0.5: 4 more" in comparison_lines(found)


def test_seeds_that_missed_reach_to_infinity():
    assert beyond_noise({"low": 1.0, "high": None, "n": 5}, {"low": 2.0, "high": 3.0, "n": 5}) == "within noise"
    assert beyond_noise({"low": 4.0, "high": None, "n": 5}, {"low": 2.0, "high": 3.0, "n": 5}) == "more"
    assert beyond_noise({"low": 1.0, "high": 1.5, "n": 5}, {"low": 2.0, "high": None, "n": 5}) == "less"
