"""What Ray Train gives the workers of a group."""

from scalestudy.orchestration.groups.trainer import FOR_THE_CONTROLLER, GroupWorkers


def test_workers_get_no_variables_that_only_their_controller_reads(monkeypatch):
    for name in FOR_THE_CONTROLLER:
        monkeypatch.setenv(name, "1")
    assert GroupWorkers._get_worker_runtime_env({}) == {"env_vars": {}}


def test_workers_get_what_the_user_has_set_for_them(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_ENABLE_PRINT_PATCH", "1")
    wanted = {"working_dir": "here", "env_vars": {"NAME": "value"}}
    found = GroupWorkers._get_worker_runtime_env(wanted)
    assert found == {**wanted, "env_vars": {"NAME": "value", "RAY_TRAIN_ENABLE_PRINT_PATCH": "1"}}
