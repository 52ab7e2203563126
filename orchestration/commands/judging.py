"""`scalestudy judge` on a terminal: what is ambiguous is asked for, and what was taken as what is shown."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress
from rich.prompt import IntPrompt, Prompt
from rich.text import Text

from scalestudy.experiments.judging.columns import PLACEHOLDERS, Columns, Question, Said, listed
from scalestudy.experiments.spec.reaching import Mode
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.show import columns as print_columns
from scalestudy.orchestration.judging.judge import Request, judge_runs, requests
from scalestudy.orchestration.study.result import StudyResult


def judge_sources(
    sources: Sequence[str],
    target: str,
    *,
    mode: str | None,
    columns: Sequence[str],
    given: Sequence[str],
    tracking_uri: str | None,
    out: str | None,
    as_json: bool,
) -> StudyResult:
    """Judge sources as the command line names them. Raises RequestError or UnreachableError."""
    asked = not as_json and sys.stdin.isatty() and sys.stderr.isatty()
    with requests():
        said = Said().with_columns(columns).with_given(given)
    request = Request(sources=sources, target=target, mode=_mode(mode), said=said, tracking_uri=tracking_uri, out=out)
    bar = Progress(console=Console(stderr=True), transient=True, disable=as_json or not sys.stderr.isatty())
    reading = bar.add_task("reading runs", total=None)

    def progress(done: int, total: int) -> None:
        bar.start()
        bar.update(reading, completed=done, total=total)
        if done >= total:
            bar.stop()  # before anything is asked or shown

    try:
        return judge_runs(request, ask if asked else None, None if as_json else show_taken, progress)
    finally:
        bar.stop()


def _mode(mode: str | None) -> Mode | None:
    if mode not in (None, "max", "min"):
        raise RequestError(f"--mode: {mode}: is not known", "choose max or min")
    return None if mode is None else "min" if mode == "min" else "max"


def ask(question: Question) -> str:
    """Ask on the terminal; return the option that was chosen. Raises EOFError where the user ends the input."""
    console = Console(stderr=True)
    options = list(question.answers)
    print(question.words, file=sys.stderr)
    for number, (option, means) in enumerate(question.answers.items(), start=1):
        print(f"  {number}  {means or option}", file=sys.stderr)
    if question.names:
        print(f"  the columns are {listed(question.names)}", file=sys.stderr)
    numbers = [str(number) for number in range(1, len(options) + 1)]
    try:
        option = options[IntPrompt.ask("Which", console=console, choices=numbers, show_choices=False) - 1]
        for placeholder in PLACEHOLDERS:
            if option.endswith(placeholder):
                typed = Prompt.ask(placeholder.capitalize(), console=console)
                option = option.removesuffix(placeholder) + shlex.quote(typed)
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)  # what is said next begins a line
        raise
    print(option, file=sys.stderr)  # for the next time
    return option


def show_taken(columns: Columns, apart: Sequence[str]) -> None:
    """Print what was taken as what, before the answer. apart: settings by which runs are compared apart."""
    console = Console()
    print_columns(console, ["role", "taken from", "as"], [list(row) for row in columns.rows(apart)], flush="left")
    if "not taken" in columns.notes:
        console.print(Text(f"not taken: {columns.notes['not taken']}"), soft_wrap=True)
    console.print()
