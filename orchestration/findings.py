"""What `scalestudy doctor` says of one thing that it has looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at: how it is, and what to do if it is not well."""

    name: str
    state: State
    text: str
    remedy: str = ""

    @property
    def broken(self) -> bool:
        """Whether a study can't run like this."""
        return self.state == "broken"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)
