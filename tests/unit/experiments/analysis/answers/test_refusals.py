"""Why no cell is the fastest: one line that says what would help and what it costs."""

from pathlib import Path

from scalestudy.experiments.analysis import recommend
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.text.sentences import recommendation_lines
from tests.support.approved import approved
from tests.support.batch_summaries import study as batch_study
from tests.support.synthetic_studies import study_of
from tests.support.timed_studies import stopped_after
from tests.support.trials import Law

TEXT = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.5, 0.8]}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)
EASY = TEXT.replace("[0.5, 0.8]", "[0.15]")
LAW = Law(learning=130)


def changed(key, change, law=LAW):
    """The study, each trial of which has another value at a key. change: what it makes of the trial."""
    spec, plan, trials = study_of(TEXT, law)
    return spec, plan, [{**trial, key: change(trial)} for trial in trials]


def epochs_with(change):
    """As `changed`, with other epochs."""
    return changed("epochs", lambda trial: [{**epoch, **change(epoch)} for epoch in trial["epochs"]])


def refusals():
    """Title and recommendation of each case."""
    yield "one cell", recommend(*batch_study(batches="[128]", rates="[0.4]"))
    yield "every target is met at once", recommend(*study_of(TEXT, Law(learning=40_000)))
    # 0.985 - 0.885 exp(-130 * 0.2 / 32 * 7) is 0.982: a harder target would be 0.98
    yield "a harder target was reached", recommend(*study_of(EASY, LAW))
    # 1 - 0.982 is 0.017998, which is rounded up
    error = EASY.replace("name: x", "name: x\nworkload: {metric: mse, metric_mode: min}").replace("0.15", "0.85")
    yield "a smaller error was reached", recommend(*study_of(error, LAW))
    # 0.985 - 0.885 exp(-130 * 0.2 / 32 * 8) = 0.9837; 45 steps of 0.0002 + 0.002 + 0.00352 + 0.0003 s are 0.271 s
    yield "out of reach", recommend(*study_of(TEXT, Law(learning=130, per_example=0.00011)), accuracy=0.99)
    once = epochs_with(lambda epoch: {"test_accuracy": 0.9 * (epoch["epoch"] % 2)})
    yield "met, but never twice in a row", recommend(*once, accuracy=0.85)
    spec, plan, trials = study_of(TEXT, LAW)
    stopped = [{**stopped_after(trial, 4), "status": "at_target"} for trial in trials]
    yield "trainings stopped at an easier target", recommend(spec, plan, stopped, accuracy=0.99)
    yield "every trial failed", recommend(*study_of(TEXT, endings={"*": "failed"}))
    yield "no trial has ended", recommend(spec, plan, [])
    yield "reached by larger cells alone", recommend(*lost_on_one_worker(), max_gpus=1)
    yield "easier reached by smaller cells", recommend(*short_on_few_workers(), max_gpus=2)
    yield "records without steps", recommend(*epochs_with(lambda _: {"steps": None, "samples": None}))
    yield "a rate of 0", recommend(*changed("params", lambda trial: {**trial["params"], "learning_rate": 0.0}))


def lost_on_one_worker():
    """Only several workers reach 0.8."""
    spec, plan, trials = study_of(TEXT.replace("[0.5, 0.8]", "[0.8]"), LAW)
    return spec, plan, [each for each in trials if each["params"]["num_gpus"] > 1]


def short_on_few_workers():
    """Only four workers reach 0.8: at 0.2 and batch 32 0.985 - 0.885 exp(-70 * 0.2 / 32 e) is 0.41, 0.62, 0.75."""
    return changed(
        "epochs", lambda trial: trial["epochs"][: 3 if trial["params"]["num_gpus"] < 4 else 8], Law(learning=70)
    )


def test_the_words_are_the_approved_ones():
    text = "".join(f"# {title}\n{recommendation_lines(found)[0]}\n" for title, found in refusals())
    approved(text, Path(__file__).parent / "refusals.txt")


def test_nothing_is_chosen_where_one_cell_was_run():
    found = recommend(*batch_study(batches="[128]", rates="[0.4]"))
    assert len({found[role]["why"] for role in ("recommended", "fastest", "cheapest")}) == 1
    assert not any(present(found[role]) for role in ("recommended", "fastest", "cheapest", "choice"))


def test_a_harder_target_that_is_named_is_answered():
    assert present(recommend(*study_of(EASY, LAW), accuracy=0.98)["fastest"])


def test_a_target_that_only_larger_cells_reach_is_answered_without_the_limit():
    assert present(recommend(*lost_on_one_worker())["fastest"])
    found = recommend(*short_on_few_workers(), max_gpus=2)
    assert (found["target"], found["missed_targets"], found["max_gpus"]) == (0.5, [0.8], 2)


def test_a_target_whose_time_is_not_known_was_not_missed():
    assert recommend(*epochs_with(lambda _: {"steps": None, "samples": None}))["missed_targets"] == []
