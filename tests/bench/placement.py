"""`make bench BENCH=placement`: which trials span nodes, and how long a study takes, by `pack` and the rule before it.

Studies are simulated by the engine's own decisions (`schedule.simulate`), on nodes of eight slots. Their trials take 5
to 60 seconds, and starts and ends of groups take what was measured. It needs no cluster and takes seconds.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from pathlib import Path

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.placement import Placement
from scalestudy.orchestration.study.schedule import Costs, Room, Work, simulate
from tests.support.tables import Part, Rows, print_parts

SLOTS = 8
MIXES = ((1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 8))
ORDERS = ("by size", "random")
TRIALS_OF_A_SIZE = 40
STUDIES = 10
"""Of each row; its figures are means over them."""


def placement(folder: Path, *, small: bool = False) -> Rows:
    """A row for each number of nodes, mix of sizes, order, and whether trials run alone on a machine."""
    rows = []
    for exclusive, nodes, sizes, order in itertools.product((False, True), (2, 4), MIXES, ORDERS):
        shares, waits = [], []
        for rule in ("emptiest", "pack"):
            studies = [_study(nodes, sizes, order, exclusive, rule, seed) for seed in range(2 if small else STUDIES)]
            shares.append(f"{statistics.fmean(share for share, _ in studies):.0%}")
            waits.append(f"{statistics.fmean(wait for _, wait in studies):.2f}")
        sharing = "alone" if exclusive else "side by side"
        rows.append([sharing, str(nodes), ", ".join(map(str, sizes)), order, *shares, *waits])
    return rows


def _study(
    nodes: int, sizes: tuple[int, ...], order: str, exclusive: bool, rule: Placement, seed: int
) -> tuple[float, float]:
    """The share that spans of the trials with several workers that one node can hold; makespan over lower bound."""
    chance = random.Random(seed)
    trials = [(size, chance.uniform(5.0, 60.0)) for size in sizes for _ in range(TRIALS_OF_A_SIZE)]
    if order == "random":
        chance.shuffle(trials)
    works = [
        Work(trial_id=str(number), num_workers=size, duration=seconds) for number, (size, seconds) in enumerate(trials)
    ]
    room = Room(
        nodes=tuple(Node(node_id=str(number), slots=SLOTS) for number in range(nodes)),
        exclusive=exclusive,
        trials_per_group=200,
        placement=rule,
    )
    schedule = simulate(works, room, Costs())
    several = sum(1 < size <= SLOTS for size, _ in trials)
    spanning = sum(group.served for group in schedule.groups if group.nodes > 1 and group.num_workers <= SLOTS)
    return spanning / several, schedule.makespan / schedule.lower_bound


HEADER = [
    "trials run",
    "nodes",
    "workers",
    "order",
    "span before",
    "span",
    "makespan ÷ bound before",
    "makespan ÷ bound",
]
PARTS = {"placement": Part("Trials that span nodes of eight, though one could hold them", HEADER, placement)}

if __name__ == "__main__":
    print_parts(PARTS, sys.argv[1:])
