"""Which flags put timings in doubt."""

from scalestudy.experiments.plan.timing_flags import doubts

ALL = ["oversubscribed", "resumed", "shared_gpu", "shared_node", "starved", "throttled", "warm_up_included"]


def test_every_flag_that_this_version_writes_is_a_doubt_and_no_other_name_is():
    assert doubts(["of_tomorrow", *reversed(ALL)]) == ALL
    assert doubts(["of_tomorrow", ""]) == []
