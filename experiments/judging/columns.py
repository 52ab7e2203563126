"""Names to roles: which column of runs that others made says what. What is ambiguous is a question, never guessed.

A role is what a study needs to know of a run, such as its batch size. Columns are found by the names that people use;
`--column ROLE=NAME` says which one it is, `--set KEY=VALUE` what holds for all runs.
"""

import math
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from scalestudy.experiments.judging.runs import Recorded
from scalestudy.experiments.spec.reaching import Mode
from scalestudy.training.exceptions import InputError
from scalestudy.training.section import did_you_mean


class Role(NamedTuple):
    """What a column may say."""

    words: str
    names: str = ""  # that mean it, as `_plain` writes them
    unsure: str = ""  # that may mean it


ROLES: Mapping[str, Role] = {
    "run": Role("which run a row belongs to"),
    "num_gpus": Role(
        "workers that train a run together",
        "num_gpus n_gpus n_gpu ngpus gpus gpu_count num_devices n_devices device_count world_size num_processes",
        "num_workers workers devices",
    ),
    "gpus_per_node": Role("workers on each machine", "gpus_per_node nproc_per_node devices_per_node gpus_per_machine"),
    "nodes": Role("machines", "nodes num_nodes nnodes n_nodes num_machines"),
    "batch_size": Role(
        "examples an update, all workers together",
        "global_batch_size total_batch_size effective_batch_size total_train_batch_size global_batch",
        "batch_size batchsize bs batch train_batch_size mini_batch_size minibatch_size",
    ),
    "device_batch_size": Role(
        "examples of one worker in a pass",
        "per_device_batch_size per_device_train_batch_size device_batch_size batch_size_per_gpu batch_size_per_device "
        "per_gpu_batch_size per_gpu_train_batch_size micro_batch_size train_micro_batch_size_per_gpu local_batch_size "
        "batch_size_per_worker batch_per_worker",
    ),
    "accumulation": Role(
        "passes of a worker before an update",
        "accumulation gradient_accumulation_steps accumulate_grad_batches gradient_accumulation grad_accum "
        "grad_accumulation_steps accumulation_steps accum_steps",
    ),
    "learning_rate": Role(
        "learning rate",
        "learning_rate lr base_lr base_learning_rate peak_lr max_lr initial_lr init_lr lr0 initial_learning_rate "
        "learning_rate_init",
    ),
    "seed": Role(
        "seed",
        "seed random_seed manual_seed rng_seed global_seed torch_seed random_state",
        "rng rep reps repeat repetition replicate replica replication",
    ),
    "step": Role(
        "updates so far",
        "global_step steps updates num_updates n_updates num_steps n_steps iterations optimizer_step optimizer_steps "
        "train_steps",
        "step iteration iter training_iteration",
    ),
    "epoch": Role("passes over the training set so far", "epoch epochs current_epoch epoch_num num_epochs n_epochs"),
    "samples": Role(
        "training examples so far", "samples samples_seen num_samples_seen examples examples_seen consumed_samples"
    ),
    "seconds": Role(
        "seconds since the run began",
        "runtime time_total elapsed elapsed_time wall wall_time walltime wallclock wall_clock duration total_time "
        "relative_time time_since_start train_time training_time train_runtime time_to_target time_to_accuracy "
        "time_to_converge time_to_solution time_to_train",
        "time",
    ),
    "timestamp": Role("the time of day", "timestamp datetime date_time"),
    "period_seconds": Role(
        "seconds from one evaluation to the next", "epoch_time time_this_iter time_per_epoch epoch_duration"
    ),
    "ended": Role("how the run ended", "state status run_state"),
    "started": Role("when the run began", "started start_time started_at created created_at start"),
    "machine": Role("machine that the run was on", "hostname host machine node_ip"),
    "accelerator": Role("type of its GPUs", "accelerator gpu gpu_type gpu_name gpu_model device_name"),
}
NUMBERS = (
    *("num_gpus", "gpus_per_node", "nodes", "batch_size", "device_batch_size", "accumulation", "learning_rate"),
    *("step", "epoch", "samples"),
)
"""Roles that a number says, never a word."""
LISTS = ("setting", "ignored")
"""Words of `--column` beside the roles, each for as many columns as one likes: runs that differ in a setting are
compared apart, an ignored column plays no part."""


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


WITH_EVALUATION = words_of(
    "runtime time_total elapsed elapsed_time wall wall_time walltime wallclock wall_clock duration total_time "
    "relative_time time_since_start time_this_iter"
)
WITHOUT_EVALUATION = words_of("train_time training_time train_runtime")
"""Names of times that include evaluation, and of those that do not."""
TO_TARGET = re.compile(r"_to_(target|accuracy|converge|convergence|solution|train)$")
"""Of a time that ends where the target was met."""
UNITS = {"ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0}
UNITS |= {"min": 60.0, "mins": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hours": 3600.0}
LEAST_POSIX = 6e8
"""A number of seconds from here on is a time of day, after 1989; a run that took as long began then too."""
GROWS = 0.75
"""Share of the steps from one evaluation to the next in which the seconds since the start grow, at least."""
LATE = 10.0
"""A clock that reads so many times its span at the first evaluation did not begin with the run."""
GIVEN: Mapping[str, str] = {
    "num_gpus": "a whole number",
    "batch_size": "a whole number",
    "device_batch_size": "a whole number",
    "accumulation": "a whole number",
    "learning_rate": "a number",
    "train_samples": "a whole number",
    "step_seconds": "a number",
    "evaluation": "included or excluded",
    "stop": "target or end",
    "machine": "text",
    "accelerator": "text",
}
"""What `--set` says, and in which form. train_samples: examples of the training set. step_seconds: of an update,
whatever its size. evaluation: whether the times include it. stop: whether a run of which its result alone is known
ended where it met the target, or went on."""
SMALLER = words_of("loss error err perplexity ppl mse mae rmse mape nll wer cer ter bpb bpc fid kl ece regret")
LARGER = words_of(
    "accuracy acc acc1 acc5 top1 top5 f1 auc auroc auprc ap map bleu rouge r2 reward return score precision recall "
    "dice iou miou psnr ssim ndcg mrr em meteor chrf"
)
"""Words in the names of metrics of which less, or more, is better."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the user says of the columns."""

    columns: Mapping[str, str] = field(default_factory=dict)  # name by role
    settings: tuple[str, ...] = ()  # names whose runs are compared apart
    ignored: tuple[str, ...] = ()  # names that play no part
    given: Mapping[str, Any] = field(default_factory=dict)  # what holds for all runs, by its key

    def with_columns(self, options: Iterable[str]) -> "Said":
        """Add what `--column` says. Raises InputError for what is no role, or names none."""
        columns, lists = dict(self.columns), {"setting": [*self.settings], "ignored": [*self.ignored]}
        for option in options:
            role, equals, name = (part.strip() for part in option.partition("="))
            if not equals or not name:
                raise InputError(f"--column: {option}: is not ROLE=NAME", "write it like --column batch_size=bs")
            if role in lists:
                lists[role].append(name)
            elif role in ROLES:
                columns[role] = name
            else:
                known = (*ROLES, *LISTS)
                remedy = f"{did_you_mean(role, known)}the roles are {', '.join(known)}"
                raise InputError(f"--column: {role}: is not a role", remedy)
        return Said(
            columns=columns, settings=tuple(lists["setting"]), ignored=tuple(lists["ignored"]), given=self.given
        )

    def with_given(self, options: Iterable[str]) -> "Said":
        """Add what `--set` says. Raises InputError for what can't be set, or not to this value."""
        given = dict(self.given)
        for option in options:
            key, equals, text = (part.strip() for part in option.partition("="))
            if not equals or not text:
                raise InputError(f"--set: {option}: is not KEY=VALUE", "write it like --set num_gpus=2")
            if key not in GIVEN:
                remedy = f"{did_you_mean(key, GIVEN)}what holds for all runs may be {', '.join(GIVEN)}"
                raise InputError(f"--set: {key}: can't be set", remedy)
            given[key] = _given(key, text)
        return Said(columns=self.columns, settings=self.settings, ignored=self.ignored, given=given)


def _given(key: str, text: str) -> Any:
    form = GIVEN[key]
    number = number_of(text)
    if form == "text":
        return text
    if form.startswith("a "):
        if number is None or number <= 0 or (form == "a whole number" and number != int(number)):
            raise InputError(f"--set: {key}: {text}: is not {form} above 0", f"write it like --set {key}=2")
        return int(number) if form == "a whole number" else number
    if text not in form.split(" or "):
        raise InputError(f"--set: {key}: {text}: is not {form}", f"choose {form}")
    return text


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is ambiguous, and the options that settle it."""

    words: str
    answers: Mapping[str, str]
    """What an option says, by the option: `--column batch_size=bs`."""
    names: tuple[str, ...] = ()
    """Columns that NAME may be in an option."""


PLACEHOLDERS = ("NAME", "VALUE")
"""What stands in an option that needs more of the user."""
LISTED = 20
"""Columns that a sentence lists."""


def listed(names: Iterable[str]) -> str:
    """Return the first names, for a sentence."""
    found = list(names)
    return ", ".join(found[:LISTED]) + (", …" if len(found) > LISTED else "")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What was taken as what."""

    metric: str  # the column that the target is of
    mode: Mode
    names: Mapping[str, str]  # by role
    given: Mapping[str, Any]
    settings: tuple[str, ...]  # that the user wants compared apart
    ignored: tuple[str, ...]
    notes: Mapping[str, str]  # how a role's column is read, by role
    evaluation: Literal["included", "excluded", None]  # whether the times include it; None: there are none
    unit: float = 1.0  # seconds of one of the column of time
    first_epoch: int = 0  # what is added to an epoch, which a source may count from 0
    results: bool = False  # whether no run has more than one evaluation, so that each is a run's result
    stops: bool = False  # whether a run of which its result alone is known ended where it met the target

    def rows(self, apart: Sequence[str] = ()) -> list[tuple[str, str, str]]:
        """Return the table of what was taken: role, where from, how it is read. apart: settings compared apart."""
        rows = [("metric", self.metric, "less is better" if self.mode == "min" else "more is better")]
        for role, told in ROLES.items():
            note = self.notes.get(role, told.words)
            if role in self.names:
                rows.append((role, self.names[role], note))
            elif role in self.given:
                rows.append((role, f"--set {role}={self.given[role]}", note))
        rows += [(key, f"--set {key}={value}", "") for key, value in self.given.items() if key not in ROLES]
        rows += [("setting", name, "runs that differ in it are compared apart") for name in apart]
        return rows


def mode_of(name: str) -> Mode | None:
    """Return whether less or more of a metric is better, by its name; None: the name does not tell."""
    words = _plain(name).split("_")
    less, more = not SMALLER.isdisjoint(words), not LARGER.isdisjoint(words)
    return None if less == more else "min" if less else "max"


def measured(value: Any) -> float | None:
    """Return a metric's value as a number, which text may be, infinity or NaN too; None: it was not measured."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def number_of(value: Any) -> float | None:
    """Return a value as a number, which text may be; None: it is none. Infinity is one, NaN is not."""
    number = measured(value)
    return None if number is None or math.isnan(number) else number


def clock_of(value: Any) -> float | None:
    """Return a time of day in POSIX seconds: a number, of seconds, milli- or microseconds, or a date. None: neither."""
    number = number_of(value)
    if number is None:
        if isinstance(value, datetime):
            moment = value
        else:
            try:
                moment = datetime.fromisoformat(str(value).strip())
            except ValueError:
                return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    for _ in range(3):
        if number < 1e11:
            return number
        number /= 1000
    return None


def seconds_of(value: Any) -> float | None:
    """Return a duration: a number, or a text such as 1:02:03. None: neither."""
    if isinstance(value, str) and re.fullmatch(r"\s*(\d+:)?\d+:\d+(\.\d+)?\s*", value):
        seconds = 0.0
        for part in value.split(":"):
            seconds = seconds * 60 + float(part)
        return seconds
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None


def said_once(recorded: Recorded, name: str) -> Any:
    """Return the one value that a run has of a column; None: it has none, or several."""
    if name in recorded.values:
        return recorded.values[name]
    found = {repr(row[name]): row[name] for row in recorded.history if row.get(name) is not None}
    return next(iter(found.values())) if len(found) == 1 else None


def rows_of(recorded: Recorded, metric: str) -> list[Mapping[str, Any]]:
    """Return what says the metric: a row for each evaluation, else the run's one result."""
    rows = [row for row in recorded.history if measured(row.get(metric)) is not None]
    if rows or measured(recorded.values.get(metric)) is None:
        return rows
    return [recorded.values]


def take_columns(
    recorded: Sequence[Recorded], metric: str, mode: Mode | None, said: Said
) -> tuple[Columns, list[Question]]:
    """Return what is taken as what, and what is still to be asked; then the columns are not whole.

    metric: as the target names it. mode: None: by its name. Raises InputError for a metric or a column that no run has.
    """
    return _Finder(recorded, metric, mode, said).columns()


class _Finder:
    """The columns of some runs, and the roles that they may have."""

    def __init__(self, recorded: Sequence[Recorded], metric: str, mode: Mode | None, said: Said) -> None:
        self._recorded, self._said, self._mode = recorded, said, mode
        self._varies: set[str] = set()  # names that have several values within a run
        self._known: dict[str, None] = {}
        for run in recorded:
            self._known |= dict.fromkeys(run.values)
            first: dict[str, Any] = {}
            for row in run.history:
                for name, value in row.items():
                    if name not in self._varies and first.setdefault(name, value) != value:
                        self._varies.add(name)
            self._known |= dict.fromkeys(first)
        self._metric = self._metric_named(metric)
        self._rows = [rows_of(run, self._metric) for run in recorded]
        self._curves = any(len(rows) > 1 for rows in self._rows)
        self._names: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._questions: list[Question] = []
        for name in (*said.columns.values(), *said.settings, *said.ignored):
            if name not in self._known:
                raise InputError(f"--column: {name}: no run has this column", self._nearest(name))

    def _told(self) -> Iterator[tuple[Recorded, list[Mapping[str, Any]]]]:
        return zip(self._recorded, self._rows, strict=True)

    def _nearest(self, name: str, among: Iterable[str] | None = None) -> str:
        names = list(self._known if among is None else among)
        return f"{did_you_mean(name, names)}the columns are {listed(names)}"

    def _metric_named(self, metric: str) -> str:
        if metric in self._known:
            return metric
        wanted = _plain(metric)
        alike = [name for name in self._known if _plain(name) == wanted]
        alike = alike or [name for name in self._known if wanted in _keys(name)]
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise InputError(f"--target: {metric}: may be {' or '.join(alike)}", "write the whole name")
        numbers = [name for name in self._known if self._has_numbers(name)]
        raise InputError(f"--target: {metric}: no run has this metric", self._nearest(metric, numbers))

    def _has_numbers(self, name: str) -> bool:
        """Whether one of the first runs has a number there."""
        return any(
            number_of(row.get(name)) is not None
            for run in self._recorded[:50]
            for row in (run.values, *run.history[:1])
        )

    def columns(self) -> tuple[Columns, list[Question]]:
        """Find the column of each role."""
        said = self._said
        mode = self._mode or mode_of(self._metric)
        if mode is None:
            self._ask(f"{self._metric}: is more or less of it better", {"--mode max": "more", "--mode min": "less"})
        self._workers()
        self._batch()
        self._rate()
        self._seed()
        for role in ("ended", "started", "machine", "accelerator"):
            self._take(role, self._found(role, varying=False), asks=False)
        first_epoch = self._progress()
        unit, evaluation = self._time()
        if stops := self._ends():
            self._without_budgets()
        columns = Columns(
            metric=self._metric,
            mode=mode or "max",
            names=self._names,
            given=said.given,
            settings=said.settings,
            ignored=said.ignored,
            notes=self._notes,
            evaluation=evaluation,
            unit=unit,
            first_epoch=first_epoch,
            results=not self._curves,
            stops=stops,
        )
        return columns, self._questions

    # --- by names -----------------------------------------------------------------------------------------------------

    def _found(self, role: str, *, varying: bool | None = None, unsure: bool = False) -> list[str]:
        """Return the columns that mean a role by their name; one that the user names is alone.

        varying: whether they change within runs; None: either. unsure: those that may mean it instead.
        """
        if role in self._said.columns:
            return [] if unsure else [self._said.columns[role]]
        if role in self._said.given:
            return []
        wanted = words_of(ROLES[role].unsure if unsure else ROLES[role].names)
        taken = {*self._said.columns.values(), *self._said.ignored, *self._said.settings, self._metric}
        found = [
            name
            for name in self._known
            if name not in taken
            and wanted & _meant(name, role)
            and (varying is None or (name in self._varies) == varying)
        ]
        # scikit-learn's `learning_rate` is the word for a schedule, its rate is `learning_rate_init`
        numbers = [name for name in found if role in NUMBERS and self._has_numbers(name)]
        return numbers or found

    def _ask(self, words: str, answers: Mapping[str, str], names: Sequence[str] = ()) -> None:
        self._questions.append(Question(words=words, answers=answers, names=tuple(names)))

    def _take(self, role: str, names: Sequence[str], *, asks: bool = True) -> str | None:
        """Take the column of a role, of several the first. asks: whether to ask where they differ."""
        if not names:
            return None
        if asks and len(names) > 1 and not self._agree(names):
            self._ask(
                f"{role} ({ROLES[role].words}): {' or '.join(names)}?",
                {f"--column {role}={shlex.quote(name)}": "" for name in names},
            )
        self._names[role] = names[0]
        return names[0]

    def _agree(self, names: Sequence[str]) -> bool:
        """Whether columns say the same in every run that has several of them."""
        by_row = any(name in self._varies for name in names)
        for run, evaluations in self._told():
            for row in evaluations if by_row else [{name: said_once(run, name) for name in names}]:
                values = {number_of(row[name]) for name in names if row.get(name) is not None}
                if len(values) > 1:
                    return False
        return True

    def _lacking(self, role: str, more: Mapping[str, str] | None = None) -> None:
        answers = {**(more or {}), f"--column {role}=NAME": "the column that says it"}
        if role in GIVEN:
            answers[f"--set {role}=VALUE"] = "of all runs"
        names = [
            name
            for name in self._known
            if name not in (self._metric, *self._said.ignored)
            and self._has_numbers(name)
            and (not self._curves or (name in self._varies) == (role in CLOCKS))
        ]
        self._ask(f"{role} ({ROLES[role].words}): no column says it", answers, names)

    def _values(self, name: str) -> list[Any]:
        return [value for run in self._recorded if (value := said_once(run, name)) is not None]

    # --- what is said once of a run -----------------------------------------------------------------------------------

    def _workers(self) -> None:
        if "num_gpus" in self._said.given:
            return
        each, nodes = self._found("gpus_per_node", varying=False), self._found("nodes", varying=False)
        if self._take("num_gpus", self._found("num_gpus", varying=False)):
            return
        if each and nodes:
            self._take("gpus_per_node", each)
            self._take("nodes", nodes)
            return
        unsure = self._found("num_gpus", varying=False, unsure=True)
        if unsure:
            name = shlex.quote(unsure[0])
            self._ask(
                f"num_gpus: does {unsure[0]} count the workers that train, or those that load data?",
                {f"--column num_gpus={name}": "those that train", "--set num_gpus=VALUE": "the workers of all runs"},
            )
        else:
            self._lacking("num_gpus")

    def _several_workers(self) -> bool:
        """Whether a worker may have a part of a batch alone."""
        if not {"num_gpus", "nodes"} & {*self._names, *self._said.given}:
            return True  # how many there are is asked
        counts: list[Any] = [self._said.given.get("num_gpus"), self._said.given.get("accumulation")]
        for role in ("num_gpus", "gpus_per_node", "nodes"):
            if role in self._names:
                counts += self._values(self._names[role])
        for name in self._found("accumulation", varying=False):
            counts += self._values(name)
        return any((number_of(count) or 1) > 1 for count in counts)

    def _batch(self) -> None:
        given, said = self._said.given, self._said.columns
        if "batch_size" in given:
            return
        if "device_batch_size" not in said and self._take("batch_size", self._found("batch_size", varying=False)):
            return
        device = self._found("device_batch_size", varying=False)
        if device or "device_batch_size" in given:
            self._take("device_batch_size", device)
            self._take("accumulation", self._found("accumulation", varying=False))
            return
        unsure = self._found("batch_size", varying=False, unsure=True)
        if not unsure:
            self._lacking("batch_size", {"--column device_batch_size=NAME": "the column that says it of one worker"})
            return
        name = self._take("batch_size", unsure)
        if len(unsure) == 1 and self._several_workers():
            self._ask(
                f"batch_size: is {name} of all workers together, or of one?",
                {
                    f"--column batch_size={shlex.quote(unsure[0])}": "examples of all workers in an update",
                    f"--column device_batch_size={shlex.quote(unsure[0])}": "examples of one worker in a pass",
                },
            )

    def _rate(self) -> None:
        if "learning_rate" in self._said.given:
            return
        if name := self._take("learning_rate", self._found("learning_rate", varying=False)):
            if name in self._varies:
                self._notes["learning_rate"] = "learning rate, the largest of a run"
            return
        if changing := self._found("learning_rate", varying=True):
            answers = {f"--column learning_rate={shlex.quote(name)}": "its largest value in a run" for name in changing}
            self._ask(
                f"learning_rate: {' and '.join(changing)} changes within a run",
                {**answers, "--set learning_rate=VALUE": "of all runs"},
            )
        else:
            self._lacking("learning_rate")

    def _seed(self) -> None:
        unsure = self._found("seed", varying=False, unsure=True)
        if not self._take("seed", self._found("seed", varying=False)) and unsure:
            name = shlex.quote(unsure[0])
            self._ask(
                f"seed: is {name} the seed of a run, or a setting that was swept?",
                {f"--column seed={name}": "the seed", f"--column setting={name}": "a setting"},
            )

    def _ends(self) -> bool:
        """Return whether runs of which their results alone are known ended at the target."""
        alone = any(rows and (not self._curves or rows[0] is run.values) for run, rows in self._told())
        timed = [self._names[role] for role in ("seconds", "epoch", "step", "samples") if role in self._names]
        if not alone or "stop" in self._said.given:
            return self._said.given.get("stop") == "target"
        if any(TO_TARGET.search(_stem(_plain(name))) for name in timed):
            self._notes["seconds"] = "seconds to the target, where the run ended"
            return True
        self._ask(
            "stop: each run has its result alone; did it end where it met the target, or go on?",
            {"--set stop=target": "it ended there", "--set stop=end": "it went on, so that its time is a bound"},
        )
        return False

    def _without_budgets(self) -> None:
        """Drop updates and epochs that are the same in all runs that ended at the target: what they were to make."""
        for role in ("step", "epoch", "samples"):
            if role in self._names and len({repr(value) for value in self._values(self._names[role])}) == 1:
                del self._names[role]

    # --- what is said at each evaluation ------------------------------------------------------------------------------

    def _numbers(self, name: str, read: Callable[[Any], float | None]) -> list[list[float]]:
        """Return a column's numbers, a list for each run that has some."""
        found = [[value for row in rows if (value := read(row.get(name))) is not None] for rows in self._rows]
        return [values for values in found if values]

    def _progress(self) -> int:
        """Take updates, epochs and examples; return what is added to an epoch."""
        varying = True if self._curves else None
        self._take("samples", self._found("samples", varying=varying), asks=False)
        self._take("step", self._found("step", varying=varying))
        counts = ""
        if "step" not in self._names and self._curves:
            for name in self._found("step", varying=varying, unsure=True):
                if not self._counts_evaluations(name):
                    self._names["step"] = name
                    break
                counts = counts or name
        epoch = self._take("epoch", self._found("epoch", varying=varying))
        if counts and not {"step", "epoch", "samples"} & self._names.keys():
            option = f"--column epoch={shlex.quote(counts)}"
            self._notes["not taken"] = f"{counts}: counts evaluations, so it is not taken; {option} if each is an epoch"
        if epoch is None or not self._curves:
            return 0
        firsts = [values[0] for values in self._numbers(epoch, number_of)]
        if not firsts or statistics.median(firsts) != 0 or self._evaluated_before_training():
            return 0
        self._notes["epoch"] = f"{ROLES['epoch'].words}; it counts from 0, so 1 is added"
        return 1

    def _counts_evaluations(self, name: str) -> bool:
        """Whether it goes up by one from each evaluation to the next."""
        gaps = [after - before for values in self._numbers(name, number_of) for before, after in pairwise(values)]
        return bool(gaps) and sum(gap == 1 for gap in gaps) / len(gaps) > 0.5

    def _evaluated_before_training(self) -> bool:
        """Whether the first evaluation of most runs comes long before one epoch's time."""
        early = []
        for name in self._found("seconds") or self._found("seconds", unsure=True):
            for values in self._numbers(name, seconds_of):
                gaps = [after - before for before, after in pairwise(values)]
                if gaps:
                    early.append(values[0] < 0.5 * statistics.median(gaps))
        return bool(early) and sum(early) > len(early) / 2

    def _time(self) -> tuple[float, Literal["included", "excluded", None]]:
        """Take the clock; return the seconds of its unit, and whether its times include evaluation."""
        given, said = self._said.given, self._said.columns
        if "step_seconds" in given:
            return 1.0, "excluded"
        named = [role for role in CLOCKS if role in said]
        role = named[0] if named else next((role for role in CLOCKS if self._found(role)), "seconds")
        name = self._take(role, self._found(role))
        if name is None and not named:
            unsure = self._found("seconds", unsure=True)
            name = self._take("seconds", unsure)
        if name is None:
            if all(run.started is not None and run.stopped is not None for run in self._recorded):
                self._notes["seconds"] = "from the run's start to its end"
                return 1.0, "included"
            more = {"--column timestamp=NAME": "a column of times of day"}
            more |= {"--column period_seconds=NAME": "a column of seconds from one evaluation to the next"}
            self._lacking("seconds", more)
            return 1.0, None
        if role == "seconds" and not named:
            role = self._kind_of_clock(name)
            if role != "seconds":
                self._names[role] = self._names.pop("seconds")
        if role != "timestamp" and self._take("timestamp", self._found("timestamp"), asks=False):
            self._notes["timestamp"] = "the time of day, by which the run began"
        key = _plain(re.split(r"[/.:]", name)[-1])
        unit = UNITS.get(key.rpartition("_")[2], 1.0) if role != "timestamp" else 1.0
        if unit != 1:
            self._notes[role] = f"{ROLES[role].words}; one is {unit:g} s"
        return unit, self._includes_evaluation(role, name)

    def _kind_of_clock(self, name: str) -> str:
        """Return which clock a column is: seconds since the start, a time of day, or seconds of each period."""
        runs = self._numbers(name, seconds_of)
        if not runs:
            return "timestamp" if self._numbers(name, clock_of) else "seconds"
        if statistics.median(values[0] for values in runs) >= LEAST_POSIX:
            return "timestamp"
        several = [values for values in runs if len(values) > 2]
        gaps = [after - before for values in several for before, after in pairwise(values)]
        quoted = shlex.quote(name)
        if gaps and sum(gap > 0 for gap in gaps) / len(gaps) < GROWS:
            self._ask(
                f"seconds: {name} does not grow from one evaluation to the next",
                {
                    f"--column period_seconds={quoted}": "seconds from one evaluation to the next",
                    f"--column seconds={quoted}": "seconds since the run began",
                },
            )
        elif several and statistics.median(values[0] / max(values[-1] - values[0], 1e-9) for values in several) > LATE:
            self._ask(
                f"seconds: {name} is large at the first evaluation already",
                {
                    f"--column timestamp={quoted}": "a clock that did not begin with the run",
                    f"--column seconds={quoted}": "seconds since the run began",
                },
            )
        return "seconds"

    def _includes_evaluation(self, role: str, name: str) -> Literal["included", "excluded", None]:
        told = self._said.given.get("evaluation")
        if told == "included" or told == "excluded":
            return told
        stems = {_stem(key) for key in _keys(name)}
        if stems & WITHOUT_EVALUATION:
            return "excluded"
        if role == "timestamp" or stems & WITH_EVALUATION:
            return "included"
        self._ask(
            f"evaluation: do the times of {name} include it?",
            {"--set evaluation=included": "they do", "--set evaluation=excluded": "they are of training alone"},
        )
        return None


CLOCKS = ("seconds", "period_seconds", "timestamp")
"""Roles of which a run needs one; the first that is found is taken."""


def _plain(name: str) -> str:
    """Return a name in lower case with its words joined by `_`: `train/globalStep` is train_global_step."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def _keys(name: str) -> set[str]:
    """Return the names by which a column is found: the whole, and its last part, as of `config/train.lr`."""
    first, *_ = re.split(r"[/.:]", name)
    whole, last = _plain(name), _plain(re.split(r"[/.:]", name)[-1])
    of_evaluation = _plain(first) in ("val", "valid", "validation", "eval", "test") and first != name
    return {whole} if of_evaluation else {whole, last}


def _meant(name: str, role: str) -> set[str]:
    """Return what a column's name may stand for: `epochs_to_target` for epochs, `time_total_s` for time_total."""
    keys = _keys(name)
    if role in (*CLOCKS, "epoch", "step", "samples"):
        keys |= {TO_TARGET.sub("", key) for key in keys}
    return keys | {_stem(key) for key in keys} if role in CLOCKS else keys


def _stem(key: str) -> str:
    """Return the name of a time without its unit: `time_total_s` is time_total; `seconds` alone is time."""
    stem, _, unit = key.rpartition("_")
    return (stem or "time") if unit in UNITS and (stem or len(unit) > 3) else key
