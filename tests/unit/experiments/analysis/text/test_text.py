"""What a study is told in words: one approved text, in which each case of a summary has a heading.

`=` stands for a line that the first case of its kind has at this place.
"""

from pathlib import Path

from scalestudy.experiments.analysis import answer_lines, book_table, recommendation_lines, summarise
from scalestudy.experiments.analysis.measures.cells import flag_caveats
from scalestudy.experiments.analysis.text.answer import headline, study_took, verdict_words
from scalestudy.experiments.analysis.text.to_learn import to_learn
from tests.support.approved import approved
from tests.support.rich_study import rich_summary
from tests.support.synthetic_studies import summary_of, words_of
from tests.support.timed_studies import packed_study, stopped_after
from tests.support.trials import Law, across_nodes

SHARED = {"kind": "seeds", "words": "Provisional: one seed."}
EDGE = {"kind": "rate_edge", "words": "0.4 is the highest rate tried."}
CHANCE = {"kind": "retrograde", "words": "It may be chance."}
NONE = {"value": None, "why": "no cell reached a test accuracy of 0.99"}
SMALL = """
name: x
train: {epochs: 8}
targets: {accuracy: [0.8]}
sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0]}
"""
ERROR = """
name: x
workload: {metric: mse, metric_mode: min}
train: {epochs: 8}
targets: {accuracy: [0.75, 0.0625]}
sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}
"""
COST = {
    "wall_seconds": 108.1,
    "overhead_ratio": 1.467,
    "critical_path_seconds": 73.7,
    "worker_seconds": 110.4,
    "cost": None,
    "why": None,
}
VERDICT = {
    "cause": "fixed_cost",
    "words": "80% is a fixed cost (workers=1 batch=128).",
    "remedy": "Use more.",
    "evidence": {"workers=1 batch=128": 0.8},
    "threshold": 0.5,
}


def changed(change):
    """The rich study's summary after a change in place."""
    summary = rich_summary()
    change(summary)
    return summary


def flagged(summary):
    """A timing that a verdict names, and that others are compared with, is marked."""
    summary["verdicts"] = [VERDICT]
    for row in summary["timings"]:
        row["flags"] = ["resumed"] if row["label"] == "workers=1 batch=128" else []


def flags_untold(summary):
    """Flags that no verdict has told."""
    summary["cells"][0]["flags"] = ["resumed"]
    summary["caveats"] = [{"kind": kind, "words": words} for kind, words in flag_caveats(summary["cells"]).items()]
    summary["verdicts"] = []


def slower(summary):
    rows = summary["predictions"]["rows"]
    summary["predictions"]["best"] = {"fastest": rows[3], "cheapest": rows[0]}


def answers():
    """Title and summary of each case of the answer."""
    yield "every part", rich_summary()
    for part in ("predictions", "scaling"):  # the words need no other part: test_answer.py
        yield f"without {part}", rich_summary((part,))
    yield (
        "a prediction in doubt",
        changed(lambda s: s["predictions"].update(flagged=True, why="a rate is at the edge of its grid")),
    )
    yield "more workers are not faster", changed(slower)
    yield "a doubt about the timings alone", changed(lambda s: s.update(verdicts=s["verdicts"][:1]))
    yield "flagged timings", changed(flagged)
    yield "flags that no verdict told", changed(flags_untold)
    yield (
        "a recommended time of flagged timings",
        changed(lambda s: s["recommendation"]["recommended"].update(flags=["resumed"])),
    )
    for title, train in (("workers change nothing", ""), ("workers change the result", "gradient_sync: local_sgd")):
        text = f"name: x\ntrain: {{{train}}}\nsweep: {{num_gpus: [1, 2], batch_size: [32, 64], learning_rate: [0.1]}}"
        yield title, summary_of(text, Law(noise=0))
        yield f"{title}, and the target was missed", summary_of(f"{text}\ntargets: {{accuracy: [0.999]}}", Law(noise=0))

    yield "an error", summary_of(ERROR, Law(learning=130))
    yield "an error, and the targets were missed", summary_of(ERROR, Law(learning=0.01))
    yield "an error without targets", summary_of(ERROR.replace("[0.75, 0.0625]", "[]"), Law(noise=0))


def fastest_differs():
    """A headline for what the recommended cell and the fastest may differ in."""
    recommendation = rich_summary()["recommendation"]
    for num_gpus, batch_size, rate in ((1, 1024, 0.2), (8, 64, 0.2), (1, 64, 0.4)):
        own = {"num_gpus": num_gpus, "batch_size": batch_size, "learning_rate": rate}
        chosen = {**recommendation["fastest"], **own, "label": "another", "params": own, "seconds": 11.0}
        yield headline(rich_summary(recommendation={**recommendation, "recommended": chosen}))


def recommendation(**changes):
    """That of the rich study, but with three choices that are three cells; changes: by role, of its parts."""
    found = rich_summary()["recommendation"]
    label = "workers=4 batch=1024 lr=0.2"
    evidence = {**found["fastest"]["evidence"], "cells": [label]}
    between = {**found["fastest"], "label": label, "seconds": 11.0, "worker_seconds": 44.0, "evidence": evidence}
    for role, choice in {**{role: found[role] for role in ("fastest", "cheapest")}, "recommended": between}.items():
        found[role] = {**choice, "caveats": [], **changes.get(role, {})}
    return {**found, "settle": None, "provisional": False}


def recommendations():
    """Title and recommendation of each case."""
    three, summary = recommendation(), rich_summary()
    yield "three cells", three  # 10.7 s and 85.3 worker-seconds, and 36.8 and 36.8, beside 11.0 and 44.0
    yield (
        "caveats of a choice stand below it, shared ones at the end",
        recommendation(
            recommended={"caveats": [EDGE, SHARED]},
            fastest={"caveats": [SHARED]},
            cheapest={"caveats": [SHARED, CHANCE]},
        ),
    )
    tied = recommendation(recommended={"caveats": [SHARED, CHANCE]})
    yield "one cell is all", {**tied, **dict.fromkeys(("fastest", "cheapest"), tied["recommended"])}
    yield (
        "seeds would settle it",
        {
            **three,
            "settle": {
                "label": "workers=4 batch=512 lr=0.2",
                "probability": 0.38,
                "beside": three["fastest"]["label"],
                "seeds": 3,
                "worker_seconds": 180.0,
            },
        },
    )
    label = three["recommended"]["label"]
    itself = {"label": label, "probability": 0.62, "beside": "workers=2 batch=512 lr=0.2"}
    itself |= {"seeds": 1, "worker_seconds": 60.0}
    chosen = {**three["recommended"], "probability": 0.62}
    yield (
        "seeds would settle whether it is",
        {**three, "recommended": chosen, "settle": itself},
    )
    tied = {**three["fastest"], "ties": [label]}
    yield "the fastest may be no faster", {**three, "fastest": tied}
    cells = [f"workers=1 batch={number}" for number in range(5)]
    yield (
        "a choice with lent trainings",
        recommendation(recommended={"evidence": {"kind": "lent", "cells": cells, "seeds": 1}}),
    )
    missed = {**three, **dict.fromkeys(("recommended", "fastest", "cheapest"), NONE), "target": None}
    best = {**missed["best_accuracy"], "caveats": [SHARED], "n_seeds": 1}
    yield "no target was reached", {**missed, "best_accuracy": best, "provisional": True}
    nothing = {"value": None, "why": "no trial finished"}
    yield "nothing finished", {**missed, "best_accuracy": nothing, "provisional": True}
    chosen = {**three["recommended"], "ties": [three["fastest"]["label"]], "stopped_after": []}
    none = {"value": None, "why": "the spec names no target accuracy"}
    yield "no target", {**three, "fastest": none, "cheapest": none, "recommended": chosen, "target": None}
    for most in (None, 16, 15):
        extra = {"predictions": summary["predictions"], "study": summary["study"], "max_gpus": most}
        yield f"more workers, at most {most}", {**three, **extra}
    yield "an error", summary_of(ERROR, Law(learning=130))["recommendation"]


def tables():
    """The first rows of the table: plain, of an error, and of a cell with flags whose lent trials were stopped."""
    for summary in (rich_summary(), summary_of(ERROR, Law(learning=130))):
        header, rows = book_table(summary)
        yield from ("\t".join(row) for row in (header, *rows[:2]))

    def change(summary):
        summary["cells"][0].update(flags=["resumed"], kind="lent")
        summary["cells"][0]["trials"].update(finished=2, stopped=3)

    summary = changed(change)
    over = next(
        place for place, row in enumerate(summary["cells"]) if row["base"] == summary["cells"][0]["label"] and place
    )
    rows = book_table(summary)[1]
    yield from ("\t".join(rows[place]) for place in (0, over))


def costs():
    yield study_took(COST)
    yield study_took({**COST, "cost": 2.5})
    untrained = {**COST, "overhead_ratio": None, "why": "no trial trained"}
    yield study_took(untrained)
    yield study_took({**untrained, "wall_seconds": None, "why": "the study's wall time is not known"})


def warned():
    """Title and summary of each case of what to know of a study, beside what holds of the small one."""
    for flag in ("shared_node", "starved", "shared_gpu", "throttled"):
        yield flag, summary_of(SMALL, flags={"workers=2 batch=32 lr=0.1 seed=0": [flag]})
    yield "some trainings stopped early", summary_of(SMALL, change=lambda trial: cut(trial, "stopped"))
    yield "some trainings stopped at the target", summary_of(SMALL, change=lambda trial: cut(trial, "at_target"))
    yield "a size on two nodes", summary_of(SMALL, change=lambda trial: of_two(trial) and across_nodes(trial))
    seeds = SMALL.replace("seed: [0]", "seed: [0, 1]")
    later = summary_of(seeds, change=lambda trial: of_two(trial) and trial["params"]["seed"] and across_nodes(trial))
    yield "two seeds, one of them on two nodes", later
    types = {1: "A100", 2: "T4"}
    yield (
        "two types of GPUs",
        summary_of(SMALL, change=lambda trial: trial["world"].update(accelerator=types[trial["params"]["num_gpus"]])),
    )
    yield "two versions of the code", summary_of(SMALL, change=lambda trial: of_version(trial, str(of_two(trial))))
    packed = packed_study(SMALL)
    yield "trials side by side, then timing runs", packed.summary()
    some = [trial for trial in packed.timings if trial["params"]["batch_size"] == 32]
    yield "a batch size of them was not timed", summarise(packed.spec, packed.plan, [*packed.trained, *some])


def of_two(trial):
    return trial["params"]["num_gpus"] == 2


def of_version(trial, *versions):
    trial["fingerprint"] = {"mine": list(versions), "mine:load": ["same"]}


def cut(trial, status):
    """End the trainings of the lower rate after half of their epochs."""
    if trial["params"]["learning_rate"] == 0.1:
        trial.update(stopped_after(trial, 4), status=status)


def lessons():
    """A small study, one that supports everything, one without a target, one whose trials failed.

    Two runs of two sizes take two seconds each; a training 8 epochs of 45 steps of 0.0057 s: 2.05 s.
    """
    large = SMALL.replace("[1, 2]", "[1, 2, 4, 8]").replace("[32, 128]", "[32, 64, 128]")
    large = large.replace("0.2]", "0.2, 0.4]")
    yield to_learn(summary_of(SMALL, Law(learning=60)))
    yield to_learn(summary_of(large.replace("seed: [0]", "seed: [0, 1, 2, 3, 4]"), Law(learning=60, noise=0.02)))
    yield to_learn(summary_of(large.replace("[0.8]", "[]"), Law(learning=60)))
    yield to_learn(summary_of(SMALL, Law(), endings={"*": "failed"}))


def beside(first, lines):
    """The lines, with = in place of each that a first case has at the same place."""
    return ["=" if number < len(first) and line == first[number] else line for number, line in enumerate(lines)]


def test_all_words_are_the_approved_ones():
    told = {f"answer: {title}": [headline(summary), *answer_lines(summary)] for title, summary in answers()}
    chosen = {f"recommendation: {title}": recommendation_lines(found) for title, found in recommendations()}
    parts = {}
    for cases in (told, chosen):
        (title, first), *others = cases.items()
        parts |= {title: first, **{title: beside(first, lines) for title, lines in others}}
    parts["headlines where the fastest is another cell"] = [*fastest_differs()]
    parts["table"] = [*tables()]
    parts["what a study took"] = [*costs()]
    parts["to learn more"] = [*lessons()]
    small = words_of(summary_of(SMALL))
    parts["to know"] = small
    parts |= {
        f"to know: {title}": [words for words in words_of(summary) if words not in small] for title, summary in warned()
    }
    assert "accuracy" not in str([told["answer: an error"], chosen["recommendation: an error"]])
    text = "\n".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in parts.items())
    approved(text, Path(__file__).parent / "words.txt")


def test_a_label_that_another_one_begins_with_is_not_marked():
    longer = {
        **VERDICT,
        "words": "80% is a fixed cost (workers=1 batch=1280).",
        "evidence": {"workers=1 batch=1280": 0.8},
    }
    assert verdict_words(VERDICT, changed(flagged)).endswith("(workers=1 batch=128) †.")
    assert verdict_words(longer, changed(flagged)) == longer["words"]
    assert verdict_words({**VERDICT, "cause": "disturbed"}, changed(flagged)) == VERDICT["words"]
