"""Studies of version 0.1: their journals are folded, resumed and written again to the byte; so is their summary."""

import json

import pytest

from scalestudy.experiments.report import write_report
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.groups.events import Ended, from_plain, study_event_from_plain
from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.opening import open_resumed
from scalestudy.orchestration.sweep.search import search_for
from scalestudy.orchestration.tracking.mlflow_store import TrackedStudy
from scalestudy.orchestration.tracking.recorder import History, Recorder, complete_trials
from scalestudy.training.records import utc_text
from tests.support.old_studies import JOURNALS, STUDIES, entries_of, entry_texts, unpack
from tests.support.recordings import FakeWriter


@pytest.mark.parametrize("name", STUDIES)
def test_the_fold_of_a_journal_is_the_study_s_trials(tmp_path, name):
    study = unpack(name, tmp_path / name)
    kept = study.trials_file.read_bytes()
    study.trials_file.unlink()
    history = open_resumed(study.path).history
    complete_trials(study, history)
    assert study.trials_file.read_bytes() == kept
    assert len(history.open) == (name == "killed")
    assert history.wall_seconds > 0


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_told_again_is_written_again_byte_for_byte(tmp_path, name):
    """Each event twice, as after a lost Tune process: the journal and trials.jsonl are those of version 0.1."""
    old = unpack(name, tmp_path / "old")
    study = StudyFolder(tmp_path / "new")
    study.create()
    trials = old.read_plan().with_trials(History.of(entries_of(name)).suggested.values()).by_id()
    tracked = TrackedStudy(spec=spec_of(old), folder=study, trials=trials, config_of=lambda trial: {})
    recorder = Recorder(tracked, FakeWriter(), History())
    for entry in entries_of(name):
        if entry.type == "study":
            recorder.take_study(study_event_from_plain(entry.event))
            continue
        event = from_plain(entry.event)
        assert recorder.take(entry.trial_id, event) == event
        assert recorder.take(entry.trial_id, event) is None
    assert study.trials_file.read_bytes() == old.trials_file.read_bytes()
    written = [json.loads(file.read_text()) for file in sorted(study.journal_folder.glob("*.json"))]
    assert [without_time(each) for each in written] == [without_time(json.loads(text)) for text in entry_texts(name)]


def without_time(entry):
    """An entry's text without the moment at which it was written."""
    return json.dumps({**entry, "at": 0.0})


@pytest.mark.parametrize("name", STUDIES)
def test_the_report_of_an_old_study_has_the_same_summary(tmp_path, name):
    study = unpack(name, tmp_path / name)
    kept = study.summary_file.read_bytes()
    write_report(study)
    assert study.summary_file.read_bytes() == kept


def test_a_killed_study_goes_on_as_version_0_1_went_on_with_it():
    """The open trial's record is what the trial's line says once it has ended."""
    before, after = History.of(entries_of("killed")), entries_of("resumed")
    (trial_id,) = before.open
    resumed = next(entry for entry in after if entry.type == "study" and entry.event["state"] == "resumed")
    before.take(resumed)
    record = before.record_of(trial_id)
    line = next(entry.event for entry in after if entry.type == "ended" and entry.trial_id == trial_id)
    ended = Ended.from_facts(line)
    assert (record.attempts, sorted(record.epochs)) == (1, [1, 2, 3, 4])
    assert list(ended.epochs[:4]) == [record.epochs[number] for number in (1, 2, 3, 4)]
    assert tuple(record.failures) == ended.failures
    assert (ended.attempts, utc_text(record.started_at)) == (2, ended.started_at)
    assert 0 < record.earlier_seconds < ended.wall_seconds


@pytest.mark.parametrize("name", STUDIES)
def test_a_search_that_is_told_an_old_study_gives_what_is_left_of_it(tmp_path, name):
    study = unpack(name, tmp_path / name)
    plan, history = study.read_plan(), History.of(Journal(study.journal_folder).entries())
    swept = {trial.trial_id for trial in plan.swept}
    past = [(trial_id, event) for trial_id, event in history.past if trial_id in swept]
    search = search_for(StudySpec.model_validate(read_yaml(study.spec_file.read_text("utf-8")).data), plan, past)
    left = []
    while (suggestion := search.next()) is not None:
        left.append(suggestion.trial.trial_id)
    assert left == [trial.trial_id for trial in plan.swept if trial.trial_id not in history.ended]
    assert bool(left) == (name == "killed")


def test_every_study_that_is_kept_is_looked_at():
    kept = {folder.name for folder in JOURNALS.iterdir() if folder.is_dir()}
    assert kept == {*STUDIES, "pieces"}
