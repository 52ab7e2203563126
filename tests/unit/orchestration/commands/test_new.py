"""`scalestudy new`: where the file lies, and what is refused without a trace."""

import pytest

from scalestudy.experiments.spec.reading import SpecError
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.folder import write_new_spec
from scalestudy.orchestration.study.folders import read_spec
from tests.support.in_process import scalestudy
from tests.support.studies import left_behind


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words").mkdir()


@pytest.mark.parametrize(
    ("given", "file", "name"),
    [
        ("mine", "mine.yaml", "mine"),
        ("mine.yaml", "mine.yaml", "mine"),
        ("mine.yml", "mine.yml", "mine"),
        ("v1.5", "v1.5.yaml", "v1.5"),
        ("two words/mine", "two words/mine.yaml", "mine"),
        ("two words/../mine.yaml", "two words/../mine.yaml", "mine"),
        ("digits-quick", "digits-quick.yaml", "digits-quick"),
    ],
)
def test_where_it_lies_and_what_it_is_named(tmp_path, given, file, name):
    assert str(write_new_spec(given)) == file
    assert read_spec(file).name == name


def test_its_commands_name_the_file(tmp_path):
    text = write_new_spec("two words/mine").read_text("utf-8")
    assert "scalestudy run 'two words/mine.yaml'" in text
    assert "NAME" not in text


@pytest.mark.parametrize("name", ["", ".", "..", ".yaml", "two words/", "a b", "two words/a b", "-x", "ä", "x" * 65])
def test_a_name_that_a_spec_refuses(tmp_path, name):
    with pytest.raises(SpecError, match="can't name a folder"):
        write_new_spec(name)
    assert left_behind(tmp_path) == ["two words"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RequestError, match=r"none/mine\.yaml: .*No such file.*; name a folder that is there"):
        write_new_spec("none/mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"file/mine\.yaml: .*; name a folder that is there"):
        write_new_spec("file/mine")


@pytest.mark.parametrize("given", ["mine", "mine.yaml"])
def test_a_file_that_is_there_is_left_alone(tmp_path, given):
    (tmp_path / "mine.yaml").write_text("kept")
    done = scalestudy("new", given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "NAME: mine.yaml: is there already; choose another name, or move the file\n"
    assert (tmp_path / "mine.yaml").read_text() == "kept"


def test_a_link_that_leads_nowhere_is_left_alone(tmp_path):
    (tmp_path / "mine.yaml").symlink_to("elsewhere.yaml")
    with pytest.raises(RequestError, match="is there already"):
        write_new_spec("mine")
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_the_command_line_writes_one_and_says_what_comes_next(tmp_path):
    done = scalestudy("new", "two words/mine", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "two words/mine.yaml; to check it: scalestudy validate 'two words/mine.yaml'" in done.stdout
    refused = scalestudy("new", "-x", cwd=tmp_path)
    assert refused.returncode == 2
