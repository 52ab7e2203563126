"""Studies that are kept in a bucket, without a cluster: copies, locks, refusals, and uploads that are cut short."""

import json
import os
import signal
import subprocess
import sys

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import cli, doctor
from scalestudy.orchestration.commands.earlier import earlier_timings
from scalestudy.orchestration.commands.studies import named_study
from scalestudy.orchestration.commands.study_commands import rebuild_report, status_of
from scalestudy.orchestration.commands.watch import WatchedStudy
from scalestudy.orchestration.groups.events import EpochDone, Running, to_plain
from scalestudy.orchestration.storage import lock as locks
from scalestudy.orchestration.storage.arrow_store import ArrowByteStore
from scalestudy.orchestration.storage.lock import lock_of
from scalestudy.orchestration.study.folders import open_folder, read_spec
from scalestudy.orchestration.study.opening import open_extended, open_new, open_resumed
from scalestudy.training.checkpoint.files import latest
from tests.support.epochs import epoch_of
from tests.support.groups import wait_until
from tests.support.in_process import scalestudy
from tests.support.object_store import KEYS, ObjectStore
from tests.support.ports import free_port
from tests.support.report_pages import Page
from tests.support.studies import REPOSITORY, complaint, environment, left_behind, write_spec
from tests.support.synthetic_studies import study_of
from tests.support.training.checkpoints import LENET, save

SWEEP = {"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1, 0.2]}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    store = ObjectStore(tmp_path_factory.mktemp("store"))
    yield store
    store.stop()


@pytest.fixture(autouse=True)
def _keys(monkeypatch, tmp_path):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))


@pytest.fixture
def opened(bucket, tmp_path):
    """A study of which one trial has ended, and one has begun; its driver is gone."""
    spec = read_spec(write_spec(tmp_path, sweep=SWEEP, storage=bucket.uri(tmp_path.name)))
    opened = open_new(spec, None)
    opened.write()
    text = (tmp_path / "study.yaml").read_text()
    _, _, trials = study_of(text)
    journal = Journal(opened.folder.journal_folder, share=opened.folder.share_new)
    journal.append("", {"type": "study", "state": "started"})
    journal.append(trials[0]["trial_id"], {"type": "ended", **trials[0]})
    journal.append(trials[1]["trial_id"], to_plain(Running(attempt=1)))
    return opened


def prefix_of(opened, tmp_path):
    return f"{tmp_path.name}/{opened.study_id}"


def test_every_file_that_counts_is_an_object_by_the_time_it_is_a_file(bucket, opened, tmp_path):
    folder, prefix = opened.folder, prefix_of(opened, tmp_path)
    assert folder.address == bucket.uri(prefix)
    files = [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()]
    assert bucket.names(prefix + "/") == sorted(f"{prefix}/{name}" for name in files)
    assert "journal/00000003.json" in files
    for name in files:
        assert bucket.read(f"{prefix}/{name}") == (folder.path / name).read_bytes()


def test_a_study_goes_on_from_the_bucket_alone(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "another machine"))
    found = open_resumed(opened.folder.address)
    assert (found.plan, found.spec, found.study_id) == (opened.plan, opened.spec, opened.study_id)
    assert (len(found.history.ended), len(found.history.open)) == (1, 1)
    assert len(found.folder.read_trials()) == 1  # from the journal: the bucket had no trials.jsonl yet
    assert found.folder.path.is_relative_to(tmp_path / "another machine" / "work")
    opened.folder.write_text(opened.folder.spec_file, opened.spec.to_yaml() + "\n")
    with pytest.raises(RequestError, match=r"DIR: s3://.*/spec.yaml\?.*: was edited since"):
        open_resumed(opened.folder.address)


def test_what_the_bucket_has_not_is_not_in_the_copy(opened):
    """A driver whose write was refused has it on its own disk at most."""
    late = opened.folder.journal_folder / "00000004.json"
    late.write_bytes((opened.folder.journal_folder / "00000003.json").read_bytes())
    assert Journal(open_resumed(opened.folder.address).folder.journal_folder).last_number == 3
    assert not late.exists()


def test_an_entry_of_another_machine_is_never_overwritten(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "another machine"))
    other = open_resumed(opened.folder.address).folder
    Journal(other.journal_folder, share=other.share_new).append("", {"type": "study", "state": "resumed"})
    mine = Journal(opened.folder.journal_folder, share=opened.folder.share_new)
    with pytest.raises(FileExistsError):
        mine.append("", {"type": "study", "state": "stopped"})
    assert mine.last_number == 3
    assert len(list(opened.folder.journal_folder.iterdir())) == 3


def test_looking_at_a_study_leaves_the_copy_of_its_driver_alone(opened):
    before = {path: path.stat().st_mtime_ns for path in opened.folder.path.rglob("*")}
    seen = status_of(opened.folder.address)
    assert (seen.state, seen.trials["planned"], seen.folder) == ("interrupted", 2, opened.folder.address)
    report = rebuild_report(opened.folder.address)
    assert not report.is_relative_to(opened.folder.path)
    assert {path: path.stat().st_mtime_ns for path in opened.folder.path.rglob("*")} == before


def test_a_study_of_a_bucket_is_watched_from_its_journal(opened, tmp_path):
    study = WatchedStudy(opened.folder.address)
    study.write_page()
    page = Page(study.page.read_text("utf-8")).shown
    assert "1/2 trials" in page
    (name,) = (each.trial.name for each in study.progress.running.values())
    assert f"{name}: epoch 0 of " in page
    assert study.page.is_relative_to(tmp_path / "home" / "live")
    (trial,) = study.progress.running
    journal = Journal(opened.folder.journal_folder, share=opened.folder.share_new)
    journal.append(trial, to_plain(EpochDone(record=epoch_of(1))))
    assert study.look()
    study.write_page()
    assert f"{name}: epoch 1 of " in Page(study.page.read_text("utf-8")).shown
    assert not study.look()


def test_a_study_of_a_bucket_grows(opened, tmp_path):
    more = read_spec(write_spec(tmp_path, "more.yaml", sweep={**SWEEP, "learning_rate": [0.1, 0.2, 0.4]}))
    grown = open_extended(more, opened.folder.address)
    grown.write()
    assert len(open_resumed(opened.folder.address).trials) == 3


def test_a_report_goes_to_the_bucket(bucket, opened, tmp_path):
    report = rebuild_report(opened.folder.address)
    prefix = prefix_of(opened, tmp_path)
    assert bucket.read(f"{prefix}/report.html") == report.read_bytes()
    summary = json.loads(bucket.read(f"{prefix}/summary.json"))
    assert summary["trials"]["finished"] == 1


def test_a_copy_is_fetched_once(opened, monkeypatch):
    open_folder(opened.folder.address)
    fetched = []
    read = ArrowByteStore.read
    monkeypatch.setattr(ArrowByteStore, "read", lambda store, name: fetched.append(name) or read(store, name))
    open_folder(opened.folder.address)
    assert fetched == ["plan.json"]  # whether it is a study
    opened.folder.share(opened.folder.driver_log)  # is not there
    opened.folder.write_text(opened.folder.cursor_file, "2")
    open_folder(opened.folder.address)
    assert fetched == ["plan.json", "plan.json", "spool/written"]


def test_a_plan_learns_from_the_studies_of_a_bucket(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # ./runs may have studies of the repository
    assert earlier_timings(opened.spec, opened.plan.trials, "cpu") == [[]]
    opened.folder.append_trial(next(iter(open_resumed(opened.folder.address).history.ended.values())))
    opened.folder.share(opened.folder.trials_file)
    ((timing,),) = earlier_timings(opened.spec, opened.plan.trials, "cpu")
    assert timing.source == opened.folder.address


def test_the_studies_of_a_bucket_are_listed_by_a_glimpse_of_each(bucket, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.01)
    storage = bucket.uri(tmp_path.name)
    done = scalestudy("list", "--storage", storage, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (plain,) = json.loads(done.stdout)
    assert (plain["folder"], plain["state"]) == (opened.folder.address, "interrupted")
    assert (plain["ended"], plain["planned"]) == (0, 2), "the bucket has no trials.jsonl yet"
    (copy,) = (tmp_path / "home" / "seen").iterdir()
    assert left_behind(copy) == ["journal", "journal/00000001.json", "journal/00000003.json", "plan.json", "spec.yaml"]
    with lock_of(opened.folder):
        assert "running" in scalestudy("list", "--storage", storage, cwd=tmp_path).stdout.splitlines()[1].split()


def test_the_latest_study_of_a_bucket(bucket, opened, tmp_path):
    uri = bucket.uri(f"{tmp_path.name}/latest")
    done = scalestudy("status", uri, "--json", cwd=tmp_path)
    assert done.stderr == f"latest: {opened.folder.address}\n"
    assert json.loads(done.stdout)["folder"] == opened.folder.address
    StudyFolder(tmp_path / "x", ArrowByteStore(uri)).write_bytes(tmp_path / "x" / "plan.json", b"{}")
    assert named_study(uri) == (uri, ""), "a study that is called so"


def test_places_of_a_bucket_that_have_no_study(bucket, refused, tmp_path):
    code, said = refused("report", bucket.uri("nothing/latest"))
    assert code == 2
    assert said.startswith(
        f"DIR: {bucket.uri('nothing/latest')}: there is no study in {bucket.uri('nothing')}; run one"
    )
    assert scalestudy("list", "--storage", bucket.uri("nothing"), "--json", cwd=tmp_path).stdout == "[]\n"
    for arguments in (("list", "--storage", bucket.uri("runs", "gone")), ("open", bucket.uri("runs/latest", "gone"))):
        code, said = refused(*arguments)
        assert code == 3
        assert "can't be read (no such bucket)" in said
    code, said = refused("list", "--storage", "s3://KEYID:s3/cr3t@studies/runs")
    assert code == 2
    assert said.startswith("--storage: ")
    assert "cr3t" not in said


def test_a_report_of_a_bucket_is_opened_as_the_copy_on_this_machine(opened, refused, tmp_path):
    code, said = refused("open", opened.folder.address)
    assert code == 2
    assert f"DIR: {opened.folder.address}: has no report.html; " in said
    report = rebuild_report(opened.folder.address)
    done = scalestudy("open", opened.folder.address, cwd=tmp_path, BROWSER="true")
    assert (done.returncode, done.stdout) == (0, f"{report}\n")


def test_one_process_holds_the_lock_of_a_bucket(opened, monkeypatch):
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.01)
    with lock_of(opened.folder) as lock:
        assert lock.holder().pid == os.getpid()
        with pytest.raises(RequestError, match=rf"DIR: s3://.*: is being run by process {os.getpid()}"):
            lock_of(open_folder(opened.folder.address)).__enter__()


def test_of_two_that_take_a_lock_at_once_one_has_it(opened, monkeypatch):
    first, second = lock_of(opened.folder), lock_of(opened.folder)
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: second._renew())
    with pytest.raises(RequestError, match="another process has just taken it"):
        first.__enter__()
    assert second._is_ours()


def test_a_lock_that_is_given_back_leaves_nothing(bucket, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.01)
    before = bucket.names(prefix_of(opened, tmp_path) + "/")
    with lock_of(opened.folder):
        assert len(bucket.names(prefix_of(opened, tmp_path) + "/")) == len(before) + 1
    assert bucket.names(prefix_of(opened, tmp_path) + "/") == before


def test_a_study_that_is_refused_after_all_leaves_nothing(bucket, opened, tmp_path):
    (opened.folder.logs / "a.log").write_text("")
    opened.discard([])
    assert bucket.names(prefix_of(opened, tmp_path)) == []
    assert not opened.folder.path.exists()


UPLOAD = """
import sys
from scalestudy.orchestration.storage.arrow_store import ArrowByteStore
ArrowByteStore(sys.argv[1]).write("00000007/part-0.pt", bytes(400_000_000))
"""


def test_an_upload_that_is_killed_leaves_nothing_that_reads_as_whole(bucket, tmp_path):
    store = ArrowByteStore(bucket.uri(tmp_path.name))
    save(store, 6)
    before = store.names()
    writer = subprocess.Popen(
        [sys.executable, "-c", UPLOAD, bucket.uri(tmp_path.name)], cwd=REPOSITORY, env=environment(**KEYS)
    )
    try:
        wait_until(lambda: bucket.unfinished() or writer.poll() is not None, seconds=60)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(20)
    assert bucket.unfinished() == [f"{tmp_path.name}/00000007/part-0.pt"]
    assert store.names() == before
    with pytest.raises(FileNotFoundError):
        store.read("00000007/part-0.pt")
    assert latest(store, LENET).found.manifest.number == 6


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a command in this process, which says one line; returns exit status and line."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["scalestudy", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.command_line()
        printed = capsys.readouterr()
        assert printed.out == ""
        said = complaint(printed.err)
        assert len(said.splitlines()) == 1
        return end.value.code, said

    return run


def test_a_bucket_that_is_not_there(bucket, refused, tmp_path):
    missing = bucket.uri("runs", bucket="missing")
    code, said = refused("run", write_spec(tmp_path, sweep=SWEEP, storage=missing), "--address", "local")
    assert code == 3
    assert said.startswith(f"storage: {missing}: can't be written (no such bucket: ")
    assert "; make the bucket" in said
    for command in (("resume",), ("status",), ("report",), ("ui", "--sync")):
        code, said = refused(*command, missing)
        assert code == 3
        assert f"storage: {missing}: can't be read (no such bucket); make the bucket" in said
    assert left_behind(tmp_path) == ["study.yaml"]


def test_doctor_asks_the_bucket_too(bucket, tmp_path):
    spec = read_spec(write_spec(tmp_path, storage=bucket.uri("runs")))
    assert [finding.state for finding in doctor.storage(spec)] == ["ok"]
    spec = read_spec(write_spec(tmp_path, storage=bucket.uri("runs", bucket="missing")))
    (finding,) = doctor.safely("storage", lambda: doctor.storage(spec))
    assert finding.broken
    assert "no such bucket" in finding.text


def test_what_is_no_study_in_a_bucket(bucket, refused, tmp_path):
    for command in ("resume", "status", "report", "recommend"):
        code, said = refused(command, bucket.uri("nowhere"))
        assert code == 2
        assert said.startswith("DIR: s3://studies/nowhere")
        assert "no plan.json" in said
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_store_that_does_not_answer(refused, tmp_path):
    storage = f"s3://studies/runs?scheme=http&endpoint_override=127.0.0.1:{free_port()}"
    code, said = refused("run", write_spec(tmp_path, sweep=SWEEP, storage=storage))
    assert code == 3
    assert said.startswith(f"storage: {storage}: can't be written (network connection: ")
    assert left_behind(tmp_path) == ["study.yaml"]


@pytest.mark.parametrize("where", ["storage", "--out", "--set", "resume", "status"])
def test_credentials_in_an_address(refused, tmp_path, where):
    uri = "s3://KEYID:s3/cr3t@studies/runs?region=us-east-1"
    spec = write_spec(tmp_path, sweep=SWEEP, **({"storage": uri} if where == "storage" else {}))
    arguments = {"storage": (), "--out": ("--out", uri), "--set": ("--set", f"storage={uri}")}
    code, said = refused(*(("run", spec, *arguments[where]) if where in arguments else (where, uri)))
    assert code == 2
    assert "holds credentials" in said
    assert "cr3t" not in said
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said
    assert left_behind(tmp_path) == ["study.yaml"]


def test_out_names_a_place_that_is_taken(opened, refused):
    code, said = refused("run", "study.yaml", "--out", opened.folder.address)
    assert code == 2
    assert said.startswith(f"--out: {opened.folder.address}: is there already")


def test_a_folder_has_no_address_but_its_path(tmp_path):
    folder = StudyFolder(tmp_path)
    assert (folder.address, folder.place_of(folder.report_file)) == (str(tmp_path), str(tmp_path / "report.html"))
