"""What a suite catches: faults that were mended once, put back into the product.

    python -m tests.bench.history SUITE [SUITE …] --commits 300 --until COMMIT --into history.json

Of the last commits each one counts whose change of the product still goes back by itself (`git apply -R`). It is taken
back in each suite, a clone or worktree, and the tests run that belong to its files: those of the same room and name,
and those that the commit changed itself, where the suite has them. What an older suite catches a newer one must.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.mutants import PACKAGES, run_tests
from tests.support.project_files import REPOSITORY

SECONDS = 300.0


def git(folder: Path, *arguments: str, patch: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run git in a folder."""
    return subprocess.run(["git", *arguments], cwd=folder, input=patch, capture_output=True, text=True, check=False)


def going_back(suites: Sequence[Path], commits: int, until: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield commit, patch of the product, and all files of each commit whose patch goes back in all suites."""
    for commit in git(REPOSITORY, "log", f"-{commits}", "--no-merges", "--format=%H", until).stdout.split():
        patch = git(REPOSITORY, "show", "--format=", commit, "--", *PACKAGES).stdout
        if patch and not any(git(suite, "apply", "-R", "--check", "-", patch=patch).returncode for suite in suites):
            yield commit, patch, git(REPOSITORY, "show", "--format=", "--name-only", commit).stdout.split()


def tests_of(suite: Path, files: Sequence[str]) -> list[str]:
    """Return the test modules that belong to files of a commit, and are there."""
    product = [Path(file) for file in files if file.startswith(PACKAGES)]
    mirrored = [Path("tests/unit", file.parent, f"test_{file.stem}.py") for file in product]
    own = [Path(file) for file in files if file.startswith(("tests/unit/", "tests/ray/")) and "/test_" in file]
    return sorted({str(file) for file in (*mirrored, *own) if (suite / file).is_file()})


def main() -> None:
    """Ask each suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", type=Path)
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--until", default="HEAD")
    parser.add_argument("--into", type=Path, required=True)
    given = parser.parse_args()
    suites = [suite.resolve() for suite in given.suites]
    found = []
    for commit, patch, files in going_back(suites, given.commits, given.until):
        told = []
        for suite in suites:
            tests = tests_of(suite, files)
            if not tests or run_tests(suite, tests, SECONDS, "not chaos") != "passed":
                told.append("no tests" if not tests else "fails anyway")
                continue
            git(suite, "apply", "-R", "-", patch=patch).check_returncode()
            try:
                told.append(run_tests(suite, tests, SECONDS, "not chaos"))
            finally:
                git(suite, "apply", "-", patch=patch).check_returncode()
        subject = git(REPOSITORY, "show", "-s", "--format=%s", commit).stdout.strip()
        found.append({"commit": commit, "subject": subject, "outcomes": told})
        print(*told, commit[:8], subject, sep="\t", flush=True)
        given.into.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
