"""`make bench`: what `scalestudy submit` uploads, and how long that takes, on a cluster of one raylet.

`python -m tests.bench.upload [--small]` runs this part alone. The cluster is a real one with its job server, on ports
of its own; the upload is that of Ray's client, a first time and again, when the server has the files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.studies import REPOSITORY, environment, write_spec
from tests.support.tables import Part, Rows, print_parts

PORT, DASHBOARD_PORT, AGENT_PORT = 26479, 28365, 28465
CLUSTER = REPOSITORY / "infra" / "local" / "cluster.sh"
HEADER = ["folder", "files", "MB", "looking s", "uploading s", "again s"]

PROGRAM = """
import json, sys, time
from pathlib import Path
from ray.job_submission import JobSubmissionClient
from scalestudy.orchestration.commands.submit import submission
from scalestudy.orchestration.commands.upload import upload_of

folder = Path.cwd()
asked = submission(sys.argv[1], [], [], folder)
times = [time.monotonic()]
uploads = [upload_of(each) for each in asked.folders]
times.append(time.monotonic())
client = JobSubmissionClient(sys.argv[2])
for _ in range(2):
    begun, sent = time.monotonic(), dict(asked.runtime_env)
    client._upload_working_dir_if_needed(sent)
    client._upload_py_modules_if_needed(sent)
    times.append(time.monotonic() - begun)
print(json.dumps({
    "files": sum(len(each.files) for each in uploads), "megabytes": sum(each.megabytes for each in uploads),
    "seconds": [times[1] - times[0], *times[2:]],
}))
"""


def uploads(folder: Path, *, small: bool = False) -> Rows:
    """A row for this repository, one for a user's folder with a spec."""
    with cluster(folder) as variables:
        spec = write_spec(folder)
        return [
            ["this repository", *_row(REPOSITORY, "digits-quick", variables)],
            ["a spec's folder", *_row(folder, str(spec), variables)],
        ]


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster while the measurement lasts; the variables by which a client finds it."""
    ports = {"PORT": str(PORT), "DASHBOARD_PORT": str(DASHBOARD_PORT), "AGENT_PORT": str(AGENT_PORT)}
    variables = {"BIN": str(Path(sys.executable).parent), "RAY_AUTH_MODE": "token", **ports}
    subprocess.run([CLUSTER, "start", "1", "1"], env=environment(**variables), check=True)
    try:
        yield variables
    finally:
        subprocess.run([CLUSTER, "stop"], env=environment(**variables), check=True)


def _row(folder: Path, spec: str, variables: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, spec, f"http://127.0.0.1:{DASHBOARD_PORT}"]
    paths = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=folder, env={**environment(**variables), "PYTHONPATH": paths}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    return [str(found["files"]), f"{found['megabytes']:.2f}", *(f"{seconds:.2f}" for seconds in found["seconds"])]


PARTS = {"upload": Part("Upload of ray job submit: MB and seconds", HEADER, uploads)}

if __name__ == "__main__":
    print_parts(PARTS, sys.argv[1:])
