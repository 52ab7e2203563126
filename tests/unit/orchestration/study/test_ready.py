"""What may refuse a study: an adaptive one whose model trains in another way with each num_gpus, and a rehearsal."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.study import ready
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.opening import PreparedStudy
from scalestudy.orchestration.study.ready import check_callables, check_exact, get_ready, known_trials, to_rehearse
from scalestudy.orchestration.study.rehearsal import Rehearsal
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.training.fingerprint import Fingerprint
from tests.support.studies import write_spec

TWO = {"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1, 0.2]}

MODULE = "tests.unit.training.loop.test_exactness"
ADAPTIVE = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [2, 4], batch_size: [32], learning_rate: [0.1, 0.2]}
search: {method: adaptive}
budget: {trials: 5}
targets: {accuracy: [0.9]}
"""


def check(model, **changes):
    text = ADAPTIVE.replace("model: lenet", f"model: '{model}'")
    for before, after in changes.values():
        text = text.replace(before, after)
    spec = parse_study(text, "study.yaml")
    check_exact(spec, known_trials(spec, make_plan(spec))[0], "data")


def test_a_model_that_trains_alike_at_every_num_gpus():
    check("lenet")
    check(f"{MODULE}:Plain")
    check(f"{MODULE}:normalised", train=("epochs: 2", "epochs: 2, sync_batch_norm: true"))


@pytest.mark.parametrize(
    ("model", "problem", "remedy"),
    [
        ("normalised", "layer 0 is batch normalisation", "set train.sync_batch_norm: true; or set search.method: grid"),
        ("Functional", "draws random numbers", "remove their layers; or set search.method: grid"),
        ("Centred", "depends on the other examples", "; or set search.method: grid"),
        (
            "broken",
            "LookupError: no weights for this model (test_exactness.py:",
            "correct it, or set search.method: grid",
        ),
    ],
)
def test_a_model_that_does_not(model, problem, remedy):
    with pytest.raises(RequestError) as refused:
        check(f"{MODULE}:{model}")
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith(f"workload.model: {MODULE}:{model}: ")
    assert problem in str(refused.value)
    assert refused.value.remedy.endswith(remedy)


@pytest.mark.parametrize(
    "text", ["import sys; sys.exit('no licence')", "import asyncio; raise asyncio.CancelledError('no licence')"]
)
def test_code_that_ends_the_program_while_it_is_imported_is_refused_in_its_words(tmp_path, monkeypatch, text):
    (tmp_path / "quitting_module.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        RequestError, match=r"workload.model: quitting_module:build: (SystemExit|CancelledError): no licence"
    ):
        check_callables(read_spec(write_spec(tmp_path, workload={"model": "quitting_module:build", "data": "digits"})))


def test_a_ctrl_c_while_code_is_imported_ends_the_command(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import signal; signal.raise_signal(signal.SIGINT)", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        check_callables(read_spec(write_spec(tmp_path, workload={"model": "slow_module:build", "data": "digits"})))


def test_a_model_that_exits_as_it_is_tried_is_refused_in_its_words():
    with pytest.raises(RequestError, match="SystemExit: the licence server is away"):
        check("tests.support.quitting:model_built")


def test_batch_normalisation_is_looked_at_as_it_is_swept():
    check(f"{MODULE}:normalised", sweep=("sweep: {", "sweep: {train.sync_batch_norm: [true], "))
    with pytest.raises(RequestError, match="batch normalisation"):
        check(f"{MODULE}:normalised", sweep=("sweep: {", "sweep: {train.sync_batch_norm: [false], "))


# --- the rehearsal -------------------------------------------------------------------------------------------------


def prepared(tmp_path, state="started", ended=(), begun=(), model="lenet", reopened=(), trained_with=()):
    """A study of two trials, before it starts or goes on; ended, begun, reopened: the numbers of those that have.

    trained_with: the fingerprints of its runs.
    """
    spec = read_spec(write_spec(tmp_path, workload={"model": model, "data": "digits"}, sweep=TWO))
    plan = make_plan(spec)
    ids = [trial.trial_id for trial in plan.trials]
    history = History(
        ended={ids[each]: {} for each in ended},
        open={ids[each]: TrialRecord() for each in begun},
        fingerprints=[*trained_with],
    )
    return PreparedStudy(
        spec=spec,
        plan=plan,
        folder=StudyFolder(tmp_path / "out"),
        study_id="x",
        history=history,
        state=state,
        reopened=tuple(ids[each] for each in reopened),
    )


@pytest.mark.parametrize(
    ("ended", "reopened", "rehearsed"),
    [((), (), [0, 1]), ((0,), (), [1]), ((0, 1), (), []), ((0, 1), (1,), [1])],
)
def test_what_has_ended_is_not_rehearsed_again_unless_it_runs_again(tmp_path, ended, reopened, rehearsed):
    study = prepared(tmp_path, "extended", ended, reopened=reopened)
    assert to_rehearse(study) == [study.plan.trials[each] for each in rehearsed]


class TooFarError(Exception):
    """What follows the rehearsal was reached."""


@pytest.fixture
def rehearsals(monkeypatch):
    """The models that were rehearsed; what is left out, in words, is said."""
    called = []

    def rehearse(spec, plan, trials, data_root):
        called.append(trials[0].workload["model"])
        return Rehearsal(steps={}, left_out={"batch=64": "it takes more than 60 s"}, seconds=60.0)

    def go_on(uri):
        raise TooFarError

    monkeypatch.setattr(ready, "rehearse_study", rehearse)
    monkeypatch.setattr(ready, "resolve_address", go_on)
    return called


def test_what_is_left_out_is_said_and_the_study_goes_on(tmp_path, rehearsals, caplog):
    said = []
    with pytest.raises(TooFarError):
        get_ready(prepared(tmp_path, model=f"{MODULE}:Plain"), None, ExitStack(), said.append)
    assert rehearsals == [f"{MODULE}:Plain"]
    assert said == [f"a rehearsal: the first steps of {MODULE}:Plain on the CPU"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "rehearsal: batch=64 left out: it takes more than 60 s"


EDITED = Fingerprint(code={MODULE: {"test_exactness.py": "of another text"}})


@pytest.mark.parametrize(
    ("state", "ended", "begun", "trained_with", "rehearsed"),
    [
        ("started", (), (), [], True),
        ("resumed", (), (), [], True),
        ("resumed", (), (0,), [], False),
        ("resumed", (0,), (), [], False),
        ("resumed", (0,), (), [Fingerprint.of_code([MODULE])], False),
        ("resumed", (), (0,), [EDITED], True),
        ("resumed", (0,), (), [EDITED], True),
        ("resumed", (0,), (), [Fingerprint.of_code([MODULE]), EDITED], True),
        ("extended", (0,), (), [EDITED], True),
    ],
)
def test_a_study_that_has_trained_is_rehearsed_once_its_code_has_changed(
    tmp_path, rehearsals, state, ended, begun, trained_with, rehearsed
):
    study = prepared(tmp_path, state, ended, begun, f"{MODULE}:Plain", trained_with=trained_with)
    with pytest.raises(TooFarError):
        get_ready(study, None, ExitStack())
    assert rehearsals == [f"{MODULE}:Plain"] * rehearsed


def test_the_model_of_a_grid_is_not_tried_for_exactness(tmp_path, rehearsals):
    with pytest.raises(TooFarError):
        get_ready(prepared(tmp_path, model=f"{MODULE}:broken"), None, ExitStack())


def test_an_edit_that_makes_an_adaptive_study_inexact_is_found_as_it_goes_on(tmp_path, rehearsals):
    spec = parse_study(ADAPTIVE.replace("model: lenet", f"model: '{MODULE}:normalised'"), "study.yaml")
    study = replace(prepared(tmp_path, "resumed", (0,), trained_with=[EDITED]), spec=spec, plan=make_plan(spec))
    said = []
    with pytest.raises(RequestError, match="batch normalisation"):
        get_ready(study, None, ExitStack(), said.append)
    assert said[-1] == f"a check that {MODULE}:normalised trains the same at every num_gpus"


def test_a_rehearsal_can_be_left_out_and_is_where_all_is_built_in(tmp_path, rehearsals):
    with pytest.raises(TooFarError):
        get_ready(prepared(tmp_path, model=f"{MODULE}:Plain"), None, ExitStack(), rehearsal=False)
    with pytest.raises(TooFarError):
        get_ready(prepared(tmp_path), None, ExitStack())
    assert rehearsals == []


def test_a_loop_is_neither_rehearsed_nor_tried_for_exactness_and_reads_its_data_itself(
    tmp_path, rehearsals, monkeypatch
):
    monkeypatch.setenv("SCALESTUDY_DATA", str(tmp_path / "nothing"))
    workload = {"loop": "tests.support.loops_to_check:plain", "exact": True}
    search = {"search": {"method": "adaptive"}, "budget": {"trials": 5}, "targets": {"accuracy": [0.9]}}
    spec = read_spec({"name": "x", "workload": workload, "sweep": {"num_gpus": [1, 2]}, **search})
    study = replace(prepared(tmp_path), spec=spec, plan=make_plan(spec), state="new")
    said = []
    with pytest.raises(TooFarError):
        get_ready(study, None, ExitStack(), said.append)
    assert (rehearsals, said) == ([], [])
