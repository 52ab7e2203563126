"""infra/mlflow's compose file, as far as it can be judged without Docker: versions, ports, health, secrets."""

import re
import subprocess
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.project_files import REPOSITORY
from tests.unit.infra.manifests import pinned

HERE = REPOSITORY / "infra" / "mlflow"
COMPOSE = (HERE / "compose.yaml").read_text("utf-8")
SERVICES = yaml.safe_load(COMPOSE)["services"]
SETTINGS = dict(re.findall(r"^([A-Z][A-Z0-9_]*)=(.*)$", (HERE / ".env.example").read_text("utf-8"), re.MULTILINE))
SECRETS = ("MLFLOW_ADMIN_PASSWORD", "MLFLOW_SECRET_KEY", "POSTGRES_PASSWORD", "S3_SECRET_KEY")


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name):
    image = SERVICES[name]["image"]
    assert re.search(r":[\w.-]*\d[\w.-]*$", image), image


def test_the_server_s_packages_are_the_tested_ones():
    """Those that server.sh's machine has, and all that they bring, by constraints.txt."""
    text = (HERE / "Dockerfile").read_text("utf-8")
    (installed,) = re.findall(r"pip install .*-c /tmp/constraints.txt (.*) \\", text)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    server = {Requirement(text).name for text in project["optional-dependencies"]["server"]}
    assert set(installed.split()) == {"mlflow", *server}
    assert SERVICES["mlflow"]["image"].endswith(f":{pinned('mlflow')}")


def test_the_server_s_image_is_built_where_its_file_copies_from():
    build = SERVICES["mlflow"]["build"]
    context = (HERE / build["context"]).resolve()
    assert context == REPOSITORY
    assert context / build["dockerfile"] == HERE / "Dockerfile"
    copied = re.findall(r"^COPY (\S+) ", (HERE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert copied == ["constraints.txt"]
    assert f"!{copied[0]}" in (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()


def test_all_that_mlflow_brings_is_pinned():
    """Else pip would choose versions on the day of the build."""
    wanted, found = ["mlflow", "boto3", "Flask-WTF", "psycopg2-binary"], set()
    while wanted:
        if (name := canonicalize_name(wanted.pop())) not in found:
            found.add(name)
            wanted += [
                each.name
                for each in map(Requirement, metadata.requires(name) or ())
                if not each.marker or each.marker.evaluate({"extra": ""})
            ]
    assert len(found) > 40
    assert not [name for name in found if not pinned(name)]


def test_only_mlflow_has_a_port_and_it_is_on_loopback():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"mlflow": ["${MLFLOW_HOST:-127.0.0.1}:${MLFLOW_PORT:-5000}:5000"]}
    assert SETTINGS["MLFLOW_HOST"] == "127.0.0.1"


def test_what_stays_up_has_a_health_check_and_what_needs_it_waits():
    assert {name for name, service in SERVICES.items() if "healthcheck" in service} == set(SERVICES) - {"bucket"}
    waits = {name: part["condition"] for name, part in SERVICES["mlflow"]["depends_on"].items()}
    assert waits == {"postgres": "service_healthy", "bucket": "service_completed_successfully"}


def test_secrets_come_from_the_env_file_alone():
    used = set(re.findall(r"\$\{([A-Z0-9_]+)", COMPOSE))
    assert used <= set(SETTINGS)
    assert set(SECRETS) <= used
    assert [SETTINGS[name] for name in SECRETS] == [""] * len(SECRETS)
    for line in COMPOSE.splitlines():
        assert not re.search(r"^ *\w*(PASSWORD|SECRET|KEY)\w*: *(?!\$\{)\S", line), line
    ignored = subprocess.run(["git", "check-ignore", "--quiet", HERE / ".env"], cwd=REPOSITORY, check=False)
    assert ignored.returncode == 0


def test_init_makes_passwords_that_nobody_else_reads(tmp_path):
    made = []
    for name in ("one", "two"):
        file = tmp_path / name
        server = ["bash", HERE / "server.sh"]
        subprocess.run([*server, "init"], env={"ENV_FILE": str(file), "HOME": "/", "PATH": "/usr/bin:/bin"}, check=True)
        assert file.stat().st_mode & 0o077 == 0
        made.append(dict(re.findall(r"^(\w+)=(.*)$", file.read_text("utf-8"), re.MULTILINE)))
    assert made[0].keys() == SETTINGS.keys()
    assert all(len(made[0][name]) >= 32 for name in SECRETS)
    assert len({values[name] for values in made for name in SECRETS}) == 2 * len(SECRETS)
