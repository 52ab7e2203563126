"""Runs trials on a cluster of three raylets of its own, kills one of them, and prints what came of the trials.

A program, because a process can be connected to one Ray only. Prints a line of JSON at its end.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.node_checks import check_versions
from scalestudy.orchestration.cluster.nodes import ClusterNode, alive_nodes
from scalestudy.orchestration.groups.events import EpochDone, Retried
from tests.support.groups import Pool, group_pool, losses
from tests.support.raylets import kill, raylets

SLOTS = 2
EPOCHS = 10
TRIAL = {"model": "tests.support.user_models:Slow", "epochs": EPOCHS}


def other_torch(folder: Path) -> dict[str, str]:
    """Variables by which a node's processes find another version of PyTorch, by its metadata alone."""
    metadata = folder / "old" / "torch-1.13.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.13.0\n", encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder / "old"), os.environ.get("PYTHONPATH", "")])}


def refusal(nodes: Sequence[ClusterNode]) -> str:
    """What is said of the nodes' packages; "": nothing."""
    try:
        check_versions(nodes)
    except RequestError as error:
        return error.problem
    return ""


@contextmanager
def three_raylets() -> Iterator[list[Any]]:
    """A head and two more nodes, the second with another PyTorch by its metadata; yields the two."""
    with tempfile.TemporaryDirectory() as folder, raylets(SLOTS, [{}, other_torch(Path(folder))]) as others:
        yield others


def has_epoch(number: int) -> Any:
    return lambda event: isinstance(event, EpochDone) and event.record.epoch == number


def kill_a_node_of(pool: Pool, trial_id: str, others: list[Any]) -> None:
    """SIGKILL for the raylet of a node that has workers of the trial."""
    running = pool.events(trial_id, until=has_epoch(3))[0]
    used = {worker.node for worker in running.world.workers}
    victim = next(node for node in others if node.node_id in used)
    kill(victim)


def node_loss(pool: Pool, others: list[Any], folder: Path) -> dict[str, Any]:
    """A trial of three workers loses a node; one of five has no room any more; one of two still runs."""
    plain = pool.train(3, **{**TRIAL, "model_args": {"seconds": 0.0}})
    # the seven epochs after the kill take some 10 s: Ray needs up to 4 to end the workers of a raylet that is gone
    hit = pool.request(3, folder / "checkpoints", **{**TRIAL, "model_args": {"seconds": 0.3}})
    kill_a_node_of(pool, hit, others)
    large = pool.request(5, **TRIAL)
    ended = pool.end_of(hit)
    small = pool.train(2, epochs=1)
    (put_off,) = pool.events(large, until=lambda event: isinstance(event, Retried))
    pool.release(large)
    return {
        "plain": plain.to_facts(),
        "hit": ended.to_facts(),
        "same": losses(ended) == losses(plain),
        "small": small.to_facts(),
        "put_off": asdict(put_off),
        "pool": pool.look(),
    }


def main() -> None:
    """Everything, and how long the end took."""
    prepare_environment()
    with three_raylets() as others, tempfile.TemporaryDirectory() as folder:
        nodes = alive_nodes()
        same = [node for node in nodes if node.node_id != others[1].node_id]
        versions = {"all": refusal(nodes), "same": refusal(same), "other": others[1].node_id}
        with group_pool(Path(folder), stalled_seconds=20.0, timeout_seconds=20.0) as pool:
            found = node_loss(pool, others, Path(folder))
            found["versions"] = versions
            ended_at = time.monotonic()
        print(json.dumps({**found, "closing_seconds": time.monotonic() - ended_at}), flush=True)


if __name__ == "__main__":
    main()
