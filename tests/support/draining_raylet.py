"""Runs trials on a cluster of three raylets of its own, has Ray drain one of them, and prints what came of the trials.

A program, because a process can be connected to one Ray only. Prints a line of JSON at its end.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.cluster.nodes import alive_nodes
from scalestudy.orchestration.groups.events import Retried, to_plain
from tests.support.groups import Pool, group_pool, losses, wait_until
from tests.support.ray_heads import drain
from tests.support.three_raylets import has_epoch, three_raylets

MODEL = "tests.support.user_models:Counts"
EPOCHS = 12
NOTICE_SECONDS = 120  # far longer than the test takes: what leaves does so for the notice, not for the end


def passes(file: Path) -> list[int]:
    """Forward passes that rank 0 of each attempt has made in training, attempts in their order."""
    return list(Counter(file.read_text(encoding="utf-8").split()).values())


def preemption(pool: Pool, others: list[Any], folder: Path) -> dict[str, Any]:
    """A trial of three workers in the middle of which a node drains, and one that comes after it."""
    import ray

    counts = {name: folder / f"passes-{name}" for name in ("plain", "hit")}
    plain = pool.train(3, model=MODEL, epochs=EPOCHS, model_args={"file": str(counts["plain"])})
    args = {"file": str(counts["hit"]), "seconds": 0.1}
    hit = pool.request(3, folder / "checkpoints", model=MODEL, epochs=EPOCHS, model_args=args)
    running = pool.events(hit, until=has_epoch(3))[0]
    used = [worker.node for worker in running.world.workers]
    drained = next(node.node_id for node in others if node.node_id in used)
    drain(ray.get_runtime_context().gcs_address, drained, NOTICE_SECONDS)
    events = pool.events(hit, until=lambda event: isinstance(event, Retried))
    ended = pool.end_of(hit)
    later = pool.train(3, model=MODEL, epochs=1, model_args={"file": str(folder / "passes-later")})
    wait_until(lambda: drained not in [node.node_id for node in alive_nodes()], seconds=90)
    return {
        "plain": plain.to_facts(),
        "hit": ended.to_facts(),
        "retry": to_plain(events[-1]),
        "before": used,
        "drained": drained,
        "later": later.to_facts(),
        "same": losses(ended) == losses(plain),
        "passes": {name: passes(file) for name, file in counts.items()},
        "pool": pool.look(),
    }


def main() -> None:
    """Everything."""
    prepare_environment()
    with three_raylets() as others, tempfile.TemporaryDirectory() as folder:
        with group_pool(Path(folder), stalled_seconds=30.0, timeout_seconds=30.0) as pool:
            found = preemption(pool, others, Path(folder))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
