"""A worker's last word on a training, and by what it tells the best trial's model from the others."""

import math
import os
import queue
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.groups import worker
from scalestudy.orchestration.groups.events import EpochDone, GivenBack, RankFailed, Started, TrainingEnded
from scalestudy.orchestration.groups.failures import LONGEST_TRACEBACK
from scalestudy.orchestration.groups.model import NextTrial, TrialOrder
from scalestudy.orchestration.groups.worker import (
    failed_post,
    last_post,
    save_if_best,
    target_hook,
    train_trial,
)
from scalestudy.orchestration.study.trials import order
from scalestudy.training.config import TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.gpu_state import GpuState
from scalestudy.training.loop.train import TrainResult
from scalestudy.training.own_code import named_modules
from scalestudy.training.process_state import ALL, ProcessState
from scalestudy.training.pulse import Pulse
from scalestudy.training.records import EpochRecord
from scalestudy.training.settings import Settings
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
    assert first == Fingerprint.of_code(named_modules(config.to_dict())).digests(config.to_dict())
    assert first.keys() == {"worker_mine"}
    (tmp_path / "worker_glue.py").write_text("VALUE = 2\n")
    assert worker.code_of(config) == first
    assert Fingerprint.of_code(named_modules(config.to_dict())).digests(config.to_dict()) != first
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
        train_trial(client, SimpleNamespace(rank=0), given, ProcessState(), tmp_path / "logs", Pulse())
    (post,) = sent
    assert (post.kind, post.message.startswith("UnreachableError: storage: ")) == ("storage", True)


# --- a trial in a process ---------------------------------------------------------------------------------------------


class Pool:
    """A client that takes what a trial reports."""

    def __init__(self, posts):
        self.posts = posts

    def send(self, _sequence, post):
        self.posts.append(post)

    send_in_order = send

    def wait_for(self, _sent):
        pass

    def exit_asked(self, _mode, _sequence):
        return threading.Event()


CONFIG = {"model": "tests.support.user_models:linear", "data": "digits", "batch_size": 512, "learning_rate": 0.1}
HERE = Worker(rank=0, world_size=1, device=torch.device("cpu"), threads=1)


def posts_of(tmp_path, process=None, posts=None, **config):
    """Trains a trial in this process; returns what it reported, and what `train_trial` raised."""
    config = TrainConfig.from_dict({**CONFIG, "epochs": 1, **config})
    order = TrialOrder(trial_id="t1", num_workers=1, config=config)
    given = NextTrial(sequence=1, attempt=1, best_score=None, order=order)
    pool, raised = Pool([] if posts is None else posts), None
    try:
        train_trial(pool, HERE, given, process or ProcessState(), tmp_path, Pulse())
    except Exception as error:
        raised = error
    return pool.posts, raised


def trained_here(tmp_path, **config):
    """As `posts_of`, the last post alone."""
    posts, raised = posts_of(tmp_path, **config)
    return posts[-1], raised


QUITTING = "tests.support.quitting"
MESSAGES = {
    "exits": "SystemExit: the licence server is away",
    "exits_zero": "SystemExit: 0",
    "exits_none": "SystemExit",
    "interrupted": "KeyboardInterrupt: the licence server is away",
    "cancelled": "CancelledError: the licence server is away",
    "generator": "GeneratorExit: the licence server is away",
    "trio": "CancelledError: the licence server is away",
    "key": "KeyError: 'the licence server is away'",
    "mute": "MuteError: its text can't be made",
}
PARTS = {
    "model": {"model": f"{QUITTING}:model_built"},
    "forward": {"model": f"{QUITTING}:ModelForward"},
    "backward": {"model": f"{QUITTING}:ModelBackward"},
    "loss": {"loss": f"{QUITTING}:loss"},
    "metric": {"metric": f"{QUITTING}:metric"},
    "task": {"task": f"{QUITTING}:QuittingTask"},
    "optimizer": {"optimizer": {"name": f"{QUITTING}:Optimizer"}},
    "schedule": {"schedule": f"{QUITTING}:schedule"},
    "data": {"data": f"{QUITTING}:data_loaded"},
    "example": {"data": f"{QUITTING}:data_read", "batch_size": 16},
    "stream": {"data": f"{QUITTING}:data_streamed", "batch_size": 16, "epochs": None, "steps": 4},
    "collate": {"data": f"{QUITTING}:data_collated", "batch_size": 16},
}


def check_told(post, raised, quits):
    assert isinstance(raised, Exception), "Ray Train restarts the workers, as for any exception"
    assert (post.kind, post.message) == ("exception", MESSAGES[quits])
    assert "quitting.py" in post.traceback.rpartition("File ")[2], "the innermost frame is the user's"


@pytest.mark.parametrize("part", PARTS)
def test_code_that_exits_fails_its_trial_whichever_part_it_is(tmp_path, part):
    post, raised = trained_here(tmp_path, **PARTS[part])
    check_told(post, raised, "exits")


@pytest.mark.parametrize("quits", MESSAGES)
def test_whatever_code_raises_is_told_in_its_words(tmp_path, monkeypatch, quits):
    monkeypatch.setenv("QUITS", quits)
    check_told(*trained_here(tmp_path, **PARTS["loss"]), quits)


@pytest.mark.parametrize(
    ("part", "quits"), [("example", quits) for quits in MESSAGES] + [("stream", "exits"), ("collate", "exits")]
)
def test_a_loader_process_tells_what_ended_its_code(tmp_path, monkeypatch, part, quits):
    monkeypatch.setenv("QUITS", quits)
    post, raised = trained_here(tmp_path, **PARTS[part], loader={"workers": 1})
    check_told(post, raised, quits)
    assert "In a loader process:" in post.traceback


def dies(_outputs, _targets):
    os._exit(7)


def test_code_that_ends_its_process_at_once_is_told_before(tmp_path, monkeypatch):
    """A process that was forked, and another thread, tell nothing."""
    ended = []

    def ends(status):
        ended.append(status)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(status)  # as a process that is gone, this thread goes no further

    monkeypatch.setattr(os, "_exit", ends)
    posts, _ = posts_of(tmp_path, loss=f"{__name__}:dies")
    post = next(post for post in posts if isinstance(post, RankFailed))
    assert (post.kind, post.message) == ("exception", "RuntimeError: os._exit(7) ended the process")
    assert post.traceback.rpartition("File ")[2].strip().endswith("os._exit(7)")
    assert (ended, os._exit) == ([7], ends)
    told = []
    with worker.exits_told(told.append):
        other = threading.Thread(target=os._exit, args=(3,))
        other.start()
        other.join()
    assert (ended, told) == ([7, 3], [])


class Exhausted(torch.utils.data.Dataset):
    """Its last example asks an iterator that is at its end."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.zeros(1, 28, 28), 1 if index != 21 else next(iter(()))


def exhausted(_root):
    return Splits.from_datasets(Exhausted(), Exhausted(), num_classes=10)


@pytest.mark.parametrize("loader", [0, 1])
def test_a_data_set_that_raises_stop_iteration_does_not_end_the_reading(tmp_path, loader):
    post, _ = trained_here(tmp_path, data=f"{__name__}:exhausted", batch_size=16, loader={"workers": loader})
    assert post.message == "RuntimeError: the data set raised StopIteration"
    assert "next(iter(()))" in post.traceback


def raises_as_ray(_outputs, _targets):
    """Ends as a worker that Ray has ended: the code that raises is Ray's."""
    exec(compile("raise SystemExit('the worker exits')", "worker.py", "exec"), {"__name__": "ray._private.worker"})


def test_what_ray_raises_to_end_a_worker_is_no_report(tmp_path):
    posts = []
    with pytest.raises(SystemExit, match="the worker exits"):
        posts_of(tmp_path, posts=posts, loss=f"{__name__}:raises_as_ray")
    assert [type(post) for post in posts] == [Started]


WARM = "tests.unit.orchestration.groups.keeping"


def losses(tmp_path, process, **config):
    posts, raised = posts_of(tmp_path, process=process, **config)
    assert raised is None
    return [(post.record.train_loss, post.record.test_loss) for post in posts if isinstance(post, EpochDone)]


@pytest.mark.filterwarnings("ignore:an ordinary warning")
@pytest.mark.parametrize(
    "what", ["dtype", "precision", "deterministic", "folder", "numpy", "warnings", "environment", "hook", "inputs"]
)
def test_a_trial_is_the_same_after_one_whose_code_sets_something(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    alone = losses(tmp_path, ProcessState(), model=f"{WARM}:Plain")
    process, settings = ProcessState(), Settings(ALL)
    try:
        losses(tmp_path, process, model=f"{WARM}:Setting", model_args={"what": what})
        assert losses(tmp_path, process, model=f"{WARM}:Plain") == alone
    finally:
        settings.put_back()
    assert len(alone) == 1


def test_what_loading_the_data_has_set_holds_in_each_trial_though_they_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process, own = ProcessState(), {"data": f"{WARM}:load_elsewhere", "model": f"{WARM}:Elsewhere"}
    first = losses(tmp_path, process, **own)
    assert losses(tmp_path, process, **own) == first != []
    process.begin()
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109


def test_a_default_dtype_set_at_module_level_holds_in_every_trial(tmp_path):
    settings, module = Settings(ALL), "tests.unit.orchestration.groups.in_float64"
    process = ProcessState([module])
    try:
        found = [losses(tmp_path, process, model=f"{module}:Net") for _ in range(3)]
    finally:
        settings.put_back()
        sys.modules.pop(module)
    assert found[0] == found[1] == found[2] != []


def test_a_trial_that_would_go_on_with_another_s_weights_is_given_back(tmp_path):
    process = ProcessState()
    assert losses(tmp_path, process, model=f"{WARM}:cached")
    posts, raised = posts_of(tmp_path, process=process, model=f"{WARM}:cached", learning_rate=0.05)
    assert (posts, raised) == ([GivenBack(why="the model's 0.1.weight was trained by an earlier trial")], None)


def test_all_ranks_give_a_trial_back_that_one_of_them_would_train_differently(ranks):
    assert ranks.run(2, _given_back) == ["the model's weight was trained by an earlier trial"] * 2


def _given_back(here):
    process, kept = ProcessState(), torch.nn.Linear(2, 2)
    said = []
    for _ in range(2):
        hook = worker.fresh_hook(process, here)
        model = kept if here.rank == 1 else torch.nn.Linear(2, 2)
        try:
            hook.train_starts(SimpleNamespace(model=model))
        except worker.NotFreshError as error:
            said.append(str(error))
    return said[0]
