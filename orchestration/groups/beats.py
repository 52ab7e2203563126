"""What the ranks' beats prove of a trial: that every process lives, and that the training advances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scalestudy.orchestration.groups.events import Beat, WorkerPost
from scalestudy.training.pulse import AT_A_REPORT, COUNTED


@dataclass
class Beats:
    """What each rank of a trial reported last, and when. All moments are the pool's, by its limits' clock.

    A beat proves only that its process lives: a rank that waits in a collective for ever goes on beating. The training
    advances if on some rank a counter moves, the stage changes, or another kind of report comes. An activity without a
    counter (compilation, the user's code that loads data) may last as long as its trial may.
    """

    ranks: int
    began_at: float
    last: dict[int, Beat] = field(init=False, default_factory=dict)  # by rank
    heard_at: dict[int, float] = field(init=False)  # by rank
    moved_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.heard_at = dict.fromkeys(range(self.ranks), self.began_at)
        self.moved_at = self.began_at

    def take(self, rank: int, post: WorkerPost, now: float) -> None:
        """Take a rank's post. After a rank's last beat, earlier ones that arrive late change nothing."""
        self.heard_at[rank] = now
        if not isinstance(post, Beat):
            self.moved_at = now
            return
        last = self.last.get(rank)
        if last is not None and last.activity == "ended":
            return
        self.last[rank] = post
        if last is None or (post.stage, post.count) != (last.stage, last.count):
            self.moved_at = now

    def stall(self, now: float, patience: float, *, wanted: bool) -> str | None:
        """Return what is wrong, in words, once a rank is silent, or all stand still, for over `patience` seconds.

        wanted: whether somebody waits for the trial's end. Otherwise an activity without a counter gets no more time
        than any other.
        """
        there = [rank for rank in range(self.ranks) if not self._has_ended(rank)]
        if there:
            rank = min(there, key=lambda each: self.heard_at[each])
            silent = now - self.heard_at[rank]
            if silent > patience:
                return f"rank {rank} sent nothing for {silent:.0f} s{self._doing(rank, ', last while ')}"
        still = now - self.moved_at
        if still <= patience:
            return None
        if wanted and any(rank in self.last and self.last[rank].activity not in COUNTED for rank in there):
            return None
        return f"no progress for {still:.0f} s{self._doing(there[0], ' while ') if there else ''}"

    def at_last(self) -> str:
        """Return what the first rank that has not ended does, as the end of a sentence; "": nothing is known.

        Where ranks wait at a report of a user's loop, return which, and for which others.
        """
        waiting = [rank for rank, beat in sorted(self.last.items()) if beat.activity == AT_A_REPORT]
        others = [rank for rank in range(self.ranks) if rank not in waiting]
        if waiting and others:
            return f", while {_ranks(waiting)} waited at a report that {_ranks(others)} had not made"
        return next((self._doing(rank, ", last while ") for rank in range(self.ranks) if not self._has_ended(rank)), "")

    def _has_ended(self, rank: int) -> bool:
        return rank in self.last and self.last[rank].activity == "ended"

    def _doing(self, rank: int, joint: str) -> str:
        beat = self.last.get(rank)
        if beat is None or beat.activity == "ended":
            return ""
        if beat.activity not in COUNTED:
            return f"{joint}{beat.activity}, for {beat.seconds:.0f} s"
        one, several = COUNTED[beat.activity]
        return f"{joint}{beat.activity}, after {beat.count} {one if beat.count == 1 else several}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
