"""A worker that takes too much memory and is killed for it, by the kernel or by Ray: a result. Needs root."""

import os
from contextlib import contextmanager
from pathlib import Path

import ray

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.groups.failures import KERNEL_KILL
from tests.support.groups import group_pool
from tests.support.studies import scalestudy, write_spec

EATS = "tests.support.faulty_models:EatsMemory"
MB = 2**20
CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def small_memory(pid, limit_bytes):
    """A control group with a limit, and one process in it; memory that the process has already counts elsewhere."""
    version_1 = CGROUPS / "memory"
    group = (version_1 if version_1.is_dir() else CGROUPS) / f"scalestudy-test-{os.getpid()}"
    group.mkdir()
    limit = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
    try:
        (group / limit).write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(left)
        group.rmdir()


def test_a_worker_that_the_kernel_kills_has_run_out_of_memory(ray_session, tmp_path):
    with group_pool(tmp_path) as pool:
        assert pool.train(2, epochs=1).status == "finished"
        members = ray.get(pool.actor.__ray_call__.remote(lambda actor: pids_of(actor)))
        with small_memory(members[1], 512 * MB):
            ended = pool.train(2, model=EATS, model_args={"megabytes": 2_000}, epochs=2)
        assert (ended.status, ended.attempts) == ("out_of_memory", 1)
        assert (ended.error.kind, ended.error.rank) == ("out_of_memory", 1)
        assert ended.error.message.startswith(KERNEL_KILL)
        assert pool.train(2, epochs=1).status == "finished", "the group serves again"


def pids_of(actor):
    """rank → process, of the only group."""
    (group,) = actor._pool.groups.values()
    return {rank: member.pid for rank, member in group.members.items()}


def test_a_worker_that_ray_kills_has_run_out_of_memory(tmp_path):
    """Ray's monitor kills where the machine's memory passes a threshold, here one that this study will pass."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
    total, available = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    threshold = f"{(total - available + 4_000 * MB) / total:.4f}"
    spec = write_spec(
        tmp_path,
        workload={"model": EATS, "model_args": {"megabytes": 6_000, "on_rank": 0}},
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1]},
    )
    done = scalestudy(
        "run", spec, "--address", "local", "--out", "out", cwd=tmp_path, RAY_memory_usage_threshold=threshold
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (trial,) = StudyFolder(tmp_path / "out").read_trials()
    assert (trial["status"], trial["attempts"], trial["error"]["kind"]) == ("out_of_memory", 1, "out_of_memory")
    assert "OutOfMemoryError" in trial["error"]["message"]
