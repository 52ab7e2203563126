"""A folder whose modules have the names of ours: told before one of them is imported in place of ours."""

import pytest

from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.base.places import PACKAGES, check_not_hidden
from tests.support.studies import REPOSITORY, left_behind, scalestudy


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("file", ["{}.py", "{}/__init__.py"])
def test_a_module_that_would_hide_ours_is_named(tmp_path, package, file):
    hiding = tmp_path / file.format(package)
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("")
    with pytest.raises(RequestError, match=f"{hiding}: would be imported in place"):
        check_not_hidden(tmp_path)


def test_a_folder_without_modules_may_have_any_name(tmp_path):
    (tmp_path / "training" / "images").mkdir(parents=True)
    (tmp_path / "experiments.md").write_text("")
    check_not_hidden(tmp_path)
    check_not_hidden(REPOSITORY)
    done = scalestudy("validate", "digits-quick", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_line_refuses(tmp_path):
    (tmp_path / "training.py").write_text("raise SystemExit('imported')")
    done = scalestudy("plan", "digits-quick", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{tmp_path / 'training.py'}: would be imported in place of scalestudy's own module; "
        "rename it, or type the command in another folder\n"
    )
    assert left_behind(tmp_path) == ["training.py"]
