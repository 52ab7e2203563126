"""What a shell offers when Tab is pressed: asked of a real bash, once `--install-completion` has run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from scalestudy.experiments.spec.reading import catalogue
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import parameters as completion
from scalestudy.orchestration.commands.cli import app
from scalestudy.training.data import SOURCES
from tests.support.studies import environment, ran

BASH = """
complete -p scalestudy
while IFS= read -r line; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _scalestudy_completion scalestudy
    echo "${COMPREPLY[@]}"
done <<'END'
%s
END
"""
FREE = {"budget.minutes=null", "budget.worker_hours=null", "budget.trials=null"}
HEAVY = {"torch", "ray", "mlflow", "scipy", "matplotlib"}


@pytest.fixture
def folder(tmp_path):
    """A user's folder: specs, and two studies."""
    for name in (
        "mine.yaml",
        "digits-mine.yml",
        "notes.txt",
        "runs/a-1/plan.json",
        "runs/a-2/plan.json",
        "runs/b/x",
        "other/plan.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.slow
def test_bash_completes_once_that_is_installed(folder):
    """The command that installs it asks which shell is its parent, here one that runs a file."""
    home, install = folder / "home", folder / "home" / "install.sh"
    home.mkdir()
    install.write_text("scalestudy --install-completion\ntrue\n")

    def bash(*arguments):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        told = subprocess.run(
            ["bash", *arguments],
            cwd=folder,
            env=environment(PATH=path, HOME=str(home)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return told.returncode, told.stdout.splitlines()

    assert bash("-ic", "complete -p scalestudy") == (1, [])
    assert bash("--norc", install)[0] == 0
    asked = {
        "scalestudy run dig": ["digits-quick", "digits-mine.yml"],
        "scalestudy run digits-q": ["digits-quick"],
        "scalestudy va": ["validate"],
        "scalestudy run --ad": ["--address"],
        "scalestudy run --address ": ["auto", "local"],
        "scalestudy status runs/a": ["runs/a-1", "runs/a-2"],
        "scalestudy resume r": ["runs/a-1", "runs/a-2"],
        "scalestudy bench m": ["max-batch"],
        "scalestudy bench max-batch mi": ["mine.yaml"],
        "scalestudy data fetch m": ["mnist"],
        "scalestudy run nothing-like-it": [],
    }
    code, (registered, *offered) = bash("-ic", BASH % "\n".join(asked))
    assert (code, registered) == (0, "complete -o default -F _scalestudy_completion scalestudy")
    assert dict(zip(asked, map(str.split, offered), strict=True)) == asked


def parameters():
    """Every argument and option of every command, by "command name"."""
    root = get_command(app)
    groups = {name: command for name, command in root.commands.items() if hasattr(command, "commands")}
    commands = {name: command for name, command in root.commands.items() if name not in groups}
    for group in groups.values():
        commands |= group.commands
    return {f"{name} {each.name}": each for name, command in commands.items() for each in command.params}


def test_every_spec_and_every_study_s_folder_is_completed(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = parameters()
    specs = [name for name in found if name.endswith(" spec")]
    folders = [name for name in found if name.endswith((" folder", " extend"))]
    assert (len(specs), len(folders)) == (6, 8)
    for name in specs:
        assert completions(found[name], "") == {*catalogue(), "mine.yaml", "digits-mine.yml"}, name
    for name in folders:
        assert completions(found[name], "") == {"latest", "runs/a-1", "runs/a-2", "other"}, name
        assert completions(found[name], "lat") == {"latest"}, name
    assert completions(found["new study"], "strong") == {"strong-scaling"}


def completions(parameter, incomplete):
    return {item.value for item in parameter.shell_complete(None, incomplete)}


def test_a_path_may_be_absolute_and_may_hold_what_a_pattern_would(folder):
    odd = folder / "a[1]*"
    shutil.copytree(folder / "runs", odd)
    assert completion.folders(f"{odd}/a") == [f"{odd}/a-1", f"{odd}/a-2"]
    assert completion.specs(f"{folder}/m") == [f"{folder}/mine.yaml"]
    assert completion.specs("s3://bucket/") == completion.folders("s3://bucket/") == []


def test_what_is_offered_is_what_there_is():
    assert completion.data_sets("") == [*SOURCES]


def test_nobody_waits_for_it(folder):
    """Whole commands import what they need; a press of Tab imports neither Ray, PyTorch, MLflow nor SciPy."""
    lines = ("scalestudy run dig", "scalestudy status ru", "scalestudy bench m", "scalestudy data fetch m")
    code = (
        "import os, sys; lines, sys.argv = sys.argv[1:], ['scalestudy']\n"
        "from scalestudy.orchestration.commands.cli import command_line\n"
        "for line in lines:\n"
        "    os.environ.update(COMP_WORDS=line, COMP_CWORD=str(line.count(' ')))\n"
        "    try: command_line()\n"
        "    except SystemExit: print('; end of', line)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    told = ran([sys.executable, "-c", code, *lines], cwd=folder, _SCALESTUDY_COMPLETE="complete_bash")
    assert not {name.partition(".")[0] for name in told.stderr.split()} & HEAVY
    *offered, _ = told.stdout.split("; end of ")
    assert len(offered) == len(lines)
    for line, names in zip(lines, offered, strict=True):
        assert names.strip().rpartition("\n")[2], line


@pytest.mark.parametrize(
    ("amount", "override"),
    [
        ("30min", "budget.minutes=30.0"),
        (" 0.5 min", "budget.minutes=0.5"),
        ("1.5h", "budget.minutes=90.0"),
        ("4wh", "budget.worker_hours=4.0"),
        ("12trials", "budget.trials=12"),
        ("12 trials", "budget.trials=12"),
        ("1trial", "budget.trials=1"),
    ],
)
def test_a_budget_is_one_value_of_the_spec_in_place_of_the_others(amount, override):
    key = override.partition("=")[0]
    given, *others, last = completion.with_budget(["budget.trials=3"], amount)
    assert (given, last) == ("budget.trials=3", override)
    assert {*others, f"{key}=null"} == FREE


def test_without_a_budget_the_values_stay():
    assert completion.with_budget(None, None) == []
    assert completion.with_budget(["a=1"], None) == ["a=1"]


@pytest.mark.parametrize(
    "amount",
    ["", "30", "min", "0min", "0trials", "-5min", "1.5trials", "30 s", "2 days", "1e3min", "30min 2h", "9" * 400],
)
def test_what_is_no_budget_is_refused(amount):
    with pytest.raises(RequestError) as refused:
        completion.with_budget(["a=1"], amount)
    assert str(refused.value) == (
        f"--budget: {amount}: is no budget; "
        "write an amount above 0 with its unit: 30min, 2h, 4wh (worker-hours) or 12trials"
    )


def test_every_command_that_runs_or_checks_a_spec_takes_a_budget():
    takers = [name.partition(" ")[0] for name in parameters() if name.endswith(" budget")]
    assert sorted(takers) == ["plan", "resume", "run", "submit", "validate"]
