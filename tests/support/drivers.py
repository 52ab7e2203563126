"""Studies in a process of their own, to be killed and stopped, and what they must come to in the end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.cluster.connection import Cluster
from scalestudy.orchestration.groups.events import Ended
from scalestudy.orchestration.storage.mirror import mirrored
from tests.support.chaos_outcome import tracking_differences
from tests.support.groups import losses, wait_until
from tests.support.studies import command, environment

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.02}}


class Driver:
    """`scalestudy run study.yaml` in a folder. out: the study's folder, or its URI.

    resume: `scalestudy resume` of the study there. address: of the cluster; "local": one of its own. variables: of its
    environment.
    """

    def __init__(
        self,
        place: Path,
        out: str | Path,
        *arguments: str,
        resume: bool = False,
        address: str = "local",
        **variables: str,
    ) -> None:
        self.folder = mirrored(str(out), "work") if is_uri(out) else StudyFolder(place / out)
        self.process = subprocess.Popen(
            command(
                *(("resume", out) if resume else ("run", "study.yaml", "--out", out)), "--address", address, *arguments
            ),
            cwd=place,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, event_type: str, count: int) -> None:
        """Until so many events of a type are in the journal; the driver ends with the test that waits in vain."""
        try:
            wait_until(lambda: self.count(event_type) >= count, seconds=150)
        except TimeoutError:
            self.process.kill()
            raise TimeoutError(self.process.communicate()[0]) from None

    def count(self, event_type: str) -> int:
        """Events of a type so far."""
        return sum(entry.type == event_type for entry in Journal(self.folder.journal_folder).entries())

    def send(self, number: int) -> tuple[int, str]:
        """A signal to the whole process group, as a terminal and `timeout` send it; returns exit status and output."""
        os.killpg(self.process.pid, number)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Exit status and output."""
        printed, _ = self.process.communicate(timeout=150)
        return self.process.returncode, printed


def joining(cluster: Cluster) -> dict[str, str]:
    """The environment of a process that joins a Ray of this one, by its address."""
    return {name: os.environ[name] for name in cluster.variables}


def outcome(folder: StudyFolder) -> dict[str, Any]:
    """Losses and accuracies of a study whose trials have all finished, by trial, to the bit."""
    trials = folder.read_trials()
    assert [trial["status"] for trial in trials] == ["finished"] * len(trials)
    return {trial["trial_id"]: losses(Ended.from_facts(trial)) for trial in trials}


def assert_recorded_once(folder: StudyFolder, store: Path | str, epochs: int) -> None:
    """In trials.jsonl and in MLflow: each trial once, each of its epochs once, the same values.

    store: an SQLite file, or the address of a server.
    """
    trials = folder.read_trials()
    assert len(folder.trials_file.read_text().splitlines()) == len(trials)
    for trial in trials:
        assert [epoch["epoch"] for epoch in trial["epochs"]] == list(range(1, epochs + 1))
    uri = f"sqlite:///{store}" if isinstance(store, Path) else store
    assert tracking_differences(uri, folder) == []
