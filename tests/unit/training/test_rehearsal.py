"""A rehearsal: each mistake of a user's is one clear error, and nothing else is."""

import math
import re
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from docs.examples import tagger
from scalestudy.training.batches import batch_bounds, micro_batch_sizes, shard_bounds, steps_per_epoch
from scalestudy.training.config import OptimizerConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.train import train
from scalestudy.training.rehearsal import Division, Ranges, rehearse
from tests.support.training.helpers import ALONE, make_config
from tests.support.training.strangers import HERE as STRANGERS
from tests.support.training.strangers import Classifier
from tests.support.training.tasks import HERE as TASKS_MODULE
from tests.support.training.tasks import TASKS, Examples, task_config

HERE = "tests.unit.training.test_rehearsal"


def rehearsed(config, *more, **how):
    """more: divisions of other trials."""
    return rehearse(config, ALONE, [Division.of(config, 1), *more], **how)


def divided(batch_size, weights=(1.0,), accumulation=1, *, together=False):
    return Division(batch_size, weights, accumulation, normalised_together=together)


def with_task(name, **changes):
    """The examples' task with a mistake."""
    return task_config("examples", task=f"{HERE}:{name}", **changes)


# --- rates ---------------------------------------------------------------------------------------------------------


def falls(progress):
    return 0.5 ** (100 * progress)


def test_the_rates_of_whole_trainings_are_looked_at_without_training_them():
    cosine = make_config(epochs=50, batch_size=64, learning_rate=0.2, schedule="cosine")  # 4 steps an epoch
    found = rehearsed(make_config(), rated={"a": cosine, "b": cosine.replace(batch_size=128, warmup_share=0.1)})
    assert found.rates["a"].rates == {
        "the start": 0.2,
        "1/4": pytest.approx(0.1707, rel=1e-3),
        "1/2": pytest.approx(0.1),
        "3/4": pytest.approx(0.0293, rel=1e-2),
        "the end": pytest.approx(0.2 * math.sin(math.pi / 400) ** 2),
    }
    assert found.rates["b"].rates["the warm-up's end"] == 0.2
    assert found.doubt == ""


def test_rates_that_fall_to_nothing_are_a_doubt():
    config = make_config(epochs=50, batch_size=64, learning_rate=0.2, schedule=f"{HERE}:falls")
    said = rehearsed(config, rated={"lr=0.2": config, "lr=0.4": config.replace(learning_rate=0.4)}).doubt
    assert said == (
        "the rates fall to nothing with lr=0.2 and 1 more: in 90% of the steps they are under 0.001 of their peak, "
        "0.2, and end at 2.23e-31; correct train.schedule"
    )


def test_a_warm_up_in_tokens_is_looked_at_by_the_tasks_count():
    config = task_config("tagger", warmup_tokens=200, epochs=3)
    assert "the warm-up's end" in rehearsed(config).rates[""].rates


# --- what a user can get wrong -------------------------------------------------------------------------------------


class MeanOfExamples(Examples):
    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1]), len(outputs)


class MeanOfWords(tagger.Tagging):
    def loss(self, logits, batch):
        total, weight = super().loss(logits, batch)
        return total / weight, weight


class WeightOfOne(Examples):
    def loss(self, outputs, batch):
        return super().loss(outputs, batch)[0], 1


class OncePerBatch(Examples):
    """A term that does not grow with the batch."""

    def loss(self, outputs, batch):
        total, weight = super().loss(outputs, batch)
        return total + 10.0, weight


class OfFloats(Examples):
    def loss(self, outputs, batch):
        total, weight = super().loss(outputs, batch)
        return total.item(), weight


class Single(Examples):
    def loss(self, outputs, batch):
        return super().loss(outputs, batch)[0]


class WithGradients(Examples):
    def __init__(self):
        self.scale = nn.Parameter(torch.tensor(1.0))

    def evaluate(self, outputs, batch):
        return {**super().evaluate(outputs, batch), "scale": self.scale}


class AsList(Examples):
    def evaluate(self, outputs, batch):
        return [len(outputs)]


class Growing(Examples):
    """A sum of one number for each example."""

    def evaluate(self, outputs, batch):
        return {**super().evaluate(outputs, batch), "each": outputs.argmax(dim=1)}


class AsPercentText(Examples):
    def finish(self, sums):
        return {"accuracy": "12 %"}


class Misspelt(Examples):
    def finish(self, sums):
        return {"accuracy": sums["hit"] / sums["count"]}


def averaged(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def too_narrow(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))


def unfitting(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(100, num_classes))


class Unused(nn.Sequential):
    def __init__(self, num_classes, in_channels):
        super().__init__(nn.Flatten(), nn.Linear(784, num_classes))
        self.spare = nn.Linear(2, 2)

    def forward(self, inputs):
        return self[1](self[0](inputs))


def no_sgd(model, learning_rate):
    return None


MISTAKES = {
    "a mean": (
        with_task("MeanOfExamples"),
        r"^task: loss gave .* as the sum of 8 examples, and .*; return the sum over",
    ),
    "a mean over words": (task_config("tagger", task=f"{HERE}:MeanOfWords"), r"^task: loss gave .* as the sum of 8"),
    "the mean of a part": (
        task_config("tagger", task=f"{TASKS_MODULE}:MeanOfAPart"),
        r"^task: loss gave .* as the sum of 8 examples",
    ),
    "a weight of 1": (
        with_task("WeightOfOne"),
        r"^task: loss gave 1 as the weight of 8 examples, and 1, not 2, of the same ones twice; return what the sum is",
    ),
    "a term that counts once": (
        with_task("OncePerBatch"),
        r"^task: .* as the sum .*multiply by the weight what counts",
    ),
    "a float": (with_task("OfFloats"), r"^task: loss gave a float as its sum; return \(sum, weight\)"),
    "no pair": (with_task("Single"), r"^task: loss gave a Tensor; return \(sum, weight\)"),
    "weight 0": (
        task_config("examples", task=f"{TASKS_MODULE}:Weightless"),
        r"^task: the weights of a batch sum to 0; ",
    ),
    "weight NaN": (
        task_config("examples", task=f"{TASKS_MODULE}:NanWeighing"),
        r"^task: .* weight that is not finite; ",
    ),
    "a list": (with_task("AsList"), r"^task: evaluate gave a list; return a dict of sums by name"),
    "another shape": (
        with_task("Growing", data=f"{HERE}:nine"),
        r"^task: evaluate gave 'each' the shapes \(4,\) and \(3,\)",
    ),
    "no number": (with_task("AsPercentText"), r"^task: finish gave 'accuracy' as a str; return one number a metric"),
    "a metric that is not returned": (
        task_config("examples", metric="f1"),
        r"^workload.metric: 'f1' is not what finish returns: accuracy; name one of these",
    ),
    "a loss that is a mean": (
        make_config(loss=f"{HERE}:averaged"),
        r"^loss: .* values of shape \(\) for 32 examples; ",
    ),
    "a batch larger than the data": (make_config(batch_size=512), r"^batch_size: 512 is more than the 256 training ex"),
    "an unknown argument": (make_config(model_args={"layers": 3}), r"^model_args: 'mlp': .* 'layers'; it takes num_"),
    "a wrong value": (
        make_config(model="lenet", model_args={"init": "zero"}),
        "^model_args.init: 'zero' is not built in;",
    ),
    "an unknown argument of the data": (
        make_config(data_args={"count": 3}),
        r"^data_args: 'synthetic': .* 'count'; it",
    ),
    "too few outputs": (
        make_config(model=f"{HERE}:too_narrow", model_args={}),
        r"^model: outputs \(32, 3\) do not fit 10 classes; make its last layer give 10",
    ),
    "data of another shape": (
        make_config(model="lenet", model_args={}, data="synthetic_linear", loss="mse", metric="mse"),
        r"^data: examples of shape \[2\] are not images \[C, H, W\], which this model takes; ",
    ),
    "a parameter that takes no part": (
        make_config(model=f"{HERE}:Unused", model_args={}),
        r"^model: spare.weight, spare.bias took no part in the loss of the first batch; use them",
    ),
    "no optimizer": (
        make_config(optimizer=OptimizerConfig(name=f"{HERE}:no_sgd")),
        r"^optimizer.name: .* gave a NoneType; return a torch optimizer",
    ),
}


def nine(root):
    """Seven test examples: parts of four and three."""
    from scalestudy.training.data import Splits

    numbers = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Splits.from_tensors((numbers, numbers[:, :3].argmax(dim=1)), (numbers[:7], numbers[:7, :3].argmax(dim=1)))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(mistake):
    config, said = MISTAKES[mistake]
    with pytest.raises(InputError, match=said):
        rehearsed(config)


def test_the_largest_batch_of_a_study_is_told():
    assert rehearsed(make_config(), divided(256)).loss > 0
    with pytest.raises(InputError, match=r"^batch_size: 512 is more than the 256 .*; choose at most 256"):
        rehearsed(make_config(), divided(512))


def test_what_a_users_code_raises_is_handed_on():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rehearsed(make_config(model=f"{HERE}:unfitting", model_args={}))
    with pytest.raises(KeyError, match="hit"):
        rehearsed(with_task("Misspelt"))


# --- what is no mistake --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_good_task(name):
    found = rehearsed(task_config(name))
    assert found.loss > 0
    assert found.seconds > 0


class AsksItsRank(nn.Linear):
    def __init__(self, *facts):
        super().__init__(784, 10)
        self.rank = dist.get_rank()

    def forward(self, inputs):
        return super().forward(inputs.flatten(1))


def test_adascale_of_several_workers_is_not_judged_by_one():
    """One worker halves its batch, which batch normalisation forbids; several need no halves."""
    norm = {"model": "tests.support.training.workloads:BatchNormNet", "model_args": {}}
    config = make_config(**norm, lr_rule="adascale", base_batch_size=16)
    assert rehearsed(config, in_group=True).loss > 0
    with pytest.raises(InputError, match="adascale splits one worker's batch in halves"):
        rehearsed(config)


def test_an_iterable_data_set():
    here = "docs.examples.waves"
    words = {"model": f"{here}:build", "data": f"{here}:load", "loss": "mse", "metric": "mse"}
    config = make_config(**words, model_args={}, data_args={}, epochs=None, steps=50)
    assert rehearsed(config, divided(10**5)).loss > 0, "it has no length that a batch may exceed"


def test_code_that_only_several_workers_run_finds_a_process_group():
    config = make_config(model=f"{HERE}:AsksItsRank", model_args={})
    assert rehearsed(config, in_group=True).loss > 0
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="process group has not been initialized"):
        rehearsed(config)


def test_the_step_is_the_first_of_the_training():
    """The same loss as by hand, over the first batch in the order of the trial's seed."""
    from scalestudy.training.loop.trial import start_trial

    config = make_config(seed=3)
    trial = start_trial(config, ALONE)
    total, weight = trial.shard_loss(next(trial.shards()))
    assert rehearsed(config).loss == pytest.approx(total.item() / weight, rel=1e-6)


def infinite(outputs, targets):
    return outputs.sum(dim=1) * math.inf


def test_a_loss_that_is_not_finite_is_a_result_and_no_mistake():
    assert not math.isfinite(rehearsed(make_config(loss=f"{HERE}:infinite")).loss)


class Centred(nn.Linear):
    """Mixes the examples of a batch, which a study may compare."""

    def __init__(self):
        super().__init__(6, 3, dtype=torch.float64)

    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(dim=0))


class Drawing(Centred):
    """Draws a random number for each example, also in an evaluation."""

    def forward(self, inputs):
        return super().forward(inputs) * 20 * torch.rand(len(inputs), 1, dtype=inputs.dtype)


@pytest.mark.parametrize("model", ["Centred", "Drawing"])
def test_a_model_that_mixes_examples_or_draws_is_not_taken_for_a_mean(model):
    assert rehearsed(task_config("examples", model=f"{HERE}:{model}")).loss > 0


class Recall(Examples):
    """Of a class that the first test examples do not have."""

    def evaluate(self, outputs, batch):
        there = batch[1] == 2
        return {"found": (outputs.argmax(dim=1)[there] == 2).sum(), "there": there.sum()}

    def finish(self, sums):
        return {"accuracy": sums["found"] / sums["there"]}


def sorted_by_class(root):
    from scalestudy.training.data import Splits

    numbers = torch.randn(60, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    classes = numbers[:, :3].argmax(dim=1)
    order = classes.argsort()
    return Splits.from_tensors((numbers, classes), (numbers[order], classes[order]))


def test_a_metric_that_needs_more_than_the_first_examples():
    assert rehearsed(with_task("Recall", data=f"{HERE}:sorted_by_class")).loss > 0


def test_what_this_machine_lacks_or_what_takes_long_is_not_rehearsed():
    config = make_config().replace(precision="bf16", compile=True, channels_last="auto", shards=(3.0, 1.0))
    assert rehearse(config, ALONE, [Division.of(config, 2)]).loss > 0


def test_nobody_s_random_numbers_change():
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    rehearsed(make_config())
    assert torch.equal(torch.rand(3), before)


# --- what other people bring ---------------------------------------------------------------------------------------


class SlopeOfAnEnergy(Classifier):
    """A derivative in forward, in training and in evaluation."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            at = features.detach().clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(at.pow(3).sum(), at, create_graph=True)
        return features + slope


class AdaptsInTests(Classifier):
    """Takes a step of its own before it answers in an evaluation."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training:
            with torch.enable_grad():
                shift = torch.zeros(16, requires_grad=True)
                (features.detach() + shift).square().mean().backward()
            assert shift.grad is not None
            return features - 0.1 * shift.grad
        return features


class KeepsATable(Classifier):
    """A table made in the first evaluation, multiplied in the next training step."""

    table: torch.Tensor | None = None

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if self.table is None and not self.training:
            self.table = torch.linspace(0.5, 1.5, 16) * features.mean(dim=0).abs().clamp(min=0.1)
        return features if self.table is None else features * self.table


class KeepsItsOutputs(Classifier):
    """Compares with what it gave last; backward of the next step would run through this step's graph again."""

    last: torch.Tensor | None = None

    def between(self, features: torch.Tensor) -> torch.Tensor:
        before, self.last = self.last, features.mean(dim=0)
        return features if before is None else features + before


class CountsItsTests(Classifier):
    """A statistic of evaluations, used in training."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.seen: list[torch.Tensor] = []

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.seen.append(features.mean(dim=0))
            return features
        return features * torch.stack(self.seen).mean(dim=0).exp() if self.seen else features


class OddOptimizer(torch.optim.SGD):
    """Keeps a NumPy number for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["norm"] = numpy.float64(each.norm().item())
        return super().step(closure)


class NeverFilled(Classifier):
    """A buffer that is None."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.register_buffer("later", None)


class SparseGradients(nn.Module):
    """An embedding of the pixels' grey values, with sparse gradients."""

    def __init__(self, num_classes: int, in_channels: int, bag: bool = False, dense: bool = False) -> None:
        super().__init__()
        kind: Any = nn.EmbeddingBag if bag else nn.Embedding
        self.values, self.head = kind(8, 4, sparse=not dense), nn.Linear(4, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.values((inputs.flatten(1).sigmoid() * 7).long())
        outputs: torch.Tensor = self.head(found if found.dim() == 2 else found.mean(dim=1))
        return outputs


class Squeezes(Classifier):
    """Loses the first dimension of a single example in training."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        return features.squeeze() if self.training else features


class SqueezesInTests(Classifier):
    """Loses it in an evaluation."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        return features if self.training else features.squeeze()


class Correlates(Classifier):
    """Needs three examples for a covariance that it can invert."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if self.training and len(features) < 3:
            raise ValueError("a covariance needs three examples")
        return features


def strange(model, **changes):
    module = HERE if model in globals() else STRANGERS
    return make_config(model=f"{module}:{model}", **{"model_args": {}, **changes})


@pytest.mark.parametrize("model", ["SlopeOfAnEnergy", "AdaptsInTests", "KeepsATable", "CountsItsTests"])
def test_what_an_evaluation_makes_is_an_ordinary_tensor(model):
    assert rehearsed(strange(model)).loss > 0
    assert train(strange(model, epochs=2), ALONE).status == "finished"


def test_sums_with_gradients_are_numbers():
    assert rehearsed(with_task("WithGradients")).loss > 0


def test_a_step_right_after_another_is_made_too():
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        rehearsed(strange("KeepsItsOutputs"))


@pytest.mark.parametrize("kind", ["dict", "number", "none", "set", "bytes", "by pairs"])
def test_state_that_a_checkpoint_can_hold(kind):
    assert rehearsed(strange("WithState", model_args={"kind": kind})).loss > 0


@pytest.mark.parametrize("kind", ["numpy", "an array", "an object", "a path", "a function"])
def test_state_that_it_can_t_hold_is_named_before_the_start(kind):
    with pytest.raises(InputError, match=r"^state\['model'\]\['_extra_state'\].* can't be in a checkpoint; turn it"):
        rehearsed(strange("WithState", model_args={"kind": kind}))


def test_an_optimizers_odd_state_is_named():
    odd = OptimizerConfig(name=f"{HERE}:OddOptimizer")
    with pytest.raises(InputError, match=r"^state\['optimizer'\]\['state'\]\[0\]\['norm'\]: a numpy.float64 can't be"):
        rehearsed(make_config(optimizer=odd))


@pytest.mark.parametrize("model", ["GrowingTable", "LateBuffer", "WiderBuffer", "SparseAdjacency", "NeverFilled"])
def test_buffers_that_change(model):
    assert rehearsed(strange(model)).loss > 0


@pytest.mark.parametrize("bag", [False, True])
def test_sparse_gradients_are_named(bag):
    with pytest.raises(InputError, match=r"^model: the gradient of values.weight \(torch.sparse_coo\) is not dense; "):
        rehearsed(strange("SparseGradients", model_args={"bag": bag}))
    assert rehearsed(strange("SparseGradients", model_args={"bag": bag, "dense": True})).loss > 0


SMALL_PARTS = {
    "the last batch": ("Normed", divided(51), r"51 \(num_gpus 1\): .* 1 example at once, .*; choose 50 or 52,"),
    "a last micro-batch": (
        "Normed",
        divided(63, accumulation=4),
        r"63 \(num_gpus 1, accumulation 4\): .* 1 example at once, .*; choose 62 or 64,",
    ),
    "a worker's part": ("Normed", divided(3, (1.0, 1.0)), r"3 \(num_gpus 2\): .*; choose 4 or 6,"),
    "a small share": ("Normed", divided(6, (3.0, 1.0)), r"6 \(num_gpus 2\): .*; choose 8 or 2,"),
    "what all workers have": (
        "Normed",
        divided(51, (1.0, 1.0), together=True),
        r"51 \(num_gpus 2\): .* 1 example at once.*ValueError: Expected more than 1 value",
    ),
    "half of a batch": ("Squeezes", divided(3), r"3 \(num_gpus 1\): .* 1 example at once, .*; choose 4 or 6,"),
    "more than one": ("Correlates", divided(50, (1.0, 1.0, 1.0)), r"50 \(num_gpus 3\): .* 2 examples at once"),
}


@pytest.mark.parametrize("case", SMALL_PARTS)
def test_the_smallest_part_is_trained_too(case):
    """Of 256 examples, by batches of 64 and of another division."""
    model, division, said = SMALL_PARTS[case]
    with pytest.raises(InputError, match=f"^batch_size: {said}"):
        rehearsed(strange(model, batch_size=64), division)


DRAWN = {
    "a last batch": ({"batch_size": range(40, 61)}, {}, r"51 \(num_gpus 1\): .* 1 example at once, "),
    "several": ({"batch_size": range(20, 90)}, {}, r"51 \(num_gpus 1\), 85 \(num_gpus 1\): .* 1 example at once, "),
    "of many": (
        {"batch_size": range(4, 129)},
        {},
        r"5 \(num_gpus 1\), 15 .*, 17 .* and 2 more: .* 1 example",
    ),
    "a number of workers": (
        {"num_gpus": range(3, 6)},
        {"batch_size": 251, "gpus": 5, "accumulation": 3},
        r"251 \(num_gpus 4, accumulation 3\): .* 1 example at once, ",
    ),
    "two of them": (
        {"batch_size": range(62, 65), "accumulation": range(2, 5)},
        {"accumulation": 4},
        r"63 \(num_gpus 1, accumulation 3\), 63 \(num_gpus 1, accumulation 4\): .* 1 example at once, ",
    ),
}


@pytest.mark.parametrize("case", DRAWN)
def test_what_only_may_be_drawn_is_told_and_no_mistake(case):
    """Of 256 examples. What lies at the bounds trains."""
    ranges, at, said = DRAWN[case]
    batches = ranges.get("batch_size", [at.get("batch_size", 64)])
    corners = [
        divided(batch_size, (1.0,) * gpus, accumulation, together=gpus > 1)
        for batch_size in {batches[0], batches[-1]}
        for gpus in {ranges.get("num_gpus", [1])[0], at.get("gpus", 1)}
        for accumulation in {*ranges.get("accumulation", [])[:1], at.get("accumulation", 1)}
    ]
    found = rehearse(strange("Normed", batch_size=64), ALONE, corners, Ranges(**ranges))
    assert re.match(rf"a search may draw batch_size: {said}", found.doubt), found.doubt
    assert found.doubt.endswith("); list values in place of a range to leave it out")


def test_what_no_draw_gives_is_not_told():
    for ranges in (Ranges(batch_size=range(52, 56)), Ranges(), None):
        corners = [divided(52), divided(55)]
        assert rehearse(strange("Normed", batch_size=64), ALONE, corners, ranges).doubt == ""
    assert rehearse(strange("SlopeOfAnEnergy"), ALONE, [divided(8), divided(256)], Ranges(range(8, 257))).doubt == ""


def test_a_remedy_helps_at_every_number_of_workers():
    """Batches of 50 leave six examples: enough for one worker, and not for five."""
    with pytest.raises(InputError, match=r"^batch_size: 51 \(num_gpus 1\), 51 \(num_gpus 5\): .*; choose 52 or 49,"):
        rehearsed(strange("Normed", batch_size=64), divided(51), divided(51, (1.0,) * 5))


@pytest.mark.parametrize("batch_size", [255, 85, 51])
def test_a_last_batch_within_the_rehearsed_steps_is_told_in_the_same_way(batch_size):
    """256 examples: the second, the fourth or the sixth batch has one."""
    with pytest.raises(
        InputError, match=rf"^batch_size: {batch_size} \(num_gpus 1\): .* 1 example at once, .*; choose"
    ):
        rehearsed(strange("Normed", batch_size=batch_size))


def test_a_training_that_ends_before_its_first_epoch_has_no_last_batch():
    config = strange("Normed", batch_size=51, epochs=None, steps=5)
    assert rehearsed(config).loss > 0
    with pytest.raises(InputError, match=r"^batch_size: 51 "):
        rehearsed(config.replace(steps=6))


@pytest.mark.parametrize(
    "division",
    [
        divided(50),
        divided(52),
        divided(64, accumulation=4),
        divided(4, (1.0, 1.0)),
        divided(2, (1.0, 1.0), together=True),
    ],
    ids=str,
)
def test_parts_that_batch_normalisation_takes(division):
    assert rehearsed(strange("Normed", batch_size=64), division).loss > 0


def test_a_part_of_the_test_set_may_be_one_example():
    config = strange("SqueezesInTests", data_args={"train_samples": 256, "test_samples": 64})
    assert rehearsed(config).loss > 0
    with pytest.raises(InputError, match=r"^model: outputs \(10,\)"):
        rehearsed(config, divided(64, (1.0,) * 60))


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    weights=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    accumulation=st.integers(1, 4),
)
def test_the_smallest_part_is_the_one_that_steps_have(samples, batch_size, weights, accumulation):
    """Every part of every step, counted."""
    batch_size = min(batch_size, samples)
    parts, together = [], []
    for step in range(steps_per_epoch(samples, batch_size)):
        first, stop = batch_bounds(samples, batch_size, step)
        pieces = []
        for rank in range(len(weights)):
            begin, end = shard_bounds(stop - first, weights, rank)
            pieces.append(micro_batch_sizes(end - begin, accumulation, keep_empty=True))
        parts += [size for each in pieces for size in each if size]
        together += [sum(each) for each in zip(*pieces, strict=True) if sum(each)]
    division = divided(batch_size, tuple(weights), accumulation)
    assert division.smallest(samples) == min(parts)
    assert division.smallest(samples, together=True) == min(together)
