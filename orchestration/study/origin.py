"""Who runs a study, from what, at which commit of git and in which job: what its runs in MLflow say of it."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.places import JOB_CONFIG
from scalestudy.orchestration.groups.events import Origin

GIT_SECONDS = 5.0
USER_KEY, COMMIT_KEY = "scalestudy_user", "scalestudy_git_commit"
"""What `submit` passes to the job: the cluster has neither that user nor the .git folder."""
JOB_KEY = "job_submission_id"  # of Ray's own


def origin_of(source: Any = None) -> Origin:
    """Return where a run of a study comes from. None: unknown.

    source: the spec as the user named it, a path or a name of the catalogue; anything else: the running script.
    """
    told = _told_by_the_job()
    named = str(source) if isinstance(source, str | Path) else Path(sys.argv[0]).name or "python"
    folder = Path(named).parent if isinstance(source, str | Path) else Path.cwd()
    return Origin(
        user=told.get(USER_KEY) or user_name(),
        source=named,
        commit=told.get(COMMIT_KEY) or git_commit(folder),
        job=told.get(JOB_KEY),
    )


def user_name() -> str | None:
    """Return the tracking server's user, else the one of this machine; None: the machine has no name for it."""
    try:
        return os.environ.get("MLFLOW_TRACKING_USERNAME") or getpass.getuser()
    except (KeyError, OSError):  # a container may know the user's number alone
        return None


def git_commit(folder: Path) -> str | None:
    """Return the commit that a folder is at; None where there is no git, or no commit in it."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def job_metadata(folder: Path) -> dict[str, str]:
    """Return what `submit` passes to a job about the place of submission."""
    known = {USER_KEY: user_name(), COMMIT_KEY: git_commit(folder)}
    return {key: value for key, value in known.items() if value}


def _told_by_the_job() -> Mapping[str, str]:
    """Return the metadata of the Ray job that this process runs; empty: it runs none."""
    try:
        metadata = json.loads(os.environ.get(JOB_CONFIG, "{}"))["metadata"]
        return {str(key): str(value) for key, value in metadata.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
