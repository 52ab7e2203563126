"""What an engine takes from a spec."""

import pytest

from scalestudy.experiments.spec.sections import Limits
from scalestudy.orchestration.study.engine import DAY, collective_seconds


@pytest.mark.parametrize(
    ("minutes", "stalled", "seconds"), [(60.0, 120.0, 3600.0), (0.1, 120.0, 120.0), (1e12, 120.0, DAY)]
)
def test_a_rank_waits_for_another_as_long_as_that_may_load_or_write(minutes, stalled, seconds):
    assert collective_seconds(Limits(trial_minutes=minutes, stalled_seconds=stalled)) == seconds
