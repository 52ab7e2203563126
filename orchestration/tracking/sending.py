"""What is sent to MLflow, made to fit; and what it refuses all the same, said once and at the cost of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.study.mlflow_limits import LONGEST_TAG, fitted_names, fitted_params, fitted_text
from scalestudy.orchestration.tracking.server import reason_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

POINTS_A_REQUEST = 800
TEXTS_A_REQUEST = 100
"""MLflow takes 1,000 entries in a request, and of these 100 parameters and 100 tags."""
NAMED = 3
"""Changed names that a line gives."""
REFUSED = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
"""MLflow's answers to a request that it will refuse at every later try."""
PASSING = ("InterfaceError", "InternalError", "QueuePool limit", "ReadOnlySqlTransaction")
"""Messages of a database that is shutting down, or busy; MLflow's server calls these bad requests too."""


class NoRunError(Exception):
    """MLflow does not have the run that an entry belongs to, and no later try will find it."""


def is_refused(error: Exception) -> bool:
    """Return whether MLflow will refuse the same thing at every later try."""
    if getattr(error, "error_code", None) == "BAD_REQUEST" and any(word in str(error) for word in PASSING):
        return False
    return isinstance(error, FileNotFoundError | NoRunError) or getattr(error, "error_code", None) in REFUSED


class Sender:
    """The way to MLflow's runs for all of a study: what differs there, and what is missing, is said once."""

    def __init__(self, client: MlflowClient, say: Callable[[str], None]) -> None:
        """say: takes a line about what MLflow has otherwise, or refuses."""
        self._client, self._say = client, say
        self._said: set[str] = set()

    @contextmanager
    def apart(self, what: str, of: str = "") -> Iterator[None]:
        """Say what MLflow refuses of this, and go on; raise all other errors. of: names one of those that share `what`.

        A file that has gone is refused too: it would hold up the rest for ever.
        """
        try:
            yield
        except Exception as error:
            if not is_refused(error):
                raise
            self._say_refusal(what, of, error)

    def log(
        self,
        run_id: str,
        points: Sequence[Metric] = (),
        params: Iterable[tuple[str, Any]] = (),
        tags: Mapping[str, str] | None = None,
        known: Mapping[str, str] | None = None,
    ) -> None:
        """Send points, parameters and tags in as few requests as MLflow takes them.

        params: by names that MLflow may not take, or twice by one name. known: the parameters that the run has, which
        MLflow lets nobody change; they are not sent again.
        """
        from mlflow.entities import Metric, Param, RunTag

        known, tags = known or {}, tags or {}
        fitted, changes = fitted_params(params)
        self._said |= changes.keys() & known.keys()
        self._say_changes({name: words for name, words in changes.items() if name not in self._said})
        keys = list(dict.fromkeys(point.key for point in points))
        names = dict(zip(keys, fitted_names(keys), strict=True))
        metrics = [Metric(names[each.key], each.value, each.timestamp, each.step) for each in points]
        new = [Param(name, value) for name, value in fitted.items() if name not in known]
        texts = [fitted_text(value, LONGEST_TAG) for value in tags.values()]
        marks = [RunTag(name, text) for name, text in zip(fitted_names(tags), texts, strict=True)]
        while metrics or new or marks:
            self._send(run_id, [*metrics[:POINTS_A_REQUEST], *new[:TEXTS_A_REQUEST], *marks[:TEXTS_A_REQUEST]])
            metrics, new, marks = metrics[POINTS_A_REQUEST:], new[TEXTS_A_REQUEST:], marks[TEXTS_A_REQUEST:]

    def _send(self, run_id: str, entries: Sequence[Any]) -> None:
        """Send one request; if MLflow refuses it, each half of it, down to the single entries that it refuses."""
        from mlflow.entities import Metric, Param, RunTag

        kinds = {
            word: [each for each in entries if isinstance(each, kind)]
            for word, kind in (("metrics", Metric), ("params", Param), ("tags", RunTag))
        }
        try:
            self._client.log_batch(run_id, **kinds)
        except Exception as error:
            if not is_refused(error) or self._client.get_run(run_id).info.lifecycle_stage == "deleted":
                raise
            if len(entries) > 1:
                self._send(run_id, entries[: len(entries) // 2])
                self._send(run_id, entries[len(entries) // 2 :])
                return
            [entry] = entries
            self._say_refusal(entry.key, "", error)

    def _say_changes(self, changes: Mapping[str, str]) -> None:
        if changes:
            self._said |= changes.keys()
            told, more = list(changes.values())[:NAMED], len(changes) - NAMED
            told += [f"and {more} more"] if more > 0 else []
            self._say(f"other names or values in MLflow: {'; '.join(told)}; spec.yaml has them as given")

    def _say_refusal(self, what: str, of: str, error: Exception) -> None:
        if (key := f"no {what}") not in self._said:
            self._said.add(key)
            self._say(f"MLflow refused {what}{of}: {reason_of(error)}")
