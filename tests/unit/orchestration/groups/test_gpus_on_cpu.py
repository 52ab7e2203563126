"""The switch by which workers that Ray gives GPUs train on the CPU."""

from scalestudy.orchestration.groups.gpus_on_cpu import VARIABLE, training_device


def test_workers_run_on_what_ray_gives_them_unless_the_switch_is_on(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert [training_device(kind) for kind in ("cpu", "cuda")] == ["cpu", "cuda"]
    monkeypatch.setenv(VARIABLE, "0")
    assert training_device("cuda") == "cuda"
    monkeypatch.setenv(VARIABLE, "1")
    assert [training_device(kind) for kind in ("cpu", "cuda")] == ["cpu", "cpu"]
