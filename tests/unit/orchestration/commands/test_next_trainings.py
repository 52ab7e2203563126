"""`--next` of `recommend` and `judge`: a table below the answer, plain data, CSV, and points that a spec can use."""

import csv
import io
import json
import re

import numpy as np
import pytest
import yaml
from rich.console import Console

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.next_trainings import FIGURES, NextTrainings, check_file
from scalestudy.orchestration.commands.study_commands import advise
from tests.support.in_process import scalestudy
from tests.support.runs_of_others import small, world_rows, write_csv
from tests.support.studies import left_behind
from tests.support.synthetic_studies import folder_of
from tests.support.trials import Law
from tests.support.worlds import TARGET, World, place_of

LAW = Law(noise=0.1, learning=100, per_example=0.0003, sync=0.0002, sync_per_worker=0.0001)
SPEC = """
name: scaled
train: {epochs: 8}
sweep:
  num_gpus: [1, 2, 4]
  batch_size: [32, 64, 128]
  learning_rate: [0.1, 0.4]
  seed: [0]
  train.optimizer.weight_decay: [0.00001]
  train.schedule: [constant, {name: cosine, args: {floor: 0.1}}]
targets: {accuracy: [0.6], stop: true}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a study of which the fastest batch size and rate never ran, nor most others."""
    place = tmp_path_factory.mktemp("studies")
    study = folder_of(place / "scaled", SPEC, LAW)
    lines = study.trials_file.read_text("utf-8").splitlines(keepends=True)
    ran = [line for line in lines if place_of(json.loads(line)["params"])[1:] != (32, 0.4)]
    study.trials_file.write_text("".join(ran[::3]), "utf-8")
    return place


@pytest.fixture(scope="module")
def found(place):
    """What is listed for the study."""
    return advise(place / "scaled", next_count=5).data["next"]


@pytest.fixture
def others(tmp_path):
    """A folder with a table of runs that others made."""
    world = small(World.draw(np.random.default_rng(2), noise=0.1, seeds=1, missing=0.2), several=2)
    write_csv(tmp_path / "runs.csv", world_rows(world))
    return tmp_path


JUDGE = ("judge", "runs.csv", "--target", f"val/acc={TARGET}")


def test_recommend_prints_a_table_below_the_answer(place, found):
    done = scalestudy("recommend", "scaled", "--next", "5", "--price", "2", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    answer, _, table = done.stdout.partition("\n\n")
    assert answer.startswith("Recommended")
    head, *lines = table.splitlines()
    titles = ["train next", "seeds so far", "least time falls by", "after runs", "time", "worker-seconds", "cost"]
    assert re.split(r"  +", head.strip()) == titles
    assert len(lines) == len(found["rows"]) == 5
    for line, row in zip(lines, found["rows"], strict=True):
        assert line.strip().startswith(row["label"])
    without = scalestudy("recommend", "scaled", "--price", "2", cwd=place)
    assert without.stdout.strip() == answer.strip()


def test_by_cost_the_least_cost_falls(place):
    done = scalestudy("recommend", "scaled", "--next", "1", "--by", "cost", cwd=place)
    assert "least cost falls by" in done.stdout


def test_json_has_the_same_rows(place, found):
    plain = json.loads(scalestudy("recommend", "scaled", "--next", "5", "--json", cwd=place).stdout)
    assert plain["next"] == found
    assert "next" not in json.loads(scalestudy("recommend", "scaled", "--json", cwd=place).stdout)


def test_the_table_leaves_standard_output_to_a_command(place):
    done = scalestudy("recommend", "scaled", "--next", "2", "--torchrun", cwd=place)
    assert done.stdout.startswith("torchrun ")
    assert done.stdout.count("\n") == 1
    assert "train next" in done.stderr


def test_the_points_take_the_place_of_sweep(place, found, tmp_path):
    """A spec with them plans these trainings, and no others; the ids are those that the study itself would give."""
    out = tmp_path / "next.yaml"
    done = scalestudy("recommend", "scaled", "--next", "5", "--next-out", out, cwd=place)
    assert done.stdout.endswith(f"written to {out}\n")
    spec = {**yaml.safe_load(SPEC), **yaml.safe_load(out.read_text("utf-8"))}
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(spec))
    trials = make_plan(parse_study((tmp_path / "more.yaml").read_text(), "more.yaml")).trials
    assert sorted(map(str, (trial.params for trial in trials))) == sorted(str(row["params"]) for row in found["rows"])
    for command in ("validate", "plan"):
        assert scalestudy(command, "more.yaml", cwd=tmp_path).returncode == 0


def test_a_csv_has_a_column_a_parameter_and_a_figure(place, found, tmp_path):
    out = tmp_path / "next.csv"
    plain = json.loads(scalestudy("recommend", "scaled", "--next", "5", "--next-out", out, "--json", cwd=place).stdout)
    assert plain["next_out"] == str(out)
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["gain"]) for row in rows] == [row["gain"] for row in found["rows"]]
    assert list(rows[0]) == [*found["rows"][0]["params"], *FIGURES]
    assert rows[0]["cost"] == ""
    assert int(rows[0]["batch_size"]) == found["rows"][0]["params"]["batch_size"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--next", "0"), "--next"),
        (("--next", "51"), "--next"),
        (("--next", "two"), "--next"),
        (("--next-out", "x.csv"), "--next-out: goes with --next alone; add --next 5\n"),
        (("--next", "2", "--next-out", "x.txt"), "--next-out: x.txt: its ending says no format; name a .csv, or "),
        (("--next", "2", "--next-out", "none/x.csv"), "--next-out: none/x.csv: there is no folder none; name a "),
        (("--next", "2", "--next-out", "scaled.csv"), "--next-out: scaled.csv: is there already; choose another "),
    ],
)
@pytest.mark.parametrize("command", [("recommend", "scaled"), JUDGE])
def test_what_can_t_be_meant_is_refused_before_anything_is_done(place, command, options, says):
    (place / "scaled.csv").write_text("kept")
    before = left_behind(place)
    done = scalestudy(*command, *options, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert left_behind(place) == before
    assert (place / "scaled.csv").read_text() == "kept"


def test_where_nothing_reached_the_target_one_line_says_so(place, tmp_path):
    out = tmp_path / "next.yaml"
    options = ("--accuracy", "0.9999")
    done = scalestudy("recommend", "scaled", *options, "--next", "3", "--next-out", out, cwd=place)
    assert done.returncode == scalestudy("recommend", "scaled", *options, cwd=place).returncode == 0
    [line] = [line for line in done.stdout.splitlines() if line.startswith("No training is listed: ")]
    assert "no cell reached a test accuracy of 0.9999" in line
    assert not out.exists()
    plain = json.loads(scalestudy("recommend", "scaled", *options, "--next", "3", "--json", cwd=place).stdout)
    assert plain["next"]["value"] is None
    assert plain["next"]["why"] in line


def test_judge_lists_what_to_train_beside_the_runs_of_others(others):
    done = scalestudy(*JUDGE, "--next", "3", "--next-out", "next.yaml", cwd=others)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.index("report:") < done.stdout.index("train next")
    [folder] = (others / "runs").iterdir()
    plain = json.loads(scalestudy("recommend", folder, "--next", "3", "--json", cwd=others).stdout)
    points = yaml.safe_load((others / "next.yaml").read_text())["sweep"]["points"]
    assert points == [row["params"] for row in plain["next"]["rows"]]
    for row in plain["next"]["rows"]:
        assert row["label"] in done.stdout


def test_of_runs_with_times_alone_there_is_no_law_to_decide_by(others):
    columns = ("--column", "ignored=epoch", "--column", "ignored=global_step")
    done = scalestudy(*JUDGE, *columns, "--next", "3", "--json", cwd=others)
    assert done.returncode == 0
    plain = json.loads(done.stdout)
    assert plain["next"]["value"] is None
    assert plain["next"]["why"].startswith("nothing but the runs' times is known, no updates or epochs")
    assert plain["summary"]["recommendation"]["target"] == TARGET


def test_settings_that_no_spec_has_are_no_points(tmp_path):
    """Such as a dropout in runs that others made; a CSV takes them."""
    row = {"params": {"num_gpus": 1, "batch_size": 32, "learning_rate": 0.1, "seed": 0, "dropout": 0.5}}
    row |= dict.fromkeys(("seeds", "gain", "repeats", "seconds", "worker_seconds", "cost"), 1)
    found = {"of": "dropout=0.5", "rows": [row]}
    with pytest.raises(RequestError, match=r"no key of a spec is dropout; name a \.csv"):
        NextTrainings.of(found, 1, tmp_path / "next.yaml", "others")
    assert NextTrainings.of(found, 1, tmp_path / "next.csv", "others").written == tmp_path / "next.csv"
    assert [file.name for file in tmp_path.iterdir()] == ["next.csv"]


@pytest.mark.parametrize(("count", "says"), [(1, False), (2, True)])
def test_a_list_that_is_shorter_than_was_asked_says_why(found, count, says):
    console = Console(file=io.StringIO(), width=200)
    few = {**found, "rows": found["rows"][:1]}
    show.next_trainings(console, NextTrainings.of(few, count, None, "scaled"))
    assert console.file.getvalue().endswith("No other training is expected to lower it.\n") == says


def test_no_file_is_nothing_to_check():
    check_file(None, None)
