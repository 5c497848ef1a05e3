"""The manifests of deploy/kubernetes, as kustomize builds them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from later import __version__
from later.cli.program import COMMANDS
from later.cli.root_key import ROOT_KEY_VARIABLE
from later.config import load
from later.option_table import OPTIONS
from tests.cases import each_case
from tests.deploy import kustomize
from tests.deploy.kustomize import Resource
from tests.deploy.stop_time import longest_stop_s
from tests.metrics.queries import evaluate, exposition, needs_promtool, unknown_names

HERE = Path(__file__).parents[2] / "deploy" / "kubernetes"
FOLDERS = ("base", "overlays/sentinel", "overlays/cluster", "overlays/embedded")
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()
"""The versions of Kubernetes whose schemas the manifests pass."""
OWN_TYPES = {"ScaledObject"}
"""Kinds that are not of Kubernetes itself."""
POD_KINDS = {"Deployment", "StatefulSet"}


@pytest.fixture(scope="module")
def scaled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kustomization on the base with the component, as a user writes it."""
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "kubernetes").symlink_to(HERE)
    text = "resources: [kubernetes/base]\ncomponents: [kubernetes/components/autoscaling]\n"
    (folder / "kustomization.yaml").write_text(text)
    return folder


@cache
def built() -> dict[str, list[Resource]]:
    return {folder: kustomize.build(HERE / folder) for folder in FOLDERS}


def all_resources() -> list[Resource]:
    return [resource for resources in built().values() for resource in resources]


def pods() -> Iterator[tuple[str, Resource]]:
    """Yield the command and the specification of each pod."""
    for resource in all_resources():
        if resource["kind"] in POD_KINDS:
            pod = resource["spec"]["template"]["spec"]
            yield pod["containers"][0]["args"][0], pod


PODS = [*pods()]


def container_of(pod: Resource) -> Resource:
    (container,) = pod["containers"]
    assert isinstance(container, dict)
    return container


def resources_of(folder: str, kind: str) -> dict[str, Resource]:
    """Return the resources of a kind in a folder, by name."""
    return {r["metadata"]["name"]: r for r in built()[folder] if r["kind"] == kind}


def errors(resource: Resource, version: str) -> str:
    """Return why a resource does not pass Kubernetes' schema; empty if it does."""
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{kustomize.identity(resource)}: {error.message}"
    return ""


@each_case("version", [OLDEST, NEWEST])
def test_every_resource_passes_the_schema_of_kubernetes(version: str, scaled_folder: Path) -> None:
    resources = [*all_resources(), *kustomize.build(scaled_folder)]
    checked = [resource for resource in resources if resource["kind"] not in OWN_TYPES]
    assert [text for text in (errors(resource, version) for resource in checked) if text] == []


def test_a_misspelt_field_is_found() -> None:
    deployment = resources_of("base", "Deployment")["later-serve"]
    pod = {**deployment["spec"]["template"]["spec"], "terminationGracePeriodSecondz": 75}
    wrong = kustomize.merge(deployment, {"spec": {"template": {"spec": pod}}})
    assert "terminationGracePeriodSecondz" in errors(wrong, NEWEST)


def kubectl_build(folder: Path) -> list[Resource]:
    """Return what kubectl builds of a folder. It asks no cluster."""
    command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [*yaml.safe_load_all(done.stdout)]


needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.mark.system
@needs_kubectl
def test_kubectl_builds_the_same(scaled_folder: Path) -> None:
    for folder in (*(HERE / name for name in FOLDERS), scaled_folder):
        theirs, ours = kubectl_build(folder), kustomize.build(folder)
        assert {kustomize.identity(r): r for r in theirs} == {kustomize.identity(r): r for r in ours}


@pytest.mark.system
@needs_kubectl
def test_kubectl_builds_the_documented_kustomization(tmp_path: Path) -> None:
    readme = (HERE.parent / "README.md").read_text()
    (example,) = [
        block for block in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL) if "kind: Kustomization" in block
    ]
    (tmp_path / "deploy").symlink_to(HERE.parent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(example)
    resources = {kustomize.identity(resource): resource for resource in kubectl_build(tmp_path / "mine")}
    for name, user in (("later-serve", "later-api"), ("later-worker", "later-worker")):
        container = container_of(resources["Deployment", name]["spec"]["template"]["spec"])
        assert container["image"] == f"registry.example/later:{__version__}"
        assert variables(container)["LATER_REDIS"] == f"rediss://{user}:$(STORE_PASSWORD)@store.example:6379/0"
    assert resources["ConfigMap", "later"]["data"]["LATER_GUARD_ALLOW"] == "10.1.0.0/16"
    assert {resource["metadata"]["namespace"] for resource in resources.values()} == {"later"}


def test_no_kind_and_name_is_there_twice() -> None:
    for resources in built().values():
        names = [*map(kustomize.identity, resources)]
        assert len(names) == len(set(names))


# Pods


@each_case(("command", "pod"), PODS)
def test_a_pod_runs_a_command_with_options_that_it_takes(command: str, pod: Resource) -> None:
    container = container_of(pod)
    assert command in COMMANDS
    assert container["image"] == f"later:{__version__}"
    values = {name: value or "" for name, value in variables(container).items() if name in OPTIONS_BY_VARIABLE}
    flags = {option.lstrip("-"): value for option, value in zip(*[iter(container["args"][1:])] * 2, strict=True)}
    config = load(command, flags, {"LATER_LISTEN": "0.0.0.0:8080", "LATER_HEALTH": "0.0.0.0:8081", **values})
    (port,) = container["ports"]
    assert config.http_address is not None
    assert config.http_address.port == port["containerPort"]


OPTIONS_BY_VARIABLE = {option.variable: option for option in OPTIONS}


def variables(container: Resource) -> dict[str, str | None]:
    """Return the variables of a container; None for one whose value a Secret has."""
    named = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    return {**OPTION_MAP, **named} if any("configMapRef" in source for source in container["envFrom"]) else named


OPTION_MAP: dict[str, str | None] = resources_of("base", "ConfigMap")["later"]["data"]


@each_case(("command", "pod"), PODS)
def test_every_variable_of_later_is_an_option(command: str, pod: Resource) -> None:
    named = {name for name in variables(container_of(pod)) if name.startswith("LATER_")}
    assert named <= {*OPTIONS_BY_VARIABLE, ROOT_KEY_VARIABLE}
    assert not pod["enableServiceLinks"]


@each_case(("command", "pod"), PODS)
def test_a_variable_uses_only_what_stands_before_it(command: str, pod: Resource) -> None:
    before = set[str]()
    for variable in container_of(pod).get("env", []):
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= before
        before.add(variable["name"])


@each_case(("command", "pod"), [row for row in PODS if row[0] != "up"])
def test_the_documented_patch_replaces_the_url_of_the_store(command: str, pod: Resource) -> None:
    readme = (HERE.parent / "README.md").read_text()
    assert "path: /spec/template/spec/containers/0/env/1/value" in readme
    assert container_of(pod)["env"][1]["name"] == "LATER_REDIS"


@each_case(("command", "pod"), PODS)
def test_no_password_is_in_a_manifest(command: str, pod: Resource) -> None:
    for name, value in variables(container_of(pod)).items():
        if name == "LATER_REDIS":
            assert f"later-{'worker' if command == 'worker' else 'api'}:$(STORE_PASSWORD)@" in (value or "")
        if name == "STORE_PASSWORD":
            assert value is None


@each_case(("command", "pod"), PODS)
def test_a_pod_can_change_nothing_and_is_not_root(command: str, pod: Resource) -> None:
    container = container_of(pod)
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == ({"/tmp", "/data"} if command == "up" else {"/tmp"})


@each_case(("command", "pod"), PODS)
def test_a_pod_asks_for_cores_and_has_no_limit_of_them(command: str, pod: Resource) -> None:
    resources = container_of(pod)["resources"]
    assert int(resources["requests"]["cpu"]) >= 1
    assert "cpu" not in resources["limits"]


@each_case(("command", "pod"), PODS)
def test_a_pod_is_killed_no_sooner_than_the_daemon_has_stopped(command: str, pod: Resource) -> None:
    container = container_of(pod)
    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert hook[0] == "sleep"
    assert pod["terminationGracePeriodSeconds"] >= int(hook[1]) + longest_stop_s(command)
    assert (int(hook[1]) >= 5) == (command != "worker")


@each_case(("command", "pod"), PODS)
def test_a_pod_is_restarted_only_for_what_a_restart_helps_and_gets_requests_only_when_it_is_ready(
    command: str, pod: Resource
) -> None:
    container = container_of(pod)
    (port,) = container["ports"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/livez", "port": port["name"]}
        assert container[probe]["timeoutSeconds"] >= 1
    assert container["livenessProbe"]["failureThreshold"] >= 3
    if command == "worker":
        assert "readinessProbe" not in container
    else:
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}


# What belongs together


@each_case("folder", FOLDERS)
def test_services_budgets_and_policies_select_pods_that_exist(folder: str) -> None:
    templates = [r["spec"]["template"]["metadata"]["labels"] for r in built()[folder] if r["kind"] in POD_KINDS]
    selectors = [
        *(service["spec"]["selector"] for service in resources_of(folder, "Service").values()),
        *(b["spec"]["selector"]["matchLabels"] for b in resources_of(folder, "PodDisruptionBudget").values()),
        *(p["spec"]["podSelector"]["matchLabels"] for p in resources_of(folder, "NetworkPolicy").values()),
        *(r["spec"]["selector"]["matchLabels"] for r in built()[folder] if r["kind"] in POD_KINDS),
    ]
    for selector in selectors:
        assert [labels for labels in templates if selector.items() <= labels.items()] != [], selector


@each_case("folder", FOLDERS)
def test_named_ports_exist(folder: str) -> None:
    named = {port["name"] for r in built()[folder] if r["kind"] in POD_KINDS
             for port in container_of(r["spec"]["template"]["spec"])["ports"]}  # fmt: skip
    used = [port["targetPort"] for s in resources_of(folder, "Service").values() for port in s["spec"]["ports"]]
    for policy in resources_of(folder, "NetworkPolicy").values():
        used += [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert set(used) == named


@each_case("folder", ["base", "overlays/sentinel", "overlays/cluster"])
def test_each_deployment_survives_the_loss_of_a_node(folder: str) -> None:
    budgets = resources_of(folder, "PodDisruptionBudget")
    for name, deployment in resources_of(folder, "Deployment").items():
        spec = deployment["spec"]
        rules = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
        (term,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
        assert spec["replicas"] >= 2
        assert budgets[name]["spec"]["minAvailable"] == 1
        assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        assert term["podAffinityTerm"]["labelSelector"] == spec["selector"]


def test_an_embedded_store_has_one_pod_and_a_volume_of_one_node() -> None:
    spec = resources_of("overlays/embedded", "StatefulSet")["later"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    container = container_of(spec["template"]["spec"])
    assert spec["replicas"] == 1
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert container["args"] == ["up", "--data", "/data/store"]  # not the volume itself, which belongs to root
    assert {"name": claim["metadata"]["name"], "mountPath": "/data"} in container["volumeMounts"]


def test_the_api_reaches_every_server_of_its_url() -> None:
    for folder in ("base", "overlays/sentinel", "overlays/cluster"):
        serve = resources_of(folder, "Deployment")["later-serve"]["spec"]["template"]["spec"]
        (rule,) = resources_of(folder, "NetworkPolicy")["later-serve"]["spec"]["egress"]
        named = set(re.findall(r":(\d+)(?:[,/]|$)", variables(container_of(serve))["LATER_REDIS"] or ""))
        assert named
        assert named <= {str(port["port"]) for port in rule["ports"]}


def test_the_secrets_have_the_keys_that_the_script_of_passwords_writes() -> None:
    script = (HERE.parent / "make-passwords.sh").read_text()
    (users,) = re.findall(r"for user in (.*); do", script)
    written = {f"PASSWORD_OF_{user.upper().replace('-', '_')}" for user in users.split()}
    read = {
        variable["valueFrom"]["secretKeyRef"]["key"]
        for _, pod in PODS
        for variable in container_of(pod).get("env", [])
        if "valueFrom" in variable
    }
    assert read
    assert read <= written


# Scaling


def test_what_is_scaled_exists_and_has_no_number_of_its_own(scaled_folder: Path) -> None:
    resources = {kustomize.identity(resource): resource for resource in kustomize.build(scaled_folder)}
    for kind in ("ScaledObject", "HorizontalPodAutoscaler"):
        ((scaled, least),) = [
            (r["spec"]["scaleTargetRef"]["name"], r["spec"].get("minReplicas", r["spec"].get("minReplicaCount")))
            for (found, _), r in resources.items()
            if found == kind
        ]
        assert "replicas" not in resources["Deployment", scaled]["spec"]
        assert least >= 2


def scaling_queries() -> list[Any]:
    (scaled,) = kustomize.read(HERE / "components" / "autoscaling" / "worker.yaml")
    return [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]


def test_workers_are_scaled_by_slots_and_by_tasks_that_nothing_holds() -> None:
    text = " ".join(trigger["query"] for trigger in scaling_queries())
    for name in ("later_delivery_slots_in_use", "later_oldest_due_age_seconds", "later_tasks_due"):
        assert name in text
    assert re.findall(r'held="(\w+)"', text) == ["no", "no"]
    assert [name for trigger in scaling_queries() for name in unknown_names(trigger["query"])] == []


@needs_promtool
def test_prometheus_gives_a_number_for_every_trigger(tmp_path: Path) -> None:
    assert evaluate(exposition(), [trigger["query"] for trigger in scaling_queries()], tmp_path) == ""
