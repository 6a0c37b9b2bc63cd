"""The files of deploy/ray, built by the real kubectl: the engine on a Ray cluster in place of the one in the base."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine_flags import parser
from tests.fakes.engine_process import ROOT
from tests.unit.deploy.kubernetes_releases import VERSIONS


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    folder = tmp_path_factory.mktemp("ray") / "deploy"
    shutil.copytree(ROOT / "deploy", folder)
    (folder / "kubernetes" / "base" / "learnloop.env").write_text("LEARNLOOP_ENGINE_KEY=k")
    kubectl = Path(sysconfig.get_path("scripts"), "kubectl")
    process = subprocess.run(
        [kubectl, "kustomize", folder / "ray"], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr, "kubectl warns of what is deprecated"
    return list(yaml.safe_load_all(process.stdout))


@pytest.fixture(scope="module")
def cluster(documents: list[Json]) -> Json:
    [document] = [document for document in documents if document["kind"] == "RayCluster"]
    return document


def _pods(cluster: Json) -> list[Json]:
    """The templates of its pods: the head's and the workers'."""
    spec = cluster["spec"]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


def test_every_document_is_valid(documents: list[Json], cluster: Json) -> None:
    """KubeRay's own schema is not on PyPI: of its document the pods are checked, and the fields' names."""
    release = VERSIONS[0]
    for document in documents:
        if document is not cluster:
            kubernetes_validate.validate(document, release, strict=True)
    for number, pod in enumerate(_pods(cluster)):
        metadata = {"name": f"pod-{number}", **pod["metadata"]}
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}, release, strict=True
        )
    assert cluster["spec"].keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert cluster["spec"]["headGroupSpec"].keys() == {"rayStartParams", "template"}
    [group] = cluster["spec"]["workerGroupSpecs"]
    assert group.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def test_the_front_is_where_the_others_look_for_the_engine(documents: list[Json], cluster: Json) -> None:
    assert not [document for document in documents if document["kind"] == "StatefulSet"], (
        "the base's engine is replaced"
    )
    head, worker = _pods(cluster)
    [service] = [
        document
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("Service", "learnloop-engine")
    ]
    assert service["spec"]["selector"].items() <= head["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    [container] = head["spec"]["containers"]
    [script] = container["args"]
    command = re.search(r"exec learnloop engine (.*)", script.replace("\\\n", ""))
    assert command is not None
    flags = parser("learnloop engine").parse_args(command[1].split())
    assert flags.ray == "auto"
    assert flags.host == "0.0.0.0"
    assert flags.api_key_env == "LEARNLOOP_ENGINE_KEY"
    assert {"name": "http", "containerPort": flags.port} in container["ports"]
    assert service["spec"]["ports"][0]["port"] == flags.port
    for pod in (head, worker):
        [main] = pod["spec"]["containers"]
        assert str(flags.data_dir) in {mount["mountPath"] for mount in main["volumeMounts"]}
    [group] = cluster["spec"]["workerGroupSpecs"]
    assert group["maxReplicas"] == flags.samplers + flags.trainers


def test_names_that_kustomize_changes_are_changed_in_the_cluster_too(documents: list[Json], cluster: Json) -> None:
    [secret] = [document["metadata"]["name"] for document in documents if document["kind"] == "Secret"]
    head, worker = _pods(cluster)
    variables = {variable["name"]: variable for variable in head["spec"]["containers"][0]["env"]}
    assert variables["LEARNLOOP_ENGINE_KEY"]["valueFrom"]["secretKeyRef"]["name"] == secret
    images = {pod["spec"]["containers"][0]["image"] for pod in (head, worker)}
    assert images == {"learnloop-ray:0.1.0"}
    assert not [variable for variable in worker["spec"]["containers"][0]["env"] if "valueFrom" in variable], (
        "workers get no secret"
    )


def test_no_client_without_a_token_and_no_other_pod_reaches_the_cluster(documents: list[Json], cluster: Json) -> None:
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    [policy] = [
        document["spec"]
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("NetworkPolicy", "learnloop-ray")
    ]
    nodes = {"podSelector": {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}}
    assert policy["podSelector"] == nodes["podSelector"]
    assert policy["ingress"] == [{"from": [nodes]}]
    for pod in _pods(cluster):
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert not pod["spec"]["automountServiceAccountToken"]
        [container] = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
