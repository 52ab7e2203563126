"""What a group's Ray Train controller tells the pool of dead workers."""

import pytest
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from scalestudy.orchestration.groups.events import KillCount
from scalestudy.orchestration.groups.failures import KERNEL_KILL, Loss
from scalestudy.orchestration.groups.ray_train import GroupCallback, NotWantedError, cause_of, died, out_of_memory_kills
from tests.support.groups import wait_until

KILLED = WorkerHealthCheckFailedError("a worker health check failed", failure=OutOfMemoryError("low on memory"))
DIED = WorkerHealthCheckFailedError("a worker health check failed", failure=ActorDiedError())


def test_kills_by_the_memory_monitor_are_told_by_rank():
    errors = {0: RuntimeError("Connection closed by peer"), 1: KILLED, 2: DIED}
    assert out_of_memory_kills(errors) == {1: "OutOfMemoryError: low on memory"}
    assert died(errors) == {2}


def test_a_node_s_death_is_told_from_a_worker_s():
    assert cause_of({0: DIED, 1: ValueError("mine")}) == "worker_lost"
    gone = ActorDiedError()
    gone.error_msg = "The actor died because its node has died. Node Id: 1"
    assert cause_of({0: WorkerHealthCheckFailedError("m", failure=gone)}) == "node_lost"


def worker_lost(out_of_memory):
    """A loss in the controller's first life."""
    return Loss(incarnation="", cause="worker_lost", out_of_memory=out_of_memory)


@pytest.fixture(scope="module")
def pool(ray_session):
    class Pool:  # a local class, so that Ray's worker need not import this file
        """Answers the question whether a group is to start again."""

        async def answers(self, wanted, counts=None):
            self.wanted, self.counts, self.told = wanted, counts or {}, []

        async def kernel_kills(self, _group_id):
            return self.counts

        async def workers_lost(self, group_id, loss):
            self.told.append((group_id, loss))
            return self.wanted

        async def heard(self):
            return self.told

    return ray.remote(Pool).options(num_cpus=0).remote()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_group_that_is_not_wanted_is_not_started_again(pool, wanted):
    ray.get(pool.answers.remote(wanted))
    watch = GroupCallback(pool, "group-1-of-2")
    if wanted:
        watch.after_exception(None, {1: KILLED})
    else:
        with pytest.raises(NotWantedError, match="group-1-of-2 was ordered to end"):
            watch.after_exception(None, {1: KILLED})
    assert ray.get(pool.heard.remote()) == [("group-1-of-2", worker_lost({1: "OutOfMemoryError: low on memory"}))]


@pytest.mark.parametrize("place", ["this node", "a node that is gone"])
def test_the_kernel_s_count_of_a_dead_worker_s_node_is_looked_at(pool, tmp_path, place):
    """Of rank 2 only, whose process is gone; a node that is gone gives no evidence."""
    (tmp_path / "events").write_text("oom_kill 3\n")
    node = ray.get_runtime_context().get_node_id() if place == "this node" else "a" * 56
    counts = {rank: KillCount(node=node, file=str(tmp_path / "events"), kills=2) for rank in range(3)}
    ray.get(pool.answers.remote(True, counts))
    watch = GroupCallback(pool, "group-1-of-3")
    watch.after_exception(None, {0: RuntimeError("Connection closed by peer"), 2: DIED})
    expected = {2: KERNEL_KILL} if place == "this node" else {}
    assert ray.get(pool.heard.remote()) == [("group-1-of-3", worker_lost(expected))]


def test_without_pool_no_group_is_started_again(pool):
    ray.get(pool.answers.remote(True))
    ray.kill(pool)
    wait_until(lambda: is_dead(pool), 20)
    with pytest.raises(ActorDiedError):
        GroupCallback(pool, "group-1-of-2").after_exception(None, {0: DIED})


def is_dead(actor):
    try:
        ray.get(actor.heard.remote())
    except ActorDiedError:
        return True
    return False
