"""What beats prove: that processes live, and that their training goes on."""

import pytest

from scalestudy.orchestration.groups.beats import Beats
from scalestudy.orchestration.groups.events import Beat, Started

PATIENCE = 120.0


class Ranks:
    """Ranks that beat every two seconds, each as it is told."""

    def __init__(self, count=2):
        self.now, self.beats = 50.0, Beats(count, began_at=50.0)

    def beat(self, seconds, doing):
        """So much passes; `doing` gives each rank's activity, stage and count, from the seconds since then."""
        for passed in range(2, round(seconds) + 1, 2):
            self.now += 2.0
            for rank, (activity, stage, count) in doing(passed).items():
                post = Beat(activity=activity, stage=stage, seconds=float(passed), count=count)
                self.beats.take(rank, post, self.now)
            if self.stall():
                return

    def stall(self, *, wanted=True):
        return self.beats.stall(self.now, PATIENCE, wanted=wanted)


@pytest.fixture
def ranks():
    return Ranks()


def test_an_evaluation_of_twenty_minutes_whose_batches_move_is_no_stall(ranks):
    ranks.beat(1200, lambda passed: dict.fromkeys((0, 1), ("evaluating", 2, passed // 60)))
    assert ranks.stall() is None


def test_it_is_enough_that_one_rank_moves(ranks):
    """Rank 0 has evaluated its part and waits in the collective for a slower one."""
    ranks.beat(600, lambda passed: {0: ("evaluating", 2, 5), 1: ("evaluating", 2, passed // 10)})
    assert ranks.stall() is None


def test_a_collective_that_hangs_while_beats_go_on_is_found(ranks):
    ranks.beat(20, lambda passed: dict.fromkeys((0, 1), ("evaluating", 2, 36 + passed // 20)))
    ranks.beat(600, lambda passed: dict.fromkeys((0, 1), ("evaluating", 2, 37)))
    assert ranks.now == 50 + 20 + PATIENCE + 2, "with the first look after its time"
    assert ranks.stall() == "no progress for 122 s while evaluating, after 37 batches"


def test_beats_that_stop_are_found_and_the_frozen_rank_is_named(ranks):
    ranks.beat(20, lambda passed: dict.fromkeys((0, 1), ("training", 1, 57)))
    ranks.beat(600, lambda passed: {0: ("training", 1, 58)})
    assert ranks.now == 50 + 20 + PATIENCE + 2
    assert ranks.stall() == "rank 1 sent nothing for 122 s, last while training, after 57 steps"


def test_beats_that_never_come_are_found(ranks):
    ranks.beat(600, lambda passed: {0: ("training", 1, passed)})
    assert ranks.stall() == "rank 1 sent nothing for 122 s"


@pytest.mark.parametrize("activity", ["loading", "compiling", "checkpointing"])
def test_an_activity_without_a_counter_has_its_trials_time_as_long_as_all_ranks_beat(ranks, activity):
    ranks.beat(3000, lambda passed: {0: (activity, 1, 0), 1: ("training", 1, 0)})
    assert ranks.stall() is None
    assert ranks.beats.at_last() == f", last while {activity}, for 3000 s"
    ranks.beat(600, lambda passed: {1: ("training", 1, 0)})
    assert ranks.stall() == f"rank 0 sent nothing for 122 s, last while {activity}, for 3000 s"


def test_a_trial_that_nobody_waits_for_has_no_more_time_to_load_than_to_train(ranks):
    ranks.beat(PATIENCE + 4, lambda passed: dict.fromkeys((0, 1), ("loading", 1, 0)))
    assert ranks.stall(wanted=True) is None
    assert ranks.stall(wanted=False) == "no progress for 122 s while loading, for 124 s"


def test_another_stage_is_progress_with_an_equal_count(ranks):
    """Every epoch has one step, and no beat falls into its evaluation."""
    ranks.beat(600, lambda passed: dict.fromkeys((0, 1), ("training", passed // 60, 1)))
    assert ranks.stall() is None
    ranks.beat(600, lambda passed: dict.fromkeys((0, 1), ("training", 10, 1)))
    assert ranks.stall().endswith("while training, after 1 step")


def test_a_rank_that_has_ended_need_not_beat_even_if_an_earlier_beat_comes_late(ranks):
    """Rank 0 writes the model; the others are done."""
    ranks.beat(2, lambda passed: {0: ("checkpointing", 9, 0), 1: ("ended", 0, 0)})
    ranks.beat(2, lambda passed: {0: ("checkpointing", 9, 0), 1: ("training", 8, 3)})
    ranks.beat(600, lambda passed: {0: ("checkpointing", 9, 0)})
    assert ranks.stall() is None


def test_ranks_that_have_all_ended_and_said_nothing_more_are_found(ranks):
    ranks.beat(2, lambda passed: dict.fromkeys((0, 1), ("ended", 0, 0)))
    ranks.now += PATIENCE + 1
    assert ranks.stall() == "no progress for 121 s"


def test_a_word_of_another_kind_is_progress(ranks):
    ranks.beat(100, lambda passed: dict.fromkeys((0, 1), ("training", 1, 3)))
    ranks.beats.take(0, Started(resumed=True), ranks.now)
    ranks.beat(100, lambda passed: dict.fromkeys((0, 1), ("training", 1, 3)))
    assert ranks.stall() is None
