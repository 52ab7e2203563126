"""The whole summary, whatever became of the trials."""

import copy
import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis import answer_lines, book_table, recommend, recommendation_lines, summarise
from scalestudy.experiments.analysis.answers.efficiency import statistical_efficiency
from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.analysis.measures.units import seconds_text, three_digits
from scalestudy.experiments.analysis.text.answer import headline
from scalestudy.experiments.report import write_report
from tests.support.batch_summaries import analysed
from tests.support.batch_summaries import study as batch_study
from tests.support.report_pages import check as check_page
from tests.support.synthetic_studies import folder_of, study_of, summary_of, words_of
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
    "statistical_efficiency",
    "lr_rule",
    "predictions",
    "time_to_target",
    "verdicts",
    "recommendation",
}


def unexplained(part, path=""):
    """Paths of everything below that is null, or not identified, without a why.

    The noise scale's stands for those of its batch sizes too.
    """
    if isinstance(part, list):
        return [found for place, each in enumerate(part) for found in unexplained(each, f"{path}[{place}]")]
    if not isinstance(part, dict):
        return []
    lacks = part.get("value", 0) is None or part.get("identified") is False
    own = [path] if lacks and not part.get("why") else []
    inner = ((key, each) for key, each in part.items() if key != "by_batch")
    return own + [found for key, each in inner for found in unexplained(each, f"{path}.{key}")]


def check(summary):
    """Strict JSON, every key of the design, a why beside all that is missing, and words that can be had."""
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert set(summary) >= KEYS
    assert unexplained(summary) == []
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
    assert summary["throughput_model"]["beta_r"]["value"] is None
    assert summary["predictions"]["breaks_at"]["num_gpus"] == 4


@pytest.mark.parametrize("ending", ["diverged", "out_of_memory", "failed", "skipped", "stopped"])
def test_a_study_of_which_every_trial_ended_so(ending):
    check(summarise(*batch_study(**BATCHES, endings={"*": ending})))
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


BATCHES = {"batches": "[64, 128, 256]", "rates": "[0.05, 0.1, 0.2, 0.4, 0.8]", "seeds": "[0, 1]", "epochs": 12}
"""A study of which laws over batch sizes are fitted."""


@pytest.mark.parametrize(
    "changes",
    [
        {"batches": "[256]", "rates": "[0.4]", "seeds": "[0]"},
        {"targets": "[0.999]"},  # which no trial reaches
        {"targets": "[0.2]", "more": "workload: {metric: mse, metric_mode: min}"},
        {"batches": "[32, 48, 64, 96, 128, 192, 256]", "rates": "[0.1]", "seeds": "[0]"},
    ],
)
def test_a_study_of_batch_sizes(changes):
    summary = summarise(*batch_study(**{**BATCHES, **changes}))
    check(summary)
    if "more" in changes:
        assert summary["statistical_efficiency"]["points"][0]["steps"]
        assert summary["lr_rule"]["target_or_metric"] == "soonest to 0.2 test mse"


def test_nothing_was_run():
    spec, plan, _ = study_of(TEXT)
    summary = summarise(spec, plan, [])
    check(summary)
    assert summary["trials"]["not_run"] == 8


def test_one_trial():
    summary = summary_of("name: x")
    check(summary)
    assert summary["scaling"]["why"] == "the study has one number of workers only"


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


def test_flags_reach_rows_caveats_and_tables():
    summary = summary_of(TEXT, flags={"workers=2 batch=32 lr=0.1 seed=0": ["shared_node"]})
    assert [row["flags"] for row in summary["cells"]] == [[], [], ["shared_node"], []]
    assert any("shared_node" in caveat for caveat in words_of(summary))
    assert "shared_node" in book_table(summary)[1][2][-1]


def test_a_flag_that_is_not_known_is_told():
    summary = summary_of(TEXT, flags={"workers=2 batch=32 lr=0.1 seed=0": ["of_tomorrow"]})
    assert [row["flags"] for row in summary["cells"]] == [[], [], ["of_tomorrow"], []]
    assert "Marked of_tomorrow (see the trials): 1 cell of 4." in words_of(summary)


def test_what_training_picked_by_itself_is_kept_a_cell_each_value_once():
    spec, plan, trials = study_of(TEXT)
    for trial, steps in zip(trials, (1, 2), strict=False):
        trial["details"] = {"fused": True, "compressed_steps": steps}
    trials[2]["details"] = {}
    rows = summarise(spec, plan, trials)["cells"]
    assert rows[0]["details"] == {"fused": [True], "compressed_steps": [1, 2]}
    assert not any("details" in row for row in rows[1:])


def test_every_table_says_when_workers_are_cpu_processes():
    assert book_table(summary_of(TEXT))[0][0] == "workers (CPU)"
    assert any("CPU processes with 1 thread" in line for line in answer_lines(summary_of(TEXT)))
    assert book_table(summary_of(TEXT, device="cuda"))[0][0] == "workers"
    assert not any("CPU" in line for line in answer_lines(summary_of(TEXT, device="cuda")))


def test_the_books_table():
    text = (
        "name: x\ntrain: {epochs: 4}\nsweep: {points: [{num_gpus: 1, batch_size: 256, learning_rate: 0.2},"
        "{num_gpus: 2, batch_size: 512, learning_rate: 0.3}]}"
    )
    law = Law(samples=512, data=0, fixed=0, per_example=0.001, sync=0, optimizer=0)
    header, rows = book_table(summary_of(text, law, device="cuda"))
    assert header == ["workers", "batch", "lr", "epoch s", "samples/s", "test acc", "speed-up", "efficiency", "notes"]
    # one GPU: 2 steps of 256 examples at 1 ms; two: 1 step of 256 examples each
    assert rows[0][:5] + rows[0][6:] == ["1", "256", "0.2", "0.512", "1,000", "1.00", "1.00", ""]
    neither = "neither strong nor weak scaling"
    assert rows[1][:5] + rows[1][6:] == ["2", "512", "0.3", "0.256", "2,000", "2.00", "1.00", neither]


def test_a_table_has_tokens_a_second_where_a_task_counts_them():
    """512 examples of 8 tokens in half a second; the second cell's trials counted none."""

    def counted(trial):
        for epoch in trial["epochs"] if trial["params"]["learning_rate"] == 0.2 else ():
            epoch["tokens"] = 8 * epoch["samples"]

    text = "name: x\ntrain: {epochs: 4}\nsweep: {batch_size: [256], learning_rate: [0.2, 0.3]}"
    law = Law(samples=512, data=0, fixed=0, per_example=0.001, sync=0, optimizer=0)
    summary = summary_of(text, law, change=counted)
    header, rows = book_table(summary)
    assert "samples/s" not in header
    assert [row[header.index("tokens/s")] for row in rows] == ["8,000", "–"]
    assert summary["cells"][0]["samples_per_second"]["value"] == pytest.approx(1000)


EXTREMES = (1e-308, 1e17)
"""Values that the laws of step times are not made for."""
VALUES = st.sampled_from([None, -1.0, 0, 0.0, 1e308, *EXTREMES, "x", [], {}, float("nan"), float("inf")])
OF_AN_EPOCH = [
    *("train_seconds", "test_accuracy", "phases", "steps", "samples", "samples_per_second", "eval_seconds"),
    *("grad_sq_norm", "grad_trace_cov"),
]
OF_A_TRIAL = ["world", "flags", "epochs", "error", "started_at", "train_seconds", "status"]
DAMAGES = st.tuples(st.booleans(), st.sampled_from(OF_AN_EPOCH), st.sampled_from(OF_A_TRIAL), VALUES, st.floats(0.1, 1))
STUDIES = {"plain": study_of(TEXT), "of batch sizes": batch_study(**BATCHES)}


STEPS_APART = [
    (False, "steps", "world", 1e17, 0.34375),
    *[(False, "train_seconds", "world", None, 1.0)] * 2,
    (False, "samples", "world", 1e-308, 0.1875),
]
"""Damages after which a search without bounds for the likeliest curvature overflows."""


@settings(max_examples=20)
@given(st.sampled_from([*STUDIES]), st.lists(DAMAGES, max_size=4), st.integers(0, 1000))
@example("of batch sizes", STEPS_APART, 81)
def test_damaged_records_never_raise(study, damages, seed):
    spec, plan, trials = STUDIES[study]
    trials, generator = copy.deepcopy(trials), random.Random(seed)
    for whole, of_epoch, of_trial, value, share in damages:
        for trial in trials:
            if generator.random() > share:
                continue
            if not whole:
                for epoch in trial.get("epochs") or ():
                    epoch[of_epoch] = value
            elif of_trial == "epochs":
                trial["epochs"] = generator.choice([None, [], trial["epochs"] and trial["epochs"][:2]])
            elif of_trial == "status":
                trial["status"] = generator.choice(["diverged", "failed", "stopped", "out_of_memory"])
            else:
                trial[of_trial] = value if of_trial in ("started_at", "train_seconds") else None
    if any(each[3] in EXTREMES for each in damages):
        parts = [recommend(spec, plan, trials)]
        parts += [analysed(spec, plan, trials, part) for part in (statistical_efficiency, lr_rule)]
        assert json.loads(json.dumps(parts, allow_nan=False)) == parts
        assert unexplained(parts) == []
    else:
        check(summarise(spec, plan, trials))


# --- records without some of their keys -------------------------------------------------------------------------------

ENDINGS = {
    "workers=1 batch=32 lr=0.1 seed=0": "failed",
    "workers=2 batch=32 lr=0.1 seed=1": "diverged",
    "workers=1 batch=128 lr=0.1 seed=1": "skipped",
    "workers=2 batch=128 lr=0.1 seed=1": "out_of_memory",
}
KEYS_OF_TRIALS = ("kind", "flags", "world", "details", "error", "started_at", "ended_at", "train_seconds")
KEYS_OF_EPOCHS = ("phases", "samples_per_second", "grad_sq_norm")


def without(*keys):
    """A change of a trial whose record has none of these keys."""

    def change(trial):
        trial["details"] = {"channels_last": True}
        for key in keys:
            for record in trial["epochs"] if key in KEYS_OF_EPOCHS else (trial,):
                record.pop(key, None)

    return change


def bare(*keys):
    """The spec, plan and trials of a study whose records have none of these keys."""
    return study_of(TEXT, Law(noise=0.02, learning=200), endings=ENDINGS, change=without(*keys))


def test_records_without_several_keys_have_a_summary_and_a_report(tmp_path):
    whole, every = summarise(*bare()), (*KEYS_OF_TRIALS, *KEYS_OF_EPOCHS)
    for keys in (KEYS_OF_TRIALS, KEYS_OF_EPOCHS, every):
        summary = summarise(*bare(*keys))
        check(summary)
        assert summary["trials"] == whole["trials"]
    folder = folder_of(tmp_path / "x", TEXT, endings=ENDINGS, change=without(*every))
    check_page(write_report(folder).read_text("utf-8"))


def test_what_can_be_had_otherwise_is_as_it_was():
    truth = summarise(*bare())
    for key in ("kind", "flags", "started_at", "ended_at", "grad_sq_norm"):
        found = summarise(*bare(key), truth["cost"]["wall_seconds"])
        assert found["cells"] == truth["cells"], key
        assert found["recommendation"] == truth["recommendation"], key
    for key in ("train_seconds", "samples_per_second"):
        found = summarise(*bare(key))
        assert found["cost"]["worker_seconds"] == pytest.approx(truth["cost"]["worker_seconds"])
        for row, known in zip(found["cells"], truth["cells"], strict=True):
            assert row["samples_per_second"] == pytest.approx(known["samples_per_second"])


def test_what_can_not_be_had_is_null_with_a_why():
    without_phases = summarise(*bare("phases"))
    assert {row["step_seconds"]["why"] for row in without_phases["timings"]} >= {"phases were not measured"}
    assert summarise(*bare("world"))["study"]["device"] is None
    failed = summarise(*bare("error"))["failures"]
    assert {(group["kind"], group["message"]) for group in failed} == {(None, None)}


def test_numbers_in_words():
    assert [three_digits(value) for value in (127.4, 12.34, 1.9, 0.43, 0.0012)] == [
        "127",
        "12.3",
        "1.90",
        "0.430",
        "0.0012",
    ]
    assert [seconds_text(value) for value in (None, 5.0, 700.0, 9000.0)] == ["–", "5.00 s", "11.7 min", "2.5 h"]
