"""The gateway's manifests: the rules with each of its components, planted mistakes, who may connect, what fits what."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.k8s_gateway import GATEWAY_ENDS_S, settings_of
from tests.integration.k8s_manifests import (
    DOCKERFILE,
    K8S,
    VERSION,
    Manifest,
    environment_of,
    gateways,
    labels_of,
    manifests_of,
    name_of,
    of_kind,
    only,
    pod_of,
    pools,
    redis_secret,
    render,
    workloads,
)
from tests.integration.k8s_network import End, allowed
from tests.integration.k8s_rules import RULES, schema
from tests.integration.k8s_schemas import refusals

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

NAME = "gateway"
COMPONENTS = sorted(folder.name for folder in (K8S / "components").glob("gateway-*"))
CLIENT = {"streamfleet.io/gateway-client": "true"}
FOR_SOME = {
    "gateway-s3": "in place of the volume",
    "gateway-monitor": "its kind is the Prometheus Operator's",
    "gateway-external-redis": "beside a Redis that is elsewhere",
}


@cache
def composed(*components: str, fleet: str = "base", more: str = "") -> list[Manifest]:
    """A fleet with the gateway and some of its components; copy before changing one."""
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(K8S, Path(folder) / "k8s")
        return render(overlay_of(copied, fleet, components, more))


def overlay_of(k8s: Path, fleet: str, components: tuple[str, ...], more: str = "") -> Path:
    """An overlay on a copy of k8s/."""
    overlay = k8s / "overlays" / "tried"
    overlay.mkdir()
    said: dict[str, Any] = {
        "resources": [f"../../{fleet}", "../../base/gateway"],
        "components": [f"../../components/{each}" for each in components],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(said) + more, encoding="utf-8")
    return overlay


def broken(manifests: list[Manifest]) -> list[str]:
    """Returns the gateway's faults, by the schemas too; the fleet's manifests are validated where they are tested."""
    wrong = [line for each in manifests if "gateway" in name_of(each) for line in refusals(each)]
    return wrong or [line for rule in RULES if rule is not schema for line in rule(manifests)]


def container_of(manifests: list[Manifest]) -> Manifest:
    """The gateway's container."""
    (gateway,) = gateways(manifests)
    container: Manifest = pod_of(gateway)["containers"][0]
    return container


# -- what there is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", "gpu", "redis-ha", "external-redis", "gpu-multi-pool"])
def test_a_fleet_without_http_has_none_of_it(name: str) -> None:
    assert not [each for each in manifests_of(name) if "gateway" in name_of(each)]


@pytest.mark.parametrize("components", [("gateway-s3",), tuple(COMPONENTS)], ids=["s3", "all"])
def test_rules_hold_with_the_components(components: tuple[str, ...]) -> None:
    assert broken(composed(*components)) == []


@pytest.mark.parametrize("fleet", ["overlays/redis-ha", "overlays/external-redis"])
def test_rules_hold_on_another_fleet(fleet: str) -> None:
    needed = ("gateway-external-redis",) if fleet.endswith("external-redis") else ()
    manifests = composed(*needed, fleet=fleet)
    assert broken(manifests) == []
    # The base's policy lets gateways out to a Redis of the cluster alone.
    finding = ["streamfleet-gateway: its NetworkPolicies do not let it reach Redis"]
    assert broken(composed(fleet=fleet)) == (finding if needed else [])
    # Settings of the whole queue stand once, at the workers.
    (pool,) = pools(manifests)
    theirs = environment_of(pod_of(pool)["containers"][0], manifests)
    mine = environment_of(container_of(manifests), manifests)
    assert theirs.items() <= mine.items()


def test_rules_hold_on_several_pools_as_their_overlay_says() -> None:
    text = (K8S / "overlays/gpu-multi-pool/kustomization.yaml").read_text(encoding="utf-8")
    _, mark, block = text.partition("# configMapGenerator:\n")
    more = re.sub("^# ", "", mark + block, flags=re.MULTILINE)
    manifests = composed(fleet="overlays/gpu-multi-pool", more=more)
    assert broken(manifests) == []
    served = {
        found["STREAMFLEET_QUEUE"]: found["STREAMFLEET_MODEL"]
        for found in (environment_of(pod_of(each)["containers"][0], manifests) for each in pools(manifests))
    }
    routes = settings_of(gateways(manifests)[0], manifests).routes
    assert {route.queue: route.served for route in routes} == served
    assert [line for line in broken(composed(fleet="overlays/gpu-multi-pool")) if "no ConfigMap" in line]


def test_the_overlay_has_the_components_that_need_no_more() -> None:
    shown = yaml.safe_load((K8S / "overlays/gateway/kustomization.yaml").read_text(encoding="utf-8"))["components"]
    assert {Path(each).name for each in shown} == set(COMPONENTS) - set(FOR_SOME)


def test_overlay_names_the_model_that_its_workers_serve() -> None:
    manifests = manifests_of(NAME)
    (pool,), (gateway,) = pools(manifests), gateways(manifests)
    theirs = environment_of(pod_of(pool)["containers"][0], manifests)
    (route,) = settings_of(gateway, manifests).routes
    assert (route.queue, route.served) == (theirs["STREAMFLEET_QUEUE"], theirs["STREAMFLEET_MODEL"])


# -- the pod -----------------------------------------------------------------------------------------------


def test_settings_probes_and_image_fit_the_gateway() -> None:
    (gateway,) = gateways(composed())
    container, settings = container_of(composed()), settings_of(gateway, composed())
    ports = {"http": settings.gateway_port, "health": settings.gateway_health_port}
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == ports
    # Callers and probes come from outside the pod.
    assert (settings.gateway_host, settings.gateway_keys) == ("0.0.0.0", "on")  # noqa: S104
    asked = {name: container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert {name: (each["path"], each["port"]) for name, each in asked.items()} == {
        "readinessProbe": ("/readyz", "health"),
        "livenessProbe": ("/livez", "health"),
    }
    text = DOCKERFILE.read_text(encoding="utf-8").partition("FROM runtime AS gateway")[2].partition("\nFROM ")[0]
    assert container["image"] == f"streamfleet/gateway:{VERSION}"
    assert 'ENTRYPOINT ["streamfleet", "gateway"]' in text
    assert "args" not in container
    assert "command" not in container
    assert gateway["spec"]["replicas"] == 2


def test_grace_period_has_room_for_the_drain() -> None:
    (gateway,) = gateways(composed())
    pre_stop_s = container_of(composed())["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = settings_of(gateway, composed()).gateway_drain_ms / 1000
    assert pre_stop_s >= 5  # until proxies have heard of it
    assert pre_stop_s + drain_s + GATEWAY_ENDS_S < pod_of(gateway)["terminationGracePeriodSeconds"]


def test_url_of_redis_is_a_secret_of_its_own() -> None:
    (gateway,) = gateways(composed())
    assert redis_secret(pod_of(gateway)) == "streamfleet-gateway-redis"
    others = [pod_of(each) for each in workloads(composed()) if each not in gateways(composed())]
    assert "streamfleet-gateway-redis" not in str(others)


def test_gateways_go_to_nodes_and_zones_of_their_own_where_they_can() -> None:
    (gateway,) = gateways(composed())
    spread = pod_of(gateway)["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for each in spread:
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"
        assert each["labelSelector"] == gateway["spec"]["selector"]


def test_files_are_on_a_volume_that_gateways_of_all_nodes_mount() -> None:
    claim = only(composed(), "PersistentVolumeClaim", "streamfleet-gateway-files")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_s3_takes_the_place_of_the_volume() -> None:
    manifests = composed("gateway-s3")
    (gateway,) = gateways(manifests)
    assert not of_kind(manifests, "PersistentVolumeClaim")
    assert [volume["name"] for volume in pod_of(gateway)["volumes"]] == ["tmp", "redis"]
    assert [mount["name"] for mount in container_of(manifests)["volumeMounts"]] == ["tmp", "redis"]
    sources = [each for each in container_of(manifests)["env"] if "valueFrom" in each]
    given = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in sources}
    # Credentials for a store may be absent (a pod of the cloud needs none); its address never.
    required = {name for name, reference in given.items() if not reference.get("optional")}
    assert required == {"STREAMFLEET_GATEWAY_FILES"}


# -- planted mistakes --------------------------------------------------------------------------------------

POD = "spec/template/spec"
CONTAINER = f"{POD}/containers/0"
STATED = "metadata/annotations"
PATHS = "spec/rules/0/http/paths"
GONE = "(gone)"
# kind, where in the gateway's manifest, what there in place, and the rule that says so.
PLANTED: list[tuple[str, str, object, str]] = [
    ("Deployment", f"{POD}/serviceAccountName", "gateway", "references"),
    ("Deployment", f"{POD}/volumes/1/persistentVolumeClaim/claimName", "files", "references"),
    ("Deployment", f"{POD}/volumes/2/secret/items/0/key", "uri", "references"),
    ("Deployment", f"{CONTAINER}/env/0/name", "REDIS_URI", "settings"),
    ("Deployment", f"{POD}/terminationGracePeriodSeconds", 50, "stopping"),
    ("Deployment", f"{POD}/terminationGracePeriodSeconds", GONE, "stopping"),
    ("Deployment", f"{CONTAINER}/lifecycle/preStop/sleep/seconds", 20, "stopping"),
    ("Deployment", f"{CONTAINER}/lifecycle", GONE, "stopping"),
    ("Deployment", "spec/strategy/rollingUpdate/maxUnavailable", 1, "rolling"),
    ("Deployment", "spec/strategy/rollingUpdate/maxSurge", 0, "rolling"),
    ("Deployment", "spec/strategy", GONE, "rolling"),
    ("Deployment", f"{POD}/volumes", [], "references"),
    ("Deployment", f"{CONTAINER}/securityContext/capabilities", GONE, "restricted"),
    ("Deployment", f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False, "restricted"),
    ("Deployment", f"{POD}/securityContext/runAsNonRoot", False, "restricted"),
    ("Deployment", f"{POD}/securityContext/seccompProfile", GONE, "restricted"),
    ("Deployment", f"{POD}/automountServiceAccountToken", True, "restricted"),
    ("Deployment", f"{POD}/enableServiceLinks", True, "restricted"),
    ("Deployment", f"{CONTAINER}/resources/limits", {"cpu": "1"}, "resources"),
    ("Deployment", f"{CONTAINER}/ports/0/containerPort", 8000, "fronting"),
    # Folders of the pod's own: files would be lost.
    ("Deployment", f"{POD}/volumes/1", {"name": "files", "emptyDir": {}}, "fronting"),
    ("Deployment", f"{CONTAINER}/volumeMounts/1/mountPath", "/files", "fronting"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_FILES", "file:///tmp/files", "fronting"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_FILES", "memory://files", "fronting"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_FILES", GONE, "fronting"),
    ("PersistentVolumeClaim", "spec/accessModes", ["ReadWriteOncePod"], "fronting"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_MAX_WAIT_MS", "7200000", "fronting"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_DRAIN_MS", "40000", "stopping"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_DRAIN", "1", "settings"),
    ("ConfigMap", "data/STREAMFLEET_GATEWAY_BATCHES_AT_ONCE", "-1", "settings"),
    ("Service", "spec/selector/app.kubernetes.io~component", "worker", "selectors"),
    ("Service", "spec/ports/0/targetPort", "web", "selectors"),
    ("NetworkPolicy", "spec/podSelector/matchLabels/app.kubernetes.io~component", "gate", "selectors"),
    ("PodDisruptionBudget", "spec/maxUnavailable", 2, "disruption"),
    ("PodDisruptionBudget", "spec/selector/matchLabels/app.kubernetes.io~component", "gate", "disruption"),
    ("PodMonitor", "spec/podMetricsEndpoints/0/port", "metrics", "monitors"),
    ("PodMonitor", "spec/selector/matchLabels/app.kubernetes.io~component", "gate", "monitors"),
    ("Deployment", "spec/replicas", 2, "scaling"),
    ("HorizontalPodAutoscaler", "spec/scaleTargetRef/name", "streamfleet-gate", "scaling"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/stabilizationWindowSeconds", 60, "scaling"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/policies/0/value", 4, "scaling"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/policies/0/periodSeconds", 30, "scaling"),
    ("HorizontalPodAutoscaler", "spec/minReplicas", 1, "scaling"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/containerResource/container", "web", "scaling"),
    ("Ingress", f"{STATED}/nginx.ingress.kubernetes.io~proxy-read-timeout", "3600", "fronting"),
    ("Ingress", f"{STATED}/nginx.org~proxy-send-timeout", GONE, "fronting"),
    ("Ingress", f"{STATED}/nginx.ingress.kubernetes.io~proxy-buffering", "on", "fronting"),
    ("Ingress", f"{STATED}/nginx.ingress.kubernetes.io~proxy-request-buffering", GONE, "fronting"),
    ("Ingress", f"{STATED}/nginx.org~client-max-body-size", "1m", "fronting"),
    ("Ingress", "spec/tls/0/hosts", ["other.example.com"], "fronting"),
    ("Ingress", f"{PATHS}/1/path", "/", "fronting"),
    ("Ingress", f"{PATHS}/1/path", "/metrics", "fronting"),
    ("Ingress", f"{PATHS}/0/backend/service/port/name", "web", "fronting"),
    ("Ingress", f"{PATHS}/0/backend/service/name", "streamfleet-redis", "fronting"),
]


@pytest.mark.parametrize(("kind", "where", "wrong", "rule"), PLANTED)
def test_planted_mistake_is_found(kind: str, where: str, wrong: object, rule: str) -> None:
    manifests = copy.deepcopy(with_all())
    spoilt: Any = next(
        each
        for each in of_kind(manifests, kind)
        if re.fullmatch(r"streamfleet-gateway(-files|-[0-9a-z]{10})?", name_of(each))
    )
    *steps, last = (int(step) if step.isdigit() else step.replace("~", "/") for step in where.split("/"))
    for step in steps:
        spoilt = spoilt[step]
    if wrong is GONE:
        del spoilt[last]
    else:
        spoilt[last] = wrong
    (check,) = (each for each in RULES if each.__name__ == rule)
    assert list(check(with_all())) == []
    assert list(check(manifests))


def with_all() -> list[Manifest]:
    """The gateway on its volume, with all that goes with that; copy before changing one."""
    return composed(*(each for each in COMPONENTS if each != "gateway-s3"))


# -- who may connect ---------------------------------------------------------------------------------------

PROMETHEUS = End({"app": "prometheus"}, "monitoring")
CALLERS = {
    "proxy": (End({"app": "nginx"}, "ingress-nginx"), True),
    "Prometheus": (PROMETHEUS, False),
    "beside it": (End(CLIENT), True),
    "elsewhere": (End(CLIENT, "shop", CLIENT), True),
    "elsewhere, namespace not let in": (End(CLIENT, "shop"), False),
    "elsewhere, pod without the label": (End({"app": "shop"}, "shop", CLIENT), False),
    "a pod without the label": (End({"app": "shop"}), False),
    "from outside": (End(address="203.0.113.7"), False),
}


def end_of(manifests: list[Manifest], component: str) -> End:
    """The pod of a component."""
    (found,) = (each for each in workloads(manifests) if labels_of(each)["app.kubernetes.io/component"] == component)
    return End(labels_of(found))


@pytest.mark.parametrize("who", CALLERS)
def test_gateway_takes_callers_on_its_port_only(who: str) -> None:
    source, expected = CALLERS[who]
    gateway = end_of(manifests_of(NAME), "gateway")
    assert allowed(manifests_of(NAME), source, gateway, 8080) is expected
    assert not allowed(manifests_of(NAME), source, gateway, 22)
    assert allowed(manifests_of(NAME), source, gateway, 8081) is (source == PROMETHEUS), "probes and metrics"


@pytest.mark.parametrize("fleet", ["base", "overlays/redis-ha"])
def test_gateway_reaches_redis_and_names_and_nothing_else(fleet: str) -> None:
    manifests = composed(fleet=fleet)
    gateway, dns = end_of(manifests, "gateway"), End({"k8s-app": "kube-dns"}, "kube-system")
    assert allowed(manifests, gateway, end_of(manifests, "redis"), 6379)
    if "ha" in fleet:
        assert allowed(manifests, gateway, end_of(manifests, "sentinel"), 26379)
    for protocol in ("TCP", "UDP"):
        assert allowed(manifests, gateway, dns, 53, protocol)
    for target, port in (
        (end_of(manifests, "worker"), 9100),
        (end_of(manifests, "exporter"), 9101),
        (End(address="203.0.113.7"), 443),
        (End(address="169.254.169.254"), 80),
        (End({"app": "shop"}, "shop"), 443),
        (dns, 443),
    ):
        assert not allowed(manifests, gateway, target, port)


@pytest.mark.parametrize(("component", "ports"), [("gateway-webhooks", {80, 443}), ("gateway-s3", {443})])
def test_what_goes_out_goes_to_public_addresses_only(component: str, ports: set[int]) -> None:
    manifests = composed(component)
    gateway = end_of(manifests, "gateway")
    for address in ("203.0.113.7", "2606:4700::1111"):
        assert {
            port for port in (22, 80, 443, 6379, 8443) if allowed(manifests, gateway, End(address=address), port)
        } == ports
    private = ["10.1.2.3", "172.20.0.1", "192.168.1.2", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"]  # noqa: S104
    for address in [*private, "224.0.0.1", "::1", "fd00:ec2::254", "fe80::1", "::ffff:10.1.2.3", "ff02::1"]:
        assert not allowed(manifests, gateway, End(address=address), 443), address
    for target in (End({"app": "shop"}, "shop"), End({"k8s-app": "kube-dns"}, "kube-system")):
        assert not allowed(manifests, gateway, target, 443)


def test_ports_of_webhooks_are_those_of_the_setting() -> None:
    (gateway,) = gateways(composed())
    policy = only(composed("gateway-webhooks"), "NetworkPolicy", "streamfleet-gateway-webhooks")
    (rule,) = policy["spec"]["egress"]
    allowed_ports = sorted(each["port"] for each in rule["ports"])
    assert allowed_ports == sorted(settings_of(gateway, composed()).gateway_webhooks_ports)
