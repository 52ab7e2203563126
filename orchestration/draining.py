"""Stage 4, worker groups: how groups leave the nodes that are to go, as spot machines that are taken back.

Ray starts nothing new on such a node. What runs there is left alone until the node goes, so that there is time to write
a checkpoint: minutes, or half a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestration.ledger import Ledger


def leave_draining_nodes(books: Ledger) -> None:
    """Ends the groups that have workers on a node that drains, each as soon as it can.

    An idle one is told to end. One that starts is given up: its workers may never come. One that trains is asked to
    leave its trial with a checkpoint; without checkpoints it trains on, as its trial may end before the node goes, and
    would begin anew otherwise.
    """
    draining = {node.node_id for node in books.nodes if node.draining}
    for group in [group for group in books.groups.values() if group.slots.keys() & draining]:
        if group.state == "starting":
            group.stop(books.clock())
            books.give_up(group, "preempted")
        elif group.state == "idle":
            group.stop(books.clock())
        elif group.assignment and group.assignment.checkpointed:
            group.assignment.leaving = True
