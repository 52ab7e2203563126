"""The table of `make bench-peers`, and how much a user writes; tests/long runs the peers' programs."""

import itertools

import pytest
import yaml

from tests.bench import compare_peers
from tests.bench.compare_peers import HEADER, TRIALS, Measured, lines_written, sweep_of
from tests.bench.peer_kills import Kills, Loss, loss_of
from tests.bench.peer_ways import LOOPS, OPTUNA, PROGRAMS, SCALESTUDY, TORCHRUN, WAYS, Trained


def test_what_a_user_writes_is_there_and_ours_is_the_shortest():
    lines = [lines_written(way.written()) for way in WAYS]
    assert all(file.exists() for way in WAYS for file in way.written())
    assert lines[0] == min(lines) > 0
    programs = {file.name for file in PROGRAMS.glob("*.*")} - {"__init__.py", "workload.py"}
    assert {name for way in (*WAYS, *itertools.chain(*LOOPS.values())) for name in way.files} == programs


def test_what_a_user_writes_is_the_study_of_the_benchmark():
    sweep = sweep_of(TRIALS)
    ours, loop, grid = (
        yaml.safe_load((PROGRAMS / name).read_text("utf-8")) for name in ("study.yaml", "loop.yaml", "grid.yaml")
    )
    assert ours["sweep"] == loop["sweep"] == grid["sweep"] == sweep.lists()
    assert ours["train"] == loop["train"] == {"epochs": grid["epochs"]} == {"epochs": sweep.epochs}
    assert len(sweep.points()) == TRIALS == 24


def notes(process, *times):
    return [(float(time), process) for time in times]


@pytest.mark.parametrize(
    ("found", "loss"),
    [
        # five of eight steps begun; anew from the third: steps 3, 4, 5 again, the fifth at 22 s
        (notes(7, 0, 1, 2, 3, 4) + notes(8, 20, 21, 22, 23, 24, 25), Loss(seconds=18.0, steps=3)),
        # from the very first
        (notes(7, 0, 1) + notes(8, *range(10, 18)), Loss(seconds=10.0, steps=2)),
        # an attempt in the middle that came nowhere
        (notes(7, 0, 1, 2) + notes(9, 5) + notes(8, *range(10, 18)), Loss(seconds=10.0, steps=4)),
        # nothing was lost: the next step is the sixth
        (notes(7, 0, 1, 2, 3, 4) + notes(8, 20, 21, 22), Loss(seconds=16.0, steps=0)),
        (notes(7, 0, 1, 2, 3, 4), None),
        # a rehearsal's step before the study, by a process of its own, is neither the start nor a step made again
        (notes(6, -30) + notes(7, 0, 1, 2, 3, 4) + notes(8, 20, 21, 22, 23, 24, 25), Loss(seconds=18.0, steps=3)),
        (notes(6, -30) + notes(7, 0, 1, 2, 3, 4), None),
    ],
)
def test_what_a_kill_costs(found, loss):
    assert loss_of(found, needed=8, killed_at=4.5) == loss


def trained(num_gpus, batch_size, seconds, ended):
    epochs = [{"epoch": epoch, "train_seconds": seconds, "at": ended + 5.0 * (epoch - 2)} for epoch in (1, 2)]
    return Trained({"num_gpus": num_gpus, "batch_size": batch_size}, epochs)


def test_a_row_of_the_table(monkeypatch):
    monkeypatch.setattr(compare_peers, "lines_written", lambda files: 80)
    trials = [trained(1, 32, 1.437, 10.0), trained(2, 32, 0.5, 13.0), trained(2, 32, 1.437, 15.0)]
    trials += [trained(2, 64, 0.1, 18.0), trained(2, 32, 2.0, 22.0)]
    kills = Kills([Loss(9.0, 6), Loss(7.04, 8), Loss(20.0, 7)], finished=3, planned=3)
    row = Measured(TORCHRUN, 30.0, trials, kills).row(ours=29.0)
    assert len(row) == len(HEADER)
    assert dict(zip(HEADER, row, strict=True)) == {
        "way": "torchrun loop",
        "trials run": "5",
        "s for the 24 trials": "≈ 87",  # 30 + 19 · 3
        "s a trial, median": "3.00",  # of 3, 2, 3, 4
        "times ours": "3.0",  # 87 ÷ 29
        "examples/s, 1 worker": "1,000",
        "examples/s, 2 workers": "1,000",  # of 2,874, 1,000, 719
        "worker killed: s until as far again": "9.0",
        "steps again": "7",
        "trials finished": "3 of 3",
        "lines a user writes": "80",
    }


def test_ways_lose_a_worker_by_turns(monkeypatch, tmp_path):
    seconds, folders = iter([9.0, 7.0, 30.0, None, 11.0, 8.0]), []

    def kill_workers(way, folder, count):
        folders.append(folder)
        took = next(seconds)
        return Kills([Loss(took, 6)] if took else [], finished=1 if took else 0, planned=count)

    monkeypatch.setattr(compare_peers, "kill_workers", kill_workers)
    rows = compare_peers.only_kills(tmp_path, ways=[SCALESTUDY, TORCHRUN], kills=3)
    assert rows == [
        ["scalestudy", "9.0, 30.0, 11.0", "11.0", "6", "3 of 3"],
        ["torchrun loop", "7.0, 8.0", "7.5", "6", "2 of 3"],
    ]
    assert all(len(row) == len(compare_peers.KILLS_HEADER) for row in rows)
    assert len(set(folders)) == 6


def losing(way, *losses):
    params = {"num_gpus": 1, "batch_size": 32, "learning_rate": 0.1}
    trials = [Trained(params, [{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate(losses, 1)])]
    return Measured(way, 1.0, trials, Kills([], finished=0, planned=0))


def test_a_way_that_trains_something_else_is_no_row():
    same = [losing(SCALESTUDY, 2.0, 1.0), losing(TORCHRUN, 2.05, 0.97), losing(OPTUNA, 2.0, 1.0)]
    assert compare_peers.held_to_ours(same) == same
    with pytest.raises(RuntimeError, match=r"Optuna .*not the same training: loss 0.9, ours 1"):
        compare_peers.held_to_ours([*same[:2], losing(OPTUNA, 2.0, 0.9)])


def test_fewer_trials_have_both_sizes():
    assert [len(sweep_of(count).points()) for count in (2, 6, 24)] == [2, 6, 24]
    assert {point["num_gpus"] for point in sweep_of(2).points()} == {1, 2}
    for count in (0, 3, 14):
        with pytest.raises(SystemExit, match=f"--trials: {count}"):
            sweep_of(count)
