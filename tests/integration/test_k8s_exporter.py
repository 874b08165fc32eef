"""The exporter's manifests, and the PodMonitors that Prometheus finds it and the workers by."""

import copy
import os
from collections.abc import Callable
from unittest.mock import patch

import pytest

from streamfleet.common.settings import GROUPS, load_for_exporter, variable
from tests.integration.k8s_manifests import (
    DOCKERFILE,
    VERSION,
    Manifest,
    environment_of,
    kustomizations,
    labels_of,
    manifests_of,
    name_of,
    of_kind,
    pod_of,
    pools,
    redis_secret,
)
from tests.integration.k8s_rules import DEPLOY
from tests.integration.k8s_schemas import CUSTOM, refusals

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

MONITORED = "gpu-autoscaled"


def exporters(name: str) -> list[Manifest]:
    """The Deployments of exporters of a kustomization."""
    found = of_kind(manifests_of(name), "Deployment")
    return [each for each in found if labels_of(each)["app.kubernetes.io/component"] == "exporter"]


def environment(name: str, exporter: Manifest) -> dict[str, str]:
    """Returns the exporter's environment as text."""
    return environment_of(pod_of(exporter)["containers"][0], manifests_of(name))


@pytest.mark.parametrize("name", kustomizations())
def test_every_queue_has_one_exporter(name: str) -> None:
    manifests = manifests_of(name)
    queues = [environment(name, each)["STREAMFLEET_QUEUE"] for each in exporters(name)]
    fleets = pools(manifests)
    assert sorted(queues) == sorted(environment(name, each)["STREAMFLEET_QUEUE"] for each in fleets)
    assert [each["spec"]["replicas"] for each in exporters(name)] == [1] * len(queues)


@pytest.mark.parametrize("name", kustomizations())
def test_settings_are_real_and_taken(name: str) -> None:
    known = {variable(field) for group in GROUPS for field in group.model_fields} | {"REDIS_URL_FILE"}
    for each in exporters(name):
        assert redis_secret(pod_of(each)) == "streamfleet-redis"
        container = pod_of(each)["containers"][0]
        assert {entry["name"] for entry in container["env"]} <= known
        with patch.dict(os.environ, environment(name, each), clear=True):
            queue, settings, _ = load_for_exporter()
        assert queue.queue == environment(name, each)["STREAMFLEET_QUEUE"]
        # Probes and Prometheus come from outside the pod.
        assert settings.exporter_host == "0.0.0.0"  # noqa: S104
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {"metrics": settings.exporter_port}


def test_probes_ask_what_the_exporter_serves() -> None:
    (exporter,) = exporters("base")
    container = pod_of(exporter)["containers"][0]
    asked = {name: container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert asked == {
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
        "livenessProbe": {"path": "/livez", "port": "metrics"},
    }


def test_image_is_the_client_whose_entry_point_takes_the_command() -> None:
    (exporter,) = exporters("base")
    container, text = pod_of(exporter)["containers"][0], DOCKERFILE.read_text(encoding="utf-8")
    target = text.partition("FROM runtime AS client")[2].partition("\nFROM ")[0]
    assert container["image"] == f"streamfleet/client:{VERSION}"
    assert "docker build --target client" in DEPLOY
    assert ('ENTRYPOINT ["streamfleet"]' in target, container["args"]) == (True, ["exporter"])


def test_base_needs_no_kind_that_a_bare_cluster_lacks() -> None:
    for name in set(kustomizations()) - {MONITORED}:
        assert not of_kind(manifests_of(name), *CUSTOM)


def test_prometheus_scrapes_workers_and_exporter_often_enough() -> None:
    monitors = of_kind(manifests_of(MONITORED), "PodMonitor")
    assert sorted(map(name_of, monitors)) == ["streamfleet-exporter", "streamfleet-worker"]
    for each in monitors:
        (endpoint,) = each["spec"]["podMetricsEndpoints"]
        # docs/metrics.md: at least every 30 s.
        assert int(endpoint["scrapeTimeout"].removesuffix("s")) < int(endpoint["interval"].removesuffix("s")) <= 30


def endpoint_of(monitor: Manifest) -> Manifest:
    """Its only endpoint."""
    endpoint: Manifest = monitor["spec"]["podMetricsEndpoints"][0]
    return endpoint


MISTAKES: list[tuple[Callable[[Manifest], object], str]] = [
    (lambda each: endpoint_of(each).update(intervall="15s"), "intervall"),
    (lambda each: endpoint_of(each).update(interval="15"), "'15' does not match"),
    (lambda each: endpoint_of(each).update(port=9101), "9101 is not of type 'string'"),
    (lambda each: endpoint_of(each).update(path="metrics"), "'metrics' does not match"),
    (lambda each: each["spec"].update(podMetricEndpoints=each["spec"].pop("podMetricsEndpoints")), "podMetricEndpoint"),
    (lambda each: each["spec"].update(selector={"app": "streamfleet"}), "matchLabels"),
    (lambda each: each.update(apiVersion="monitoring.coreos.com/v2"), "monitoring.coreos.com/v1"),
    (lambda each: each["metadata"].update(name="Streamfleet_Worker"), "does not match"),
]


@pytest.mark.parametrize(("spoil", "finding"), MISTAKES)
def test_mistake_in_a_monitor_is_found(spoil: Callable[[Manifest], object], finding: str) -> None:
    for monitor in copy.deepcopy(of_kind(manifests_of(MONITORED), "PodMonitor")):
        assert list(refusals(monitor)) == []
        spoil(monitor)
        assert [line for line in refusals(monitor) if finding in line]
