"""The decision on drawn worlds whose truth is known: right, honest about its time, and near where it saves.

`make bench BENCH=worlds` says the same of every stratum, with hundreds of draws.
"""

import json
from dataclasses import replace
from functools import cache
from statistics import fmean, median

import numpy as np
import pytest

from scalestudy.experiments.analysis import recommend
from tests.bench.judging import Verdict, judged, middle, share
from tests.support.in_process import scalestudy
from tests.support.worlds import World

DRAWS = 20


@cache
def verdicts(noise: float, seeds: int, missing: float, bend: bool, draws: int) -> list[Verdict]:
    """Draws of a stratum."""

    def draw(generator: np.random.Generator) -> World:
        return World.draw(generator, noise=noise, seeds=seeds, missing=missing, bend=bend)

    return judged(16, range(draws), draw)


NOISY = (0.2, 1, 0.0, False, DRAWS)


@pytest.mark.parametrize(("by", "right"), [("right", True), ("of_cells", False)])
def test_the_fastest_cell_is_named_about_as_often_as_by_an_oracle(by, right):
    """The wrong law takes each cell's own median: of 20 draws it is as often right in fewer than one case of 20."""
    found = verdicts(*NOISY)
    named, oracle = (share(getattr(each, name) for each in found) for name in (by, "of_oracle"))
    assert (oracle - 0.1 <= named <= oracle + 0.13) == right


@pytest.mark.parametrize(
    ("noise", "seeds", "missing", "widest"),
    [(0.2, 1, 0.0, 1.8), (0.1, 3, 0.8, 1.45), pytest.param(0.05, 5, 0.0, 1.12, marks=pytest.mark.chaos)],
)
def test_the_fastest_cell_s_time_is_told(noise, seeds, missing, widest):
    found = verdicts(noise, seeds, missing, False, DRAWS if missing == 0.0 else 10)
    assert share(each.of_oracle for each in found) - 0.2 <= share(each.right for each in found)
    assert 0.92 <= middle(found) <= 1.06
    assert share(each.covered for each in found) >= 0.75
    assert 1.0 < median(each.width for each in found if each.width is not None) <= widest


def test_where_the_laws_do_not_hold_it_is_still_mostly_right():
    found = verdicts(0.1, 1, 0.0, True, 12)
    oracle = share(each.of_oracle for each in found)
    assert 0.75 * oracle <= share(each.right for each in found) <= min(1.0, oracle + 0.13)


def test_a_world_s_folder_is_an_ordinary_study(tmp_path):
    world = World.draw(np.random.default_rng(3), noise=0.1, seeds=1, missing=0.5)
    folder = world.write(tmp_path / "world")
    answer = scalestudy("recommend", folder.path, "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = recommend(world.spec, world.plan, world.trials())["fastest"]
    assert json.loads(answer.stdout)["fastest"] == json.loads(json.dumps(found))


@pytest.mark.chaos
def test_where_more_workers_hardly_help_fewer_are_recommended_and_they_are_near():
    def draw(generator: np.random.Generator) -> World:
        world = World.draw(generator, noise=0.05, seeds=3, deviation=0.0)
        fixed = world.step.per_example * world.batches[-1]
        return replace(world, step=replace(world.step, kind="compute", first=0.0, second=0.0, fixed=10 * fixed))

    found = judged(17, range(DRAWS), draw)
    assert 0.85 <= share(each.near for each in found) <= 1.0
    assert 0.2 <= fmean(each.saved for each in found if each.saved is not None) <= 0.8
