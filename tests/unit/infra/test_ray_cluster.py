"""infra/ray: the cluster launcher's file, by Ray's own schema and checks."""

import copy
import json

import pytest
from ray.autoscaler._private.docker import docker_start_cmds
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.unit.infra.manifests import read

GPU_TYPES = ("gpu", "gpu_spot")


@pytest.fixture
def prepared():
    """The file as `ray up` fills it with defaults, and checks it."""
    config = json.loads(json.dumps(read("ray/cluster.yaml")))  # without YAML's aliases: each place has its own value
    filled = prepare_config(config)
    validate_config(filled)
    return filled


def test_ray_takes_it(prepared):
    assert prepared["provider"]["type"] == "aws"
    assert set(prepared["available_node_types"]) == {"head", *GPU_TYPES}


def test_the_head_trains_nothing_and_is_no_spot_machine(prepared):
    head = prepared["available_node_types"][prepared["head_node_type"]]
    assert prepared["head_node_type"] == "head"
    assert head["resources"] == {"CPU": 0, "GPU": 0}
    assert head["max_workers"] == 0
    assert "InstanceMarketOptions" not in head["node_config"]


def test_spot_machines_are_the_others_but_for_the_market(prepared):
    gpu, spot = (copy.deepcopy(prepared["available_node_types"][name]["node_config"]) for name in GPU_TYPES)
    assert spot.pop("InstanceMarketOptions") == {"MarketType": "spot"}
    assert spot == gpu


def test_the_number_of_machines_is_fixed(prepared):
    """A study counts the machines that are there when it begins."""
    counts = [prepared["available_node_types"][name] for name in GPU_TYPES]
    assert all(each["min_workers"] == each["max_workers"] for each in counts)
    assert sum(each["max_workers"] for each in counts) == prepared["max_workers"] > 0


def test_the_dashboard_is_on_loopback_and_the_token_on_every_machine(prepared):
    starts = [command for command in prepared["head_start_ray_commands"] if "ray start" in command]
    assert len(starts) == 1
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert "0.0.0.0" not in json.dumps(prepared)
    assert prepared["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "--env=RAY_AUTH_MODE=token" in prepared["docker"]["run_options"]
    assert not [word for word in ("AWS_SECRET", "AUTH_TOKEN=", "PASSWORD") if word in json.dumps(prepared)]


def test_the_containers_start_as_they_should(prepared):
    """The command that Ray makes of it: the token lies in the home of the image's user, MLflow's address is there."""
    docker = prepared["docker"]
    options = docker["run_options"] + docker["head_run_options"]
    home = "/home/study"
    arguments = (docker["head_image"], prepared["file_mounts"], docker["container_name"], options)
    command = docker_start_cmds("ubuntu", *arguments, prepared["cluster_name"], home, "docker")
    assert f":{home}/.ray/auth_token " in command
    assert " --env=MLFLOW_TRACKING_URI=http" in command
    assert command.endswith(f"{docker['head_image']} bash")
