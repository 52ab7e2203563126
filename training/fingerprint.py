"""What a study's trainings are made of beside the spec: the user's code and data, as hashes. No torch here.

A trial's id leaves it out: after an edit, `resume` and `--extend` still know what has run. What they compare, the
journal and each line of trials.jsonl say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from scalestudy.training.own_code import named_modules, own_files, short_hash
from scalestudy.training.registry import DATASETS


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What is known of a data set. None: a stream's length, and what differs from one reading to the next."""

    train: int | None = None  # examples
    test: int | None = None  # examples
    formats: str | None = None  # hash of the number formats of a batch
    shapes: str | None = None  # hash of the shapes of a batch's examples
    examples: str | None = None  # hash of the values of the first examples, and of some from all over the set

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> DataFacts:
        """Return the facts behind `asdict`'s data; keys of a newer version are left out."""
        return cls(**{each.name: plain.get(each.name) for each in fields(cls)})

    def agreed(self, other: DataFacts) -> DataFacts:
        """Return what another reading has found too."""
        return replace(self, **{name: None for name, value in asdict(self).items() if getattr(other, name) != value})

    def changes_since(self, before: DataFacts) -> list[str]:
        """Return in words what has changed, of what both know."""
        told, now = asdict(before), asdict(self)
        changed = {name for name, value in told.items() if None not in (value, now[name]) and now[name] != value}
        words = {"train": "examples", "test": "test examples"}
        grown = [f"{told[name]} -> {now[name]} {what}" for name, what in words.items() if name in changed]
        if grown or not changed:
            return grown
        return ["other examples" if changed == {"examples"} else "examples of another form"]


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The user's code and data in one run of a study; empty: all is built in."""

    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The modules that the spec names, each with `own_files`."""
    data: Mapping[str, DataFacts] = field(default_factory=dict)
    """By `data_key`; a data set that could not be opened is left out."""

    @classmethod
    def of_code(cls, modules: Iterable[str]) -> Fingerprint:
        """Return the code of modules that a spec names. Its callables are imported before."""
        code = {module: own_files(module) for module in sorted(modules)}
        return cls(code={module: files for module, files in code.items() if files})

    def __bool__(self) -> bool:
        return bool(self.code or self.data)

    def digests(self, *sections: Mapping[str, Any]) -> dict[str, str]:
        """Return a digest of each module and of the data set that a trial's workload, and its `train`, name."""
        workload = sections[0]
        parts: dict[str, Any] = {name: self.code[name] for name in named_modules(*sections) if name in self.code}
        if (key := data_key(workload)) in self.data:
            parts[str(key)] = asdict(self.data[str(key)])
        return {name: short_hash(json.dumps(parts[name], sort_keys=True).encode()) for name in sorted(parts)}

    def changes_since(self, before: Fingerprint) -> list[str]:
        """Return in words what has changed, of what both know: names of files, then sizes of data."""
        pairs = [(files, before.code[module]) for module, files in self.code.items() if module in before.code]
        files = {name for now, then in pairs for name in now.keys() | then.keys() if now.get(name) != then.get(name)}
        data = [
            f"data: {words}"
            for key, facts in self.data.items()
            if key in before.data
            for words in facts.changes_since(before.data[key])
        ]
        return [*sorted(files), *dict.fromkeys(data)]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Fingerprint:
        """Return the fingerprint behind `to_plain`'s data."""
        return cls(code=plain["code"], data={key: DataFacts.from_plain(facts) for key, facts in plain["data"].items()})

    def to_plain(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "code": {module: dict(files) for module, files in self.code.items()},
            "data": {key: asdict(facts) for key, facts in self.data.items()},
        }


def data_key(workload: Mapping[str, Any]) -> str | None:
    """Return the name of the user's data set, with a hash of its arguments if there are any.

    None for a built-in one, which is always the same, and for a Ray Train loop, which reads its data itself.
    """
    if "data" not in workload:
        return None
    name, arguments = str(workload["data"]), workload["data_args"]
    if name in DATASETS or not arguments:
        return None if name in DATASETS else name
    return f"{name} {short_hash(json.dumps(arguments, sort_keys=True, default=str).encode())}"
