"""Output of the commands on a terminal, by Rich: tables and closing words."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.text import Text

from scalestudy.experiments.plan.plan import label, short_name
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.orchestration.base.errors import ExitCode, first_line
from scalestudy.orchestration.commands.bench_result import EXPERIMENT, NAME

if TYPE_CHECKING:
    from scalestudy.experiments.plan.plan import Plan
    from scalestudy.experiments.spec.study_spec import StudySpec
    from scalestudy.orchestration.commands.bench_result import LargestBatches
    from scalestudy.orchestration.commands.doctor import Finding
    from scalestudy.orchestration.commands.models import Variant
    from scalestudy.orchestration.commands.next_trainings import NextTrainings
    from scalestudy.orchestration.commands.planning import PlannedStudy
    from scalestudy.orchestration.commands.studies import ListedStudy
    from scalestudy.orchestration.study.result import StudyResult


TABLE_ROWS = 40
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "broken": ("BROKEN", "bold red")}


def plan(console: Console, planned: PlannedStudy) -> None:
    """Print the trials in their order, what they cost, and what was rehearsed."""
    from scalestudy.experiments.analysis.measures.units import plural
    from scalestudy.orchestration.commands.planning import time_lines

    spec, cost, trials = planned.spec, planned.cost, planned.plan.trials
    if trials:
        names = list(trials[0].params)
        header = ["#", *(name if name in ITEMS else short_name(name) for name in names), "batch per worker", "trial"]
        rows = []
        for number, trial in enumerate(trials, start=1):
            values = (str(trial.params[name]) for name in names)
            rows.append([str(number), *values, f"{trial.batch_size / trial.num_gpus:g}", trial.trial_id])
        columns(console, header, rows)
    else:  # the values that a search chooses from
        space = planned.plan.to_suggest.space if planned.plan.to_suggest else {}
        columns(console, ["parameter", "values"], [[name, values] for name, values in space.items()])
    bound = "at most " if planned.plan.to_suggest or spec.stops_at_target else ""
    period = spec.period_word
    lines = [
        f"{spec.name}: {bound}{plural(len(cost.trials), 'trial')}, {cost.epochs} {period}s, "
        f"{cost.worker_epochs} worker-{period}s"
        if cost
        else f"{spec.name}: {adaptive_line(planned.plan)}",
        *([planned.extends] if planned.extends else []),
        *spec.notes,
        *stop_lines(spec),
        *time_lines(planned),
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if planned.rehearsal:
        console.print()
        variants(console, planned.models)
        for line in (planned.rehearsal.words(), *planned.rehearsal.rate_lines()):
            console.print(Text(line), soft_wrap=True)


def stop_lines(spec: StudySpec) -> list[str]:
    """Return lines that say where trainings stop, and what that saves."""
    if spec.stop_target is None:
        return []
    from scalestudy.experiments.analysis.measures.metric import StudyMetric

    reached = f"{spec.stop_target:g} {StudyMetric.of(spec.workload).title}"
    saved = "saves the steps after that; how many is known only after the run"
    return [f"targets.stop: a training ends once it has reached {reached}, which {saved}"]


def adaptive_line(planned: Plan) -> str:
    """Return a line that says what an adaptive search chooses among."""
    from scalestudy.experiments.analysis.measures.units import plural

    places = planned.to_suggest.points if planned.to_suggest else 0
    return (
        f"{plural(places, 'place')} to choose among; the search decides as it goes which it trains, and which it times"
    )


def result(console: Console, done: StudyResult) -> None:
    """Print the book's table, the answer, and where everything is."""
    if done.summary is not None:
        from scalestudy.experiments.analysis.measures.units import seconds_text
        from scalestudy.experiments.analysis.text.answer import answer_lines, study_took
        from scalestudy.experiments.analysis.text.sentences import caveats_of

        table_of(console, done.summary)
        console.print()
        lines = answer_lines(done.summary)
        for line in lines:
            console.print(Text(line, style="bold"), soft_wrap=True)
        for caveat in caveats_of([done.summary["recommendation"]["recommended"]]):
            if not any(caveat.rstrip(".") in line for line in lines):
                console.print(Text(f"  {caveat}"), soft_wrap=True)
        console.print()
        for failure in done.summary["failures"] or ():
            console.print(Text(failure_text(failure), style="red"), soft_wrap=True)
        console.print(Text(study_took(done.summary["cost"])), soft_wrap=True)
        if done.wall_seconds is not None:
            console.print(Text(f"This command took {seconds_text(done.wall_seconds)} from its start to its end."))
    places = {"study": done.address, "report": done.report, "MLflow": done.tracking_uri}
    for name, place in ((name, place) for name, place in places.items() if place):
        console.print(Text(f"{name + ':':<8}{place}"), soft_wrap=True)
    for line in closing_lines(done):
        console.print(Text(line, style="yellow"), soft_wrap=True)


def table_of(console: Console, summary: dict[str, Any]) -> None:
    """Print the table in the book's form; of many cells, the best."""
    from scalestudy.experiments.analysis.text.sentences import best_rows, book_table

    header, rows = book_table(summary)
    columns(console, header, [rows[position] for position in best_rows(summary, TABLE_ROWS)])
    if len(rows) > TABLE_ROWS:
        console.print(Text(f"the {TABLE_ROWS} best of {len(rows)} cells; the report has all of them"))


def columns(
    console: Console, header: list[str], rows: list[list[str]], *, flush: Literal["left", "right"] = "right"
) -> None:
    """Print columns flush right, or left, never cut to the width of the terminal."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    justified = str.rjust if flush == "right" else str.ljust
    aligned = (
        "  ".join(justified(cell, width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]
    )
    head, *lines = map(str.rstrip, aligned)
    console.print(Text(head, style="bold"), soft_wrap=True)
    if lines:  # one call: line by line, a plan of 10,000 trials spends most of its time here
        console.print(Text("\n".join(lines)), soft_wrap=True)


def next_trainings(console: Console, further: NextTrainings) -> None:
    """Print the trainings that would tell most about an answer, below it, or why there are none."""
    from scalestudy.experiments.analysis.measures.parts import present

    console.print()
    if present(further.found):
        columns(console, *further.table)
    for line in (further.why_few, f"written to {further.written}" if further.written else None):
        if line:
            console.print(Text(line), soft_wrap=True)


def studies(console: Console, listed: Sequence[ListedStudy], places: Sequence[str]) -> None:
    """Print studies, a line each. places: where they were sought, named if there are none."""
    from scalestudy.orchestration.commands.studies import HEADER

    if listed:
        columns(console, HEADER, [study.to_row() for study in listed], flush="left")
    else:
        console.print(Text(f"no study in {' or '.join(places)}; to run one: scalestudy run SPEC"), soft_wrap=True)


def failure_text(failure: dict[str, Any]) -> str:
    """Return a description of trials with the same failure: which, how, on what rank, why."""
    rank = "" if failure["rank"] is None else f" on rank {failure['rank']}"
    status = failure["status"].replace("_", " ")
    return f"{', '.join(failure['trials'])}: {status}{rank}: {failure['message'] or 'no message'}"


def closing_lines(done: StudyResult) -> list[str]:
    """Return lines that say what is left to do when a study did not end cleanly."""
    lines, place = [], quote(done.address)
    if done.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        kept = "kept" if done.summary is None else "kept and in the report"
        lines.append(f"stopped: the trials that had ended are {kept}; to go on: scalestudy resume {place}")
    if done.broken:
        lines.append(f"the sweep broke off: {first_line(done.broken)}; see {done.folder / 'log.jsonl'}")
        if done.exit_code == ExitCode.SOME_FAILED:
            lines.append(f"mend the code, then: scalestudy resume {place} --retry-failed")
            lines.append("a study with limits.failures: continue runs its other trials all the same")
            return lines
        lines.append(f"nothing that was recorded is lost; to go on: scalestudy resume {place}")
    if done.unsent:
        why = f" ({done.unsent_reason})" if done.unsent_reason else ""
        lines.append(f"MLflow missed {done.unsent} events{why}; when it is back: scalestudy ui {place} --sync")
    if done.exit_code == ExitCode.SOME_FAILED:
        lines.append(f"some trials failed; what they printed: {done.folder / 'driver.log'}")
    return lines


def result_data(done: StudyResult) -> dict[str, Any]:
    """Return a study's end as plain data, for --json."""
    return {
        "folder": str(done.folder),
        "address": done.address,
        "report": str(done.report) if done.report else None,
        "tracking_uri": done.tracking_uri,
        "exit_code": int(done.exit_code),
        "broken": done.broken,
        "unsent": done.unsent,
        "unsent_reason": done.unsent_reason,
        "cold_start_seconds": done.cold_starts,
        "wall_seconds": done.wall_seconds,
        "summary": done.summary,
    }


def variants(console: Console, found: Sequence[Variant]) -> None:
    """Print, for each model that a study trains, the table of its parameters and the memory that they take."""
    for number, variant in enumerate(found):
        if number:
            console.print()
        if variant.params:
            console.print(Text(label(variant.params)))
        header = ["name", "shape", "count", "mean", "std", "shared with"]
        rows = []
        for row in variant.inspection.parameters:
            shape = " × ".join(map(str, row.shape)) or "one number"
            moments = ["–" if value is None else f"{value:.3g}" for value in (row.mean, row.std)]
            rows.append([row.name, shape, f"{row.count:,}", *moments, ", ".join(row.shared_with) or "–"])
        columns(console, header, rows)
        for line in inspection_lines(variant):
            console.print(Text(line), soft_wrap=True)


def inspection_lines(variant: Variant) -> list[str]:
    """Return lines that sum up a model's parameters: numbers, and bytes on each worker."""
    inspection, memory = variant.inspection, variant.inspection.memory
    trained = [row for row in inspection.parameters if row.trained]
    numbers = f"{inspection.trained_numbers:,} numbers to train in {len(trained)} tensors"
    frozen = f", {inspection.frozen_numbers:,} frozen" if inspection.frozen_numbers else ""
    buffers = f", {inspection.buffer_numbers:,} in buffers" if inspection.buffer_tensors else ""
    parts = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        f"optimizer ({variant.optimizer})": memory.optimizer,
        "buffers": memory.buffers,
    }
    sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items())
    return [
        f"{variant.model} for {variant.data}, drawn with seed {variant.seed}: {numbers}{frozen}{buffers}",
        f"memory on each worker: {sizes}; {bytes_text(sum(parts.values()))} in all, without activations",
    ]


def bench(console: Console, done: LargestBatches) -> None:
    """Print the question, the tables, what holds on this machine, and the run in MLflow."""
    console.print(Text(done.question, style="bold"), soft_wrap=True)
    console.print(Text(done.measured_on), soft_wrap=True)
    for table in done.tables:
        console.print()
        console.print(Text(table.title, style="bold"), soft_wrap=True)
        texts = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in table.rows]
        columns(console, list(table.header), texts)
    console.print()
    for note in done.notes:
        console.print(Text(f"- {note}"), soft_wrap=True)
    if done.mlflow.run_id:
        place = f"run {NAME} of {EXPERIMENT} in {done.mlflow.tracking_uri}"
        console.print(Text(f"MLflow: {place}"), soft_wrap=True)


def bytes_text(size: int) -> str:
    """Return a size in bytes with three digits: `498 kB`, `1.99 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.{3 - len(str(int(size / factor)))}f} {unit}"
    return f"{size} B"


def findings(console: Console, found: Sequence[Finding]) -> None:
    """Print the doctor's findings, each with its remedy below. A line is never cut, so that it can be copied."""
    width = max(len(finding.name) for finding in found)
    for finding in found:
        mark, style = MARKS[finding.state]
        line = Text(f"{mark:<6}  ", style=style).append(f"{finding.name:<{width}}  ", style="bold")
        console.print(line.append(finding.text, style="default"), soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':<{width + 10}}→ {finding.remedy}", style="italic"), soft_wrap=True)
