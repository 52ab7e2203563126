"""PostgreSQL, an S3 server and MLflow with passwords, by `infra/mlflow/server.sh`: the parts that a team would run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2

from tests.support.object_store import BUCKET, ObjectStore
from tests.support.ports import free_ports
from tests.support.studies import REPOSITORY, environment

SCRIPT = REPOSITORY / "infra" / "mlflow" / "server.sh"
USER = "alice"
SECRETS = {
    "MLFLOW_ADMIN_PASSWORD": "administrator-7f3a",
    "MLFLOW_SECRET_KEY": "signs-the-forms-51c9",
    "POSTGRES_PASSWORD": "the-database-88d0",
    "S3_SECRET_KEY": "the-bucket-46bb",
}
PASSWORD = "alice-and-nobody-2e"


class MlflowStack:
    """The parts, with ports, a settings file and a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ObjectStore(folder, empty=True)
        self.port, self.postgres_port = free_ports(2)
        settings = {
            "MLFLOW_PORT": self.port,
            "MLFLOW_ADMIN_USERNAME": "admin",
            "POSTGRES_PORT": self.postgres_port,
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{self.store.port}",
            "S3_BUCKET": BUCKET,
            "S3_ACCESS_KEY": "store",
            **SECRETS,
        }
        self._settings = folder / "settings.env"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        self._settings.chmod(0o600)

    @property
    def uri(self) -> str:
        """Where MLflow answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def login(self) -> dict[str, str]:
        """What a user sets to reach it."""
        return {
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": PASSWORD,
        }

    @property
    def storage(self) -> tuple[str, dict[str, str]]:
        """A place in the bucket for studies, and what a user sets to reach it."""
        keys = {"AWS_ACCESS_KEY_ID": "store", "AWS_SECRET_ACCESS_KEY": SECRETS["S3_SECRET_KEY"]}
        return self.store.uri("runs"), keys

    def script(self, *arguments: str | Path, answer: str = "") -> subprocess.CompletedProcess[str]:
        """Runs server.sh, as one types it; answer: what it is told when it asks."""
        own = {"ENV_FILE": str(self._settings), "STATE_DIR": str(self.folder / "state"), "MLFLOW_WORKERS": "1"}
        kept = {name: value for name, value in environment().items() if not name.startswith("MLFLOW_TRACKING_")}
        return subprocess.run(
            [SCRIPT, *map(str, arguments)],
            env={**kept, **own, "BIN": str(Path(sys.executable).parent)},
            input=answer,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def must(self, *arguments: str | Path, answer: str = "") -> str:
        """Runs server.sh; what it printed. It must go well."""
        done = self.script(*arguments, answer=answer)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        """A bucket, the database, the server, and a user."""
        self.must("bucket")
        self.must("start")
        self.must("user", USER, answer=f"{PASSWORD}\n")

    @contextmanager
    def connection(self, database: str) -> Iterator[None]:
        """Somebody who is connected to a database."""
        opened = psycopg2.connect(
            host="127.0.0.1",
            port=self.postgres_port,
            dbname=database,
            user="mlflow",
            password=SECRETS["POSTGRES_PASSWORD"],
        )
        try:
            yield
        finally:
            opened.close()

    def close(self) -> None:
        """Ends every part."""
        stopped = self.script("stop")
        self.store.stop()
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr


@contextmanager
def mlflow_stack() -> Iterator[MlflowStack]:
    """The parts for a while, none but the S3 server started. Their folder is one that PostgreSQL's user may enter."""
    with tempfile.TemporaryDirectory(prefix="mlflow-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        stack = MlflowStack(Path(name))
        try:
            yield stack
        finally:
            stack.close()
