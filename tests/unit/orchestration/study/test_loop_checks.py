"""What refuses a user's Ray Train loop before any worker starts, in one line."""

import sys

import pytest

from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study.loop_checks import refuse_loop
from scalestudy.orchestration.study.ready import check_callables
from tests.support.synthetic_studies import spec_of

MODULE = "tests.support.loops_to_check"


def study(loop, datasets=""):
    return spec_of(f"{{name: x, workload: {{loop: '{MODULE}:{loop}', datasets: {{{datasets}}}}}}}")


def refused(loop, datasets=""):
    with pytest.raises(RequestError) as error:
        check_callables(study(loop, datasets))
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
    return str(error.value)


@pytest.mark.parametrize("loop", ["plain", "with_default", "any_arguments", "part", "asks_for_what_config_says"])
def test_a_loop_that_takes_the_config_is_taken(loop):
    check_callables(study(loop, f"train: '{MODULE}:data'"))


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        ("AClass", "is a class; name a function that takes Ray Train's config"),
        ("not_callable", "callable"),
        ("missing", "missing"),
        ("takes_nothing", "takes_nothing(): too many positional arguments"),
        ("takes_two", "takes_two(config, model): missing a required argument: 'model'"),
        ("keyword_only", "too many positional arguments"),
        ("coroutine", "is a coroutine or generator"),
        ("generator", "is a coroutine or generator"),
        ("locked", "can't be pickled, and so reaches no worker: TypeError"),
        ("locked_instance", "can't be pickled"),
    ],
)
def test_a_loop_that_ray_train_could_not_call_is_refused(loop, why):
    said = refused(loop)
    assert said.startswith(f"workload.loop: '{MODULE}:{loop}'") or said.startswith(f"workload.loop: {MODULE}:{loop}: ")
    assert why in said


def test_a_module_that_raises_is_blamed(tmp_path, monkeypatch):
    (tmp_path / "broken_loop.py").write_text("raise OSError('no disk')\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError, match=r"workload\.loop: broken_loop:loop: OSError: no disk"):
        check_callables(spec_of("{name: x, workload: {loop: 'broken_loop:loop'}}"))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("data_of", "data_of(name): missing a required argument: 'name'; name a function that takes no argument"),
        ("AClass", "is a class"),
        ("missing", "missing"),
    ],
)
def test_the_function_of_a_data_set_takes_no_argument(function, why):
    said = refused("plain", f"valid: '{MODULE}:{function}'")
    assert said.startswith("workload.datasets.valid: ")
    assert why in said


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        ("asks", "train"),
        ("part_that_asks", "train"),
        ("asks_for_the_usual", "train"),
        ("asks_by_keyword", "valid"),
        ("asks_through_a_helper", "train"),
        ("instance", "valid"),
    ],
)
def test_a_loop_that_asks_for_a_data_set_gets_it_from_the_spec(loop, name):
    asks = f"{MODULE}:{loop} calls get_dataset_shard('{name}'); add {{{name}: package.module:function}}"
    assert refused(loop).startswith(f"workload.datasets: has none, and {asks}")
    assert f"workload.datasets: has other alone, and {asks}" in refused(loop, f"other: '{MODULE}:data'")
    check_callables(study(loop, f"{name}: '{MODULE}:data'"))


def test_a_name_that_the_loop_makes_needs_some_data_set():
    assert refused("asks_for_what_config_says").startswith("workload.datasets: has none, and ")


def test_a_loop_without_source_is_taken(monkeypatch):
    __import__(MODULE)
    monkeypatch.delattr(sys.modules[MODULE], "__file__")
    monkeypatch.setattr("inspect.getsource", lambda module: (_ for _ in ()).throw(OSError("no source")))
    check_callables(study("asks"))


def test_what_needs_the_built_in_loop_refuses_a_loop():
    with pytest.raises(RequestError, match=f"--torchrun: x trains by {MODULE}:plain, a Ray Train loop; run its spec"):
        refuse_loop(study("plain"), "--torchrun", "run its spec")
    refuse_loop(spec_of("name: x"), "--torchrun", "run its spec")
