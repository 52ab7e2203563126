"""The command line's arguments and options: what several commands take, and what a shell can complete."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration import completion

Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A spec file, or the name of a study of the catalogue.",
        autocompletion=completion.specs,
    ),
]
DoctorsSpec = Annotated[
    str, typer.Argument(metavar="[SPEC]", help="The study that is to run here.", autocompletion=completion.specs)
]
BenchsSpec = Annotated[
    str | None, typer.Argument(metavar="[SPEC]", help="Of max-batch: the study.", autocompletion=completion.specs)
]
Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="A study's folder, or its URI, such as s3://….", autocompletion=completion.folders
    ),
]
Folders = Annotated[
    list[str],
    typer.Argument(
        metavar="DIR DIR…", help="Folders of studies; the first is the base.", autocompletion=completion.folders
    ),
]
Extended = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Add the spec's new points or samples to this study.",
        autocompletion=completion.folders,
    ),
]
Experiment = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="async, compile, export, parallel, overlap, allreduce or max-batch.",
        autocompletion=completion.experiments,
    ),
]
DataSet = Annotated[
    str,
    typer.Argument(metavar="NAME", help="mnist, fashion_mnist or cifar10.", autocompletion=completion.data_sets),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="auto: a running cluster; local: one of its own.", autocompletion=completion.words("auto", "local")
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", autocompletion=completion.words("auto", "cpu", "cuda"))]
By = Annotated[
    str | None,
    typer.Option(help="time or cost: what to have least of.", autocompletion=completion.words("time", "cost")),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable output.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Put a value in place of the spec's.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from orchestration import __version__

        typer.echo(f"scalestudy {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]
