"""What travels with a job is what Ray packs, and of this repository it is little."""

from zipfile import ZipFile

import pytest
from ray._private import ray_constants
from ray._private.runtime_env.packaging import create_package

from scalestudy.orchestration.commands.submit import submission
from scalestudy.orchestration.commands.upload import check_upload, upload_of
from tests.support.studies import REPOSITORY, write_spec


def packed(folder, target):
    """What Ray writes into its package: sizes by name."""
    excludes = ray_constants.get_runtime_env_default_excludes()
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    with ZipFile(target) as package:
        return {info.filename: info.file_size for info in package.infolist() if not info.is_dir()}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    for name in ("model.py", "runs/a/trials.jsonl", "kept/b.txt", "kept/left/c.txt", "__pycache__/d.pyc", "e.log"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (folder / ".rayignore").write_text("runs/\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "kept" / ".rayignore").write_text("left\n")
    return folder


@pytest.mark.parametrize("ignore_gitignore", ["0", "1"])
def test_it_is_what_ray_packs(folder, tmp_path, monkeypatch, ignore_gitignore):
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", ignore_gitignore)
    found = {str(file): size for file, size in upload_of(folder).files.items()}
    wanted = {"model.py", "kept/b.txt", ".rayignore", ".gitignore", "kept/.rayignore"}
    assert found.keys() == wanted | ({"e.log"} if ignore_gitignore == "1" else set())
    if ignore_gitignore == "0":
        assert found == packed(folder, tmp_path / "package.zip")


def test_the_repository_itself(tmp_path):
    package = tmp_path / "package.zip"
    found = upload_of(REPOSITORY)
    assert packed(REPOSITORY, package) == {str(file): size for file, size in found.files.items()}
    assert package.stat().st_size < 5_000_000
    assert {file.parts[0] for file in found.files if len(file.parts) > 1} <= {
        "orchestration", "training", "experiments",
    }  # fmt: skip


def test_the_repositorys_passwords_stay_where_gitignore_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    (tmp_path / ".rayignore").write_text((REPOSITORY / ".rayignore").read_text("utf-8"))
    for name in (".env", "infra/mlflow/.env", "training/.env", "training/loop/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert {str(file) for file in upload_of(tmp_path).files} == {".rayignore", "training/loop/train.py"}


def test_from_another_folder_the_packages_travel_too(tmp_path):
    asked = submission(str(write_spec(tmp_path)), [], [], tmp_path)
    assert asked.folders == [tmp_path, *(REPOSITORY / name for name in ("orchestration", "training", "experiments"))]
    megabytes = check_upload(asked.folders)
    assert 0.5 < megabytes < 5
    assert asked.runtime_env["excludes"] == ["__pycache__"]
