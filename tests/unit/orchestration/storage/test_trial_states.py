"""What a trial's training leaves in storage: a storage out of reach is an OSError, which costs at most the state."""

import logging
from types import SimpleNamespace

import pytest

from scalestudy.orchestration.storage.trial_states import StoredStates, read_from, written_to

AWAY = "hdfs://localhost:1/runs"
STUDY = SimpleNamespace(
    checkpoints=lambda trial_id: trial_id,
    model_file=lambda trial_id: SimpleNamespace(name="model.pt"),
    place_of=lambda folder: f"{AWAY}/{folder}",
)


def test_a_file_can_t_be_read_from_or_written_to_a_storage_out_of_reach():
    with pytest.raises(OSError, match=f"^storage: {AWAY}"), read_from(f"{AWAY}/model.pt"):
        pass
    with pytest.raises(OSError, match=f"^storage: {AWAY}"), written_to(f"{AWAY}/model.pt") as file:
        file.touch()


def test_states_that_can_t_be_deleted_stay(caplog):
    states = StoredStates(STUDY)
    with caplog.at_level(logging.WARNING):
        states.forget("t1")
        states.forget_checkpoints("t2")
    assert [f"the checkpoints of {trial} are still there" in caplog.text for trial in ("t1", "t2")] == [True, True]
    with pytest.raises(OSError, match=AWAY):
        states.has_model("t1")
