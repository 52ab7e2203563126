"""Manifests of clusters against what is installed here: by the function, and by `scalestudy doctor --manifest`."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from scalestudy.orchestration.base.errors import ExitCode, RequestError
from scalestudy.orchestration.commands.manifests import examine_manifests, image_version
from tests.support.studies import REPOSITORY, scalestudy

RAY = metadata.version("ray")
OURS = metadata.version("scalestudy")
MANIFESTS = ["ray/cluster.yaml", "kuberay/raycluster.yaml", "kuberay/rayjob.yaml"]


def pod(image):
    return {"template": {"spec": {"containers": [{"name": "ray", "image": image}, {"name": "log", "image": "log:1"}]}}}


def raycluster(image=f"a.example/scalestudy:{OURS}-cpu", **changes):
    spec = {"rayVersion": RAY, "headGroupSpec": pod(image), "workerGroupSpecs": [pod(image)], **changes}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": spec}


def launcher(**docker):
    return {"cluster_name": "x", "provider": {"type": "aws"}, "docker": docker}


def findings(tmp_path, *documents):
    file = tmp_path / "cluster.yaml"
    file.write_text("---\n".join(json.dumps(document, indent=1) + "\n" for document in documents))
    return examine_manifests([file])


@pytest.mark.parametrize(
    ("image", "package", "version"),
    [
        ("scalestudy:0.1.0", "scalestudy", "0.1.0"),
        ("registry.example.com:5000/team/scalestudy:0.1.0-cuda", "scalestudy", "0.1.0"),
        ("scalestudy:v1.2.3rc1-cpu@sha256:12ab", "scalestudy", "1.2.3rc1"),
        ("scalestudy:latest", "scalestudy", None),
        ("registry.example.com:5000/scalestudy", "scalestudy", None),
        ("scalestudy@sha256:12ab", "scalestudy", None),
        ("rayproject/ray:2.60.0-py311-gpu", "ray", "2.60.0"),
        ("rayproject/ray:2.60.0.abc123-py311", "ray", "2.60.0"),
        ("team/own-image:0.1.0", None, "0.1.0"),
    ],
)
def test_what_the_name_of_an_image_says(image, package, version):
    assert image_version(image) == (package, version)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_manifests_of_this_repository_name_what_is_installed(manifest):
    found = examine_manifests([REPOSITORY / "infra" / manifest])
    assert len(found) >= 2
    assert {finding.state for finding in found} == {"ok"}, found


def test_another_version_of_ray_is_told_with_field_value_and_remedy(tmp_path):
    found = [finding for finding in findings(tmp_path, raycluster(rayVersion="2.9.3")) if finding.broken]
    (finding,) = found
    assert finding.name == f"{tmp_path / 'cluster.yaml'}:5"
    assert finding.text == f"spec.rayVersion: 2.9.3, here {RAY}"
    assert finding.remedy == f"write {RAY} in its place, or install ray==2.9.3 here"


def test_versions_are_compared_as_they_are_written(tmp_path):
    """Unquoted, 2.60 is the number 2.6 to YAML."""
    (tmp_path / "a.yaml").write_text("kind: RayCluster\nspec: {rayVersion: 2.60}\n")
    (finding,) = examine_manifests([tmp_path / "a.yaml"])
    assert finding.broken
    assert "spec.rayVersion: 2.60, here" in finding.text


def test_a_rayversion_that_is_not_there(tmp_path):
    manifest = raycluster()
    del manifest["spec"]["rayVersion"]
    (finding,) = [finding for finding in findings(tmp_path, manifest) if finding.broken]
    assert finding.text == "spec.rayVersion: is not there"
    assert f'rayVersion: "{RAY}"' in finding.remedy


def test_each_image_of_another_version_is_told(tmp_path):
    broken = [finding for finding in findings(tmp_path, raycluster("a.example/scalestudy:9.0.0-cpu")) if finding.broken]
    paths = ["headGroupSpec.template", "workerGroupSpecs[0].template"]
    assert [finding.text for finding in broken] == [
        f"spec.{path}.spec.containers[0].image: a.example/scalestudy:9.0.0-cpu: scalestudy 9.0.0, here {OURS}"
        for path in paths
    ]
    assert all("infra/docker" in finding.remedy for finding in broken)


def test_the_job_and_its_submitter_are_looked_at(tmp_path):
    job = {"kind": "RayJob", "spec": {"rayClusterSpec": raycluster()["spec"], **{
        "submitterPodTemplate": pod("rayproject/ray:2.9.3")["template"]}}}  # fmt: skip
    found = findings(tmp_path, {"kind": "Secret", "spec": {"rayVersion": "1"}}, job)
    assert len(found) == 4
    (finding,) = [finding for finding in found if finding.broken]
    assert "spec.submitterPodTemplate.spec.containers[0].image: rayproject/ray:2.9.3: ray 2.9.3" in finding.text


def test_every_image_of_the_cluster_launcher_is_looked_at(tmp_path):
    manifest = launcher(head_image=f"scalestudy:{OURS}", worker_image="scalestudy:9.0.0")
    manifest["available_node_types"] = {"gpu": {"docker": {"worker_image": "scalestudy:8.0.0"}}}
    states = {finding.text.partition(":")[0]: finding.state for finding in findings(tmp_path, manifest)}
    assert states == {
        "docker.head_image": "ok",
        "docker.worker_image": "broken",
        "available_node_types.gpu.docker.worker_image": "broken",
    }


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (launcher(image="team/own-image:1"), "docker.image: team/own-image:1: its versions can't be told"),
        (launcher(image="scalestudy:latest"), "docker.image: scalestudy:latest: names no version of scalestudy"),
        (launcher(), "docker: no image: its versions can't be told"),
    ],
)
def test_what_cannot_be_compared_is_a_note_with_a_remedy(tmp_path, manifest, words):
    (finding,) = findings(tmp_path, manifest)
    assert finding.state == "note"
    assert words in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [RayCluster\n", "cluster.yaml:2: is not YAML"),
        ("", "describes no Ray cluster"),
        ("kind: Deployment\nspec: {}\n", "describes no Ray cluster"),
        ("- 1\n", "describes no Ray cluster"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path, text, words):
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(RequestError, match=words) as caught:
        examine_manifests([tmp_path / "cluster.yaml"])
    assert caught.value.remedy


def test_a_tag_that_runs_code_does_not(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "a.yaml").write_text(
        f"kind: RayCluster\nspec: {{rayVersion: '{RAY}', x: !!python/object/apply:os.mkdir ['{ran}']}}\n"
    )
    assert [finding.state for finding in examine_manifests([tmp_path / "a.yaml"])] == ["ok"]
    assert not ran.exists()


def test_the_command_says_what_differs_and_exits_with_1(tmp_path):
    text = (REPOSITORY / "infra/kuberay/rayjob.yaml").read_text("utf-8")
    (tmp_path / "rayjob.yaml").write_text(text.replace(f'rayVersion: "{RAY}"', 'rayVersion: "2.9.3"'))
    done = scalestudy("doctor", "--manifest", "rayjob.yaml", cwd=tmp_path)
    assert done.returncode == ExitCode.SOME_FAILED
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("BROKEN")]
    assert f"spec.rayClusterSpec.rayVersion: 2.9.3, here {RAY}" in line
    assert [path.name for path in tmp_path.iterdir()] == ["rayjob.yaml"]


def test_the_command_takes_several_and_exits_with_0(tmp_path):
    asked = [part for name in MANIFESTS for part in ("--manifest", REPOSITORY / "infra" / name)]
    done = scalestudy("doctor", *asked, "--json", cwd=tmp_path)
    assert done.returncode == ExitCode.DONE
    files = {Path(finding["name"].rpartition(":")[0]).name for finding in json.loads(done.stdout)}
    assert files == {Path(name).name for name in MANIFESTS}


def test_the_command_refuses_what_is_not_there(tmp_path):
    done = scalestudy("doctor", "--manifest", "none.yaml", cwd=tmp_path)
    assert done.returncode == ExitCode.BAD_REQUEST
    assert done.stdout == ""
    assert "--manifest: none.yaml: No such file" in done.stderr
    assert "Traceback" not in done.stderr
