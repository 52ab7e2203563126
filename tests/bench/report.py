"""`make bench BENCH=report`: the plan, the report and the page of a study of 10,000 trials of 10 epochs.

The commands are those that a user types, the start of Python included; the trials are synthetic.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.study.folder import StudyFolder
from tests.bench.tables import Part, Rows
from tests.support.studies import command, environment
from tests.support.synthetic_studies import spec_of
from tests.support.trials import Law, make_trials

EPOCHS = 10
HEADER = ["trials", "cells", "epochs", "plan s", "report s", "peak MiB", "HTML MB", "summary.json MB"]


@dataclass(frozen=True)
class Cost:
    """What one command took."""

    seconds: float
    peak_bytes: int


def report(folder: Path, *, small: bool = False) -> Rows:
    """A row for cells of five seeds, one for cells of one."""
    rates = 4 if small else 50
    return [
        _row(folder / "five", rates=rates, seeds=5, epochs=2 if small else EPOCHS),
        _row(folder / "one", rates=5 * rates, seeds=1, epochs=2 if small else EPOCHS),
    ]


def _row(place: Path, *, rates: int, seeds: int, epochs: int) -> list[str]:
    text = spec_text(rates, seeds, epochs)
    study, count, cells = make_study(place, text)
    spec = place / "spec.yaml"
    spec.write_text(text, encoding="utf-8")
    planned = run("plan", str(spec), cwd=place)
    written = run("report", str(study.path), cwd=place)
    sizes = [f"{file.stat().st_size / 1e6:.2f}" for file in (study.report_file, study.summary_file)]
    peak = f"{written.peak_bytes / 2**20:.0f}"
    return [f"{count:,}", f"{cells:,}", str(epochs), f"{planned.seconds:.1f}", f"{written.seconds:.1f}", peak, *sizes]


def spec_text(rates: int, seeds: int, epochs: int) -> str:
    """A grid of 4 num_gpus, 10 batch sizes and so many rates and seeds."""
    sweep = {
        "num_gpus": [1, 2, 4, 8],
        "batch_size": [32 * 2**power for power in range(10)],
        "learning_rate": [round(0.01 * 1.02**number, 6) for number in range(rates)],
        "seed": list(range(seeds)),
    }
    return (
        f"name: large\ntrain: {{epochs: {epochs}}}\ntargets: {{accuracy: [0.5, 0.7], price_per_gpu_hour: 2}}\n"
        f"sweep: {json.dumps(sweep)}\n"
    )


def make_study(place: Path, text: str) -> tuple[StudyFolder, int, int]:
    """A folder with the study's plan and its trials; how many trials and cells it has."""
    spec = spec_of(text)
    plan = make_plan(spec)
    law = Law(samples=60_000, noise=0.05, learning=300.0)
    study = StudyFolder(place / "study")
    study.create()
    study.write_plan(plan, "large-20260131T000000Z", spec.to_yaml())
    lines = [json.dumps(trial, separators=(",", ":")) for trial in make_trials(plan, law, device="cuda")]
    study.write_text(study.trials_file, "\n".join(lines) + "\n")
    return study, len(plan.trials), len({json.dumps(trial.cell) for trial in plan.trials})


def run(*arguments: str, cwd: Path) -> Cost:
    """Runs the command line and measures its wall time and the most memory that it held."""
    begun = time.perf_counter()
    process = subprocess.Popen(command(*arguments), cwd=cwd, env=environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {process.returncode}")
    return Cost(time.perf_counter() - begun, usage.ru_maxrss * 1024)


PARTS = {"report": Part("The report of a large study", HEADER, report)}
