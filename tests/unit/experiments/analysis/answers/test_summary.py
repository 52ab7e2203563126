"""The whole summary, whatever became of the trials."""

import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis import answer_lines, book_table, recommendation_lines, summarise
from scalestudy.experiments.analysis.measures.units import seconds_text, three_digits
from scalestudy.experiments.analysis.text.answer import headline
from tests.support.synthetic_studies import study_of, summary_of, words_of
from tests.support.trials import Law

TEXT = (
    "name: x\ntrain: {epochs: 4}\ntargets: {accuracy: [0.3, 0.6]}\n"
    "sweep: {num_gpus: [1, 2], batch_size: [32, 128], seed: [0, 1]}"
)
KEYS = {
    "study",
    "trials",
    "cost",
    "cells",
    "throughput_model",
    "usl",
    "statistical_efficiency",
    "lr_rule",
    "predictions",
    "time_to_target",
    "verdicts",
    "recommendation",
}


def check(summary):
    """Strict JSON, every key of the design, and words that can be had."""
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert set(summary) >= KEYS
    assert 1 <= len(answer_lines(summary)) <= 5
    assert headline(summary)
    assert recommendation_lines(summary["recommendation"])
    header, rows = book_table(summary)
    assert all(len(row) == len(header) for row in rows)


def test_a_finished_study():
    summary = summary_of(TEXT, Law(noise=0.05))
    check(summary)
    assert summary["trials"] == {
        "planned": 8,
        "finished": 8,
        "at_target": 0,
        "stopped": 0,
        "diverged": 0,
        "out_of_memory": 0,
        "failed": 0,
        "skipped": 0,
        "not_run": 0,
    }
    assert len(summary["cells"]) == 4
    assert len(summary["time_to_target"]) == 8
    for part in (summary["statistical_efficiency"], summary["lr_rule"]):
        assert part["why"], "two sizes, two batch sizes and one rate carry no law"
    for part in ("scale", "sigma", "kappa", "peak_gpus"):
        assert summary["usl"][part]["value"] is None
    assert summary["throughput_model"]["beta_r"]["value"] is None
    assert summary["predictions"]["breaks_at"]["num_gpus"] == 4


@pytest.mark.parametrize("ending", ["diverged", "out_of_memory", "failed", "skipped", "stopped"])
def test_a_study_of_which_every_trial_ended_so(ending):
    summary = summary_of(TEXT, endings={"*": ending})
    check(summary)
    assert summary["trials"][ending] == 8
    if ending != "stopped":
        compared = ending in ("diverged", "out_of_memory")  # they say that the target is not reached
        why = "no cell reached a test accuracy of 0.3" if compared else "no trial ended in a way that can be compared"
        assert headline(summary).startswith(f"No answer: {why}")
        assert summary["failures"][0]["status"] == ending
        assert all(row["test_accuracy"]["value"] is None for row in summary["cells"])
        assert any(f"8 {ending.replace('_', ' ')}" in caveat for caveat in words_of(summary))


def test_nothing_was_run():
    spec, plan, _ = study_of(TEXT)
    summary = summarise(spec, plan, [])
    check(summary)
    assert summary["trials"]["not_run"] == 8


def test_one_trial():
    summary = summary_of("name: x")
    check(summary)
    assert summary["scaling"]["why"] == "the study has one num_gpus only"


def test_failed_trials_do_not_move_the_figures():
    law = Law(noise=0)
    whole = summary_of(TEXT, law)["cells"][0]
    part = summary_of(TEXT, law, endings={"workers=1 batch=32 lr=0.1 seed=1": "failed"})["cells"][0]
    assert part["epoch_seconds"]["value"] == whole["epoch_seconds"]["value"]
    assert part["test_accuracy"]["n"] == 1
    assert part["trials"]["failed"] == 1


def test_a_diverged_seed_counts_as_a_miss_and_a_failed_one_not():
    name = "workers=1 batch=32 lr=0.1 seed=1"
    for ending, seeds, seconds in (("diverged", 2, False), ("failed", 1, True)):
        summary = summary_of(TEXT, Law(noise=0), endings={name: ending})
        row = next(
            r for r in summary["time_to_target"] if r["label"] == "workers=1 batch=32 lr=0.1" and r["target"] == 0.3
        )
        assert (row["n_seeds"], row["seconds"] is not None) == (seeds, seconds)


def test_failures_are_grouped_by_message_with_rank():
    summary = summary_of(TEXT, endings={"*": "failed"}, message="boom")
    assert [(each["rank"], len(each["trials"])) for each in summary["failures"]] == [(0, 4), (1, 4)]
    assert {each["message"] for each in summary["failures"]} == {"boom"}


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("throttled", "Marked throttled (heat or too little power held a GPU's clocks down): 1 cell of 4."),
        ("shared_gpu", "Marked shared_gpu (other processes computed on a GPU): 1 cell of 4."),
    ],
)
def test_a_gpu_that_was_not_itself_is_told(flag: str, words: str):
    summary = summary_of(TEXT, flags={"workers=2 batch=32 lr=0.1 seed=0": [flag]})
    assert words in words_of(summary)


def test_flags_reach_rows_caveats_and_tables():
    summary = summary_of(TEXT, flags={"workers=2 batch=32 lr=0.1 seed=0": ["shared_node"]})
    assert [row["flags"] for row in summary["cells"]] == [[], [], ["shared_node"], []]
    assert any("shared_node" in caveat for caveat in words_of(summary))
    assert "shared_node" in book_table(summary)[1][2][-1]


def test_what_training_picked_by_itself_is_kept_a_cell_each_value_once():
    spec, plan, trials = study_of(TEXT)
    for trial, steps in zip(trials, (1, 2), strict=False):
        trial["details"] = {"fused": True, "compressed_steps": steps}
    trials[2]["details"] = {}
    rows = summarise(spec, plan, trials)["cells"]
    assert rows[0]["details"] == {"fused": [True], "compressed_steps": [1, 2]}
    assert not any("details" in row for row in rows[1:])


def test_every_table_says_when_workers_are_cpu_processes():
    assert book_table(summary_of(TEXT))[0][0] == "num_gpus (CPU)"
    assert any("CPU processes with 1 thread" in line for line in answer_lines(summary_of(TEXT)))
    assert book_table(summary_of(TEXT, device="cuda"))[0][0] == "num_gpus"
    assert not any("CPU" in line for line in answer_lines(summary_of(TEXT, device="cuda")))


def test_the_books_table():
    text = (
        "name: x\ntrain: {epochs: 4}\nsweep: {points: [{num_gpus: 1, batch_size: 256, learning_rate: 0.2},"
        "{num_gpus: 2, batch_size: 512, learning_rate: 0.3}]}"
    )
    law = Law(samples=512, data=0, fixed=0, per_example=0.001, sync=0, optimizer=0)
    header, rows = book_table(summary_of(text, law, device="cuda"))
    assert header == ["num_gpus", "batch", "lr", "epoch s", "test acc", "speed-up", "efficiency", "notes"]
    # one GPU: 2 steps of 256 examples at 1 ms; two: 1 step of 256 examples each
    assert rows[0][:4] + rows[0][5:] == ["1", "256", "0.2", "0.512", "1.00", "1.00", ""]
    assert rows[1][:4] + rows[1][5:] == ["2", "512", "0.3", "0.256", "2.00", "1.00", "neither strong nor weak scaling"]


VALUES = st.sampled_from([None, -1.0, 0, 0.0, 1e308, "x", [], {}, float("nan"), float("inf")])
FIELDS = st.sampled_from(
    [
        "train_seconds",
        "test_accuracy",
        "phases",
        "steps",
        "samples",
        "samples_per_second",
        "eval_seconds",
        "@world",
        "@flags",
        "@epochs",
        "@error",
        "@started_at",
        "@train_seconds",
    ]
)


@settings(max_examples=60)
@given(st.lists(st.tuples(FIELDS, VALUES), max_size=4), st.integers(0, 1000))
def test_damaged_records_never_raise(damages, seed):
    spec, plan, trials = study_of(TEXT)
    trials, generator = copy.deepcopy(trials), random.Random(seed)
    for field, value in damages:
        for trial in trials:
            if generator.random() < 0.7 and field.startswith("@"):
                trial[field[1:]] = (
                    value if value is None or field[1:] in ("started_at", "train_seconds") else trial[field[1:]]
                )
            else:
                for epoch in trial.get("epochs") or ():
                    epoch[field.removeprefix("@")] = value
    check(summarise(spec, plan, trials))


def test_numbers_in_words():
    assert [three_digits(value) for value in (127.4, 12.34, 1.9, 0.43, 0.0012)] == [
        "127",
        "12.3",
        "1.90",
        "0.430",
        "0.0012",
    ]
    assert [seconds_text(value) for value in (None, 5.0, 700.0, 9000.0)] == ["–", "5.00 s", "11.7 min", "2.5 h"]
