"""`make chaos`: a study under random faults ends as the same study does in peace.

`python -m tests.bench.chaos [--seed 0] [--faults 10] [--studies 1] [--keep FOLDER]` runs a grid study of the digits
on a cluster of raylets once undisturbed, then again under so many faults, for each of so many seeds, and compares: each
trial exactly once, each epoch exactly once, in trials.jsonl and in MLflow; losses, accuracies and the parameters of the
best model equal to the bit. A trial in which the model was told to raise is `failed`, and has a beginning of the
undisturbed trial's epochs. `--raylets 0`: each driver starts a Ray of its own, and no node goes. `--stop-seconds 470`:
for so long a driver is stopped. `--schedules 100000` runs no study, but so many random schedules of the pool's leases:
a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.groups import actor
from tests.bench.failing_nodes import FailingNodes
from tests.bench.faults import FAULTS, NODE_FAULTS, Fault, Strike, Target, plan_strikes, stop_driver
from tests.bench.tables import table
from tests.support.chaos_outcome import Outcome, differences, model_differences, outcome_of, tracking_differences
from tests.support.faulty_proxy import Gateway, faulty_proxy
from tests.support.lease_schedules import broken
from tests.support.processes import named, title_of
from tests.support.studies import command, environment, scalestudy, write_spec
from tests.support.tracking_server import TrackingServer

STUDY_SECONDS = 1800.0
GAP_SECONDS = 2.0  # between two faults
EPOCHS = 4
SLOTS = 1  # CPUs of a raylet
GIVEN_UP = 3  # the exit status of a study that has put off all that was left, too
SPEC: dict[str, Any] = {
    "train": {"epochs": EPOCHS},
    "sweep": {"num_gpus": [1, 2, 3], "batch_size": [256], "learning_rate": [0.05, 0.1, 0.2], "seed": [0, 1]},
    "resources": {"oversubscribe": True, "exclusive": False},
    "limits": {"stalled_seconds": 12, "failures_per_trial": 50, "failures": "continue"},
    "targets": {},
}


@dataclass
class Place:
    """A folder with a spec, a tracking server behind a gateway, the orders that the model obeys; perhaps a cluster.

    faults: what can befall a study here.
    """

    path: Path
    server: TrackingServer
    gateway: Gateway
    spec: Path
    faults: dict[str, Fault]
    nodes: FailingNodes | None = None

    @classmethod
    @contextmanager
    def made(
        cls, path: Path, seconds: float = 0.1, raylets: int = 0, stop_seconds: float = 15.0, **sections: Any
    ) -> Iterator[Place]:
        """Writes the study and starts the servers.

        seconds: of sleep in a training step. raylets: of a cluster. stop_seconds: for which a driver is stopped.
        """
        (path / "orders").mkdir(parents=True, exist_ok=True)
        server, gateway = TrackingServer(path), Gateway()
        with ExitStack() as stack:
            server.start()
            stack.callback(server.stop)
            uri, _ = stack.enter_context(faulty_proxy(server.uri, gateway.fate_of))
            nodes = FailingNodes(raylets, SLOTS) if raylets else None
            if nodes:
                stack.callback(nodes.close)
            model = {"model": "tests.bench.chaos_models:Paced", "data": "digits"}
            arguments = {"model_args": {"seconds": seconds, "orders": str(path / "orders")}}
            tracking = {"uri": uri, "offline": "spool"}
            sections = {"workload": model | arguments, "tracking": tracking, **sections}
            spec = write_spec(path, name="chaos.yaml", **{**SPEC, **sections})
            stop = partial(stop_driver, least_seconds=stop_seconds)
            faults = {**FAULTS, "stop driver": stop, **(NODE_FAULTS if nodes else {})}
            yield cls(path, server, gateway, spec, faults, nodes)

    @property
    def orders(self) -> Path:
        """Where the model looks for orders to raise."""
        return self.path / "orders"

    def raised(self) -> int:
        """How many exceptions were raised by order; they are forgotten."""
        done = list(self.orders.iterdir())
        for file in done:
            file.unlink()
        return sum(file.name.startswith("raised-") for file in done)


@dataclass
class Ordeal:
    """One study, its driver, and what befalls it."""

    place: Place
    name: str
    strikes: list[Strike] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    homes: set[Path] = field(default_factory=set)  # Ray's folders that killed drivers leave behind
    resumed: int = 0

    def run(self) -> int:
        """Runs the study to its end, resuming it whenever its driver was killed; the last exit status."""
        self.folder = StudyFolder(self.place.path / self.name)
        driver = self._start("run", self.place.spec, "--out", self.folder.path)
        place = self.place
        self.target = Target(driver.pid, self.folder, place.orders, place.server, place.gateway, place.nodes)
        try:
            return self._watch(driver)
        finally:
            self._clean()

    def _start(self, *arguments: Any) -> subprocess.Popen[bytes]:
        nodes = self.place.nodes
        with (self.place.path / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                command(*arguments, "--no-rehearsal", "--address", nodes.address if nodes else "local"),
                cwd=self.place.path,
                env=nodes.environment() if nodes else environment(),
                stdout=log,
                stderr=log,
            )

    def _watch(self, driver: subprocess.Popen[bytes]) -> int:
        ahead, ready_at = list(self.strikes), 0.0
        deadline = time.monotonic() + STUDY_SECONDS
        while True:
            status = driver.poll()
            cut_off = status == -signal.SIGKILL or (status == GIVEN_UP and self.progress() < 1)
            if cut_off and time.monotonic() < deadline:
                driver = self._resume()
            elif status is not None:
                return status
            if time.monotonic() > deadline:
                driver.kill()
                self.told.append(f"not ended within {STUDY_SECONDS:.0f} s")
            due = ahead and time.monotonic() > ready_at and self.progress() >= ahead[0].after
            if due and self._strike(ahead[0]):
                ahead.pop(0)
                ready_at = time.monotonic() + GAP_SECONDS
            if self.place.nodes:
                self.place.nodes.tend()
            time.sleep(0.1)

    def _resume(self) -> subprocess.Popen[bytes]:
        self.resumed += 1
        driver = self._start("resume", self.folder.path)
        self.target.driver = driver.pid
        return driver

    def _strike(self, strike: Strike) -> bool:
        if strike.kind == "kill driver" and not self.place.nodes:
            self.homes |= ray_homes(self.target.driver)
        try:
            done = self.place.faults[strike.kind](self.target, strike.choice)
        except ProcessLookupError:
            return False  # the victim has just ended
        if done:
            self.told.append(f"at {100 * self.progress():.0f} %: {done}")
        return bool(done)

    def progress(self) -> float:
        """Share of the study's epochs that are recorded; those that an ended trial has not reached count as well."""
        if not self.folder.journal_folder.exists():
            return 0.0
        epochs: Counter[str] = Counter()
        for entry in Journal(self.folder.journal_folder).entries():
            if entry.type in ("epoch", "ended"):
                epochs[entry.trial_id] = EPOCHS if entry.type == "ended" else epochs[entry.trial_id] + 1
        return sum(epochs.values()) / (EPOCHS * len(self.folder.read_plan().trials))

    def _clean(self) -> None:
        for timer in self.target.timers:
            timer.join()
        if self.place.nodes:
            self.place.nodes.settle()
        for pid in self.target.frozen:
            with suppress(OSError):
                if "ray::" in title_of(pid):
                    os.kill(pid, signal.SIGKILL)
        for home in self.homes:
            shutil.rmtree(home, ignore_errors=True)


def ray_homes(driver: int) -> set[Path]:
    """The folder of the Ray that a driver has started, as its processes' arguments tell it."""
    words = [word for pid in named(driver, "raylet") for word in title_of(pid).split()]
    found = (Path(word.partition("=")[2]) for word in words if word.startswith("--temp-dir="))
    return {home.parent for home in found if home.parent.name.startswith("scalestudy-")}


def undisturbed(place: Place) -> Outcome:
    """What the study comes to in peace."""
    ordeal = Ordeal(place, "undisturbed")
    status = ordeal.run()
    if status:
        raise RuntimeError(f"the undisturbed study ended with {status}; see {place.path / 'undisturbed.log'}")
    return outcome_of(StudyFolder(place.path / "undisturbed"))


def put_to_the_test(place: Place, expected: Outcome, strikes: list[Strike], name: str) -> tuple[Ordeal, list[str]]:
    """The same study under these faults; what differs from the undisturbed one."""
    ordeal = Ordeal(place, name, strikes)
    status = ordeal.run()
    place.server.start()
    problems = [] if status in (0, 1, 3) else [f"exit status {status}"]
    if status == GIVEN_UP:
        problems += sync_problems(place, ordeal)
    raised = place.raised()
    problems += differences(expected, outcome_of(ordeal.folder), raised)
    problems += tracking_differences(place.server.store, ordeal.folder)
    return ordeal, problems


def sync_problems(place: Place, ordeal: Ordeal) -> list[str]:
    """Sends MLflow what it missed."""
    done = scalestudy("ui", ordeal.folder.path, "--sync", cwd=place.path)
    return [f"ui --sync ended with {done.returncode}: {done.stderr}"] if done.returncode else []


HEADER = ["seed", "faults", "resumed", "trials", "failed by order", "wall, s", "outcome"]


def main(arguments: list[str]) -> int:
    """Runs it all and prints a table; 0 when every outcome was as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.chaos", description="A study under random faults.")
    parser.add_argument("--seed", type=int, default=0, help="of the first study's faults")
    parser.add_argument("--faults", type=int, default=10, help="a study")
    parser.add_argument("--studies", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder for what the studies leave")
    parser.add_argument("--raylets", type=int, default=4, help="of the cluster; 0: drivers start a Ray of their own")
    parser.add_argument("--stop-seconds", type=float, default=15.0, help="for which a driver is stopped, at least")
    parser.add_argument("--schedules", type=int, default=0, help="instead: so many random schedules of leases")
    options = parser.parse_args(arguments)
    if options.schedules:
        return explore_schedules(range(options.seed, options.seed + options.schedules))
    path = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    rows, wrong = [], 0
    with Place.made(path.absolute(), raylets=options.raylets, stop_seconds=options.stop_seconds) as place:
        expected = undisturbed(place)
        print(f"{len(expected.trials)} trials, undisturbed; {path}", flush=True)
        for seed in range(options.seed, options.seed + options.studies):
            row, problems = one_study(place, expected, seed, options.faults)
            rows.append(row)
            wrong += bool(problems)
    print(f"\n{table(HEADER, rows)}")
    if not wrong and not options.keep:
        shutil.rmtree(path, ignore_errors=True)
    return 1 if wrong else 0


def explore_schedules(seeds: range) -> int:
    """Runs the schedules of these seeds (see `tests.support.lease_schedules`); 0 when none breaks anything."""
    actor.POLL_SECONDS = actor.TICK_SECONDS = 0
    with ProcessPoolExecutor() as processes:
        blocks = [seeds[start : start + 500] for start in range(0, len(seeds), 500)]
        found: dict[int, str] = {}
        for block, problems in zip(blocks, processes.map(broken, blocks), strict=True):
            found |= problems
            print(f"{block.stop - seeds.start} of {len(seeds)} schedules, {len(found)} broken", flush=True)
    for seed, problem in found.items():
        print(f"seed {seed}: {problem}")
    return 1 if found else 0


def one_study(place: Place, expected: Outcome, seed: int, count: int) -> tuple[list[str], list[str]]:
    """A row of the table, and what is wrong, after so many faults."""
    began = time.monotonic()
    strikes = plan_strikes(seed, count, list(place.faults))
    ordeal, problems = put_to_the_test(place, expected, strikes, f"seed-{seed}")
    problems += model_differences(StudyFolder(place.path / "undisturbed"), ordeal.folder)
    wall = time.monotonic() - began
    for line in [*ordeal.told, *(f"WRONG: {problem}" for problem in problems)]:
        print(f"seed {seed}: {line}", flush=True)
    statuses = Counter(trial["status"] for trial in ordeal.folder.read_trials())
    verdict = "equal" if not problems else "; ".join(problems)
    struck = f"{len([line for line in ordeal.told if line.startswith('at ')])} of {count}"
    row = [str(seed), struck, str(ordeal.resumed), json.dumps(dict(statuses)), str(statuses["failed"]), f"{wall:.0f}"]
    return [*row, verdict], problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
