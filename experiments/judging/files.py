"""Runs in a table: CSV, JSON lines or a pandas frame, with a row an evaluation or a row a run."""

import csv
import io
import json
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.judging.cells import columns_of
from scalestudy.experiments.judging.runs import Recorded, Say, SourceError, silent

if TYPE_CHECKING:
    import pandas

_IDS = ("runid", "runuuid", "trialid", "jobid", "id", "uuid")
_NAMES = ("run", "runname", "trial", "trialname", "name")
"""Columns that say which run a row belongs to, in letters and digits alone; those of `_IDS` never name two runs."""
_PLACES = ("step", "globalstep", "trainerglobalstep", "trainingiteration", "iteration", "iter", "epoch")
"""Columns that say how far a run has come, the finest first. Their plurals say how far it came in all."""
_TIMES = ("runtime", "timetotals", "time", "seconds", "elapsed", "walltime", "wall", "timestamp")
_FIXED = (
    *("numgpus", "gpus", "ngpu", "ngpus", "worldsize", "numworkers", "devices"),
    *("batchsize", "globalbatchsize", "perdevicebatchsize", "bs"),
    *("seed", "randomseed"),
)
"""Columns that tell one run from another where no column names the run, and stay as they are in a run."""
_RATES = ("lr", "learningrate", "rate")
"""Those that a schedule may move."""
_PARTS = ("phase", "split", "stage", "subset", "mode")
"""Columns whose words tell rows of one run apart, such as train and test."""
_PERSONAL = ("user", "username", "email", "mlflowuser")
_CHART = re.compile(r".+ - .+__(MIN|MAX)")
"""A column of what W&B exports from a chart."""
_BINARY = {
    b"PK\x03\x04": "an Excel workbook or another archive",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "compressed",
    b"SQLite format 3\0": "an SQLite database",
}
LEAST_BLOCK = 3
"""Fewest rows that go on from each other by no chance."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a source, by columns."""

    source: str  # its name in words
    columns: Mapping[str, Sequence[Any]]  # None: the cell is empty
    numbers: Sequence[int]  # of the rows, as the source counts them
    row: str = "row"  # what a row is called there


class _Rows(Sequence[Mapping[str, Any]]):
    """A run's rows, each made when it is asked for: a million of them as mappings would fill the memory."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], places: Sequence[int]) -> None:
        self._columns, self._places = columns, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Rows(self._columns, self._places[index])
        place = self._places[index]
        return {name: column[place] for name, column in self._columns.items() if column[place] is not None}


def read_file(path: Path, run: str | None = None, say: Say = silent) -> list[Recorded]:
    """Return the runs of a CSV file or one of JSON lines.

    run: the column that tells runs apart; None: it is found by its name, or rows are parted by what repeats.
    Raises SourceError for a file that is no such table, or where which rows make a run is open.
    """
    text = _text_of(path)
    if text.lstrip()[:1] in ("{", "["):
        return runs_of(_json_table(path, text, say), run)
    return runs_of(csv_table(path, text, say), run)


def of_frame(frame: "pandas.DataFrame", name: str = "the frame", run: str | None = None) -> list[Recorded]:
    """Return the runs of a pandas frame. A missing value (NaN, None, NaT) says nothing, as in pandas. See `read_file`.

    Rows are counted from 0. Raises SourceError.
    """
    names = [" / ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in frame.columns]
    columns = [[_plain(value) for value in frame.iloc[:, place].tolist()] for place in range(len(names))]
    return runs_of(Table(source=name, columns=_named(names, columns, name), numbers=range(len(frame))), run)


def runs_of(table: Table, run: str | None = None) -> list[Recorded]:
    """Return the runs of a table. One with a single row a run has no history. Raises SourceError."""
    if not table.numbers:
        raise SourceError(
            f"{table.source}: has no {table.row}s", "give a table with a row an evaluation, or a row a run"
        )
    labels, labelled_by = _labels(table, run)
    members: dict[Any, list[int]] = defaultdict(list)
    for place, label in enumerate(labels):
        members[label].append(place)
    long = any(len(places) > 1 for places in members.values())
    constant = _constant(table, labels) if long else table.columns.keys()
    naming = _naming(table, labelled_by, constant)
    found = []
    for number, places in enumerate(members.values(), start=1):
        values = {name: value for name in constant if (value := _first(table.columns[name], places)) is not None}
        said = values.get(naming) if naming else None
        found.append(
            Recorded(
                where=f"{table.source}, {_where(table, places)}",
                name=f"run {number}" if said is None else str(said),
                values=values,
                history=_Rows(table.columns, places) if long else (),
            )
        )
    return found


def _labels(table: Table, run: str | None) -> tuple[Sequence[Any], str | None]:
    """Return a label of its run for each row, and the column that they come from; None: no column says it."""
    if run is not None:
        if run not in table.columns:
            raise SourceError(f"{table.source}: has no column {run!r}", f"--column run=NAME, of {_list(table.columns)}")
        return _filled(table, run), run
    plain = {name: _letters(name) for name in table.columns}
    candidates = [name for key in (*_IDS, *_NAMES) for name, letters in plain.items() if letters == key]
    candidates = [name for name in candidates if None not in table.columns[name]]
    place = _place_column(table, plain)
    if place is not None and any(len(set(table.columns[name])) < len(table.numbers) for name in candidates):
        # the others number the rows
        candidates = [name for name in candidates if len(set(table.columns[name])) < len(table.numbers)]
    fixed = [name for name, letters in plain.items() if letters in _FIXED]
    rates = [name for name, letters in plain.items() if letters in _RATES]
    # a name that runs with other settings share is that of a model, or counts repeats
    naming = [
        name
        for name in candidates
        if all(_determine(table, [name], other) for other in fixed)
        and all(_determine(table, [name, place] if place else [name], other) for other in rates)
    ]
    if naming:
        finest = max(naming, key=lambda name: len(set(table.columns[name])))
        for other in naming:
            if not _determine(table, [finest], other):
                raise _ambiguous(table, f"{finest!r} and {other!r} both tell runs apart, and differently")
        return table.columns[finest], finest
    texts = [
        name
        for name, column in table.columns.items()
        if plain[name] not in _PARTS and any(isinstance(value, str) for value in column)
        if len(set(column)) < len(column)
    ]
    telling = dict.fromkeys([*fixed, *rates, *candidates, *texts])
    same = list(zip(*(table.columns[name] for name in telling), strict=True)) or [()] * len(table.numbers)
    if place is not None:
        return _parted(table, place, same), None
    for name, letters in plain.items():
        if letters in _TIMES and _always_grows(table.columns[name], same):
            raise _ambiguous(table, f"no column names the run, and {name!r} grows from row to row")
    return range(len(table.numbers)), None


def _determine(table: Table, names: Sequence[str], other: str) -> bool:
    """Whether rows that are equal in some columns are so in another, empty cells aside."""
    labels = zip(*(table.columns[name] for name in names), strict=True)
    pairs = {pair for pair in zip(labels, table.columns[other], strict=True) if pair[1] is not None}
    return len(pairs) == len({label for label, _ in pairs})


def _parted(table: Table, place: str, same: Sequence[Any]) -> Sequence[Any]:
    """Return a label a row, where no column names the run.

    A run begins where `place` starts again, if every run so found is the same in what tells runs apart. Else rows that
    are the same there are a run, if no place comes twice in it.
    """
    column = table.columns[place]
    blocks, number = [], 0
    for before, now in zip([None, *column], column, strict=False):
        number += before is not None and now <= before
        blocks.append(number)
    sizes = Counter(blocks)
    if len(sizes) == len(column):
        return range(len(column))
    starts: dict[int, int] = {}
    for row, block in enumerate(blocks):
        starts.setdefault(block, row)
    lowest: dict[Any, Any] = {}
    for key, value in zip(same, column, strict=True):
        lowest[key] = min(value, lowest.get(key, value))
    alike = all(same[row] == same[starts[block]] for row, block in enumerate(blocks))
    repeated = Counter(same[row] for row in starts.values())
    whole = all(column[row] == lowest[same[row]] for row in starts.values()) and all(
        sizes[block] > 1 or repeated[same[row]] == 1 for block, row in starts.items()
    )
    if alike and whole:
        return blocks
    groups = Counter(same)
    if len(groups) == len(column) and max(sizes.values()) < LEAST_BLOCK:
        return range(len(column))
    if len(groups) < len(column) and len(set(zip(same, column, strict=True))) == len(column):
        return same
    raise _ambiguous(table, f"no column names the run, and {place!r} does not part the {table.row}s into runs")


def _place_column(table: Table, plain: Mapping[str, str]) -> str | None:
    """Return the column that says how far a run has come; None: there is none that each row has a number in."""
    for key in _PLACES:
        for name, letters in plain.items():
            if letters == key and all(_is_number(value) for value in table.columns[name]):
                return name
    return None


def _always_grows(times: Sequence[Any], same: Sequence[Any]) -> bool:
    """Whether neighbouring rows that are the same in all else have growing times, as evaluations of one run have."""
    if not all(_is_number(value) for value in times):
        return False
    groups: dict[Any, list[Any]] = defaultdict(list)
    for key, value in zip(same, times, strict=True):
        groups[key].append(value)
    return all(
        len(group) >= LEAST_BLOCK and all(one < other for one, other in pairwise(group)) for group in groups.values()
    )


def _ambiguous(table: Table, why: str) -> SourceError:
    what = f"{table.source}: which {table.row}s make a run is open: {why}"
    return SourceError(what, "name the column that tells runs apart by --column run=NAME, or add one")


def _filled(table: Table, run: str) -> Sequence[Any]:
    column = table.columns[run]
    if None in column:
        number = table.numbers[column.index(None)]
        raise SourceError(f"{table.source}: {table.row} {number} has no {run!r}", "fill it in, or remove the row")
    return column


def _constant(table: Table, labels: Sequence[Any]) -> list[str]:
    """Return the columns that say the same in every row of a run, in every run; empty cells aside."""
    found = []
    for name, column in table.columns.items():
        said: dict[Any, Any] = {}
        told = ((label, value) for label, value in zip(labels, column, strict=True) if value is not None)
        if all(_same(said.setdefault(label, value), value) for label, value in told):
            found.append(name)
    return found


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def _naming(table: Table, labelled_by: str | None, constant: Iterable[str]) -> str | None:
    """Return the column with the names of runs: one for readers, if it names no two alike, else that of the labels."""
    known = set(constant)
    for key in _NAMES:
        for name in table.columns:
            if _letters(name) == key and name in known and labelled_by is not None:
                pairs = set(zip(table.columns[labelled_by], table.columns[name], strict=True))
                if len({other for _, other in pairs}) == len(pairs):
                    return name
    return labelled_by


def _first(column: Sequence[Any], places: Iterable[int]) -> Any:
    return next((column[place] for place in places if column[place] is not None), None)


def _where(table: Table, places: Sequence[int]) -> str:
    first, last = table.numbers[places[0]], table.numbers[places[-1]]
    if len(places) == 1:
        return f"{table.row} {first}"
    together = places[-1] - places[0] == len(places) - 1
    return f"{table.row}s {first} to {last}" if together else f"{len(places)} {table.row}s from {table.row} {first}"


def _letters(name: str) -> str:
    """Return a column's name in small letters and digits alone, without the kind that W&B and MLflow put before it."""
    bare = re.sub(r"^(config|summary|summary_metrics|params|metrics|tags)[/.]", "", name.strip().casefold())
    return re.sub(r"[\W_]", "", bare)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in list(names)[:20])


def _named(names: Sequence[str], columns: Sequence[Sequence[Any]], source: str) -> dict[str, Sequence[Any]]:
    """Return columns by name. Leave out those without a name, and those that name a person. Raises SourceError."""
    found: dict[str, Sequence[Any]] = {}
    for name, column in zip(names, columns, strict=True):
        if name in found and list(found[name]) != list(column):
            raise SourceError(f"{source}: has two columns {name!r} that differ", "rename one, or remove it")
        if name and _letters(name) not in _PERSONAL:
            found[name] = column
    if not found:
        raise SourceError(f"{source}: has no column but of users", "give each column a name in the first row")
    if any(_CHART.fullmatch(name) for name in found):
        what = f"{source}: is what W&B exports from a chart, which lacks the runs' settings"
        raise SourceError(what, "export the table of runs, or write run.history() with run.config of each run")
    return found


def _text_of(path: Path) -> str:
    """Return a file's text. Raises SourceError for one that can't be read or is no text."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: can't be read ({error.strerror})", "name a file that is there") from error
    for start, kind in _BINARY.items():
        if data.startswith(start):
            raise SourceError(f"{path}: is {kind}", "save the table as CSV (UTF-8)")
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is no UTF-8 text ({error.reason})", "save it as CSV (UTF-8)") from error
    if not text.strip():
        raise SourceError(f"{path}: is empty", "give a table with a row an evaluation, or a row a run")
    return text


def csv_table(path: Path, text: str, say: Say = silent) -> Table:
    """Return the table in a CSV file's text. Its rows are counted as a spreadsheet does, the header being row 1.

    say: takes a line about each row that is left out. Raises SourceError.
    """
    source, skipped = path.name, 0
    if told := re.match(r"sep=(.)\r?\n", text):  # Excel's
        text, skipped = text[told.end() :], 1
    delimiter = told[1] if told else "\t" if path.suffix.lower() in (".tsv", ".tab") else _delimiter(text)
    numbers, again = array("l"), array("l")  # of rows that are read, and of those with the header once more
    header: list[str] = []
    columns: list[list[str]] = []
    before: list[str] = []
    lines = io.TextIOWrapper(
        io.BytesIO(text.encode()), encoding="utf-8", newline=""
    )  # as text it is four times as large
    number, is_short = skipped, False
    try:
        for cells in csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True):
            number += 1
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                columns = [[] for _ in header]
                continue
            if len(cells) > len(header) and any(cell.strip() for cell in cells[len(header) :]):
                what = f"{source}: row {number} has {len(cells)} cells, the header {len(header)}"
                raise SourceError(what, "put a cell with the delimiter in it between quotation marks")
            if cells[0].strip() == header[0] and [cell.strip() for cell in cells] == header:
                again.append(number)
                continue
            is_short = len(cells) < len(header)
            cells += [""] * (len(header) - len(cells))
            # a text that is the same in the row before is kept once
            before = [old if old == new else new for old, new in zip(before or cells, cells, strict=False)]
            for column, cell in zip(columns, before, strict=False):
                column.append(cell)
            numbers.append(number)
    except csv.Error as error:
        raise SourceError(
            f"{source}: row {number + 1} can't be read ({error})", "save the table as CSV again"
        ) from error
    if numbers and is_short and not text.endswith(("\n", "\r")):
        say(f"{source}: row {numbers.pop()} ends in the middle, and is left out")
        for column in columns:
            column.pop()
    if again:
        where = ", ".join(map(str, again[:3])) + (" …" if len(again) > 3 else "")
        say(f"{source}: {plural(len(again), 'row')} with the header again, left out: {where}")
    values = columns_of(header, columns, source, delimiter == ";")
    for place, name in enumerate(header):
        if _letters(name) in (*_IDS, *_NAMES):  # `1e5` and `007` are no numbers there
            values[place] = [cell.strip() or None for cell in columns[place]]
    return Table(source=source, columns=_named(header, values, source), numbers=numbers)


def _delimiter(text: str) -> str:
    """Return the character that parts the first line most often, quoted texts aside."""
    first = re.sub(r'"[^"]*"', "", text.lstrip().partition("\n")[0])
    return max(",;\t|", key=first.count)


def _json_table(path: Path, text: str, say: Say) -> Table:
    """Return the table of JSON lines, or of one JSON list: each an object, nested ones with `/` between their names."""
    source = path.name
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    is_list = text.lstrip().startswith("[")
    if is_list:
        try:
            entries = list(enumerate(json.loads(text), start=1))
        except ValueError as error:
            raise SourceError(
                f"{source}: is no JSON ({error})", "give a list of objects, or an object a line"
            ) from error
    else:
        entries = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    left_out: dict[str, list[int]] = defaultdict(list)
    for number, entry in entries:
        try:
            found = entry if is_list else json.loads(entry)
        except ValueError:
            left_out["no JSON"].append(number)
            continue
        if isinstance(found, dict):
            rows.append(flat(found))
            numbers.append(number)
        else:
            left_out["no object"].append(number)
    row = "entry" if is_list else "line"
    for why, those in left_out.items():
        more = f" and {plural(len(those) - 1, 'other')}" if len(those) > 1 else ""
        say(f"{source}: {row} {those[0]}{more}: {why}, and left out")
    if not rows:
        raise SourceError(
            f"{source}: has no JSON object in a line of its own", "write an object an evaluation, or a run"
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [[row.get(name) for row in rows] for name in names]
    return Table(source=source, columns=_named(names, columns, source), numbers=numbers, row=row)


def flat(nested: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with `/` between their names. Lists become text."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}/")
        else:
            found[f"{before}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return found


def _plain(value: Any) -> Any:
    """Return a frame's value as plain Python has it; None: it is missing. Dates become POSIX seconds."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        value = value.item()  # a NumPy number in a column of objects
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if str(value) in ("<NA>", "NaT"):
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
