"""Every key of a training once: type, default, limits, meaning.

The sections `workload` and `train` of a spec are the models here. Their JSON schema, the template of a spec, the
options of `python -m scalestudy.training` and the table in the docs come from the fields. This file loads neither torch
nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from scalestudy.training.batches import even_weights, wrong_sum
from scalestudy.training.contradictions import CONTRADICTIONS
from scalestudy.training.registry import (
    DATASETS,
    GRADIENT_SYNCS,
    LOSSES,
    METRICS,
    MODELS,
    NO_SCHEDULES,
    OPTIMIZERS,
    SCHEDULES,
    TASKS,
    TORCH_SCHEDULERS,
)
from scalestudy.training.section import (
    CALLABLE,
    EXACT,
    IDENTIFIER,
    Affects,
    Arguments,
    BuiltIn,
    Clash,
    ConfigError,
    Count,
    Named,
    NotNegative,
    Only,
    Positive,
    Problem,
    Section,
    Share,
    Text,
    Whole,
    not_built_in,
    text_of,
    value_of,
    wrong,
    wrong_together,
)

LARGEST_TOKENS = 2**53
"""Tokens are many: the largest whole number that every float holds."""
POWERSGD_RANK = 2
"""`powersgd_rank` where it is null."""
LOCAL_STEPS = 8
"""`local_steps` where it is null."""
EPOCHS = 10
"""`epochs` where neither `steps` nor `tokens` is given."""
PERIODS = 10
"""Evaluations of a training of `steps` or `tokens`, where `eval_every` is null."""
UNITS = ("epochs", "steps", "tokens")
"""Units of a training's length. Each is a key; exactly one of them is set."""
JUDGED = "judged:"
"""Begins the metric of runs that others made (`scalestudy judge`). Its name, which may be any text, follows."""
OF_LOOP = ("loop", "loop_args", "metrics", "datasets", "exact")
"""Keys of `workload` for a Ray Train loop alone."""
OF_ANY = ("metric", "metric_mode")
"""Keys of `workload` for the built-in loop and a Ray Train loop."""
GIVEN_TO_LOOP = ("num_gpus", "batch_size", "batch_size_per_worker", "learning_rate", "seed", "epochs")
"""Keys of a loop's config that a trial sets."""
SAMPLES = "samples"
"""The key of `metrics` that names a loop's count of examples."""
PHASES = ("data", "forward_backward", "gradient_sync", "optimizer")
"""Parts of a step in their order. A record has the seconds that a period spent in each."""


_METRIC_OF_A_TASK = {"type": "string", "pattern": f"^{IDENTIFIER}$"}


def _data_set(value: str) -> str:
    if value.startswith("torchvision:"):
        raise wrong("is not available", f"write it as {CALLABLE} of your own")
    return value


def _read_shards(value: Any) -> Any:
    """Check the weights of the workers. Refuse fractions that do not sum to 1, since they are mostly a mistake."""
    if value in ("even", "speed"):
        return value
    remedy = "write even, speed, or one weight a worker, such as [3, 1]"
    is_list = isinstance(value, list | tuple) and all(is_number(weight) and weight >= 0 for weight in value)
    if not is_list or not any(value):
        raise wrong("is not even, speed or a list of weights", remedy)
    total = wrong_sum(value)
    if total is not None:
        raise wrong(f"sum to {total:g}, not 1", "give shares that sum to 1, or whole numbers such as [3, 1]")
    return tuple(float(weight) for weight in value)


def _read_every(value: Any) -> Any:
    """Check the period of evaluations."""
    remedy = 'write {"epochs": N}, {"steps": N} or {"tokens": N}'  # also what a command line takes
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in UNITS:
        raise wrong("is not one of epochs, steps and tokens with a number", remedy)
    (number,) = value.values()
    if type(number) is not int or not 1 <= number <= LARGEST_TOKENS:
        raise wrong("has no whole number above 0", remedy)
    return dict(value)


def _read_betas(value: Any) -> Any:
    """Check Adam's betas."""
    is_list = isinstance(value, list | tuple) and all(is_number(beta) and 0 <= beta < 1 for beta in value)
    if not is_list or len(value) != 2:
        raise wrong("is not two numbers from 0 to below 1", "write two, such as [0.9, 0.95]")
    return float(value[0]), float(value[1])


def is_number(value: object) -> bool:
    """Whether the value is a finite int or float, but no bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


Weights = Annotated[tuple[NotNegative, ...], Field(min_length=1)]
Period = Annotated[
    dict[str, int], BeforeValidator(_read_every, json_schema_input_type=dict[str, Annotated[int, Field(ge=1)]])
]
Betas = Annotated[tuple[float, float], BeforeValidator(_read_betas, json_schema_input_type=Weights)]


class LoaderConfig(Section):
    """How data are read ahead of the training."""

    workers: Annotated[int, Field(ge=0, le=256)] | None = None
    """processes that read a torch data set, for each worker; 0: the worker itself; null: as many as pay"""
    prefetch: Count = 2
    """batches that each of them holds ready

    So does the reader of tensors that don't fit the device."""


class Workload(Section):
    """What is trained, and on which data."""

    model: Annotated[Text, BuiltIn(MODELS)] = "lenet"
    """the network; torchvision:name is one of torchvision's

    A callable is called with model_args, and with num_classes and in_channels if it names them."""
    data: Annotated[Text, AfterValidator(_data_set), BuiltIn(DATASETS)] = "digits"
    """the data set

    A callable is called with root and data_args, and returns the splits."""
    model_args: Arguments = Field(default_factory=dict)
    """arguments of the model, such as {init: xavier}"""
    data_args: Arguments = Field(default_factory=dict)
    """arguments of the data set, such as {train_samples: 6000}"""
    loss: Annotated[Text, BuiltIn(LOSSES)] = "cross_entropy"
    """the loss of one example

    A callable is called with outputs and targets, and returns one loss an example."""
    metric: Annotated[Text, WithJsonSchema({"anyOf": [*BuiltIn(METRICS).forms(), _METRIC_OF_A_TASK]})] = "accuracy"
    """the target metric, a mean over the test set; or mse, package.module:callable, or a metric of the task or the loop

    A callable is like the loss. accuracy is reported as test_accuracy, a share from 0 to 1; others as test_<name>."""
    metric_mode: Annotated[Literal["max", "min"], EXACT] = "max"
    """whether the larger or the smaller metric is better"""
    task: Annotated[Text, BuiltIn(TASKS)] | None = None
    """class that says what a batch's loss and metrics are; null: inputs, targets, loss and metric

    It is called with what the data give it (for_task) and task_args."""
    task_args: Arguments = Field(default_factory=dict)
    """arguments of the task, such as {smoothing: 0.1}"""
    loader: Annotated[LoaderConfig, Affects(result=False)] = LoaderConfig()
    """how data are read ahead; it changes no result"""
    loop: Annotated[Text, BuiltIn(())] | None = None
    """a train_loop_per_worker of Ray Train, in place of model and data; null: the built-in loop

    It is called with Ray Train's config, and reports by ray.train.report."""
    loop_args: Arguments = Field(default_factory=dict)
    """further keys of the loop's config, such as {hidden: 128}"""
    metrics: dict[Text, Text] = Field(default_factory=dict)
    """of a loop: what its reports call the metric and others, such as {accuracy: eval_acc, samples: seen}

    samples: the examples so far, of all workers. A name that is not listed is reported as it is."""
    datasets: dict[Text, Annotated[Text, BuiltIn(())]] = Field(default_factory=dict)
    """of a loop: functions that make the Ray Data sets for get_dataset_shard, such as {train: my_data:train}"""
    exact: Annotated[bool, Affects(step=False, result=False)] = False
    """of a loop: its training does not depend on num_gpus, as an adaptive study needs"""

    @model_validator(mode="after")
    def _one_loop(self) -> Self:
        clashes = []
        for name, field in Workload.model_fields.items():
            if name in OF_ANY or name == "loop" or value_of(self, name) == field.get_default(call_default_factory=True):
                continue
            if self.loop is None and name in OF_LOOP:
                clashes.append(Clash(name, "has no effect without loop", "name a loop, or remove the key", ["loop"]))
            elif self.loop is not None and name not in OF_LOOP:
                message = f"has no effect: there are both `loop` and `{name}`, and a loop has its own"
                clashes.append(Clash(name, message, f"remove {name}, or loop", ["loop"]))
        if repeated := [name for name in GIVEN_TO_LOOP if name in self.loop_args]:
            names = ", ".join(repeated)
            message = f"repeat {names}, which the trial sets in every loop's config"
            clashes.append(Clash("loop_args", message, f"remove {names} from them", ()))
        if unfit := [name for name in self.metrics if not name.isidentifier()]:
            message = f"have the name {unfit[0]!r}, which is no identifier"
            clashes.append(Clash("metrics", message, "write name: what the reports call it", ()))
        if clashes:
            raise wrong_together(self, clashes)
        return self

    @model_validator(mode="after")
    def _metric_is_known(self) -> Self:
        problem: tuple[str, str] | None = None
        if self.metric.startswith(JUDGED):
            return self
        if self.loop is not None:
            if not self.metric.isidentifier() or self.metric == SAMPLES:
                remedy = "write a name, such as perplexity, and under metrics what the reports call it"
                problem = "is no name of a loop's metric", remedy
        elif self.task is not None:
            if not self.metric.isidentifier() or self.metric == "loss":
                problem = "is no name of a task's metric", "name one of the metrics that the task's finish returns"
        elif self.metric.endswith(":loss"):
            problem = "would be reported as test_loss, the name of the loss", "rename the function"
        else:
            problem = not_built_in(self.metric, METRICS)
        if problem:
            raise wrong_together(self, [Clash("metric", *problem, ["task", "loop"])])
        return self


class OptimizerConfig(Section):
    """The rule that turns gradients into an update."""

    name: Annotated[Text, BuiltIn(OPTIMIZERS)] = "sgd"
    """the rule that turns gradients into an update"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """for sgd; adam and adamw have betas"""
    weight_decay: NotNegative = 0.0
    """part of the loss in sgd and adam, decoupled from it in adamw"""
    dampening: Annotated[float, Field(ge=0, le=1)] = 0.0
    """for sgd: share of a gradient that its momentum leaves out"""
    nesterov: bool = False
    """for sgd with momentum: look ahead by it"""
    betas: Betas | None = None
    """for adam and adamw: decay of the two moments; null: [0.9, 0.999]"""
    eps: Positive | None = None
    """for adam and adamw: added to the divisor; null: 1e-08"""
    amsgrad: bool = False
    """for adam and adamw: divide by the largest second moment so far"""
    args: Arguments = Field(default_factory=dict)
    """arguments of an optimizer of your own"""


FLOOR = "floor"
"""Argument of the built-in schedules that fall: the share of the peak at which they end."""
WITH_FLOOR = ("cosine", "linear")
"""Schedules that take it."""


def _schedule(value: str) -> str:
    name = value.removeprefix("torch.optim.lr_scheduler:")
    if name in NO_SCHEDULES:
        raise wrong(*NO_SCHEDULES[name])
    return value


class ScheduleConfig(Named):
    """How the rate changes over the training, after the warm-up."""

    name: Annotated[Text, AfterValidator(_schedule), BuiltIn(SCHEDULES, more=(*TORCH_SCHEDULERS, *NO_SCHEDULES))] = (
        "constant"
    )
    """how the rate changes after the warm-up, also StepLR or another class of torch.optim.lr_scheduler; alone it may
    stand for all three: schedule: cosine"""
    args: Arguments = Field(default_factory=dict)
    """arguments of the schedule, such as {gamma: 0.5}; of cosine and linear: floor, the share of the rate at the end"""
    per: Annotated[Literal["step", "epoch"], EXACT] = "step"
    """what the schedule counts; epoch: the rate is the same throughout an epoch"""

    @model_validator(mode="after")
    def _built_in_takes_its_arguments(self) -> Self:
        if self.name not in SCHEDULES or not self.args:
            return self
        takes = "floor alone" if self.name in WITH_FLOOR else "no arguments"
        if self.name not in WITH_FLOOR or set(self.args) != {FLOOR}:
            message = f"are no arguments of {self.name}: it takes {takes}"
            remedy = "write args: {floor: 0.1}, or remove args" if self.name in WITH_FLOOR else "remove args"
            raise wrong_together(self, [Clash("args", message, remedy, ["name"])])
        floor = self.args[FLOOR]
        if not is_number(floor) or not 0 <= floor <= 1:
            remedy = "write a share of the peak from 0 to 1, such as {floor: 0.1}"
            raise wrong_together(self, [Clash("args", "have a floor that is no share", remedy, ["name"])])
        return self


class Train(Section):
    """How one trial is trained. Any key can be swept too, with a list under `sweep`.

    Only a whole `TrainConfig` checks whether the values go together, since a study may sweep each of them.
    """

    epochs: Annotated[Count | None, Affects(step=False)] = EPOCHS
    """passes over the training set; null: as steps or tokens says

    With workload.loop: the reports of a whole training. The loop gets it as config["epochs"], and what counts epochs
    counts reports. A loop obeys no other key of train."""
    steps: Annotated[Count | None, Affects(step=False)] = None
    """how long a training is, in place of epochs; null: as epochs says"""
    tokens: Annotated[Annotated[int, Field(ge=1, le=LARGEST_TOKENS)] | None, Affects(step=False)] = None
    """how long a training is, by what the task's tokens counts; null: as epochs says"""
    eval_every: Annotated[Period | None, Affects(step=False)] = None
    """from one evaluation to the next, {epochs: N}, {steps: N} or {tokens: N}, in the unit of the length; null: each
    epoch; a training of steps or tokens, about 10 times"""
    evaluate_batches: Annotated[Count | None, Affects(step=False)] = None
    """test examples of an evaluation, in batches of 512: the same ones each time, from all over the set; null: all"""
    optimizer: OptimizerConfig = OptimizerConfig()
    """the rule of an update"""
    lr_rule: Annotated[Literal["none", "linear", "sqrt", "adascale"], EXACT] = "none"
    """how the rate follows the batch size"""
    base_batch_size: Count = 256
    """the batch size at which lr_rule changes nothing"""
    warmup_epochs: Annotated[NotNegative, Affects(step=False)] = 0.0
    """epochs over which the rate rises, step by step"""
    warmup_steps: Annotated[Count | None, Affects(step=False)] = None
    """the same in steps; null: as warmup_epochs says"""
    warmup_tokens: Annotated[Annotated[int, Field(ge=1, le=LARGEST_TOKENS)] | None, Affects(step=False)] = None
    """the same in what the task's tokens counts; null: as warmup_epochs says"""
    warmup_share: Annotated[Share | None, Affects(step=False)] = None
    """the same as a share of the training, up to 1; null: as warmup_epochs says"""
    schedule: Annotated[ScheduleConfig, Affects(step=False)] = ScheduleConfig()
    """how the rate changes after the warm-up"""
    gradient_clip: Positive | None = None
    """the largest L2 norm of the summed gradient; null: not clipped"""
    precision: Annotated[Literal["fp32", "tf32", "bf16"], EXACT] = "fp32"
    """number format of forward and backward; parameters and updates stay float32"""
    channels_last: Annotated[Literal[False, True, "auto"], EXACT] = False
    """memory order of images; auto: the faster one in a short test"""
    compile: Annotated[Literal[False, True, "reduce-overhead", "max-autotune"], EXACT] = False
    """run the model through torch.compile, by default or in one of its modes"""
    cudnn_benchmark: bool = False
    """on a GPU: for each shape, time cuDNN's algorithms of a convolution and take the fastest"""
    accumulation: Count = 1
    """micro-batches a step"""
    unused_parameters: bool = False
    """allow parameters that take no part in some batch; their gradient is then zero"""
    augment: Annotated[Literal["none", "crop_flip"], EXACT] = "none"
    """random changes of training images"""
    gradient_sync: Annotated[Text, BuiltIn(GRADIENT_SYNCS)] = "ddp"
    """how gradients are summed over the workers"""
    powersgd_rank: Annotated[Count | None, Only("powersgd")] = None
    """for powersgd: rank of the compressed gradients; null: 2"""
    local_steps: Annotated[Count | None, Only("local_sgd")] = None
    """for local_sgd: steps between two averages; null: 8"""
    sync_batch_norm: bool = False
    """normalise over the whole batch instead of one worker's part"""
    shards: Annotated[
        Literal["even", "speed"] | tuple[float, ...],
        BeforeValidator(_read_shards, json_schema_input_type=Literal["even", "speed"] | Weights),
    ] = "even"
    """how a batch is divided; or a list with one weight for each worker"""
    warm_up_steps: Annotated[Whole, Affects(step=False)] = 5
    """first steps of a trial, not counted in its samples a second"""
    checkpoint_every: Annotated[Whole, Affects(step=False, result=False)] = 1
    """evaluations, by default epochs, between checkpoints; 0: never"""

    @model_validator(mode="before")
    @classmethod
    def _no_epochs_beside_another_length(cls, raw: Any) -> Any:
        is_other = isinstance(raw, Mapping) and any(raw.get(unit) is not None for unit in UNITS[1:])
        return {"epochs": None, **raw} if is_other else raw

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if not any(getattr(self, unit) for unit in UNITS):
            raise wrong_together(self, [Clash("epochs", "is no length", "set one of epochs, steps, tokens", UNITS)])
        return self

    @property
    def unit(self) -> Literal["epochs", "steps", "tokens"]:
        """The unit of length and period."""
        return "steps" if self.steps is not None else "tokens" if self.tokens is not None else "epochs"

    @property
    def counts_tokens(self) -> bool:
        """Whether the training or its warm-up is as long as its tokens say."""
        return self.unit == "tokens" or self.warmup_tokens is not None

    @property
    def length(self) -> int:
        """How long the training is."""
        return int(getattr(self, self.unit))

    @property
    def period(self) -> int:
        """From one evaluation to the next."""
        by_default = 1 if self.unit == "epochs" else math.ceil(self.length / PERIODS)
        return self.eval_every[self.unit] if self.eval_every else by_default

    @property
    def period_word(self) -> Literal["epoch", "evaluation"]:
        """What a period is called: an epoch where it is one, else an evaluation."""
        return "epoch" if self.unit == "epochs" and self.period == 1 else "evaluation"

    @property
    def evaluations(self) -> int:
        """How often a whole training is evaluated. The last period may be shorter than the others."""
        return math.ceil(self.length / self.period)


class TrainConfig(Train, Workload):
    """One training, for any world size: the spec's `workload` and `train`, and what a trial sets."""

    batch_size: Count
    """examples in a step, over all workers"""
    learning_rate: Positive
    """the rate from which lr_rule, warm-up and schedule start"""
    seed: Whole = 0
    """for parameters, order of examples and all other random numbers"""
    data_root: Text | None = None
    """folder of data sets; null: SCALESTUDY_DATA, else scalestudy/data in the user's cache"""
    max_steps: Count | None = None
    """end after so many steps, without evaluation; for timing; null: train all epochs"""
    min_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """go on after max_steps until so many seconds of steps are timed"""

    @model_validator(mode="after")
    def _values_go_together(self) -> Self:
        clashes = []
        for pair in CONTRADICTIONS:
            value, other = value_of(self, pair.key), value_of(self, pair.other_key)
            if pair.applies(value) and pair.other_applies(other):
                clashes.append(Clash(pair.key, pair.what(text_of(other)), pair.remedy, [pair.other_key]))
        if self.max_steps is not None and self.max_steps <= self.warm_up_steps:
            message = f"leaves no step after {self.warm_up_steps} warm_up_steps"
            clashes.append(Clash("max_steps", message, "raise it, or lower warm_up_steps", ["warm_up_steps"]))
        if self.min_seconds and self.max_steps is None:
            message = "needs max_steps, the steps of a training that is timed"
            clashes.append(Clash("min_seconds", message, "give both, or neither", ["max_steps"]))
        if clashes:
            raise wrong_together(self, clashes)
        return self

    def weights(self, world_size: int) -> tuple[float, ...]:
        """Return each worker's share of a batch. With `speed`, they are equal until speeds are measured.

        Raises ConfigError unless `shards` has one weight for each worker.
        """
        if self.shards == "even" or self.shards == "speed":
            return even_weights(world_size)
        if len(self.shards) != world_size:
            message = f"has {len(self.shards)} weights for {world_size} workers"
            remedy = "add or remove weights, or use 'even'"
            raise ConfigError([Problem(field="shards", value=self.shards, message=message, remedy=remedy)])
        return self.shards
