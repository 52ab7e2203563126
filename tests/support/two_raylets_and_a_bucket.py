"""Runs a study that is kept in a bucket on a cluster of two raylets of its own.

A program, because a process can be connected to one Ray only. Takes a folder and the URI of the storage; prints a line
of JSON at its end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from scalestudy.orchestration.base.environment import prepare_environment
from tests.support.raylets import raylets
from tests.support.studies import write_spec

SWEEP = {"num_gpus": [2], "batch_size": [256], "learning_rate": [0.1]}


def main(place: Path, storage: str) -> None:
    """A trial of two workers, one on each node."""
    prepare_environment()
    os.chdir(place)
    from scalestudy import run_study
    from scalestudy.experiments.study.folder import StudyFolder

    with raylets(1, [{}]):
        done = run_study(write_spec(place, sweep=SWEEP, train={"epochs": 3}, storage=storage))
        found = {"exit_code": done.exit_code, "broken": done.broken, "trials": StudyFolder(done.folder).read_trials()}
        print(json.dumps({**found, "address": done.address}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
