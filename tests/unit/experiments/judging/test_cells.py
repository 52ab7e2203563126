"""A column is read as a whole: what one cell leaves open, the others say."""

import math

import pytest

from scalestudy.experiments.judging.cells import columns_of, value_of
from scalestudy.experiments.judging.runs import SourceError


def read(*columns, semicolons=False):
    names = [f"c{place}" for place in range(len(columns))]
    return columns_of(names, columns, "t.csv", semicolons)


NAN = math.nan
COLUMNS = {
    "whole": (["1", "64", ""], [1, 64, None]),
    "decimal": (["0.1", "1e-3", "5"], [0.1, 0.001, 5.0]),
    "decimal commas": (["0,93", "12,5", "7"], [0.93, 12.5, 7]),
    "thousands": (["1,234,567", "2,000"], [1_234_567, 2000]),
    "both marks": (["1,234.5", "2,000"], [1234.5, 2000]),
    "both marks, turned": (["1.234,5", "2.000"], [1234.5, 2000]),
    "spaces": (["1\u202f234,5", "12\u00a0000"], [1234.5, 12_000]),
    "apostrophes": (["1'234.5", "12’000"], [1234.5, 12_000]),
    "percent": (["93.1%", "94 %"], [0.931, 0.94]),
    "percent with commas": (["93,1 %", "94%"], [0.931, 0.94]),
    "signs": (["-0,5", "+1,25", "\u22123,75"], [-0.5, 1.25, -3.75]),
    "not a number": (["0,5", "nan", "-inf", "N/A", "–"], [0.5, NAN, -math.inf, None, None]),
    "words for nothing": (["none", "12"], [None, 12]),
    "text": (["adam", "none", ""], ["adam", "none", None]),
    "truth": (["True", "false", ""], [True, False, None]),
    "addresses": (["10.0.0.1", "192.168.100.200"], ["10.0.0.1", "192.168.100.200"]),
    "versions": (["2.13.0", "2.12.1"], ["2.13.0", "2.12.1"]),
    "underscores": (["1_000", "2_000"], ["1_000", "2_000"]),
    "dates": (["2026-11-27T10:00:00Z", "2026-11-27 11:00:00+01:00", ""], [1795773600.0, 1795773600.0, None]),
    "no such day": (["2026-02-30T10:00:00"], ["2026-02-30T10:00:00"]),
    "durations": (["1:02:03", "0:00:01.5"], [3723.0, 1.5]),
    "units": (["12 s", "3 min"], ["12 s", "3 min"]),
    "nothing": (["", " "], [None, None]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column(name):
    texts, values = COLUMNS[name]
    [found] = read(texts)
    assert found == pytest.approx(values, nan_ok=True)
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("other", "semicolons", "value"),
    [(["0.5"], False, 1234), (["0,5"], False, 1.234), (["7"], True, 1.234), (["0.5"], True, 1234)],
)
def test_other_columns_say_what_a_comma_is(other, semicolons, value):
    found, _ = read(["1,234"], other, semicolons=semicolons)
    assert found == [value]


def test_a_point_is_a_mark_of_thousands_where_commas_are_of_decimals():
    assert read(["0,5"], ["1.024"])[1] == [1024]
    assert read(["0.5"], ["1.024"])[1] == [1.024]
    assert read(["93%"], ["1.024"], semicolons=True)[1] == [1.024]
    assert read(["0,5"], ["1.024"], ["0.93"])[1:] == [[1.024], [0.93]]  # each column has its own, and one is as ours


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([["1,234"]], "column 'c0': '1,234' may be a whole number or one with three decimals"),
        ([["0,5", "0.25"]], "column 'c0' has decimals with commas and with points"),
    ],
)
def test_what_is_open_is_refused(columns, words):
    with pytest.raises(SourceError, match=words) as caught:
        read(*columns)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "value"), [("64", 64), ("1e-3", 0.001), ("True", True), ("adam", "adam"), ("None", "None"), ("", "")]
)
def test_one_text(text, value):
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)
