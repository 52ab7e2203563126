"""The rehearsal of a study: the first steps of each kind of training, on the CPU, before anything starts.

A process makes the steps (`main`), within a limit of time and of memory. What it can't find out stops no study: only a
mistake does. It makes each kind's steps twice in one process, and once in a fresh one: workers train many trials, and a
trial must be the same whatever ran before it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.plan.plan import Plan, TrialPlan, label
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.child import order_and_answer, run_child
from scalestudy.orchestration.base.errors import RequestError, request_error
from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.study.callables import modules_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError, is_out_of_memory, readable, wants_gpu, what_happened
from scalestudy.training.fingerprint import DataFacts, data_key
from scalestudy.training.process import run
from scalestudy.training.registry import (
    INITIALISATIONS,
    LOSSES,
    METRICS,
    OPTIMIZERS,
    SCHEDULES,
)
from scalestudy.training.section import name_of

if TYPE_CHECKING:
    from scalestudy.training.rehearsal import Division, Part, Ranges, Rehearsed

LIMIT_SECONDS = 60.0
"""For all kinds of training together, the process's start included."""
MEMORY_SHARE = 0.5
"""Of the free memory, which a rehearsal may take."""
MOST_NAMES = 3
"""Kinds that a line lists."""
POLL_SECONDS = 0.05
ENDED_BY = "a second training of {} in a process ended the process"
LEFT_BEHIND = "{} trains in another way after another training in its process"
DIVIDING = {"batch_size": "batch_size", "num_gpus": "num_gpus", "train.accumulation": "accumulation"}
"""Parameters that decide how a trial divides its batches, and their names in `training.rehearsal.Ranges`."""
RATED = (
    *("schedule", "warmup_epochs", "warmup_steps", "warmup_tokens", "warmup_share", "lr_rule", "base_batch_size"),
    *("batch_size", "learning_rate", "unit", "length"),
)
"""What of a config its rates depend on."""
NO_LOOP = "a Ray Train loop is not rehearsed, since only Ray Train's workers can run it"
WITHOUT = "correct it; --no-rehearsal starts the study without this check"
FITTING_MODELS = ("lenet", "mlp", "resnet18")
FITTING_DATA = ("digits", "synthetic", "mnist", "fashion_mnist")
FITTING_EXAMPLES = 1_437
"""Built-in models and data of which each fits each, with any built-in loss and metric, and the fewest training examples
of these data. A test tries them all."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Trainings that make the same mistakes."""

    trials: tuple[TrialPlan, ...]
    """The first one has the smallest batch; its steps are made for all."""

    @property
    def in_group(self) -> bool:
        """Whether each has several workers, so that its code may ask the process group."""
        return all(trial.num_gpus > 1 for trial in self.trials)

    def order(self, data_root: Path) -> dict[str, Any]:
        """Return what the process needs to know, as plain data: `answer_for` takes it."""
        configs = [(train_config(trial, data_root), trial.num_gpus) for trial in self.trials]
        divided = {
            (
                *(config.batch_size, size, config.accumulation, config.shards),
                *(config.sync_batch_norm, config.unit, config.length),
            ): (config, size)
            for config, size in configs
        }
        rated: dict[str, tuple[str, TrainConfig]] = {}
        for trial, (config, _) in zip(self.trials, configs, strict=True):
            if not rated or config.schedule.name not in SCHEDULES:
                rated.setdefault(repr([getattr(config, key) for key in RATED]), (_rated_name(trial), config))
        return {
            "config": configs[0][0].to_dict(),
            "rated": {name: config.to_dict() for name, config in rated.values()},
            "divided": [
                [
                    *(config.batch_size, config.weights(size), config.accumulation),
                    *(config.sync_batch_norm and size > 1, config.length if config.unit == "steps" else None),
                ]
                for config, size in divided.values()
            ],
            "in_group": self.in_group,
            "data_key": data_key(self.trials[0].workload),
        }


def _rated_name(trial: TrialPlan) -> str:
    """Return the parameters of a trial that its rates may depend on, in words."""
    told = {key: value for key, value in trial.params.items() if not key.startswith("workload.")}
    return label({key: value for key, value in told.items() if key not in ("num_gpus", "seed")})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the process says of a kind: the loss of its first step and the seconds, or a problem, or why not."""

    loss: float | None = None
    seconds: float | None = None
    digest: str = ""
    """Of the model after the steps. "": they were not all made."""
    problem: str = ""
    remedy: str = ""
    left_out: str = ""
    doubt: str = ""
    """Of trials that a search may draw, and of rates."""
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By training: its rates by the place in it."""

    @property
    def is_finite(self) -> bool:
        """Whether the step's loss is a number."""
        return self.loss is not None and math.isfinite(self.loss)


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was rehearsed."""

    steps: Mapping[str, Answer]  # by kind
    left_out: Mapping[str, str]  # by kind, why
    seconds: float  # of all
    fresh_workers: str | None = None
    """Why each trial needs workers that have trained no other. "": it does not. None: that was not found out."""
    data: Mapping[str, DataFacts] = field(default_factory=dict)
    """By `data_key`: what two readings of the user's data have in common."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        steps = {
            name: {
                "loss": step.loss if step.is_finite else None,
                "seconds": step.seconds,
                "doubt": step.doubt,
                "rates": step.rates,
            }
            for name, step in self.steps.items()
        }
        return {
            "steps": steps,
            "left_out": dict(self.left_out),
            "seconds": self.seconds,
            "fresh_workers": self.fresh_workers,
        }

    def words(self) -> str:
        """One line."""
        steps = [f"{name} (loss {step.loss:.4g})" for name, step in self.steps.items()]
        made = f"{self.seconds:.1f} s, the first steps of {_listed(steps)}" if steps else "no step was made"
        fresh = [f"each trial gets fresh workers: {self.fresh_workers}"] if self.fresh_workers else []
        return f"rehearsal: {'; '.join([made, *self.left_out_words(), *fresh, *self.doubts])}"

    def rate_lines(self) -> list[str]:
        """A line for each of some trainings: its rates from the start to the end."""
        named = {name: rates for step in self.steps.values() for name, rates in step.rates.items()}
        lines = [
            f"rates of {name}: {', '.join(f'{rate:.3g} at {word}' for word, rate in rates.items())}"
            for name, rates in [*named.items()][:MOST_NAMES]
        ]
        return [*lines, f"rates of {len(named) - MOST_NAMES} more: --json"] if len(named) > MOST_NAMES else lines

    @property
    def doubts(self) -> list[str]:
        """A line for each kind of which a search may draw trials that fail, or whose rates fall to nothing."""
        return [step.doubt for step in self.steps.values() if step.doubt]

    def left_out_words(self) -> list[str]:
        """A line for each reason why kinds were left out."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            reasons.setdefault(why, []).append(name)
        lines = [f"{_listed(names)} left out: {why}" for why, names in reasons.items()]
        if self.steps and self.fresh_workers is None:
            lines.append("no time was left to see whether a second training in a process is the same")
        return lines


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def is_known_to_fit(trials: Iterable[TrialPlan]) -> bool:
    """Whether all that trains is built in, and tried before: then a rehearsal would find nothing."""
    return all(_fits(trial.workload, trial.train) and trial.batch_size <= FITTING_EXAMPLES for trial in trials)


def _fits(workload: Mapping[str, Any], train: Mapping[str, Any]) -> bool:
    arguments = dict(workload["model_args"])
    return (
        workload["model"] in FITTING_MODELS
        and workload["data"] in FITTING_DATA
        and str(arguments.pop("init", "default")) in INITIALISATIONS
        and not (arguments or workload["data_args"] or workload.get("task") or train.get("evaluate_batches"))
        and workload["loss"] in LOSSES
        and workload["metric"] in METRICS
        and train["optimizer"]["name"] in OPTIMIZERS
        and name_of(train["schedule"]) in SCHEDULES
    )


def kinds_of(trials: Iterable[TrialPlan]) -> dict[str, Kind]:
    """The trials' kinds by their names: the batch, and the parameters in which kinds differ.

    A gradient strategy has nothing to do where one worker trains; rates are looked at without a step.
    """
    alike: dict[str, list[TrialPlan]] = {}
    for trial in trials:
        own = trial.train["optimizer"] if trial.train["optimizer"]["name"] not in OPTIMIZERS else None
        word = json.dumps([trial.workload, own, trial.train.get("evaluate_batches")], sort_keys=True, default=repr)
        alike.setdefault(word, []).append(trial)
    by_batch = [tuple(sorted(each, key=lambda trial: trial.batch_size)) for each in alike.values()]
    smallest = [each[0] for each in by_batch]
    differing = [
        key
        for key in (smallest[0].params if smallest else ())
        if key.startswith(("workload.", "train.")) and len({repr(trial.params[key]) for trial in smallest}) > 1
    ]
    return {
        label({key: each[0].params[key] for key in ("batch_size", *differing)}): Kind(trials=each) for each in by_batch
    }


def rehearse_study(
    spec: StudySpec, plan: Plan, trials: Sequence[TrialPlan], data_root: Path, *, limit_seconds: float = LIMIT_SECONDS
) -> Rehearsal:
    """Rehearse each kind of the trials, in their order, as far as the time reaches. Raises RequestError for a mistake.

    trials: those of the plan that are to come; of a search that is to suggest them, those of `corner_trials`.
    Nothing else than a mistake stops a study: a kind that needs more time, memory or a GPU is left out, and so is a Ray
    Train loop.
    """
    if spec.workload.loop:
        return Rehearsal(steps={}, left_out={spec.workload.loop: NO_LOOP}, seconds=0.0)
    began = time.monotonic()
    kinds = kinds_of(trials)
    draws = plan.to_suggest and not plan.is_adaptive  # of an adaptive search `trials` are all its places
    ranges = spec.sweep.ranges() if draws else {}
    order = {
        "modules": modules_of(spec),
        "ranges": {DIVIDING[key]: [each.low, each.high] for key, each in ranges.items() if key in DIVIDING},
        "kinds": [kind.order(data_root) for kind in kinds.values()],
    }
    ended = run_child(("-m", __name__), order, limit_seconds)
    said = [json.loads(line) for line in ended.answers]
    answers = {told["kind"]: Answer(**told["answer"]) for told in said if "kind" in told}  # the last word of each
    if ended.status is None:
        missing = f"it takes more than {limit_seconds:.0f} s"
    else:
        missing = f"its process ended with status {ended.status} ({ended.said})"
    steps: dict[str, Answer] = {}
    left_out: dict[str, str] = {}
    for number, name in enumerate(kinds):
        answer = answers.get(number, Answer(left_out=missing))
        if answer.problem:
            where = f"{name}: " if len(kinds) > 1 else ""
            raise RequestError(f"{where}{answer.problem}", answer.remedy)
        if answer.left_out:
            left_out[name] = answer.left_out
        else:
            steps[name] = answer
    return Rehearsal(
        steps=steps,
        left_out=left_out,
        seconds=time.monotonic() - began,
        fresh_workers=next((told["fresh_workers"] for told in said if "fresh_workers" in told), None),
        data={told["data"]: DataFacts.from_plain(told["facts"]) for told in said if "data" in told},
    )


# --- whose mistake an exception is --------------------------------------------------------------------------------
def blamed(error: BaseException, config: TrainConfig, remedy: str) -> RequestError:
    """Return the exception as one line: the key and the name of the part that raised it, its place and the remedy.

    A mistake that this package has found names its own, and has its own remedy.
    """
    if isinstance(error, InputError):
        return request_error(error, "correct the spec")
    from scalestudy.training.rehearsal import fault_of

    fault, said = fault_of(error), describe(error)
    if fault.place:
        said = f"{said} ({fault.place})"
    return RequestError(f"{fault.part}: {_name(fault.part, config)}: {said}" if fault.part else said, remedy)


def _name(part: Part, config: TrainConfig) -> str:
    """Return what the config names as that part; of the whole workload, what it was doing."""
    names: dict[Part, str | None] = {
        "workload": "backward",
        "workload.data": config.data,
        "workload.model": config.model,
        "workload.task": config.task,
        "workload.loss": config.loss,
        "workload.metric": config.metric,
        "train.optimizer.name": config.optimizer.name,
        "train.schedule": config.schedule.name,
    }
    return str(names[part])


# --- in the process that makes the steps --------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Order:
    """A kind, as the process gets it."""

    config: TrainConfig
    divisions: tuple[Division, ...]
    rated: Mapping[str, TrainConfig] | None = None
    ranges: Ranges | None = None
    in_group: bool
    modules: tuple[str, ...] = ()
    """The user's that the study names."""
    data_key: str | None = None
    """Of the user's data; None: they are built in."""

    @classmethod
    def of(cls, plain: Mapping[str, Any], modules: Sequence[str], ranges: Mapping[str, Sequence[int]]) -> Order:
        """Read what `Kind.order` gave."""
        from scalestudy.training.rehearsal import Division, Ranges

        divisions = (Division(size, tuple(weights), *rest) for size, weights, *rest in plain["divided"])
        return cls(
            config=TrainConfig.from_dict(plain["config"]),
            divisions=tuple(divisions),
            rated={name: TrainConfig.from_dict(config) for name, config in plain["rated"].items()},
            ranges=Ranges(**{key: range(low, high + 1) for key, (low, high) in ranges.items()}) if ranges else None,
            in_group=plain["in_group"],
            modules=tuple(modules),
            data_key=plain["data_key"],
        )

    def answer(self, memory: str, stepped: Callable[[Answer], None] = lambda answer: None) -> Answer:
        """Rehearse it in this process. memory: how much it may take, in words. stepped: takes a first answer."""
        import torch

        from scalestudy.training.distributed import Worker
        from scalestudy.training.rehearsal import rehearse

        began = time.monotonic()
        threads = os.cpu_count() or 1  # all: then data are read here, unless the config names loaders
        worker = Worker(rank=0, world_size=1, device=torch.device("cpu"), threads=threads)

        def tell(so_far: Rehearsed) -> None:
            stepped(replace(_answer_of(so_far), seconds=time.monotonic() - began))

        more: Any = {"in_group": self.in_group, "rated": self.rated, "stepped": tell}
        try:
            done = rehearse(self.config, worker, self.divisions, self.ranges, **more)
        except BaseException as raised:  # the user's code may raise anything
            error = readable(raised)
            if is_out_of_memory(error):
                return Answer(left_out=f"it takes more than {memory}")
            if wants_gpu(error):
                return Answer(left_out=f"it needs a GPU ({what_happened(str(error))[:80]})")
            refused = blamed(error, self.config, WITHOUT)
            return Answer(problem=refused.problem, remedy=refused.remedy)
        return _answer_of(done)


def _answer_of(done: Rehearsed) -> Answer:
    """Return what a rehearsal has found as plain data."""
    rates = {name: dict(outline.rates) for name, outline in done.rates.items()}
    return Answer(loss=done.loss, seconds=done.seconds, digest=done.digest, doubt=done.doubt, rates=rates)


def free_memory_bytes() -> int | None:
    """What this machine, or the container's control group, has left; None: the system does not tell."""
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
        found.append(int(facts["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / f"memory.{name}").read_text("utf-8")) for name in ("max", "current"))
        found.append(most - used)
    return min(found, default=None)


def limit_memory() -> str:
    """Limits what this process may take from now on to its share of the free memory; returns how much, in words."""
    free = free_memory_bytes()
    if free is None:
        return "the memory of this machine"
    room = int(MEMORY_SHARE * free)
    with contextlib.suppress(OSError, ValueError, IndexError):
        taken = int(Path("/proc/self/statm").read_text("utf-8").split()[5]) * resource.getpagesize()  # data and stack
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (taken + room, hard))
    return f"half of the free memory, {room / 2**30:.1f} GiB"


def main() -> None:
    """Read the order from standard input; print an answer for each kind, and in the end whether workers may be used.

    This process itself runs no code of the user's. It forks those that do: so each begins as a fresh worker does,
    without another import of PyTorch.
    """
    plain, answer_with = order_and_answer()

    def tell(**told: Any) -> None:
        answer_with(told)

    gc.disable()  # while PyTorch is imported, which is no garbage: it and its forks would look through it for seconds
    orders = [Order.of(each, plain["modules"], plain["ranges"]) for each in plain["kinds"]]
    gc.freeze()
    gc.enable()
    memory = limit_memory()
    first, again, status = answers_of(orders, memory, lambda number, answer: tell(kind=number, answer=asdict(answer)))
    if status and (len(first) < len(orders) or not again):
        sys.exit(status)
    if any(answer.problem for answer in first.values()):
        return
    read: set[str | None] = {None}
    for order in orders:
        if order.data_key not in read:
            read.add(order.data_key)
            if facts := Fork(partial(_send_facts, order)).receive():
                tell(data=order.data_key, facts=asdict(facts))
    why = ENDED_BY.format(orders[0].config.model) if status else ""
    for number, answer in first.items():
        if answer.digest and not why:
            why = why_fresh(orders[number], answer, again.get(number, answer), memory)
    tell(fresh_workers=why)


def answers_of(
    orders: Sequence[Order], memory: str, tell: Callable[[int, Answer], None] = lambda number, answer: None
) -> tuple[dict[int, Answer], dict[int, Answer], int]:
    """Rehearse each kind, then each again, in one fresh process; return the answers of both, and its exit status.

    tell: takes each first answer at once, by its kind's number; a second word on a kind replaces the first. After a
    problem nothing more is tried.
    """
    fork = Fork(partial(_twice, orders, memory))
    first: dict[int, Answer] = {}
    again: dict[int, Answer] = {}
    for number, answer in iter(fork.receive, None):
        if number in first and first[number].digest:
            again[number] = answer
            continue
        first[number] = answer
        tell(number, answer)
    status = fork.wait()
    return first, again, status if status >= 0 else 128 - status  # as a shell tells a signal


def why_fresh(order: Order, first: Answer, again: Answer, memory: str) -> str:
    """Return why a worker may train no second trial; "": it may.

    first, again: of one process. Steps that differ in two fresh processes as well are no reason: then the code draws
    numbers that no seed sets, and fresh workers would not help.
    """
    alone = rehearsed_alone(order, memory)
    if again.left_out or not alone.digest or first.digest == again.digest == alone.digest:
        return ""
    same = rehearsed_alone(order, memory).digest == alone.digest
    return LEFT_BEHIND.format(order.config.model) if same else ""


def _twice(orders: Sequence[Order], memory: str, send: Callable[[Any], None]) -> None:
    """Rehearse each kind, then each again, as a worker trains its trials; send their numbers and answers."""
    from scalestudy.training.process_state import ProcessState

    process = ProcessState(orders[0].modules)
    for number, order in [*enumerate(orders)] * 2:

        def told(early: Answer, number: int = number) -> None:
            send((number, early))

        process.begin()
        answer = order.answer(memory, told)
        send((number, answer))
        if answer.problem:
            break
    send(None)


def rehearsed_alone(order: Order, memory: str) -> Answer:
    """Return the answer of a kind in a fresh process; without a digest if it has ended before."""

    def work(send: Callable[[Any], None]) -> None:
        from scalestudy.training.process_state import ProcessState

        ProcessState(order.modules).begin()
        send(order.answer(memory))

    return Fork(work).receive() or Answer()


def _send_facts(order: Order, send: Callable[[Any], None]) -> None:
    from scalestudy.training.data.facts import read_twice

    send(read_twice(order.config))


class Fork:
    """A fork of this process that does some work. It ends with it, whatever a user's code leaves there."""

    def __init__(self, work: Callable[[Callable[[Any], None]], None]) -> None:
        """Begin. work: takes the function that sends; it sends None last if it has no known number of words."""
        self._sent, theirs = Pipe(duplex=False)
        self._status: int | None = None
        self._process = os.fork()
        if self._process == 0:
            status = 1
            try:
                work(theirs.send)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        theirs.close()

    def receive(self) -> Any:
        """Return what was sent next; None: nothing, the fork has ended.

        A process that the user's code has forked keeps the pipe open, so the pipe's end is not waited for.
        """
        while not self._sent.poll(POLL_SECONDS):
            if self._has_ended() and not self._sent.poll():
                return None
        try:
            return self._sent.recv()
        except EOFError:
            return None

    def wait(self) -> int:
        """Return the exit status, negative for a signal."""
        while not self._has_ended():
            time.sleep(POLL_SECONDS)
        return self._status or 0

    def _has_ended(self) -> bool:
        if self._status is None:
            process, status = os.waitpid(self._process, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if process else None
        return self._status is not None


if __name__ == "__main__":
    run(main, exit_seconds=0.0)
