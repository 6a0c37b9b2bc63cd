"""The files for Kubernetes, built by the real kubectl: against its schemas, and against what the code expects."""

import base64
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import cast

import kubernetes_validate
import pytest
import typer.main
import yaml
from click import Group
from dotenv import dotenv_values

from learnloop_service.app.cli.main import app
from learnloop_service.app.settings import Settings, load_settings
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine_flags import parser
from tests.fakes.engine_process import ROOT
from tests.unit.deploy.kubernetes_releases import VERSIONS

FILES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("base", "gpu")
COMPONENTS = {"api", "worker", "engine"}
VARIABLES_OF_OTHERS = {"HOME"}
SECRET = "0123456789abcdef" * 2


@dataclass(frozen=True, slots=True)
class Built:
    """What `kubectl apply -k` would send."""

    overlay: str
    documents: tuple[Json, ...]

    def of(self, kind: str) -> dict[str, Json]:
        """The documents of a kind by name."""
        return {document["metadata"]["name"]: document for document in self.documents if document["kind"] == kind}

    @property
    def workloads(self) -> dict[str, Json]:
        """By component: api, worker, engine, migration."""
        documents = self.of("Deployment") | self.of("StatefulSet") | self.of("Job")
        return {
            document["metadata"]["labels"]["app.kubernetes.io/component"]: document for document in documents.values()
        }

    def pod(self, component: str) -> Json:
        return self.workloads[component]["spec"]["template"]["spec"]

    def container(self, component: str) -> Json:
        (container,) = self.pod(component)["containers"]
        return container

    def variables(self, component: str) -> dict[str, str]:
        """The environment that the container gets."""
        maps = {name: document["data"] for name, document in self.of("ConfigMap").items()}
        secrets = {
            name: {key: base64.b64decode(value).decode() for key, value in document["data"].items()}
            for name, document in self.of("Secret").items()
        }
        values: dict[str, str] = {}
        for source in self.container(component).get("envFrom", ()):
            values |= maps[source["configMapRef"]["name"]] if "configMapRef" in source else {}
            values |= secrets[source["secretRef"]["name"]] if "secretRef" in source else {}
        for variable in self.container(component)["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            values[variable["name"]] = secrets[reference["name"]][reference["key"]] if reference else variable["value"]
        return values

    def selected(self, selector: Mapping[str, str]) -> set[str]:
        """The components whose pods have these labels."""
        return {
            component
            for component, workload in self.workloads.items()
            if selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        }


@pytest.fixture(scope="module", params=OVERLAYS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The overlay as a user builds it: the example of secrets is copied and filled in."""
    folder = tmp_path_factory.mktemp("kubernetes") / "files"
    shutil.copytree(FILES, folder)
    example = (folder / "base" / "learnloop.env.example").read_text()
    (folder / "base" / "learnloop.env").write_text(re.sub(r"=$", f"={SECRET}", example, flags=re.MULTILINE))
    kubectl = Path(sysconfig.get_path("scripts"), "kubectl")
    process = subprocess.run(
        [kubectl, "kustomize", folder / request.param], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr, "kubectl warns of what is deprecated"
    return Built(request.param, tuple(yaml.safe_load_all(process.stdout)))


def test_prometheus_scrapes_the_pods_of_the_api_and_of_the_workers(built: Built, tmp_path: Path) -> None:
    """The component, added to what else is built."""
    shutil.copytree(FILES, tmp_path / "files")
    (tmp_path / "files" / "base" / "learnloop.env").write_text("X=y")
    whole = {"resources": [f"../{built.overlay}"], "components": ["../monitoring"]}
    (tmp_path / "files" / "own").mkdir()
    (tmp_path / "files" / "own" / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    kubectl = Path(sysconfig.get_path("scripts"), "kubectl")
    process = subprocess.run(
        [kubectl, "kustomize", tmp_path / "files" / "own"], capture_output=True, text=True, timeout=60, check=True
    )
    documents = {document["kind"]: document for document in yaml.safe_load_all(process.stdout)}
    service = built.of("Service")["learnloop-api"]
    for kind, component, endpoints in (
        ("ServiceMonitor", "api", "endpoints"),
        ("PodMonitor", "worker", "podMetricsEndpoints"),
    ):
        spec = documents[kind]["spec"]
        assert built.selected(spec["selector"]["matchLabels"]) == {component}
        assert spec["jobLabel"] in service["metadata"]["labels"]
        assert service["metadata"]["labels"][spec["jobLabel"]] == "learnloop", "the job of the alerts"
        (endpoint,) = spec[endpoints]
        assert endpoint["path"] == "/metrics"
        assert endpoint["authorization"]["credentials"] == {"name": "learnloop-metrics", "key": "key"}
        assert endpoint["port"] in _ports(built, component)
    assert (
        service["metadata"]["labels"].items() >= documents["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
    )


@pytest.fixture
def _only_variables_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("LEARNLOOP_") or name in _settings()]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _settings() -> set[str]:
    return {
        f"LEARNLOOP_{name.upper()}" if field.validation_alias is None else name.upper()
        for name, field in Settings.model_fields.items()
    }


@pytest.mark.parametrize("release", VERSIONS)
def test_every_document_is_valid(built: Built, release: str) -> None:
    assert {document["kind"] for document in built.documents} >= {
        "Deployment",
        "StatefulSet",
        "Secret",
        "NetworkPolicy",
    }
    for document in built.documents:
        kubernetes_validate.validate(document, release, strict=True)


def test_a_misspelt_field_is_not_valid(built: Built) -> None:
    document = {**built.workloads["api"], "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError, match="sepc"):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_file_is_left_out(overlay: str) -> None:
    text = (FILES / overlay / "kustomization.yaml").read_text()
    other = {path.name for path in (FILES / overlay).glob("*.yaml")} - {"kustomization.yaml"}
    assert all(re.search(rf"- (path: )?{re.escape(name)}$", text, re.MULTILINE) for name in other)


def test_the_migration_is_of_this_version_and_gets_the_database_only(built: Built) -> None:
    assert [*built.of("Job")] == [f"learnloop-migration-{version('learnloop')}"], (
        "a job that is there cannot be changed"
    )
    assert built.variables("migration").keys() - VARIABLES_OF_OTHERS == {"DATABASE_URL"}


@pytest.mark.usefixtures("_only_variables_of_the_test")
@pytest.mark.parametrize("component", ["api", "worker"])
def test_the_variables_are_settings_that_the_service_takes(
    built: Built, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = built.variables(component)
    assert variables.keys() <= _settings() | VARIABLES_OF_OTHERS
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.keys_required
    assert settings.database_url is not None
    assert settings.secret_key is not None
    assert settings.max_concurrent_runs == {"api": 0, "worker": 1}[component]
    assert _mounts(built, component) >= {str(settings.data_dir)}
    pod, sleep_s = built.pod(component), 0
    if component == "api":
        assert settings.host == "0.0.0.0"
        assert {"name": "http", "containerPort": settings.port} in built.container(component)["ports"]
        sleep_s = built.container(component)["lifecycle"]["preStop"]["sleep"]["seconds"]
    else:
        assert settings.host == "0.0.0.0"
        assert {"name": "metrics", "containerPort": settings.metrics_port} in built.container(component)["ports"]
    assert pod["terminationGracePeriodSeconds"] > sleep_s + settings.stop_timeout_s


def test_the_example_of_secrets_names_settings() -> None:
    example = dotenv_values(FILES / "base" / "learnloop.env.example")
    assert {"DATABASE_URL", "LEARNLOOP_OPERATOR_KEY", "LEARNLOOP_SECRET_KEY", "LEARNLOOP_ENGINE_KEY"} == example.keys()
    assert example.keys() <= _settings()
    assert "learnloop.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_containers_start_commands_that_exist(built: Built) -> None:
    commands = cast(Group, typer.main.get_command(app)).commands
    for component, expected in {"api": "serve", "worker": "worker", "engine": "engine", "migration": "migrate"}.items():
        name, *flags = built.container(component)["args"]
        assert name == expected
        commands[name].make_context(name, flags)


def test_the_engine_listens_where_the_others_look_for_it(built: Built) -> None:
    container = built.container("engine")
    flags = parser("learnloop engine").parse_args(container["args"][1:])
    assert flags.host == "0.0.0.0"
    assert {"name": "http", "containerPort": flags.port} in container["ports"]
    assert str(flags.data_dir) in _mounts(built, "engine")
    assert all(root.is_relative_to(flags.data_dir) for root in flags.allow_base_dir)
    assert flags.device == {"base": "cpu", "gpu": "cuda"}[built.overlay]
    engine_variables = built.variables("engine")
    assert engine_variables.keys() - VARIABLES_OF_OTHERS == {flags.api_key_env}, "it gets no other secret"
    for client in ("api", "worker"):
        variables = built.variables(client)
        service = built.of("Service")["learnloop-engine"]
        (port,) = service["spec"]["ports"]
        assert variables["LEARNLOOP_ENGINE_URL"] == f"http://{service['metadata']['name']}:{port['port']}"
        assert variables["LEARNLOOP_ENGINE_KEY"] == engine_variables[flags.api_key_env]


def test_services_budgets_and_policies_mean_the_pods_of_their_name(built: Built) -> None:
    selectors: dict[str, Callable[[Json], dict[str, str]]] = {
        "Service": lambda spec: spec["selector"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
    }
    expected = {"Service": {"api", "engine"}, "PodDisruptionBudget": {"api", "worker"}, "NetworkPolicy": COMPONENTS}
    for kind, selector in selectors.items():
        documents = built.of(kind)
        assert documents.keys() == {f"learnloop-{component}" for component in expected[kind]}
        for name, document in documents.items():
            assert built.selected(selector(document["spec"])) == {name.removeprefix("learnloop-")}
    for service in built.of("Service").values():
        (component,) = built.selected(service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= _ports(built, component)


def test_only_the_api_and_the_workers_reach_the_engine(built: Built) -> None:
    policies = {name.removeprefix("learnloop-"): policy["spec"] for name, policy in built.of("NetworkPolicy").items()}
    assert "Ingress" in policies["worker"]["policyTypes"]
    assert {port["port"] for rule in policies["worker"]["ingress"] for port in rule["ports"]} == {"metrics"}
    assert set(policies["engine"]["policyTypes"]) == {"Ingress", "Egress"}
    assert "egress" not in policies["engine"]
    (rule,) = policies["engine"]["ingress"]
    clients = [built.selected(peer["podSelector"]["matchLabels"]) for peer in rule["from"]]
    assert set().union(*clients) == {"api", "worker"}
    assert {port["port"] for port in rule["ports"]} == _ports(built, "engine")
    assert {port["port"] for rule in policies["api"]["ingress"] for port in rule["ports"]} == _ports(built, "api")


def test_probes_ask_for_addresses_that_exist(built: Built) -> None:
    routes = {*json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]}
    for component, paths in {"api": routes, "engine": {"/health"}, "worker": {"/health/live"}}.items():
        probes = [probe["httpGet"] for name, probe in built.container(component).items() if name.endswith("Probe")]
        assert len(probes) == (2 if component == "worker" else 3)
        assert {probe["path"] for probe in probes} <= paths
        assert {probe["port"] for probe in probes} <= _ports(built, component)
    api = built.container("api")
    assert api["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert api["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_no_pod_has_more_rights_than_it_needs(built: Built) -> None:
    user = int(_in_dockerfile(r"^USER (\d+)$"))
    for component in built.workloads:
        pod, container = built.pod(component), built.container(component)
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == user
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert built.variables(component)["HOME"] in _mounts(built, component), "libraries write there"
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"], "their variables look like misspelt settings"
    (namespace,) = built.of("Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_images_are_of_this_version(built: Built) -> None:
    images = {component: built.container(component)["image"] for component in built.workloads}
    engine = {"base": "learnloop", "gpu": "learnloop-cuda"}[built.overlay]
    names = {"api": "learnloop", "worker": "learnloop", "migration": "learnloop", "engine": engine}
    assert images == {component: f"{name}:{version('learnloop')}" for component, name in names.items()}


def test_the_engine_gets_a_gpu_where_it_asks_for_one(built: Built) -> None:
    pod, container = built.pod("engine"), built.container("engine")
    on_gpu = built.overlay == "gpu"
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) is on_gpu
    assert ("affinity" in pod) is on_gpu
    assert ("tolerations" in pod) is on_gpu
    memory = {volume["name"] for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in memory}
    assert mounted == ({"/dev/shm"} if on_gpu else set())


def _mounts(built: Built, component: str) -> set[str]:
    """Where the container has a volume that the pod really has."""
    claims = built.workloads[component]["spec"].get("volumeClaimTemplates", ())
    volumes = {volume["name"] for volume in built.pod(component)["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in claims}
    return {mount["mountPath"] for mount in built.container(component)["volumeMounts"] if mount["name"] in volumes}


def _ports(built: Built, component: str) -> set[str]:
    return {port["name"] for port in built.container(component)["ports"]}


def _in_dockerfile(pattern: str) -> str:
    (value,) = re.findall(pattern, (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return str(value)
