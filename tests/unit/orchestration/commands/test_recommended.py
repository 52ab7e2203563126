"""The recommended cell as a study of its own, and as a command of torchrun."""

import json
import shlex
import shutil
from dataclasses import replace
from functools import partial

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import SpecError, parse_study
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.recommended import RecommendedCell
from scalestudy.orchestration.commands.study_commands import advise
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.training.arguments import make_config, make_parser
from tests.support.in_process import scalestudy
from tests.support.loop_studies import LAW as LOOP_LAW
from tests.support.loop_studies import LOOP, as_a_loop_tells
from tests.support.old_studies import unpack
from tests.support.studies import left_behind
from tests.support.synthetic_studies import folder_of
from tests.support.trials import Law

LAW = Law(noise=0.02, learning=100)
SPEC = """
name: scaled
workload: {model: mlp, data: digits, model_args: {hidden: [16], init: "it's"}}
train: {epochs: 8, optimizer: {momentum: 0.9}}
sweep:
  num_gpus: [1, 2]
  batch_size: [32, 64]
  learning_rate: [0.1, 0.2]
  seed: [3, 1]
  train.shards: [even, speed]
  train.optimizer.weight_decay: [0.00001]
  workload.model_args.dropout: [0.25]
search: {scheduler: asha}
targets: {accuracy: [0.5, 0.3], stop: true}
resources: {cpus_per_worker: 2}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """What most tests only read."""
    return folder_of(tmp_path_factory.mktemp("studies") / "scaled", SPEC, LAW)


@pytest.fixture(scope="module")
def advice(study):
    return advise(study.path)


@pytest.fixture(scope="module")
def cell(advice):
    return RecommendedCell.of(advice)


@pytest.fixture
def folder(study, tmp_path):
    """A copy, where a command is called."""
    return shutil.copytree(study.path, tmp_path / "scaled")


def cell_of(path, **wishes):
    return RecommendedCell.of(advise(path, **wishes))


def test_it_is_a_study_of_that_cell_alone(study, advice, cell):
    """Its trials are those of the study: the same ids mean the same training to the bit."""
    read = parse_study(cell.to_yaml(), "best.yaml")
    assert read == cell.spec
    assert "search" not in cell.to_yaml()
    assert (read.search.scheduler, read.search.method, read.targets.stop) == ("none", "grid", False)
    assert not read.stops_at_target
    trials = make_plan(read).trials
    assert [trial.seed for trial in trials] == [3, 1]
    theirs = [trial for trial in study.read_plan().trials if trial.cell == advice.data["recommended"]["params"]]
    assert {trial.trial_id for trial in trials} == {trial.trial_id for trial in theirs}
    assert read.name == "scaled-best"
    assert advice.data["recommended"]["label"] in read.description


def test_it_is_written_as_people_write_one(cell):
    lines = cell.to_yaml().splitlines()
    assert lines[0] == "name: scaled-best"
    assert "  seed: [3, 1]" in lines
    assert "resources: {cpus_per_worker: 2}" in lines
    assert "  data: digits" in lines, "the default, which says what the study is"
    assert not any(line.startswith(("limits", "storage", "tracking", "version")) for line in lines)


def test_what_was_asked_for_stands_in_it(study):
    asked = cell_of(study.path, accuracy=0.4, price=3.0, tolerance=0.5, max_gpus=1, by="cost").spec
    assert asked.targets.accuracy == (0.4,)
    assert (asked.targets.price_per_gpu_hour, asked.targets.tolerance) == (3.0, 0.5)
    assert asked.sweep.num_gpus == (1,)
    assert asked.description.startswith("The cheapest cell of scaled: workers=1 ")


def test_the_seeds_of_points_are_theirs(tmp_path):
    points = ", ".join(
        f"{{num_gpus: {gpus}, batch_size: 32, learning_rate: 0.2, seed: {seed}}}" for gpus in (1, 2) for seed in (7, 8)
    )
    text = f"name: p\ntrain: {{epochs: 8}}\nsweep: {{points: [{points}]}}\ntargets: {{accuracy: [0.8]}}"
    assert cell_of(folder_of(tmp_path / "p", text, LAW).path).spec.sweep.seed == (7, 8)


def test_the_cell_of_an_adaptive_search_is_trained_without_a_budget(study, advice):
    changes = ["search={method: adaptive}", "budget={trials: 9, uses: 5}", "targets.stop=auto", "sweep.seed=[3]"]
    spec = read_spec(study.spec_file, [*changes, "sweep.train.shards=[even]", "sweep.workload.model_args.dropout=[0]"])
    cell = RecommendedCell.of(replace(advice, spec=spec))
    assert parse_study(cell.to_yaml(), "best.yaml") == cell.spec
    assert (cell.spec.search.method, cell.spec.budget.limits, cell.spec.sweep.seed) == ("grid", {}, (3,))


def test_a_long_name_still_names_a_folder(tmp_path):
    text = SPEC.replace("name: scaled", f"name: {'x' * 64}")
    assert cell_of(folder_of(tmp_path / "x", text, LAW).path).spec.name == "x" * 59 + "-best"


@pytest.mark.parametrize(("name", "target"), [("finished", 0.7), ("grown", 0.8), ("timed", 0.7)])
def test_recorded_studies(tmp_path, name, target):
    study = unpack(name, tmp_path / name)
    cell = cell_of(study.path, accuracy=target)
    assert cell.write(tmp_path / "best.yaml").read_text("utf-8").startswith(f"name: {name}-best\n")
    assert read_spec(tmp_path / "best.yaml") == cell.spec


# --- torchrun -------------------------------------------------------------------------------------------------------


def parsed(command):
    """The options of torchrun, and the config and the options of our training, of a command as a shell reads it."""
    words = shlex.split(command)
    start = words.index("-m")
    assert words[start : start + 2] == ["-m", "scalestudy.training"]
    options = make_parser("").parse_args(words[start + 2 :])
    return words[:start], make_config(options), options


def test_the_command_trains_that_cell(cell):
    words, config, options = parsed(cell.torchrun())
    (workers,) = cell.spec.sweep.num_gpus
    assert words == ["torchrun", "--standalone", "--nproc-per-node", str(workers)]
    assert (config.model, config.data) == ("mlp", "digits")
    assert config.model_args == {"hidden": [16], "init": "it's", "dropout": 0.25}
    assert (config.batch_size,) == cell.spec.sweep.batch_size
    assert (config.learning_rate,) == cell.spec.sweep.learning_rate
    assert (config.seed, config.epochs, config.data_root) == (3, 8, None)
    assert (config.optimizer.momentum, config.optimizer.weight_decay) == (0.9, 1e-05)
    trained = {key: value for key, value in cell.spec.train.to_dict().items() if key != "checkpoint_every"}
    assert {key: config.to_dict()[key] for key in trained} == trained
    assert (options.device, options.devices, options.threads) == ("auto", None, 2)


def test_torchrun_itself_reads_it(cell):
    from torch.distributed.run import parse_args

    words = shlex.split(cell.torchrun())[1:]
    read = parse_args(words)
    assert (read.standalone, read.module, read.training_script) == (True, True, "scalestudy.training")
    assert read.training_script_args == words[words.index("scalestudy.training") + 1 :]


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ("{device: cpu}", ("cpu", None)),
        ("{device: cuda}", ("cuda", None)),
        ("{device: cuda, gpus_per_worker: 0.5}", ("auto", ("cuda:0", "cuda:0"))),
    ],
)
def test_the_devices_are_those_that_the_study_asked_for(tmp_path, resources, told):
    text = SPEC.replace("{cpus_per_worker: 2}", resources).replace("[1, 2]", "[2]").replace("[32, 64]", "[32]")
    device = "cpu" if "cpu" in resources else "cuda"
    advice = advise(folder_of(tmp_path / "x", text, LAW).path)
    advice.data["recommended"]["device"] = device
    _, _, options = parsed(RecommendedCell.of(advice).torchrun())
    assert (options.device, options.devices) == told
    assert options.threads == (1 if device == "cpu" else None)


# --- the command line -----------------------------------------------------------------------------------------------


def test_recommend_writes_the_study_and_says_what_comes_next(folder, tmp_path):
    done = scalestudy("recommend", "scaled", "--spec", "the best.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Recommended")
    assert done.stdout.endswith("the best.yaml; to run it: scalestudy run 'the best.yaml'\n")
    assert scalestudy("validate", "the best.yaml", cwd=tmp_path).returncode == 0


def test_the_command_stands_alone_on_standard_output(folder, tmp_path):
    done = scalestudy("recommend", "scaled", "--torchrun", "--by", "cost", cwd=tmp_path)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    parsed(line)
    assert done.stderr.startswith("Choose ")


def test_json_has_both(folder, tmp_path):
    done = scalestudy("recommend", "scaled", "--torchrun", "--spec", "best.yaml", "--json", cwd=tmp_path)
    plain = json.loads(done.stdout)
    assert plain["spec"] == "best.yaml"
    parsed(plain["torchrun"])
    assert plain["recommended"]["label"]


def test_a_file_that_is_there_is_left_alone(folder, tmp_path):
    (tmp_path / "best.yaml").write_text("kept")
    done = scalestudy("recommend", "scaled", "--spec", "best.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--spec: best.yaml: is there already; choose another name, or move the file\n"
    assert (tmp_path / "best.yaml").read_text() == "kept"
    assert scalestudy("recommend", "scaled", "--spec", "none/best.yaml", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("option", [("--spec", "best.yaml"), ("--torchrun",)])
@pytest.mark.parametrize(("by", "role"), [((), "recommended"), (("--by", "time"), "fastest")])
def test_without_a_recommended_cell_nothing_is_written(folder, tmp_path, option, by, role):
    before = left_behind(tmp_path)
    done = scalestudy("recommend", "scaled", "--accuracy", "0.9999", *by, *option, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"DIR: scaled: no cell is {role}: no cell reached a test accuracy of 0.9999: the best, "
    )
    assert "; ask for another target with --accuracy" in done.stderr
    assert left_behind(tmp_path) == before


def test_a_study_that_is_valid_no_more_is_not_written(cell, tmp_path):
    """As one of an earlier version may be."""
    broken = cell.spec.model_copy(update={"workload": cell.spec.workload.model_copy(update={"model": "gone"})})
    with pytest.raises(SpecError, match="gone"):
        RecommendedCell(spec=broken, device="cpu").write(tmp_path / "best.yaml")
    assert not (tmp_path / "best.yaml").exists()
    with pytest.raises(RequestError, match="is there already"):
        cell.write(cell.write(tmp_path / "best.yaml"))


def test_of_a_loop_the_cell_is_a_study_and_no_torchrun_command(tmp_path):
    study = folder_of(tmp_path / "study", LOOP, LOOP_LAW, change=partial(as_a_loop_tells, samples=True))
    cell = RecommendedCell.of(advise(study.path))
    spec = parse_study(cell.to_yaml(), "best.yaml")
    assert (spec.workload.loop, spec.workload.loop_args, spec.train.epochs) == ("my_loop:train", {"hidden": 8}, 8)
    assert "lenet" not in cell.to_yaml()
    with pytest.raises(RequestError, match="--torchrun: of-a-loop-best trains by my_loop:train, a Ray Train loop"):
        cell.torchrun()
