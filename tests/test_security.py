"""What a spec and stored files may do to the process that reads them. docs/security.md says it in words."""

import ast
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from scalestudy.experiments.spec.reading import SpecError
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.mlflow_limits import artifact_folder
from scalestudy.orchestration.base.errors import StudyError
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.opening import new_folder, new_study_id, storage_of
from scalestudy.orchestration.study.ready import check_callables
from tests.support.studies import write_spec
from tests.test_architecture import PACKAGES, ROOT, sources

MAKES_OBJECTS = {
    "pickle": {"load", "loads", "Unpickler"},
    "cloudpickle": {"load", "loads"},
    "dill": {"load", "loads"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "pandas": {"read_pickle"},
    "pd": {"read_pickle"},
    "yaml": {
        "load",
        "load_all",
        "full_load",
        "full_load_all",
        "unsafe_load",
        "unsafe_load_all",
        "Loader",
        "FullLoader",
        "UnsafeLoader",
    },
}
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
RUNS_COMMANDS = {"os": {"system", "popen"}, "importlib": {"import_module"}, "runpy": {"run_path", "run_module"}}
ALLOWED = {
    "training/data/cifar.py": {"pickle.Unpickler"},  # restricted to arrays of bytes, after the file's checksum
    "training/data/readers.py": {"pickle.loads"},  # exceptions of the training's own loader processes
    "training/process_state.py": {"importlib.import_module"},  # the modules that the user names
    "training/registry.py": {"importlib.import_module"},  # package.module:callable, as the user names it
    "training/gpu_state.py": {"importlib.import_module"},  # pynvml, which may be missing
}
IMPORT_PATHS = {
    *("workload.model", "workload.data", "workload.loss", "workload.metric", "workload.task"),
    *("train.gradient_sync", "train.optimizer.name", "train.schedule"),
}


def findings(tree):
    """Names that make objects from stored bytes, or run code; also under other names, if they are imported so."""
    table = {**MAKES_OBJECTS, **RUNS_COMMANDS}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in table.get(module, ()):
                yield f"{module}.{name}"
            case ast.ImportFrom(module=module, names=names):
                yield from (f"{module}.{each.name}" for each in names if each.name in table.get(module, ()))
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name in table and each.asname not in {None, *table})
            case ast.Name(id=name, ctx=ast.Load()) if name in RUNS_CODE:
                yield name
            case ast.keyword(arg="allow_pickle" | "shell" as name, value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield f"{name}="


def test_nothing_read_from_storage_makes_objects_or_runs():
    found = {
        str(file.relative_to(ROOT)): set(findings(ast.parse(file.read_text("utf-8"))))
        for package in PACKAGES
        for file in sources(package)
    }
    assert {file: names for file, names in found.items() if names} == ALLOWED


BAD = """
pickle.loads(x)
from pickle import loads
import pickle as p
np.load(f, allow_pickle=True)
yaml.load(x)
yaml.compose(x, Loader=yaml.Loader)
exec(x)
subprocess.run(x, shell=True)
class A(pickle.Unpickler): pass
"""


@pytest.mark.parametrize("code", BAD.strip().splitlines())
def test_what_is_looked_for_is_found(code):
    assert list(findings(ast.parse(code)))


def test_torch_loads_weights_alone():
    """In the programs too that are kept as text."""
    calls = [
        (file.name, call)
        for package in (*PACKAGES, "docs")
        for file in sources(package)
        for call in re.findall(r"\btorch\.load\((?:[^()]|\([^()]*\))*\)", file.read_text("utf-8"))
    ]
    assert len(calls) >= 3
    assert [call for call in calls if "weights_only=True" not in call[1]] == []


def text_fields(data, prefix=""):
    """Dotted paths of every key whose default is a text or nothing."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from text_fields(value, f"{prefix}{key}.")
        elif value is None or isinstance(value, str | bool):
            yield f"{prefix}{key}"


FIELDS = sorted(text_fields(StudySpec(name="x").model_dump(mode="json")))


@pytest.mark.parametrize("field", FIELDS)
def test_only_import_paths_import(field, tmp_path, monkeypatch):
    """Each text of a spec set to the path of a callable: a module is imported for the documented fields alone."""
    (tmp_path / "trapped.py").write_text("def go(*arguments, **more):\n    raise AssertionError('was called')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trapped", raising=False)
    with suppress(SpecError, StudyError):  # it can't be set to that at all
        check_callables(read_spec(write_spec(tmp_path), [f"{field}='trapped:go'"]))
    assert ("trapped" in sys.modules) == (field in IMPORT_PATHS)
    sys.modules.pop("trapped", None)


def test_import_paths_are_documented():
    assert set(FIELDS) >= IMPORT_PATHS
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    table = page[page.index("| field |") :]
    table = table[: table.index("\n\n")]
    assert set(re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE)) == IMPORT_PATHS


@pytest.mark.parametrize(
    "value",
    ["!!python/object/apply:os.system ['touch ran']", "!!python/name:os.system ''", "!!python/module:antigravity ''"],
)
def test_tags_of_yaml_make_nothing(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "study.yaml"
    file.write_text(f"name: x\nworkload:\n  model_args: {{a: {value}}}\n")
    with pytest.raises(SpecError):
        read_spec(file)
    assert not Path("ran").exists()


def named(folder, name):
    """A study of this name."""
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump({"description": "x", "name": name}, sort_keys=True))
    return file


@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "/x", "a/b", "a/../../b", "x\\y", "-x", "x\n", "x\0", "", "~x", "$HOME"]
)
def test_a_name_that_leads_elsewhere(tmp_path, name):
    with pytest.raises(SpecError, match=r"study\.yaml:2: name: "):
        read_spec(named(tmp_path, name))


@pytest.mark.parametrize("name", ["x", "a..b", "0", "x" * 64])
def test_a_study_lies_in_its_storage(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    spec = read_spec(named(tmp_path, name))
    folder = new_folder(spec, new_study_id(spec)).path
    assert folder.resolve().parent == Path(storage_of(spec)).resolve() == (tmp_path / "runs").resolve()


@pytest.mark.parametrize("experiment", [".", "..", "../out", "/tmp", "a/b", "a/../../b"])
def test_an_experiments_artifacts_lie_in_their_folder(tmp_path, experiment):
    spec = read_spec(write_spec(tmp_path, tracking={"experiment": experiment}))
    folder = tmp_path / "mlartifacts" / artifact_folder(spec.tracking.experiment)
    assert folder.resolve().parent == (tmp_path / "mlartifacts").resolve()
