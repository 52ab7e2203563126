"""`make chaos CHAOS="--raylets 4"`: a node of a cluster is lost in the middle of a study, and no trial with it.

A hundred small trials on raylets of two logical CPUs each, all on this machine: once in peace, once with SIGKILL for
the raylet of a node that trains. The outcomes are compared as in `tests.bench.chaos`: each trial and each epoch exactly
once, in trials.jsonl and in MLflow, losses and accuracies equal to the bit.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scalestudy import run_study
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.environment import Output
from tests.support.chaos_outcome import differences, outcome_of, tracking_differences
from tests.support.raylets import kill, raylets
from tests.support.studies import write_spec
from tests.support.tables import table

SLOTS = 2
RATES = [0.05, 0.1, 0.15, 0.2, 0.25]
HEADER = [
    "raylets",
    "trials",
    "lost in the middle",
    "of them begun anew",
    "finished",
    "wall in peace, s",
    "wall, s",
    "outcome",
]
KILLED_AFTER = 0.3
"""Share of the trials that have ended when the node is lost."""


def main(path: Path, count: int, trials: int) -> int:
    """Runs both studies in a folder and prints a table; 0 when the outcome was as it must be."""
    path.mkdir(parents=True, exist_ok=True)
    os.chdir(path)
    with Output() as output, raylets(SLOTS, [{}] * (count - 1)) as others:
        output.keep_in(path / "studies.log")
        spec = write_spec(path, **_sections(path, trials))
        peace, calm_seconds = _timed(spec, path / "peace")
        expected = outcome_of(peace)
        lost = Loss(path / "loss", others, round(KILLED_AFTER * len(expected.trials)))
        lost.start()
        disturbed, seconds = _timed(spec, path / "loss")
        lost.stop()
        problems = [
            *([] if lost.killed else ["no node was killed"]),
            *differences(expected, outcome_of(disturbed), raised=0),
        ]
        problems += tracking_differences(f"sqlite:///{path / 'mlflow.db'}", disturbed)
        ended = disturbed.read_trials()
        hit = [trial for trial in ended if any(failure["kind"] == "node_lost" for failure in trial.get("failures", ()))]
        statuses = Counter(trial["status"] for trial in ended)
        counts = [
            count,
            len(expected.trials),
            len(hit),
            sum(trial["attempts"] > 1 for trial in hit),
            statuses["finished"],
        ]
        row = [*map(str, counts), f"{calm_seconds:.0f}", f"{seconds:.0f}", "; ".join(problems) or "equal"]
        print(table(HEADER, [row]), file=output.screen, flush=True)
    return 1 if problems else 0


def _sections(path: Path, trials: int) -> dict[str, Any]:
    seeds = list(range(max(1, trials // (2 * len(RATES)))))
    return {
        "sweep": {"num_gpus": [1, 2], "batch_size": [256], "learning_rate": RATES, "seed": seeds},
        "resources": {"oversubscribe": True, "exclusive": False},
        "targets": {},
        "tracking": {"uri": f"sqlite:///{path / 'mlflow.db'}"},
    }


def _timed(spec: Path, out: Path) -> tuple[StudyFolder, float]:
    begun = time.monotonic()
    done = run_study(spec, out=out)
    if done.broken:
        raise RuntimeError(f"{out}: {done.broken}")
    return StudyFolder(out), time.monotonic() - begun


class Loss(threading.Thread):
    """Kills the raylet of a node that trains, once so many trials of a study have ended."""

    def __init__(self, folder: Path, others: list[Any], after: int) -> None:
        super().__init__(daemon=True)
        self._journal, self._others, self._after = StudyFolder(folder).journal_folder, others, after
        self._ended = threading.Event()
        self.killed = False

    def run(self) -> None:
        """Watches the journal."""
        while not (self.killed or self._ended.wait(0.2)):
            entries = [*Journal(self._journal).entries()] if self._journal.exists() else []
            ended = {entry.trial_id for entry in entries if entry.type == "ended"}
            running = [entry for entry in entries if entry.type == "running" and entry.trial_id not in ended]
            if len(ended) >= self._after and running:
                self._strike({worker["node"] for worker in running[-1].event["world"]["workers"]})

    def stop(self) -> None:
        """The study is over."""
        self._ended.set()
        self.join()

    def _strike(self, used: set[str]) -> None:
        for victim in (node for node in self._others if node.node_id in used):
            kill(victim)
            self.killed = True
            return
