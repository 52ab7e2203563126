"""What a trial leaves in its process: settings are put back, and what user code keeps of a model is found."""

import copy
import functools
import gc
import multiprocessing
import os
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Distribution
from torch.optim.optimizer import register_optimizer_step_pre_hook

from scalestudy.training.process_state import ALL, ProcessState, _contents
from scalestudy.training.settings import Settings


@pytest.fixture(autouse=True)
def _own_settings():
    """What a test changes ends with it, also where the code under test fails."""
    before = Settings(ALL)
    yield
    before.put_back()


# --- settings ---------------------------------------------------------------------------------------------------------
def of_every_module(_module, _inputs):
    return None


CHANGES = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "the gradient mode": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "the filling of new memory": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "denormal numbers": lambda: torch.set_flush_denormal(True),
    "cuDNN": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "cuDNN's determinism": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "oneDNN": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "attention kernels": lambda: torch.backends.cuda.enable_math_sdp(False),
    "hooks on every module": lambda: nn.modules.module.register_module_forward_pre_hook(of_every_module),
    "hooks on every optimizer": lambda: register_optimizer_step_pre_hook(of_every_module),
    "the checks of distributions": lambda: Distribution.set_default_validate_args(not Distribution._validate_args),
    "sums in half precision": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "NumPy's error state": lambda: np.seterr(all="raise"),
    "the current folder": lambda: os.chdir("/"),
    "the environment": lambda: os.environ.update(MINE="1"),
    "sys.path": lambda: sys.path.insert(0, "/nowhere"),
    "the recursion limit": lambda: sys.setrecursionlimit(5_000),
    "warning filters": lambda: warnings.simplefilter("ignore"),
    "how processes start": lambda: multiprocessing.set_start_method("spawn", force=True),
    "how processes share tensors": lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
    "garbage collection": gc.disable,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_put_back(name):
    process = ProcessState()
    process.begin()
    setting = ALL[name]
    before = setting.get()
    CHANGES[name]()
    assert setting.get() != before
    assert process.begin() == ""
    assert setting.get() == before


def test_every_setting_is_tested():
    """But for the GPU's, and the locale: a machine may have one alone."""
    assert CHANGES.keys() == ALL.keys() - {"the GPU", "the locale", "the order of an einsum"}


@pytest.mark.parametrize("before", [(True, "auto"), (False, "greedy"), (False, None)])
def test_the_order_of_an_einsum_is_put_back(monkeypatch, before):
    """Of a package that need not be installed."""
    flags = torch.backends.opt_einsum.set_flags
    monkeypatch.setitem(flags.__globals__, "is_available", lambda: before[1] is not None)
    monkeypatch.setitem(flags.__globals__, "enabled", before[0])
    monkeypatch.setitem(flags.__globals__, "strategy", before[1])
    settings = Settings(ALL)
    if before[1]:
        flags(True, "optimal")
        assert settings.put_back() == ["the order of an einsum"]
    assert (settings.put_back(), flags()) == ([], before)


def test_what_was_deleted_from_the_environment_is_back(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    settings = Settings(ALL)
    del os.environ["MINE"]
    assert settings.put_back() == ["the environment"]
    assert os.environ["MINE"] == "1"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's, and forgets it at the end."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), "utf-8")
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_what_importing_sets_holds_in_every_trial(module):
    process = ProcessState([module("sets_dtype", "import torch; torch.set_default_dtype(torch.float64)")])
    for _ in range(3):
        process.begin()
        assert torch.get_default_dtype() == torch.float64
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("text", ["import sys; sys.exit('no licence')", "1 / 0", "import no_such_module"])
def test_a_module_that_cannot_be_imported_is_left_to_its_trial(module, text):
    process = ProcessState([module("broken", text), module("good", "import os; os.environ['GOOD'] = '1'")])
    assert process.begin() == ""
    assert os.environ["GOOD"] == "1"


def test_what_only_an_earlier_trial_imported_may_have_set_what_is_put_back(module):
    process = ProcessState()
    process.begin()
    __import__(module("late", "import torch; torch.set_default_dtype(torch.float64)"))
    assert process.begin() == "importing late may have set the default dtype, and only an earlier trial imported it"


def test_a_late_import_that_sets_nothing_is_no_matter(module):
    process = ProcessState()
    process.begin()
    __import__(module("late_too", "import os; os.environ['LATE'] = '1'"))
    assert process.begin() == ""


@functools.cache
def set_up():
    torch.set_default_dtype(torch.float64)


def set_up_once():
    set_up()
    return layer()


def set_up_always():
    torch.set_default_dtype(torch.float64)
    return layer()


@pytest.mark.parametrize(
    ("build", "found"),
    [(set_up_once, "the code sets the default dtype once, in the first trial of a process"), (set_up_always, "")],
)
def test_what_the_code_sets_once_is_missed_in_the_next_trial(build, found):
    process, said = ProcessState(), []
    for _ in range(2):
        process.begin()
        said.append(process.found_in(build(), code="the same"))
    assert said == ["", found]
    process.begin()
    assert process.found_in(layer(), code="other") == ""


# --- what is kept -----------------------------------------------------------------------------------------------------
def layer():
    return nn.Linear(4, 4)


def cached():
    return nn.Sequential(_cached(), layer())


@functools.cache
def _cached():
    return layer()


MODULE_LEVEL = layer()


def module_level():
    return nn.Sequential(MODULE_LEVEL, layer())


def default_argument(backbone=layer()):  # noqa: B008 - as a user writes it
    return nn.Sequential(backbone, layer())


class Attribute(nn.Module):
    body = layer()

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(self.body, layer())

    def forward(self, inputs):
        return self.layers(inputs)


WEIGHT = torch.randn(4, 4)


def tensor_wrapped_anew():
    made = layer()
    made.weight = nn.Parameter(WEIGHT)
    return made


ARRAY = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


def array_wrapped_anew():
    made = layer()
    made.weight = nn.Parameter(torch.from_numpy(ARRAY))
    return made


NORM = nn.BatchNorm1d(4, affine=False)


def running_statistics():
    return nn.Sequential(layer(), NORM)


TEACHER = layer().requires_grad_(False)


class Averages(nn.Module):
    """A teacher of moving averages, which no optimizer trains."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = layer(), TEACHER

    def forward(self, inputs):
        with torch.no_grad():
            self.teacher.weight.data.mul_(0.9).add_(self.student.weight, alpha=0.1)
        return self.student(inputs) + self.teacher(inputs)


TABLE = nn.Parameter(torch.arange(48.0).view(12, 4) % 7, requires_grad=False)


class Permuting(nn.Module):
    """A table of which a trial changes only the order."""

    def __init__(self):
        super().__init__()
        self.head, self.table = nn.Linear(4, 4), TABLE

    def forward(self, inputs):
        self.table.data.copy_(ORDERS["rows"](self.table.data))
        return self.head(inputs)


ORDERS = {
    "rows": lambda table: table.flip(0),
    "columns": lambda table: table.flip(1),
    "shuffled": lambda table: table.flatten()[torch.randperm(table.numel())].view_as(table),
    "rolled by one": lambda table: table.roll(1),
    "rolled by a row": lambda table: table.roll(1, 0),
    "two neighbours": lambda table: _swapped(table, 7, 8),
    "two words": lambda table: _swapped(table, 4, 5, 2),
    "the ends": lambda table: _swapped(table, 0, table.numel() - 1),
    "sorted": lambda table: table.flatten().sort().values.view_as(table),
}


def _swapped(table, one, other, count=1):
    flat = table.flatten().clone()
    first = [*range(one * count, (one + 1) * count)]
    then = [*range(other * count, (other + 1) * count)] if other * count < len(flat) else [other]
    flat[first + then] = flat[then + first]
    return flat.view_as(table)


class Counting(nn.Module):
    """No tensors, but a state."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return inputs * self.calls


COUNTING = Counting()


def counting():
    return nn.Sequential(layer(), COUNTING)


def frozen_then_trained():
    """Frozen, but changed by the user's own update."""
    return nn.Sequential(FROZEN_STEPPED, layer())


class SteppedFrozen(nn.Linear):
    def forward(self, inputs):
        self.bias.data += 1
        return super().forward(inputs)


FROZEN_STEPPED = SteppedFrozen(4, 4).requires_grad_(False)
KEPT = {
    cached: "the model's 0.weight was trained by an earlier trial",
    module_level: "the model's 0.weight was trained by an earlier trial",
    default_argument: "the model's 0.weight was trained by an earlier trial",
    Attribute: "the model's layers.0.weight was trained by an earlier trial",
    tensor_wrapped_anew: "the model's weight was trained by an earlier trial",
    array_wrapped_anew: "the model's weight was trained by an earlier trial",
    running_statistics: "the model's 1.running_mean was changed by an earlier trial",
    Permuting: "the model's table was changed by an earlier trial",
    Averages: "the model's teacher.weight was changed by an earlier trial",
    counting: "the model's 1 was changed by an earlier trial",
    frozen_then_trained: "the model's 0.bias was changed by an earlier trial",
}


def train(process, build):
    """A trial of one step; returns what was found, and then trains nothing."""
    began = process.begin()
    torch.manual_seed(1)
    model = build().train()
    if found := began or process.found_in(model):
        return found
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
    process.end(model)
    return ""


@pytest.mark.parametrize("build", KEPT, ids=lambda build: build.__name__)
def test_what_a_trial_has_changed_and_the_code_keeps_is_found_in_the_next(build):
    process = ProcessState()
    assert train(process, build) == ""
    assert train(process, build) == KEPT[build]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5), (40, 16), (700, 800)])
def test_every_other_order_of_the_same_numbers_has_another_content(shape, dtype):
    """In one piece and in several."""
    table = (torch.arange(shape[0] * shape[1]) * 31 % 101).view(shape).to(dtype)
    contents = [_contents([each.untyped_storage()]) for each in [table, *(order(table) for order in ORDERS.values())]]
    assert len(set(map(str, contents))) == len(contents)
    assert _contents([table.clone().untyped_storage()]) == contents[0]


def test_what_an_earlier_trial_than_the_last_has_changed_is_found():
    process, kept = ProcessState(), functools.cache(layer)
    assert [train(process, kept), train(process, layer), train(process, layer)] == [""] * 3
    assert train(process, kept) == "the model's weight was trained by an earlier trial"


ACTIVATION = nn.ReLU(inplace=True)


ACTIVATION.tangled = {"mine": [ACTIVATION, {}]}
ACTIVATION.tangled["mine"].append(ACTIVATION.tangled)


def shared_activation(activation=nn.GELU()):  # noqa: B008 - as a user writes it
    return nn.Sequential(layer(), ACTIVATION, nn.Dropout(0.5), layer(), activation)


@functools.cache
def _frozen():
    return nn.Sequential(layer(), nn.BatchNorm1d(4)).requires_grad_(False)


class Frozen(nn.Module):
    """A backbone that is loaded once, and stays as it is."""

    def __init__(self):
        super().__init__()
        self.body, self.head = _frozen(), layer()

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, inputs):
        return self.head(self.body(inputs))


def copied():
    return nn.Sequential(copy.deepcopy(_cached()), layer())


def array_drawn_anew():
    made = layer()
    made.weight = nn.Parameter(torch.from_numpy(np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)))
    return made


REGISTERED_ANEW = layer()


def registered_anew():
    REGISTERED_ANEW.weight, REGISTERED_ANEW.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.zeros(4))
    return REGISTERED_ANEW


CLEAN = (layer, shared_activation, Frozen, copied, array_drawn_anew, registered_anew)


@pytest.mark.parametrize("build", CLEAN, ids=lambda build: build.__name__)
def test_what_no_trial_changes_may_be_kept(build):
    """A frozen backbone in evaluation mode; a copy; a module whose parameters are drawn anew."""
    process = ProcessState()
    assert [train(process, build) for _ in range(4)] == [""] * 4


def test_nothing_is_kept_alive():
    process = ProcessState()
    train(process, layer)
    sizes = []
    for _ in range(5):
        train(process, layer)
        sizes.append(sum(len(held) for held in vars(process._remains).values()))
    assert len(set(sizes)) == 1


def test_a_current_folder_that_is_gone_is_left(tmp_path, monkeypatch):
    """As one of `tempfile.TemporaryDirectory`, in which user code has stayed."""
    monkeypatch.chdir(tmp_path)
    settings, gone = Settings(ALL), tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    there = Settings(ALL)
    assert "the current folder" in settings.put_back()
    assert Path.cwd() == tmp_path
    there.put_back()
    assert Path.cwd() == tmp_path
