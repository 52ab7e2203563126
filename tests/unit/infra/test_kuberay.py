"""infra/kuberay: what the manifests promise of security, secrets, resources and further tries."""

import json
import os
import shlex
import subprocess

import pytest

from tests.unit.infra.manifests import KUBERAY, cluster_spec, kuberay, pods

UNITS = {"": 1.0, "m": 1e-3, "Mi": 2.0**20, "Gi": 2.0**30}


def copied(name):
    """A manifest without YAML's aliases: each place has its own value."""
    return json.loads(json.dumps(kuberay(name)))


def amount(quantity):
    number = quantity.rstrip("MGim")
    return float(number) * UNITS[quantity[len(number) :]]


@pytest.mark.parametrize("name", KUBERAY)
def test_mounts_name_volumes_of_their_pod(name):
    for pod in pods(kuberay(name)).values():
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        assert volumes == {mount["name"] for each in pod["containers"] for mount in each.get("volumeMounts", [])}


@pytest.mark.parametrize("name", KUBERAY)
def test_nothing_is_root_and_nothing_speaks_with_kubernetes(name):
    """What Kubernetes' "restricted" standard for pods asks, and no token of a service account."""
    for pod in pods(kuberay(name)).values():
        assert pod["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in pod
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 1000
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", KUBERAY)
def test_workers_have_gpus_and_the_head_has_none(name):
    found = pods(kuberay(name))
    assert "nvidia.com/gpu" not in found["head"]["containers"][0]["resources"]["requests"]
    resources = found["gpu"]["containers"][0]["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "1"
    assert cluster_spec(kuberay(name))["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    spot = [toleration for toleration in found["gpu"]["tolerations"] if "spot" in toleration["key"]]
    assert spot, "spot machines keep pods away that do not tolerate them"


@pytest.mark.parametrize("name", KUBERAY)
def test_each_container_asks_for_cpus_and_memory_and_has_a_limit_of_memory(name):
    for pod in pods(kuberay(name)).values():
        for container in pod["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", KUBERAY)
def test_shared_memory_is_memory_with_a_bound(name):
    for role in ("head", "gpu"):
        pod = pods(kuberay(name))[role]
        (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
        assert volume["emptyDir"]["medium"] == "Memory"
        limit = pod["containers"][0]["resources"]["limits"]["memory"]
        assert amount(volume["emptyDir"]["sizeLimit"]) < amount(limit)  # it counts as the container's memory


@pytest.mark.parametrize("name", KUBERAY)
def test_tokens_and_passwords_come_from_secrets(name):
    assert cluster_spec(kuberay(name))["authOptions"] == {"mode": "token", "secretName": "scalestudy-ray-token"}
    for role, pod in pods(kuberay(name)).items():
        for container in pod["containers"]:
            plain = {variable["name"] for variable in container.get("env", []) if "value" in variable}
            assert not [each for each in plain if any(word in each for word in ("TOKEN", "SECRET", "PASSWORD", "KEY"))]
            if role != "submitter":
                assert container["envFrom"] == [{"secretRef": {"name": "scalestudy-secrets", "optional": True}}]


def test_only_a_jobs_own_cluster_shows_its_dashboard_to_other_pods():
    """The operator and the submitter ask a job's dashboard; of a cluster that stays, nobody has to."""
    hosts = {n: cluster_spec(kuberay(n))["headGroupSpec"]["rayStartParams"]["dashboard-host"] for n in KUBERAY}
    assert hosts == {"raycluster": "127.0.0.1", "rayjob": "0.0.0.0"}


def test_the_jobs_cluster_is_the_other_one_but_for_the_study():
    """What is changed in one file is changed in the other."""
    stays, job = (cluster_spec(copied(name)) for name in KUBERAY)
    for spec in (stays, job):
        del spec["headGroupSpec"]["rayStartParams"]["dashboard-host"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            pod = group["template"]["spec"]
            pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "study"]
            (ray,) = pod["containers"]
            ray["volumeMounts"] = [mount for mount in ray["volumeMounts"] if mount["name"] != "study"]
            ray["env"] = [each for each in ray["env"] if each["name"] not in ("SCALESTUDY_STUDY", "PYTHONPATH")]
    assert stays == job


@pytest.fixture
def recorded(tmp_path):
    """Runs the job's entry point with a `python` that notes how it is called, and ends with given statuses."""

    def run(*statuses):
        stub = tmp_path / "python"
        (tmp_path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        stub.write_text(
            '#!/bin/sh\ncd "$(dirname "$0")"\necho "$*" >>calls\n'
            'status=$(head -n 1 statuses)\nsed -i 1d statuses\nexit "$status"\n'
        )
        stub.chmod(0o755)
        # KubeRay's submitter puts it into a shell's line; `ray job submit` quotes its words again for the head's shell
        words = shlex.split(kuberay("rayjob")["spec"]["entrypoint"])
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SCALESTUDY_STUDY": "s3://bucket/my study"}
        done = subprocess.run(shlex.join(words), shell=True, env=variables, check=False)
        return done.returncode, (tmp_path / "calls").read_text().splitlines()

    return run


RUN = "-m scalestudy run /study/study.yaml --out s3://bucket/my study"
RESUME = "-m scalestudy resume s3://bucket/my study"


@pytest.mark.parametrize("status", [0, 1, 3, 143])
def test_the_first_try_runs_the_study(recorded, status):
    assert recorded(status) == (status, [RUN])


@pytest.mark.parametrize("status", [0, 2, 3])
def test_a_further_try_goes_on_with_the_study(recorded, status):
    """`run` refuses a folder that is there already with exit status 2."""
    assert recorded(2, status) == (status, [RUN, RESUME])


def test_the_job_ends_its_cluster_and_is_tried_again():
    spec = kuberay("rayjob")["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["backoffLimit"] >= 1
    assert spec["submitterPodTemplate"]["spec"]["restartPolicy"] == "Never"  # what a Kubernetes Job demands
