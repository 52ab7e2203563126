"""A study's progress in Prometheus's format, by a real Ray; and the values, by its state."""

import re

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.groups.events import Running
from scalestudy.orchestration.groups.model import GroupSnapshot, PoolSnapshot
from scalestudy.orchestration.progress.metrics import GAUGES, ProgressMetrics, busy_share, gauged
from scalestudy.orchestration.progress.progress import StudyProgress
from tests.support.gauges import gauge_lines
from tests.support.groups import wait_until
from tests.support.synthetic_studies import spec_of
from tests.unit.orchestration.progress.test_progress import ended, epoch

PLAN = make_plan(spec_of("name: s\nsweep: {num_gpus: [1, 2], batch_size: [64], learning_rate: [0.1, 0.2]}\n"))


def group(trial, nodes):
    return GroupSnapshot(
        group_id="g", num_workers=sum(nodes.values()), state="busy", trial=trial, served=0, nodes=nodes
    )


def pool(room, *groups):
    return PoolSnapshot(groups=groups, requests=(), waiting=(), room=room, evictions=0, cold_starts={})


POOL = pool({"a": 2, "b": 2}, group("t", {"a": 2, "b": 1}), group(None, {"b": 1}))


def progress():
    """Of four trials one has ended, and one is in its second epoch."""
    found = StudyProgress(PLAN.by_id())
    first, second = list(found.trials)[:2]
    found.take(first, ended("diverged"))
    found.take(second, Running(attempt=1))
    for number, rate in enumerate([900.0, 1000.0], start=1):
        found.take(second, epoch(number, rate=rate))
    return found


def test_what_the_gauges_say():
    values = {(each.name.removeprefix("scalestudy_"), each.status): each.value for each in gauged(progress(), POOL, 7)}
    assert values == {
        ("trials", "waiting"): 2,
        ("trials", "running"): 1,
        ("trials", "diverged"): 1,
        ("samples_per_second", ""): 1000.0,
        ("busy_workers", ""): 0.75,
        ("tracking_backlog", ""): 7,
    }
    assert {each.name for each in gauged(progress(), None, 0)} == GAUGES.keys()


def test_without_a_pool_or_room_nobody_is_busy():
    assert busy_share(None) == 0
    assert busy_share(pool({})) == 0


def test_prometheus_can_read_them_from_the_nodes_agent(ray_session):
    with ProgressMetrics("of-the-test", progress(), lambda: POOL, lambda: 7):
        found = wait_until(lambda: seen if len(seen := gauge_lines("of-the-test")) >= 6 else None, 90)
    by_name = {(line.partition("{")[0], re.search(r'status="(\w*)"', line)[1]): line.split()[-1] for line in found}
    assert float(by_name[("ray_scalestudy_trials", "running")]) == 1
    assert float(by_name[("ray_scalestudy_busy_workers", "")]) == 0.75
    assert float(by_name[("ray_scalestudy_tracking_backlog", "")]) == 7


def test_a_study_goes_on_without_its_gauges():
    """A pool that can't be asked costs nothing but the metrics."""

    def broken():
        raise RuntimeError("no pool")

    with ProgressMetrics("of-another-test", progress(), broken, lambda: 0):
        pass
