"""docs/deploy.md names what there is: files, objects, ports, labels, Secrets, images, commands, numbers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.k8s_manifests import K8S, kustomizations, labels_of, name_of, of_kind, pod_of, workloads
from tests.integration.k8s_network import End, allowed
from tests.integration.k8s_schemas import refusals
from tests.integration.pod_security import restricted_violations
from tests.unit import deploy_page
from tests.unit.deploy_page import CHECKS, FENCE, blocks, everything, of_folder, overlays, refusal

# A bare machine fetches kubectl first; in one process, what is rendered is rendered once.
pytestmark = pytest.mark.timeout(240)

FIRST_REQUEST = "k8s/first-request"
PODS = {"worker": "streamfleet-worker", "exporter": "streamfleet-exporter", "Redis": "streamfleet-redis"}
PODS |= {"Sentinel": "streamfleet-sentinel", "gateway": "streamfleet-gateway"}


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/deploy.md").read_text(encoding="utf-8")


def container_of(folder: str, name: str) -> dict[str, Any]:
    """The container of one workload of a folder of k8s/."""
    workload = next(each for each in workloads(of_folder(folder)) if name_of(each) == name)
    container: dict[str, Any] = pod_of(workload)["containers"][0]
    return container


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nothing_on_the_page_is_unknown(page: str, check: deploy_page.Check) -> None:
    assert check(page) == []


PLANTED = [
    ("lost_paths", "`k8s/components/tensor-parallel`", "`k8s/components/tensor-parallels`"),
    ("lost_paths", "--from-file=monitoring/dashboards", "--from-file=monitoring/dashboard"),
    ("lost_paths", "streamfleet//k8s/overlays/redis-ha", "streamfleet//k8s/overlays/ha"),
    ("broken_overlays", "--kustomize k8s/overlays/dev-cpu\n", "--kustomize k8s/overlays/dev\n"),
    ("broken_overlays", "# fleet/kustomization.yaml", "# kustomization.yaml"),
    ("broken_overlays", "STREAMFLEET_MODEL=Qwen", "STREAMFLEET_MODELL=Qwen"),
    ("broken_overlays", "--tensor-parallel-size 2 ", "--tensor-parallel-size 4 "),
    ("unknown_names", "deployment/streamfleet-worker --timeout 30m", "deployment/streamfleet-workers --timeout 30m"),
    ("unknown_names", "deployment/streamfleet-worker --timeout 30m", "statefulset/streamfleet-worker --timeout 30m"),
    ("unknown_names", "statefulset/streamfleet-redis --timeout", "statefulset/streamfleet-sentinel --timeout"),
    ("unknown_names", "`data-streamfleet-redis-0`", "`data-streamfleet-redis-7`"),
    ("unknown_names", "`streamfleet-huggingface`", "`streamfleet-hugging-face`"),
    ("unknown_labels", "app.kubernetes.io/component=worker", "app.kubernetes.io/component=workers"),
    ("unknown_labels", "streamfleet.io/redis-client", "streamfleet.io/redis-clients"),
    ("unmade", "kubectl create namespace streamfleet\n", "\n"),
    ("unmade", "--namespace monitoring --create-namespace", "--namespace monitor --create-namespace"),
    ("unmade", "create secret generic streamfleet-redis-ca", "create secret generic streamfleet-ca"),
    ("unmade", '--from-literal=password="$password"', '--from-literal=pass="$password"'),
    ("closed_ports", "service/streamfleet-exporter 9101", "service/streamfleet-exporter 9100"),
    ("closed_ports", "statefulset/streamfleet-redis 6379", "statefulset/streamfleet-redis 6380"),
    ("unknown_images", "--target worker-cpu", "--target cpu"),
    ("unknown_images", "--name streamfleet streamfleet/worker-cpu:0.1.0", "--name streamfleet streamfleet/cpu:0.1.0"),
    ("unknown_images", "--image redis:8.2-bookworm", "--image redis:8.3-bookworm"),
    ("broken_overlays", "STREAMFLEET_GATEWAY_TOKENS_PER_MINUTE=", "STREAMFLEET_GATEWAY_TOKENS_PER_MIN="),
    ("unknown_names", "service/streamfleet-gateway 8080", "service/streamfleet-gateways 8080"),
    ("unmade", "create secret generic streamfleet-gateway-redis", "create secret generic streamfleet-gateway"),
    ("unmade", "--from-literal=access-key-id=", "--from-literal=access-key="),
    ("closed_ports", "service/streamfleet-gateway 8080", "service/streamfleet-gateway 80"),
    ("unknown_labels", "streamfleet.io/gateway-client", "streamfleet.io/gateway-clients"),
    ("refused_commands", "fleet gateway keys create my-service", "fleet gateway key create my-service"),
    ("refused_commands", "secret create --tenant my-service", "secret create --tenants my-service"),
    ("unknown_events", "`files_are_local`", "`files_were_local`"),
    ("refused_commands", 'fleet trace "$id"', 'fleet tracing "$id"'),
    ("refused_commands", "--max-tokens 8 ", "--max-token 8 "),
    ("refused_commands", "--lane normal --lane low\n", "--lane normal --lane lowest\n"),
    ("refused_commands", "-- streamfleet backlog --watch", "-- streamfleet backlog --watching"),
    ("unknown_events", "`redis_may_evict`", "`redis_might_evict`"),
]


@pytest.mark.parametrize(("check", "right", "wrong"), PLANTED)
def test_planted_mistake_is_found(page: str, check: str, right: str, wrong: str) -> None:
    assert right in page
    assert getattr(deploy_page, check)(page.replace(right, wrong))


def test_every_overlay_is_on_the_page(page: str) -> None:
    for folder in kustomizations().values():
        assert f"k8s/{folder.relative_to(K8S)}" in page


# -- the first request -------------------------------------------------------------------------------------


def test_job_asks_as_a_producer_may() -> None:
    (job,) = of_folder(FIRST_REQUEST)
    (redis,) = of_kind(of_folder("k8s/base"), "StatefulSet")
    assert list(refusals(job)) == []
    assert restricted_violations(pod_of(job)) == []
    source, target = (End(labels_of(each)) for each in (job, redis))
    assert allowed(of_folder("k8s/base"), source, target, 6379)
    assert not allowed(of_folder("k8s/base"), End({"app": "other"}), target, 6379)
    # Nothing of a fleet takes its pod for one of its own.
    assert labels_of(job)["app.kubernetes.io/component"] not in {
        labels_of(each)["app.kubernetes.io/component"] for each in workloads(everything())
    }


def test_job_has_a_command_that_is_taken_and_the_image_that_has_it() -> None:
    (job,) = of_folder(FIRST_REQUEST)
    (container,) = pod_of(job)["containers"]
    assert refusal(container["args"]) == []
    assert refusal([*container["args"], "--lanes=high"])
    assert container["image"] == container_of("k8s/base", PODS["exporter"])["image"]
    given = {each["name"]: each for each in container["env"]}
    assert "$(JOB)" in " ".join(container["args"])
    assert given["JOB"]["valueFrom"]["fieldRef"]["fieldPath"].startswith("metadata.labels[")
    assert container["resources"] == container_of("k8s/base", PODS["exporter"])["resources"]


# -- numbers -----------------------------------------------------------------------------------------------


def test_probes_wait_as_long_as_the_page_says(page: str) -> None:
    minutes = re.search(r"(\d+) minutes in the base, (\d+) minutes in `gpu`", page)
    assert minutes is not None
    for folder, said in zip(("k8s/base", "k8s/overlays/gpu"), minutes.groups(), strict=True):
        probe = container_of(folder, PODS["worker"])["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == int(said) * 60
    for name in ("readiness", "liveness"):
        probe = container_of("k8s/base", PODS["worker"])[f"{name}Probe"]
        row = re.search(rf"^\| {name} \| `(\S+)` \| (\d+) s \|", page, re.MULTILINE)
        assert row is not None
        seconds = str(probe["periodSeconds"] * probe["failureThreshold"])
        assert row.groups() == (probe["httpGet"]["path"], seconds)


def test_requests_and_limits_are_those_of_the_manifests(page: str) -> None:
    rows = re.findall(r"^\| (\w+) \| `(k8s/\S+)` \| (\S+) \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    assert {who for who, *_ in rows} == set(PODS)
    for who, folder, cpu, memory, limit in rows:
        resources = container_of(folder, PODS[who])["resources"]
        found = (resources["requests"]["cpu"], resources["requests"]["memory"], resources["limits"]["memory"])
        assert found == (cpu, memory, limit), f"{who} of {folder}"


def test_knobs_have_the_defaults_of_the_component(page: str) -> None:
    (block,) = (each for each in overlays(page) if "autoscaling-keda" in each)
    (scaler,) = of_kind(deploy_page.of_overlay(block), "ScaledObject")
    down = scaler["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    knobs = re.findall(r"^\| [^|]+\? \| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    assert len(knobs) == 5
    for name, default in knobs:
        assert str((scaler["spec"] | down)[name]) == default, name


# -- what the shell makes ----------------------------------------------------------------------------------


def test_wrapped_rules_are_the_rules_with_links_that_lead_to_the_runbook(page: str, repository: Path) -> None:
    (block,) = (each for each in blocks(page, "sh") if "PrometheusRule" in each)
    script = block.partition("| kubectl apply")[0]
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=repository, capture_output=True, text=True, check=True, timeout=20
    )
    made = yaml.safe_load(done.stdout)
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    links = [rule["annotations"]["runbook_url"] for group in made["spec"]["groups"] for rule in group["rules"]]
    for link in links:
        site, _, path = link.partition("/blob/main/")
        assert site.startswith("https://")
        assert (repository / path).exists()
    rules = yaml.safe_load((repository / "monitoring/rules/streamfleet.yaml").read_text(encoding="utf-8"))
    for group in [*rules["groups"], *made["spec"]["groups"]]:
        for rule in group["rules"]:
            rule["annotations"].pop("runbook_url", None)
    assert made["spec"]["groups"] == rules["groups"]


def test_monitor_of_workers_gets_the_queue_that_alerts_want(page: str) -> None:
    (block,) = (each for each in overlays(page) if "relabelings" in each)
    kustomization = yaml.safe_load(block)
    (change,) = (part for patch in kustomization["patches"] for part in yaml.safe_load(patch["patch"]))
    settings = next(
        each["data"]
        for each in of_kind(of_folder("k8s/overlays/gpu"), "ConfigMap")
        if name_of(each).startswith(PODS["worker"])
    )
    assert change["value"] == [{"targetLabel": "queue", "replacement": settings["STREAMFLEET_QUEUE"]}]


def test_alerts_that_are_routed_have_the_names_of_ours(page: str, repository: Path) -> None:
    (block,) = (each for each in blocks(page, "yaml") if each.startswith("routes:"))
    routes = yaml.safe_load(block)["routes"]
    names = re.findall(r'alertname=~"(\S+)"', " ".join(each for route in routes for each in route["matchers"]))
    rules = (repository / "monitoring/rules/streamfleet.yaml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert alerts
    assert all(re.fullmatch(name, alert) for name in names for alert in alerts)
    severities = set(re.findall(r"severity: (\w+)", rules))
    assert set(re.findall(r'severity="(\w+)"', block)) < severities


def test_dashboards_are_as_many_as_the_page_says(page: str, repository: Path) -> None:
    assert len(list((repository / "monitoring/dashboards").glob("*.json"))) == 5
    assert "the five files" in FENCE.sub("", page)
