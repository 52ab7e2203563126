"""`make bench`: what the product costs, beside its peers, in one run. Prints Markdown tables of medians.

1. The engine (`tests.bench.engine`): starts, warm trials, trials that do nothing, packing.
2. The same study by stock Ray, torchrun and Optuna (`tests.bench.compare_peers`, or `make bench-peers`).
3. Failures and tracking (`tests.bench.failures`): a killed worker, metrics to MLflow.
4. A large study's plan and report (`tests.bench.report`).
5. A study against PostgreSQL and S3 (`tests.bench.tracking`), where Debian's PostgreSQL is installed.
6. What the analysis finds of laws that are known (`tests.bench.laws`, `tests.bench.batch_law`,
   `tests.bench.beyond`, `tests.bench.worlds`), what its rule of choice is worth (`tests.bench.choice`) and the
   trainings that it lists as the next ones (`tests.bench.next_trainings`), and steps that others published
   (`tests.bench.rcp`); what is suspected in runs that others made (`tests.bench.judge`).
7. The training loop (`tests.bench.training`) and every gradient strategy (`tests.bench.sync`).
8. What an adaptive study recommends and costs, against a full grid, on 15 fresh seeds (`tests.bench.decision`). It
   takes some 65 minutes, so it runs only where it is named: `make bench BENCH=decision`. Cut off, the same command goes
   on.
9. What an adaptive search costs and finds in drawn worlds (`tests.bench.adaptive`): `make bench BENCH="adaptive
   adaptive-sure adaptive-others"`. With 1000 draws of each stratum it takes a day; SCALESTUDY_DRAWS=100 draws fewer.

Parts 7 and 8 read Fashion-MNIST from the folder that SCALESTUDY_DATA names, or where `scalestudy data fetch` has put
it. `--small` proves that all parts work.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from scalestudy.training.data import require
from tests.bench import (
    adaptive,
    batch_law,
    beyond,
    choice,
    compare_peers,
    decision,
    engine,
    failures,
    judge,
    laws,
    next_trainings,
    rcp,
    report,
    sync,
    tracking,
    training,
    worlds,
)
from tests.bench.tables import print_parts

PARTS = {
    **engine.PARTS,
    **compare_peers.PARTS,
    **failures.PARTS,
    **report.PARTS,
    **(tracking.PARTS if list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) else {}),
    **laws.PARTS,
    **batch_law.PARTS,
    **beyond.PARTS,
    **rcp.PARTS,
    **worlds.PARTS,
    **choice.PARTS,
    **next_trainings.PARTS,
    **judge.PARTS,
    **training.PARTS,
    **sync.PARTS,
}
NAMED = {**PARTS, **adaptive.PARTS, **decision.PARTS}


def main(arguments: list[str]) -> None:
    """Runs every measurement, or the named parts. Raises DataError where the data is not there."""
    if not arguments:
        require("fashion_mnist")  # now, and not after the first half hour
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores\n", flush=True)
    print_parts(NAMED if arguments else PARTS, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
