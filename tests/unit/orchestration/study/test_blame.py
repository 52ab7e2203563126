"""An exception as one line: the part to blame, its name, the exception, its place, what to do."""

from scalestudy.orchestration.study.blame import blamed
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.train import train
from tests.support.training.helpers import ALONE, make_config

FAULTS = "tests.unit.training.test_fault"


def said(config):
    try:
        train(config, ALONE)
    except Exception as error:  # whatever the user's code raises
        return str(blamed(error, config, "mend it"))


def test_a_users_exception():
    config = make_config(data=f"{FAULTS}:raises_when_loaded", data_args={})
    found = said(config)
    assert found.startswith(f"workload.data: {FAULTS}:raises_when_loaded: LookupError: no such file (test_fault.py:")
    assert found.endswith(", in raises_when_loaded); mend it")


def test_a_loss_without_gradients():
    found = said(make_config(loss=f"{FAULTS}:detached"))
    assert found.startswith("workload: backward: RuntimeError: element 0 of tensors does not require grad")


def test_a_mistake_that_is_known_keeps_its_remedy():
    error = InputError("model: it is wrong", "choose another")
    assert str(blamed(error, make_config(), "mend it")) == "model: it is wrong; choose another"
    assert str(blamed(InputError("model: it is wrong"), make_config(), "mend it")).endswith("; correct the spec")


def test_what_no_part_raised_and_what_has_several_lines():
    assert str(blamed(KeyError("a\nb"), make_config(), "mend it")) == r"KeyError: 'a\nb'; mend it"
    assert str(blamed(OSError("a\n  b"), make_config(), "mend it")) == "OSError: a b; mend it"
