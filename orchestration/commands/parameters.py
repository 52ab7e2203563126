"""The arguments and options that commands share, and how a shell completes them.

Completion starts a process at every key, so nothing here imports Ray, torch or MLflow, or reads more than a folder or
two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from glob import escape, glob
from pathlib import Path
from typing import Annotated

import typer

from scalestudy.experiments.spec.reading import catalogue
from scalestudy.experiments.spec.sections import LIMITS
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.base.places import version as package_version

Completion = Callable[[str], list[str]]

STUDY_MARK = "plan.json"
"""The file that marks a folder as a study's."""
MOST_NEXT = 50
"""Most trainings of `--next`. Each is chosen as if those before it had shown what is expected of them."""
LATEST = "latest"
"""Names the study that began last, in place of its folder; PLACE/latest names the last one of a place."""


def specs(incomplete: str) -> list[str]:
    """Return studies of the catalogue, and YAML files, whose names begin so."""
    names = [name for name in catalogue() if name.startswith(incomplete)]
    return [*names, *_files(incomplete, "*.yaml", "*.yml")]


def studies(incomplete: str) -> list[str]:
    """Return studies of the catalogue whose names begin so."""
    return _begun(incomplete, catalogue())


def folders(incomplete: str) -> list[str]:
    """Return `latest`, and studies' folders whose names begin so or that are in a folder whose name does."""
    latest = _begun(incomplete, [LATEST])
    return [*latest, *(str(Path(mark).parent) for mark in _files(incomplete, f"*/{STUDY_MARK}", f"*/*/{STUDY_MARK}"))]


def judged_sources(incomplete: str) -> list[str]:
    """Return files of tables whose names begin so, and studies' folders."""
    tables = _files(incomplete, *("*.csv", "*.tsv", "*.jsonl", "*.json"))
    return [*tables, *(folder for folder in folders(incomplete) if folder != LATEST)]


def data_sets(incomplete: str) -> list[str]:
    """Return the names that `data fetch` takes and that begin so."""
    from scalestudy.training.data import SOURCES

    return _begun(incomplete, SOURCES)


def words(*choices: str) -> Completion:
    """Return a completion by fixed words."""

    def choose(incomplete: str) -> list[str]:
        return _begun(incomplete, choices)

    return choose


def _files(incomplete: str, *endings: str) -> list[str]:
    begun = escape(incomplete)
    return sorted(file for ending in endings for file in glob(begun + ending))  # noqa: PTH207 - it may be absolute


def _begun(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A spec file, or the name of a study of the catalogue.",
        autocompletion=specs,
    ),
]
ValidatedSpec = Annotated[
    str | None, typer.Argument(metavar="SPEC", help="A spec file, or a study of the catalogue.", autocompletion=specs)
]
DoctorsSpec = Annotated[str, typer.Argument(metavar="[SPEC]", help="Study to check for.", autocompletion=specs)]
CatalogueStudy = Annotated[
    str | None,
    typer.Option("--from", metavar="STUDY", help="Begin from a study of the catalogue.", autocompletion=studies),
]
Folder = Annotated[
    str,
    typer.Argument(metavar="DIR", help="A study's folder, its URI, such as s3://…, or latest.", autocompletion=folders),
]
ShownStudy = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]",
        help="The study whose page is opened; default: the latest in the store.",
        autocompletion=folders,
    ),
]
JudgedSources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE…",
        help="A CSV or JSON-lines file, a folder of Ray Tune's results, mlflow:EXPERIMENT, or a study's folder.",
        autocompletion=judged_sources,
    ),
]
Extended = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Add the spec's new points, samples or budget to this study.",
        autocompletion=folders,
    ),
]
Rehearsal = Annotated[
    bool,
    typer.Option("--rehearsal/--no-rehearsal", help="Try your own code on the CPU, before the start."),
]
DataSet = Annotated[
    str,
    typer.Argument(metavar="NAME", help="mnist, fashion_mnist or cifar10.", autocompletion=data_sets),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="auto: a running cluster; local: a new one for this command.", autocompletion=words("auto", "local")
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", autocompletion=words("auto", "cpu", "cuda"))]
By = Annotated[
    str | None,
    typer.Option(help="time or cost: which of them to minimise.", autocompletion=words("time", "cost")),
]
NextCount = Annotated[
    int | None,
    typer.Option(
        "--next",
        metavar="K",
        min=1,
        max=MOST_NEXT,
        help="List the K trainings that would tell most about the answer, and what each costs.",
    ),
]
NextOut = Annotated[
    Path | None,
    typer.Option("--next-out", metavar="FILE", help="Write them: a .csv, or a .yaml with sweep.points for a spec."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable output.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the spec.")]

BudgetText = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="AMOUNT",
        help="What an adaptive search may use, in place of the spec's budget: 30min, 2h, 4wh (worker-hours), 12trials.",
    ),
]
BUDGETS = {"min": ("minutes", 1), "h": ("minutes", 60), "wh": ("worker_hours", 1), "trials": ("trials", 1)}
"""For each unit of `--budget`, the key of the spec, and how many of its units one is."""


def with_budget(overrides: Sequence[str] | None, amount: str | None) -> list[str]:
    """Return the values of `--set`, then those that `--budget` stands for. `budget.uses` stays as it is.

    amount: a number and one of the units of `BUDGETS`. None: no budget is given. Raises RequestError for other text.
    """
    given = list(overrides or ())
    if amount is None:
        return given
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(min|h|wh|trials?)", amount.strip())
    number, unit = (float(match[1]), match[2]) if match else (0.0, "")
    key, factor = BUDGETS.get("trials" if unit == "trial" else unit, ("", 1))
    if not number or (key == "trials" and not number.is_integer()):
        remedy = "write an amount above 0 with its unit: 30min, 2h, 4wh (worker-hours) or 12trials"
        raise RequestError(f"--budget: {amount}: is no budget", remedy)
    text = f"{int(number)}" if key == "trials" else f"{number * factor}"
    others = [f"budget.{other}=null" for other in LIMITS if other != key]
    return [*given, *others, f"budget.{key}={text}"]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scalestudy {package_version()}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]
