"""A worker's last word on a training, and by what it tells the best trial's model from the others."""

import math
import queue
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.groups import worker
from scalestudy.orchestration.groups.events import TrainingEnded
from scalestudy.orchestration.groups.model import NextTrial
from scalestudy.orchestration.groups.worker import (
    LONGEST_TRACEBACK,
    failed_post,
    last_post,
    save_if_best,
    target_hook,
    train_trial,
)
from scalestudy.orchestration.study.trials import order
from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.gpu_state import GpuState
from scalestudy.training.loop.train import TrainResult
from scalestudy.training.pulse import Pulse
from scalestudy.training.records import EpochRecord
from tests.support.synthetic_studies import study_of

# --- what is told of an exception -------------------------------------------------------------------------------------


def failed(tmp_path, error, logs=None):
    given = SimpleNamespace(order=SimpleNamespace(trial_id="t1"), attempt=1)
    try:
        raise error
    except Exception as met:
        return failed_post(given, 1, met, tmp_path / "logs" if logs is None else logs)


def test_a_traceback_is_told_and_written_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", "hunter2222")
    post = failed(tmp_path, ValueError("hunter2222 is bad \udcff"))
    assert (post.kind, post.message.partition("\\")[0]) == ("exception", "ValueError: *** is bad ")
    assert post.traceback.startswith("Traceback (most recent call last)")
    assert "raise error" in post.traceback
    assert "hunter2222" not in post.traceback
    post.traceback.encode("utf-8")
    assert post.traceback in (tmp_path / "logs" / "t1-rank-1.log").read_text("utf-8")
    assert post.log == str(tmp_path / "logs" / "t1-rank-1.log")


def test_of_a_gpu_that_failed_one_line_is_told(tmp_path):
    """PyTorch adds how to debug a kernel."""
    post = failed(tmp_path, RuntimeError("CUDA error: unknown error\nFor debugging consider CUDA_LAUNCH_BLOCKING=1"))
    assert (post.kind, post.message) == ("device_lost", "RuntimeError: CUDA error: unknown error")
    assert "For debugging" in post.traceback


def test_of_a_long_traceback_the_end_is_told(tmp_path):
    post = failed(tmp_path, ValueError("x" * 2 * LONGEST_TRACEBACK + "the end"))
    assert len(post.traceback) == LONGEST_TRACEBACK
    assert post.traceback.endswith("the end\n")


def test_a_full_disk_keeps_no_traceback_from_the_pool(tmp_path):
    (tmp_path / "file").touch()
    post = failed(tmp_path, ValueError("bad"), tmp_path / "file")
    assert post.log == ""
    assert "ValueError: bad" in post.traceback


def test_a_lost_peer_has_no_traceback(tmp_path):
    post = failed(tmp_path, RuntimeError("[gloo] Connection closed by peer"))
    assert (post.kind, post.traceback, post.log) == ("collective", "", "")


# --- of which code a trial is -----------------------------------------------------------------------------------------


def test_a_process_tells_the_code_that_it_began_with_and_a_new_one_that_of_now(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "worker_mine.py").write_text("import worker_glue\n")
    (tmp_path / "worker_glue.py").write_text("VALUE = 1\n")
    config = TrainConfig(model="worker_mine:build", data="digits", batch_size=8, learning_rate=0.1)
    first = worker.code_of(config)
    assert first == Fingerprint.of_code(config.to_dict()).digests(config.to_dict())
    assert first.keys() == {"worker_mine"}
    (tmp_path / "worker_glue.py").write_text("VALUE = 2\n")
    assert worker.code_of(config) == first
    assert Fingerprint.of_code(config.to_dict()).digests(config.to_dict()) != first
    assert worker.code_of(config.replace(model="lenet")) == {}


# --- beats ------------------------------------------------------------------------------------------------------------


class FakeClient:
    """Keeps what is sent, and lets a test wait for it."""

    def __init__(self):
        self.sent, self.answers = queue.Queue(), threading.Event()
        self.answers.set()

    def send(self, sequence, post):
        self.sent.put((sequence, post))
        return post

    def wait_for(self, _sent):
        self.answers.wait(10)

    def next(self):
        return self.sent.get(timeout=10)


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(worker, "BEAT_SECONDS", 0.01)
    return FakeClient()


def test_beats_say_what_the_training_does_and_the_last_one_that_it_ended(client):
    with worker.beating(client, 7) as pulse:
        sequence, beat = client.next()
        assert (sequence, beat.activity, beat.stage, beat.count) == (7, "loading", 1, 0)
        pulse.turn_to("evaluating")
        pulse.stage.count += 37
        while (beat := client.next()[1]).activity == "loading":
            pass
        assert (beat.activity, beat.stage, beat.count) == ("evaluating", 2, 37)
        assert 0 <= beat.seconds < 10
    last = [client.sent.get(timeout=10)[1] for _ in range(client.sent.qsize())]
    assert "ended" in [beat.activity for beat in last]


def test_beats_end_with_an_exception_too(client):
    with pytest.raises(ValueError, match="bad"), worker.beating(client, 7):
        raise ValueError("bad")
    while client.next()[1].activity != "ended":
        pass


def test_beats_do_not_pile_up_at_a_pool_that_does_not_answer(client):
    client.answers.clear()
    with worker.beating(client, 7):
        client.next()
        with pytest.raises(queue.Empty):
            client.sent.get(timeout=0.2)
        client.answers.set()
        assert client.next()[1].activity == "loading"


# --- by what the best trial's model is told from the others -----------------------------------------------------------


def trained(*values, status="finished"):
    """A training whose metric took these values, one an epoch of a second."""
    records = [EpochRecord.from_dict({"metric": "mse", "test_mse": value, "train_seconds": 1.0}) for value in values]
    model = torch.nn.Linear(1, 1)
    return TrainResult(status, records, model, len(values) + 0.5, None, {"fused": True})


def told(tmp_path, mode, best=None):
    """What a rank is given, as `GroupPoolActor.next_trial` does."""
    _, plan, _ = study_of("name: x")
    ordered = order(plan.trials[0], tmp_path, tmp_path / "t")
    ordered = replace(ordered, config=ordered.config.replace(metric_mode=mode))
    return NextTrial(sequence=1, attempt=1, best_score=best, order=ordered)


def test_the_last_word_on_a_training(tmp_path):
    gpus = (GpuState(rank=0, celsius=61),)
    assert last_post(told(tmp_path, "max"), trained(0.25, 0.75), gpus) == TrainingEnded(
        status="finished", score=0.75, lost_seconds=0.5, message=None, details={"fused": True}, gpus=gpus
    )
    assert last_post(told(tmp_path, "min"), trained(0.25, 0.75)).score == -0.75
    assert last_post(told(tmp_path, "max"), replace(trained(0.25), spent=True)).spent
    assert last_post(told(tmp_path, "max"), trained(0.25), code={"mine": "1"}).code == {"mine": "1"}


@pytest.mark.parametrize("value", [math.nan, {1, 2}, object()], ids=["nan", "set", "object"])
def test_a_detail_that_no_journal_can_hold_is_an_error_that_names_it(tmp_path, value):
    with pytest.raises(InputError, match=r"^details: rank: .* can't be written as JSON"):
        last_post(told(tmp_path, "max"), replace(trained(0.5), details={"shards": [1.0], "rank": value}))


@pytest.mark.parametrize(
    ("stop_at", "epochs", "status"), [(0.5, 2, "at_target"), (0.5, 10, "finished"), (None, 2, "finished")]
)
def test_a_training_that_ends_before_its_last_epoch_ended_at_its_target(tmp_path, stop_at, epochs, status):
    given = told(tmp_path, "max")
    given = replace(given, order=replace(given.order, stop_at=stop_at))
    assert last_post(given, trained(*[0.75] * epochs)).status == status
    assert last_post(given, trained(0.75, status="diverged")).status == "diverged"


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_a_training_stops_once_two_evaluations_in_a_row_meet_its_target(mode, sign):
    curve = {0.6: False, 0.4: False, math.nan: False, 0.5: False, 0.7: True}
    hook = target_hook(0.5 * sign, mode)
    trial = SimpleNamespace(progress=SimpleNamespace(records=[]), complete=False)
    for value, ends in curve.items():
        trial.progress.records.append(SimpleNamespace(test_metric=sign * value))
        hook.epoch_ends(trial, trial.progress.records[-1])
        assert trial.complete == ends
    resumed = SimpleNamespace(progress=trial.progress, complete=False)
    hook.train_starts(resumed)
    assert resumed.complete, "resumed after its end, it makes no more steps"


@pytest.mark.parametrize("values", [(), (1.0, math.nan), (math.inf,), (-math.inf,)])
def test_what_is_no_number_has_no_score_and_is_never_the_best(tmp_path, values):
    for mode in ("max", "min"):
        wanted = told(tmp_path, mode)
        assert last_post(wanted, trained(*values)).score is None
        save_if_best(wanted, trained(*values))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("mode", "best", "value", "saved"),
    [
        ("max", None, 0.1, True),
        ("max", 0.5, 0.6, True),
        ("max", 0.5, 0.5, False),
        ("max", 0.5, 0.4, False),
        ("min", None, 0.9, True),
        ("min", -0.5, 0.4, True),
        ("min", -0.5, 0.5, False),
        ("min", -0.5, 0.6, False),
    ],
)
def test_only_a_better_model_is_saved(tmp_path, mode, best, value, saved):
    save_if_best(told(tmp_path, mode, best), trained(value))
    assert (tmp_path / "t" / "model.pt").exists() == saved


AWAY = "hdfs://localhost:1/runs"


def test_a_trained_trial_does_not_fail_because_its_model_can_t_be_stored(tmp_path, caplog):
    given = told(tmp_path, "max")
    given = replace(given, order=replace(given.order, model_path=f"{AWAY}/model.pt"))
    save_if_best(given, trained(0.5))
    assert f"the model of {given.order.trial_id} is not kept: storage: {AWAY}" in caplog.text


def test_checkpoints_out_of_reach_are_the_storage_s_fault(tmp_path):
    sent = []
    client = SimpleNamespace(send=lambda sequence, post: sent.append(post), wait_for=lambda _sent: None)
    given = told(tmp_path, "max")
    given = replace(given, order=replace(given.order, checkpoints=AWAY))
    with pytest.raises(UnreachableError):
        train_trial(client, SimpleNamespace(rank=0), given, tmp_path / "logs", Pulse())
    (post,) = sent
    assert (post.kind, post.message.startswith("UnreachableError: storage: ")) == ("storage", True)
