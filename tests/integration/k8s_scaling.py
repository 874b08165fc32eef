"""Autoscalers and monitors of one kustomization, held against what they scale and what they scrape."""

import re
from collections.abc import Iterator
from typing import Any

from tests.integration.k8s_formula import STABLE_S
from tests.integration.k8s_manifests import (
    Manifest,
    environment_of,
    gateways,
    labels_of,
    name_of,
    of_kind,
    only,
    pod_of,
    with_component,
    workloads,
)
from tests.integration.k8s_references import selects

COMPONENTS = {"autoscaling-keda": "ScaledObject", "autoscaling-hpa": "HorizontalPodAutoscaler"}
QUEUE = re.compile(r'queue="([^"]*)"|\{([^}]*)\}:lane:')
"""The queue in a query, or in the name of a stream."""


def misscaled(manifests: list[Manifest]) -> Iterator[str]:
    """Autoscalers without a fleet, of a fleet that has a number of its own, of another queue, or too impatient."""
    deployments = {name_of(each): each for each in of_kind(manifests, "Deployment")}
    scalers = of_kind(manifests, "ScaledObject", "HorizontalPodAutoscaler")
    logins = {name_of(each) for each in of_kind(manifests, "TriggerAuthentication")}
    for each in scalers:
        for trigger in each["spec"].get("triggers", []):
            if trigger.get("authenticationRef", {}).get("name", "") not in logins | {""}:
                yield f"{name_of(each)}: no TriggerAuthentication for the trigger {trigger['name']}"
        target = each["spec"]["scaleTargetRef"]
        fleet = deployments.get(target["name"]) if target.get("kind") == "Deployment" else None
        if fleet is None:
            yield f"{name_of(each)}: no {target.get('kind')} {target['name']}"
            continue
        if "replicas" in fleet["spec"]:
            yield f"{name_of(each)}: {name_of(fleet)} names its replicas too, so every apply sets it back"
        if sum(other["spec"]["scaleTargetRef"]["name"] == target["name"] for other in scalers) > 1:
            yield f"{name_of(each)}: {name_of(fleet)} has another autoscaler"
        if fleet in gateways(manifests):
            yield from _cutting_off(each, fleet)
            continue
        queue = environment_of(pod_of(fleet)["containers"][0], manifests)["STREAMFLEET_QUEUE"]
        for asked in queues_asked(each) - {queue}:
            yield f"{name_of(each)}: looks at the queue {asked}, and {name_of(fleet)} works on {queue}"
        yield from _impatient(each)


def _impatient(scaler: Manifest) -> Iterator[str]:
    patience_s = behavior_of(scaler)["scaleDown"]["stabilizationWindowSeconds"]
    if patience_s < STABLE_S:
        yield f"{name_of(scaler)}: goes down after {patience_s} s, {STABLE_S:g} s are asked"
    if scaler["spec"].get("cooldownPeriod", patience_s) < patience_s:
        yield f"{name_of(scaler)}: the last worker goes sooner than the others"


def _cutting_off(scaler: Manifest, gateway: Manifest) -> Iterator[str]:
    """A gateway that goes cuts off who waits for longer than its drain: rarely, then, and one after the other."""
    grace_s = pod_of(gateway)["terminationGracePeriodSeconds"]
    down = behavior_of(scaler)["scaleDown"]
    if down["stabilizationWindowSeconds"] <= grace_s:
        yield f"{name_of(scaler)}: goes down after {down['stabilizationWindowSeconds']} s, a drain takes {grace_s} s"
    for policy in down["policies"]:
        if (policy["type"], policy["value"]) != ("Pods", 1) or policy["periodSeconds"] < grace_s:
            yield f"{name_of(scaler)}: sends a gateway away while another still drains"
    if scaler["spec"]["minReplicas"] < 2:
        yield f"{name_of(scaler)}: leaves one gateway, whose node may go"
    named = {container["name"] for container in pod_of(gateway)["containers"]}
    for metric in scaler["spec"]["metrics"]:
        if metric.get("containerResource", {}).get("container") not in named:
            yield f"{name_of(scaler)}: does not look at the CPU of a container of {name_of(gateway)}"


def behavior_of(scaler: Manifest) -> dict[str, Any]:
    """Returns the rules by which a ScaledObject or a HorizontalPodAutoscaler goes up and down."""
    spec = scaler["spec"]
    own = spec if scaler["kind"] == "HorizontalPodAutoscaler" else spec["advanced"]["horizontalPodAutoscalerConfig"]
    behavior: dict[str, Any] = own["behavior"]
    return behavior


def queues_asked(scaler: Manifest) -> set[str]:
    """The queues that an autoscaler's metrics are of."""
    if scaler["kind"] == "HorizontalPodAutoscaler":
        metrics = [each["external"]["metric"] for each in scaler["spec"]["metrics"]]
        return {each["selector"]["matchLabels"]["queue"] for each in metrics}
    asked = " ".join(text for each in scaler["spec"]["triggers"] for text in each["metadata"].values())
    return {query or stream for query, stream in QUEUE.findall(asked)}


def unseen(manifests: list[Manifest]) -> Iterator[str]:
    """PodMonitors that pick nothing or other pods than their name says, a port that these lack, or another queue."""
    for each in of_kind(manifests, "PodMonitor"):
        picked = [pod for pod in workloads(manifests) if selects(each["spec"]["selector"], labels_of(pod))]
        # Several pools are one monitor's: streamfleet-worker-small and -large.
        if not picked or not all(name_of(pod).startswith(name_of(each)) for pod in picked):
            yield f"PodMonitor {name_of(each)} picks {[name_of(pod) for pod in picked] or 'nothing'}"
        for pod in picked:
            ports = {port["name"] for container in pod_of(pod)["containers"] for port in container.get("ports", [])}
            queue = environment_of(pod_of(pod)["containers"][0], manifests).get("STREAMFLEET_QUEUE")
            for endpoint in each["spec"]["podMetricsEndpoints"]:
                if endpoint["port"] not in ports:
                    yield f"PodMonitor {name_of(each)}: {name_of(pod)} has no port {endpoint['port']}"
                for label in endpoint.get("relabelings", []):
                    if label["targetLabel"] == "queue" and label["replacement"] != queue:
                        yield f"PodMonitor {name_of(each)}: {name_of(pod)} works on {queue}, not {label['replacement']}"


def queries() -> dict[str, str]:
    """KEDA's, by the trigger's name."""
    scaler = only(with_component("autoscaling-keda"), "ScaledObject")
    return {each["name"]: each["metadata"]["query"] for each in scaler["spec"]["triggers"]}
