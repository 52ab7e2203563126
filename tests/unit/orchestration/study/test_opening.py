"""A study that goes on, or grows: what is taken over from its folder, and what is refused with nothing changed."""

import json
from contextlib import ExitStack

import pytest

from scalestudy.experiments.plan.plan import cell_trial, point_trials
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode, RequestError, UnreachableError
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.groups.events import EpochDone, Running, to_plain
from scalestudy.orchestration.study.folders import open_folder, read_spec
from scalestudy.orchestration.study.opening import (
    check_writable,
    claimed,
    extended,
    open_extended,
    open_new,
    open_resumed,
    with_failed,
)
from scalestudy.orchestration.study.study import resume_study
from scalestudy.orchestration.sweep.methods import search_for
from scalestudy.training.fingerprint import DataFacts, Fingerprint
from tests.support.epochs import epoch_of
from tests.support.old_studies import unpack
from tests.support.synthetic_studies import study_of
from tests.support.trials import make_trials

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [1], batch_size: [32], learning_rate: [0.1, 0.2]}
"""


def spec_of(text=SPEC):
    return parse_study(text, "study.yaml")


@pytest.fixture
def folder(tmp_path):
    """A study of which one trial has ended, and one has begun."""
    opened = open_new(spec_of(), tmp_path / "out")
    opened.write()
    _, _, trials = study_of(SPEC)
    journal = Journal(opened.folder.journal_folder)
    journal.append("", {"type": "study", "state": "started"})
    journal.append(trials[0]["trial_id"], {"type": "ended", **trials[0]})
    journal.append(trials[1]["trial_id"], to_plain(Running(attempt=1)))
    opened.folder.append_trial(trials[0])
    return opened.folder


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.path.rglob("*")) if path.is_file()}


def test_a_study_goes_on_with_what_it_has(folder):
    opened = open_resumed(folder.path)
    assert opened.study_id == folder.study_id != folder.path.name
    assert len(opened.trials) == 2
    assert len(opened.history.ended) == 1
    assert len(opened.history.open) == 1


def test_failed_trials_can_be_taken_up_by_their_cause(folder):
    study = open_resumed(folder.path)
    assert with_failed(study).reopened == ()
    with pytest.raises(
        RequestError, match=r"--only: no_room: no trial of .* failed by this cause; leave --retry-failed out"
    ):
        with_failed(study, "no_room")
    ended = study.history.ended
    for trial_id, kind in zip(ended, ("no_room", "exception"), strict=False):
        ended[trial_id] = {**ended[trial_id], "status": "failed", "error": {"kind": kind, "message": "m"}}
    [first, *_] = ended
    assert with_failed(study, "no_room").reopened == (first,)
    assert len(with_failed(study).reopened) == min(2, len(ended))
    with pytest.raises(RequestError, match=r"--only: stalled: .*; name one of no_room \(1\)"):
        with_failed(study, "stalled")


def test_a_torn_last_line_of_trials_jsonl_does_no_harm(folder):
    with folder.trials_file.open("ab") as stream:
        stream.write(b'{"trial_id": "0123')
    assert len(open_resumed(folder.path).history.ended) == 1


def test_a_folder_that_is_no_study(tmp_path, folder):
    before = contents(folder)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nothing", folder.spec_file):
        with pytest.raises(RequestError, match=r"DIR: .* is not a study's folder"):
            open_resumed(path)
    assert contents(folder) == before


def test_a_spec_that_was_edited(folder):
    before = folder.spec_file.read_text()
    folder.spec_file.write_text(before.replace("epochs: 2", "epochs: 3"))
    with pytest.raises(RequestError, match=r"spec.yaml: was edited .* --extend") as refused:
        open_resumed(folder.path)
    assert refused.value.exit_code == 2
    folder.spec_file.write_text(before)
    open_resumed(folder.path)


def test_a_broken_line_in_the_middle_of_trials_jsonl(folder):
    folder.trials_file.write_bytes(b"{oops}\n" + folder.trials_file.read_bytes())
    with pytest.raises(RequestError, match=r"trials.jsonl:1: is not the record of a trial"):
        open_resumed(folder.path)


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("learning_rate: [0.1, 0.2]", "learning_rate: [0.1, 0.2, 0.4]", 3),
        ("num_gpus: [1]", "num_gpus: [1, 2]", 4),
        ("[0.1, 0.2]}", "[0.2, 0.1], seed: [0, 1]}", 4),
    ],
)
def test_a_study_grows(folder, old, new, count):
    opened = open_extended(spec_of(SPEC.replace(old, new)), folder.path)
    assert len(opened.trials) == count
    assert opened.history.ended.keys() | opened.history.open.keys() <= opened.trials.keys()
    assert opened.study_id == folder.study_id
    opened.write()
    again = open_resumed(folder.path)
    assert again.trials == opened.trials


def test_what_may_change_beside_the_points(folder):
    text = SPEC + "targets: {accuracy: [0.9]}\nlimits: {failures_per_trial: 5}\ndescription: more\n"
    opened = open_extended(spec_of(text), folder.path)
    assert opened.spec.limits.failures_per_trial == 5


def test_what_has_changed_since_the_last_run_is_told_and_refuses_nothing(folder):
    first = Fingerprint(code={"mine": {"mine.py": "1", "glue.py": "1"}}, data={"mine:load": DataFacts(train=600)})
    edited = Fingerprint(code={"mine": {"mine.py": "1", "glue.py": "2"}}, data={"mine:load": DataFacts(train=800)})
    assert open_resumed(folder.path).changed_since(first) == [], "an older folder does not say it"
    journal = Journal(folder.journal_folder)
    for fingerprint in (first, edited):
        journal.append("", {"type": "study", "state": "resumed", "fingerprint": fingerprint.to_plain()})
        if fingerprint == first:
            journal.append(study_of(SPEC)[2][1]["trial_id"], to_plain(EpochDone(record=epoch_of(1))))
    for opened in (open_resumed(folder.path), open_extended(spec_of(), folder.path)):
        assert opened.changed_since(first) == []
        assert opened.changed_since(edited) == ["glue.py", "data: 600 -> 800 examples"]
        assert len(opened.trials) == 2, "with the ids that they had"
        assert opened.history.fingerprints == [first], "the last run has trained nothing"


TPE = """
name: searched
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: {log_uniform: [0.01, 1.0]}}
search: {method: tpe, samples: 5}
"""


@pytest.fixture
def searched(tmp_path):
    """A study of which a search has suggested one trial."""
    opened = open_new(spec_of(TPE), tmp_path / "out")
    opened.write()
    trial = point_trials(opened.spec, {"num_gpus": 1, "batch_size": 32, "learning_rate": 0.1})[0]
    journal = Journal(opened.folder.journal_folder)
    journal.append("", {"type": "study", "state": "started"})
    journal.append(trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": 1})
    journal.append(trial.trial_id, to_plain(Running(attempt=1)))
    return opened.folder


def test_a_search_gets_more_samples(searched):
    opened = open_extended(spec_of(TPE.replace("samples: 5", "samples: 9")), searched.path)
    assert (len(opened.trials), opened.plan.expected_trials) == (1, 9)


def test_a_value_that_has_not_run_may_go(folder):
    journal = sorted(folder.journal_folder.glob("*"))
    journal[-1].unlink()  # the second trial has not begun
    assert len(open_extended(spec_of(SPEC.replace("[0.1, 0.2]", "[0.1]")), folder.path).trials) == 1


def test_the_folder_of_a_new_study_goes_again_when_it_can_not_start(tmp_path):
    opened = open_new(spec_of(), tmp_path / "a" / "b" / "out")
    made = opened.write()
    assert StudyFolder(tmp_path / "a" / "b" / "out").read_plan() == opened.plan
    opened.discard(made)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("runs", [True, False])
def test_of_two_studies_that_chose_one_name_the_second_takes_another(tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    opened = open_new(spec_of(), None)
    with ExitStack() as stack, ExitStack() as other:
        first, _, made = claimed(opened, stack)
        first.write(made)
        if not runs:
            stack.close()
        before = contents(first.folder)
        second, lock, made = claimed(opened, other)
        assert (first.study_id, second.study_id != first.study_id) == (opened.study_id, True)
        assert (second.folder.path.parent, lock.check()) == (tmp_path / "runs", True)
        second.write(made)
        second.discard(made)
        assert contents(first.folder) == before
        assert [folder.name for folder in (tmp_path / "runs").iterdir()] == [first.study_id]


def test_of_two_studies_with_one_out_the_second_is_refused_and_leaves_the_first_alone(tmp_path):
    opened = open_new(spec_of(), tmp_path / "out")
    with ExitStack() as stack:
        claimed(opened, stack)[0].write()
        before = contents(opened.folder)
        with ExitStack() as other, pytest.raises(RequestError, match="is being run by process"):
            claimed(opened, other)
        assert contents(opened.folder) == before


def test_a_name_that_no_folder_can_have_is_refused_before_the_study_starts(tmp_path):
    with pytest.raises(UnreachableError, match=r"can't be written \(File name too long\); name a folder"):
        check_writable(tmp_path / ("n" * 300) / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_resumed_study_stays_whatever_happens(folder):
    opened = open_resumed(folder.path)
    before = contents(folder)
    opened.discard(opened.write())
    assert contents(folder) == before


def test_a_plan_written_anew_does_not_take_an_edited_spec_for_its_own(folder):
    folder.spec_file.write_text(folder.spec_file.read_text().replace("epochs: 2", "epochs: 3"))
    folder.update_plan(folder.read_plan())
    with pytest.raises(RequestError, match="was edited"):
        open_resumed(folder.path)


def test_a_driver_killed_in_the_middle_of_an_extension_has_lost_nothing(folder, monkeypatch):
    text = SPEC.replace("learning_rate: [0.1, 0.2]", "learning_rate: [0.1, 0.2, 0.4]")
    opened = open_extended(spec_of(text), folder.path)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            StudyFolder,
            "write_text",
            lambda self, file, content: (
                killed() if file.name == "spec.yaml" else self.write_bytes(file, content.encode())
            ),
        )
        with pytest.raises(KeyboardInterrupt):
            opened.write()
    assert len(open_resumed(folder.path).trials) == 3
    assert len(open_extended(spec_of(text), folder.path).trials) == 3


# --- timing runs ------------------------------------------------------------------------------------------------------

PACKED = SPEC.replace("[1]", "[2, 4]") + "resources: {exclusive: false}\n"


@pytest.fixture
def packed(tmp_path):
    """A study whose trials have ended, side by side, and whose first timing run has begun."""
    opened = open_new(spec_of(PACKED), tmp_path / "out")
    opened.write()
    journal = Journal(opened.folder.journal_folder)
    journal.append("", {"type": "study", "state": "started"})
    records = {record["trial_id"]: record for record in make_trials(opened.plan, flags={"*": ["shared_node"]})}
    for trial_id, record in records.items():
        journal.append(trial_id, {"type": "ended", **record})
        opened.folder.append_trial(record)
    trial, *_ = timing_trials(opened.spec, opened.plan.trials, records)
    journal.append(trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": None})
    journal.append(trial.trial_id, to_plain(Running(attempt=1)))
    return opened.folder


def test_the_sweep_has_the_trainings_alone(packed):
    opened = open_resumed(packed.path)
    assert len(opened.trials) == 5
    assert (len(opened.plan.trials), opened.plan.expected_trials, opened.plan.sizes) == (4, 4, (2, 4))
    search = search_for(opened.spec, opened.plan, [])
    assert [search.next().trial.num_gpus for _ in range(4)] == [2, 2, 4, 4]
    assert search.next() is None


@pytest.mark.parametrize(
    ("old", "new", "trainings"),
    [
        ("[0.1, 0.2]", "[0.1, 0.2, 0.4]", 6),
        ("[2, 4]", "[1, 2, 4]", 6),
        ("[0.1, 0.2]}", "[0.1, 0.2], seed: [0, 1]}", 8),
    ],
)
def test_a_study_with_timing_runs_grows(packed, old, new, trainings):
    opened = open_extended(spec_of(PACKED.replace(old, new)), packed.path)
    assert len(opened.plan.trials) == trainings
    assert opened.history.ended.keys() | opened.history.open.keys() <= opened.trials.keys()
    assert len(opened.trials) == trainings + 1, "the timing run stays"


def test_a_study_places_all_its_trials_alike(tmp_path):
    text = SPEC + "resources: {placement: spread}"
    opened = open_new(spec_of(text), tmp_path / "out")
    opened.write()
    assert open_extended(spec_of(text), opened.folder.path).spec.resources.placement == "spread"
    problem = "resources.placement: the study's trials are placed by spread, not pack; set resources.placement: spread"
    with pytest.raises(RequestError, match=problem):
        open_extended(spec_of(SPEC), opened.folder.path)


def test_a_training_that_has_stopped_at_the_target_is_not_taken_for_one_that_goes_on(tmp_path):
    text = SPEC + "targets: {accuracy: [0.3, 0.5], stop: true}"
    opened = open_new(spec_of(text), tmp_path / "out")
    opened.write()
    (record, *_) = make_trials(opened.plan)
    opened.folder.append_trial({**record, "status": "at_target"})
    assert open_extended(spec_of(text.replace("[0.3, 0.5]", "[0.5, 0.1]")), opened.folder.path).spec.stops_at_target
    for old, new in (("[0.3, 0.5]", "[0.3, 0.6]"), ("true", "false"), ("[0.3, 0.5]", "[0.3]")):
        with pytest.raises(RequestError, match=r"targets: 1 training of it stopped at 0.5; leave the hardest target"):
            open_extended(spec_of(text.replace(old, new)), opened.folder.path)


# --- adaptive searches ------------------------------------------------------------------------------------------------


ADAPTIVE = SPEC.replace("[1]", "[1, 2]") + "search: {method: adaptive}\ntargets: {accuracy: [0.9]}\n"
HALF_AN_HOUR = ADAPTIVE + "budget: {minutes: 30, uses: 100}"


@pytest.fixture
def adaptive(tmp_path):
    """A study with a budget of half an hour, of which one training has begun."""
    opened = open_new(spec_of(HALF_AN_HOUR), tmp_path / "out")
    opened.write()
    trial = cell_trial(opened.spec, {"num_gpus": 2, "batch_size": 32, "learning_rate": 0.1}, 0)
    journal = Journal(opened.folder.journal_folder)
    journal.append("", {"type": "study", "state": "started"})
    journal.append(trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": None})
    journal.append(trial.trial_id, to_plain(Running(attempt=1)))
    return opened.folder


@pytest.mark.parametrize("budget", ["minutes: 30", "minutes: 31", "minutes: 90, uses: 5"])
def test_an_adaptive_search_goes_on_with_a_larger_budget(adaptive, budget):
    opened = open_extended(spec_of(f"{ADAPTIVE}budget: {{{budget}}}"), adaptive.path)
    assert (len(opened.trials), opened.state) == (1, "extended")
    opened.write()
    assert open_resumed(adaptive.path).spec.budget == opened.spec.budget


def test_a_resumed_study_may_get_a_larger_budget_and_keeps_the_rest_of_its_spec(adaptive):
    before = open_resumed(adaptive.path)
    opened = extended(before, read_spec(before.spec, ["budget.minutes=60"]), "DIR")
    assert opened.spec == spec_of(HALF_AN_HOUR.replace("30", "60"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{ADAPTIVE}budget: {{minutes: 29.5}}",
            "budget.minutes: 29.5 is too small, and the study has 30; give budget.minutes: 30 or more, or run a new",
        ),
        (f"{ADAPTIVE}budget: {{trials: 90}}", "budget.minutes: is not given, and the study has 30; give"),
        (HALF_AN_HOUR.replace("0.2]", "0.4]"), "sweep: differs from the study's spec; change nothing but budget:"),
        (HALF_AN_HOUR.replace("[0.9]", "[0.8]"), "targets: differs from the study's spec; change nothing but budget:"),
    ],
)
def test_an_adaptive_search_gets_no_smaller_budget_and_no_other_space(adaptive, text, message):
    before = contents(adaptive)
    with pytest.raises(RequestError, match=message):
        open_extended(spec_of(text), adaptive.path)
    assert contents(adaptive) == before


GONE = r"{} of the trials that have run are not in the spec"
SEARCH = "search: differs from the study's spec; change nothing there but search.samples"
SPACE = r"differs from the study's spec; change nothing but search.samples"


@pytest.mark.parametrize(
    ("study", "text", "old", "new", "message"),
    [
        ("folder", SPEC, "epochs: 2", "epochs: 3", GONE.format(2) + r" \(workers=1 batch=32 lr=0.1"),
        ("folder", SPEC, "[0.1, 0.2]", "[0.1, 0.4]", GONE.format(1) + r" \(workers=1 batch=32 lr=0.2"),
        ("folder", SPEC, "name: tiny", "name: other", "is the study tiny, not other"),
        ("folder", SPEC, "train:", "search: {method: random, samples: 2}\ntrain:", SEARCH),
        ("folder", SPEC, "train:", "search: {scheduler: asha}\ntrain:", SEARCH),
        ("searched", TPE, "epochs: 2", "epochs: 3", SPACE),
        ("searched", TPE, "[0.01, 1.0]", "[0.01, 2.0]", SPACE),
        ("searched", TPE, "[32]", "[32], seed: [0, 1]", SPACE),
        ("searched", TPE, "[1, 2]", "[1]", SPACE),
        ("packed", PACKED, "epochs: 2", "epochs: 3", GONE.format(4)),
    ],
)
def test_what_has_run_does_not_change(request, study, text, old, new, message):
    folder = request.getfixturevalue(study)
    before = contents(folder)
    with pytest.raises(RequestError, match=message) as refused:
        open_extended(spec_of(text.replace(old, new)), folder.path)
    assert refused.value.exit_code == ExitCode.BAD_REQUEST
    assert contents(folder) == before


def older_version(folder):
    plan = json.loads(folder.plan_file.read_text("utf-8"))
    folder.write_json(folder.plan_file, {**plan, "version": 1})


def older_keys(folder):
    text = folder.spec_file.read_text("utf-8")
    folder.spec_file.write_text(text.replace("\n  method: grid\n", "\n  method: factors\n  held: 2\n"), "utf-8")


@pytest.mark.parametrize(
    ("older", "told"),
    [
        (older_version, r"its files have version 1, and this scalestudy reads 2 \(0.1 and 0.2 write 1\)"),
        (older_keys, r"this scalestudy can't read its spec.yaml \(search.method: \"factors\" is not .*adaptive\)"),
    ],
)
def test_a_study_of_an_older_version_is_refused_in_one_line_that_names_what_is_older(tmp_path, older, told):
    folder = unpack("finished", tmp_path / "old")
    older(folder)
    told = f"DIR: .*old: {told}; read it with the scalestudy that wrote it, or run the study again"
    for opened in (open_folder, open_resumed, resume_study, status_of):
        with pytest.raises(RequestError, match=told) as refused:
            opened(folder.path)
        assert refused.value.exit_code == ExitCode.BAD_REQUEST
        assert "\n" not in str(refused.value)
    assert not folder.lock_file.exists()


def test_a_plan_of_an_older_version_is_not_read(tmp_path):
    folder = unpack("finished", tmp_path / "old")
    older_version(folder)
    with pytest.raises(ValueError, match=r"plan\.json: has version 1, and this scalestudy reads 2"):
        folder.read_plan()
