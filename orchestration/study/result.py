"""How a run of a study ended, and what it found: for the command line, for Python and for notebooks."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Self

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.measures.units import rates_of
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode, StudyFailedError
from scalestudy.orchestration.groups.events import WITH_MODEL
from scalestudy.orchestration.study.advice import Advice, advise
from scalestudy.orchestration.study.folders import spec_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series


SHOWN_CELLS = 10
SHOWN_FAILURES = 3


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """How a run of a study ended. In a notebook it shows the answer and the best cells."""

    folder: Path
    """The study's folder, with `report.html`, `summary.json` and `trials.jsonl`; the copy on this machine where the
    study is kept under a URI."""
    address: str  # how commands name the study: the folder, or the URI
    summary: dict[str, Any] | None  # `summary.json`; None where the run was ended before it could be written
    exit_code: ExitCode  # the command's exit status
    tracking_uri: str  # where MLflow has the study, without a password
    broken: str | None  # why the sweep broke off before its end, or None
    unsent: int  # number of events that MLflow lacks; `scalestudy ui DIR --sync` sends them
    cold_starts: dict[str, float]  # seconds from a group's order to its workers being ready, by group
    unsent_reason: str | None = None  # why MLflow lacks them, in one line; None: it has all
    wall_seconds: float | None = None
    """Time of the whole call, or of the whole command, with start-up and report; None: unknown."""

    @property
    def report(self) -> Path | None:
        """`report.html`; None where the run was ended before it could be written."""
        return None if self.summary is None else StudyFolder(self.folder).report_file

    @property
    def trials(self) -> DataFrame:
        """A row for each ended trial: its parameters, how it ended, its metric and its times."""
        from pandas import DataFrame

        folder = StudyFolder(self.folder)
        metric = StudyMetric.of(spec_of(folder).workload)
        return DataFrame([trial_row(trial, metric) for trial in folder.read_trials()])

    @property
    def cells(self) -> DataFrame:
        """A row for each cell: its parameters, its metric and times, with intervals if there are some.

        Empty if the run ended before it could write its summary.
        """
        from pandas import DataFrame

        return DataFrame([] if self.summary is None else cell_rows(self.summary))

    @property
    def best(self) -> Series[Any] | None:
        """The row of `trials` with the best metric after its last epoch; None if no training has come to its end."""
        folder = StudyFolder(self.folder)
        metric, trials = StudyMetric.of(spec_of(folder).workload), self.trials
        if trials.empty:
            return None
        ended = trials[(trials["kind"] == "training") & trials["status"].isin(list(WITH_MODEL))]
        ended = ended[ended[metric.key].notna()]
        return None if ended.empty else ended.loc[ended[metric.key].map(metric.order).idxmin()]

    def recommend(
        self,
        target: float | None = None,
        *,
        max_gpus: int | None = None,
        price: float | None = None,
        tolerance: float | None = None,
        by: str | None = None,
    ) -> Advice:
        """Return what to choose, as `scalestudy recommend` does. It prints as sentences, and `data` has the figures.

        target: of the study's metric; default: the spec's. Raises RequestError for a request that can't be met.
        """
        folder = StudyFolder(self.folder)
        return advise(folder, target=target, max_gpus=max_gpus, price=price, tolerance=tolerance, by=by)

    def raise_on_failure(self) -> Self:
        """Return this result if the study ended cleanly; raise StudyFailedError otherwise.

        Failed trials, a stopped study, and one that MLflow lacks a part of are not clean.
        """
        if self.exit_code == ExitCode.DONE:
            return self
        raise StudyFailedError(*failure_words(self), self.exit_code)

    def _repr_html_(self) -> str:
        """Return the answer, and the best cells as a table, for notebooks."""
        from markupsafe import Markup, escape

        place = Markup("<p>{}</p>").format(self.report or self.folder)
        if self.summary is None:
            return str(Markup("<p>The run was ended before its report could be written.</p>") + place)
        from scalestudy.experiments.analysis.text.answer import answer_lines
        from scalestudy.experiments.analysis.text.sentences import best_rows, book_table

        header, rows = book_table(self.summary)
        lines = Markup("<br>").join(escape(line) for line in answer_lines(self.summary))
        head = Markup("").join(Markup("<th>{}</th>").format(cell) for cell in header)
        body = Markup("").join(
            Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in rows[position]))
            for position in best_rows(self.summary, SHOWN_CELLS)
        )
        left = len(rows) - SHOWN_CELLS
        more = Markup("<p>The {} best of {} cells.</p>").format(SHOWN_CELLS, len(rows)) if left > 0 else Markup("")
        table = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)
        return str(Markup("<p>{}</p>").format(lines) + table + more + place)


def exit_code_of(
    summary: Mapping[str, Any] | None, *, caught: int | None, broken: str | None, failed_alike: bool, unsent: int
) -> ExitCode:
    """Decide the exit status of a run.

    A signal comes before all. 3 says that something was out of reach: the run broke off, its summary was not written,
    or MLflow lacks events. 1 says that trials failed, or that the run broke off because its first trials failed with
    the same error.

    Args:
        summary: `summary.json`; None: it was not written.
        caught: the signal that stopped the run; None: no signal did.
        broken: why the run broke off; None: it did not.
        failed_alike: whether it broke off because its first trials failed with the same error, a fault of the study's
            code.
        unsent: events that MLflow did not get.
    """
    if caught is not None:
        return exit_code_of_signal(caught)
    if summary is None or unsent or (broken is not None and not failed_alike):
        return ExitCode.UNREACHABLE
    return ExitCode.SOME_FAILED if summary["trials"]["failed"] else ExitCode.DONE


def exit_code_of_signal(number: int) -> ExitCode:
    """Return the exit status of a run that SIGINT, SIGTERM or SIGHUP has stopped."""
    return ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED


def trial_row(trial: Mapping[str, Any], metric: StudyMetric) -> dict[str, Any]:
    """Return a line of trials.jsonl as a row: parameters, status, the last and the best metric, times."""
    epochs = trial.get("epochs") or []
    values = [epoch[metric.key] for epoch in epochs if epoch.get(metric.key) is not None]
    return {
        "trial_id": trial["trial_id"],
        "kind": trial["kind"],
        "status": trial["status"],
        **trial["params"],
        metric.key: epochs[-1].get(metric.key) if epochs else None,
        metric.best_key: metric.best(values),
        "epochs": len(epochs),
        **{key: trial.get(key) for key in ("train_seconds", "wall_seconds", "startup_seconds", "attempts")},
        "nodes": (trial.get("world") or {}).get("nodes"),
        "accelerator": (trial.get("world") or {}).get("accelerator"),
        "flags": ", ".join(trial.get("flags") or ()),
        "error": (trial.get("error") or {}).get("message"),
    }


def cell_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a summary as rows. A figure that has an interval has columns `…_low` and `…_high` too.

    seconds_to_<target>: training seconds to the target that the recommendation answers, where there is one.
    tokens_per_second: where the task counts tokens.
    """
    metric = StudyMetric(**summary["study"]["metric"])
    target = summary["recommendation"]["target"]
    times = {row["label"]: row["seconds"] for row in summary["time_to_target"] if row["target"] == target}
    figures, rows = (metric.key, metric.best_key, "epoch_seconds", *rates_of(summary)), []
    for cell in summary["cells"]:
        row = {"label": cell["label"], **cell["params"], "kind": cell["kind"]}
        for key in figures:
            figure = found if present(found := cell.get(key)) else {}
            row |= {key: figure.get("value"), f"{key}_low": figure.get("low"), f"{key}_high": figure.get("high")}
        row |= {"speedup": cell["speedup"], "efficiency": cell["efficiency"]}
        if target is not None:
            row[f"seconds_to_{target:g}"] = times.get(cell["label"])
        rows.append({**row, "nodes": cell.get("nodes", 1), "flags": ", ".join(cell["flags"])})
    return rows


def failure_words(result: StudyResult) -> tuple[str, str]:
    """Return what went wrong in a run that did not end cleanly, and what to do about it."""
    place = quote(result.address)
    if result.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return f"study: {result.address}: was stopped", f"to go on: resume_study({result.address!r})"
    if result.broken:
        mended = result.exit_code == ExitCode.SOME_FAILED
        again = f"resume_study({result.address!r}{', retry_failed=True' if mended else ''})"
        return f"study: {result.address}: {result.broken}", f"{'mend the code' if mended else 'to go on'}: {again}"
    if result.exit_code == ExitCode.SOME_FAILED:
        failures = ((result.summary or {}).get("failures") or [])[:SHOWN_FAILURES]
        told = "; ".join(f"{', '.join(each['trials'])}: {each['message'] or each['status']}" for each in failures)
        return f"study: {result.address}: trials failed: {told}", f"see {result.folder / 'driver.log'}"
    return (
        f"study: {result.address}: MLflow missed {result.unsent} events ({result.unsent_reason or 'no reason given'})",
        f"when it is back: scalestudy ui {place} --sync",
    )
