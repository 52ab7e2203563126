"""`judge` from Python and on the command line: a folder that every command reads, or one line."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest

import scalestudy as package
from scalestudy.experiments.judging.columns import Said
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.judging.judge import Request, judge, judge_runs
from tests.support.in_process import scalestudy
from tests.support.runs_of_others import small, world_rows, write_csv
from tests.support.studies import ran
from tests.support.worlds import TARGET, World


@pytest.fixture(scope="module")
def world():
    return small(World.draw(np.random.default_rng(1), noise=0.1, seeds=2), several=2)


@pytest.fixture(scope="module")
def judged(tmp_path_factory, world):
    """A study of a CSV, judged by the command line, and what that printed."""
    place = tmp_path_factory.mktemp("judged")
    write_csv(place / "runs.csv", world_rows(world))
    done = scalestudy("judge", "runs.csv", "--target", f"val/acc={TARGET}", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    [folder] = (place / "runs").iterdir()
    return folder, done.stdout


def test_a_csv_gives_an_answer_and_shows_first_what_was_taken(judged):
    folder, printed = judged
    taken, _, answer = printed.partition("Recommended")
    assert taken.splitlines()[:2] == [
        "role           taken from         as",
        "metric         val/acc            more is better",
    ]
    assert "learning_rate  config/lr" in taken
    assert answer.startswith((" to 0.8 val/acc", " and fastest", ", fastest"))
    assert "MLflow:" not in printed
    assert json.loads((folder / "judged.json").read_text())["runs"] > 10
    assert json.loads((folder / "trials.jsonl").read_text().splitlines()[0])["where"].startswith("runs.csv, row")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["judged"]["sources"] == ["runs.csv"]
    assert (summary["study"]["model"], summary["study"]["device"]) == (None, None)


def test_the_report_says_where_the_runs_come_from(judged):
    folder, _ = judged
    page = (folder / "report.html").read_text("utf-8")
    for words in ("Runs that others made", 'id="runs"', "config/lr", "of runs.csv"):
        assert words in page, words
    for words in ("lenet", "digits", "test val/acc", "planned trials"):
        assert words not in page, words


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("list", "judged"),
        ("status", "that others made"),
        ("report", "report.html"),
        ("recommend", "val/acc"),
    ],
)
def test_other_commands_read_it(judged, command, says):
    folder, _ = judged
    done = scalestudy(command, *([] if command == "list" else [folder]), cwd=folder.parents[1])
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


def test_what_trains_refuses_it_in_one_line(judged, here):
    folder, _ = judged
    spec = folder / "spec.yaml"
    for line in (
        *(["run", spec], ["plan", spec], ["resume", folder], ["submit", spec, "--address", "http://127.0.0.1:9"]),
        *(["recommend", folder, "--spec", "x.yaml"], ["ui", folder, "--sync"]),
        *(["recommend", folder, "--torchrun"], ["run", "digits-quick", "--extend", folder], ["ui", folder]),
    ):
        done = scalestudy(*line, cwd=here)
        assert done.returncode == 2, line
        [said] = [each for each in done.stderr.splitlines() if not each.startswith("waiting for ")]
        assert "is of runs that others made" in said, line
    assert not (here / "x.yaml").exists()


def test_what_is_ambiguous_is_refused_with_the_options_that_say_it(here):
    write_csv(here / "runs.csv", [{"run": "a", "gpus": 2, "bs": 64, "time": 5, "val_acc": 0.9}])
    done = scalestudy("judge", "runs.csv", "--target", "val_acc=0.8", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for words in (
        *("--column batch_size=bs", "--column device_batch_size=bs", "--set learning_rate=VALUE"),
        *("--set evaluation=included", "--set stop=target"),
    ):
        assert words in done.stderr, words
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runs.csv", "--target", "val_acc"], "--target: val_acc: is not NAME=VALUE"),
        (["runs.csv", "--target", "val_acc=high"], "--target: val_acc=high: is not NAME=VALUE"),
        (["runs.csv", "--target", "top5=1"], "--target: top5: no run has this metric"),
        (["none.csv", "--target", "val_acc=1"], "SOURCE: none.csv: there is no such file or folder"),
        (["runs.csv", "--target", "val_acc=1", "--mode", "up"], "--mode: up: is not known"),
        (["runs.csv", "--target", "val_acc=1", "--column", "bs"], "--column: bs: is not ROLE=NAME"),
        (["runs.csv", "--target", "val_acc=1", "--set", "gpus=1"], "--set: gpus: can't be set"),
        (["runs.csv", "--target", "val_acc=1", "--out", "s3://b/x"], "--out: s3://b/x: is a URI"),
    ],
)
def test_bad_requests_are_one_line(here, arguments, says):
    write_csv(here / "runs.csv", [{"run": "a", "gpus": 1, "bs": 64, "lr": 1, "runtime": 5, "val_acc": 0.9}])
    done = scalestudy("judge", *arguments, cwd=here)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(says)


def test_questions_are_asked_until_nothing_is_ambiguous(here, world):
    rows = [{"batch": row.pop("global batch size"), **row} for row in world_rows(world)]
    asked = []

    def ask(question):
        asked.append(question.words)
        return next(iter(question.answers))

    source = write_csv(here / "runs.csv", rows)
    done = judge_runs(Request(sources=[source], target=f"val/acc={TARGET}", said=Said()), ask)
    assert asked == ["batch_size: is batch of all workers together, or of one?"]
    assert done.summary["judged"]["columns"][2]["name"] == "batch"


def test_a_wrong_answer_leaves_nothing_behind(here):
    rows = [
        {
            "run": seed,
            "global_batch_size": 64,
            "lr": 0.1,
            "seed": seed,
            "steps": 9,
            "train_time": 5 + seed,
            "val_acc": 0.9,
        }
        for seed in range(3)
    ]
    told, asked = iter(["--column num_gpus=gpu", "--set num_gpus=2"]), []

    def ask(question):
        asked.append(question.words)
        return next(told)

    said = Said().with_given(["stop=target"])
    request = Request(sources=[write_csv(here / "runs.csv", rows)], target="val_acc=0.8", said=said)
    done = judge_runs(request, ask)
    assert asked == [
        "num_gpus (workers that train a run together): no column says it",
        "--column: gpu: no run has this column; "
        "the columns are run, global_batch_size, lr, seed, steps, train_time, val_acc",
    ]
    assert done.trials["num_gpus"].tolist() == [2, 2, 2]


def test_a_frame_is_judged_from_python(here, world):
    frame = pd.DataFrame(world_rows(world))
    frame["val/acc"] = frame["val/acc"].astype(float)
    frame["train_time"] = frame["train_time"].astype(float)
    found = package.judge(frame, target=f"val/acc={TARGET}", out=here / "mine")
    assert found.folder == here / "mine"
    assert found.summary["recommendation"]["recommended"]["label"] in found.recommend().lines[0]
    assert "Recommended" in found._repr_html_()
    assert len(found.trials) == len(world.trials())
    with pytest.raises(RequestError, match="--column: bs: no run has this column"):
        judge(frame, target=f"val/acc={TARGET}", columns={"batch_size": "bs"})


@pytest.mark.parametrize(
    ("values", "target", "meant"),
    [
        ((0.4, 0.7, 0.9, 0.91), "val_acc=88", "val_acc=0.88"),
        ((40.0, 70.0, 90.0, 91.0), "val_acc=0.88", "val_acc=88"),
        ((0.4, 0.7, 0.9, 0.91), "val_acc=0.88", None),
        ((0.4, 0.7, 0.9, 0.91), "val_acc=0.99", None),
        ((0.4, 0.7, 0.9, 0.91), "val_acc=99", None),  # nothing tells what was meant
        ((90.0, 40.0, 4.0, 3.0), "val_loss=0.5", None),
        ((0.9, 0.5, 0.1, 0.05), "val_loss=2", None),
    ],
)
def test_a_target_in_percent_of_a_share_or_the_other_way_round_is_refused(here, values, target, meant):
    name = target.partition("=")[0]
    rows = [
        {"run": f"{rate}", "num_gpus": 1, "global_batch_size": 64, "lr": rate, "seed": 0, "global_step": 100 * place}
        | {"train_time": 10.0 * place, name: value}
        for rate in (0.1, 0.2)
        for place, value in enumerate(values, start=1)
    ]
    if meant is None:
        judge(pd.DataFrame(rows), target=target)
        return
    with pytest.raises(RequestError, match=f"--target: {target}: its values are from .* write --target {meant}"):
        judge(pd.DataFrame(rows), target=target)


def test_a_setting_that_parts_the_cells_is_in_the_table_of_what_was_taken(here):
    rows = [
        {"run": f"{depth}-{seed}", "num_gpus": 1, "global_batch_size": 64, "lr": 0.1, "seed": seed, "depth": depth}
        | {"global_step": 100 * place, "train_time": depth * place, "val_acc": 0.4 + 0.1 * place}
        for depth in (2, 4)
        for seed in (0, 1)
        for place in range(1, 6)
    ]
    write_csv(here / "deep.csv", rows)
    done = scalestudy("judge", "deep.csv", "--target", "val_acc=0.8", cwd=here)
    assert re.search(r"^setting +depth +runs that differ in it are compared apart$", done.stdout, re.MULTILINE)


def test_a_suspicion_is_told_beside_the_facts_and_marked(here):
    rows = [
        {"run": f"{workers}-{seed}", "num_gpus": workers, "global_batch_size": 64, "lr": 0.1, "seed": seed}
        | {"global_step": 100 * place, "train_time": 40 + place * (10 + seed), "val_acc": 0.4 + 0.1 * place}
        for workers in (1, 2)
        for seed in range(3)
        for place in range(1, 6)
    ]
    found = judge(pd.DataFrame(rows), target="val_acc=0.75")
    unfair = {each["kind"]: each for each in found.summary["judged"]["unfair"]}
    assert {kind: each["certainty"] for kind, each in unfair.items()} == {"rate_edge": "fact", "start_up": "suspicion"}
    words = unfair["start_up"]["words"]
    assert words.startswith("Start-up may be counted in the time: some 40 s")
    assert json.loads((found.folder / "judged.json").read_text())["unfair"] == found.summary["judged"]["unfair"]
    [caveat] = [each["words"] for each in found.summary["caveats"] if each["kind"] == "unfair"]
    assert words.rstrip(".") in caveat
    page = (found.folder / "report.html").read_text("utf-8")
    assert words in page
    assert "<td>suspicion</td>" in page


def test_folders_of_ours_are_judged_as_one(here, world):
    for name in ("world-1", "world-2"):
        world.write(here / name)
    done = scalestudy("judge", "world-1", "world-2", "--target", f"accuracy={TARGET}", "--json", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)["summary"]["judged"]
    assert told["runs"] == len(world.trials())
    assert len(told["left_out"]) == told["runs"]  # the second repeats the first


def test_neither_ray_nor_torch_nor_mlflow_is_loaded(here):
    rows = [
        {"run": "a", "num_gpus": 1, "global_batch_size": 64, "lr": 0.1, "seed": 0, "global_step": 100 * place}
        | {"train_time": 10.0 * place, "val_acc": value}
        for place, value in enumerate((0.4, 0.7, 0.9), start=1)
    ]
    write_csv(here / "runs.csv", rows)
    code = (
        "import sys; sys.argv = ['scalestudy', 'judge', 'runs.csv', '--target', 'val_acc=0.8']\n"
        "from scalestudy.orchestration.commands import cli\n"
        "try: cli.command_line()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print({'ray', 'torch', 'mlflow'} & {name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = ran([sys.executable, "-c", code], cwd=here)
    assert (done.returncode, done.stderr) == (0, "set()\n")
