"""Tables as W&B, pandas and spreadsheets write them: which rows make a run, and what is said once of it."""

import json
import math

import pandas
import pytest

from scalestudy.experiments.judging.files import of_frame, read_file
from scalestudy.experiments.judging.runs import SourceError


@pytest.fixture
def read(tmp_path):
    def read(text, name="runs.csv", **options):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_file(file, **options)

    return read


LONG = """run,lr,seed,epoch,acc
a,0.1,0,1,0.5
a,0.1,0,2,0.7
b,0.2,1,1,0.6
b,0.2,1,2,0.8
"""


def shape(runs):
    """Names, what is said once, and how many evaluations."""
    return [(run.name, dict(run.values), len(run.history)) for run in runs]


def rows_in(runs):
    """The rows of each run, by its place."""
    return [run.where.partition(", ")[2] for run in runs]


def test_a_row_an_evaluation(read):
    runs = read(LONG)
    assert shape(runs) == [("a", {"run": "a", "lr": 0.1, "seed": 0}, 2), ("b", {"run": "b", "lr": 0.2, "seed": 1}, 2)]
    assert list(runs[1].history) == [
        {"run": "b", "lr": 0.2, "seed": 1, "epoch": 1, "acc": 0.6},
        {"run": "b", "lr": 0.2, "seed": 1, "epoch": 2, "acc": 0.8},
    ]
    assert [run.where for run in runs] == ["runs.csv, rows 2 to 3", "runs.csv, rows 4 to 5"]


def test_a_row_a_run(read):
    runs = read("gpus,batch_size,lr,time,acc\n1,64,0.1,100,0.93\n2,64,0.1,60,0.94\n2,64,0.1,61,0.92\n")
    assert [run.history for run in runs] == [()] * 3
    assert runs[1].values == {"gpus": 2, "batch_size": 64, "lr": 0.1, "time": 60, "acc": 0.94}
    assert [run.where for run in runs] == [f"runs.csv, row {number}" for number in (2, 3, 4)]
    assert [run.name for run in runs] == ["run 1", "run 2", "run 3"]


def test_a_run_of_one_row_has_a_history_where_others_have_one(read):
    runs = read(LONG + "c,0.3,2,1,0.1\n")
    assert shape(runs)[2] == ("c", {"run": "c", "lr": 0.3, "seed": 2}, 1)


def test_empty_cells_say_nothing(read):
    runs = read("run,seed,epoch,acc\na,3,1,0.5\na,,2,\na,,3,0.7\n")
    assert shape(runs) == [("a", {"run": "a", "seed": 3}, 3)]
    assert list(runs[0].history)[1] == {"run": "a", "epoch": 2}


TABLES = {
    "a run after another": ("lr,epoch,acc\n.1,1,.5\n.1,2,.6\n.1,3,.7\n.2,1,.5\n.2,2,.6\n.2,3,.7\n", [3, 3]),
    "repeats without a seed": ("lr,epoch,acc\n.1,1,.5\n.1,2,.6\n.1,3,.7\n.1,1,.5\n.1,2,.6\n.1,3,.7\n", [3, 3]),
    "sorted by epoch": ("lr,epoch,acc\n.1,1,.5\n.2,1,.5\n.1,2,.6\n.2,2,.6\n.1,3,.7\n.2,3,.7\n", [3, 3]),
    "sorted by epoch, by a text": ("opt,epoch,acc\na,1,.5\nb,1,.5\na,2,.6\nb,2,.6\n", [2, 2]),
    "one run": ("epoch,acc\n1,.5\n2,.6\n3,.7\n", [3]),
    "a schedule in a named run": ("run,lr,epoch,acc\na,.1,1,.5\na,.05,2,.6\nb,.1,1,.5\nb,.05,2,.6\n", [2, 2]),
    "wide, with its last epoch": ("lr,epoch,acc\n.1,8,.5\n.2,10,.6\n.3,9,.6\n", [0, 0, 0]),
    "wide, in one length": ("lr,epoch,acc\n.1,8,.5\n.1,8,.6\n", [0, 0]),
    "a name of the model": ("name,lr,seed,acc\nresnet,.1,0,.5\nresnet,.1,1,.6\n", [0, 0]),
    "a trial is a repeat": ("lr,trial,epoch,acc\n.1,1,1,.5\n.1,1,2,.6\n.2,1,1,.5\n.2,1,2,.6\n", [2, 2]),
    "a trial is a repeat, wide": ("lr,trial,acc\n.1,1,.5\n.1,2,.6\n.2,1,.5\n.2,2,.6\n", [0] * 4),
    "numbered rows": ("id,run,epoch,acc\n1,a,1,.5\n2,a,2,.6\n3,b,1,.5\n4,b,2,.6\n", [2, 2]),
    "names that two share": ("run_id,run_name,epoch,acc\nx,a,1,.5\nx,a,2,.6\ny,a,1,.5\ny,a,2,.6\n", [2, 2]),
    "rows of a run apart": ("run,epoch,acc\na,1,.5\nb,1,.5\na,2,.6\nb,2,.6\n", [2, 2]),
}


@pytest.mark.parametrize("name", TABLES)
def test_which_rows_make_a_run(read, name):
    text, expected = TABLES[name]
    assert [len(run.history) for run in read(text)] == expected


AMBIGUOUS = {
    "two interleaved": "lr,epoch,acc\n.1,1,.5\n.1,1,.6\n.1,2,.7\n.1,2,.8\n",
    "train and test": "lr,phase,epoch,acc\n.1,train,1,.5\n.1,test,1,.6\n.1,train,2,.7\n.1,test,2,.8\n",
    "a schedule": "lr,epoch,acc\n.1,1,.5\n.05,2,.6\n.01,3,.7\n",
    "times alone": "lr,time,acc\n.1,10,.5\n.1,20,.6\n.1,30,.7\n",
    "two columns": "run,trial,epoch,acc\na,1,1,.5\na,1,2,.5\na,2,1,.5\na,2,2,.5\nb,1,1,.5\nb,1,2,.5\n",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_is_open_is_asked(read, name):
    with pytest.raises(SourceError, match="which rows make a run is open") as caught:
        read(AMBIGUOUS[name])
    assert "--column run=NAME" in caught.value.remedy


def test_the_column_that_was_said(read):
    text = "lr,set,epoch,acc\n.1,x,1,.5\n.1,y,1,.6\n.1,x,2,.7\n.1,y,2,.8\n"
    assert [(run.name, len(run.history)) for run in read(text, run="set")] == [("x", 2), ("y", 2)]


def test_wandb_runs(read):
    """The table of runs as W&B exports it."""
    runs = read(
        '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","batch_size","lr","val_acc"\n'
        '"jolly-1","finished","-","ann","","2026-11-27T10:00:00.000Z","120","","64","0.1","0.93"\n'
        '"jolly-2","crashed","-","ann","","2026-11-27T10:05:00.000Z","60","","64","0.2",""\n'
    )
    assert [run.name for run in runs] == ["jolly-1", "jolly-2"]
    assert runs[0].values == {
        **{"Name": "jolly-1", "State": "finished", "Notes": "-", "Created": 1795773600.0, "Runtime": 120},
        **{"batch_size": 64, "lr": 0.1, "val_acc": 0.93},
    }
    assert "User" not in runs[0].values


def test_wandb_histories(read):
    """Histories of several runs, with their configurations, as its API gives them to pandas."""
    runs = read(
        ",run_id,Name,_step,_runtime,_timestamp,config/lr,val/acc\n"
        "0,x1,warm-sun,0,1.5,1795773600.25,0.1,0.5\n1,x1,warm-sun,10,3.5,1795773602.25,0.1,0.7\n"
        "0,x2,warm-sun,0,1.5,1795773700.25,0.2,0.5\n1,x2,warm-sun,10,3.5,1795773702.25,0.2,0.7\n"
    )
    assert shape(runs)[0] == ("x1", {"run_id": "x1", "Name": "warm-sun", "config/lr": 0.1}, 2)
    assert runs[0].history[0]["_timestamp"] == 1795773600.25


def test_mlflow_runs(read):
    """What `mlflow.search_runs().to_csv()` writes."""
    [run] = read(
        ",run_id,status,start_time,metrics.val_acc,params.lr,tags.mlflow.user\n"
        "0,4f0c,FINISHED,2026-11-27 10:00:00.250000+00:00,0.9,0.1,ann\n"
    )
    assert run.values == {
        **{"run_id": "4f0c", "status": "FINISHED", "start_time": 1795773600.25},
        **{"metrics.val_acc": 0.9, "params.lr": 0.1},
    }


def test_a_spreadsheet_of_another_country(read):
    text = '\ufeffLauf;lr;Zeit;Genauigkeit\r\n"a; ""1""";0,1;1.024,5;93,1 %\r\n\r\nb;0,2;900;94,0 %\r\n'
    runs = read(text, run="Lauf")
    assert [run.values for run in runs] == [
        {"Lauf": 'a; "1"', "lr": 0.1, "Zeit": 1024.5, "Genauigkeit": pytest.approx(0.931)},
        {"Lauf": "b", "lr": 0.2, "Zeit": 900, "Genauigkeit": pytest.approx(0.94)},
    ]
    assert rows_in(runs) == ["row 2", "row 4"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.tsv", "run\tacc, top 1\na\t.5\n"),
        ("runs.txt", 'sep=|\nrun|acc, top 1\na|".5"\n'),
        ("runs.csv", 'run,"acc, top 1"\n a , .5 \n'),
        ("runs.csv", 'run,"acc, top 1"\na,.5\n'.encode("utf-16")),
        ("runs.jsonl", '{"run": "a", "acc, top 1": 0.5}'),
    ],
)
def test_one_table_in_several_forms(read, name, text):
    assert read(text, name)[0].values == {"run": "a", "acc, top 1": 0.5}


def test_names_keep_their_letters(read):
    names = ["Ünïcode, \"quoted\" 'n' spaced", "准确率", "a\nb"]
    head = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    [run] = read(f"run,{head}\n007,1,2,3\n")
    assert dict(run.values) == {"run": "007", **dict(zip(names, (1, 2, 3), strict=True))}


def test_what_can_be_read_is_read(read):
    said = []
    assert len(read(LONG + LONG + "c,0.1", say=said.append)) == 2
    assert said == [
        "runs.csv: row 11 ends in the middle, and is left out",
        "runs.csv: 1 row with the header again, left out: 6",
    ]


def test_not_a_number_is_a_value(read):
    runs = read("run,epoch,loss\na,1,2.5\na,2,nan\na,3,inf\n")
    assert [math.isfinite(row["loss"]) for row in runs[0].history] == [True, False, False]


def test_json_lines(read):
    said = []
    lines = [
        {"run": "a", "config": {"lr": 0.1, "layers": [1, 2]}, "epoch": 1, "loss": 2.5},
        {"run": "a", "config": {"lr": 0.1, "layers": [1, 2]}, "epoch": 2, "loss": math.nan},
        {"run": "b", "config": {"lr": 0.2}, "epoch": 1, "loss": None},
    ]
    text = "\n".join([json.dumps(lines[0]), "", "[]", *map(json.dumps, lines[1:]), "{]", '{"run": "b", "epo'])
    runs = read(text, "runs.jsonl", say=said.append)
    assert shape(runs) == [
        ("a", {"run": "a", "config/lr": 0.1, "config/layers": "[1, 2]"}, 2),
        ("b", {"run": "b", "config/lr": 0.2}, 1),
    ]
    assert rows_in(runs) == ["lines 1 to 4", "line 5"]
    assert list(runs[1].history) == [{"run": "b", "config/lr": 0.2, "epoch": 1}]
    assert said == [
        "runs.jsonl: line 3: no object, and left out",
        "runs.jsonl: line 6 and 1 other: no JSON, and left out",
    ]


def test_a_json_list(read):
    assert [run.values for run in read('[{"lr": 0.1}, {"lr": 0.2}]', "runs.json")] == [{"lr": 0.1}, {"lr": 0.2}]


def test_a_frame():
    frame = pandas.DataFrame(
        {
            "run": ["a", "a", "b"],
            "lr": [0.1, 0.1, 0.2],
            "gpus": pandas.array([2, 2, None], dtype="Int64"),
            "epoch": [1, 2, 1],
            "at": pandas.to_datetime(["2026-11-27T10:00:00Z", "2026-11-27T10:00:01Z", None]),
            "took": pandas.to_timedelta([1, 2, 3], unit="s"),
            "acc": [0.5, float("nan"), 0.7],
        }
    )
    runs = of_frame(frame)
    once = {"run": "a", "lr": 0.1, "gpus": 2, "acc": 0.5}
    assert shape(runs) == [("a", once, 2), ("b", {"run": "b", "lr": 0.2, "acc": 0.7}, 1)]
    assert list(runs[0].history) == [
        {"run": "a", "lr": 0.1, "gpus": 2, "epoch": 1, "at": 1795773600.0, "took": 1.0, "acc": 0.5},
        {"run": "a", "lr": 0.1, "gpus": 2, "epoch": 2, "at": 1795773601.0, "took": 2.0},
    ]
    assert runs[0].where == "the frame, rows 0 to 1"


def test_a_frame_as_pandas_writes_it(read):
    frame = pandas.DataFrame({"run": ["a", "a"], "epoch": [1, 2], "acc": [0.5, 0.6]})
    assert shape(read(frame.to_csv())) == shape(of_frame(frame))
    assert shape(read(frame.to_json(orient="records"), "f.json")) == shape(of_frame(frame))
    assert shape(read(frame.to_json(orient="records", lines=True), "f.jsonl")) == shape(of_frame(frame))


BAD = {
    "empty": ("", "is empty"),
    "a header alone": ("run,acc\n", "has no rows"),
    "no names": ("User,\nann,2\n", "has no column but of users"),
    "a workbook": (b"PK\x03\x04...", "is an Excel workbook or another archive"),
    "another encoding": ("run,acc\nÜ,1\n".encode("latin-1"), "is no UTF-8 text"),
    "too many cells": ("run,acc\na,0,93\n", "row 2 has 3 cells, the header 2"),
    "an open quotation mark": ('run,acc\n"a,0.93\n', "row 2 can't be read"),
    "two columns of a name": ("run,acc,acc\na,1,2\n", "has two columns 'acc' that differ"),
    "marks of decimals": ('run,time\na,"1,234"\n', "column 'time': '1,234' may be a whole number"),
    "a chart of W&B": (
        '"Step","warm-1 - acc","warm-1 - acc__MIN","warm-1 - acc__MAX"\n1,2,3,4\n',
        "is what W&B exports from a chart",
    ),
    "no JSON": ("{]\n", "has no JSON object in a line of its own"),
    "no list": ("[1, 2", "is no JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_table_that_is_none(read, name):
    text, words = BAD[name]
    with pytest.raises(SourceError) as caught:
        read(text)
    assert words in str(caught.value)
    assert "runs.csv: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "words"), [(LONG, "has no column 'x'"), ("x,acc\na,1\n,2\n", "row 3 has no 'x'")], ids=["none", "empty"]
)
def test_a_column_that_was_said_and_is_not_there(read, text, words):
    with pytest.raises(SourceError, match=words):
        read(text, run="x")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match=r"none.csv: can't be read \(No such file or directory\)"):
        read_file(tmp_path / "none.csv")


def test_a_frame_without_rows():
    with pytest.raises(SourceError, match="the frame: has no rows"):
        of_frame(pandas.DataFrame({"run": []}))
