"""A real adaptive study: timings, trainings side by side, confirmations; then a larger budget."""

from itertools import pairwise

import pytest
from mlflow import MlflowClient

from scalestudy import run_study
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.study_commands import status_lines, status_of
from scalestudy.orchestration.study.study import resume_study
from tests.support.adaptive_study import STUDY, run_in
from tests.support.studies import write_spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(module_place):
    return module_place


@pytest.fixture(scope="module")
def done(cluster, place):
    return run_in(place, run_study, write_spec(place, **STUDY))


@pytest.fixture(scope="module")
def before(done):
    """The lines of trials.jsonl, in the order of looks, before the budget grew."""
    return sorted(StudyFolder(done.folder).read_trials(), key=lambda line: line["look"]["number"])


def of_kind(lines, *kinds):
    return [line for line in lines if line["look"]["kind"] in kinds]


def asked(folder):
    return [entry.event for entry in Journal(StudyFolder(folder).journal_folder).entries() if entry.type == "suggested"]


def test_it_times_trains_and_confirms_within_its_budget(done, before):
    assert done.exit_code == ExitCode.DONE
    kinds = [line["look"]["kind"] for line in before]
    assert kinds == ["size", "size", "first", "first", "confirmation", "confirmation"]
    assert {line["status"] for line in before} == {"finished", "at_target"}
    assert [line["params"]["seed"] for line in before[2:]] == [0, 0, 1000, 1000]


def test_what_is_timed_and_what_is_confirmed_ran_alone(before):
    quiet = of_kind(before, "size", "confirmation")
    assert not any(TimingFlag.SHARED_NODE in line["flags"] for line in quiet)
    for line in quiet:
        others = [other for other in before if other is not line]
        assert all(
            other["ended_at"] <= line["started_at"] or line["ended_at"] <= other["started_at"] for other in others
        )
    assert all(one["ended_at"] <= other["started_at"] for one, other in pairwise(quiet))


def test_a_second_first_training_was_asked_for_while_the_first_one_ran(done):
    """Four workers fit, and neither's seconds count."""
    entries = list(Journal(StudyFolder(done.folder).journal_folder).entries())
    numbers = [event["trial"]["look"]["number"] for event in asked(done.folder)]
    of_look = dict(zip(numbers, (entry.trial_id for entry in entries if entry.type == "suggested"), strict=True))
    order = [(entry.type, entry.trial_id) for entry in entries]
    assert order.index(("suggested", of_look[4])) < order.index(("ended", of_look[3]))


def test_the_journal_has_each_look_with_its_reason_before_it_ran(done, before):
    events = asked(done.folder)[: len(before)]
    assert [event["point"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event["trial"]["look"] for event in events] == [line["look"] for line in before]
    assert events[-1]["trial"]["look"]["ended"] == "budget"


def test_the_summary_and_the_report_have_what_was_tried_and_why(done):
    part = done.summary["adaptive"]
    assert part["ended"] == "budget"
    assert part["why"] == "the budget had no room for the whole confirmation"
    assert part["looks"] == {"trainings": 2, "timings": 2, "confirmations": 2}
    assert done.summary["recommendation"]["recommended"]["label"] == part["chosen"]
    assert [row["seeds"] for row in part["confirmation"]] == [1, 1]
    assert done.summary["trials"]["not_run"] == 0
    assert "What was tried and why" in StudyFolder(done.folder).report_file.read_text("utf-8")


def test_it_stands_as_finished_with_no_more_trials_than_it_made(done):
    status = status_of(done.folder)
    assert (status.state, sum(status.trials.values()) - status.trials["planned"]) == ("finished", 4)
    assert any("4/4 trials ended" in line for line in status_lines(status))


def test_each_look_is_a_run_of_mlflow_with_its_parameters(done, before):
    client = MlflowClient(tracking_uri=done.tracking_uri)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id], "tags.`scalestudy.role` != 'study'")
    params = {run.data.tags["scalestudy.trial_id"]: run.data.params for run in runs}
    for line in before:
        assert params[line["trial_id"]]["num_gpus"] == str(line["params"]["num_gpus"])
        assert not any("look" in key for key in params[line["trial_id"]])


def test_a_larger_budget_goes_on_and_repeats_nothing(done, before, place):
    folder = StudyFolder(done.folder)
    written = folder.trials_file.read_bytes()
    equal = run_in(place, resume_study, folder.path, overrides=["budget.trials=4"])
    assert equal.exit_code == ExitCode.DONE
    assert folder.trials_file.read_bytes() == written, "an equal budget has no room either"
    larger = run_in(place, resume_study, folder.path, overrides=["budget.trials=14"])
    assert larger.exit_code == ExitCode.DONE
    assert "6 looks before; looking among 4 places" in (folder.path / "log.jsonl").read_text("utf-8")
    lines = folder.read_trials()
    assert folder.trials_file.read_bytes().startswith(written)
    assert sorted(line["look"]["number"] for line in lines) == list(range(1, len(lines) + 1))
    assert len({line["trial_id"] for line in lines}) == len(lines)
    assert any("gain" in line["look"] for line in lines), "a look by the posterior"
    assert len(of_kind(lines, "first", "training", "whole", "confirmation")) <= 14
    part = larger.summary["adaptive"]
    assert (part["ended"] in ("sure", "budget"), part["why"]) == (True, None)
    assert [row["seeds"] for row in part["confirmation"]] == [5, 5]
    assert len(asked(folder.path)) == len(lines)
