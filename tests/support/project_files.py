"""The project's own files: tracked, or new and not ignored; never what merely lies about in a working tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
"""The root of the project."""


def project_files(*patterns: str) -> list[str]:
    """The files that git's patterns match, such as `*.md` or a folder; without one all of them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.splitlines() if (REPOSITORY / name).is_file()})


def copy_project(folder: Path) -> Path:
    """The project in a folder of its own, with its links."""
    for name in project_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, folder / name)
    for package in ("orchestration", "training", "experiments"):
        (folder / "scalestudy" / package).symlink_to(Path("..", package))
    return folder
