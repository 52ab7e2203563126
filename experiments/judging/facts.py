"""What is unfair in runs that are compared: exact facts, each with its runs. What is only likely is in `suspicions`."""

import ipaddress
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, Literal, get_args

from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.judging.runs import Evaluation, Run
from scalestudy.experiments.spec.reaching import IN_A_ROW, Mode, arrival, meets

Fact = Literal[
    "rate_edge",
    "one_seed",
    "no_seed",
    "budgets",
    "settings",
    "machines",
    "accelerators",
    "clock",
    "overlap",
    "rare_evaluations",
    "failed",
    "cut",
    "running",
    "twice_a_step",
    "duplicates",
]
"""What is unfair for certain."""
Suspicion = Literal["start_up", "evaluation", "slowed", "speeds"]
"""What is likely unfair, and can't be known (`suspicions`)."""
EDGE_CHANCE = 0.5
"""From this chance on that the best rate is the lowest or the highest tried, it is told."""
OTHER_BUDGET = 1.05
"""Lengths that differ by less are one budget: the last batch of an epoch may be left out."""
FAR = 1.5
"""Evaluations are far apart if the later one was so many times as long after the beginning as the one before."""
ROUNDING_SECONDS = 2.0
"""Clocks that are written in whole seconds, and read at both ends of a run, may be wrong by so much."""
SAME_RATIO = 1e-6
"""Settings in a constant ratio, up to rounding, are one in two units."""
LEAST_STEPS = 20
"""Numbers of steps below this say little about the examples that they are of."""
NAMED = 3
"""Runs, settings or values that a sentence names. It counts the rest."""
_MAKERS = {"nvidia", "amd", "intel", "tesla", "geforce", "quadro", "instinct", "radeon", "gpu"}
_VARIANTS = {"ti", "super", "max"}
"""Words in the names of GPUs that only one of two types has."""
NO_SETTING = re.compile(
    r"(?:.*[^a-z])?(?:u?u?id|date|created|updated|started|stopped|ended|timestamp|pid|user|host|hostname|port|url|"
    r"sweep|job|notes?|tags?|commit|(?:out|output|log|logging|checkpoint|ckpt|save|cache)[^a-z]?(?:dir|path|folder|file)|"
    r"loss|acc|accuracy|best|final|last|val|valid|validation|eval|test|util|memory|mem|throughput|speed|runtime|time|"
    r"seconds|duration)(?:[^a-z].*)?|(?:.*/)?(?:run|trial|experiment|display)?[^a-z]?name",
    re.IGNORECASE,
)
"""Names of what says where and when a run was kept, or what came out of it, not how it trained."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that runs have otherwise."""

    setting: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    """Each value as text, with the names of its runs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something unfair, with the names of the runs that it concerns."""

    kind: Fact | Suspicion
    words: str
    runs: tuple[str, ...]
    table: tuple[Difference, ...] = ()
    """Of the kind `settings` alone."""

    @property
    def certainty(self) -> Literal["fact", "suspicion"]:
        """Whether it is known for certain."""
        return "suspicion" if self.kind in get_args(Suspicion) else "fact"

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in judged.json."""
        return {**asdict(self), "certainty": self.certainty}


def facts_of(runs: Sequence[Run], target: float, mode: Mode) -> list[Finding]:
    """Return what is unfair, but for the edge of the rates (`edge_fact`). mode: which way the metric is better."""
    repeated = repeats(runs)
    again = {place for places in repeated for place in places[1:]}
    distinct = [run for place, run in enumerate(runs) if place not in again]
    compared = [run for run in distinct if run.evaluations]
    ways: dict[Fact, str] = {
        "failed": "Failed",
        "cut": "Ended before the last evaluation, such as for being behind",
        "running": "Without an end: still running when it was read, or killed",
    }
    found = [finding(kind, words, [run for run in distinct if run.ended == kind]) for kind, words in ways.items()]
    found += [
        _one_seed(compared),
        finding(
            "no_seed",
            "No seed is named (--column seed=NAME says which column it is)",
            [run for run in compared if run.seed is None],
        ),
        _budgets(compared, target, mode),
        _settings(compared),
        _mixed(compared, "accelerators", "GPU types are mixed", lambda run: run.accelerator, _may_be_one_type),
        _mixed(compared, "machines", "Machines are mixed", lambda run: run.machine, _may_be_one_machine),
        finding(
            "clock",
            "The clock runs backwards, or past the run's end",
            [run for run in compared if _runs_backwards(run)],
        ),
        _overlap(distinct),
        _rare(compared, target, mode),
        finding("twice_a_step", "More than one value at a step", [run for run in compared if _is_twice(run)]),
        finding(
            "duplicates", "There twice, with equal figures", [runs[place] for places in repeated for place in places]
        ),
    ]
    return [fact for fact in found if fact]


def edge_fact(runs: Sequence[Run], batch_size: int, learning_rate: float, chance: float) -> Finding | None:
    """Return that the best rate of a batch size lies at the edge of those tried; None: it does not, or may not.

    chance: that no other rate that was tried is better there.
    """
    there = [run for run in runs if run.batch_size == batch_size]
    rates = sorted({run.learning_rate for run in there})
    if chance < EDGE_CHANCE or learning_rate not in (rates[0], rates[-1]):
        return None
    which, beyond = ("lowest", "a lower") if learning_rate == rates[0] else ("highest", "a higher")
    if len(rates) == 1:
        which, beyond = "only", "another"
    words = f"{learning_rate:g} is the {which} learning rate tried at batch {batch_size}: {beyond} one may do better"
    return finding("rate_edge", words, [run for run in there if run.learning_rate == learning_rate])


def finding(
    kind: Fact | Suspicion, words: str, runs: Sequence[Run], table: tuple[Difference, ...] = ()
) -> Finding | None:
    """Return a finding in words, with its runs after them; None: no run has it."""
    if not runs:
        return None
    names = tuple(run.name for run in runs)
    return Finding(kind=kind, words=f"{words}: {_listed(names)}.", runs=names, table=table)


def _listed(names: Sequence[str]) -> str:
    """Return `2 runs (a, b)`."""
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{plural(len(names), 'run')} ({', '.join(names[:NAMED])}{rest})"


def _one_seed(runs: Sequence[Run]) -> Finding | None:
    cells: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.num_gpus, run.batch_size, run.learning_rate].append(run)
    # several runs that name no seed may have several
    single = [
        cell for cell in cells.values() if len(cell) == 1 or {run.seed for run in cell} == {cell[0].seed} != {None}
    ]
    share = "each configuration" if len(single) == len(cells) else f"{len(single)} of {len(cells)} configurations"
    return finding("one_seed", f"One seed alone in {share}", [run for cell in single for run in cell])


def _budgets(runs: Sequence[Run], target: float, mode: Mode) -> Finding | None:
    """Compare how long runs trained that ended by themselves, neither at the target nor by diverging."""
    finished = [
        run
        for run in runs
        if run.ended == "finished"
        and math.isfinite(run.evaluations[-1].value)
        and not _ended_at_target(run, target, mode)
    ]
    lasts = [run.evaluations[-1] for run in finished]
    unit, lengths = "epochs", [last.epochs for last in lasts]
    if None in lengths:
        unit = "examples"
        lengths = [
            None if last.steps is None else last.steps * run.batch_size
            for run, last in zip(finished, lasts, strict=True)
        ]
    known = [length for length in lengths if length is not None]
    if not known or len(known) < len(lengths):
        return None
    longest = max(known)
    short = [place for place, length in enumerate(known) if length * OTHER_BUDGET < longest]
    least = min(known)
    words = f"Budgets differ, from {least:,.6g} to {longest:,.6g} {unit}; shorter than the longest"
    return finding("budgets", words, [finished[place] for place in short])


def _arrival(run: Run, target: float, mode: Mode) -> int | None:
    """Return the position of the evaluation that met the target; the last one may do so alone."""
    values = [evaluation.value for evaluation in run.evaluations]
    place = arrival(values, target, mode)
    return len(values) - 1 if place is None and meets(values[-1], target, mode) else place


def _ended_at_target(run: Run, target: float, mode: Mode) -> bool:
    place = _arrival(run, target, mode)
    return place is not None and place >= len(run.evaluations) - IN_A_ROW


def _settings(runs: Sequence[Run]) -> Finding | None:
    """Compare settings that all runs name, but for those that follow from what is compared.

    A number that few runs share is a result, or was drawn at random; a text that no two share says which run it is.
    """
    names = [name for name in (runs[0].settings if runs else ()) if not NO_SETTING.fullmatch(name)]
    table, others = [], set[int]()
    for name in names:
        values = [run.settings.get(name) for run in runs]
        if any(value is None for value in values) or _follows(values, runs):
            continue
        places: dict[str, list[int]] = defaultdict(list)
        for place, value in enumerate(values):
            places[_text(value)].append(place)
        are_numbers = all(_is_number(value) for value in values)
        if len(places) == 1 or (2 * len(places) > len(runs) if are_numbers else len(places) == len(runs) > 2):
            continue
        usual = max(places.values(), key=len)
        others |= {place for those in places.values() if those is not usual for place in those}
        rows = sorted(places.items(), key=lambda row: _sort_key(values[row[1][0]]))
        table.append(
            Difference(
                setting=name,
                values=tuple((text, tuple(runs[place].name for place in those)) for text, those in rows),
            )
        )
    if not table:
        return None
    named = [f"{row.setting} ({_values(row)})" for row in table]
    rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    words = f"Other settings differ: {', '.join(named[:NAMED])}{rest}; otherwise than most"
    return finding("settings", words, [runs[place] for place in sorted(others)], tuple(table))


def _values(row: Difference) -> str:
    texts = [text for text, _ in row.values]
    return ", ".join(texts) if len(texts) <= NAMED else f"{texts[0]} to {texts[-1]}, {len(texts)} values"


def _text(value: Any) -> str:
    if _is_number(value):
        return f"{value:.10g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _sort_key(value: Any) -> tuple[bool, float, str]:
    return not _is_number(value), value if _is_number(value) else 0.0, _text(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _follows(values: Sequence[Any], runs: Sequence[Run]) -> bool:
    """Whether a setting is what is compared in another unit: the batch of a device, or the steps of an epoch."""
    if values == [run.seed for run in runs]:
        return True
    if not all(_is_number(value) and value for value in values):
        return False
    units: list[Callable[[Run], float]] = [
        lambda run: run.num_gpus,
        lambda run: run.batch_size,
        lambda run: run.batch_size / run.num_gpus,
        lambda run: run.learning_rate,
    ]
    for unit in units:
        ratios = [value / unit(run) for value, run in zip(values, runs, strict=True)]
        if max(ratios) - min(ratios) <= SAME_RATIO * abs(ratios[0]):
            return True
    examples = [value * run.batch_size for value, run in zip(values, runs, strict=True)]
    rounding = max(run.batch_size for run in runs)  # of the last batch
    return min(values) >= LEAST_STEPS and max(examples) - min(examples) <= rounding


def _mixed(
    runs: Sequence[Run],
    kind: Fact,
    words: str,
    named: Callable[[Run], str | None],
    may_be_one: Callable[[str, str], bool],
) -> Finding | None:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if name := named(run):
            groups[name].append(run)
    differ = {name for pair in combinations(groups, 2) if not may_be_one(*pair) for name in pair}
    if not differ:
        return None
    usual = max(groups, key=lambda name: (name in differ, len(groups[name])))
    counted = [f"{name} ({plural(len(those), 'run')})" for name, those in groups.items()]
    rest = f" and {len(counted) - NAMED} more" if len(counted) > NAMED else ""
    others = [run for name in groups if name in differ and name != usual for run in groups[name]]
    return finding(kind, f"{words}: {', '.join(counted[:NAMED])}{rest}; not on {usual}", others)


def _may_be_one_type(one: str, other: str) -> bool:
    """Whether two names may be of one type of GPU, as `A100` and `NVIDIA A100-SXM4-80GB` may."""
    first, second = (set(re.findall(r"[a-z0-9]+", name.casefold())) - _MAKERS for name in (one, other))
    return (first <= second or second <= first) and not (first ^ second) & _VARIANTS


def _may_be_one_machine(one: str, other: str) -> bool:
    """Whether two names may be of one machine: with and without its domain, or a name and an address."""
    one, other = one.casefold(), other.casefold()
    addresses = [_is_address(name) for name in (one, other)]
    if any(addresses):
        return one == other or not all(addresses)
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _runs_backwards(run: Run) -> bool:
    seconds = [each.seconds for each in run.evaluations if each.seconds is not None]
    total = run.seconds
    short = total is not None and bool(seconds) and total * OTHER_BUDGET + ROUNDING_SECONDS < max(seconds)
    return short or any(second < 0 for second in seconds) or any(later < before for before, later in pairwise(seconds))


def _overlap(runs: Sequence[Run]) -> Finding | None:
    """Find runs that began on a machine before another had ended there."""
    machines: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for place, run in enumerate(runs):
        if run.machine and (span := span_of(run)) is not None:
            machines[run.machine.casefold()].append((*span, place))
    both = set[int]()
    for spans in machines.values():
        running: list[tuple[float, float, int]] = []
        for began, ended, place in sorted(spans):
            running = [span for span in running if span[1] > began]
            for other_began, other_ended, other in running:
                shorter = min(ended - began, other_ended - other_began)
                if min(ended, other_ended) - began > max(ROUNDING_SECONDS, (OTHER_BUDGET - 1) * shorter):
                    both |= {place, other}
            running.append((began, ended, place))
    return finding("overlap", "At the same time on one machine", [runs[place] for place in sorted(both)])


def span_of(run: Run) -> tuple[float, float] | None:
    """Return when a run began and ended, in POSIX seconds. It lasts at least to its last evaluation."""
    told = [each.seconds for each in run.evaluations if each.seconds is not None]
    length = run.seconds if run.seconds is not None else max(told, default=None)
    return None if run.started is None or length is None else (run.started, run.started + length)


def _rare(runs: Sequence[Run], target: float, mode: Mode) -> Finding | None:
    those, first, widest = [], 0, 1.0
    for run in runs:
        place = _arrival(run, target, mode)
        if place is None:
            continue
        before, now = _clocks(run.evaluations[place - 1], run.evaluations[place]) if place else (0.0, None)
        if before == 0:
            first += 1
            those.append(run)
        elif before is not None and now is not None and now > FAR * before > 0:
            widest = max(widest, now / before)
            those.append(run)
    far = len(those) - first
    said = [f"{first} met the target at the first evaluation"] if first else []
    said += [f"{far} between two of which the later took up to {widest:.1f} times as long"] if far else []
    return finding("rare_evaluations", f"Evaluations are too rare to time the target ({' and '.join(said)})", those)


def _clocks(one: Evaluation, other: Evaluation) -> tuple[float | None, float | None]:
    """Return how far a run was at two evaluations, by the first clock that both have."""
    clocks = ((one.seconds, other.seconds), (one.steps, other.steps), (one.epochs, other.epochs))
    return next((both for both in clocks if None not in both), (None, None))


def _is_twice(run: Run) -> bool:
    places = [each.steps if each.steps is not None else each.epochs for each in run.evaluations]
    told = [place for place in places if place is not None]
    return len(set(told)) < len(told)


def repeats(runs: Sequence[Run]) -> list[list[int]]:
    """Return the positions of runs that are there more than once: with the same values at the same times.

    Of runs with one evaluation all settings are equal too. Runs that began at different times are two.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        figures = tuple((_text(each.value), each.seconds, each.steps, each.epochs) for each in run.evaluations)
        if figures and all(each.seconds is not None for each in run.evaluations):
            key = (run.num_gpus, run.batch_size, run.learning_rate, run.seed, run.started, run.machine, figures)
            settings = _text(dict(run.settings)) if len(figures) == 1 else ""
            groups[(*key, settings)].append(place)
    return [places for places in groups.values() if len(places) > 1]
