"""YAML as plain data, with lines."""

import math

import pytest

from scalestudy.experiments.spec.yaml_lines import MAX_VALUES, NotReadableError, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("010", 10),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("'2'", "2"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("", None),
        ("true", True),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("!!str 'x'", "x"),
        ("!!float '3'", 3.0),
    ],
)
def test_scalars_are_read_as_people_mean_them(text, value):
    read = read_yaml(f"a: {text}").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_not_a_number_is_read():
    assert math.isnan(read_yaml("a: .nan").data["a"])


def test_every_value_has_its_line():
    document = read_yaml("a: 1\nb:\n  c: [1,\n    2]\n")
    assert document.line_of(("a",)) == 1
    assert document.line_of(("b", "c", 1)) == 4
    assert document.line_of(("b", "nothing", "here")) == 2
    assert document.line_of(("nothing",)) == 1


def test_a_key_given_twice_names_both_lines():
    (problem,) = read_yaml("a: 1\nb: 2\na: 3\n").problems
    assert (problem.field, problem.line) == ("a", 3)
    assert "line 1" in problem.remedy


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch run']",
        "!!python/name:os.system",
        "!mine x",
        "!!set {a}",
        "!!binary aGk=",
    ],
)
def test_tags_are_refused_and_nothing_runs(tag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = read_yaml(f"a: {tag}")
    assert document.data == {"a": None}
    assert "tag" in document.problems[0].message
    assert not list(tmp_path.iterdir())


def test_merges_and_keys_that_are_no_words_are_refused():
    assert "<<" in read_yaml("a: &a {b: 1}\nc: {<<: *a}").problems[0].message
    assert "1" in read_yaml("1: x").problems[0].message


def test_aliases_work_but_are_bounded():
    assert read_yaml("a: &x [1, 2]\nb: *x").data == {"a": [1, 2], "b": [1, 2]}
    levels = ["l0: &l0 [1]"] + [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 30)]
    with pytest.raises(NotReadableError, match=f"{MAX_VALUES:,}"):
        read_yaml("\n".join(levels))


@pytest.mark.parametrize("text", ["&a [*a]", "[" * 50_000, "a: " + "[" * 60 + "]" * 60])
def test_endless_and_deep_documents_are_refused(text):
    with pytest.raises(NotReadableError):
        read_yaml(text)


@pytest.mark.parametrize(("text", "line"), [("a: [1", 1), ("a: 1\nb: ]", 2), ("a: 1\n---\nb: 2", 2), ("\tx: 1", 1)])
def test_what_is_not_yaml_names_the_line(text, line):
    with pytest.raises(NotReadableError) as caught:
        read_yaml(text)
    assert caught.value.line == line
