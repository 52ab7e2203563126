"""`scalestudy submit`: hands a study to Ray's job server, and follows it."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.experiments.spec.reading import catalogue
from scalestudy.orchestration.base.errors import ExitCode, RequestError, UnreachableError, first_line
from scalestudy.orchestration.base.places import PACKAGE, ROOT
from scalestudy.orchestration.cluster.connection import TOKEN_REMEDY, first_sentence
from scalestudy.orchestration.study.folders import read_trained_spec
from scalestudy.orchestration.study.origin import job_metadata
from scalestudy.orchestration.study.ready import check_callables
from scalestudy.training.proxies import ask_here_directly, through
from scalestudy.training.redaction import SHORTEST_SECRET, credentials_in, redacted


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job in the form that Ray's job server takes."""

    entrypoint: str
    runtime_env: dict[str, Any]

    @property
    def secrets(self) -> list[str]:
        """The values of its variables, which no message may repeat."""
        values = self.runtime_env.get("env_vars", {}).values()
        return [value for value in values if len(value) >= SHORTEST_SECRET]


def submission(
    spec: str, overrides: Sequence[str], variables: Sequence[str], folder: Path, *, rehearsal: bool = True
) -> Submission:
    """Return the job that runs a study.

    The current folder travels along, with the spec and the user's modules. This package travels too, so that the
    cluster runs the same version.

    Args:
        spec: a path in `folder`, or a catalogue name.
        overrides: as `run` takes them.
        variables: for the job's environment: `NAME=VALUE`, or `NAME` for the value that it has in this process.
        folder: what travels along; `.rayignore` names what stays behind.
        rehearsal: whether the job rehearses the study before it starts.

    Raises RequestError for a spec in another folder, for text that is no variable, and for a password: everybody who
    sees the cluster's jobs can read the job's command.
    """
    for override in overrides:
        if credentials_in(override):
            problem = f"--set: {redacted(override)}: holds a password, and the job's command line would show it"
            raise RequestError(problem, "set MLFLOW_TRACKING_URI, and pass it with --env MLFLOW_TRACKING_URI")
    arguments = ["run", _spec_in(spec, folder), *(part for each in overrides for part in ("--set", each))]
    arguments += [] if rehearsal else ["--no-rehearsal"]
    modules = [] if folder == ROOT else [str(PACKAGE)]
    env_vars = dict(_variable(each, os.environ) for each in variables)
    return Submission(
        entrypoint=shlex.join(["python", "-m", "scalestudy", *arguments]),
        runtime_env={
            "working_dir": str(folder),
            **({"py_modules": modules, "excludes": ["__pycache__"]} if modules else {}),
            **({"env_vars": env_vars} if env_vars else {}),
        },
    )


def _spec_in(spec: str, folder: Path) -> str:
    if spec in catalogue():
        return spec
    path = Path(spec).resolve()
    if not path.is_relative_to(folder):
        raise RequestError(
            f"SPEC: {spec}: is outside the current folder, which is all that travels with the job",
            "copy it here, or run the command in its folder",
        )
    return str(path.relative_to(folder))


def _variable(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the value of one of the job's variables. Errors repeat its name alone."""
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise RequestError(f"--env: {name}: is not NAME=VALUE or NAME", "write it like --env MLFLOW_TRACKING_PASSWORD")
    if not equals and name not in environment:
        raise RequestError(f"--env: {name}: is not set in this environment", f"set it, or write --env {name}=VALUE")
    return name, value if equals else environment[name]


def submit_study(
    spec: str,
    overrides: Sequence[str] = (),
    *,
    address: str,
    variables: Sequence[str] = (),
    wait: bool = True,
    rehearsal: bool = True,
) -> int:
    """Submit a study as a job and, with `wait`, print its output until its end; return the exit status.

    Raises SpecError or RequestError for what `run` would refuse, UnreachableError where no job server answers or it
    refuses the token or the job.
    """
    study = read_trained_spec(spec, overrides)
    check_callables(study)
    asked = submission(spec, overrides, variables, Path.cwd(), rehearsal=rehearsal)
    client = _client(address)
    try:
        job = client.submit_job(
            entrypoint=asked.entrypoint, runtime_env=asked.runtime_env, metadata=job_metadata(Path.cwd())
        )
    except Exception as error:  # the client raises RuntimeError with the server's words
        said = redacted(first_line(error), asked.secrets)
        raise UnreachableError(
            f"--address: {address}: the job was refused ({said})", "read the server's message; nothing was started"
        ) from None
    server = redacted(address)
    print(f"job: {job} at {server}; to stop it: ray job stop --address {server} {job}", flush=True)
    if not wait:
        return ExitCode.DONE
    try:
        asyncio.run(_follow(client, job))
        return _exit_status(client, job)
    except KeyboardInterrupt:
        print(f"the job goes on; its log: ray job logs --address {server} --follow {job}")
        raise
    except (RuntimeError, OSError) as error:  # the server is gone, or has closed the stream
        remedy = f"the job may go on; its log: ray job logs --address {server} --follow {job}"
        raise UnreachableError(f"--address: {server}: the job's log broke off ({first_line(error)})", remedy) from error


def _client(address: str) -> Any:
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    ask_here_directly(address)
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        raise UnreachableError(
            f"--address: {address}: the cluster refuses this token, or requires one ({first_sentence(str(error))})",
            TOKEN_REMEDY,
        ) from error
    except Exception as error:
        remedy = "start the cluster, correct the address, or set RAY_AUTH_MODE=token with the cluster's token"
        problem = f"--address: {address}{through(address)}: no job server answers ({first_line(error)})"
        raise UnreachableError(problem, remedy) from error


async def _follow(client: Any, job: str) -> None:
    async for lines in client.tail_job_logs(job):
        print(lines, end="", flush=True)


def _exit_status(client: Any, job: str) -> int:
    """Return the study's exit status where the job server knows it; else whether the job succeeded."""
    while (info := client.get_job_info(job)).status in ("PENDING", "RUNNING"):
        time.sleep(1.0)  # the log may end a little before the job
    if info.driver_exit_code is not None:
        return int(info.driver_exit_code)
    return ExitCode.DONE if info.status == "SUCCEEDED" else ExitCode.SOME_FAILED
