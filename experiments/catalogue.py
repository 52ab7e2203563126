"""Stage 1, study spec: the studies that come with the package, and finding one by name or path."""

from pathlib import Path

from experiments.spec_errors import did_you_mean, one_problem

STUDIES = Path(__file__).parent / "studies"


def catalogue() -> list[str]:
    """Names of the studies that come with the package, sorted."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def find_study(name_or_path: str) -> Path:
    """The spec file of a catalogue name or a path; a file in the current folder wins only when written as a path.

    Raises SpecError, listing the catalogue, when there is neither.
    """
    if name_or_path in catalogue():
        return STUDIES / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    try:
        there = bool(name_or_path) and path.exists()
    except (OSError, ValueError):
        there = False
    if there:
        return path
    names = catalogue()
    guess = did_you_mean(path.name, names)
    remedy = f"{guess}name a YAML file, or a study of the catalogue: {', '.join(names)}"
    raise one_problem(name_or_path or '""', "there is no such file or study", remedy)
