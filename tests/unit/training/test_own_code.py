"""Which files a user's module is made of, and when their hashes change."""

import importlib
import os
import shutil
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from scalestudy.training.own_code import named_modules, own_files

LEAF = "VALUE = 1\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes files into a folder that Python searches; what a test imports of them is forgotten after it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(files):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    yield write
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


SHAPES = {
    "a module beside it": ({"mine.py": "import glue\n", "glue.py": LEAF}, "glue.py"),
    "what that imports in turn": ({"mine.py": "import glue\n", "glue.py": "import deep\n", "deep.py": LEAF}, "deep.py"),
    "a name of a module": ({"mine.py": "from glue import VALUE\n", "glue.py": LEAF}, "glue.py"),
    "a package": ({"mine.py": "import net\n", "net/__init__.py": LEAF}, "net/__init__.py"),
    "a module of a package": (
        {"mine.py": "import net.layers as layers\n", "net/__init__.py": "", "net/layers.py": LEAF},
        "net/layers.py",
    ),
    "the package of a module": (
        {"mine.py": "import net.layers\n", "net/__init__.py": LEAF, "net/layers.py": ""},
        "net/__init__.py",
    ),
    "a module from a package": (
        {"mine.py": "from net import layers\n", "net/__init__.py": "", "net/layers.py": LEAF},
        "net/layers.py",
    ),
    "a relative import": (
        {
            "mine.py": "import net.deep.top\n",
            "net/__init__.py": "",
            "net/deep/__init__.py": "from . import top\n",
            "net/deep/top.py": "from ..blocks import VALUE\n",
            "net/blocks.py": LEAF,
        },
        "net/blocks.py",
    ),
    "a package without __init__.py": ({"mine.py": "from parts.a import VALUE\n", "parts/a.py": LEAF}, "parts/a.py"),
    "an import inside a function": ({"mine.py": "def build():\n    import glue\n", "glue.py": LEAF}, "glue.py"),
    "a circle": ({"mine.py": "import glue\n", "glue.py": "import mine\n"}, "glue.py"),
    "import_module": (
        {"mine.py": "import importlib\nglue = importlib.import_module('glue')\n", "glue.py": LEAF},
        "glue.py",
    ),
    "import_module by a relative name": (
        {
            "mine.py": "import net\n",
            "net/__init__.py": "from importlib import import_module\nimport_module('.a', __name__)\n",
            "net/a.py": LEAF,
        },
        "net/a.py",
    ),
    "a compiled extension": (
        {"mine.py": "import fast\n", f"fast{EXTENSION_SUFFIXES[0]}": LEAF},
        f"fast{EXTENSION_SUFFIXES[0]}",
    ),
    "text that is no Python": ({"mine.py": "import glue\n", "glue.py": "def (\n"}, "glue.py"),
}


@pytest.mark.parametrize(("files", "edited"), SHAPES.values(), ids=SHAPES)
def test_an_edit_of_what_it_imports_changes_one_hash_and_nothing_is_run(project, files, edited):
    folder = project(files)
    before = own_files("mine")
    assert before.keys() == files.keys()
    (folder / edited).write_text(files[edited] + "\n# a comment counts too\n")
    after = own_files("mine")
    assert {name for name in before if before[name] != after[name]} == {edited}
    assert not {"mine", "glue", "net", "fast"} & sys.modules.keys()


def test_time_and_place_of_files_do_not_count(project, monkeypatch):
    folder = project({"mine.py": "from net import layers\n", "net/__init__.py": "", "net/layers.py": LEAF})
    before = own_files("mine")
    os.utime(folder / "net/layers.py", (1, 1))
    assert own_files("mine") == before
    moved = shutil.move(folder, folder.with_name("elsewhere"))
    monkeypatch.syspath_prepend(moved)
    assert own_files("mine") == before
    assert len(before) == 3


def test_a_file_that_takes_the_place_of_an_installed_module_counts(project):
    folder = project({"mine.py": "import yaml_is_not_installed_by_this_name\n"})
    before = own_files("mine")
    (folder / "yaml_is_not_installed_by_this_name.py").write_text(LEAF)
    importlib.invalidate_caches()
    assert own_files("mine").keys() - before.keys() == {"yaml_is_not_installed_by_this_name.py"}


def test_modules_in_an_archive(tmp_path, monkeypatch):
    archive = tmp_path / "code.zip"
    for text in (LEAF, "VALUE = 2\n"):
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr("zipped.py", "import zipped_glue\n")
            files.writestr("zipped_glue.py", text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(archive)
            sys.path_importer_cache.pop(str(archive), None)  # it keeps an archive's table of contents
            found = own_files("zipped")
        if text == LEAF:
            first = found
    assert found.keys() == first.keys() == {"zipped.py", "zipped_glue.py"}
    assert found["zipped.py"] == first["zipped.py"]
    assert found["zipped_glue.py"] != first["zipped_glue.py"]


def test_where_names_are_put_together_all_modules_of_the_folder_count(project):
    registry = "import importlib, pkgutil\nfor each in pkgutil.iter_modules(__path__):\n"
    registry += "    importlib.import_module(f'zoo.{each.name}')\n"
    files = {
        "zoo/__init__.py": registry,
        "zoo/lion.py": LEAF,
        "zoo/cats/__init__.py": "from . import tiger\n",
        "zoo/cats/tiger.py": LEAF,
    }
    folder = project({**files, "zoo/cats/alone.py": LEAF, "beside.py": LEAF})
    assert own_files("zoo").keys() == files.keys()
    (folder / "mine.py").write_text("def build(name):\n    return __import__('model_' + name)\n")
    (folder / "model_a.py").write_text(LEAF)
    importlib.invalidate_caches()
    assert {"mine.py", "model_a.py", "beside.py"} <= own_files("mine").keys()


@pytest.mark.parametrize(
    "module", ["json", "sys", "yaml", "torch.optim", "scalestudy.training.models", "no_such_module"]
)
def test_what_is_installed_ours_or_nowhere_has_no_files(module):
    assert own_files(module) == {}


def test_what_pip_has_put_into_a_folder_of_any_name_is_installed(project, monkeypatch):
    folder = project({"mine.py": "import theirs\n", "theirs/__init__.py": LEAF})
    assert own_files("mine").keys() == {"mine.py", "theirs/__init__.py"}
    libraries = folder.parent / "libraries"
    libraries.mkdir()
    shutil.move(folder / "theirs", libraries)
    record = libraries / "theirs-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("theirs/__init__.py,sha256=x,12\ntheirs-1.0.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(libraries)
    assert own_files("mine").keys() == {"mine.py"}


def test_a_spec_names_modules_wherever_a_value_is_a_callable_s_name():
    workload = {"model": "mine:build", "model_args": {"init": "start.draw:zeros"}, "data": "digits", "loss": "mse"}
    sweep = {"train.optimizer.name": ["adam", "lions:Lion"], "points": [{"train.schedule": "slow:factor"}]}
    assert named_modules(workload, sweep, sweep) == ("mine", "start.draw", "lions", "slow")
    others = ["s3://bucket/x", "cuda:0", "C:\\data", "a:b c", "12:30", ":", "mine:", 3, None]
    assert named_modules({"data_args": {"all": others}}) == ()
