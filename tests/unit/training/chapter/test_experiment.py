"""What an experiment's result may hold, and the experiments' names."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from scalestudy.training.chapter import EXPERIMENTS, find_experiment
from scalestudy.training.chapter.measuring import Experiment, Table


def test_every_name_leads_to_a_run() -> None:
    assert list(EXPERIMENTS) == ["async", "compile", "export", "parallel", "overlap", "allreduce"]
    assert all(callable(find_experiment(name)) for name in EXPERIMENTS)


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="bench: 'fast' is not known; choose one of async, compile"):
        find_experiment("fast")


def test_names_are_listed_without_torch() -> None:
    code = "import sys, scalestudy.training.chapter; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_result_is_plain_data() -> None:
    table = Table("t", ("a", "b"), ((1, None), ("x", math.inf)))
    made = Experiment("n", "q", (table,), ("note",), {"a_seconds": 0.5, "b_ratio": math.nan})
    plain = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert plain["tables"] == [{"title": "t", "header": ["a", "b"], "rows": [[1, None], ["x", None]]}]
    assert plain["metrics"] == {"a_seconds": 0.5, "b_ratio": None}
    assert table.column("b") == [None, math.inf]


def test_a_crooked_table_and_a_metric_without_unit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows: of \[1\] cells under 2 headings"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(ValueError, match="metrics: speed without a unit"):
        Experiment("n", "q", (), (), {"speed": 1.0})
